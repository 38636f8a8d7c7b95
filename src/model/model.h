/* model.h - the map of src/model: from files to numbers and from text to tokens.
 *
 *   config       config.json, generation_config.json       tensors      mapped views; safetensors: their files
 *   weights      names -> struct fields; pack: panels      tokenizer    byte-level BPE and streaming detokeniser
 *   grammar      what an answer may be, from a JSON schema or tools
 *   chat         the Qwen3.5 chat format                    togguf       a folder to a GGUF file; gguf_write, imatrix
 *
 * The gateway uses tokenizer and chat only; the backend uses config and weights only. */
#ifndef LG_MODEL_MODEL_H
#define LG_MODEL_MODEL_H

#include "model/chat.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"
#include "model/weights.h"

#endif
