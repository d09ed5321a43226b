// SPDX-License-Identifier: Apache-2.0
/* cuda_experts.cu - chosen experts of more than a few step rows. Every block lists the experts in
 * use for itself; every warp walks over row blocks of 16 outputs, with the next eight tiles of
 * weights under way while it multiplies.
 *
 * Path:     cuda_matvec.cu hands such steps on; the sums are in its order, so that a row's result
 * is the same in both. Owns:     nothing.  Thread: engine. */
#include "backend/cuda/cuda_product.cuh"

enum {
    EXPERT_WARPS = 12,   // of a block, where its shared memory is large enough
    EXPERT_BLOCKS = 132, // one a multiprocessor of the largest card so far
    EXPERT_PAIRS = 4,    // that one reading of an expert's weights serves
    EXPERT_ROWS = 128,   // step rows of a launch
    ROW_WORDS = EXPERT_ROWS / 32,
    LEAST_SHARED = 48 << 10,
};

/* ---- who chose what ---- */

/* Up to four pairs of one expert, counted from the launch's first; of the shared expert, up to four
 * rows. */
struct Entry {
    int16_t expert; // -1: the shared one
    int16_t n;
    int16_t pair[EXPERT_PAIRS]; // ascending
};

/* What the warps of a kernel share out: row blocks, entry by entry: those of the experts ascending,
 * those of the shared expert last. */
struct Share {
    const int32_t *id; // [m * top_k], of this launch
    int32_t m, top_k, n_experts;
    int32_t blocks, shared_blocks; // row blocks of an expert, of the shared expert; 0: without it
};

/* A block's list in shared memory. */
struct List {
    uint32_t *rows;  // [n_experts, ROW_WORDS] those that chose an expert, a bit each
    int32_t *before; // [n_experts + 1] entries ahead of an expert's; the last: of all
    Entry *entry;
};
FN List list_at(unsigned char *base, int32_t n_experts) {
    List l;
    l.rows = reinterpret_cast<uint32_t *>(base);
    l.before = reinterpret_cast<int32_t *>(l.rows + n_experts * ROW_WORDS);
    l.entry = reinterpret_cast<Entry *>(l.before + n_experts + 1);
    return l;
}
static size_t list_bytes(int32_t n_experts, int32_t m, int32_t top_k) {
    int32_t rows = m < EXPERT_ROWS ? m : EXPERT_ROWS, pairs = rows * top_k;
    int32_t most = pairs / EXPERT_PAIRS + n_experts;
    most = (most < pairs ? most : pairs) + (rows + EXPERT_PAIRS - 1) / EXPERT_PAIRS;
    return (size_t)n_experts * (sizeof(uint32_t) * ROW_WORDS + sizeof(int32_t)) + sizeof(int32_t) +
           (size_t)most * sizeof(Entry);
}

/* How many of an expert's rows there are below `row`. */
FN int32_t rows_before(const uint32_t rows[ROW_WORDS], int32_t row) {
    int32_t n = 0;
#pragma unroll
    for (int32_t i = 0; i < ROW_WORDS; i++) {
        int32_t left = row - 32 * i;
        n += __popc(rows[i] & (left >= 32 ? FULL_WARP : left > 0 ? (1u << left) - 1u : 0));
    }
    return n;
}
FN int32_t entries_of(int32_t n_pairs) { return (n_pairs + EXPERT_PAIRS - 1) / EXPERT_PAIRS; }

/* before, by one warp. */
FN void list_count(const List &l, const Share &s, int lane) {
    int32_t each = (s.n_experts + 31) / 32, e0 = lane * each, own = 0;
    int32_t e1 = e0 + each < s.n_experts ? e0 + each : s.n_experts;
    for (int32_t e = e0; e < e1; e++)
        own += entries_of(rows_before(l.rows + e * ROW_WORDS, EXPERT_ROWS));
    int32_t sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int32_t other = __shfl_up_sync(FULL_WARP, sum, d);
        sum += lane >= d ? other : 0;
    }
    if (lane == 31)
        l.before[s.n_experts] = sum;
    sum -= own;
    for (int32_t e = e0; e < e1; e++) {
        l.before[e] = sum;
        sum += entries_of(rows_before(l.rows + e * ROW_WORDS, EXPERT_ROWS));
    }
}

/* By a whole block, the same in every one. ids are read past the first-level cache. */
FN void list_make(const List &l, const Share &s) {
    int32_t me = (int32_t)threadIdx.x, threads = (int32_t)blockDim.x, n_pairs = s.m * s.top_k;
    for (int32_t i = me; i < s.n_experts * ROW_WORDS; i += threads)
        l.rows[i] = 0;
    __syncthreads();
    for (int32_t p = me; p < n_pairs; p += threads) {
        int32_t row = p / s.top_k;
        atomicOr(&l.rows[__ldcg(s.id + p) * ROW_WORDS + row / 32], 1u << row % 32);
    }
    __syncthreads();
    if (me < 32)
        list_count(l, s, me);
    __syncthreads();
    for (int32_t p = me; p < n_pairs; p += threads) {
        int32_t e = __ldcg(s.id + p), rank = rows_before(l.rows + e * ROW_WORDS, p / s.top_k);
        Entry &to = l.entry[l.before[e] + rank / EXPERT_PAIRS];
        to.pair[rank % EXPERT_PAIRS] = (int16_t)p;
        if (rank % EXPERT_PAIRS == 0) {
            int32_t left = rows_before(l.rows + e * ROW_WORDS, EXPERT_ROWS) - rank;
            to.expert = (int16_t)e;
            to.n = (int16_t)(left < EXPERT_PAIRS ? left : EXPERT_PAIRS);
        }
    }
    for (int32_t row = me; row < s.m && s.shared_blocks; row += threads) {
        Entry &to = l.entry[l.before[s.n_experts] + row / EXPERT_PAIRS];
        to.pair[row % EXPERT_PAIRS] = (int16_t)row;
        if (row % EXPERT_PAIRS == 0) {
            to.expert = -1;
            to.n = (int16_t)(s.m - row < EXPERT_PAIRS ? s.m - row : EXPERT_PAIRS);
        }
    }
    __syncthreads();
}

/* ---- a warp's way ---- */

/* Eight tiles along the inputs of a row block: what is fetched together. */
struct Slice {
    int32_t entry; // -1: none is left
    int32_t block; // of the entry's expert
    int32_t first; // tile
};
/* Row blocks unit, unit + step, .. below end, then `last`; of `all`. */
struct Walk {
    Slice at;
    int32_t unit, step, end, last, all;
};

FN int32_t walk_all(const List &l, const Share &s) {
    return l.before[s.n_experts] * s.blocks + entries_of(s.m) * s.shared_blocks;
}

/* To the slice where row block `unit` begins. */
FN void walk_enter(Walk &w, const List &l, const Share &s) {
    if (w.unit >= w.end) {
        w.unit = w.last;
        w.last = w.all;
    }
    int32_t n = l.before[s.n_experts], behind = w.unit - n * s.blocks;
    int32_t of_shared = behind >= 0 && w.unit < w.all ? behind / s.shared_blocks : 0;
    w.at.entry = w.unit >= w.all ? -1 : behind < 0 ? w.unit / s.blocks : n + of_shared;
    w.at.block = behind < 0 ? w.unit - w.at.entry * s.blocks : behind - of_shared * s.shared_blocks;
    w.at.first = 0;
}

/* All warps side by side through all row blocks: memory is read in the order in which it lies. What
 * is left for less than all warps goes to as many blocks as there are. */
FN Walk walk_wide(const List &l, const Share &s, int warp, int warps) {
    Walk w;
    int32_t blocks = (int32_t)gridDim.x, me = (int32_t)blockIdx.x;
    w.all = walk_all(l, s);
    w.unit = me * warps + warp;
    w.step = blocks * warps;
    w.end = w.all / w.step * w.step;
    w.last = w.end + warp * blocks + me;
    walk_enter(w, l, s);
    return w;
}

/* Each warp through a part of its own: it meets few entries. */
FN Walk walk_own(const List &l, const Share &s, int warp, int warps) {
    Walk w;
    int64_t me = (int64_t)blockIdx.x * warps + warp, parts = (int64_t)gridDim.x * warps;
    w.all = w.last = walk_all(l, s);
    w.unit = (int32_t)(w.all * me / parts);
    w.step = 1;
    w.end = (int32_t)(w.all * (me + 1) / parts);
    walk_enter(w, l, s);
    return w;
}

FN void walk_next(Walk &w, const List &l, const Share &s, int32_t groups, int32_t blocks) {
    w.at.first += CUDA_WARP_TILES;
    if (w.at.first < groups)
        return;
    w.at.first = 0;
    w.unit += w.step;
    w.at.block += w.step;
    if (w.unit >= w.end || w.at.block >= blocks)
        walk_enter(w, l, s);
}

template <bool WHOLE>
FN void tiles_ask(WarpTiles<4> &to, const uint4 *code, const uint4 *scale, int32_t n, int lane) {
#pragma unroll
    for (int i = 0; i < CUDA_WARP_TILES; i++)
        if (WHOLE || i < n)
            copy_async(&to.code[i][0][lane], code + i * 32 + lane, true);
    if (WHOLE || lane / 4 < n)
        copy_async(&to.scale[lane / 4][lane % 4], scale + lane, true);
}

/* Asks for the tiles of the walk's slice, which is returned, and goes on to the next. */
FN Slice walk_fetch(WarpTiles<4> &to, Walk &w, const List &l, const Share &s,
                    const CudaMatrix &experts, const CudaMatrix &shared, int lane) {
    Slice at = w.at;
    if (at.entry >= 0) {
        int32_t expert = l.entry[at.entry].expert;
        bool is_shared = expert < 0;
        int32_t groups = (is_shared ? shared.k : experts.k) / CUDA_GROUP;
        int64_t block = (is_shared ? 0 : (int64_t)expert * s.blocks) + at.block;
        const uint4 *code = reinterpret_cast<const uint4 *>(is_shared ? shared.code : experts.code);
        const uint4 *scale =
            reinterpret_cast<const uint4 *>(is_shared ? shared.scale : experts.scale);
        code += (block * groups + at.first) * 32;
        scale += (block * groups + at.first) * 4;
        if (groups - at.first >= CUDA_WARP_TILES)
            tiles_ask<true>(to, code, scale, CUDA_WARP_TILES, lane);
        else
            tiles_ask<false>(to, code, scale, groups - at.first, lane);
        walk_next(w, l, s, groups, is_shared ? s.shared_blocks : s.blocks);
    }
    copy_commit();
    return at;
}

/* acc += n tiles times digits of four rows: the lane's 16 bytes of the first group of its own row,
 * scale and sum of the row that it ends with. */
template <bool WHOLE>
FN void tiles_product(float acc[2], const WarpTiles<4> &w, int32_t n, const uint4 *digits,
                      const float2 *scales, int lane) {
#pragma unroll
    for (int i = 0; i < CUDA_WARP_TILES; i++)
        if (WHOLE || i < n) {
            uint32_t word[4], a[8];
            uint2 scale = tile_take<4>(word, w, i, lane);
            tile_unpack<4>(a, word);
            tile_product(acc, a, scale, digits[8 * i], scales[i]);
        }
}
FN void slice_product(float acc[2], const WarpTiles<4> &w, int32_t n, const uint4 *digits,
                      const float2 *scales, int lane) {
    if (n >= CUDA_WARP_TILES)
        tiles_product<true>(acc, w, n, digits, scales, lane);
    else
        tiles_product<false>(acc, w, n, digits, scales, lane);
}

/* The pair whose digits the lane holds, and the one whose sums it ends with: of an entry with fewer
 * than four the last again. */
FN int32_t entry_row(const Entry &e, int lane) { return lane / 8 < e.n ? lane / 8 : e.n - 1; }
FN int32_t entry_col(const Entry &e, int lane) { return lane % 4 < e.n ? lane % 4 : e.n - 1; }

/* ---- gate and up ---- */

/* Rows from row0 on, up to 128 of them. */
__global__ void __launch_bounds__(EXPERT_WARPS * 32, 1)
    experts_up_kernel(CudaExperts a, int32_t row0) {
    DYN_SHARED(unsigned char, base);
    int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    WarpTiles<4> *tiles = reinterpret_cast<WarpTiles<4> *>(base) + 2 * warp;
    List l = list_at(base + sizeof *tiles * 2 * (size_t)warps, a.route.n_experts);
    int32_t m = a.src.m - row0 < EXPERT_ROWS ? a.src.m - row0 : EXPERT_ROWS, pair0 = row0 * a.top_k;
    Share s = {a.id + pair0, m, a.top_k, a.route.n_experts, a.inner / 8, a.shared.n / 16};
    int32_t groups = a.w.k / CUDA_GROUP, known = -1, col = 0, turn = 0;
    const uint4 *digits = nullptr;
    const float2 *scales = nullptr;
    float gate = 0.0f, up = 0.0f;
    chain_wait();
    chain_next();
    list_make(l, s);
    Walk walk = walk_wide(l, s, warp, warps);
    Slice at = walk_fetch(tiles[0], walk, l, s, a.w, a.shared, lane);
    while (at.entry >= 0) {
        copy_wait<0>();
        __syncwarp();
        Slice next = walk_fetch(tiles[1 - turn], walk, l, s, a.w, a.shared, lane);
        const Entry &e = l.entry[at.entry];
        bool is_shared = e.expert < 0;
        if (at.entry != known) {
            known = at.entry;
            int32_t each = is_shared ? 1 : a.top_k, row = row0 + e.pair[entry_row(e, lane)] / each;
            col = row0 + e.pair[entry_col(e, lane)] / each;
            digits = reinterpret_cast<const uint4 *>(a.src.digits.digit) +
                     (int64_t)row * groups * 8 + lane / 4 % 2 * 4 + lane % 4;
            scales = reinterpret_cast<const float2 *>(a.src.digits.scale) + (int64_t)col * groups;
        }
        float acc[2] = {0.0f, 0.0f};
        slice_product(acc, tiles[turn], groups - at.first, digits + 8 * at.first, scales + at.first,
                      lane);
        gate += acc[0]; // rows lane / 4 and lane / 4 + 8: partial sums in ascending order of inputs
        up += acc[1];
        if (at.first + CUDA_WARP_TILES >= groups) {
            float factor = a.src.digits.factor[col];
            gate *= factor;
            up *= factor;
            float *act = is_shared
                             ? a.shared_act + (int64_t)col * (a.shared.n / 2)
                             : a.act + (int64_t)(pair0 + e.pair[entry_col(e, lane)]) * a.inner;
            if (lane % 4 < e.n)
                act[at.block * 8 + lane / 4] = silu(gate) * up;
            gate = up = 0.0f;
        }
        at = next;
        turn = 1 - turn;
    }
}

/* ---- down ---- */

/* The list, and the first weights, are under way before the wait: ids were written two kernels
 * ahead or more. */
__global__ void __launch_bounds__(EXPERT_WARPS * 32, 1)
    experts_down_kernel(CudaDown a, int32_t row0) {
    DYN_SHARED(unsigned char, base);
    int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    WarpTiles<4> *tiles = reinterpret_cast<WarpTiles<4> *>(base) + 2 * warp;
    Digits8 *all = reinterpret_cast<Digits8 *>(base + sizeof *tiles * 2 * (size_t)warps);
    Digits8 *digits = all + EXPERT_PAIRS * warp;
    List l =
        list_at(reinterpret_cast<unsigned char *>(all + EXPERT_PAIRS * warps), a.route.n_experts);
    int32_t m = a.m - row0 < EXPERT_ROWS ? a.m - row0 : EXPERT_ROWS, pair0 = row0 * a.top_k;
    Share s = {a.id + pair0, m, a.top_k, a.route.n_experts, a.h / 16, a.h / 16};
    int32_t known = -1, turn = 0;
    float acc[2] = {0.0f, 0.0f};
    list_make(l, s);
    Walk walk = walk_own(l, s, warp, warps);
    Slice at = walk_fetch(tiles[0], walk, l, s, a.w, a.shared, lane);
    chain_wait();
    chain_next();
    while (at.entry >= 0) {
        copy_wait<0>();
        __syncwarp();
        Slice next = walk_fetch(tiles[1 - turn], walk, l, s, a.w, a.shared, lane);
        const Entry &e = l.entry[at.entry];
        bool is_shared = e.expert < 0;
        int32_t k = is_shared ? a.shared.k : a.w.k, groups = k / CUDA_GROUP;
        int64_t from = is_shared ? row0 : pair0;
        if (at.entry != known || groups > CUDA_WARP_TILES) { // there is room for one slice's
            known = at.entry;
            const float *act = is_shared ? a.shared_act : a.act;
            for (int c = 0; c < e.n; c++)
                act_digits(&digits[c], act + (from + e.pair[c]) * k, at.first, groups, lane);
            __syncwarp();
        }
        const Digits8 &row = digits[entry_row(e, lane)], &col = digits[entry_col(e, lane)];
        slice_product(acc, tiles[turn], groups - at.first,
                      reinterpret_cast<const uint4 *>(row.digit) + lane / 4 % 2 * 4 + lane % 4,
                      reinterpret_cast<const float2 *>(col.scale), lane);
        if (at.first + CUDA_WARP_TILES >= groups) {
            int64_t to = (is_shared ? a.m * a.top_k : 0) + from + e.pair[entry_col(e, lane)];
            float *y = a.y + to * a.h + at.block * 16 + lane / 4;
            if (lane % 4 < e.n) {
                y[0] = acc[0];
                y[8] = acc[1];
            }
            acc[0] = acc[1] = 0.0f;
        }
        at = next;
        turn = 1 - turn;
    }
}

/* ---- starting ---- */

/* For every 128 of m rows: blocks of as many warps, `each` bytes of shared memory a warp, as fit
 * beside a list. */
template <typename A>
static cudaError_t experts_start(const CudaLaunch *l, void (*kernel)(A, int32_t), const A *a,
                                 int32_t m, size_t each, size_t list) {
    size_t room = LEAST_SHARED, warps = 1;
    if (l->max_shared > LEAST_SHARED)
        room = (size_t)l->max_shared;
    while (warps < EXPERT_WARPS && (warps + 1) * each + list <= room)
        warps++;
    for (int32_t row = 0; row < m; row += EXPERT_ROWS)
        CUDA_TRY(
            start(l, kernel, dim3(EXPERT_BLOCKS), 32 * (int)warps, warps * each + list, *a, row));
    return cudaSuccess;
}

extern "C" cudaError_t cuda_experts_up_rows(const CudaLaunch *l, const CudaExperts *a) {
    return experts_start(l, experts_up_kernel, a, a->src.m, 2 * sizeof(WarpTiles<4>),
                         list_bytes(a->route.n_experts, a->src.m, a->top_k));
}

extern "C" cudaError_t cuda_experts_down_rows(const CudaLaunch *l, const CudaDown *a) {
    return experts_start(l, experts_down_kernel, a, a->m,
                         2 * sizeof(WarpTiles<4>) + EXPERT_PAIRS * sizeof(Digits8),
                         list_bytes(a->route.n_experts, a->m, a->top_k));
}

cudaError_t cuda_experts_init(int max_shared) {
    CUDA_TRY(allow_shared(experts_up_kernel, (size_t)max_shared));
    return allow_shared(experts_down_kernel, (size_t)max_shared);
}

TRACE_BIND(experts)
