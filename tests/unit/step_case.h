/* step_case.h - a golden model's step programs on a plugin, beside its reference tensors, for tests.
 *
 * A tensor that is compared is marked as seen; what differs by more than its kind allows fails the test.  Sequences have fixed
 * pages of six, by slot (N_SLOT, N_PAGE). */
#ifndef LG_TEST_STEP_CASE_H
#define LG_TEST_STEP_CASE_H

#include "backend/pjrt/mosaic/kernels.h"
#include "golden.h"
#include "rig.h"
#include "step_rig.h"

#define N_SLOT 6
#define N_PAGE 33

/* Eight devices of XLA's CPU plugin, NULL where it has not been fetched; threads for the CPU backend. */
extern lg_pjrt_client *case_client;
extern lg_pool *case_pool;

/* Parts of a step as twins of our kernels, and sums along the wires: what surrounds the kernels, on this plugin.  Set before
 * case_open. */
extern lg_kernels case_kernels;
extern bool case_use_twins;
void case_twins(lg_pjrt_model *how, const lg_config *cfg); /* case_open calls it */

#define NEEDS_PLUGIN                                                                           \
    if (!case_client) skip()

/* One prompt of up to 257 rows; four sequences of one row; four prompts. */
extern const lg_pjrt_bucket case_prompt_bucket, case_decode_bucket, case_ragged_bucket;

typedef struct step_case {
    const char *name;
    lg_weights *w;
    step_rig rig;
    golden gold;
} step_case;

/* Group set-up and tear-down of cmocka: case_client and case_pool. */
int case_start(void **state);
int case_finish(void **state);

lg_pjrt_model case_plain(void); /* one device, F32, every layer written out */
void case_open(step_case *m, const char *name, lg_pjrt_model how);
void case_close(step_case *m);

/* n elements of t from `from` on. */
void case_compare(step_case *m, golden_tensor *t, size_t from, const float *x, size_t n);

/* A sequence's part of a step; a step of them, the first n_one in the part of one row. */
step_rig_seq case_rows(uint32_t slot, uint32_t pos, const uint32_t *tok, uint32_t n,
                       uint32_t n_out);
void case_run(step_case *m, const lg_pjrt_bucket *b, const step_rig_seq *seq, uint32_t n_seq,
              uint32_t n_one, bool debug);

/* Largest difference of the last rows' logits, [n][n_vocab], from golden rows of `prompt` from row `from` on. */
double case_off_golden(step_case *m, const char *prompt, uint32_t from, uint32_t n,
                       const float *logits);

/* A prompt and its answer; one in two pieces; four prompts in one step, and their answers side by side. */
void case_prompt(step_case *m, const char *prompt);
void case_two_segments(step_case *m);
void case_ragged(step_case *m);

/* Two sequences go on by one row while two prompts of different lengths come in, one in its middle: the largest difference. */
double case_mixed(step_case *m);

#endif
