/* pjrt_rig.c - where the tests that need a true plugin find it. */
#include "pjrt_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* XLA is not built for sanitizers: they would watch its memory with ours. */
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

const char *pjrt_rig_path(const char *name) {
    static char path[1024];
    const char *dir = getenv("LIGNUM_PJRT_DIR"), *home = getenv("HOME");
    const char *member = strcmp(name, "cpu") == 0
                             ? "cpu/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"
                             : "tpu/libtpu/libtpu.so";
    if (dir && *dir)
        snprintf(path, sizeof path, "%s/%s", dir, member);
    else
        snprintf(path, sizeof path, "%s/.cache/lignum/pjrt/%s", home ? home : "", member);
    if (SANITIZED) {
        printf("the plugin %s is not used under a sanitizer\n", name);
        return NULL;
    }
    if (access(path, R_OK) == 0) return path;
    printf("the plugin %s is not there (make check-pjrt fetches it)\n", name);
    return NULL;
}

int pjrt_rig_open(lg_pjrt_plugin **plugin, lg_pjrt_client **client) {
    lg_err err;
    lg_pjrt_options o;
    const char *path = pjrt_rig_path("cpu");
    if (!path) return 0;
    if (lg_pjrt_plugin_open(path, plugin, &err) == LG_OK &&
        lg_pjrt_options_parse("cpu_device_count=8", &o, &err) == LG_OK &&
        lg_pjrt_client_open(*plugin, &o, client, &err) == LG_OK)
        return 0;
    printf("%s\n", err.msg);
    return 1;
}

void pjrt_rig_close(lg_pjrt_plugin **plugin, lg_pjrt_client **client) {
    lg_pjrt_client_close(client);
    lg_pjrt_plugin_close(plugin);
}
