/* safetensors.h - typed views into the memory-mapped tensors of a Hugging Face folder.
 *
 * One file or many (model.safetensors.index.json); every offset, size, shape product and header length is checked with
 * overflow-safe arithmetic before use.  Test: tests/unit/test_safetensors.c, fuzz/fuzz_safetensors.c */
#ifndef LG_MODEL_SAFETENSORS_H
#define LG_MODEL_SAFETENSORS_H

#include "base/json.h"
#include "kern/kern.h"

#define LG_MAX_DIM 8

/* One tensor as it lies in its file.  All pointers are borrowed from the lg_st_set. */
typedef struct lg_view {
    const char *name;
    const char *file; /* path, for messages */
    lg_dtype type;    /* LG_N_DTYPE for the format's other types, which no weight may have */
    const char *type_name; /* as in the file: "BF16", "I64" */
    uint32_t n_dim;
    uint64_t shape[LG_MAX_DIM];
    const uint8_t *data; /* any alignment */
    uint64_t len_bytes;
    bool used; /* set by who consumes it: what is left over is an error or a known skip */
} lg_view;

typedef struct lg_st_set lg_st_set;

/* Map all shards of folder `path` (model.safetensors, or what model.safetensors.index.json lists), or the one file `path`.
 * The caller owns *set.  LG_OK; LG_E_IO; LG_E_FORMAT; LG_E_UNSUPPORTED (a dtype); LG_E_NOMEM.
 * Sizes are those of the files at this moment: a file cut short by someone else afterwards ends the process with SIGBUS on
 * the next read beyond its end, as with any mapped file, so replace model files by renaming, never in place. */
lg_status lg_st_open(const char *path, lg_st_set **set, lg_err *err);
void lg_st_close(lg_st_set **set); /* NULL is allowed */

/* Let go of the memory pages read so far; they come back from the file when touched again. */
void lg_st_release(lg_st_set *set);

/* Check one file's header and table without mapping (for the fuzzer): buf is the whole file. */
lg_status lg_st_check(const uint8_t *buf, size_t len_bytes, const char *what, lg_err *err);

/* The view of that name, or NULL. */
lg_view *lg_st_find(lg_st_set *set, const char *name);

size_t lg_st_count(const lg_st_set *set);
lg_view *lg_st_at(lg_st_set *set, size_t i); /* sorted by name */

/* "[512, 128]" into buf.  Returns buf. */
const char *lg_st_shape(uint32_t n_dim, const uint64_t *shape, char *buf, size_t size_bytes);

#endif
