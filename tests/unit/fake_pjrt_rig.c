/* fake_pjrt_rig.c - see fake_pjrt_rig.h. */
#include "fake_pjrt_rig.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

const lg_pjrt_compile fake_rig_one = {.n_replica = 1, .n_partition = 1};

const char *fake_rig_path(void) {
    static char path[1024];
    const char *build = getenv("LG_BUILD_DIR");
    snprintf(path, sizeof path, "%s/tests/unit/fake_pjrt.so", build ? build : "build");
    return path;
}

lg_pjrt_plugin *fake_rig_plugin(const char *how) {
    lg_pjrt_plugin *p;
    lg_err err;
    setenv("LG_FAKE_PJRT", how, 1);
    if (lg_pjrt_plugin_open(fake_rig_path(), &p, &err) != LG_OK) fail_msg("%s", err.msg);
    return p;
}

lg_pjrt_client *fake_rig_client(lg_pjrt_plugin *p) {
    lg_pjrt_client *c;
    lg_err err;
    if (lg_pjrt_client_open(p, NULL, &c, &err) != LG_OK) fail_msg("%s", err.msg);
    return c;
}

int fake_rig_alive(void) {
    void *lib = dlopen(fake_rig_path(), RTLD_NOW | RTLD_NOLOAD);
    int (*count)(void);
    assert_non_null(lib);
    *(void **)&count = dlsym(lib, "fake_pjrt_alive");
    int n = count();
    dlclose(lib);
    return n;
}
