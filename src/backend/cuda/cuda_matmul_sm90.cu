// SPDX-License-Identifier: Apache-2.0
/* cuda_matmul_sm90.cu - prefill products, the sm90a column: warp groups multiply codes that each
 * lane turned into bf16 in registers with rows of the step in shared memory.
 *
 * A block stays on its multiprocessor and takes one unit of work after the other: 256 outputs of up
 * to 128 rows. Two warp groups multiply (128 outputs each); a third one copies rows and codes of
 * the tiles to come into a ring, across the ends of units. While the matrix unit works, lanes
 * unpack the operands of the next step.
 *
 * Path:     started by cuda_matmul.cu where the launch says so.
 * Owns:     nothing.  Thread: engine.
 * Order:    one f32 sum over ascending steps of 16 inputs, whatever the width of a unit. */
#include "backend/cuda/cuda_operand.cuh"
#include "backend/cuda/cuda_wgmma.cuh"

enum {
    MULTIPLIERS = 256, // threads that multiply
    COPIERS = 128,     // threads that copy
    THREADS = MULTIPLIERS + COPIERS,
    OUTPUTS = 256,                   // of a unit
    BLOCKS = 2,                      // of 16 outputs of one warp, 64 apart
    ROWS = CUDA_WIDE_ROWS,           // of a unit, at most
    STAGES = 8,                      // of the ring: tiles of 64 inputs
    PIECES = ROWS * 8 / COPIERS,     // 16 bytes of rows in a tile, copied by one thread
    CODES = OUTPUTS * 2 / COPIERS,   // the same of codes
    TILE_BYTES = ROWS * 128,         // rows of one stage
    CODE_BYTES = OUTPUTS / 16 * 512, // codes of one stage
    SCALE_BYTES = OUTPUTS / 16 * 64,
    STAGE_BYTES = TILE_BYTES + CODE_BYTES + SCALE_BYTES,
    UNITS = 2 * STAGES, // described in shared memory: those in the ring and one being stored
    LEAD = 3,           // tiles that the first warp group is ahead of the second
    WIDTHS = 5,         // of units: 128, 96, 64, 32, 16 rows
    MAX_ORDER = 4096,   // items that are put in order
    SHARED_BYTES = 1024 + STAGES * STAGE_BYTES + UNITS * (16 + 4 * ROWS) + (2 * STAGES + 1) * 8 +
                   MAX_ORDER * 3 + 16,
};

/* What the kernel is given: the product, and how it is cut. */
typedef struct Wide {
    CudaMatmul m;
    int32_t rows;           // of a unit when there are no items
    int32_t n_wide, n_high; // units along the outputs, along the rows (or items)
    int32_t blocks, tiles;  // blocks of 16 outputs of an expert; tiles along the inputs
    int32_t step_x, step_y; // from a unit of a block to its next one
    int32_t is_ordered;     // items are taken in order of their widths
    uint64_t inverse;       // pair / src_div = pair * inverse / 2^32; 0: no division
} Wide;

#if HAS_WGMMA
/* A unit as it is multiplied: outputs from n0 on, `count` rows; count 0: there are no more. */
struct alignas(16) Unit {
    int32_t n0, n_blocks, count, zero;
};

/* Shared memory: the ring, descriptions of units, gates. */
struct Shared {
    unsigned char *stage;
    Unit *unit;          // [UNITS]
    int32_t *target;     // [UNITS, ROWS] row of the result
    Gate *full, *vacant; // [STAGES]
    Gate *lead;          // the first group of warps is far enough ahead
    int32_t *n_order;    // items that there are
    uint16_t *order;     // [MAX_ORDER] items, the widest first
    uint8_t *width;      // [MAX_ORDER] which of the widths an item has
};

FN Shared shared_cut(unsigned char *all) {
    Shared s;
    uint32_t past = (uint32_t)((uintptr_t)shared_place(all) % 1024);
    s.stage = all + (1024 - past) % 1024; // wgmma_tile wants 1024
    s.unit = reinterpret_cast<Unit *>(s.stage + STAGES * STAGE_BYTES);
    s.target = reinterpret_cast<int32_t *>(s.unit + UNITS);
    s.full = reinterpret_cast<Gate *>(s.target + UNITS * ROWS);
    s.vacant = s.full + STAGES;
    s.lead = s.vacant + STAGES;
    s.n_order = reinterpret_cast<int32_t *>(s.lead + 1);
    s.order = reinterpret_cast<uint16_t *>(s.n_order + 2);
    s.width = reinterpret_cast<uint8_t *>(s.order + MAX_ORDER);
    return s;
}

/* A place in the ring: the stage, and how often it has been gone round. */
struct Place {
    int32_t stage, round;
};
FN Place place_next(Place p) {
    p.stage++;
    if (p.stage == STAGES) {
        p.stage = 0;
        p.round++;
    }
    return p;
}

/* Rows of B that a unit of so many rows is multiplied with. */
FN int32_t unit_width(int32_t count) {
    return count > 96 ? 128 : count > 64 ? 96 : count > 32 ? 64 : count > 16 ? 32 : 16;
}

/* ---- copying ---- */

struct Item {
    int32_t expert, place, count;
};

/* Which width an item of so many rows has; WIDTHS: there is no item. */
FN int32_t width_of(int32_t count) {
    return count > 96   ? 0
           : count > 64 ? 1
           : count > 32 ? 2
           : count > 16 ? 3
           : count > 0  ? 4
                        : WIDTHS;
}

/* Items in order of their widths, so that the blocks, which take them in turn, get equal shares. By
 * every block for itself; `width` was filled. One warp. */
FN void order_make(const Wide &a, const Shared &s, int lane) {
    int32_t at[WIDTHS + 1] = {};
    for (int32_t i0 = 0; i0 < a.n_high; i0 += 32) {
        int32_t mine = i0 + lane < a.n_high ? s.width[i0 + lane] : (int32_t)WIDTHS;
#pragma unroll
        for (int w = 0; w < WIDTHS; w++)
            at[w + 1] += __popc(__ballot_sync(FULL_WARP, mine == w));
    }
#pragma unroll
    for (int w = 0; w < WIDTHS; w++)
        at[w + 1] += at[w];
    if (lane == 0)
        *s.n_order = at[WIDTHS];
    for (int32_t i0 = 0; i0 < a.n_high; i0 += 32) {
        int32_t mine = i0 + lane < a.n_high ? s.width[i0 + lane] : (int32_t)WIDTHS;
#pragma unroll
        for (int w = 0; w < WIDTHS; w++) {
            uint32_t all = __ballot_sync(FULL_WARP, mine == w);
            if (mine == w)
                s.order[at[w] + __popc(all & ((1u << lane) - 1u))] = (uint16_t)(i0 + lane);
            at[w] += __popc(all);
        }
    }
}

/* The item of row `y` of units; count 0 where there is none. */
FN Item item_read(const Wide &a, const Shared &s, int32_t y) {
    Item i = {0, 0, 0};
    if (y >= (a.is_ordered ? *s.n_order : a.n_high))
        return i;
    if (a.is_ordered)
        y = s.order[y];
    if (a.m.item) {
        const int32_t *p = a.m.item + 3 * (int64_t)y;
        i.expert = p[0];
        i.place = p[1];
        i.count = p[2];
    } else {
        i.place = y * a.rows;
        i.count = a.m.m - i.place < a.rows ? a.m.m - i.place : a.rows;
    }
    return i;
}

/* What a thread copies: 16-byte pieces of rows 16 apart, codes of row blocks 4 apart. */
struct Copier {
    int32_t x, y;           // of the unit behind, along the outputs and along the rows
    int32_t n_unit;         // how many were begun
    int32_t count;          // rows of the unit
    uint32_t piece[PIECES]; // of u, in 16 bytes
    uint32_t code;          // tile of codes of the first row block of the unit
    int32_t n_codes;        // row blocks that there are
    Item next;              // the item of the unit behind, read in advance
    int32_t pair[PIECES];   // its entries of the list
};

FN void pairs_read(const Wide &a, Copier &k, int me) {
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int32_t row = me / 8 + 16 * i;
        k.pair[i] = a.m.list && row < k.next.count ? a.m.list[k.next.place + row] : 0;
    }
}

/* Begins the unit whose item was read in advance, describes it, and reads the item behind it. */
FN void unit_begin(const Wide &a, const Shared &s, Copier &k, int me) {
    int32_t slot = k.n_unit++ % UNITS, first = k.x * (OUTPUTS / 16);
    k.count = k.next.count;
    k.n_codes = a.blocks - first;
    k.code = (uint32_t)(k.next.expert * a.blocks + first) * (uint32_t)a.tiles;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int32_t row = me / 8 + 16 * i, place = k.next.place + row;
        uint32_t from = (uint32_t)place;
        if (a.inverse)
            from = (uint32_t)((uint32_t)k.pair[i] * a.inverse >> 32);
        k.piece[i] = row < k.count ? from * (uint32_t)(a.tiles * 8) + (uint32_t)(me % 8) : 0;
        if (me % 8 == 0)
            s.target[slot * ROWS + row] = a.m.list && !a.m.is_sorted_y ? k.pair[i] : place;
    }
    if (me == 0)
        s.unit[slot] = {k.x * OUTPUTS, a.blocks, k.count, 0};
    k.x += a.step_x;
    k.y += a.step_y;
    if (k.x >= a.n_wide) {
        k.x -= a.n_wide;
        k.y++;
    }
    k.next = item_read(a, s, k.y);
}

FN void tile_copy(const Wide &a, unsigned char *to, Copier &k, int32_t width, int me) {
    const uint4 *u = reinterpret_cast<const uint4 *>(a.m.u);
    const uint4 *code = reinterpret_cast<const uint4 *>(a.m.w.code);
    const uint4 *scale = reinterpret_cast<const uint4 *>(a.m.w.scale);
    int32_t row = me / 8, lane = me % 32;
    unsigned char *tile = to + row * 128 + ((me ^ row) & 7) * 16; // 16 rows on: the same exchange
#pragma unroll
    for (int i = 0; i < CODES; i++) {
        int32_t block = me / 32 + 4 * i;
        bool is_there = block < k.n_codes;
        uint32_t from = k.code + (is_there ? (uint32_t)(block * a.tiles) : 0);
        copy_async(to + TILE_BYTES + block * 512 + lane * 16, code + (uint64_t)from * 32 + lane,
                   is_there);
    }
    if (me < SCALE_BYTES / 16) {
        bool is_there = me / 4 < k.n_codes;
        uint32_t from = k.code + (is_there ? (uint32_t)(me / 4 * a.tiles) : 0);
        copy_async(to + TILE_BYTES + CODE_BYTES + me * 16, scale + (uint64_t)from * 4 + me % 4,
                   is_there);
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        if (16 * i < width)
            copy_async(tile + i * 16 * 128, u + k.piece[i], row + 16 * i < k.count);
        k.piece[i] += 8;
    }
    k.code++;
}

/* Lane 0 arrives for what the warp has written, every lane for what it copies. */
FN void tile_arrive(Gate *full, int lane) {
    gate_arrive_copies(full);
    __syncwarp();
    if (lane == 0)
        gate_arrive(full);
}
enum { FULL_ARRIVALS = COPIERS + COPIERS / 32, VACANT_ARRIVALS = MULTIPLIERS / 32 };

FN void copiers_run(const Wide &a, const Shared &s, int me) {
    Copier k = {};
    Place p = {0, 0};
    k.x = (int32_t)blockIdx.x % a.n_wide;
    k.y = (int32_t)blockIdx.x / a.n_wide;
    k.next = item_read(a, s, k.y);
    pairs_read(a, k, me);
    do {
        unit_begin(a, s, k, me);
        int32_t width = unit_width(k.count), tiles = k.count > 0 ? a.tiles : 1;
        for (int32_t tile = 0; tile < tiles; tile++, p = place_next(p)) {
            gate_wait(&s.vacant[p.stage], p.round + 1); // the first time round it is vacant
            if (k.count > 0)
                tile_copy(a, s.stage + p.stage * STAGE_BYTES, k, width, me);
            tile_arrive(&s.full[p.stage], me % 32);
            if (tile == tiles / 2) // the item behind has come; what hangs on it is read now
                pairs_read(a, k, me);
        }
    } while (k.count > 0); // the last, empty unit is one stage that nobody reads
}

/* ---- multiplying ---- */

/* Operands of two steps, and the codes that they are made of. */
struct Operand {
    uint32_t a[2][BLOCKS][4];
    uint4 word[BLOCKS];
    uint2 scale[BLOCKS];
};

/* First of the row blocks of this warp among those of the unit; the other is 4 further. */
FN int32_t block_mine() {
    int32_t warp = (int32_t)threadIdx.x / 32;
    return warp / 4 * 4 * BLOCKS + warp % 4;
}

FN void codes_take(Operand &o, const unsigned char *stage) {
    int lane = (int)threadIdx.x % 32;
    const unsigned char *code = stage + TILE_BYTES;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        int32_t block = block_mine() + 4 * i;
        o.word[i] = *reinterpret_cast<const uint4 *>(code + block * 512 + lane * 16);
        o.scale[i] =
            *reinterpret_cast<const uint2 *>(code + CODE_BYTES + block * 64 + lane / 4 * 8);
    }
}

FN void operand_make(Operand &o, int step) {
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
        codes_operand(o.a[step % 2][i], o.word[i], o.scale[i], step);
}

/* Where a multiplying warp stands: its tile, and the one behind, whose codes it also needs. */
struct Walk {
    Place now;
    int32_t n_unit; // units that were multiplied
    int32_t before; // stage of the tile before; -1: none
    int32_t lead;   // first group: tiles until the other one may begin
};

/* Goes through the gate of a tile. */
FN void tile_enter(const Shared &s, Place p) {
    gate_wait(&s.full[p.stage], p.round);
    wgmma_publish();
}

/* One tile: four steps; the operands of the next are made while the matrix unit works at one. */
template <int N>
FN void tile_multiply(const Shared &s, Operand &o, float (&d)[BLOCKS][N / 2], Walk &w) {
    WgTile b = wgmma_tile(s.stage + w.now.stage * STAGE_BYTES);
    Place next = place_next(w.now);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        wgmma_fence();
#pragma unroll
        for (int q = 0; q < BLOCKS; q++)
            wgmma<N>(d[q], o.a[i % 2][q], wgmma_step(b, i));
        wgmma_commit();
        wgmma_wait<1>();
        if (i == 0)
            __syncwarp();                      // every lane has taken its codes
        if (i == 0 && threadIdx.x % 32 == 0) { // the last step of the tile before has ended
            if (w.before >= 0)
                gate_arrive(&s.vacant[w.before]);
            if (w.lead-- == 0)
                gate_arrive(s.lead);
        }
        operand_make(o, (i + 1) % 4);
        if (i == 2) {
            tile_enter(s, next);
            codes_take(o, s.stage + next.stage * STAGE_BYTES);
        }
    }
    w.before = w.now.stage;
    w.now = next;
}

/* ---- results ---- */

/* Of one row: 16 outputs, 4 a lane. low, high: outputs 0-7 and 8-15, two a lane. */
FN uint2 outputs_join(uint32_t low, uint32_t high, int lane) {
    bool is_odd = lane % 2;
    uint32_t other = __shfl_xor_sync(FULL_WARP, is_odd ? low : high, 1);
    return is_odd ? make_uint2(other, high) : make_uint2(low, other);
}

/* x += one block of 16 outputs from o0 on. Each number is added to once, in the second-level cache:
 * nobody waits for what it was. A product that is no number is noted; x was when it became so. */
template <int N>
FN void block_add(const Wide &a, int32_t o0, int32_t count, const int32_t *target,
                  const float (&d)[N / 2]) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, j = lane % 4;
    float *x = static_cast<float *>(a.m.y) + o0 + g;
#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        if (n % 8 == 0)
            __syncwarp(); // keeps the compiler from reading every target first
        int col = n / 2 * 8 + 2 * j + n % 2;
        if (col >= count)
            continue;
        float low = d[n / 2 * 4 + n % 2], high = d[n / 2 * 4 + n % 2 + 2];
        float *p = x + (int64_t)target[col] * a.m.ldy;
        atomicAdd(p, low);
        atomicAdd(p + 8, high);
        if (!is_finite(low) || !is_finite(high))
            note_bad(a.m.bad, target[col]);
    }
}

/* One block of 16 outputs from o0 on, bf16. */
template <int N, CudaEpilogue KIND>
FN void block_store(const Wide &a, int32_t o0, int32_t count, const int32_t *target,
                    const float (&d)[N / 2]) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, j = lane % 4;
    uint16_t *y = static_cast<uint16_t *>(a.m.y);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float *c = d + 4 * n;
        if (n % 4 == 0)
            __syncwarp();    // keeps the compiler from reading every target first
        int row = n * 8 + g; // after the transposition
        int64_t at = (int64_t)target[row] * a.m.ldy;
        if (KIND == CUDA_STORE) {
            uint32_t low = transpose_matrix(pack_bf16(c[0], c[1]));
            uint32_t high = transpose_matrix(pack_bf16(c[2], c[3]));
            uint2 four = outputs_join(low, high, lane);
            if (row < count)
                *reinterpret_cast<uint2 *>(y + at + o0 + j % 2 * 8 + j / 2 * 4) = four;
        } else {
            uint32_t two = transpose_matrix(pack_bf16(silu(c[0]) * c[2], silu(c[1]) * c[3]));
            if (row < count)
                *reinterpret_cast<uint32_t *>(y + at + o0 / 2 + 2 * j) = two;
        }
    }
}

template <int N, CudaEpilogue KIND>
FN void unit_run(const Wide &a, const Shared &s, Operand &o, Walk &w) {
    float d[BLOCKS][N / 2];
#pragma unroll
    for (int i = 0; i < BLOCKS * N / 2; i++)
        d[i / (N / 2)][i % (N / 2)] = 0.0f;
    for (int32_t tile = 0; tile < a.tiles; tile++)
        tile_multiply<N>(s, o, d, w);
    wgmma_finish(d);
    int32_t slot = w.n_unit++ % UNITS;
    Unit u = s.unit[slot];
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        int32_t block = u.n0 / 16 + block_mine() + 4 * i;
        if (block >= u.n_blocks)
            continue;
        if (KIND == CUDA_ADD)
            block_add<N>(a, block * 16, u.count, s.target + slot * ROWS, d[i]);
        else
            block_store<N, KIND>(a, block * 16, u.count, s.target + slot * ROWS, d[i]);
    }
}

template <CudaEpilogue KIND> FN void multipliers_run(const Wide &a, const Shared &s) {
    Operand o;
    bool is_first = threadIdx.x < MULTIPLIERS / 2;
    Walk w = {{0, 0}, 0, -1, is_first ? LEAD : -1};
    if (!is_first) // one group stores its results while the other one multiplies
        gate_wait(s.lead, 0);
    tile_enter(s, w.now);
    codes_take(o, s.stage);
    operand_make(o, 0);
    for (;;) {
        int32_t count = s.unit[w.n_unit % UNITS].count;
        if (count <= 0)
            break;
        switch (unit_width(count)) {
        case 128: unit_run<128, KIND>(a, s, o, w); break;
        case 96: unit_run<96, KIND>(a, s, o, w); break;
        case 64: unit_run<64, KIND>(a, s, o, w); break;
        case 32: unit_run<32, KIND>(a, s, o, w); break;
        default: unit_run<16, KIND>(a, s, o, w);
        }
    }
    if (w.lead >= 0 && threadIdx.x % 32 == 0) // fewer tiles than that
        gate_arrive(s.lead);
}

#endif

template <CudaEpilogue KIND> __global__ void __launch_bounds__(THREADS, 1) wide_kernel(Wide a) {
#if HAS_WGMMA
    DYN_SHARED(unsigned char, all);
    Shared s = shared_cut(all);
    int me = (int)threadIdx.x;
    if (me < STAGES) {
        gate_init(&s.full[me], FULL_ARRIVALS);
        gate_init(&s.vacant[me], VACANT_ARRIVALS);
    }
    if (me == 0)
        gate_init(s.lead, MULTIPLIERS / 64);
    chain_wait();
    chain_next();
    if (a.is_ordered) {
        for (int32_t i = me; i < a.n_high; i += THREADS)
            s.width[i] = (uint8_t)width_of(a.m.item[3 * i + 2]);
        __syncthreads();
        if (me >= THREADS - 32)
            order_make(a, s, me % 32);
    }
    __syncthreads();
    if (me >= MULTIPLIERS) {
        registers_give<56>();
        copiers_run(a, s, me - MULTIPLIERS);
    } else {
        registers_take<224>();
        multipliers_run<KIND>(a, s);
    }
#endif
}

/* ---- starting ---- */

/* Rows of a unit of one plain matrix: the width whose rounds over the multiprocessors cost least. A
 * tile costs eight cycles a row on the matrix unit, or some 520 for unpacking where that is more,
 * and some waiting. */
static int32_t rows_choose(int32_t n_wide, int32_t m, int32_t n_sm) {
    enum { ROW = 8, UNPACKING = 520, WAITING = 64 };
    static const int32_t widths[] = {128, 96, 64, 32, 16};
    int64_t best = INT64_MAX;
    int32_t rows = ROWS;
    for (int32_t r : widths) {
        int64_t units = (int64_t)n_wide * ((m + r - 1) / r);
        int64_t tile = (r * ROW > UNPACKING ? r * ROW : UNPACKING) + WAITING;
        int64_t cost = (units + n_sm - 1) / n_sm * tile;
        if (cost < best) {
            best = cost;
            rows = r;
        }
    }
    return rows;
}

bool cuda_matmul_sm90_is_built() {
#if defined(LILY_HAS_SM90A) || defined(LILY_CUDA_EMU)
    return true;
#else
    return false;
#endif
}

cudaError_t cuda_matmul_sm90(const CudaLaunch *l, const CudaMatmul *m) {
    Wide a = {};
    a.m = *m;
    a.blocks = ((m->item ? m->n_expert : m->w.n) + 15) / 16;
    a.tiles = m->w.k / CUDA_GROUP;
    a.n_wide = (a.blocks + OUTPUTS / 16 - 1) / (OUTPUTS / 16);
    a.rows = m->item ? ROWS : rows_choose(a.n_wide, m->m, l->n_sm90);
    a.n_high = m->item ? m->n_items : (m->m + a.rows - 1) / a.rows;
    a.is_ordered = m->item && m->n_items <= MAX_ORDER;
    int64_t units = (int64_t)a.n_wide * a.n_high;
    int32_t n_blocks = units < l->n_sm90 ? (int32_t)units : l->n_sm90;
    a.step_x = n_blocks % a.n_wide;
    a.step_y = n_blocks / a.n_wide;
    if (m->list && m->src_div) // pairs are below 2^20, src_div below 16: exact
        a.inverse = (((uint64_t)1 << 32) + (uint32_t)m->src_div - 1) / (uint32_t)m->src_div;
    dim3 grid((unsigned)n_blocks);
    switch (m->epilogue) {
    case CUDA_STORE: return start(l, wide_kernel<CUDA_STORE>, grid, THREADS, SHARED_BYTES, a);
    case CUDA_ADD: return start(l, wide_kernel<CUDA_ADD>, grid, THREADS, SHARED_BYTES, a);
    default: return start(l, wide_kernel<CUDA_SWIGLU>, grid, THREADS, SHARED_BYTES, a);
    }
}

cudaError_t cuda_matmul_sm90_init(int max_shared) {
    if (max_shared < SHARED_BYTES)
        return cudaSuccess; // another card
    CUDA_TRY(allow_shared(wide_kernel<CUDA_STORE>, SHARED_BYTES));
    CUDA_TRY(allow_shared(wide_kernel<CUDA_ADD>, SHARED_BYTES));
    return allow_shared(wide_kernel<CUDA_SWIGLU>, SHARED_BYTES);
}

TRACE_BIND(matmul_sm90)
