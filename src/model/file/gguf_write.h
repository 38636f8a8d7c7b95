/* gguf_write.h - write a GGUF file, version 3, front to back.
 *
 * Order of calls: open; keys and tensor declarations in any order; start; the rows of every tensor, in the order of their
 * declaration; finish.  The file is written under another name beside its own and renamed by finish, so half a file is never
 * found under `path`.
 * Memory: the tables; nothing of the data.  Thread: one.  Test: tests/unit/test_togguf.c, tests/py/quantize.py */
#ifndef LG_MODEL_FILE_GGUF_WRITE_H
#define LG_MODEL_FILE_GGUF_WRITE_H

#include "base/buf.h"
#include "kern/kern.h"
#include "model/file/gguf.h"

typedef struct lg_gguf_write lg_gguf_write;

/* Begin PATH.  The caller owns *w.  LG_OK; LG_E_IO; LG_E_NOMEM. */
lg_status lg_gguf_write_open(const char *path, lg_gguf_write **w, lg_err *err);

/* Metadata; what does not fit into memory is told by lg_gguf_write_start. */
void lg_gguf_write_u32(lg_gguf_write *w, const char *key, uint32_t v);
void lg_gguf_write_i32(lg_gguf_write *w, const char *key, int32_t v);
void lg_gguf_write_f32(lg_gguf_write *w, const char *key, float v);
void lg_gguf_write_bool(lg_gguf_write *w, const char *key, bool v);
void lg_gguf_write_text(lg_gguf_write *w, const char *key, const char *s, size_t len_bytes);

/* An array of n elements that lie at data as in the file; strings: appended by lg_gguf_write_put_text. */
void lg_gguf_write_array(lg_gguf_write *w, const char *key, lg_gguf_type type, uint64_t n,
                         const void *data, size_t len_bytes);
void lg_gguf_write_put_text(lg_buf *b, const char *s, size_t len_bytes);

/* The next tensor: dim innermost first, n_dim of 1 to 4; dim[0] is a multiple of the type's block.  A type without a
 * number in GGUF is our own bug. */
void lg_gguf_write_tensor(lg_gguf_write *w, const char *name, lg_dtype type, uint32_t n_dim,
                          const uint64_t *dim);

/* Write header and tables.  LG_OK, LG_E_IO, LG_E_NOMEM. */
lg_status lg_gguf_write_start(lg_gguf_write *w, lg_err *err);

/* The next bytes of the tensors' data; a call stays within one tensor.  LG_OK, LG_E_IO. */
lg_status lg_gguf_write_data(lg_gguf_write *w, const void *data, size_t len_bytes, lg_err *err);

/* Bytes of the file so far. */
uint64_t lg_gguf_write_bytes(const lg_gguf_write *w);

/* All data is there: put the file in its place.  Frees, sets *w to NULL on every return.  LG_OK, LG_E_IO. */
lg_status lg_gguf_write_finish(lg_gguf_write **w, lg_err *err);

/* Give up: nothing is left of the file.  NULL is allowed. */
void lg_gguf_write_close(lg_gguf_write **w);

#endif
