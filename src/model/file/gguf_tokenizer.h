/* gguf_tokenizer.h - the tokenizer that the metadata of a GGUF file describes. */
#ifndef LG_MODEL_FILE_GGUF_TOKENIZER_H
#define LG_MODEL_FILE_GGUF_TOKENIZER_H

#include "model/file/gguf.h"
#include "model/text/tokload.h"

/* Fill *tok, which is zeroed, so that its ids are those of the tokenizer.json the file was made from.  LG_OK; LG_E_FORMAT;
 * LG_E_UNSUPPORTED (another kind of tokenizer than gpt2 / qwen35, or a key not understood); LG_E_NOMEM.  err names file and
 * key.  *tok stays the caller's. */
lg_status lg_gguf_tokenizer_build(lg_tokenizer *tok, const lg_gguf *g, lg_err *err);

/* The split pattern that the name "qwen35" stands for. */
const char *lg_gguf_tokenizer_pattern(void);

#endif
