/* notice.c - what the log says once: see notice.h.
 *
 * In: names.   Out: log lines.   Thread: gateway.  Memory: the caller's.  Test: tests/unit/test_openai.c */
#include "gateway/notice.h"

#include <stdio.h>
#include <string.h>

void lg_notice_once(lg_notice *notice, const char *name, const char *what) {
    char shown[sizeof notice->name[0]];
    if (!notice || notice->n == LG_NOTICE_MAX) return;
    snprintf(shown, sizeof shown, "%s", name);
    for (char *p = shown; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?';
    for (uint32_t i = 0; i < notice->n; i++)
        if (strcmp(notice->name[i], shown) == 0) return;
    memcpy(notice->name[notice->n++], shown, sizeof shown);
    lg_diag_log(LG_LOG_WARN, "%s: %s%s", shown, what,
                notice->n == LG_NOTICE_MAX ? "; more names are not told" : "");
}
