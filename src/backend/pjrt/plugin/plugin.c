/* plugin.c - a plugin's library: load, check, call, and turn its errors into ours.
 *
 * In: a path.  Out: lg_pjrt_plugin; options as named values; topologies.  A table that is shorter than ours is fine as long as
 * the functions that are called are in it; lg_pjrt_call_slot looks every time.
 * Thread: any.  Memory: ours is small; the library stays mapped for good.  Test: tests/unit/test_pjrt.c */
#include "backend/pjrt/plugin/call.h"
#include "base/hash.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TABLE_HEAD offsetof(lg_abi_table, fn)

/* ---- calls ---- */

static const char *slot_name(lg_abi_slot slot) {
    static const char *const name[LG_ABI_N_SLOT] = {
        [LG_ABI_ERROR_DESTROY] = "Error_Destroy",
        [LG_ABI_ERROR_MESSAGE] = "Error_Message",
        [LG_ABI_ERROR_CODE] = "Error_GetCode",
        [LG_ABI_INITIALIZE] = "Plugin_Initialize",
        [LG_ABI_ATTRIBUTES] = "Plugin_Attributes",
        [LG_ABI_EVENT_DESTROY] = "Event_Destroy",
        [LG_ABI_EVENT_AWAIT] = "Event_Await",
        [LG_ABI_CLIENT_CREATE] = "Client_Create",
        [LG_ABI_CLIENT_DESTROY] = "Client_Destroy",
        [LG_ABI_CLIENT_PLATFORM] = "Client_PlatformName",
        [LG_ABI_CLIENT_DEVICES] = "Client_AddressableDevices",
        [LG_ABI_CLIENT_COMPILE] = "Client_Compile",
        [LG_ABI_BUFFER_FROM_HOST] = "Client_BufferFromHostBuffer",
        [LG_ABI_DESC_ID] = "DeviceDescription_Id",
        [LG_ABI_DESC_ATTRIBUTES] = "DeviceDescription_Attributes",
        [LG_ABI_DESC_KIND] = "DeviceDescription_Kind",
        [LG_ABI_DEVICE_DESC] = "Device_GetDescription",
        [LG_ABI_DEVICE_MEMORY] = "Device_DefaultMemory",
        [LG_ABI_DEVICE_STATS] = "Device_MemoryStats",
        [LG_ABI_EXE_DESTROY] = "Executable_Destroy",
        [LG_ABI_EXE_N_OUT] = "Executable_NumOutputs",
        [LG_ABI_EXE_COST] = "Executable_GetCostAnalysis",
        [LG_ABI_EXE_OPTIMISED] = "Executable_OptimizedProgram",
        [LG_ABI_EXE_SERIALIZE] = "Executable_Serialize",
        [LG_ABI_LOADED_DESTROY] = "LoadedExecutable_Destroy",
        [LG_ABI_LOADED_EXE] = "LoadedExecutable_GetExecutable",
        [LG_ABI_LOADED_EXECUTE] = "LoadedExecutable_Execute",
        [LG_ABI_DESERIALIZE] = "Executable_DeserializeAndLoad",
        [LG_ABI_BUFFER_DESTROY] = "Buffer_Destroy",
        [LG_ABI_BUFFER_IS_DELETED] = "Buffer_IsDeleted",
        [LG_ABI_BUFFER_TO_HOST] = "Buffer_ToHostBuffer",
        [LG_ABI_BUFFER_ADDRESS] = "Buffer_UnsafePointer",
        [LG_ABI_TOPO_CREATE] = "TopologyDescription_Create",
        [LG_ABI_TOPO_DESTROY] = "TopologyDescription_Destroy",
        [LG_ABI_TOPO_DESCS] = "TopologyDescription_GetDeviceDescriptions",
        [LG_ABI_COMPILE] = "Compile",
        [LG_ABI_EXE_MEMORY] = "Executable_GetCompiledMemoryStats",
        [LG_ABI_STREAM_DESTROY] = "AsyncHostToDeviceTransferManager_Destroy",
        [LG_ABI_STREAM_PUT] = "AsyncHostToDeviceTransferManager_TransferData",
        [LG_ABI_STREAM_CREATE] = "Client_CreateBuffersForAsyncHostToDevice",
        [LG_ABI_STREAM_BUFFER] = "AsyncHostToDeviceTransferManager_RetrieveBuffer",
    };
    return slot < LG_ABI_N_SLOT && name[slot] ? name[slot] : "?";
}

bool lg_pjrt_call_has(const lg_pjrt_plugin *p, lg_abi_slot slot) {
    return p->table->size >= TABLE_HEAD + (slot + 1) * sizeof p->table->fn[0] &&
           p->table->fn[slot];
}

/* Status of a plugin's code (those of absl). */
static lg_status status_of(int code) {
    switch (code) {
    case 1: return LG_E_CANCELLED;
    case LG_PJRT_CODE_ARGUMENT: return LG_E_ARG;
    case 8: return LG_E_NOMEM;
    case 12: return LG_E_UNSUPPORTED;
    default: return LG_E_BACKEND;
    }
}

/* Report a plugin's error object and destroy it. */
static lg_status report(const lg_pjrt_plugin *p, lg_abi_slot slot, void *error, int *code,
                        lg_err *err) {
    LG_ABI_ARGS(lg_abi_text, m);
    LG_ABI_ARGS(lg_abi_int, c);
    LG_ABI_ARGS(lg_abi_one, d);
    c.arg.i = LG_PJRT_CODE_UNKNOWN;
    m.arg.obj = c.arg.obj = d.arg.obj = error;
    if (lg_pjrt_call_has(p, LG_ABI_ERROR_MESSAGE)) p->table->fn[LG_ABI_ERROR_MESSAGE](&m);
    if (lg_pjrt_call_has(p, LG_ABI_ERROR_CODE)) {
        void *again = p->table->fn[LG_ABI_ERROR_CODE](&c);
        LG_ASSERT(!again);
    }
    int n = 0;
    while (m.arg.text && n < 400 && (size_t)n < m.arg.n && m.arg.text[n] != '\n') n++;
    *code = c.arg.i;
    lg_status st = LG_FAIL(err, status_of(c.arg.i), "plugin: %s: %.*s", slot_name(slot), n,
                           m.arg.text ? m.arg.text : "");
    if (lg_pjrt_call_has(p, LG_ABI_ERROR_DESTROY)) p->table->fn[LG_ABI_ERROR_DESTROY](&d);
    return st;
}

lg_status lg_pjrt_call_code(const lg_pjrt_plugin *p, lg_abi_slot slot, void *args, int *code,
                            lg_err *err) {
    *code = 0;
    if (!lg_pjrt_call_has(p, slot)) {
        *code = 12;
        return LG_FAIL(err, LG_E_UNSUPPORTED, "plugin: %s is not in its table (%s)",
                       slot_name(slot), p->about);
    }
    void *error = p->table->fn[slot](args);
    return error ? report(p, slot, error, code, err) : LG_OK;
}

lg_status lg_pjrt_call_slot(const lg_pjrt_plugin *p, lg_abi_slot slot, void *args,
                            lg_err *err) {
    int code;
    return lg_pjrt_call_code(p, slot, args, &code, err);
}

void lg_pjrt_call_destroy(const lg_pjrt_plugin *p, lg_abi_slot slot, void *obj) {
    if (!obj) return;
    lg_err err;
    LG_ABI_ARGS(lg_abi_one, a);
    a.arg.obj = obj;
    if (lg_pjrt_call_slot(p, slot, &a, &err) != LG_OK) lg_diag_log(LG_LOG_WARN, "%s", err.msg);
}

lg_status lg_pjrt_await(const lg_pjrt_plugin *p, lg_pjrt_event *e, const char *what,
                        lg_err *err) {
    if (!e) return LG_OK;
    lg_err inner = {0};
    LG_ABI_ARGS(lg_abi_one, a);
    a.arg.obj = e;
    lg_status st = lg_pjrt_call_slot(p, LG_ABI_EVENT_AWAIT, &a, &inner);
    lg_pjrt_call_destroy(p, LG_ABI_EVENT_DESTROY, e);
    return st == LG_OK ? LG_OK : LG_FAIL(err, st, "%s: %s", what, inner.msg);
}

/* ---- load ---- */

/* What its attributes say, into p->about and the fingerprint. */
static void read_attributes(lg_pjrt_plugin *p) {
    LG_ABI_ARGS(lg_abi_attributes, a);
    lg_err err;
    int n = snprintf(p->about, sizeof p->about, "API %d.%d", p->table->major, p->table->minor);
    if (lg_pjrt_call_slot(p, LG_ABI_ATTRIBUTES, &a, &err) != LG_OK) return;
    for (size_t i = 0; i < a.arg.n; i++) {
        const lg_abi_named *v = &a.arg.named[i];
        p->build = lg_hash_add(p->build, v->name, v->name_size);
        if (v->type == LG_ABI_TEXT) p->build = lg_hash_add(p->build, v->v.text, v->value_size);
        if (v->type == LG_ABI_INT) p->build = lg_hash_add(p->build, &v->v.i, sizeof v->v.i);
        if (v->type != LG_ABI_LIST) continue;
        p->build = lg_hash_add(p->build, v->v.list, v->value_size * sizeof *v->v.list);
        static const char key[] = "stablehlo_current_version";
        if (v->name_size == sizeof key - 1 && !memcmp(v->name, key, sizeof key - 1) &&
            v->value_size == 3)
            snprintf(p->about + n, sizeof p->about - (size_t)n,
                     ", StableHLO %" PRId64 ".%" PRId64 ".%" PRId64, v->v.list[0], v->v.list[1],
                     v->v.list[2]);
    }
}

/* What plugins read from the environment when they are loaded and compile other code for. */
static void add_environment(lg_pjrt_plugin *p) {
    static const char *const name[] = {"XLA_FLAGS", "LIBTPU_INIT_ARGS"};
    for (size_t i = 0; i < LG_COUNT(name); i++) {
        const char *value = getenv(name[i]);
        if (!value || !*value) continue;
        p->build = lg_hash_add(p->build, name[i], strlen(name[i]) + 1);
        p->build = lg_hash_add(p->build, value, strlen(value) + 1);
    }
}

static lg_status check_table(const char *path, const lg_abi_table *t, lg_err *err) {
    size_t least = TABLE_HEAD + (LG_ABI_LOADED_EXECUTE + 1) * sizeof t->fn[0];
    if (!t) return LG_FAIL(err, LG_E_FORMAT, "%s: GetPjrtApi gives no table", path);
    if (t->size < TABLE_HEAD || t->size < least)
        return LG_FAIL(err, LG_E_FORMAT, "%s: its table has %zu bytes, expected at least %zu",
                       path, t->size, least);
    if (t->major != 0)
        return LG_FAIL(err, LG_E_UNSUPPORTED, "%s: PJRT API %d.%d, expected 0.x", path,
                       t->major, t->minor);
    for (int s = LG_ABI_ERROR_DESTROY; s <= LG_ABI_ERROR_CODE; s++)
        if (!t->fn[s])
            return LG_FAIL(err, LG_E_FORMAT, "%s: its table lacks %s", path,
                           slot_name((lg_abi_slot)s));
    return LG_OK;
}

static lg_status load(const char *path, lg_pjrt_plugin *p, lg_err *err) {
    struct stat file;
    if (stat(path, &file) != 0) return LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) return LG_FAIL(err, LG_E_IO, "%s", dlerror());
    const lg_abi_table *(*get)(void);
    *(void **)&get = dlsym(lib, "GetPjrtApi");
    if (!get)
        return LG_FAIL(err, LG_E_FORMAT, "%s: no PJRT plugin (it lacks GetPjrtApi)", path);
    p->table = get();
    LG_TRY(check_table(path, p->table, err));
    const int64_t id[] = {file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec,
                          p->table->minor};
    p->build = lg_hash_add(LG_HASH_START, id, sizeof id);
    add_environment(p);
    if (lg_pjrt_call_has(p, LG_ABI_INITIALIZE)) {
        LG_ABI_ARGS(lg_abi_none, a);
        LG_TRY(lg_pjrt_call_slot(p, LG_ABI_INITIALIZE, &a, err));
    }
    read_attributes(p);
    return LG_OK;
}

lg_status lg_pjrt_plugin_open(const char *path, lg_pjrt_plugin **p, lg_err *err) {
    *p = lg_mem_alloc(sizeof **p);
    if (!*p) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    lg_status st = load(path, *p, err);
    if (st != LG_OK) lg_pjrt_plugin_close(p);
    return st;
}

void lg_pjrt_plugin_close(lg_pjrt_plugin **p) {
    LG_FREE(*p);
}

const char *lg_pjrt_plugin_about(const lg_pjrt_plugin *p) {
    return p->about;
}

uint64_t lg_pjrt_plugin_build(const lg_pjrt_plugin *p) {
    return p->build;
}

/* ---- options ---- */

/* Whole numbers with x between them, at most 4. */
static bool read_list(const char *s, int64_t *list, size_t *n) {
    for (*n = 0; *n < 4;) {
        char *end;
        if (*s != '-' && (*s < '0' || *s > '9')) return false;
        errno = 0;
        list[(*n)++] = strtoll(s, &end, 10);
        if (errno || end == s) return false;
        if (!*end) return true;
        if (*end != 'x') return false;
        s = end + 1;
    }
    return false;
}

static void read_value(lg_pjrt_option *o) {
    bool yes = strcmp(o->text, "true") == 0;
    if (yes || strcmp(o->text, "false") == 0) {
        o->kind = LG_PJRT_OPT_BOOL;
        o->list[0] = yes;
    } else if (read_list(o->text, o->list, &o->n_list)) {
        o->kind = o->n_list == 1 ? LG_PJRT_OPT_INT : LG_PJRT_OPT_LIST;
    } else {
        o->kind = LG_PJRT_OPT_TEXT;
    }
}

lg_status lg_pjrt_options_parse(const char *text, lg_pjrt_options *o, lg_err *err) {
    *o = (lg_pjrt_options){0};
    while (text && *text) {
        int len = (int)strcspn(text, ","), name = (int)strcspn(text, "=,");
        int value = len - name - 1;
        if (name == 0 || value <= 0)
            return LG_FAIL(err, LG_E_ARG, "option '%.*s': expected name=value", len, text);
        lg_pjrt_option *at = &o->opt[o->n];
        if (o->n == LG_PJRT_MAX_OPT)
            return LG_FAIL(err, LG_E_ARG, "option '%.*s': expected at most %d options", len,
                           text, LG_PJRT_MAX_OPT);
        if ((size_t)name >= sizeof at->name || (size_t)value >= sizeof at->text)
            return LG_FAIL(err, LG_E_ARG, "option '%.*s': too long", len, text);
        memcpy(at->name, text, (size_t)name);
        memcpy(at->text, text + name + 1, (size_t)value);
        read_value(at);
        o->n++;
        text += len + (text[len] == ',');
    }
    return LG_OK;
}

void lg_pjrt_call_named(const lg_pjrt_options *o, lg_abi_named *named) {
    for (size_t i = 0; o && i < o->n; i++) {
        const lg_pjrt_option *from = &o->opt[i];
        lg_abi_named *to = &named[i];
        *to = (lg_abi_named){.size = sizeof *to,
                             .name = from->name,
                             .name_size = strlen(from->name),
                             .value_size = 1};
        switch (from->kind) {
        case LG_PJRT_OPT_BOOL:
            to->type = LG_ABI_BOOL;
            to->v.b = from->list[0] != 0;
            break;
        case LG_PJRT_OPT_INT:
            to->type = LG_ABI_INT;
            to->v.i = from->list[0];
            break;
        case LG_PJRT_OPT_LIST:
            to->type = LG_ABI_LIST;
            to->v.list = from->list;
            to->value_size = from->n_list;
            break;
        case LG_PJRT_OPT_TEXT:
            to->type = LG_ABI_TEXT;
            to->v.text = from->text;
            to->value_size = strlen(from->text);
            break;
        }
    }
}

/* ---- descriptions of devices, topologies ---- */

static void describe_place(const lg_abi_named *v, lg_pjrt_device_info *info) {
    static const char coords[] = "coords", core[] = "core_on_chip",
                      memory[] = "device_memory_bytes_limit";
    if (v->type == LG_ABI_LIST && v->name_size == sizeof coords - 1 &&
        !memcmp(v->name, coords, v->name_size))
        for (size_t i = 0; i < v->value_size && i < 3; i++) info->coord[i] = v->v.list[i];
    if (v->type != LG_ABI_INT) return;
    if (v->name_size == sizeof core - 1 && !memcmp(v->name, core, v->name_size))
        info->core = v->v.i;
    if (v->name_size == sizeof memory - 1 && !memcmp(v->name, memory, v->name_size))
        info->memory_bytes = v->v.i;
}

void lg_pjrt_call_describe(const lg_pjrt_plugin *p, void *desc, lg_pjrt_device_info *info) {
    LG_ABI_ARGS(lg_abi_int, id);
    LG_ABI_ARGS(lg_abi_text, kind);
    LG_ABI_ARGS(lg_abi_properties, props);
    *info = (lg_pjrt_device_info){.id = -1};
    id.arg.obj = kind.arg.obj = props.arg.obj = desc;
    if (lg_pjrt_call_slot(p, LG_ABI_DESC_ID, &id, NULL) == LG_OK) info->id = id.arg.i;
    if (lg_pjrt_call_slot(p, LG_ABI_DESC_KIND, &kind, NULL) == LG_OK)
        snprintf(info->kind, sizeof info->kind, "%.*s", (int)kind.arg.n, kind.arg.text);
    if (lg_pjrt_call_slot(p, LG_ABI_DESC_ATTRIBUTES, &props, NULL) != LG_OK) return;
    for (size_t i = 0; i < props.arg.n; i++) describe_place(&props.arg.named[i], info);
}

lg_status lg_pjrt_topo_open(lg_pjrt_plugin *p, const char *name, const lg_pjrt_options *o,
                            lg_pjrt_topo **t, lg_err *err) {
    lg_abi_named named[LG_PJRT_MAX_OPT];
    LG_ABI_ARGS(lg_abi_topo_create, a);
    LG_ABI_ARGS(lg_abi_list, l);
    *t = NULL;
    lg_pjrt_call_named(o, named);
    a.arg.name = name;
    a.arg.name_size = strlen(name);
    a.arg.named = named;
    a.arg.n = o ? o->n : 0;
    LG_TRY(lg_pjrt_call_slot(p, LG_ABI_TOPO_CREATE, &a, err));
    lg_pjrt_topo *made = lg_mem_alloc(sizeof *made);
    if (!made) {
        lg_pjrt_call_destroy(p, LG_ABI_TOPO_DESTROY, a.arg.topo);
        return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", name);
    }
    *made = (lg_pjrt_topo){.plugin = p, .handle = a.arg.topo};
    l.arg.obj = a.arg.topo;
    lg_status st = lg_pjrt_call_slot(p, LG_ABI_TOPO_DESCS, &l, err);
    if (st == LG_OK && l.arg.n > UINT32_MAX)
        st = LG_FAIL(err, LG_E_BACKEND, "%s: %zu devices", name, l.arg.n);
    made->desc = l.arg.list;
    made->n = (uint32_t)l.arg.n;
    if (st != LG_OK)
        lg_pjrt_topo_close(&made);
    else
        *t = made;
    return st;
}

void lg_pjrt_topo_close(lg_pjrt_topo **t) {
    if (!*t) return;
    lg_pjrt_call_destroy((*t)->plugin, LG_ABI_TOPO_DESTROY, (*t)->handle);
    LG_FREE(*t);
}

uint32_t lg_pjrt_topo_n(const lg_pjrt_topo *t) {
    return t->n;
}

void lg_pjrt_topo_info(const lg_pjrt_topo *t, uint32_t i, lg_pjrt_device_info *info) {
    LG_ASSERT(i < t->n);
    lg_pjrt_call_describe(t->plugin, t->desc[i], info);
}
