/* tensors.h - a set of mapped files and the tensors in them, whatever their format.
 *
 * A format's reader (safetensors.c, gguf.c) maps files, checks their tables and adds views; the rest of the program sees
 * views sorted by name.  Test: tests/unit/test_safetensors.c, tests/unit/test_gguf.c */
#ifndef LG_MODEL_WEIGHTS_TENSORS_H
#define LG_MODEL_WEIGHTS_TENSORS_H

#include "kern/kern.h"

#include <stdbool.h>

#define LG_MAX_DIM 8

/* One tensor as it lies in its file.  All pointers are borrowed from the lg_tensors. */
typedef struct lg_view {
    const char *name;
    const char *file; /* path, for messages */
    lg_dtype type;    /* LG_N_DTYPE for the format's other types, which no weight may have */
    const char *type_name; /* as in the file: "BF16", "I64" */
    uint32_t n_dim;
    uint64_t shape[LG_MAX_DIM]; /* outermost first: [rows][columns] */
    const uint8_t *data;        /* any alignment */
    uint64_t len_bytes;
    bool used; /* set by who consumes it: what is left over is an error or a known skip */
} lg_view;

typedef struct lg_tensors lg_tensors;

/* ---- use ---- */

/* The view of that name, or NULL. */
lg_view *lg_tensors_find(lg_tensors *set, const char *name);

size_t lg_tensors_count(const lg_tensors *set);
lg_view *lg_tensors_at(lg_tensors *set, size_t i); /* sorted by name; NULL past the end */

/* A number for this state of the files: their sizes, times of change and inodes, and the whole table of tensors. */
uint64_t lg_tensors_identity(const lg_tensors *set);

/* Let go of the memory pages read so far; they come back from the file when touched again. */
void lg_tensors_release(lg_tensors *set);

/* Unmap and free, set *set to NULL.  NULL is allowed. */
void lg_tensors_close(lg_tensors **set);

/* "[512, 128]" into buf.  Returns buf. */
const char *lg_tensors_shape(uint32_t n_dim, const uint64_t *shape, char *buf,
                             size_t size_bytes);

/* ---- making one: for the formats' readers ---- */

/* A mapped file; borrowed from the set. */
typedef struct lg_tensors_file {
    const char *path;
    const uint8_t *map;
    size_t len_bytes; /* > 0 */
} lg_tensors_file;

/* An empty set.  The caller owns *set.  LG_OK, LG_E_NOMEM. */
lg_status lg_tensors_open(const char *what, lg_tensors **set, lg_err *err);

/* "folder/name", or folder alone when name is NULL, in memory of the caller's; NULL when there is none. */
char *lg_tensors_path(const char *folder, const char *name);

/* Map the regular file folder/name, or `folder` itself when name is NULL; *file is valid until the next call.
 * LG_OK; LG_E_IO; LG_E_FORMAT (an empty file; `format` names what was expected); LG_E_NOMEM.
 * The size is that of the file at this moment: a file cut short by someone else afterwards ends the process with SIGBUS on
 * the next read beyond its end, as with any mapped file, so replace model files by renaming, never in place. */
lg_status lg_tensors_map(lg_tensors *set, const char *folder, const char *name,
                         const char *format, lg_tensors_file *file, lg_err *err);

/* Append views; the set takes `names` (their text, may be NULL) on every return.  LG_OK, LG_E_NOMEM. */
lg_status lg_tensors_add(lg_tensors *set, const lg_view *view, size_t n, char *names,
                         lg_err *err);

/* Sort views by name; a name that comes twice is LG_E_FORMAT.  After this the set can be used. */
lg_status lg_tensors_sort(lg_view *view, size_t n, lg_err *err);
lg_status lg_tensors_finish(lg_tensors *set, lg_err *err);

/* A name that can be printed, is not empty and has fewer than 512 bytes. */
bool lg_tensors_is_name(const char *s, size_t len_bytes);

#endif
