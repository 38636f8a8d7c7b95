/* identity.h - which weights these are: a fingerprint of a model's files that outlives the process.
 *
 * BLAKE2b over config.json, and of each weight file its name, size, time of change and 256 samples of 4 KiB spread over it: what is
 * kept of one set of weights must not be taken for another's.  Reading all of it would take as long as loading.
 * Thread: any.  Test: tests/unit/test_disk.c */
#ifndef LG_MODEL_IDENTITY_H
#define LG_MODEL_IDENTITY_H

#include "base/diag.h"

#define LG_IDENTITY_BYTES 32

/* model_path: a folder or a GGUF file (of a split one: any part).  LG_E_IO, and for GGUF what lg_gguf_open returns. */
lg_status lg_identity_of(const char *model_path, uint8_t id[LG_IDENTITY_BYTES], lg_err *err);

#endif
