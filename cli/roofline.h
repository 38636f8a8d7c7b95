/* roofline.h - `lignum bench --roofline`: the time of each operation beside the least that this machine allows.
 *
 * Test: tests/py/run.py */
#ifndef LG_CLI_ROOFLINE_H
#define LG_CLI_ROOFLINE_H

#include "lignum.h"

#include "plan/plan.h"

typedef struct lg_roofline {
    const char *argv0, *model, *pack_dir; /* pack_dir may be NULL */
    int n_thread;
    lg_kv_type kv;
    const uint32_t *prompt, *batch,
        *depth; /* sizes of prompt chunks, of batches of answers; tokens before them */
    uint32_t n_prompt, n_batch, n_depth;
    uint32_t n_repeat;
    bool json;
} lg_roofline;

/* Measure and print.  false: it failed, and was reported. */
bool lg_roofline_run(const lg_roofline *r);

/* Name of the processor, from the system. */
void lg_roofline_processor(char *name, size_t size_bytes);

/* What this machine does at most on n_thread threads (0: all cores), measured now; with the kernels' level in use.  false: it failed,
 * and was reported. */
bool lg_roofline_machine(const char *argv0, int n_thread, lg_plan_hw *hw);

#endif
