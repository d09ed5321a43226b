// SPDX-License-Identifier: Apache-2.0
/* cuda_emu.cpp - fibers, warp collectives and runtime calls behind cuda_emu.h.
 *
 * Owns:     the stacks of one block's threads, for the life of the program.  Thread: one. */
#include "cuda_emu.h"

#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

dim3 emu_block_idx, emu_block_dim, emu_grid_dim;

namespace {

// An odd number of cache lines, so that stacks do not all fall into the same sets.
enum { STACK = (128 << 10) + 320, MAX_THREADS = 1024, DYN_MAX = 256 << 10 };
enum State { READY, AT_WARP, AT_BLOCK, AT_GATE, DONE };

struct Copy {
    void *to;
    const void *from;
    bool is_there;
};

struct Wgmma {
    float *d;
    const uint32_t *a;
    const char *b;
    int n;
    uint32_t a_then[4];
    std::vector<uint16_t> b_then; // [n, 16] of lane 0
    const char *a_tile;           // not NULL: A in shared memory
    bool is_turned;               // rows of b are inputs
    std::vector<uint16_t> a_tile_then;
};

struct Gated {
    std::vector<Copy> copies;
    uint64_t *gate;
};

struct Fiber {
    State state;
    int id;
    EmuOp op;
    const void *in;
    void *out;
    int arg;
    ucontext_t context;
    void *sp;
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
    std::vector<Gated> gated;
    std::vector<std::vector<Wgmma>> wg_groups;
    std::vector<Wgmma> wg_open;
};

Fiber fibers[MAX_THREADS];
Fiber *now;
char *stacks;
int order, n_threads, n_arrivals;
const std::function<void()> *work;
alignas(128) unsigned char dyn[DYN_MAX];

#if defined(__x86_64__)
void *scheduler_sp;
extern "C" void emu_switch(void **save, void *to);
__asm__(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#else
ucontext_t scheduler;
#endif

void leave() {
#if defined(__x86_64__)
    emu_switch(&now->sp, scheduler_sp);
#else
    swapcontext(&now->context, &scheduler);
#endif
}

void fiber_main() {
    for (;;) {
        (*work)();
        now->state = DONE;
        leave();
    }
}

void fiber_start(Fiber *f) {
    char *stack = stacks + (size_t)f->id * STACK;
#if defined(__x86_64__)
    void **sp = reinterpret_cast<void **>(stack + STACK) - 1; // aligned as behind a call
    sp[0] = nullptr;
    *--sp = reinterpret_cast<void *>(fiber_main);
    for (int i = 0; i < 6; i++)
        *--sp = nullptr;
    f->sp = sp;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#endif
}

void fiber_run(Fiber *f) {
    now = f;
#if defined(__x86_64__)
    emu_switch(&scheduler_sp, f->sp);
#else
    swapcontext(&scheduler, &f->context);
#endif
}

[[noreturn]] void wrong(const char *what) {
    fprintf(stderr, "cuda_emu: %s, block (%u, %u, %u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z);
    abort();
}

/* c += a b of one warp's matrix instruction, with the operands laid out by row; the loop over the
 * eight columns is innermost so that the compiler can vectorise it. */
template <typename T, int K> struct Tiles {
    T a[16][K], b[K][8], c[16][8];
    void multiply() {
        for (int row = 0; row < 16; row++)
            for (int k = 0; k < K; k++)
                for (int col = 0; col < 8; col++)
                    c[row][col] += a[row][k] * b[k][col];
    }
};

/* C operand of lane g * 4 + j: rows g and g + 8, columns 2 j and 2 j + 1. */
template <typename T, int K> void tiles_take_c(Tiles<T, K> &t, Fiber *w) {
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            memcpy(&t.c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2],
                   &static_cast<const EmuMma *>(w[lane].in)->c[i], 4);
}
template <typename T, int K> void tiles_give_c(const Tiles<T, K> &t, Fiber *w) {
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            memcpy(static_cast<char *>(w[lane].out) + 4 * i,
                   &t.c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2], 4);
}

void mma_s8_warp(Fiber *w) {
    static Tiles<int32_t, 32> t;
    for (int lane = 0; lane < 32; lane++) {
        const EmuMma *m = static_cast<const EmuMma *>(w[lane].in);
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < 4; i++)
                t.a[lane / 4 + r % 2 * 8][r / 2 * 16 + lane % 4 * 4 + i] = m->a[r] >> 8 * i & 255;
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < 4; i++)
                t.b[r * 16 + lane % 4 * 4 + i][lane / 4] = (int8_t)(m->b[r] >> 8 * i & 255);
    }
    tiles_take_c(t, w);
    t.multiply();
    tiles_give_c(t, w);
}

void mma_bf16_warp(Fiber *w) {
    static Tiles<float, 16> t;
    for (int lane = 0; lane < 32; lane++) {
        const EmuMma *m = static_cast<const EmuMma *>(w[lane].in);
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < 2; e++)
                t.a[lane / 4 + r % 2 * 8][r / 2 * 8 + lane % 4 * 2 + e] =
                    emu_from_bf16(m->a[r] >> 16 * e & 0xffff);
        for (int r = 0; r < 2; r++)
            for (int e = 0; e < 2; e++)
                t.b[r * 8 + lane % 4 * 2 + e][lane / 4] = emu_from_bf16(m->b[r] >> 16 * e & 0xffff);
    }
    tiles_take_c(t, w);
    t.multiply();
    tiles_give_c(t, w);
}

void mma_tf32_warp(Fiber *w) {
    static Tiles<float, 8> t;
    for (int lane = 0; lane < 32; lane++) {
        const EmuMma *m = static_cast<const EmuMma *>(w[lane].in);
        for (int r = 0; r < 4; r++)
            t.a[lane / 4 + r % 2 * 8][r / 2 * 4 + lane % 4] =
                __uint_as_float(m->a[r] & 0xffffe000u);
        for (int r = 0; r < 2; r++)
            t.b[r * 4 + lane % 4][lane / 4] = __uint_as_float(m->b[r] & 0xffffe000u);
    }
    tiles_take_c(t, w);
    t.multiply();
    tiles_give_c(t, w);
}

/* Row `row` of 16 inputs at b: piece p of a row of 128 bytes lies at p ^ row % 8. */
const char *wgmma_piece(const char *b, int row, int half) {
    uintptr_t at = reinterpret_cast<uintptr_t>(b) + (uintptr_t)row * 128 + (uintptr_t)half * 16;
    return reinterpret_cast<const char *>(at ^ ((at >> 7 & 7) << 4));
}
void wgmma_load(uint16_t *out, const char *b, int n) {
    for (int row = 0; row < n; row++)
        for (int half = 0; half < 2; half++)
            memcpy(out + row * 16 + half * 8, wgmma_piece(b, row, half), 16);
}

/* b as 16 rows of 64 columns. */
void wgmma_load_turned(uint16_t *out, const char *b) {
    for (int k = 0; k < 16; k++)
        for (int piece = 0; piece < 8; piece++)
            for (int e = 0; e < 8; e++)
                memcpy(out + (piece * 8 + e) * 16 + k, wgmma_piece(b, k, piece) + 2 * e, 2);
}
std::vector<uint16_t> wgmma_b(const Wgmma &m) {
    std::vector<uint16_t> out((size_t)m.n * 16);
    if (m.is_turned)
        wgmma_load_turned(out.data(), m.b);
    else
        wgmma_load(out.data(), m.b, m.n);
    return out;
}
/* Pairs of a lane's A operand from a tile of 64 rows. */
void wgmma_a(uint32_t a[4], const std::vector<uint16_t> &tile, int thread) {
    for (int r = 0; r < 4; r++) {
        int row = thread / 32 % 4 * 16 + thread % 32 / 4 + r % 2 * 8;
        memcpy(&a[r], &tile[(size_t)(row * 16 + r / 2 * 8 + thread % 4 * 2)], 4);
    }
}

/* Operation i of group g of the 32 lanes of a warp. */
void wgmma_warp(Fiber *w, size_t g, size_t i) {
    static float a[16][16], b[16][256], c[16][256];
    const Wgmma &one = w[0].wg_groups[g][i];
    std::vector<uint16_t> now = wgmma_b(one), tile(64 * 16);
    if (one.a_tile)
        wgmma_load(tile.data(), one.a_tile, 64);
    if (now != one.b_then || (one.a_tile && tile != one.a_tile_then))
        wrong("shared memory of a matrix instruction in flight was written");
    for (int row = 0; row < one.n; row++)
        for (int k = 0; k < 16; k++)
            b[k][row] = emu_from_bf16(now[(size_t)row * 16 + (size_t)k]);
    for (int lane = 0; lane < 32; lane++) {
        const Wgmma &m = w[lane].wg_groups[g][i];
        uint32_t pairs[4];
        if (one.a_tile)
            wgmma_a(pairs, tile, w[lane].id);
        else
            memcpy(pairs, m.a, sizeof pairs);
        if (!one.a_tile && memcmp(pairs, m.a_then, sizeof m.a_then))
            wrong("operands of a matrix instruction in flight were written");
        if (m.b != one.b || m.n != one.n || m.a_tile != one.a_tile || m.is_turned != one.is_turned)
            wrong("lanes of a warp differ in a matrix instruction");
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < 2; e++)
                a[lane / 4 + r % 2 * 8][r / 2 * 8 + lane % 4 * 2 + e] =
                    emu_from_bf16(pairs[r] >> 16 * e & 0xffff);
        for (int j = 0; j < one.n / 2; j++)
            c[lane / 4 + j / 2 % 2 * 8][j / 4 * 8 + lane % 4 * 2 + j % 2] = m.d[j];
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int col = 0; col < one.n; col++)
                c[row][col] += a[row][k] * b[k][col];
    for (int lane = 0; lane < 32; lane++)
        for (int j = 0; j < one.n / 2; j++)
            w[lane].wg_groups[g][i].d[j] =
                c[lane / 4 + j / 2 % 2 * 8][j / 4 * 8 + lane % 4 * 2 + j % 2];
}

void wgmma_wait_warp(Fiber *w, size_t keep) {
    for (int lane = 1; lane < 32; lane++)
        if (w[lane].wg_groups.size() != w[0].wg_groups.size())
            wrong("lanes of a warp differ in matrix instructions");
    while (w[0].wg_groups.size() > keep) {
        for (size_t i = 0; i < w[0].wg_groups[0].size(); i++)
            wgmma_warp(w, 0, i);
        for (int lane = 0; lane < 32; lane++)
            w[lane].wg_groups.erase(w[lane].wg_groups.begin());
    }
}

void load_matrix_warp(Fiber *w, bool is_transposed) {
    for (int lane = 0; lane < 32; lane++)
        if (reinterpret_cast<uintptr_t>(w[lane].in) % 16)
            wrong("a matrix row is not at a 16-byte boundary");
    for (int lane = 0; lane < 32; lane++)
        for (int q = 0; q < 4; q++) {
            uint32_t v = 0;
            for (int e = 0; e < 2; e++) {
                int row = is_transposed ? lane % 4 * 2 + e : lane / 4;
                int col = is_transposed ? lane / 4 : lane % 4 * 2 + e;
                uint16_t h;
                memcpy(&h, static_cast<const char *>(w[8 * q + row].in) + 2 * col, 2);
                v |= (uint32_t)h << 16 * e;
            }
            static_cast<uint32_t *>(w[lane].out)[q] = v;
        }
}

void exchange_warp(Fiber *w, EmuOp op) {
    uint32_t in[32], r;
    for (int lane = 0; lane < 32; lane++)
        memcpy(&in[lane], w[lane].in, 4);
    uint32_t all = op == EMU_MIN ? ~0u : 0;
    for (int lane = 0; lane < 32; lane++) {
        if (op == EMU_MAX && in[lane] > all)
            all = in[lane];
        if (op == EMU_MIN && in[lane] < all)
            all = in[lane];
        if (op == EMU_BALLOT)
            all |= in[lane] << lane;
    }
    for (int lane = 0; lane < 32; lane++) {
        int arg = w[lane].arg;
        if (op == EMU_SHFL_XOR)
            r = in[lane ^ arg];
        else if (op == EMU_SHFL)
            r = in[arg & 31];
        else if (op == EMU_SHFL_UP)
            r = in[lane >= arg ? lane - arg : lane];
        else if (op == EMU_TRANSPOSE) {
            r = 0;
            for (int e = 0; e < 2; e++) {
                int row = lane % 4 * 2 + e, col = lane / 4; // of the source
                r |= (in[row * 4 + col / 2] >> 16 * (col % 2) & 0xffff) << 16 * e;
            }
        } else
            r = all;
        memcpy(w[lane].out, &r, 4);
    }
}

void collective_warp(Fiber *w) {
    EmuOp op = w[0].op;
    for (int lane = 1; lane < 32; lane++)
        if (w[lane].op != op)
            wrong("lanes of a warp meet at different collectives");
    switch (op) {
    case EMU_SYNC: break;
    case EMU_MMA_S8: mma_s8_warp(w); break;
    case EMU_MMA_BF16: mma_bf16_warp(w); break;
    case EMU_MMA_TF32: mma_tf32_warp(w); break;
    case EMU_WGMMA_WAIT: wgmma_wait_warp(w, (size_t)w[0].arg); break;
    case EMU_LOAD_MATRIX:
    case EMU_LOAD_MATRIX_T: load_matrix_warp(w, op == EMU_LOAD_MATRIX_T); break;
    default: exchange_warp(w, op);
    }
    for (int lane = 0; lane < 32; lane++)
        w[lane].state = READY;
}

void copy_land(const Copy &c) {
    if (c.is_there)
        memcpy(c.to, c.from, 16);
    else
        memset(c.to, 0, 16);
}

/* The oldest copies of every thread that arrive at a gate; whether there were any. */
bool gated_land() {
    bool is_any = false;
    for (int i = 0; i < n_threads; i++) {
        if (fibers[i].gated.empty())
            continue;
        for (const Copy &c : fibers[i].gated.front().copies)
            copy_land(c);
        emu_gate_arrive(fibers[i].gated.front().gate);
        fibers[i].gated.erase(fibers[i].gated.begin());
        is_any = true;
    }
    return is_any;
}

/* Runs the lanes of a warp until all wait at the block's barrier or have ended. */
void warp_run(Fiber *w) {
    for (;;) {
        int n_warp = 0, n_ready = 0, n_gate = 0;
        for (int i = 0; i < 32; i++) {
            Fiber *f = &w[order ? 31 - i : i];
            if (f->state == READY)
                fiber_run(f);
        }
        for (int i = 0; i < 32; i++) {
            n_warp += w[i].state == AT_WARP;
            n_ready += w[i].state == READY;
            n_gate += w[i].state == AT_GATE;
        }
        if (n_ready)
            continue;
        if (n_warp == 0 || n_gate)
            return;
        if (n_warp != 32)
            wrong("some lanes of a warp are missing at a collective");
        collective_warp(w);
    }
}

void block_run() {
    for (int i = 0; i < n_threads; i++) {
        fibers[i].id = i;
        fibers[i].state = READY;
        fibers[i].groups.clear();
        fibers[i].open.clear();
        fibers[i].gated.clear();
        fibers[i].wg_groups.clear();
        fibers[i].wg_open.clear();
        fiber_start(&fibers[i]);
    }
    int n_warps = n_threads / 32;
    for (;;) {
        int n_done = 0, n_barrier = 0, n_gate = 0;
        n_arrivals = 0;
        for (int i = 0; i < n_warps; i++)
            warp_run(&fibers[32 * (order ? n_warps - 1 - i : i)]);
        for (int i = 0; i < n_threads; i++) {
            n_done += fibers[i].state == DONE;
            n_barrier += fibers[i].state == AT_BLOCK;
            n_gate += fibers[i].state == AT_GATE;
        }
        if (n_done == n_threads)
            break;
        if (n_done + n_barrier + n_gate != n_threads || (n_gate && !n_arrivals && !gated_land()))
            wrong("a block cannot go on");
        if (n_done && n_barrier && !n_gate)
            wrong("some threads of a block are missing at its barrier");
        for (int i = 0; i < n_threads; i++)
            if (fibers[i].state == AT_GATE || (fibers[i].state == AT_BLOCK && !n_gate))
                fibers[i].state = READY;
    }
    for (int i = 0; i < n_threads; i++)
        if (!fibers[i].wg_groups.empty() || !fibers[i].wg_open.empty())
            wrong("a thread ends with a matrix instruction in flight");
}

void copies_land(Fiber *f, size_t keep) {
    while (f->groups.size() > keep) {
        for (const Copy &c : f->groups.front())
            copy_land(c);
        f->groups.erase(f->groups.begin());
    }
}

} // namespace

dim3 emu_thread_idx() { return dim3((unsigned)now->id, 0, 0); }
unsigned char *emu_dyn_shared() { return dyn; }
void emu_set_order(int to) { order = to; }

void emu_collective(EmuOp op, const void *in, void *out, int arg) {
    now->op = op;
    now->in = in;
    now->out = out;
    now->arg = arg;
    now->state = AT_WARP;
    leave();
}

void emu_barrier() {
    now->state = AT_BLOCK;
    leave();
}

void emu_copy_async(void *to, const void *from, bool is_there) {
    if (reinterpret_cast<uintptr_t>(to) % 16 ||
        (is_there && reinterpret_cast<uintptr_t>(from) % 16))
        wrong("an asynchronous copy is not at a 16-byte boundary");
    now->open.push_back({to, from, is_there});
}
void emu_copy_commit() {
    now->groups.push_back(now->open);
    now->open.clear();
}
void emu_copy_wait(int n) { copies_land(now, (size_t)n); }

void emu_wgmma(float *d, const uint32_t *a, const char *b, int n) {
    Wgmma m = {d, a, b, n, {a[0], a[1], a[2], a[3]}, {}, nullptr, false, {}};
    if (now->id % 32 == 0)
        m.b_then = wgmma_b(m);
    now->wg_open.push_back(m);
}
void emu_wgmma_shared(float *d, const char *a, const char *b) {
    Wgmma m = {d, nullptr, b, 64, {0, 0, 0, 0}, {}, a, false, std::vector<uint16_t>(64 * 16)};
    if (now->id % 32 == 0) {
        m.b_then = wgmma_b(m);
        wgmma_load(m.a_tile_then.data(), a, 64);
    }
    now->wg_open.push_back(m);
}
void emu_wgmma_turned(float *d, const uint32_t *a, const char *b) {
    Wgmma m = {d, a, b, 64, {a[0], a[1], a[2], a[3]}, {}, nullptr, true, {}};
    if (now->id % 32 == 0)
        m.b_then = wgmma_b(m);
    now->wg_open.push_back(m);
}
void emu_wgmma_commit() {
    now->wg_groups.push_back(now->wg_open);
    now->wg_open.clear();
}

void emu_gate_init(uint64_t *gate, int n) { *gate = (uint64_t)n << 32 | (uint32_t)n; }
void emu_gate_arrive(uint64_t *gate) {
    uint32_t left = (uint32_t)*gate, all = *gate >> 32 & 0xfffff, opened = *gate >> 56;
    if (all == 0 || left == 0 || left > all)
        wrong("an arrival at no gate");
    if (--left == 0) {
        left = all;
        opened++;
    }
    *gate = (uint64_t)opened << 56 | (uint64_t)all << 32 | left;
    n_arrivals++;
}
void emu_gate_arrive_copies(uint64_t *gate) {
    if (order) { // at once
        for (const Copy &c : now->open)
            copy_land(c);
        emu_gate_arrive(gate);
    } else {
        now->gated.push_back({now->open, gate});
    }
    now->open.clear();
}
/* As the card: waits while the opening under way has the same parity as `round`. */
void emu_gate_wait(const uint64_t *gate, int round) {
    while ((int)(*gate >> 56 & 1) == (round & 1)) {
        now->state = AT_GATE;
        leave();
    }
}

void emu_run(dim3 grid, int block, size_t shared, const std::function<void()> &body) {
    if (!stacks)
        stacks =
            static_cast<char *>(mmap(nullptr, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (block % 32 || block > MAX_THREADS || shared > DYN_MAX || !grid.x || !grid.y || !grid.z ||
        grid.y > 65535 || grid.z > 65535)
        wrong("a launch is out of bounds");
    emu_grid_dim = grid;
    emu_block_dim = dim3((unsigned)block);
    n_threads = block;
    work = &body;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                emu_block_idx = dim3(x, y, z);
                memset(dyn, 0xff, shared); // NaN: nothing may be read before it is written
                block_run();
            }
}

/* ---- streams ---- */

struct EmuMark {
    uint64_t recorded, passed; // times an event was recorded, and those that its stream has come to
};
struct EmuEvent {
    std::shared_ptr<EmuMark> mark = std::make_shared<EmuMark>();
};

namespace {

/* A piece of a stream's work; it can begin once the mark was passed `number` times. */
struct Work {
    std::function<void()> run;
    std::shared_ptr<EmuMark> mark;
    uint64_t number;
};

} // namespace

struct EmuStream {
    std::deque<Work> queue;
    unsigned weight; // in the draw
};

namespace {

enum { COPY_PIECES = 3, PIECE_MIN = 4096 }; // a copy that others may come into the middle of

std::vector<EmuStream *> streams;
std::map<const char *, size_t> pinned; // host memory that the card can reach
uint32_t queue_seed;
uint64_t chance;

uint32_t draw(uint32_t n) {
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(chance >> 33) % n;
}

bool can_begin(const EmuStream *s) {
    return !s->queue.empty() &&
           (!s->queue.front().mark || s->queue.front().mark->passed >= s->queue.front().number);
}

/* Does one piece of the work of a stream that can go on; false: none can. */
bool streams_step() {
    unsigned all = 0;
    for (const EmuStream *s : streams)
        all += can_begin(s) ? s->weight : 0;
    if (!all)
        return false;
    unsigned at = draw(all);
    for (EmuStream *s : streams) {
        if (!can_begin(s))
            continue;
        if (at < s->weight) {
            Work w = s->queue.front();
            s->queue.pop_front();
            if (w.run)
                w.run();
            return true;
        }
        at -= s->weight;
    }
    return false;
}

/* Goes on until `is_done` says so. */
void streams_run(const std::function<bool()> &is_done) {
    while (!is_done())
        if (!streams_step())
            wrong("streams wait for each other");
}

void streams_drain() {
    while (streams_step()) {
    }
}

bool is_pinned(const void *p) {
    auto at = pinned.upper_bound(static_cast<const char *>(p));
    return at != pinned.begin() && static_cast<const char *>(p) < (--at)->first + at->second;
}

/* How often something is done before anybody waits: never, at times, mostly. */
void streams_by_chance() {
    static const uint32_t shares[] = {0, 2, 9};
    while (draw(10) < shares[queue_seed % 3] && streams_step()) {
    }
}

cudaError_t enqueue(cudaStream_t stream, const Work &w) {
    if (!queue_seed || !stream) {
        streams_drain();
        if (w.run)
            w.run();
        return cudaSuccess;
    }
    stream->queue.push_back(w);
    streams_by_chance();
    return cudaSuccess;
}

} // namespace

extern "C" {
/* The card is lost: whoever waits for it is told, and nothing that was queued is done. From the
 * call on that comes `after` others when emu_lose_after says so (-1: not), every call is told. */
int emu_is_lost = 0, emu_lose_after = -1;
static cudaError_t emu_call(void) {
    if (emu_lose_after < 0 || emu_lose_after-- > 0)
        return cudaSuccess;
    emu_lose_after = 0;
    emu_is_lost = 1;
    return cudaErrorLaunchFailure;
}
}

cudaError_t emu_enqueue(cudaStream_t stream, const std::function<void()> &work) {
    cudaError_t e = emu_call();
    return e == cudaSuccess ? enqueue(stream, {work, nullptr, 0}) : e;
}

extern "C" void emu_set_queue(uint32_t seed) {
    streams_drain();
    queue_seed = seed;
    chance = seed;
}

/* ---- runtime calls ---- */

extern "C" {
/* The machine: cards, the driver's version (0: none), compute capability, free bytes of memory. */
int emu_n_devices = 1, emu_driver = CUDART_VERSION, emu_compute = 90, emu_shared = 227 << 10;
size_t emu_memory = (size_t)4 << 30;

cudaError_t cudaGetDeviceCount(int *n) {
    if (emu_driver < CUDART_VERSION)
        return cudaErrorInsufficientDriver;
    *n = emu_n_devices;
    return *n ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = emu_driver;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int) {
    *value = attr == cudaDevAttrComputeCapabilityMajor         ? emu_compute / 10
             : attr == cudaDevAttrComputeCapabilityMinor       ? emu_compute % 10
             : attr == cudaDevAttrMultiProcessorCount          ? 4
             : attr == cudaDevAttrMaxSharedMemoryPerBlockOptin ? emu_shared
                                                               : 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int) {
    memset(prop, 0, sizeof *prop);
    strcpy(prop->name, "emulated");
    prop->totalGlobalMem = (size_t)4 << 30;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    *free = *total = emu_memory;
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t e) { return e ? "an emulated failure" : "no error"; }
const char *cudaGetErrorName(cudaError_t e) { return e ? "emulated" : "cudaSuccess"; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

/* Fails the allocation that comes `after` others; -1: none. */
int emu_fail_after = -1;
static cudaError_t emu_wait(const std::function<bool()> &is_done) {
    cudaError_t e = emu_call();
    if (emu_is_lost) {
        for (EmuStream *s : streams)
            s->queue.clear();
        return cudaErrorLaunchFailure;
    }
    streams_run(is_done);
    return e;
}
static cudaError_t emu_alloc(void **p, size_t n) {
    if (emu_fail_after >= 0 && emu_fail_after-- == 0)
        return cudaErrorMemoryAllocation;
    *p = aligned_alloc(256, (n + 255) / 256 * 256 + 256);
    if (*p)
        memset(*p, 0xff, (n + 255) / 256 * 256 + 256);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaMalloc(void **p, size_t n) { return emu_alloc(p, n); }
cudaError_t cudaFree(void *p) { // waits for the card, as the runtime does
    streams_drain();
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) {
    cudaError_t e = emu_alloc(p, n);
    if (e == cudaSuccess)
        pinned[static_cast<char *>(*p)] = n;
    return e;
}
cudaError_t cudaFreeHost(void *p) {
    pinned.erase(static_cast<char *>(p));
    return cudaFree(p);
}
/* As the card: from pages that are not pinned the bytes are taken before the call returns, and such
 * pages have theirs when it returns. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    if (emu_call() != cudaSuccess)
        return cudaErrorLaunchFailure;
    std::shared_ptr<std::vector<char>> staged;
    if (queue_seed && stream && kind == cudaMemcpyHostToDevice && !is_pinned(from)) {
        const char *bytes = static_cast<const char *>(from);
        staged = std::make_shared<std::vector<char>>(bytes, bytes + n);
        from = staged->data();
    }
    size_t piece = n < PIECE_MIN ? n : n / COPY_PIECES + 1;
    for (size_t at = 0; at < n; at += piece) {
        size_t m = n - at < piece ? n - at : piece;
        enqueue(stream, {[=] {
                             (void)staged; // held until then
                             memmove(static_cast<char *>(to) + at,
                                     static_cast<const char *>(from) + at, m);
                         },
                         nullptr, 0});
    }
    if (queue_seed && stream && kind == cudaMemcpyDeviceToHost && !is_pinned(to))
        return emu_wait([=] { return stream->queue.empty(); });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream) {
    if (emu_call() != cudaSuccess)
        return cudaErrorLaunchFailure;
    return enqueue(stream, {[=] { memset(p, value, n); }, nullptr, 0});
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) {
    static const unsigned weights[] = {1, 64, 4096}; // one far ahead of another
    *s = new EmuStream{{}, weights[draw(3)]};
    streams.push_back(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    streams_drain();
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s)
            streams.erase(streams.begin() + (ptrdiff_t)i);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    return emu_wait([=] { return !s || s->queue.empty(); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    if (emu_call() != cudaSuccess)
        return cudaErrorLaunchFailure;
    return enqueue(s, {nullptr, e->mark, e->mark->recorded});
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
    *e = new EmuEvent;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    if (emu_call() != cudaSuccess)
        return cudaErrorLaunchFailure;
    std::shared_ptr<EmuMark> mark = e->mark;
    uint64_t number = ++mark->recorded;
    return enqueue(s, {[=] { mark->passed = number; }, nullptr, 0});
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    return emu_wait([=] { return e->mark->passed >= e->mark->recorded; });
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    cudaError_t status = emu_wait([] { return true; });
    streams_by_chance();
    if (draw(4) == 0) // who asks often enough is told that it is done
        streams_step();
    if (status != cudaSuccess)
        return status;
    return e->mark->passed >= e->mark->recorded ? cudaSuccess : cudaErrorNotReady;
}
/* There are no graphs: the backend must do without them when capture is refused. */
cudaError_t cudaStreamBeginCapture(cudaStream_t, enum cudaStreamCaptureMode) {
    return cudaErrorInvalidValue;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *) { return cudaErrorInvalidValue; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long) {
    return cudaErrorInvalidValue;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorInvalidValue; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
}
