/* call.h - what the files of this folder share: their objects, and the guarded call into a plugin.
 *
 * Test: tests/unit/test_pjrt.c */
#ifndef LG_BACKEND_PJRT_PLUGIN_CALL_H
#define LG_BACKEND_PJRT_PLUGIN_CALL_H

#include "backend/pjrt/plugin/abi.h"
#include "backend/pjrt/pjrt.h"
#include "base/mem.h"

struct lg_pjrt_plugin {
    const lg_abi_table *table;
    uint64_t build;
    char about[160];
};

struct lg_pjrt_topo {
    lg_pjrt_plugin *plugin; /* borrowed */
    void *handle;
    void **desc; /* the plugin's, [n] */
    uint32_t n;
};

struct lg_pjrt_client {
    lg_pjrt_plugin *plugin; /* borrowed */
    void *handle;
    void **device; /* the plugin's, [n] */
    uint32_t n;
    char platform[64];
    lg_pjrt_traffic traffic;
};

struct lg_pjrt_exe {
    lg_pjrt_plugin *plugin;
    lg_pjrt_client *client; /* NULL: compiled for a topology */
    void *loaded;           /* NULL then */
    void *exe;
    uint32_t n_dev, n_out;
};

/* Call one function of the table.  LG_OK; LG_E_UNSUPPORTED when the plugin lacks it; or the plugin's error as
 * "plugin: SLOT: first line of its message" with a status of its code. */
lg_status lg_pjrt_call_slot(const lg_pjrt_plugin *p, lg_abi_slot slot, void *args, lg_err *err);
bool lg_pjrt_call_has(const lg_pjrt_plugin *p, lg_abi_slot slot);

/* The plugin's code of the last error is lost in the status, but compilers need one distinction: a text that cannot be read. */
#define LG_PJRT_CODE_UNKNOWN  2
#define LG_PJRT_CODE_ARGUMENT 3
lg_status lg_pjrt_call_code(const lg_pjrt_plugin *p, lg_abi_slot slot, void *args, int *code,
                            lg_err *err);

/* Destroy an object; NULL is allowed, and an error is only logged. */
void lg_pjrt_call_destroy(const lg_pjrt_plugin *p, lg_abi_slot slot, void *obj);

/* Our options as the ABI has them; `named` has room for LG_PJRT_MAX_OPT and points into o. */
void lg_pjrt_call_named(const lg_pjrt_options *o, lg_abi_named *named);

/* Fill *info from the plugin's device description. */
void lg_pjrt_call_describe(const lg_pjrt_plugin *p, void *desc, lg_pjrt_device_info *info);

/* program.c: a program on devices from the plugin's object, which is destroyed on failure. */
lg_status lg_pjrt_exe_loaded(lg_pjrt_client *c, void *loaded, uint32_t n_dev, lg_pjrt_exe **exe,
                             lg_err *err);

#endif
