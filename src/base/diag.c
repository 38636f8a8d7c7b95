/* diag.c - error reports and the log: see diag.h.  The log level is the only state, set once at start. */
#include "base/diag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lg_log_level max_level = LG_LOG_WARN;

lg_status lg_diag_fail(lg_err *err, lg_status code, const char *file, int line, const char *fmt,
                       ...) {
    if (!err) return code;
    const char *slash = strrchr(file, '/');
    err->code = code;
    err->rank = 0;
    err->line = line;
    snprintf(err->file, sizeof err->file, "%s", slash ? slash + 1 : file);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return code;
}

void lg_diag_assert(const char *cond, const char *file, int line) {
    fprintf(stderr, "lignum: internal error: %s:%d: %s does not hold\n", file, line, cond);
    abort();
}

void lg_diag_log(lg_log_level level, const char *fmt, ...) {
    static const char *const name[] = {"error", "warning", "info", "debug"};
    if (level > max_level) return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "lignum: %s: %s\n", name[level], line);
}

void lg_diag_set_level(lg_log_level level) {
    max_level = level;
}

const char *lg_status_name(lg_status status) {
    switch (status) {
    case LG_OK: return "ok";
    case LG_AGAIN: return "again";
    case LG_E_ARG: return "bad argument";
    case LG_E_NOMEM: return "out of memory";
    case LG_E_IO: return "input/output error";
    case LG_E_FORMAT: return "bad format";
    case LG_E_UNSUPPORTED: return "unsupported";
    case LG_E_BACKEND: return "backend error";
    case LG_E_COMM: return "communication error";
    case LG_E_CANCELLED: return "cancelled";
    case LG_E_INTERNAL: return "internal error";
    default: return "unknown status";
    }
}
