/* diag.h - status codes, error reports and the log.
 *
 * Every call that can fail returns lg_status: LG_OK (0), LG_AGAIN (1, flow control, never logged) or a negative error.
 * `open` and `load` calls also fill an lg_err, whose message names the file, tensor or field, what was found and what
 * was expected.  Thread: any.  Test: tests/unit/test_base.c */
#ifndef LG_BASE_DIAG_H
#define LG_BASE_DIAG_H

#include "lignum.h"

#include <stdarg.h>

/* Return from the function with the status of `expr` unless it is LG_OK. */
#define LG_TRY(expr)                                                                           \
    do {                                                                                       \
        lg_status lg_try_st_ = (expr);                                                         \
        if (lg_try_st_ != LG_OK) return lg_try_st_;                                            \
    } while (0)

/* Store the status of `expr` in `st` and jump to `label` unless it is LG_OK. */
#define LG_TRY_GOTO(expr, st, label)                                                           \
    do {                                                                                       \
        (st) = (expr);                                                                         \
        if ((st) != LG_OK) goto label;                                                         \
    } while (0)

/* Fill `err` (may be NULL) and yield `code`:  return LG_FAIL(err, LG_E_FORMAT, "%s: ...", path); */
#define LG_FAIL(err, code, ...) lg_diag_fail((err), (code), __FILE__, __LINE__, __VA_ARGS__)

/* A bug of ours: report and abort.  Active in every build. */
#define LG_ASSERT(cond)                                                                        \
    do {                                                                                       \
        if (!(cond)) lg_diag_assert(#cond, __FILE__, __LINE__);                                \
    } while (0)

/* Count of elements of a true array. */
#define LG_COUNT(a) (sizeof(a) / sizeof((a)[0]))

typedef enum { LG_LOG_ERROR, LG_LOG_WARN, LG_LOG_INFO, LG_LOG_DEBUG } lg_log_level;

/* Fill *err (may be NULL) with code, source place and the formatted message (cut at its size).  Returns code. */
lg_status lg_diag_fail(lg_err *err, lg_status code, const char *file, int line, const char *fmt,
                       ...) __attribute__((format(printf, 5, 6), cold));

/* Print the failed condition to standard error and abort. */
_Noreturn void lg_diag_assert(const char *cond, const char *file, int line);

/* Write one line "lignum: warning: ..." to standard error if `level` is at most the set level (default LG_LOG_WARN). */
void lg_diag_log(lg_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

void lg_diag_set_level(lg_log_level level);

#endif
