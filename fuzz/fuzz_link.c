/* fuzz_link.c - any bytes as a stream of link frames, in two different cuts.
 *
 * Both cuts must give the same messages, and all that a message points to must be readable.  Seeds: fuzz/corpus/link */
#include "link/link.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Touch everything; returns a value that depends on all of it. */
static uint64_t touch(const lg_link_msg *m) {
    uint64_t sum = (uint64_t)m->kind * 31 + m->id;
    if (m->kind == LG_LINK_SUBMIT) {
        const lg_request *q = &m->u.submit.req;
        for (uint32_t i = 0; i < q->n_id; i++) sum = sum * 31 + q->ids[i];
        for (uint32_t i = 0; i < q->n_bias; i++) sum = sum * 31 + q->bias[i].id;
        for (uint32_t i = 0; i < q->n_stop; i++) sum = sum * 31 + strlen(q->stop[i]);
        LG_ASSERT(q->n_id >= 1 && q->n_produced <= q->n_id);
    } else if (m->kind == LG_LINK_TOKEN || m->kind == LG_LINK_DONE) {
        const lg_event *e = &m->u.event;
        for (uint32_t i = 0; i < e->n_top; i++) sum = sum * 31 + e->top[i].id;
        for (size_t i = 0; i < e->len_bytes; i++) sum = sum * 31 + (uint8_t)e->text[i];
    } else if (m->kind == LG_LINK_REFUSED || m->kind == LG_LINK_GOODBYE) {
        sum += strlen(m->u.why.text);
    } else if (m->kind == LG_LINK_HELLO) {
        sum += strlen(m->u.hello.model_name);
    } else if (m->kind == LG_LINK_READY) {
        LG_ASSERT(m->u.ready.n_eos <= LG_LINK_MAX_EOS);
        sum += strlen(m->u.ready.info.model_name);
    }
    return sum;
}

static uint64_t run(const uint8_t *data, size_t size, size_t step) {
    lg_link_reader r = {0};
    lg_link_msg m;
    lg_err err;
    uint64_t sum = 0;
    lg_status st = LG_AGAIN;
    for (size_t at = 0; at < size && st == LG_AGAIN; at += step) {
        if (lg_link_feed(&r, data + at, size - at < step ? size - at : step) != LG_OK) break;
        while ((st = lg_link_next(&r, &m, &err)) == LG_OK) sum = sum * 31 + touch(&m);
    }
    lg_link_reader_fini(&r);
    return sum * 2 + (st == LG_AGAIN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    LG_ASSERT(size == 0 || run(data, size, size) == run(data, size, 5));
    return 0;
}
