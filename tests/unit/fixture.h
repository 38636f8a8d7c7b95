/* fixture.h - model folders in a temporary place that a test may damage. */
#ifndef LG_TESTS_FIXTURE_H
#define LG_TESTS_FIXTURE_H

#include "base/buf.h"

/* A folder whose files are links to a model of the tree until they are written.  Caller's storage. */
typedef struct lg_fixture {
    char path[256];
} lg_fixture;

/* "$LG_SOURCE_DIR/name" (without the variable: the current folder).  Returns buf. */
const char *lg_fixture_source(const char *name, char *buf, size_t size_bytes);

/* A folder like the model `source` (such as "tests/data/models/tiny-dense"). */
void lg_fixture_init(lg_fixture *f, const char *source);
void lg_fixture_fini(lg_fixture *f);

/* Whole files.  read gives text the caller frees with lg_buf_fini. */
lg_buf lg_fixture_read(const lg_fixture *f, const char *file);
void lg_fixture_write(const lg_fixture *f, const char *file, const void *data,
                      size_t len_bytes);
void lg_fixture_remove(const lg_fixture *f, const char *file);
void lg_fixture_make_dir(const lg_fixture *f, const char *file); /* instead of the file */

/* Replace the first `from` in a text file, or in the header of a safetensors file (whose length is kept right).  The text
 * must be there. */
void lg_fixture_replace(const lg_fixture *f, const char *file, const char *from,
                        const char *to);
void lg_fixture_replace_header(const lg_fixture *f, const char *file, const char *from,
                               const char *to);

/* What to do with one tensor of the folder. */
typedef enum {
    LG_FIXTURE_DROP,
    LG_FIXTURE_RENAME,
    LG_FIXTURE_ADD,
    LG_FIXTURE_POISON
} lg_fixture_edit;

/* Write the folder's tensors anew as one well-formed model.safetensors, with one of them edited:
 *   DROP name    RENAME name to arg    POISON name: its last element has all bits set
 *   ADD name, of type arg ("BF16") and shape "[4,64]", all zero; replaces a tensor of that name */
void lg_fixture_edit_tensor(const lg_fixture *f, lg_fixture_edit edit, const char *name,
                            const char *arg, const char *shape);

#endif
