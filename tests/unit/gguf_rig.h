/* gguf_rig.h - GGUF files for tests: taken apart, changed, written again. */
#ifndef LG_TESTS_GGUF_RIG_H
#define LG_TESTS_GGUF_RIG_H

#include "base/buf.h"

#define GGUF_RIG_MAX_KEY    80
#define GGUF_RIG_MAX_TENSOR 160

typedef struct gguf_rig_key {
    char name[128];
    lg_buf value; /* type and what follows, as in the file */
} gguf_rig_key;

typedef struct gguf_rig_tensor {
    char name[128];
    uint32_t type, n_dim;
    uint64_t dim[8]; /* innermost first */
    lg_buf data;
    bool placed; /* offset is given; else the next free one */
    uint64_t offset;
} gguf_rig_tensor;

/* A whole file.  Heap or static storage: it is large. */
typedef struct gguf_rig {
    uint32_t version;
    uint64_t align;
    gguf_rig_key key[GGUF_RIG_MAX_KEY];
    size_t n_key;
    gguf_rig_tensor tensor[GGUF_RIG_MAX_TENSOR];
    size_t n_tensor;
    uint64_t say_keys, say_tensors; /* counts written instead of the right ones; 0 = right */
} gguf_rig;

/* Read a file (of a split model: all parts); asserts that it can be read. */
void gguf_rig_load(gguf_rig *r, const char *path);
void gguf_rig_fini(gguf_rig *r);

/* Append the file to out. */
void gguf_rig_write(const gguf_rig *r, lg_buf *out);

/* The key or tensor of that name; key makes a new one where there is none, tensor asserts that there is one. */
gguf_rig_key *gguf_rig_get_key(gguf_rig *r, const char *name);
gguf_rig_tensor *gguf_rig_get_tensor(gguf_rig *r, const char *name);
void gguf_rig_drop_key(gguf_rig *r, const char *name);
void gguf_rig_drop_tensor(gguf_rig *r, const char *name);

/* Set a scalar. */
void gguf_rig_set_u32(gguf_rig *r, const char *key, uint32_t x);
void gguf_rig_set_str(gguf_rig *r, const char *key, const char *s);
void gguf_rig_set_raw(gguf_rig *r, const char *key, uint32_t type, const void *data,
                      size_t len_bytes);

/* Element i of an array of strings becomes s; of an array of 32-bit numbers, x. */
void gguf_rig_set_string_at(gguf_rig *r, const char *key, uint64_t i, const char *s);
void gguf_rig_set_i32_at(gguf_rig *r, const char *key, uint64_t i, int32_t x);

#endif
