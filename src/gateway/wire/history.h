/* history.h - conversations kept for previous_response_id, for a bounded time in bounded memory.
 *
 * A conversation is the text of its messages as the chat format reads them, without instructions.  The oldest go first.  Only
 * who kept it may go on with it: ids (128 random bits) of others are unknown.
 * Thread: any, one at a time by a lock.  Test: tests/unit/test_responses.c */
#ifndef LG_GATEWAY_WIRE_HISTORY_H
#define LG_GATEWAY_WIRE_HISTORY_H

#include "base/buf.h"

#include <stdint.h>

typedef struct lg_history lg_history;

/* Keep at most max_bytes, each conversation for life_us.  LG_E_NOMEM; the caller owns *h. */
lg_status lg_history_open(size_t max_bytes, uint64_t life_us, lg_history **h);
void lg_history_close(lg_history **h);

/* Keep `text` under `id` for `tenant`.  One that is too large, or finds no memory, is not kept. */
void lg_history_put(lg_history *h, uint64_t tenant, const char *id, const char *text,
                    size_t len_bytes, uint64_t now_us);

/* Append the text to `out`; false when it is unknown or too old. */
bool lg_history_get(lg_history *h, uint64_t tenant, const char *id, lg_buf *out,
                    uint64_t now_us);

#endif
