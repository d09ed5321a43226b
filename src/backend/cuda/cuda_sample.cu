// SPDX-License-Identifier: Apache-2.0
/* cuda_sample.cu - choice of ids by penalties, bias, masks and chance: what sample.c does, to the
 * bit, with the logits of a row cut into slices of a block each.
 *
 * Path:     behind the output head and the greedy choice, for the rows that have a drawn sampler:
 *           change, narrow (three digits for top-k, three for top-p), pick.
 * Owns:     nothing.
 * Not here: the definition (sample.h) and the arithmetic (sample_math.h).
 *
 * The last block of a row to arrive finishes a kernel's work for it. Everything that blocks add up
 * is a whole number, so their order changes nothing. */
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/cuda_order.cuh"
#include "backend/sample_math.h"
#include "base/limits.h"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    SLICES = CUDA_SAMPLE_SLICES,
    BINS = CUDA_SAMPLE_BINS,
    DIGIT_BITS = 11, // of a threshold: 11, 11 and 10
    THREAD_BINS = BINS / THREADS,
};

static const uint32_t FORBIDDEN = 0x007fffffu; // order of -inf

FN int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* The row of this block, and its slice [first, end) of the logits. */
struct Place {
    const CudaRow *row;
    const CudaSampler *sampler;
    CudaDraw *draw;
    float *x; // [v]
    int32_t first, end;
};

/* False: the row has nothing to draw. */
FN bool place_find(Place *p, const CudaSample &a) {
    int32_t row = (int32_t)blockIdx.y;
    p->row = a.rows + (a.list ? a.list[row] : row);
    if (p->row->sampler < 0)
        return false;
    p->sampler = a.samplers + p->row->sampler;
    p->draw = a.draws + row;
    p->x = a.logits + (int64_t)row * a.v;
    int32_t size = (a.v + SLICES - 1) / SLICES;
    p->first = least((int32_t)blockIdx.x * size, a.v);
    p->end = least(p->first + size, a.v);
    return true;
}

/* Whether this block is the last of its row to come here; what the others wrote is then there. */
FN bool is_last_block(CudaDraw *d, int32_t *shared) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        *shared = atomicAdd(&d->arrived, 1) == SLICES - 1;
        if (*shared)
            d->arrived = 0;
    }
    __syncthreads();
    __threadfence();
    return *shared != 0;
}

FN uint64_t shift_up(uint64_t x, int d) {
    uint32_t high = __shfl_up_sync(FULL_WARP, (uint32_t)(x >> 32), d);
    return (uint64_t)high << 32 | __shfl_up_sync(FULL_WARP, (uint32_t)x, d);
}

/* Sums of all threads before this one; *all the sum of all. shared [WARPS]. */
FN uint64_t scan_block(uint64_t x, uint64_t *shared, uint64_t *all) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    uint64_t sum = x, before = 0;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        uint64_t other = shift_up(sum, d);
        sum += lane >= d ? other : 0;
    }
    if (lane == 31)
        shared[warp] = sum;
    __syncthreads();
    *all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? shared[w] : 0;
        *all += shared[w];
    }
    __syncthreads();
    return before + sum - x;
}

FN float chance_of(const Place &p, float x) {
    return sample_chance(x, p.draw->max, p.sampler->inverse);
}

/* ---- change ---- */

/* Entries of one id stand behind each other; the thread of the first goes through them. */
FN void bias_add(const Place &p, const CudaBias *bias) {
    for (int32_t i = (int32_t)threadIdx.x; i < p.sampler->n_bias; i += THREADS) {
        int32_t id = bias[i].id;
        if (id < p.first || id >= p.end || (i > 0 && bias[i - 1].id == id))
            continue;
        float x = p.x[id];
        for (int32_t k = i; k < p.sampler->n_bias && bias[k].id == id; k++)
            x = sample_biased(x, bias[k].bias);
        p.x[id] = x;
    }
}

FN void add_u64(uint64_t *to, uint64_t x) {
    atomicAdd(reinterpret_cast<unsigned long long *>(to), (unsigned long long)x);
}

/* The row's id, counted where that matters. */
FN void id_put(const CudaSample &a, const Place &p, int32_t id) {
    int32_t at = a.head->sampled_out * a.max_seqs + p.row->seq;
    a.sampled[at] = id;
    if (a.host)
        a.host[at] = id;
    if (id >= 0 && p.sampler->has_penalty)
        a.counts[(int64_t)p.row->sampler * a.v + id]++;
    p.draw->is_done = 1;
}

__global__ void sample_change_kernel(CudaSample a) {
    __shared__ uint64_t shared[WARPS];
    __shared__ int32_t is_last;
    chain_wait();
    chain_next();
    Place p;
    if (!place_find(&p, a))
        return;
    if (a.bad[p.row->seq] < CUDA_NO_BAD) { // the same for all blocks of the row
        if (blockIdx.x == 0 && threadIdx.x == 0)
            id_put(a, p, -1);
        return;
    }
    const CudaSampler &s = *p.sampler;
    const uint32_t *counts = a.counts + (int64_t)p.row->sampler * a.v;
    const uint32_t *allowed =
        p.row->allowed >= 0 ? a.allowed + (int64_t)p.row->allowed * ((a.v + 31) / 32) : NULL;
    if (s.has_penalty)
        for (int32_t i = p.first + (int32_t)threadIdx.x; i < p.end; i += THREADS)
            if (counts[i])
                p.x[i] = sample_penalised(p.x[i], counts[i], s.repetition, s.presence, s.frequency);
    __syncthreads();
    bias_add(p, a.biases + (int64_t)p.row->sampler * LIMIT_LOGIT_BIAS);
    __syncthreads();
    uint64_t best = 0;
    for (int32_t i = p.first + (int32_t)threadIdx.x; i < p.end; i += THREADS) {
        if (i >= s.limit || (allowed && !(allowed[i / 32] >> (i % 32) & 1)))
            p.x[i] = -INFINITY;
        best = choice_max(best, choice_key(p.x[i], i));
    }
    best = choice_block(best, shared);
    if (threadIdx.x == 0)
        p.draw->part[blockIdx.x] = best;
    if (!is_last_block(p.draw, &is_last))
        return;
    CudaDraw &d = *p.draw;
    best = choice_block(threadIdx.x < SLICES ? __ldcg(&d.part[threadIdx.x]) : 0, shared);
    if (threadIdx.x != 0)
        return;
    int32_t id = ~(int32_t)(uint32_t)best;
    bool is_none = (uint32_t)(best >> 32) <= FORBIDDEN;
    d.is_done = 0;
    d.cut = d.at = 0;
    d.n_ties = d.excess = 0;
    d.need = s.top_k > 0 && s.top_k < a.v ? (uint64_t)s.top_k : 0;
    d.max = is_none ? 0.0f : p.x[id];
    if (is_none || s.is_greedy)
        id_put(a, p, is_none ? -1 : id);
}

extern "C" cudaError_t cuda_sample_change(const CudaLaunch *l, const CudaSample *a) {
    return start(l, sample_change_kernel, dim3(SLICES, (unsigned)a->m), THREADS, 0, *a);
}

/* ---- narrow ---- */

/* Finds the digit at which the sum from the greatest on reaches what is needed, and leaves what
 * that digit itself has to give. bins and shared [WARPS] are shared memory. */
FN void digit_find(CudaDraw &d, const uint64_t *bins, uint64_t *shared, int bits) {
    int32_t top = BINS - 1 - (int32_t)threadIdx.x * THREAD_BINS; // this thread's greatest bin
    uint64_t sum = 0, all, need = d.need;
    for (int i = 0; i < THREAD_BINS; i++)
        sum += bins[top - i];
    uint64_t before = scan_block(sum, shared, &all);
    __syncthreads();
    if (before >= need || (before + sum < need && threadIdx.x != THREADS - 1))
        return;
    int32_t digit = top;
    for (; digit > top - THREAD_BINS + 1 && before + bins[digit] < need; digit--)
        before += bins[digit];
    d.need = need - before;
    d.at = d.at << bits | (uint32_t)digit;
    d.n_ties = bins[digit]; // behind the last digit: of equal values
}

/* Behind the last digit: how many of the values equal to the threshold stay. */
FN void cut_make(const Place &p, bool by_mass) {
    CudaDraw &d = *p.draw;
    uint64_t mass = 1;
    if (by_mass)
        mass = sample_mass(chance_of(p, order_value(d.at)));
    uint64_t n_equal = d.n_ties / mass, n = (d.need + mass - 1) / mass;
    n = n < n_equal ? n : n_equal; // none is cut where all of them do not reach what is needed
    d.excess = n_equal - n;
    d.n_ties = n;
    d.cut = d.at;
    d.at = 0;
    d.need = 0;
}

/* What top-k left has this sum: how much of it top-p needs. */
FN void need_make(const Place &p, uint64_t all) {
    p.draw->need = sample_need(p.sampler->top_p, all);
}

__global__ void sample_narrow_kernel(CudaSample a, int by_mass, int digit) {
    __shared__ uint64_t bins[BINS], shared[WARPS];
    __shared__ int32_t is_last;
    chain_wait();
    chain_next();
    Place p;
    if (!place_find(&p, a) || p.draw->is_done)
        return;
    CudaDraw &d = *p.draw;
    if (by_mass ? !p.sampler->has_top_p : d.need == 0)
        return;
    int above = 32 - digit * DIGIT_BITS, bits = digit == 2 ? 32 - 2 * DIGIT_BITS : DIGIT_BITS;
    int shift = above - bits;
    uint32_t mask = (1u << bits) - 1, at = d.at;
    for (int i = (int)threadIdx.x; i < BINS; i += THREADS)
        bins[i] = 0;
    __syncthreads();
    for (int32_t i = p.first + (int32_t)threadIdx.x; i < p.end; i += THREADS) {
        uint32_t o = order_key(p.x[i]);
        bool is_in = o > FORBIDDEN && o >= d.cut && (digit == 0 || o >> above == at);
        if (is_in)
            add_u64(&bins[o >> shift & mask], by_mass ? sample_mass(chance_of(p, p.x[i])) : 1);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BINS; i += THREADS)
        if (bins[i])
            add_u64(&d.bins[i], bins[i]);
    if (!is_last_block(p.draw, &is_last))
        return;
    uint64_t sum = 0, all;
    for (int i = (int)threadIdx.x; i < BINS; i += THREADS) {
        bins[i] = __ldcg(&d.bins[i]);
        d.bins[i] = 0;
        bool has_cut = d.excess && (d.cut >> shift & mask) == (uint32_t)i &&
                       (digit == 0 || d.cut >> above == at);
        if (by_mass && has_cut) // equal to top-k's threshold, but of a higher id
            bins[i] -= d.excess * sample_mass(chance_of(p, order_value(d.cut)));
        sum += bins[i];
    }
    scan_block(sum, shared, &all);
    if (by_mass && digit == 0 && threadIdx.x == 0)
        need_make(p, all);
    __syncthreads();
    digit_find(d, bins, shared, bits);
    __syncthreads();
    if (digit == 2 && threadIdx.x == 0)
        cut_make(p, by_mass);
}

extern "C" cudaError_t cuda_sample_narrow(const CudaLaunch *l, const CudaSample *a, bool by_mass,
                                          int digit) {
    dim3 grid(SLICES, (unsigned)a->m);
    return start(l, sample_narrow_kernel, grid, THREADS, 0, *a, (int)by_mass, digit);
}

/* ---- pick ---- */

/* Mass of a value that stays, if it is above the cut or one of the equal ones that stay. */
FN uint64_t mass_left(const Place &p, float x) {
    float chance = chance_of(p, x);
    return chance >= p.sampler->min_p ? sample_mass(chance) : 0;
}

/* Where the running sum of the slices passes the target. */
struct Target {
    int32_t slice;
    uint64_t n_ties; // of that slice that stay
    uint64_t left;   // of the target, inside the slice
};

/* Shares out the equal values that stay, by ascending id, and finds the slice: a thread each. */
FN void target_find(Target *t, const Place &p, uint64_t *shared) {
    const CudaDraw &d = *p.draw;
    int slice = (int)threadIdx.x;
    uint64_t mass = slice < SLICES ? __ldcg(&d.part[slice]) : 0, all;
    uint64_t equal = slice < SLICES ? __ldcg(&d.equal[slice]) : 0;
    uint64_t before = scan_block(equal, shared, &all);
    uint64_t stay = before < d.n_ties ? d.n_ties - before : 0;
    stay = stay < equal ? stay : equal;
    mass += stay * (d.cut ? mass_left(p, order_value(d.cut)) : 0);
    before = scan_block(mass, shared, &all);
    uint64_t target = sample_target(p.row->random, all);
    if (before <= target && target < before + mass)
        *t = (Target){slice, stay, target - before};
}

/* The id in the slice at which the sum passes the target. */
FN void target_pick(const CudaSample &a, Place p, const Target &t, uint64_t *shared) {
    int32_t size = (a.v + SLICES - 1) / SLICES, per = (size + THREADS - 1) / THREADS;
    int32_t end = least((t.slice + 1) * size, a.v);
    int32_t first = least(t.slice * size + (int32_t)threadIdx.x * per, end);
    int32_t stop = least(first + per, end);
    uint64_t n_equal = 0, sum = 0, all;
    for (int32_t i = first; i < stop; i++)
        n_equal += order_key(p.x[i]) == p.draw->cut;
    uint64_t ties = scan_block(n_equal, shared, &all);
    for (int round = 0; round < 2; round++) { // the sum of this thread's ids, then the id
        uint64_t before = round ? scan_block(sum, shared, &all) : 0, rank = ties, at = before;
        if (round && (t.left < before || t.left >= before + sum))
            return;
        for (int32_t i = first; i < stop; i++) {
            uint32_t o = order_key(p.x[i]);
            bool is_left = o > p.draw->cut || (o == p.draw->cut && rank++ < t.n_ties);
            at += is_left && o > FORBIDDEN ? mass_left(p, p.x[i]) : 0;
            if (round && at > t.left) {
                id_put(a, p, i);
                return;
            }
        }
        sum = at;
    }
}

__global__ void sample_pick_kernel(CudaSample a) {
    __shared__ uint64_t shared[WARPS];
    __shared__ int32_t is_last;
    __shared__ Target target;
    chain_wait();
    chain_next();
    Place p;
    if (!place_find(&p, a) || p.draw->is_done)
        return;
    CudaDraw &d = *p.draw;
    uint64_t sum = 0, n_equal = 0, all;
    for (int32_t i = p.first + (int32_t)threadIdx.x; i < p.end; i += THREADS) {
        uint32_t o = order_key(p.x[i]);
        sum += o > d.cut && o > FORBIDDEN ? mass_left(p, p.x[i]) : 0;
        n_equal += o == d.cut;
    }
    scan_block(sum, shared, &all);
    if (threadIdx.x == 0)
        d.part[blockIdx.x] = all;
    scan_block(n_equal, shared, &all);
    if (threadIdx.x == 0)
        d.equal[blockIdx.x] = all;
    if (!is_last_block(p.draw, &is_last))
        return;
    if (threadIdx.x == 0)
        target = (Target){0, 0, 0}; // logits that are not finite have none
    __syncthreads();
    target_find(&target, p, shared);
    __syncthreads();
    target_pick(a, p, target, shared);
}

extern "C" cudaError_t cuda_sample_pick(const CudaLaunch *l, const CudaSample *a) {
    return start(l, sample_pick_kernel, dim3(SLICES, (unsigned)a->m), THREADS, 0, *a);
}

TRACE_BIND(sample)
