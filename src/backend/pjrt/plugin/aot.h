/* aot.h - compile a program for devices that are not here.
 *
 * A plugin's compiler can end its process, and keeps what it once took, so each call works in a child of its own and the answer
 * comes back through a pipe.  Test: tests/py/compile.py */
#ifndef LG_BACKEND_PJRT_PLUGIN_AOT_H
#define LG_BACKEND_PJRT_PLUGIN_AOT_H

#include "backend/pjrt/pjrt.h"
#include "backend/pjrt/plugin/report.h"

typedef struct lg_aot {
    const char *plugin, *topology; /* "tpu7x:2x2x1" */
    const char *options; /* of the topology, as lg_pjrt_options_parse takes them; NULL: none */
} lg_aot;

/* What the compiler says of a program, on one device. */
typedef struct lg_aot_result {
    double seconds;
    lg_pjrt_exe_memory memory;
    double flops, accessed_bytes; /* negative: it does not say */
    lg_report_sum sum;
} lg_aot_result;

/* The devices of the topology: dev[*n], *n at most LG_PJRT_MAX_DEV.  Errors as lg_pjrt_topo_open's; LG_E_BACKEND when the child
 * ended without an answer. */
lg_status lg_aot_devices(const lg_aot *a, lg_pjrt_device_info *dev, uint32_t *n, lg_err *err);

/* Compile a text.  copy_bytes: as in lg_report_count.  Errors as lg_pjrt_exe_compile_for's. */
lg_status lg_aot_compile(const lg_aot *a, const lg_buf *text, const lg_pjrt_compile *how,
                         uint64_t copy_bytes, lg_aot_result *r, lg_err *err);

#endif
