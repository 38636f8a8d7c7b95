/* json_number.c - numbers between their JSON text and C: see json.h.
 *
 * Nothing here depends on the process's locale: text is read with the C locale, and the printer takes only the digits
 * and the exponent from printf.  Thread: any.  Memory: none.  Test: tests/unit/test_json.c, tests/py/json_compare.py */
#include "base/json.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXP_LIMIT ((int64_t)1 << 40) /* beyond any text length: saturate here */

/* The value of the exponent part at s ("", "e5", "E-07"), saturated. */
static int64_t exponent_of(const char *s) {
    if (*s == 0) return 0;
    s++;
    bool negative = *s == '-';
    if (*s == '+' || *s == '-') s++;
    int64_t e = 0;
    for (; *s; s++)
        if (e < EXP_LIMIT) e = e * 10 + (*s - '0');
    return negative ? -e : e;
}

/* Magnitude of a number's text when it is an integer that fits 64 bits. */
static bool magnitude(const char *s, uint64_t *out) {
    if (*s == '-') s++;
    size_t len = strcspn(s, "eE"), n_frac = 0;
    const char *point = memchr(s, '.', len);
    if (point) n_frac = (size_t)(s + len - point - 1);
    int64_t e = exponent_of(s + len) - (int64_t)n_frac;
    while (len && (s[len - 1] == '0' || s[len - 1] == '.')) {
        if (s[len - 1] == '0') e++;
        len--;
    }
    uint64_t v = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '.') continue;
        if (__builtin_mul_overflow(v, 10u, &v)) return false;
        if (__builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v)) return false;
    }
    if (v != 0) {
        if (e < 0) return false;
        for (; e > 0; e--)
            if (__builtin_mul_overflow(v, 10u, &v)) return false;
    }
    *out = v;
    return true;
}

bool lg_json_u64(const lg_json *v, uint64_t *out) {
    uint64_t m;
    if (!v || v->kind != LG_JSON_NUMBER || !magnitude(v->text, &m)) return false;
    if (v->text[0] == '-' && m != 0) return false;
    *out = m;
    return true;
}

bool lg_json_i64(const lg_json *v, int64_t *out) {
    uint64_t m;
    if (!v || v->kind != LG_JSON_NUMBER || !magnitude(v->text, &m)) return false;
    bool negative = v->text[0] == '-';
    if (m > (uint64_t)INT64_MAX + negative) return false;
    *out = negative ? (int64_t)(0 - m) : (int64_t)m;
    return true;
}

/* strtod in the C locale, whatever the process has set.  glibc hands out that locale without allocating. */
static double to_double(const char *s) {
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    LG_ASSERT(c);
    double x = strtod_l(s, NULL, c);
    freelocale(c);
    return x;
}

bool lg_json_f64(const lg_json *v, double *out) {
    if (!v || v->kind != LG_JSON_NUMBER) return false;
    double x = to_double(v->text);
    if (!isfinite(x)) return false;
    *out = x;
    return true;
}

/* A decimal: 0.d1d2d3... times 10 to the `point`. */
typedef struct decimal {
    char digit[20]; /* NUL-terminated */
    int n, point;
} decimal;

/* The n significant digits nearest to x > 0. */
static void round_to(double x, int n, decimal *d) {
    char s[40];
    snprintf(s, sizeof s, "%.*e", n - 1, x);
    char *e = strchr(s, 'e');
    d->n = 0;
    for (char *p = s; p < e; p++)
        if (*p >= '0' && *p <= '9') d->digit[d->n++] = *p;
    d->digit[d->n] = 0;
    d->point = (int)strtol(e + 1, NULL, 10) + 1;
}

/* The next decimal up with the same number of digits. */
static void step_up(decimal *d) {
    int i = d->n - 1;
    while (i >= 0 && d->digit[i] == '9') d->digit[i--] = '0';
    if (i >= 0) {
        d->digit[i]++;
        return;
    }
    d->digit[0] = '1';
    d->point++;
}

static bool reads_as(const decimal *d, double x) {
    char s[40];
    snprintf(s, sizeof s, "%se%d", d->digit, d->point - d->n);
    return to_double(s) == x;
}

/* The shortest decimal that reads as x > 0, the nearest one when there are several.  A decimal of at most 15 digits
 * survives the way through a normal double, so if one reads as x the first 15 digits of x are it.  Just below a power
 * of two doubles are half as far apart as above: there the nearest decimal may fail and the next one up hold. */
static void shortest(double x, decimal *d) {
    int exp;
    bool power = frexp(x, &exp) == 0.5;
    for (int n = x < 0x1p-1022 ? 1 : 15; n <= 17; n++) {
        round_to(x, n, d);
        if (reads_as(d, x)) break;
        if (!power) continue;
        step_up(d);
        if (reads_as(d, x)) break;
    }
    while (d->n > 1 && d->digit[d->n - 1] == '0') d->digit[--d->n] = 0;
}

void lg_json_put_double(lg_buf *b, double x) {
    if (isnan(x)) {
        lg_buf_puts(b, "nan");
        return;
    }
    if (signbit(x)) lg_buf_putc(b, '-');
    x = fabs(x);
    if (isinf(x) || x == 0) {
        lg_buf_puts(b, x == 0 ? "0.0" : "inf");
        return;
    }
    decimal d;
    shortest(x, &d);
    if (d.point > 16 || d.point < -3) {
        lg_buf_putc(b, d.digit[0]);
        if (d.n > 1) lg_buf_printf(b, ".%s", d.digit + 1);
        int e = d.point - 1;
        lg_buf_printf(b, "e%c%02d", e < 0 ? '-' : '+', e < 0 ? -e : e);
    } else if (d.point <= 0) {
        lg_buf_printf(b, "0.%.*s%s", -d.point, "000", d.digit);
    } else if (d.point >= d.n) {
        lg_buf_printf(b, "%s%.*s.0", d.digit, d.point - d.n, "0000000000000000");
    } else {
        lg_buf_printf(b, "%.*s.%s", d.point, d.digit, d.digit + d.point);
    }
}
