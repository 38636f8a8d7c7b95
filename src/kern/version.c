/* version.c - lg_version() of lignum.h: version, build id, compiler, processor features.
 *
 * It lives here because kern is the lowest layer that knows the processor.  The text is made once.  Thread: any.
 * Test: tests/unit/test_version.c */
#include "kern/kern.h"
#include "lignum_build.h"

#include <pthread.h>
#include <stdio.h>

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char text[256];

static void make_text(void) {
    snprintf(text, sizeof text, LG_VERSION " (build " LG_BUILD_ID ", " COMPILER ", %s)",
             lg_kern_features());
}

const char *lg_version(void) {
    pthread_once(&once, make_text);
    return text;
}
