/* blocks.h - the model's output as a list of blocks: reasoning, text, calls, in the order in which they come.
 *
 * Messages and Responses both speak of blocks that begin, grow and end; a block ends when one of another kind begins.
 * Thread: gateway.  Test: tests/unit/test_anthropic.c, test_responses.c */
#ifndef LG_GATEWAY_WIRE_BLOCKS_H
#define LG_GATEWAY_WIRE_BLOCKS_H

#include "gateway/wire/outparse.h"

typedef enum { LG_BLOCK_REASONING, LG_BLOCK_TEXT, LG_BLOCK_CALL } lg_block_kind;

typedef struct lg_block {
    lg_block_kind kind;
    lg_buf name; /* of a call's function */
    lg_buf text; /* so far; a call: the JSON text of its arguments */
} lg_block;

typedef enum { LG_BLOCK_BEGIN, LG_BLOCK_DELTA, LG_BLOCK_END } lg_block_change;

/* Told of each change of block i; text: what a DELTA adds. */
typedef void lg_block_fn(void *ctx, lg_block_change change, uint32_t i, const lg_block *block,
                         const char *text, size_t len_bytes);

/* Caller's storage: = {0}, lg_blocks_init, lg_blocks_fini. */
typedef struct lg_blocks {
    lg_outparse *parse;
    lg_block *block; /* owned */
    uint32_t n, cap, n_call;
    bool one_call;     /* drop what follows the first call */
    bool ended;        /* the last block is the last */
    bool open, failed; /* the last block has not ended; out of memory */
    lg_block_fn *fn;   /* may be NULL */
    void *ctx;
} lg_blocks;

/* As lg_outparse_open.  LG_E_NOMEM. */
lg_status lg_blocks_init(lg_blocks *b, const lg_json *tools, bool in_reasoning, lg_block_fn *fn,
                         void *ctx);
void lg_blocks_fini(lg_blocks *b);

/* Take output text; its end, and why it ended.  LG_E_NOMEM. */
lg_status lg_blocks_put(lg_blocks *b, const char *text, size_t len_bytes);
lg_status lg_blocks_end(lg_blocks *b, lg_finish finish);

/* Calls so far. */
uint32_t lg_blocks_n_call(const lg_blocks *b);

/* After the end: append the arguments of a call; those of a call that was cut are closed, so that it is one JSON object. */
void lg_blocks_put_object(const lg_blocks *b, const lg_block *k, lg_buf *out);

/* An id for block i, of 24 hexadecimal digits, from the request's id and the choice: the same whenever it is asked for. */
void lg_blocks_put_id(lg_buf *out, const char *prefix, const char *request_id, uint32_t i);

#endif
