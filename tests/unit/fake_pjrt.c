/* fake_pjrt.c - a PJRT plugin for tests: it computes next to nothing and checks what it is given.
 *
 * Every struct's size is compared with the size that the interface has; objects carry a mark and are counted, so a leak, a double
 * destroy or a destroyed argument is seen.  Programs are texts "fake results=N tied=K": result i is argument i, of which the
 * first K are given away.  LG_FAKE_PJRT in the environment holds words that change it, read at each GetPjrtApi:
 *   major   another major version          short   a table that ends early      old     one without topologies
 *   grown   structs have 32 bytes more     hole    no streams                   nofile  programs cannot be written
 *   noread  programs cannot be read        fail    clients cannot be made */
#include "backend/pjrt/plugin/abi.h"
#include "fake_pjrt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ERROR = 0xe1, EVENT, CLIENT, BUFFER, EXE, LOADED, TOPO, STREAM, DEAD };
#define N_DEVICE 3
#define FN       128

typedef struct object {
    int mark;
    int code;
    char text[256];
    /* buffer */
    int type;
    size_t n_dim, n_bytes;
    int64_t dim[8];
    uint8_t *data;
    bool given;
    struct object *of; /* client of a buffer, buffer of a stream */
    size_t done;
    /* program */
    size_t n_result, n_tied;
    uint32_t n_dev;
} object;

static int alive;
static size_t grown;

FAKE_API int fake_pjrt_alive(void) {
    return alive;
}

static object *make(int mark) {
    object *o = calloc(1, sizeof *o);
    if (!o) abort();
    o->mark = mark;
    alive++;
    return o;
}

static object *is(void *p, int mark) {
    object *o = p;
    if (!o || o->mark != mark) {
        fprintf(stderr, "fake_pjrt: an object is not what it should be (%x)\n", mark);
        abort();
    }
    return o;
}

static void *destroy(void *p, int mark) {
    object *o = is(p, mark);
    free(o->data);
    o->mark = DEAD;
    free(o);
    alive--;
    return NULL;
}

static void *fail(int code, const char *text) {
    object *o = make(ERROR);
    o->code = code;
    snprintf(o->text, sizeof o->text, "%s\nand more lines", text);
    return o;
}

/* Refuse a struct that is smaller than `least`, as plugins do. */
static void *check_size(const void *args, size_t least, const char *name) {
    size_t size;
    char text[200];
    memcpy(&size, args, sizeof size);
    least += grown;
    if (size >= least) return NULL;
    snprintf(text, sizeof text, "Unexpected PJRT_%s size: expected %zu, got %zu.", name, least,
             size);
    return fail(3, text);
}

#define SIZE(n, name)                                                                          \
    do {                                                                                       \
        void *bad_ = check_size(args, n, name);                                                \
        if (bad_) return bad_;                                                                 \
    } while (0)

/* ---- errors, events, plugin ---- */

static void *error_destroy(void *args) {
    return destroy(((lg_abi_one *)args)->obj, ERROR);
}

static void *error_message(void *args) {
    lg_abi_text *a = args;
    object *o = is(a->obj, ERROR);
    a->text = o->text;
    a->n = strlen(o->text);
    return NULL;
}

static void *error_code(void *args) {
    SIZE(28, "Error_GetCode_Args");
    ((lg_abi_int *)args)->i = is(((lg_abi_int *)args)->obj, ERROR)->code;
    return NULL;
}

static void *initialize(void *args) {
    SIZE(16, "Plugin_Initialize_Args");
    return NULL;
}

static void *attributes(void *args) {
    static const int64_t version[3] = {1, 2, 3};
    static const lg_abi_named named[2] = {{.size = 56,
                                           .name = "stablehlo_current_version",
                                           .name_size = 25,
                                           .type = LG_ABI_LIST,
                                           .v.list = version,
                                           .value_size = 3},
                                          {.size = 56,
                                           .name = "build",
                                           .name_size = 5,
                                           .type = LG_ABI_TEXT,
                                           .v.text = "x1",
                                           .value_size = 2}};
    SIZE(32, "Plugin_Attributes_Args");
    ((lg_abi_attributes *)args)->named = named;
    ((lg_abi_attributes *)args)->n = 2;
    return NULL;
}

static void *event_destroy(void *args) {
    SIZE(24, "Event_Destroy_Args");
    return destroy(((lg_abi_one *)args)->obj, EVENT);
}

static void *event_await(void *args) {
    SIZE(24, "Event_Await_Args");
    object *e = is(((lg_abi_one *)args)->obj, EVENT);
    return e->code ? fail(e->code, "it did not work") : NULL;
}

/* ---- clients and devices ---- */

static object device[N_DEVICE];

static void *client_create(void *args) {
    lg_abi_client_create *a = args;
    SIZE(88, "Client_Create_Args");
    if (getenv("LG_FAKE_PJRT") && strstr(getenv("LG_FAKE_PJRT"), "fail"))
        return fail(14, "No device found.");
    for (size_t i = 0; i < a->n; i++) {
        bool known = a->named[i].size == 56 && a->named[i].name_size == 5 &&
                     !memcmp(a->named[i].name, "count", 5);
        if (!known) return fail(3, "Unexpected option name passed to PJRT_Client_Create");
    }
    a->client = make(CLIENT);
    return NULL;
}

static void *client_destroy(void *args) {
    SIZE(24, "Client_Destroy_Args");
    return destroy(((lg_abi_one *)args)->obj, CLIENT);
}

static void *client_platform(void *args) {
    lg_abi_text *a = args;
    SIZE(40, "Client_PlatformName_Args");
    is(a->obj, CLIENT);
    a->text = "fakeXX"; /* no end: the size counts */
    a->n = 4;
    return NULL;
}

static void *devices(void *args) {
    static void *list[N_DEVICE];
    lg_abi_list *a = args;
    SIZE(40, "Client_AddressableDevices_Args");
    for (int i = 0; i < N_DEVICE; i++) {
        list[i] = &device[i];
        device[i].code = i;
    }
    a->list = list;
    a->n = N_DEVICE;
    return NULL;
}

static void *device_desc(void *args) {
    SIZE(32, "Device_GetDescription_Args");
    ((lg_abi_get *)args)->out = ((lg_abi_get *)args)->obj;
    return NULL;
}

static void *desc_id(void *args) {
    SIZE(28, "DeviceDescription_Id_Args");
    ((lg_abi_int *)args)->i = ((object *)((lg_abi_int *)args)->obj)->code;
    return NULL;
}

static void *desc_kind(void *args) {
    SIZE(40, "DeviceDescription_Kind_Args");
    ((lg_abi_text *)args)->text = "FAKE7";
    ((lg_abi_text *)args)->n = 5;
    return NULL;
}

static void *desc_attributes(void *args) {
    static const int64_t coords[3] = {4, 5, 6};
    static const lg_abi_named named[3] = {{.size = 56,
                                           .name = "coords",
                                           .name_size = 6,
                                           .type = LG_ABI_LIST,
                                           .v.list = coords,
                                           .value_size = 3},
                                          {.size = 56,
                                           .name = "core_on_chip",
                                           .name_size = 12,
                                           .type = LG_ABI_INT,
                                           .v.i = 1,
                                           .value_size = 1},
                                          {.size = 56,
                                           .name = "device_memory_bytes_limit",
                                           .name_size = 25,
                                           .type = LG_ABI_INT,
                                           .v.i = 1000,
                                           .value_size = 1}};
    SIZE(40, "DeviceDescription_Attributes_Args");
    ((lg_abi_properties *)args)->named = named;
    ((lg_abi_properties *)args)->n = 3;
    return NULL;
}

static void *device_memory(void *args) {
    SIZE(32, "Device_DefaultMemory_Args");
    ((lg_abi_get *)args)->out = ((lg_abi_get *)args)->obj;
    return NULL;
}

static void *device_stats(void *args) {
    lg_abi_device_stats *a = args;
    SIZE(201, "Device_MemoryStats_Args");
    a->used = 12;
    a->limit = 345;
    a->limit_set = true;
    return NULL;
}

static void *topo_create(void *args) {
    lg_abi_topo_create *a = args;
    SIZE(56, "TopologyDescription_Create_Args");
    if (a->name_size != 6 || memcmp(a->name, "fake:2", 6) != 0)
        return fail(3, "Invalid external name.");
    a->topo = make(TOPO);
    return NULL;
}

static void *topo_destroy(void *args) {
    SIZE(24, "TopologyDescription_Destroy_Args");
    return destroy(((lg_abi_one *)args)->obj, TOPO);
}

/* ---- programs ---- */

static void *compile_text(const lg_abi_program *p, const char *options, size_t options_size,
                          int mark, void **out) {
    size_t n_result, n_tied;
    char text[64];
    if (p->size < 48 || p->format_size != 4 || memcmp(p->format, "mlir", 4) != 0)
        return fail(3, "no such format");
    if (!options || options_size < 6) return fail(13, "no options");
    if (p->code_size == 3 && !memcmp(p->code, "big", 3))
        return fail(8, "Ran out of memory: 9 of 8 bytes.");
    snprintf(text, sizeof text, "%.*s", (int)p->code_size, p->code);
    if (sscanf(text, "fake results=%zu tied=%zu", &n_result, &n_tied) != 2)
        return fail(2, "-:1:1: error: expected 'fake'");
    object *e = make(mark);
    e->n_result = n_result;
    e->n_tied = n_tied;
    *out = e;
    return NULL;
}

static void *client_compile(void *args) {
    lg_abi_client_compile *a = args;
    SIZE(56, "Client_Compile_Args");
    is(a->client, CLIENT);
    return compile_text(a->program, a->options, a->options_size, LOADED, &a->loaded);
}

static void *compile(void *args) {
    lg_abi_compile *a = args;
    SIZE(64, "Compile_Args");
    is(a->topo, TOPO);
    return compile_text(a->program, a->options, a->options_size, EXE, &a->exe);
}

static void *loaded_exe(void *args) {
    lg_abi_get *a = args;
    SIZE(32, "LoadedExecutable_GetExecutable_Args");
    object *l = is(a->obj, LOADED), *e = make(EXE);
    e->n_result = l->n_result;
    e->n_tied = l->n_tied;
    a->out = e;
    return NULL;
}

static void *loaded_destroy(void *args) {
    SIZE(24, "LoadedExecutable_Destroy_Args");
    return destroy(((lg_abi_one *)args)->obj, LOADED);
}

static void *exe_destroy(void *args) {
    SIZE(24, "Executable_Destroy_Args");
    return destroy(((lg_abi_one *)args)->obj, EXE);
}

static void *exe_n_out(void *args) {
    lg_abi_get *a = args;
    SIZE(32, "Executable_NumOutputs_Args");
    a->out = (void *)(uintptr_t)is(a->obj, EXE)->n_result;
    return NULL;
}

static void *exe_memory(void *args) {
    lg_abi_exe_memory *a = args;
    SIZE(144, "Executable_GetCompiledMemoryStats_Args");
    is(a->exe, EXE);
    a->code = 1;
    a->arg = 2;
    a->out = 3;
    a->alias = 4;
    a->temp = 5;
    a->peak = 6;
    a->total = 7;
    return NULL;
}

static void *exe_cost(void *args) {
    static const lg_abi_named named[2] = {{.size = 56,
                                           .name = "flops",
                                           .name_size = 5,
                                           .type = LG_ABI_FLOAT,
                                           .v.f = 2.5f,
                                           .value_size = 1},
                                          {.size = 56,
                                           .name = "bytes accessed",
                                           .name_size = 14,
                                           .type = LG_ABI_INT,
                                           .v.i = 77,
                                           .value_size = 1}};
    SIZE(40, "Executable_GetCostAnalysis_Args");
    is(((lg_abi_properties *)args)->obj, EXE);
    ((lg_abi_properties *)args)->named = named;
    ((lg_abi_properties *)args)->n = 2;
    return NULL;
}

static void *exe_optimised(void *args) {
    lg_abi_optimised *a = args;
    SIZE(32, "Executable_OptimizedProgram_Args");
    is(a->exe, EXE);
    if (a->program->code) memcpy((void *)(uintptr_t)a->program->code, "proto", 5);
    a->program->code_size = 5;
    return NULL;
}

static void forget(void *serialized) {
    free(serialized);
    alive--;
}

static void *exe_serialize(void *args) {
    lg_abi_serialize *a = args;
    SIZE(56, "Executable_Serialize_Args");
    object *e = is(a->exe, EXE);
    if (getenv("LG_FAKE_PJRT") && strstr(getenv("LG_FAKE_PJRT"), "nofile"))
        return fail(12, "Not implemented.");
    char *s = malloc(64);
    if (!s) abort();
    a->n = (size_t)snprintf(s, 64, "fake results=%zu tied=%zu", e->n_result, e->n_tied);
    a->bytes = a->serialized = s;
    a->deleter = forget;
    alive++;
    return NULL;
}

static void *deserialize(void *args) {
    lg_abi_deserialize *a = args;
    lg_abi_program p = {
        .size = 48, .code = a->bytes, .code_size = a->n, .format = "mlir", .format_size = 4};
    SIZE(72, "Executable_DeserializeAndLoad_Args");
    is(a->client, CLIENT);
    if (getenv("LG_FAKE_PJRT") && strstr(getenv("LG_FAKE_PJRT"), "noread"))
        return fail(12, "Not implemented.");
    if (getenv("LG_FAKE_PJRT") && strstr(getenv("LG_FAKE_PJRT"), "stale"))
        return fail(9, "The program is of another version.");
    return compile_text(&p, "123456", 6, LOADED, &a->loaded);
}

static object *copy_of(const object *b) {
    object *o = make(BUFFER);
    o->type = b->type;
    o->n_dim = b->n_dim;
    memcpy(o->dim, b->dim, sizeof o->dim);
    o->n_bytes = b->n_bytes;
    o->data = malloc(b->n_bytes);
    if (!o->data) abort();
    memcpy(o->data, b->data, b->n_bytes);
    return o;
}

static bool is_kept(const lg_abi_execute_options *o, size_t i) {
    for (size_t j = 0; j < o->n_keep; j++)
        if (o->keep[j] == (int64_t)i) return true;
    return false;
}

static void *execute(void *args) {
    lg_abi_execute *a = args;
    SIZE(80, "LoadedExecutable_Execute_Args");
    object *l = is(a->loaded, LOADED);
    void *bad = check_size(a->options, 144, "ExecuteOptions");
    if (bad) return bad;
    for (size_t d = 0; d < a->n_dev; d++)
        for (size_t i = 0; i < a->n_arg; i++)
            if (is(a->args[d][i], BUFFER)->given)
                return fail(3, "Buffer has been deleted or donated.");
    if (a->n_arg < l->n_result) return fail(3, "too few arguments");
    for (size_t d = 0; d < a->n_dev; d++) {
        for (size_t i = 0; i < l->n_result; i++) {
            object *in = a->args[d][i], *out = copy_of(in);
            if (i < l->n_tied && !is_kept(a->options, i)) {
                free(out->data);
                out->data = in->data;
                in->data = NULL;
                in->given = true;
            }
            a->outs[d][i] = out;
        }
        if (a->events) a->events[d] = make(EVENT);
    }
    return NULL;
}

/* ---- buffers ---- */

static void *from_host(void *args) {
    lg_abi_from_host *a = args;
    SIZE(120, "Client_BufferFromHostBuffer_Args");
    is(a->client, CLIENT);
    if (a->type <= 0) abort(); /* as plugins do */
    object *b = make(BUFFER);
    b->type = a->type;
    b->n_dim = a->n_dim;
    b->n_bytes = a->type == 13 ? 2 : 4;
    for (size_t i = 0; i < a->n_dim; i++) b->n_bytes *= (size_t)(b->dim[i] = a->dims[i]);
    b->data = malloc(b->n_bytes);
    if (!b->data) abort();
    memcpy(b->data, a->data, b->n_bytes);
    a->buffer = b;
    a->done = make(EVENT);
    /* A first element of all ones fails later, in the event. */
    static const uint8_t ones[2] = {255, 255};
    if (memcmp(b->data, ones, 2) == 0) ((object *)a->done)->code = 13;
    return NULL;
}

static void *to_host(void *args) {
    lg_abi_to_host *a = args;
    SIZE(56, "Buffer_ToHostBuffer_Args");
    object *b = is(a->buffer, BUFFER);
    if (b->given) return fail(3, "Buffer has been deleted or donated.");
    if (!a->layout || a->layout->size < 76 || a->layout->type != 0 ||
        a->layout->tiled.size != 56 || a->layout->tiled.n != b->n_dim)
        return fail(3, "no such layout");
    for (size_t i = 0; i < b->n_dim; i++)
        if (a->layout->tiled.minor_to_major[i] != (int64_t)(b->n_dim - 1 - i))
            return fail(3, "not row-major");
    if (a->to_size != b->n_bytes) return fail(3, "wrong size");
    memcpy(a->to, b->data, b->n_bytes);
    a->event = make(EVENT);
    return NULL;
}

static void *buffer_destroy(void *args) {
    SIZE(24, "Buffer_Destroy_Args");
    return destroy(((lg_abi_one *)args)->obj, BUFFER);
}

static void *buffer_is_deleted(void *args) {
    SIZE(25, "Buffer_IsDeleted_Args");
    ((lg_abi_bool *)args)->b = is(((lg_abi_bool *)args)->obj, BUFFER)->given;
    return NULL;
}

static void *buffer_address(void *args) {
    SIZE(32, "Buffer_UnsafePointer_Args");
    ((lg_abi_get *)args)->out = is(((lg_abi_get *)args)->obj, BUFFER)->data;
    return NULL;
}

static void *stream_create(void *args) {
    lg_abi_stream_create *a = args;
    SIZE(72, "Client_CreateBuffersForAsyncHostToDevice_Args");
    is(a->client, CLIENT);
    if (a->n_shape != 1 || a->shape->size != 36 || !a->memory) return fail(3, "no such shape");
    object *s = make(STREAM), *b = make(BUFFER);
    b->type = a->shape->type;
    b->n_dim = a->shape->n_dim;
    b->n_bytes = b->type == 13 ? 2 : 4;
    for (size_t i = 0; i < b->n_dim; i++) b->n_bytes *= (size_t)(b->dim[i] = a->shape->dims[i]);
    b->data = calloc(1, b->n_bytes);
    s->of = b;
    a->stream = s;
    return NULL;
}

static void *stream_buffer(void *args) {
    SIZE(40, "AsyncHostToDeviceTransferManager_RetrieveBuffer_Args");
    ((lg_abi_stream_buffer *)args)->buffer =
        is(((lg_abi_stream_buffer *)args)->stream, STREAM)->of;
    return NULL;
}

static void *stream_put(void *args) {
    lg_abi_stream_put *a = args;
    SIZE(72, "AsyncHostToDeviceTransferManager_TransferData_Args");
    object *s = is(a->stream, STREAM), *b = is(s->of, BUFFER);
    if ((size_t)(a->offset + a->n) > b->n_bytes) return fail(11, "past the end");
    memcpy(b->data + a->offset, a->data, (size_t)a->n);
    s->done += (size_t)a->n;
    if (a->last != (s->done == b->n_bytes)) return fail(3, "the last piece is another");
    a->done = make(EVENT);
    return NULL;
}

static void *stream_destroy(void *args) {
    SIZE(24, "AsyncHostToDeviceTransferManager_Destroy_Args");
    return destroy(((lg_abi_one *)args)->obj, STREAM);
}

FAKE_API const lg_abi_table *GetPjrtApi(void) {
    static struct {
        lg_abi_table t;
        void *(*fn[FN])(void *args);
    } table;
    const char *how = getenv("LG_FAKE_PJRT") ? getenv("LG_FAKE_PJRT") : "";
    table.t = (lg_abi_table){.size = sizeof table,
                             .version_size = 24,
                             .major = strstr(how, "major") ? 1 : 0,
                             .minor = 114};
    grown = strstr(how, "grown") ? 32 : 0;
    void *(**fn)(void *) = table.fn;
    memset(table.fn, 0, sizeof table.fn);
    fn[LG_ABI_ERROR_DESTROY] = error_destroy;
    fn[LG_ABI_ERROR_MESSAGE] = error_message;
    fn[LG_ABI_ERROR_CODE] = error_code;
    fn[LG_ABI_INITIALIZE] = initialize;
    fn[LG_ABI_ATTRIBUTES] = attributes;
    fn[LG_ABI_EVENT_DESTROY] = event_destroy;
    fn[LG_ABI_EVENT_AWAIT] = event_await;
    fn[LG_ABI_CLIENT_CREATE] = client_create;
    fn[LG_ABI_CLIENT_DESTROY] = client_destroy;
    fn[LG_ABI_CLIENT_PLATFORM] = client_platform;
    fn[LG_ABI_CLIENT_DEVICES] = fn[LG_ABI_TOPO_DESCS] = devices;
    fn[LG_ABI_CLIENT_COMPILE] = client_compile;
    fn[LG_ABI_BUFFER_FROM_HOST] = from_host;
    fn[LG_ABI_DESC_ID] = desc_id;
    fn[LG_ABI_DESC_ATTRIBUTES] = desc_attributes;
    fn[LG_ABI_DESC_KIND] = desc_kind;
    fn[LG_ABI_DEVICE_DESC] = device_desc;
    fn[LG_ABI_DEVICE_MEMORY] = device_memory;
    fn[LG_ABI_DEVICE_STATS] = device_stats;
    fn[LG_ABI_EXE_DESTROY] = exe_destroy;
    fn[LG_ABI_EXE_N_OUT] = exe_n_out;
    fn[LG_ABI_EXE_COST] = exe_cost;
    fn[LG_ABI_EXE_OPTIMISED] = exe_optimised;
    fn[LG_ABI_EXE_SERIALIZE] = exe_serialize;
    fn[LG_ABI_LOADED_DESTROY] = loaded_destroy;
    fn[LG_ABI_LOADED_EXE] = loaded_exe;
    fn[LG_ABI_LOADED_EXECUTE] = execute;
    fn[LG_ABI_DESERIALIZE] = deserialize;
    fn[LG_ABI_BUFFER_DESTROY] = buffer_destroy;
    fn[LG_ABI_BUFFER_IS_DELETED] = buffer_is_deleted;
    fn[LG_ABI_BUFFER_TO_HOST] = to_host;
    fn[LG_ABI_BUFFER_ADDRESS] = buffer_address;
    fn[LG_ABI_TOPO_CREATE] = topo_create;
    fn[LG_ABI_TOPO_DESTROY] = topo_destroy;
    fn[LG_ABI_COMPILE] = compile;
    fn[LG_ABI_EXE_MEMORY] = exe_memory;
    if (!strstr(how, "hole")) {
        fn[LG_ABI_STREAM_DESTROY] = stream_destroy;
        fn[LG_ABI_STREAM_PUT] = stream_put;
        fn[LG_ABI_STREAM_CREATE] = stream_create;
        fn[LG_ABI_STREAM_BUFFER] = stream_buffer;
    }
    size_t head = offsetof(lg_abi_table, fn);
    if (strstr(how, "short")) table.t.size = head + 8 * LG_ABI_CLIENT_COMPILE;
    if (strstr(how, "old")) table.t.size = head + 8 * LG_ABI_TOPO_CREATE;
    return strstr(how, "notable") ? NULL : &table.t;
}
