/* model.h - the map of src/model: from files to numbers and from text to tokens.
 *
 *   config      config.json, generation_config.json; identity: one number for a model's files
 *   file/       safetensors, gguf: files as published; togguf, gguf_write, imatrix: a folder to a GGUF file
 *   weights/    tensors: mapped views; weights: names -> struct fields; pack, packed: panels, in memory and in a file
 *   text/       tokenizer: byte-level BPE and streaming detokeniser; chat: the Qwen3.5 chat format
 *   grammar/    what an answer may be, from a JSON schema or tools
 *
 * The gateway uses tokenizer and chat only; the backend uses config and weights only. */
#ifndef LG_MODEL_MODEL_H
#define LG_MODEL_MODEL_H

#include "model/config.h"
#include "model/file/safetensors.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"
#include "model/weights/weights.h"

#endif
