/* safetensors.h - typed views into the memory-mapped tensors of a Hugging Face folder.
 *
 * One file or many (model.safetensors.index.json); every offset, size, shape product and header length is checked with
 * overflow-safe arithmetic before use.  Test: tests/unit/test_safetensors.c, fuzz/fuzz_safetensors.c */
#ifndef LG_MODEL_FILE_SAFETENSORS_H
#define LG_MODEL_FILE_SAFETENSORS_H

#include "base/json.h"
#include "model/weights/tensors.h"

/* Map all shards of folder `path` (model.safetensors, or what model.safetensors.index.json lists), or the one file `path`.
 * The caller owns *set.  LG_OK; LG_E_IO; LG_E_FORMAT; LG_E_UNSUPPORTED (a dtype); LG_E_NOMEM. */
lg_status lg_st_open(const char *path, lg_tensors **set, lg_err *err);

/* Check one file's header and table without mapping (for the fuzzer): buf is the whole file. */
lg_status lg_st_check(const uint8_t *buf, size_t len_bytes, const char *what, lg_err *err);

#endif
