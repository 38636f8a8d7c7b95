/* step_rig.h - a model's programs on a plugin, for tests: weights and pools on its devices, steps by hand. */
#ifndef LG_TEST_STEP_RIG_H
#define LG_TEST_STEP_RIG_H

#include "backend/pjrt/step/step.h"
#include "model/weights/weights.h"

#define STEP_RIG_MAX_EXE 24
#define STEP_RIG_MAX_SEQ 8

/* What a sequence gives to a step, as in lg_batch_seq. */
typedef struct step_rig_seq {
    uint32_t slot, pos;
    const uint32_t *page;
    uint32_t n_page;
    const uint32_t *tok;
    uint32_t n_tok, n_out; /* the last n_out rows give logits */
} step_rig_seq;

typedef struct step_rig {
    lg_pjrt_client *client;
    const lg_weights *w;
    lg_pjrt_model m;
    uint32_t n_arg, n_pool;
    lg_pjrt_buf **buf; /* [n_device][n_arg]: pools and weights; the last is the step vector */
    lg_pjrt_sig *sig;  /* of the last text */
    struct {
        lg_pjrt_bucket b;
        bool debug;
        lg_pjrt_exe *exe;
        lg_pjrt_out out;
    } exe[STEP_RIG_MAX_EXE];
    uint32_t n_exe;
    double compile_s;
    lg_step_debug debug; /* of the last text with intermediates */
    /* of the last step */
    float *logits;                 /* [n_device][n_out][n_vocab] */
    int32_t *id;                   /* [n_device][n_out] */
    float *logprob;                /* [n_device][n_out] */
    float *item[LG_STEP_MAX_ITEM]; /* intermediates, device 0 */
    float *trace;
} step_rig;

/* Upload the weights of w for model m (cfg is filled) and pools whose every byte is 0xff. */
void step_rig_open(step_rig *r, lg_pjrt_client *client, const lg_weights *w,
                   const lg_pjrt_model *m);
void step_rig_close(step_rig *r);

/* One step on every device: seq[d] are device d's sequences, those of the bucket's n_one first.  n_seq[d] at most
 * n_one + n_many, of which the first n_one[d] are for the one-row part. */
typedef struct step_rig_batch {
    const step_rig_seq *seq;
    uint32_t n_seq, n_one;
} step_rig_batch;
void step_rig_step(step_rig *r, const lg_pjrt_bucket *b, const step_rig_batch *batch,
                   bool debug);

/* A pool's content on a device, as floats (F32 pools only). */
float *step_rig_pool(step_rig *r, lg_pjrt_pool pool, uint32_t device, size_t *n);

/* Row-major [n_out][n_in] of a matrix, as floats. */
void step_rig_matrix(const lg_mat *m, float *to);

#endif
