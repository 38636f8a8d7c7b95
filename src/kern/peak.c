/* peak.c - what this processor can do at most: see peak.h.
 *
 * Best of several short runs of each thread, in its processor time; all threads run the same measure at the same time, and
 * their figures are added.  Thread: the pool's.  Test: tests/unit/test_kern_level.c */
#include "kern/peak.h"

#include "base/mem.h"
#include "base/num.h"
#include "kern/kern.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define RUNS  8
#define STEPS 2000000

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

void lg_peak_read(const uint8_t *p, size_t n_bytes) {
    if (!has_avx2()) return;
    for (size_t i = 0; i < n_bytes; i += 128)
        __asm__ volatile(
            "prefetcht0 4096(%0)\n\tprefetcht0 4160(%0)\n\tvmovdqa (%0), %%ymm0\n\t"
            "vmovdqa 32(%0), %%ymm1\n\tvmovdqa 64(%0), %%ymm2\n\t"
            "vmovdqa 96(%0), %%ymm3"
            :
            : "r"(p + i)
            : "xmm0", "xmm1", "xmm2", "xmm3", "memory");
}

double lg_peak_stream_gbs(size_t n_bytes) {
    n_bytes = n_bytes / 512 * 512;
    if (!has_avx2() || n_bytes == 0) return 0;
    uint8_t *raw = lg_mem_alloc(n_bytes + 4096);
    if (!raw) return 0;
    uint8_t *p = raw + 64 - (uintptr_t)raw % 64;
    for (size_t i = 0; i < n_bytes; i += 512) p[i] = (uint8_t)(i >> 9);
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
        double t = now();
        lg_peak_read(p, n_bytes);
        double speed = (double)n_bytes / (now() - t) * 1e-9;
        if (speed > best) best = speed;
    }
    lg_mem_free(raw);
    return best;
}

#define EACH(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)

#define FMA(r)    "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #r "\n\t"
#define FMA512(r) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #r "\n\t"
#define DOT(r)    "vpdpbusd %%zmm14, %%zmm15, %%zmm" #r "\n\t"
#define INT(r)                                                                                 \
    "vpmaddubsw %%ymm14, %%ymm15, %%ymm12\n\tvpmaddwd %%ymm12, %%ymm14, %%ymm13\n\t"           \
    "vpaddd %%ymm13, %%ymm" #r ", %%ymm" #r "\n\t"

/* name(): GMAC/s of op, which makes n_product products into one of twelve registers that do not wait for each other. */
#define RUN(name, op, n_product)                                                               \
    static double name(void) {                                                                 \
        double t = now();                                                                      \
        for (int i = 0; i < STEPS; i++)                                                        \
            __asm__ volatile(EACH(op)::                                                        \
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",     \
                                   "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",          \
                                   "xmm13");                                                   \
        return 12.0 * n_product * STEPS / (now() - t) * 1e-9;                                  \
    }

RUN(fma_run, FMA, 8)
RUN(fma512_run, FMA512, 16)
RUN(int8_run, INT, 32)
RUN(vnni_run, DOT, 64)

static double best_of(double run(void)) {
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
        double speed = run();
        if (speed > best) best = speed;
    }
    return best;
}

double lg_peak_fma_gmacs(void) {
    return has_avx2() ? best_of(fma_run) : 0;
}

double lg_peak_fma512_gmacs(void) {
    return __builtin_cpu_supports("avx512f") ? best_of(fma512_run) : 0;
}

double lg_peak_int8_gmacs(void) {
    return has_avx2() ? best_of(int8_run) : 0;
}

#ifdef LG_HAVE_AMX
/* Random bytes, since the tile multiplier runs faster on zeros. */
static double amx_run(void) {
    static const struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t n_row[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _Alignas(64) uint8_t bytes[4][1024];
    for (uint32_t i = 0; i < 4096; i++)
        bytes[i / 1024][i % 1024] = (uint8_t)lg_num_rng(5, 0, i, 0);
#define TILE(r)      "tileloadd (%0,%1,1), %%tmm" #r "\n\tadd $1024, %0\n\t"
#define MAC(c, a, b) "tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c "\n\t"
    uint8_t *at = &bytes[0][0];
    __asm__ volatile("ldtilecfg %2\n\t" TILE(4) TILE(5) TILE(6)
                         TILE(7) "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\t"
                                 "tilezero %%tmm3"
                     : "+r"(at)
                     : "r"((size_t)64), "m"(config)
                     : "memory");
    double t = now();
    for (int i = 0; i < STEPS; i++)
        __asm__ volatile(MAC(0, 4, 6) MAC(1, 4, 7) MAC(2, 5, 6) MAC(3, 5, 7)::);
    t = now() - t;
    __asm__ volatile("tilerelease" ::: "memory");
    return 4.0 * 16 * 16 * 64 * STEPS / t * 1e-9;
}

double lg_peak_amx_gmacs(void) {
    return lg_kern_level("amx") ? best_of(amx_run) : 0;
}
#else
double lg_peak_amx_gmacs(void) {
    return 0;
}
#endif

double lg_peak_vnni_gmacs(void) {
    bool has = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512f");
    return has ? best_of(vnni_run) : 0;
}
#else
void lg_peak_read(const uint8_t *p, size_t n_bytes) {
    (void)p;
    (void)n_bytes;
}

double lg_peak_fma512_gmacs(void) {
    return 0;
}

double lg_peak_stream_gbs(size_t n_bytes) {
    (void)n_bytes;
    return 0;
}

double lg_peak_fma_gmacs(void) {
    return 0;
}

double lg_peak_int8_gmacs(void) {
    return 0;
}

double lg_peak_vnni_gmacs(void) {
    return 0;
}

double lg_peak_amx_gmacs(void) {
    return 0;
}
#endif

/* ---- all threads ---- */

/* Bytes that each of n_thread threads reads: all together several times the last cache, and no more than one thread needs. */
static size_t stream_bytes(int n_thread) {
    const size_t most = (size_t)512 << 20, least = (size_t)32 << 20;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t all = (size_t)1 << 30;
    if (cache > 0 && 4 * (size_t)cache > all) all = 4 * (size_t)cache;
    size_t each = all / (size_t)n_thread;
    return each > most ? most : each < least ? least : each;
}

enum { STREAM, FMA, FMA512, INT8, VNNI, AMX, N_KIND };

typedef struct crew {
    pthread_barrier_t start;
    double *figure; /* [n_thread][N_KIND] */
    size_t stream_bytes;
} crew;

static void measure_task(void *ctx, size_t task, int thread) {
    (void)thread;
    crew *c = ctx;
    double *f = c->figure + task * N_KIND;
    for (int kind = 0; kind < N_KIND; kind++) {
        pthread_barrier_wait(
            &c->start); /* each task is another thread's: none ends before all have begun */
        switch (kind) {
        case STREAM: f[kind] = lg_peak_stream_gbs(c->stream_bytes); break;
        case FMA: f[kind] = lg_peak_fma_gmacs(); break;
        case FMA512: f[kind] = lg_peak_fma512_gmacs(); break;
        case INT8: f[kind] = lg_peak_int8_gmacs(); break;
        case VNNI: f[kind] = lg_peak_vnni_gmacs(); break;
        default: f[kind] = lg_peak_amx_gmacs(); break;
        }
    }
}

bool lg_peak_measure(lg_pool *pool, lg_peak *peak) {
    const size_t n = pool ? (size_t)lg_pool_n_thread(pool) : 1;
    crew c = {.stream_bytes = stream_bytes((int)n)};
    double sum[N_KIND] = {0};
    *peak = (lg_peak){.n_thread = (int)n};
    c.figure = lg_mem_calloc(n * N_KIND, sizeof *c.figure);
    if (!c.figure) return false;
    if (pthread_barrier_init(&c.start, NULL, (unsigned)n) != 0) {
        lg_mem_free(c.figure);
        return false;
    }
    lg_pool_run(pool, n, measure_task, &c);
    for (size_t i = 0; i < n * N_KIND; i++) sum[i % N_KIND] += c.figure[i];
    pthread_barrier_destroy(&c.start);
    lg_mem_free(c.figure);
    peak->stream_gbs = sum[STREAM];
    peak->fma_gmacs = sum[FMA];
    peak->fma512_gmacs = sum[FMA512];
    peak->int8_gmacs = sum[INT8];
    peak->vnni_gmacs = sum[VNNI];
    peak->amx_gmacs = sum[AMX];
    return sum[STREAM] > 0 && sum[FMA] > 0;
}

double lg_peak_float(const lg_peak *p, const char *level) {
    return strncmp(level, "avx2", 4) == 0 || p->fma512_gmacs == 0 ? p->fma_gmacs
                                                                  : p->fma512_gmacs;
}

double lg_peak_integer(const lg_peak *p, const char *level) {
    if (strcmp(level, "amx") == 0) return p->amx_gmacs;
    return strcmp(level, "avx512vnni") == 0 ? p->vnni_gmacs : p->int8_gmacs;
}
