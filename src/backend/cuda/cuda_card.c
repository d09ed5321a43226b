// SPDX-License-Identifier: Apache-2.0
/* cuda_card.c - the card: whether there is one, what it is, how much memory it has free, what it
 * can do.
 *
 * Path:     backend.c asks before anything is opened, for plans and for `auto`; cuda.c asks while
 * it opens, and for the meter. Owns:     nothing past a call.  Thread: engine. Not here: what is
 * opened on it (cuda.c), the kernels of the meter (cuda_meter.cu). */
#ifdef LILY_HAS_CUDA

#include "backend/cuda/cuda_self.h"
#include "base/clock.h"

#include <math.h>

/* ---- what it is ---- */

cudaError_t cuda_card_ask(CudaCard *out, int device) {
    struct cudaDeviceProp prop;
    int major = 0, minor = 0, driver = 0;
    CudaCard card = {0};
    cudaError_t e = cudaGetDeviceProperties(&prop, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&card.n_sm, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&card.max_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                   device);
    if (e == cudaSuccess)
        e = cudaDriverGetVersion(&driver);
    if (e != cudaSuccess)
        return e;
    card.compute = 10 * major + minor;
    card.driver = driver;
    card.memory = prop.totalGlobalMem;
    snprintf(card.name, sizeof card.name, "%s", prop.name);
    *out = card;
    return cudaSuccess;
}

Status cuda_card_check(const CudaCard *card, Err *err) {
    if (card->compute >= CUDA_LOWEST_COMPUTE)
        return STATUS_OK;
    return err_set(err, STATUS_UNSUPPORTED,
                   "cuda: %s: expected compute capability %d.%d or higher, found %d.%d", card->name,
                   CUDA_LOWEST_COMPUTE / 10, CUDA_LOWEST_COMPUTE % 10, card->compute / 10,
                   card->compute % 10);
}

bool cuda_card_has_sm90a(const CudaCard *card) {
    return card->compute == 90 && cuda_matmul_has_sm90();
}

void cuda_card_text(const CudaCard *card, bool is_sm90a, char *text, size_t size) {
    snprintf(text, size, "%s (compute %d.%d, column %s, %.0f GiB, driver for CUDA %d.%d)",
             card->name, card->compute / 10, card->compute % 10, is_sm90a ? "sm90a" : "sm80",
             (double)card->memory / (1 << 30), card->driver / 1000, card->driver % 1000 / 10);
}

/* ---- whether there is one ---- */

/* The version of CUDA that the driver knows, 1000 a major number; 0: there is no driver. */
static int driver_version(void) {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        driver = 0;
    return driver;
}

/* Why there is no card to be used; `is_here`: whether that is a fault, not an absence. */
static void card_reason(cudaError_t e, int n, bool *is_here, char *text, size_t size) {
    int driver = driver_version();
    *is_here = false;
    if (driver == 0)
        snprintf(text, size, "no NVIDIA driver");
    else if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0))
        snprintf(text, size, "no NVIDIA card");
    else {
        *is_here = true;
        if (e == cudaErrorInsufficientDriver)
            snprintf(text, size, "the NVIDIA driver is too old: expected CUDA %d.%d, found %d.%d",
                     CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, driver / 1000,
                     driver % 1000 / 10);
        else
            snprintf(text, size, "%s", cudaGetErrorString(e));
    }
    (void)cudaGetLastError();
}

/* Both questions at once: can it be used, and if not, is it here? */
static bool card_find(bool *is_here, char *text, size_t size) {
    int n = 0;
    CudaCard card;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        card_reason(e, n, is_here, text, size);
        return false;
    }
    *is_here = true;
    e = cuda_card_ask(&card, 0);
    Err err = {0};
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(text, size, "the card does not answer: %s", cudaGetErrorString(e));
        return false;
    }
    if (cuda_card_check(&card, &err) != STATUS_OK) {
        snprintf(text, size, "%s", err.text);
        return false;
    }
    cuda_card_text(&card, cuda_card_has_sm90a(&card), text, size);
    return true;
}

bool cuda_card_is_available(char *text, size_t size) {
    char own[CUDA_CARD_TEXT];
    bool is_here, is_good = card_find(&is_here, own, sizeof own);
    if (text && size)
        snprintf(text, size, "%s", own);
    return is_good;
}

bool cuda_card_is_here(void) {
    char text[CUDA_CARD_TEXT];
    bool is_here;
    (void)card_find(&is_here, text, sizeof text);
    return is_here;
}

/* What the kernels' code, captured steps and the driver itself take beside a plan. */
enum { CARD_SPARE = 256 << 20 };

uint64_t cuda_card_memory_free(int32_t device) {
    size_t left = 0, total = 0;
    int before = 0;
    if (cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(device) == cudaSuccess) {
        if (cudaMemGetInfo(&left, &total) != cudaSuccess)
            left = 0;
        if (before != device)
            (void)cudaSetDevice(before);
    }
    (void)cudaGetLastError();
    if (left == 0)
        return 0;
    return left > CARD_SPARE ? left - CARD_SPARE : 1; // 0 would be: unknown
}

/* ---- what it can do ---- */

enum {
    METER_TRIES = 5,
    METER_LAUNCHES = 8,     // of a try: together far longer than starting and waiting
    METER_ROUNDS = 512,     // of 64 instructions of 16 x 8 x 16 multiply-adds, in 8 warps a block
    METER_BLOCKS = 8,       // a multiprocessor
    METER_WG_ROUNDS = 4096, // of 4 instructions of 64 x 256 x 16, in 2 warp groups a block
};

typedef enum MeterKind { METER_READ, METER_MMA, METER_WGMMA, METER_N } MeterKind;

typedef struct Meter {
    CudaLaunch l;
    int32_t n_sm;
    void *p; // [bytes]
    size_t bytes;
} Meter;

/* What one launch does: bytes read, or operations. */
static double meter_work(const Meter *m, MeterKind kind) {
    double mma = 2.0 * 16 * 8 * 16 * 64 * METER_ROUNDS * 8 * METER_BLOCKS * m->n_sm;
    double wgmma = 2.0 * 64 * 256 * 16 * 4 * METER_WG_ROUNDS * 2 * m->n_sm;
    return kind == METER_READ ? (double)m->bytes : kind == METER_MMA ? mma : wgmma;
}

static cudaError_t meter_start(const Meter *m, MeterKind kind) {
    switch (kind) {
    case METER_READ: return cuda_meter_read(&m->l, m->p, m->bytes, m->p);
    case METER_MMA: return cuda_meter_matrix(&m->l, METER_BLOCKS * m->n_sm, METER_ROUNDS, m->p);
    default: return cuda_meter_wgmma(&m->l, m->n_sm, METER_WG_ROUNDS, m->p);
    }
}

/* The work a second of METER_LAUNCHES launches; `best` is raised to it. */
static cudaError_t meter_try(const Meter *m, MeterKind kind, double *best) {
    cudaError_t e = cudaStreamSynchronize(m->l.stream);
    int64_t start = clock_now_ns();
    for (int i = 0; e == cudaSuccess && i < METER_LAUNCHES; i++)
        e = meter_start(m, kind);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(m->l.stream);
    if (e == cudaSuccess)
        *best = fmax(*best, METER_LAUNCHES * meter_work(m, kind) / clock_seconds_since(start));
    return e;
}

cudaError_t cuda_card_meter(BackendMeter *out, const CudaCard *card, cudaStream_t stream) {
    Meter m = {.l = {.stream = stream}, .n_sm = card->n_sm, .bytes = (size_t)8 << 30};
    size_t left = 0, total = 0;
    double best[METER_N] = {0};
    (void)cudaMemGetInfo(&left, &total);
    while (m.bytes > left / 2 && m.bytes > (size_t)64 << 20)
        m.bytes /= 2;
    cudaError_t e = cudaMalloc(&m.p, m.bytes);
    if (e != cudaSuccess)
        return e;
    e = cudaMemsetAsync(m.p, 0x5a, m.bytes, stream);
    for (int i = 0; e == cudaSuccess && i < METER_TRIES; i++)
        for (int k = 0; e == cudaSuccess && k < METER_N; k++)
            if (k != METER_WGMMA ||
                cuda_card_has_sm90a(card)) // the column may be masked: the card has it
                e = meter_try(&m, (MeterKind)k, &best[k]);
    (void)cudaFree(m.p);
    if (e != cudaSuccess)
        return e;
    bool is_wgmma = best[METER_WGMMA] > best[METER_MMA];
    *out = (BackendMeter){.read_gb_s = best[METER_READ] * 1e-9,
                          .matrix_tflops = best[is_wgmma ? METER_WGMMA : METER_MMA] * 1e-12,
                          .unit = is_wgmma ? "wgmma bf16" : "mma.sync bf16"};
    return cudaSuccess;
}

#endif
