/* mosaic_eval.h - runs the text of a Mosaic kernel on the CPU: a second meaning of it beside the TPU's compiler.
 *
 * Reads the module that goes into the custom call, byte for byte, and knows nothing of the writer that made it.  Every
 * operation checks its operands and its stated result type, every index is checked, VMEM that nothing wrote holds NaN, and a
 * product of F32 without full precision is refused (a TPU would round its operands).  Windows are copied as a pipeline does:
 *   in order: a block is read right before its step and written right after the last step that has it;
 *   overlapped: a step's blocks are read before the step ahead of it runs, and written after the step behind it.
 * A kernel whose results differ between the two depends on timing. */
#ifndef LG_TESTS_MOSAIC_EVAL_H
#define LG_TESTS_MOSAIC_EVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOSAIC_EVAL_RANK 6

/* An operand or result.  Floats of any width are held as float; what is stored is rounded to the element's format. */
typedef struct mosaic_array {
    uint32_t rank, dim[MOSAIC_EVAL_RANK];
    float *f;   /* or */
    int32_t *i; /* i32 */
} mosaic_array;

/* fetch: prefetched operands; win: operands, then results, as in the module; a result may be the same memory as an operand.
 * Returns NULL, or what is wrong (static storage). */
const char *mosaic_eval(const char *text, const mosaic_array *fetch, uint32_t n_fetch,
                        const mosaic_array *win, uint32_t n_in, uint32_t n_out,
                        bool overlapped);

/* Nearest bfloat16 and E4M3 as floats. */
float mosaic_bf16(float x);
float mosaic_e4m3(float x);

#endif
