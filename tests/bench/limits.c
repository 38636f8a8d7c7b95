/* limits.c - peaks of one thread: see limits.h.  Best of several short runs. */
#include "limits.h"

#include "base/base.h"
#include "kern/kern.h"

#include <time.h>

#if defined(__x86_64__)
#define RUNS         12
#define STREAM_BYTES (512u << 20)
#define STEPS        2000000

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

void limits_read(const uint8_t *p, size_t n_bytes) {
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

double limits_stream_gbs(void) {
    if (!has_avx2()) return 0;
    uint8_t *raw = lg_mem_alloc(STREAM_BYTES + 4096), *p = raw + 64 - (uintptr_t)raw % 64;
    LG_ASSERT(raw);
    for (size_t i = 0; i < STREAM_BYTES; i += 512) p[i] = (uint8_t)(i >> 9);
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
        double t = now();
        limits_read(p, STREAM_BYTES);
        double speed = STREAM_BYTES / (now() - t) * 1e-9;
        if (speed > best) best = speed;
    }
    lg_mem_free(raw);
    return best;
}

#define EACH(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)

static double fma_run(void) {
    double t = now();
    for (int i = 0; i < STEPS; i++) {
#define FMA(r) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #r "\n\t"
        __asm__ volatile(EACH(FMA)::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9", "xmm10", "xmm11");
    }
    return 12.0 * 8 * STEPS / (now() - t) * 1e-9;
}

static double fma512_run(void) {
    double t = now();
    for (int i = 0; i < STEPS; i++) {
#define FMA512(r) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #r "\n\t"
        __asm__ volatile(EACH(FMA512)::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9", "xmm10", "xmm11");
    }
    return 12.0 * 16 * STEPS / (now() - t) * 1e-9;
}

static double int8_run(void) {
    double t = now();
    for (int i = 0; i < STEPS; i++) {
#define INT(r)                                                                                 \
    "vpmaddubsw %%ymm14, %%ymm15, %%ymm12\n\tvpmaddwd %%ymm12, %%ymm14, %%ymm13\n\t"           \
    "vpaddd %%ymm13, %%ymm" #r ", %%ymm" #r "\n\t"
        __asm__ volatile(EACH(INT)::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13");
    }
    return 12.0 * 32 * STEPS / (now() - t) * 1e-9;
}

static double vnni_run(void) {
    double t = now();
    for (int i = 0; i < STEPS; i++) {
#define DOT(r) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #r "\n\t"
        __asm__ volatile(EACH(DOT)::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9", "xmm10", "xmm11");
    }
    return 12.0 * 64 * STEPS / (now() - t) * 1e-9;
}

static double best_of(double run(void)) {
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
        double speed = run();
        if (speed > best) best = speed;
    }
    return best;
}

double limits_fma_gmacs(void) {
    return has_avx2() ? best_of(fma_run) : 0;
}

double limits_fma512_gmacs(void) {
    return __builtin_cpu_supports("avx512f") ? best_of(fma512_run) : 0;
}

double limits_int8_gmacs(void) {
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

double limits_amx_gmacs(void) {
    return lg_kern_level("amx") ? best_of(amx_run) : 0;
}
#else
double limits_amx_gmacs(void) {
    return 0;
}
#endif

double limits_vnni_gmacs(void) {
    bool has = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512f");
    return has ? best_of(vnni_run) : 0;
}
#else
void limits_read(const uint8_t *p, size_t n_bytes) {
    (void)p;
    (void)n_bytes;
}

double limits_fma512_gmacs(void) {
    return 0;
}

double limits_stream_gbs(void) {
    return 0;
}

double limits_fma_gmacs(void) {
    return 0;
}

double limits_int8_gmacs(void) {
    return 0;
}

double limits_vnni_gmacs(void) {
    return 0;
}

double limits_amx_gmacs(void) {
    return 0;
}
#endif
