/* reader.h - a thread that reads bodies: parses, renders and tokenizes, so that a long prompt holds up nobody's stream.
 *
 * It alone encodes text once it runs; the gateway's thread reads the tokenizer's tables, which do not change.  What both use
 * otherwise (replay, history, notice) locks itself.  Bodies are read in the order in which they came.
 * Test: tests/e2e/test_http.py, test_load.py */
#ifndef LG_GATEWAY_NET_READER_H
#define LG_GATEWAY_NET_READER_H

#include "gateway/wire/request.h"

struct event_base;

typedef struct lg_reader lg_reader;

/* One body on its way.  Owned by whoever has it: the caller until lg_reader_put and after `done`. */
typedef struct lg_read {
    const lg_wire_format *wire;   /* a request is opened: */
    lg_request_answer_fn *answer; /* or it is answered at once */
    lg_buf body;
    uint64_t tenant;
    void *
        ctx; /* for `done`; may be changed while it is being read, by the gateway's thread alone */
    /* what came of it */
    bool ok;
    lg_request_parsed *req;
    lg_buf text; /* the answer's */
    lg_request_error err;
    struct lg_read *next;
} lg_read;

void lg_read_free(lg_read *read);

/* done is called in the loop of `base`, once for each body put.  `model` is copied.  LG_E_NOMEM, LG_E_IO; the caller owns *r. */
lg_status lg_reader_open(struct event_base *base, const lg_request_model *model,
                         void (*done)(void *ctx, lg_read *read), void *ctx, lg_reader **r,
                         lg_err *err);

/* Ends the thread after the body at hand; bodies that wait, or wait to be told of, are freed without a word. */
void lg_reader_close(lg_reader **r);

void lg_reader_put(lg_reader *r, lg_read *read);

#endif
