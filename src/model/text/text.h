/* text.h - the parts behind an lg_text, for the engine.
 *
 * The public calls are in lignum.h.  Test: tests/unit/test_text.c */
#ifndef LG_MODEL_TEXT_TEXT_H
#define LG_MODEL_TEXT_TEXT_H

#include "model/text/tokenizer.h"

/* The tokenizer of text; borrowed until lg_text_close. */
lg_tokenizer *lg_text_tokenizer(lg_text *text);

#endif
