/* hlo_text.h - what hlo.c and hlo_ops.c share. */
#ifndef LG_BACKEND_PJRT_STEP_HLO_TEXT_H
#define LG_BACKEND_PJRT_STEP_HLO_TEXT_H

#include "backend/pjrt/step/hlo.h"

typedef struct lg_hlo_def {
    lg_hlo_type type;
    uint32_t number; /* in the text */
    int sub;         /* place among several results of one operation, or -1 */
    uint32_t region; /* where it was made */
} lg_hlo_def;

/* Room for a value or a type as text. */
typedef struct lg_hlo_name {
    char s[160];
} lg_hlo_name;

const char *lg_hlo_text_type(lg_hlo_type t, lg_hlo_name *to);
const char *lg_hlo_text_val(const lg_hlo *h, lg_hlo_val v, lg_hlo_name *to);

/* New values of the open region; n of one operation. */
lg_hlo_val lg_hlo_text_new(lg_hlo *h, lg_hlo_type t);
void lg_hlo_text_new_group(lg_hlo *h, const lg_hlo_type *t, uint32_t n, lg_hlo_val *v);

/* Whether v may be used here; otherwise a fault is noted. */
bool lg_hlo_text_ok(lg_hlo *h, lg_hlo_val v);

/* lg_hlo_op with one result. */
lg_hlo_val lg_hlo_text_op(lg_hlo *h, const char *op, const lg_hlo_val *arg, uint32_t n_arg,
                          const char *attrs, lg_hlo_type type);

#endif
