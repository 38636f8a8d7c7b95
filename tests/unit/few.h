/* few.h - whether this build is so slow (sanitizers) that a test should do a part of its work: the release build and `make
 * check-long` (LG_TEST_ALL) do all of it. */
#ifndef LG_TEST_FEW_H
#define LG_TEST_FEW_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define LG_TEST_SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LG_TEST_SLOW 1
#endif
#endif
#ifndef LG_TEST_SLOW
#define LG_TEST_SLOW 0
#endif

/* Says once what is left out. */
static inline bool test_few(const char *what) {
    static bool said;
    bool few = LG_TEST_SLOW && !getenv("LG_TEST_ALL");
    if (few && !said) printf("  sanitizers: %s; all with LG_TEST_ALL=1\n", what);
    said = true;
    return few;
}

#endif
