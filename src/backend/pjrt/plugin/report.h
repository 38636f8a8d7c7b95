/* report.h - what is in a compiled program, read from the plugin's own form of it.
 *
 * The optimised program comes as a serialised HloModuleProtoWithConfig.  Of its fields only those are read that say which
 * operations there are, how big their results are and which devices exchange what; unknown ones are skipped, as the format
 * provides.  Nothing here needs the plugin.  Test: tests/unit/test_report.c */
#ifndef LG_BACKEND_PJRT_PLUGIN_REPORT_H
#define LG_BACKEND_PJRT_PLUGIN_REPORT_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LG_REPORT_PAIRS 512

/* One instruction.  Texts are not terminated. */
typedef struct lg_report_op {
    const char *name, *opcode, *target; /* target: of a custom call */
    size_t name_len, opcode_len, target_len;
    uint64_t bytes;         /* of the result, all parts of a tuple, without padding */
    bool fused;             /* part of a fusion: its result is no array in memory */
    uint64_t largest_bytes; /* of the largest part */
    uint32_t n_pair, pair[LG_REPORT_PAIRS][2]; /* of a collective-permute: from, to */
} lg_report_op;

/* Call fn for each instruction of each computation.  LG_OK; LG_E_NOMEM; LG_E_FORMAT when it is no such program. */
lg_status lg_report_read(const void *proto, size_t len_bytes,
                         void (*fn)(void *ctx, const lg_report_op *op), void *ctx, lg_err *err);

bool lg_report_is(const lg_report_op *op, const char *opcode);

/* Counts over a program. */
typedef struct lg_report_sum {
    struct {
        const char *opcode;
        uint32_t n;
        uint64_t bytes;
    } collective[6];
    uint32_t n_kernel; /* Mosaic calls */
    uint32_t n_copy;   /* copies outside fusions whose result is at least copy_bytes */
    uint64_t copy_bytes, copied_bytes;
} lg_report_sum;

/* copy_bytes: from which size on a copy counts (say, the smallest pool). */
lg_status lg_report_count(const void *proto, size_t len_bytes, uint64_t copy_bytes,
                          lg_report_sum *sum, lg_err *err);

#endif
