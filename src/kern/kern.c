/* kern.c - choose the kernels for this processor: see kern.h.
 *
 * A level is usable when CPUID lists its instructions and XGETBV says that the system saves its registers; Linux saves tiles only for a
 * process that asked, which detection does.
 * Thread: any; detection runs once.  Test: tests/unit/test_kern_level.c */
#include "kern/kern.h"
#include "kern/level.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define MAX_LEVEL 8

const char *const lg_kern_names[] = {"ref",        "avx2", "avxvnni", "avx512",
                                     "avx512vnni", "amx",  NULL};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const lg_kern *level[MAX_LEVEL]; /* usable ones, best first */
static int n_level;
static const lg_kern *chosen;
static char features[128];

static void note(const char *name) {
    size_t n = strlen(features);
    snprintf(features + n, sizeof features - n, "%s%s", n ? " " : "", name);
}

#if defined(__x86_64__)
/* Register state that the system saves: bits of XCR0. */
static uint32_t saved_state(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

static bool has(uint32_t word, uint32_t bits) {
    return (word & bits) == bits;
}

#define AVXVNNI_BIT (1u << 4) /* EAX of leaf 7, 1 */

#ifdef LG_HAVE_AMX
#define AMX_BITS        (1u << 24 | 1u << 25) /* AMX-TILE, AMX-INT8 in EDX of leaf 7 */
#define ARCH_REQ_PERM   0x1023 /* Linux: ask for state that is not saved by default */
#define STATE_TILE_DATA 18

/* Eight tiles of 16 rows of 64 bytes, which the system saves for a process that has asked. */
static bool tiles_usable(uint32_t state) {
    uint32_t a, b, c, d;
    if (!has(state, 0x60000) || !__get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) return false;
    if (a >> 16 < 1024 || b >> 16 < 8 || (b & 0xffff) < 64 || (c & 0xffff) < 16) return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_PERM, STATE_TILE_DATA) == 0;
}
#endif

static void detect(void) {
    uint32_t a, b, c, d, b7 = 0, c7 = 0, d7 = 0, ignored;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE | bit_AVX)) return;
    uint32_t state = saved_state();
    if (!has(state, 0x6)) return; /* xmm, ymm */
    (void)__get_cpuid_count(7, 0, &ignored, &b7, &c7, &d7);
    (void)__get_cpuid(1, &a, &b, &c, &d);
    bool fma = has(c, bit_FMA), f16c = has(c, bit_F16C), avx2 = has(b7, bit_AVX2);
    bool avx512 = has(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
                  has(state, 0xe6); /* also opmask, zmm */
    if (avx2) note("avx2");
    if (fma) note("fma");
    if (f16c) note("f16c");
    bool vnni = avx512 && has(c7, bit_AVX512VNNI);
    if (avx512) note("avx512");
    if (vnni) note("avx512vnni");
#ifdef LG_HAVE_AMX
    bool amx = vnni && has(d7, AMX_BITS) && tiles_usable(state);
    if (amx) note("amx");
    if (avx2 && fma && f16c && amx) level[n_level++] = &lg_kern_amx;
#else
    (void)d7;
#endif
    if (avx2 && fma && f16c && vnni) level[n_level++] = &lg_kern_avx512vnni;
    if (avx2 && fma && f16c && avx512) level[n_level++] = &lg_kern_avx512;
#ifdef LG_HAVE_AVXVNNI
    uint32_t a71 = 0;
    if (__get_cpuid_max(0, NULL) >= 7) __cpuid_count(7, 1, a71, ignored, ignored, ignored);
    bool avxvnni = avx2 && has(a71, AVXVNNI_BIT);
    if (avxvnni) note("avxvnni");
    if (avxvnni && fma && f16c) level[n_level++] = &lg_kern_avxvnni;
#endif
    if (avx2 && fma && f16c) level[n_level++] = &lg_kern_avx2;
}
#else
static void detect(void) {
    note("portable");
}
#endif

static const lg_kern *find(const char *name) {
    for (int i = 0; i < n_level; i++)
        if (strcmp(level[i]->name, name) == 0) return level[i];
    return NULL;
}

static void choose(void) {
    detect();
    level[n_level++] = &lg_kern_ref;
    chosen = level[0];
    const char *wish = getenv("LG_CPU");
    if (!wish || !*wish) return;
    const lg_kern *k = find(wish);
    if (k) {
        chosen = k;
    } else {
        lg_diag_log(LG_LOG_WARN, "LG_CPU=%s is not available here, using %s", wish,
                    chosen->name);
    }
}

const lg_kern *lg_kern_get(void) {
    pthread_once(&once, choose);
    return chosen;
}

const lg_kern *lg_kern_level(const char *name) {
    pthread_once(&once, choose);
    return find(name);
}

const char *lg_kern_features(void) {
    pthread_once(&once, choose);
    return features;
}
