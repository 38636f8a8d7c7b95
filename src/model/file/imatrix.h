/* imatrix.h - how much each input channel of each matrix matters: files of llama.cpp's imatrix tool.
 *
 * A GGUF container with two F32 tensors a matrix: NAME.in_sum2 [experts][n_in], sums of squared inputs, and NAME.counts
 * [experts], how many were summed.  Thread: any, once open.  Test: tests/unit/test_togguf.c */
#ifndef LG_MODEL_FILE_IMATRIX_H
#define LG_MODEL_FILE_IMATRIX_H

#include "model/weights/tensors.h"

typedef struct lg_imatrix lg_imatrix;

/* Map and check a file.  The caller owns *im.  LG_E_IO; LG_E_FORMAT (also a file without any such pair); LG_E_UNSUPPORTED;
 * LG_E_NOMEM. */
lg_status lg_imatrix_open(const char *path, lg_imatrix **im, lg_err *err);
void lg_imatrix_close(lg_imatrix **im);

/* What the file knows of one matrix; borrowed from it. */
typedef struct lg_imatrix_entry {
    const lg_view *sum, *count; /* NULL: nothing */
} lg_imatrix_entry;

/* The entry of that tensor name, with n_expert (1: no experts) rows of n_in.  A name that is not there, or has another
 * shape, gives an empty entry. */
lg_imatrix_entry lg_imatrix_find(const lg_imatrix *im, const char *name, uint64_t n_expert,
                                 uint32_t n_in);

/* Mean squares of the inputs of one expert, plus a ten-thousandth of their mean so that no channel is given up: w [n_in].
 * false when that expert never ran, or the numbers are of no use; w is then undefined. */
bool lg_imatrix_weights(lg_imatrix_entry e, uint64_t expert, uint32_t n_in, float *w);

#endif
