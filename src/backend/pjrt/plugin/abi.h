/* abi.h - the part of the PJRT C interface that we use, in our own declarations.
 *
 * Written from the interface's published numbers (API 0.114, 64-bit, little endian); offsets are asserted below.  A plugin's
 * GetPjrtApi() gives a table of functions.  Each takes one pointer to a struct of arguments and returns an error object, NULL for
 * success; slots 0 and 1 return nothing.  Every struct begins with its size and a list of extensions; zero means "not set".
 *
 * Sizes.  A plugin refuses a struct that is smaller than the one it knows and takes a larger one.  Both sides only ever append.
 * So each struct of arguments is made with LG_ABI_ARGS, which adds zeroed spare bytes and states the size with them: an older plugin
 * does not look at the end, and a newer one finds its new fields unset, or has room for what it writes.
 * Test: tests/unit/test_pjrt.c */
#ifndef LG_BACKEND_PJRT_PLUGIN_ABI_H
#define LG_BACKEND_PJRT_PLUGIN_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LG_ABI_SPARE 8 /* words after each struct of arguments */

/* Declare `v` with v.arg a zeroed T that states its size. */
#define LG_ABI_ARGS(T, v)                                                                      \
    struct {                                                                                   \
        T arg;                                                                                 \
        uint64_t spare[LG_ABI_SPARE];                                                          \
    } v = {.arg = {.size = sizeof v}}

/* Slots of the table.  EXE is a compiled program, LOADED one on devices, STREAM a transfer manager. */
typedef enum lg_abi_slot {
    LG_ABI_ERROR_DESTROY = 0,
    LG_ABI_ERROR_MESSAGE = 1,
    LG_ABI_ERROR_CODE = 2,
    LG_ABI_INITIALIZE = 3,
    LG_ABI_ATTRIBUTES = 4,
    LG_ABI_EVENT_DESTROY = 5,
    LG_ABI_EVENT_AWAIT = 8,
    LG_ABI_CLIENT_CREATE = 10,
    LG_ABI_CLIENT_DESTROY = 11,
    LG_ABI_CLIENT_PLATFORM = 12,
    LG_ABI_CLIENT_DEVICES = 16, /* those of this process */
    LG_ABI_CLIENT_COMPILE = 20,
    LG_ABI_BUFFER_FROM_HOST = 22,
    LG_ABI_DESC_ID = 23,
    LG_ABI_DESC_ATTRIBUTES = 25,
    LG_ABI_DESC_KIND = 26,
    LG_ABI_DEVICE_DESC = 29,
    LG_ABI_DEVICE_MEMORY = 33,
    LG_ABI_DEVICE_STATS = 34,
    LG_ABI_EXE_DESTROY = 40,
    LG_ABI_EXE_N_OUT = 44,
    LG_ABI_EXE_COST = 46,
    LG_ABI_EXE_OPTIMISED = 48,
    LG_ABI_EXE_SERIALIZE = 49,
    LG_ABI_LOADED_DESTROY = 50,
    LG_ABI_LOADED_EXE = 51,
    LG_ABI_LOADED_EXECUTE = 55,
    LG_ABI_DESERIALIZE = 56,
    LG_ABI_BUFFER_DESTROY = 58,
    LG_ABI_BUFFER_IS_DELETED = 68,
    LG_ABI_BUFFER_TO_HOST = 70,
    LG_ABI_BUFFER_ADDRESS = 73,
    LG_ABI_TOPO_CREATE = 82,
    LG_ABI_TOPO_DESTROY = 83,
    LG_ABI_TOPO_DESCS = 86,
    LG_ABI_COMPILE = 89,
    LG_ABI_EXE_MEMORY = 96,
    LG_ABI_STREAM_DESTROY = 101,
    LG_ABI_STREAM_PUT = 102,
    LG_ABI_STREAM_CREATE = 103,
    LG_ABI_STREAM_BUFFER = 104,
    LG_ABI_N_SLOT
} lg_abi_slot;

/* The table.  fn has (size - 40) / 8 entries. */
typedef struct lg_abi_table {
    size_t size;
    void *ext;
    size_t version_size;
    void *version_ext;
    int32_t major, minor;
    void *(*fn[])(void *args);
} lg_abi_table;

#define LG_ABI_HEAD                                                                            \
    size_t size;                                                                               \
    void *ext

enum { LG_ABI_TEXT = 0, LG_ABI_INT = 1, LG_ABI_LIST = 2, LG_ABI_FLOAT = 3, LG_ABI_BOOL = 4 };

/* An option, attribute or property.  In arrays, so without spare bytes. */
typedef struct lg_abi_named {
    LG_ABI_HEAD;
    const char *name;
    size_t name_size;
    int32_t type, pad_;
    union {
        const char *text;
        int64_t i;
        const int64_t *list;
        float f;
        bool b;
    } v;
    size_t value_size; /* characters, or elements of a list; else 1 */
} lg_abi_named;

/* Shapes that many calls share. */
typedef struct {
    LG_ABI_HEAD;
} lg_abi_none;
typedef struct {
    LG_ABI_HEAD;
    void *obj;
} lg_abi_one; /* destroy, await */
typedef struct {
    LG_ABI_HEAD;
    void *obj;
    const char *text;
    size_t n;
} lg_abi_text; /* message, platform, kind */
typedef struct {
    LG_ABI_HEAD;
    void *obj;
    void *out;
} lg_abi_get; /* one object, or a size_t, comes back */
typedef struct {
    LG_ABI_HEAD;
    void *obj;
    void **list;
    size_t n;
} lg_abi_list;
typedef struct {
    LG_ABI_HEAD;
    void *obj;
    int32_t i;
} lg_abi_int; /* error code, device id */
typedef struct {
    LG_ABI_HEAD;
    void *obj;
    bool b;
} lg_abi_bool;
typedef struct {
    LG_ABI_HEAD;
    const lg_abi_named *named;
    size_t n;
} lg_abi_attributes; /* of the plugin */
typedef struct {
    LG_ABI_HEAD;
    void *obj;
    size_t n;
    const lg_abi_named *named;
} lg_abi_properties; /* of a device, of a program's cost */

typedef struct {
    LG_ABI_HEAD;
    const lg_abi_named *named;
    size_t n;
    void *kv_get, *kv_get_arg, *kv_put, *kv_put_arg;
    void *client;
    void *kv_try, *kv_try_arg;
} lg_abi_client_create;

typedef struct {
    LG_ABI_HEAD;
    const char *code;
    size_t code_size;
    const char *format;
    size_t format_size;
} lg_abi_program;

typedef struct {
    LG_ABI_HEAD;
    void *client;
    const lg_abi_program *program;
    const char *options;
    size_t options_size;
    void *loaded;
} lg_abi_client_compile;

typedef struct {
    LG_ABI_HEAD;
    void *topo;
    const lg_abi_program *program;
    const char *options;
    size_t options_size;
    void *client, *exe;
} lg_abi_compile;

typedef struct {
    LG_ABI_HEAD;
    const int64_t *minor_to_major;
    size_t n;
    const int64_t *tile_dims;
    const size_t *tile_dim_sizes;
    size_t n_tile;
} lg_abi_tiled;

typedef struct {
    LG_ABI_HEAD;
    lg_abi_tiled tiled; /* the larger one of a union */
    int32_t type;       /* 0: tiled */
} lg_abi_layout;

typedef struct {
    LG_ABI_HEAD;
    void *client;
    const void *data;
    int32_t type, pad_;
    const int64_t *dims;
    size_t n_dim;
    const int64_t *strides;
    size_t n_stride;
    int32_t semantics, pad2_; /* 0: data is read during the call */
    void *device, *memory;
    lg_abi_layout *layout;
    void *done, *buffer;
} lg_abi_from_host;

typedef struct {
    LG_ABI_HEAD;
    void *buffer;
    lg_abi_layout *layout;
    void *to;
    size_t to_size;
    void *event;
} lg_abi_to_host;

typedef struct {
    LG_ABI_HEAD;
    void *obj; /* device */
    int64_t used;
    int64_t peak;
    bool peak_set, pad_[7];
    int64_t other[4]; /* allocations, their largest, each with a flag */
    int64_t limit;
    bool limit_set, pad2_[7];
    int64_t rest[14]; /* reserved, pool and largest free bytes */
} lg_abi_device_stats;

typedef struct {
    LG_ABI_HEAD;
    void *send, *recv;
    size_t n_send, n_recv;
    int32_t launch, pad_;
    const int64_t *keep;
    size_t n_keep;
    void *context;
    const char *location;
    size_t n_task;
    int *task;
    int64_t *incarnation;
    void *slices;
    bool major_to_minor;
    void *callbacks;
    size_t n_callback;
} lg_abi_execute_options;

typedef struct {
    LG_ABI_HEAD;
    void *loaded;
    lg_abi_execute_options *options;
    void *const *const *args;
    size_t n_dev, n_arg;
    void **const *outs;
    void **events;
    void *device;
} lg_abi_execute;

typedef struct {
    LG_ABI_HEAD;
    void *exe;
    int64_t code, arg, out, alias, temp;
    int64_t host_code, host_arg, host_out, host_alias, host_temp;
    int64_t peak, total, total_alloc, indefinite, peak_unpadded;
} lg_abi_exe_memory;

typedef struct {
    LG_ABI_HEAD;
    void *exe;
    const char *bytes;
    size_t n;
    void *serialized;
    void (*deleter)(void *serialized);
} lg_abi_serialize;

typedef struct {
    LG_ABI_HEAD;
    void *client;
    const char *bytes;
    size_t n;
    void *loaded;
    const char *options;
    size_t options_size;
    void *load_options;
} lg_abi_deserialize;

typedef struct {
    LG_ABI_HEAD;
    void *exe;
    lg_abi_program *program;
} lg_abi_optimised;

typedef struct {
    LG_ABI_HEAD;
    const char *name;
    size_t name_size;
    const lg_abi_named *named;
    size_t n;
    void *topo;
} lg_abi_topo_create;

/* In arrays, so without spare bytes; `size` ends with the last field. */
typedef struct {
    LG_ABI_HEAD;
    const int64_t *dims;
    size_t n_dim;
    int32_t type, pad_;
} lg_abi_shape;
#define LG_ABI_SHAPE_SIZE 36

typedef struct {
    LG_ABI_HEAD;
    void *client;
    const lg_abi_shape *shape;
    size_t n_shape;
    lg_abi_layout **layout;
    size_t n_layout;
    void *memory, *stream;
} lg_abi_stream_create;

typedef struct {
    LG_ABI_HEAD;
    void *stream;
    int32_t index, pad_;
    void *buffer;
} lg_abi_stream_buffer;

typedef struct {
    LG_ABI_HEAD;
    void *stream;
    int32_t index, pad_;
    const void *data;
    int64_t offset, n;
    bool last;
    void *done;
} lg_abi_stream_put;

#define LG_ABI_AT(T, f, at) _Static_assert(offsetof(T, f) == (at), #T "." #f)
LG_ABI_AT(lg_abi_table, major, 32);
LG_ABI_AT(lg_abi_table, minor, 36);
LG_ABI_AT(lg_abi_table, fn, 40);
LG_ABI_AT(lg_abi_named, type, 32);
LG_ABI_AT(lg_abi_named, v, 40);
_Static_assert(sizeof(lg_abi_named) == 56, "stride of named values");
_Static_assert(sizeof(lg_abi_shape) == 40, "stride of shapes");
LG_ABI_AT(lg_abi_text, n, 32);
LG_ABI_AT(lg_abi_get, out, 24);
LG_ABI_AT(lg_abi_list, n, 32);
LG_ABI_AT(lg_abi_int, i, 24);
LG_ABI_AT(lg_abi_attributes, n, 24);
LG_ABI_AT(lg_abi_properties, named, 32);
LG_ABI_AT(lg_abi_client_create, client, 64);
LG_ABI_AT(lg_abi_program, format_size, 40);
LG_ABI_AT(lg_abi_client_compile, loaded, 48);
LG_ABI_AT(lg_abi_compile, exe, 56);
LG_ABI_AT(lg_abi_tiled, n_tile, 48);
LG_ABI_AT(lg_abi_layout, type, 72);
LG_ABI_AT(lg_abi_from_host, semantics, 72);
LG_ABI_AT(lg_abi_from_host, device, 80);
LG_ABI_AT(lg_abi_from_host, buffer, 112);
LG_ABI_AT(lg_abi_to_host, event, 48);
LG_ABI_AT(lg_abi_device_stats, limit, 80);
LG_ABI_AT(lg_abi_device_stats, limit_set, 88);
LG_ABI_AT(lg_abi_execute_options, keep, 56);
LG_ABI_AT(lg_abi_execute_options, n_callback, 136);
LG_ABI_AT(lg_abi_execute, device, 72);
LG_ABI_AT(lg_abi_exe_memory, peak, 104);
LG_ABI_AT(lg_abi_exe_memory, peak_unpadded, 136);
LG_ABI_AT(lg_abi_serialize, deleter, 48);
LG_ABI_AT(lg_abi_deserialize, load_options, 64);
LG_ABI_AT(lg_abi_topo_create, topo, 48);
LG_ABI_AT(lg_abi_shape, type, 32);
LG_ABI_AT(lg_abi_stream_create, stream, 64);
LG_ABI_AT(lg_abi_stream_buffer, buffer, 32);
LG_ABI_AT(lg_abi_stream_put, done, 64);
#undef LG_ABI_AT

#endif
