/* outparse.h - the model's output text, byte by byte, into reasoning, content and tool calls.
 *
 * Incremental and linear; a cut at any byte gives the same joined result.  No byte is ever lost: what does not parse as a tool
 * call (unknown function, no argument begun) comes out as content.  A call is told as soon as its first argument begins, and
 * arguments that are strings come as they are written; from then on it is a call, whatever follows.  Whether the text starts as reasoning is decided by
 * the rendered prompt (lg_chat.opened_think), not by the tags seen; "<tool_call>" inside reasoning ends it.
 * Thread: gateway.  Test: tests/unit/test_outparse.c (every case at every split) */
#ifndef LG_GATEWAY_WIRE_OUTPARSE_H
#define LG_GATEWAY_WIRE_OUTPARSE_H

#include "base/json.h"

typedef enum {
    LG_PART_REASONING,  /* text: reasoning to append */
    LG_PART_CONTENT,    /* text: content to append */
    LG_PART_CALL_BEGIN, /* text: function name; call: its index */
    LG_PART_CALL_ARGS /* text: a piece of the arguments' JSON text; pieces of one call join to one JSON object */
} lg_part_kind;

typedef struct lg_part {
    lg_part_kind kind;
    uint32_t call;    /* index of the call, 0-based */
    const char *text; /* borrowed until the next outparse call; not NUL-terminated */
    size_t len_bytes;
} lg_part;

typedef void lg_part_fn(void *ctx, const lg_part *part);

typedef struct lg_outparse lg_outparse;

/* tools: the request's tool array (borrowed while the parser lives), or NULL: then "<tool_call>" is plain content.
 * in_reasoning: the prompt opened <think>.  Argument types follow the tool's JSON schema: see argval.h. */
lg_status lg_outparse_open(const lg_json *tools, bool in_reasoning, lg_outparse **op);
void lg_outparse_close(lg_outparse **op);

/* Feed text; parts go to fn.  LG_E_NOMEM. */
lg_status lg_outparse_put(lg_outparse *op, const char *text, size_t len_bytes, lg_part_fn *fn,
                          void *ctx);

/* The output has ended: flush what was held back.  A call that is under way is closed when the model has ended its turn; when
 * it was `cut` its arguments stay cut, so that nobody takes them for whole. */
lg_status lg_outparse_end(lg_outparse *op, bool cut, lg_part_fn *fn, void *ctx);

/* Calls completed so far. */
uint32_t lg_outparse_n_call(const lg_outparse *op);

/* After the end: what would make the arguments of a cut call one JSON object; "" when no call was cut. */
const char *lg_outparse_closing(const lg_outparse *op);

#endif
