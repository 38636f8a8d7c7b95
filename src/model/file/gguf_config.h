/* gguf_config.h - what the metadata of a GGUF file says about the model, checked. */
#ifndef LG_MODEL_FILE_GGUF_CONFIG_H
#define LG_MODEL_FILE_GGUF_CONFIG_H

#include "model/config.h"
#include "model/file/gguf.h"

/* Fill *c from metadata and tensor names (the head is tied when there is no output.weight).  Generation defaults are those of
 * general.sampling.*, without them greedy.  LG_OK; LG_E_FORMAT (a value is missing, malformed, out of range or contradicts
 * another); LG_E_UNSUPPORTED (another architecture, or a value we do not implement).  err names file and key. */
lg_status lg_gguf_config_read(lg_config *c, const lg_gguf *g, lg_err *err);

#endif
