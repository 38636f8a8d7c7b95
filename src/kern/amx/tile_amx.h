/* tile_amx.h - the tile instructions as C.
 *
 * A tile is up to 16 rows of 64 bytes; C[16 rows][16 channels] += A[16 rows][64 k] B[16][16 channels][4 k] for bytes.  In
 * assembly of our own, because gcc's intrinsics do not say that a tile load reads memory.
 * Tiles belong to the thread; a call configures them and gives them back, so that the system need not save them. */
#ifndef LG_KERN_AMX_TILE_AMX_H
#define LG_KERN_AMX_TILE_AMX_H

#include <stddef.h>
#include <stdint.h>

#define FORCED inline __attribute__((always_inline))
#define INLINE static FORCED

/* What ldtilecfg reads. */
typedef struct tile_config {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t n_row[16];
} tile_config;

INLINE void tile_configure(const tile_config *c) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*c));
}

INLINE void tile_release(void) {
    __asm__ volatile("tilerelease" ::: "memory");
}

/* Rows 64 bytes apart; `off`, a constant, is added to the address. */
#define tile_load(t, at, off)                                                                  \
    __asm__ volatile("tileloadd %c2(%0,%1,1), %%tmm" #t                                        \
                     :                                                                         \
                     : "r"(at), "r"((size_t)64), "i"(off)                                      \
                     : "memory")
#define tile_store(t, at, off)                                                                 \
    __asm__ volatile("tilestored %%tmm" #t ", %c2(%0,%1,1)"                                    \
                     :                                                                         \
                     : "r"(at), "r"((size_t)64), "i"(off)                                      \
                     : "memory")
#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t ::)

/* tile c += tile a (signed bytes) times tile b (unsigned bytes; signed bytes). */
#define tile_mac_su(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define tile_mac_ss(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#endif
