/* notice.c - what the log says once: see notice.h.
 *
 * In: names.   Out: log lines.   Thread: any, one at a time by a lock.  Memory: the caller's.  Test: tests/unit/test_openai.c */
#include "gateway/notice.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void once(lg_notice *notice, const char *shown, const char *what) {
    if (notice->n == LG_NOTICE_MAX) return;
    for (uint32_t i = 0; i < notice->n; i++)
        if (strcmp(notice->name[i], shown) == 0) return;
    snprintf(notice->name[notice->n++], sizeof notice->name[0], "%s", shown);
    lg_diag_log(LG_LOG_WARN, "%s: %s%s", shown, what,
                notice->n == LG_NOTICE_MAX ? "; more names are not told" : "");
}

void lg_notice_once(lg_notice *notice, const char *name, const char *what) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char shown[sizeof notice->name[0]];
    if (!notice) return;
    snprintf(shown, sizeof shown, "%s", name);
    for (char *p = shown; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?';
    pthread_mutex_lock(&lock);
    once(notice, shown, what);
    pthread_mutex_unlock(&lock);
}
