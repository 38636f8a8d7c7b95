/* pjrt.h - the map of src/backend/pjrt: devices behind a PJRT plugin (TPU, GPU, or the CPU for tests).
 *
 * Four rooms, each sees those above it:
 *
 *   plugin/   the plugin's interface in our own declarations (abi.h): load it, open its devices, compile (also for devices that
 *             are not here: aot.c), run, move buffers, keep compiled programs in files, read what is in one (report.c)
 *   step/     texts: the writer of StableHLO (hlo.h), a step of the model (step.h), sums along the wires (collective.h), and
 *             what a program takes and gives (sig.h), the contract between the texts and the backend
 *   mosaic/   kernels for TPUs (mosaic_kern.h) and their twins in StableHLO (twin.h), put into a step by kernels.c
 *   be.h      the backend that the engine drives: weights, pages and states on the devices, steps cut into programs
 *
 * This header declares plugin/.
 *
 * A plugin is a shared library with one symbol, GetPjrtApi.  It is loaded when a device is asked for and never unloaded (its
 * threads outlive everything of ours), so nothing here is needed to build or to run without one.  Objects named
 * lg_pjrt_buf and lg_pjrt_event are the plugin's own.  Every call that fails fills lg_err with the first line of the plugin's message
 * and the name of the call; a slot that the plugin lacks is LG_E_UNSUPPORTED.  Plugins end the process on some misuse, so
 * arguments are checked here first.
 * Thread: any, one at a time for one object, unless said otherwise.  Memory: ours through mem.h, except what the plugin takes.
 * Test: tests/unit/test_pjrt.c (a plugin of our own), tests/unit/test_pjrt_cpu.c (the CPU plugin) */
#ifndef LG_BACKEND_PJRT_PJRT_H
#define LG_BACKEND_PJRT_PJRT_H

#include "base/buf.h"
#include "base/diag.h"

#define LG_PJRT_MAX_RANK 8
#define LG_PJRT_MAX_OPT  16
#define LG_PJRT_MAX_DEV  512 /* devices of one program */

typedef struct lg_pjrt_plugin lg_pjrt_plugin;
typedef struct lg_pjrt_client lg_pjrt_client;
typedef struct lg_pjrt_topo lg_pjrt_topo;
typedef struct lg_pjrt_exe lg_pjrt_exe;
typedef struct lg_pjrt_buf lg_pjrt_buf;     /* of the plugin */
typedef struct lg_pjrt_event lg_pjrt_event; /* of the plugin */

/* Element types, numbered as in the ABI. */
typedef enum lg_pjrt_type {
    LG_PJRT_BOOL = 1,
    LG_PJRT_S8 = 2,
    LG_PJRT_S32 = 4,
    LG_PJRT_S64 = 5,
    LG_PJRT_U8 = 6,
    LG_PJRT_U32 = 8,
    LG_PJRT_F16 = 10,
    LG_PJRT_F32 = 11,
    LG_PJRT_BF16 = 13,
    LG_PJRT_F8E5M2 = 16,
    LG_PJRT_F8E4M3FN = 17
} lg_pjrt_type;

size_t lg_pjrt_type_bytes(lg_pjrt_type t); /* of one element; 0: not one of the above */
const char *lg_pjrt_type_name(
    lg_pjrt_type t); /* in program texts: "f32", "bf16", "i32", "ui8", "f8E4M3FN", ... */

typedef struct lg_pjrt_dims {
    lg_pjrt_type type;
    uint32_t rank;
    int64_t dim[LG_PJRT_MAX_RANK];
} lg_pjrt_dims;

/* Bytes of the elements, row-major; 0 when a dimension is negative or the product overflows. */
size_t lg_pjrt_dims_bytes(const lg_pjrt_dims *d);

/* ---- plugin.c ---- */

/* Options by name, for a client or a topology.  `text` is "name=value,name=value": a whole number, true or false, numbers with x
 * between them (a list: 2x2x1), or else a string.  Borrows nothing. */
typedef struct lg_pjrt_option {
    char name[64];
    enum { LG_PJRT_OPT_TEXT, LG_PJRT_OPT_INT, LG_PJRT_OPT_LIST, LG_PJRT_OPT_BOOL } kind;
    char text[256];
    int64_t list[4]; /* INT and BOOL: the first */
    size_t n_list;
} lg_pjrt_option;

typedef struct lg_pjrt_options {
    lg_pjrt_option opt[LG_PJRT_MAX_OPT];
    size_t n;
} lg_pjrt_options;

/* LG_OK; LG_E_ARG naming the part that is wrong.  NULL or "" gives none. */
lg_status lg_pjrt_options_parse(const char *text, lg_pjrt_options *o, lg_err *err);

/* Load the library `path`, check its version and table, initialise it.  The environment is the caller's to set before.
 * LG_E_IO: it cannot be loaded; LG_E_FORMAT: it is no plugin, or its table is too short; LG_E_UNSUPPORTED: another major
 * version; LG_E_BACKEND: it failed.  The caller owns *p; closing it leaves the library where it is. */
lg_status lg_pjrt_plugin_open(const char *path, lg_pjrt_plugin **p, lg_err *err);
void lg_pjrt_plugin_close(lg_pjrt_plugin **p);

/* "API 0.115, StableHLO 1.20.0": for messages and logs; borrowed. */
const char *lg_pjrt_plugin_about(const lg_pjrt_plugin *p);

/* A fingerprint of the library: its file, version and attributes, and the environment that it compiles by. */
uint64_t lg_pjrt_plugin_build(const lg_pjrt_plugin *p);

/* Wait for an event, destroy it, and report its error.  NULL is LG_OK. */
lg_status lg_pjrt_await(const lg_pjrt_plugin *p, lg_pjrt_event *e, const char *what,
                        lg_err *err);

/* Devices that are not here, to compile for: "tpu7x:2x2x1". */
lg_status lg_pjrt_topo_open(lg_pjrt_plugin *p, const char *name, const lg_pjrt_options *o,
                            lg_pjrt_topo **t, lg_err *err);
void lg_pjrt_topo_close(lg_pjrt_topo **t);

typedef struct lg_pjrt_device_info {
    int id;
    char kind[64];        /* "cpu", "TPU7x" */
    int64_t coord[3];     /* chip; all 0 where the plugin has none */
    int64_t core;         /* on the chip */
    int64_t memory_bytes; /* as the plugin states it; 0: not stated */
} lg_pjrt_device_info;

uint32_t lg_pjrt_topo_n(const lg_pjrt_topo *t);
void lg_pjrt_topo_info(const lg_pjrt_topo *t, uint32_t i, lg_pjrt_device_info *info);

/* ---- client.c ---- */

/* Open the devices of this process.  LG_E_BACKEND with the plugin's message, LG_E_ARG for an option that it does not know. */
lg_status lg_pjrt_client_open(lg_pjrt_plugin *p, const lg_pjrt_options *o, lg_pjrt_client **c,
                              lg_err *err);
void lg_pjrt_client_close(lg_pjrt_client **c);

uint32_t lg_pjrt_client_n(const lg_pjrt_client *c); /* devices that this process drives */
const char *lg_pjrt_client_platform(const lg_pjrt_client *c);
lg_pjrt_plugin *lg_pjrt_client_plugin(const lg_pjrt_client *c);
void lg_pjrt_client_info(const lg_pjrt_client *c, uint32_t device, lg_pjrt_device_info *info);

typedef struct lg_pjrt_memory {
    uint64_t used_bytes, limit_bytes; /* 0: the plugin does not say */
} lg_pjrt_memory;
void lg_pjrt_client_memory(const lg_pjrt_client *c, uint32_t device, lg_pjrt_memory *m);

/* ---- options.c ---- */

/* How to compile.  n_replica devices run the text with their own arguments (collectives name replicas); or n_partition
 * devices share one text with Shardy annotations. */
typedef struct lg_pjrt_compile {
    uint32_t n_replica,
        n_partition;   /* >= 1; device i of the program is device i of the client */
    const char *flags; /* "name=value,name=value" of XLA flags for this program; NULL: none */
} lg_pjrt_compile;

/* The bytes of CompileOptionsProto.  LG_E_ARG, LG_E_NOMEM. */
lg_status lg_pjrt_compile_bytes(const lg_pjrt_compile *how, lg_buf *out, lg_err *err);

/* ---- program.c ---- */

/* Compile StableHLO text for the client's devices.  LG_E_FORMAT: the text is refused (the message says where);
 * LG_E_NOMEM: it does not fit; LG_E_UNSUPPORTED: the plugin lacks something in it; else LG_E_BACKEND. */
lg_status lg_pjrt_exe_compile(lg_pjrt_client *c, const char *text, size_t len_bytes,
                              const lg_pjrt_compile *how, lg_pjrt_exe **exe, lg_err *err);

/* The same for a topology: to look at, not to run. */
lg_status lg_pjrt_exe_compile_for(lg_pjrt_topo *t, const char *text, size_t len_bytes,
                                  const lg_pjrt_compile *how, lg_pjrt_exe **exe, lg_err *err);
void lg_pjrt_exe_close(lg_pjrt_exe **exe);

uint32_t lg_pjrt_exe_n_out(const lg_pjrt_exe *exe);
uint32_t lg_pjrt_exe_n_dev(const lg_pjrt_exe *exe);

/* What the compiler states, bytes on one device. */
typedef struct lg_pjrt_exe_memory {
    int64_t code_bytes, arg_bytes, out_bytes, alias_bytes, temp_bytes, peak_bytes, total_bytes;
} lg_pjrt_exe_memory;
lg_status lg_pjrt_exe_memory_of(const lg_pjrt_exe *exe, lg_pjrt_exe_memory *m, lg_err *err);

/* The compiler's cost analysis: fn is called for each number ("flops", "bytes accessed", ...). */
lg_status lg_pjrt_exe_cost(const lg_pjrt_exe *exe,
                           void (*fn)(void *ctx, const char *name, double value), void *ctx,
                           lg_err *err);

/* The optimised program as the plugin gives it (a serialised proto), appended to *out. */
lg_status lg_pjrt_exe_optimised(const lg_pjrt_exe *exe, lg_buf *out, lg_err *err);

/* Start a program on its devices.  arg[dev * n_arg + a] and out[dev * n_out + o]; arguments that the text ties to a result are
 * given away unless listed in keep (ascending indices), and their handles stay the caller's to destroy.  done[dev]: NULL, or
 * events that the caller awaits; results can be used by the next program at once.  LG_E_BACKEND: nothing was made. */
typedef struct lg_pjrt_call {
    lg_pjrt_buf *const *arg;
    uint32_t n_arg;
    const int64_t *keep;
    uint32_t n_keep;
    lg_pjrt_buf **out;
    lg_pjrt_event **done;
} lg_pjrt_call;
lg_status lg_pjrt_exe_run(lg_pjrt_exe *exe, const lg_pjrt_call *call, lg_err *err);

/* ---- cache.c ---- */

/* Where compiled programs are kept, and what came of it. */
typedef struct lg_pjrt_cache {
    const char *dir;      /* NULL: nowhere */
    uint64_t limit_bytes; /* of all files together; 0: LG_PJRT_CACHE_BYTES */
    bool refused;         /* this plugin cannot write or read programs: said once */
    uint32_t n_hit, n_miss, n_unread;
} lg_pjrt_cache;

#define LG_PJRT_CACHE_BYTES ((uint64_t)16 << 30)

/* lg_pjrt_exe_compile through the cache.  A file that does not fit or that the plugin cannot read is named, removed and made again; when
 * LG_PJRT_CACHE_UNREAD of them could not be read and none could, or the plugin has no way to, nothing is kept any more.  After
 * writing, the files that were not used for the longest time go until the rest is within the limit; the new one stays. */
#define LG_PJRT_CACHE_UNREAD 3
lg_status lg_pjrt_cache_compile(lg_pjrt_cache *k, lg_pjrt_client *c, const char *text,
                                size_t len_bytes, const lg_pjrt_compile *how, lg_pjrt_exe **exe,
                                lg_err *err);

/* ---- buffer.c ---- */

/* Copy row-major host elements to a device; returns when `data` may change. */
lg_status lg_pjrt_buf_put(lg_pjrt_client *c, uint32_t device, const lg_pjrt_dims *d,
                          const void *data, lg_pjrt_buf **buf, lg_err *err);

/* Copy a buffer to the host, row-major; waits until it is computed.  n_bytes is lg_pjrt_dims_bytes. */
lg_status lg_pjrt_buf_get(lg_pjrt_client *c, lg_pjrt_buf *buf, const lg_pjrt_dims *d, void *to,
                          lg_err *err);
void lg_pjrt_buf_free(lg_pjrt_client *c, lg_pjrt_buf **buf);

/* The address of a buffer on its device, to see whether memory was used again; 0 where the plugin does not tell. */
uintptr_t lg_pjrt_buf_address(lg_pjrt_client *c, lg_pjrt_buf *buf);
bool lg_pjrt_buf_is_deleted(lg_pjrt_client *c, lg_pjrt_buf *buf);

/* A buffer filled in pieces, in ascending order, so that the host never holds all of it. */
typedef struct lg_pjrt_stream lg_pjrt_stream;
lg_status lg_pjrt_stream_open(lg_pjrt_client *c, uint32_t device, const lg_pjrt_dims *d,
                              lg_pjrt_stream **s, lg_err *err);
lg_status lg_pjrt_stream_put(lg_pjrt_stream *s, const void *data, size_t n_bytes, lg_err *err);
/* End: *buf is the caller's when everything was put.  LG_E_ARG when bytes are missing.  Closes s in any case. */
lg_status lg_pjrt_stream_close(lg_pjrt_stream **s, lg_pjrt_buf **buf, lg_err *err);

/* Bytes between host and devices since the client was opened. */
typedef struct lg_pjrt_traffic {
    uint64_t up_bytes, down_bytes, n_up, n_down;
} lg_pjrt_traffic;
lg_pjrt_traffic lg_pjrt_client_traffic(const lg_pjrt_client *c);

#endif
