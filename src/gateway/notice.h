/* notice.h - what the log says once: names of request fields that had no effect.
 *
 * Names come from clients: they are cut, and only printable ASCII is shown.  After LG_NOTICE_MAX names nothing more is said.
 * Thread: any.  Test: tests/unit/test_openai.c, tests/e2e/test_protocols.py */
#ifndef LG_GATEWAY_NOTICE_H
#define LG_GATEWAY_NOTICE_H

#include "base/diag.h"

#define LG_NOTICE_MAX 64

/* Caller's storage: = {0}. */
typedef struct lg_notice {
    uint32_t n;
    char name[LG_NOTICE_MAX][64];
} lg_notice;

/* Log "NAME: WHAT", unless it was said of this name before.  notice may be NULL: nothing is said. */
void lg_notice_once(lg_notice *notice, const char *name, const char *what);

#endif
