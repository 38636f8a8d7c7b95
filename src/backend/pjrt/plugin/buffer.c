/* buffer.c - buffers on devices: rows up, rows down, and streams for what is too big to hold twice.
 *
 * Host memory is always row-major here; a device keeps its own layout.  Bytes moved are counted in the client.
 * Thread: any, one at a time for one client.  Memory: the plugin's.  Test: tests/unit/test_pjrt.c */
#include "backend/pjrt/plugin/call.h"
#include "base/num.h"

static const struct {
    const char *name;
    uint8_t bytes;
} type_info[] = {
    [LG_PJRT_BOOL] = {"i1", 1},
    [LG_PJRT_S8] = {"i8", 1},
    [LG_PJRT_S32] = {"i32", 4},
    [LG_PJRT_S64] = {"i64", 8},
    [LG_PJRT_U8] = {"ui8", 1},
    [LG_PJRT_U32] = {"ui32", 4},
    [LG_PJRT_F16] = {"f16", 2},
    [LG_PJRT_F32] = {"f32", 4},
    [LG_PJRT_BF16] = {"bf16", 2},
    [LG_PJRT_F8E5M2] = {"f8E5M2", 1},
    [LG_PJRT_F8E4M3FN] = {"f8E4M3FN", 1},
};

size_t lg_pjrt_type_bytes(lg_pjrt_type t) {
    return (size_t)t < LG_COUNT(type_info) ? type_info[t].bytes : 0;
}

const char *lg_pjrt_type_name(lg_pjrt_type t) {
    return lg_pjrt_type_bytes(t) ? type_info[t].name : "?";
}

size_t lg_pjrt_dims_bytes(const lg_pjrt_dims *d) {
    uint64_t n = lg_pjrt_type_bytes(d->type);
    if (d->rank > LG_PJRT_MAX_RANK) return 0;
    for (uint32_t i = 0; i < d->rank; i++)
        if (d->dim[i] < 0 || !lg_num_mul(n, (uint64_t)d->dim[i], &n)) return 0;
    return n <= INT64_MAX ? (size_t)n : 0;
}

/* The plugin ends the process for a type it does not know. */
static lg_status check(const lg_pjrt_client *c, uint32_t device, const lg_pjrt_dims *d,
                       lg_err *err) {
    if (lg_pjrt_dims_bytes(d) == 0)
        return LG_FAIL(err, LG_E_ARG, "buffer: type %d of rank %u has no size", (int)d->type,
                       d->rank);
    if (device >= c->n) return LG_FAIL(err, LG_E_ARG, "buffer: device %u of %u", device, c->n);
    return LG_OK;
}

lg_status lg_pjrt_buf_put(lg_pjrt_client *c, uint32_t device, const lg_pjrt_dims *d,
                          const void *data, lg_pjrt_buf **buf, lg_err *err) {
    LG_ABI_ARGS(lg_abi_from_host, a);
    *buf = NULL;
    LG_TRY(check(c, device, d, err));
    a.arg.client = c->handle;
    a.arg.data = data;
    a.arg.type = (int32_t)d->type;
    a.arg.dims = d->dim;
    a.arg.n_dim = d->rank;
    a.arg.device = c->device[device];
    LG_TRY(lg_pjrt_call_slot(c->plugin, LG_ABI_BUFFER_FROM_HOST, &a, err));
    *buf = a.arg.buffer;
    lg_status st = lg_pjrt_await(c->plugin, a.arg.done, "buffer", err);
    if (st != LG_OK) lg_pjrt_buf_free(c, buf);
    c->traffic.up_bytes += lg_pjrt_dims_bytes(d);
    c->traffic.n_up++;
    return st;
}

lg_status lg_pjrt_buf_get(lg_pjrt_client *c, lg_pjrt_buf *buf, const lg_pjrt_dims *d, void *to,
                          lg_err *err) {
    int64_t minor_to_major[LG_PJRT_MAX_RANK];
    LG_ABI_ARGS(lg_abi_layout, row_major);
    LG_ABI_ARGS(lg_abi_to_host, a);
    LG_TRY(check(c, 0, d, err));
    for (uint32_t i = 0; i < d->rank; i++) minor_to_major[i] = (int64_t)(d->rank - 1 - i);
    row_major.arg.tiled = (lg_abi_tiled){
        .size = sizeof(lg_abi_tiled), .minor_to_major = minor_to_major, .n = d->rank};
    a.arg.buffer = buf;
    a.arg.layout = &row_major.arg;
    a.arg.to = to;
    a.arg.to_size = lg_pjrt_dims_bytes(d);
    LG_TRY(lg_pjrt_call_slot(c->plugin, LG_ABI_BUFFER_TO_HOST, &a, err));
    c->traffic.down_bytes += a.arg.to_size;
    c->traffic.n_down++;
    return lg_pjrt_await(c->plugin, a.arg.event, "buffer", err);
}

void lg_pjrt_buf_free(lg_pjrt_client *c, lg_pjrt_buf **buf) {
    lg_pjrt_call_destroy(c->plugin, LG_ABI_BUFFER_DESTROY, *buf);
    *buf = NULL;
}

uintptr_t lg_pjrt_buf_address(lg_pjrt_client *c, lg_pjrt_buf *buf) {
    LG_ABI_ARGS(lg_abi_get, a);
    a.arg.obj = buf;
    if (lg_pjrt_call_slot(c->plugin, LG_ABI_BUFFER_ADDRESS, &a, NULL) != LG_OK) return 0;
    return (uintptr_t)a.arg.out;
}

bool lg_pjrt_buf_is_deleted(lg_pjrt_client *c, lg_pjrt_buf *buf) {
    LG_ABI_ARGS(lg_abi_bool, a);
    a.arg.obj = buf;
    return lg_pjrt_call_slot(c->plugin, LG_ABI_BUFFER_IS_DELETED, &a, NULL) == LG_OK && a.arg.b;
}

/* ---- streams ---- */

struct lg_pjrt_stream {
    lg_pjrt_client *client;
    void *handle;
    lg_pjrt_buf *buf;
    size_t n_bytes, done_bytes;
};

static lg_status start(lg_pjrt_stream *s, uint32_t device, const lg_pjrt_dims *d, lg_err *err) {
    const lg_pjrt_plugin *p = s->client->plugin;
    lg_abi_shape shape = {
        .size = LG_ABI_SHAPE_SIZE, .dims = d->dim, .n_dim = d->rank, .type = (int32_t)d->type};
    LG_ABI_ARGS(lg_abi_get, memory);
    LG_ABI_ARGS(lg_abi_stream_create, a);
    LG_ABI_ARGS(lg_abi_stream_buffer, b);
    memory.arg.obj = s->client->device[device];
    LG_TRY(lg_pjrt_call_slot(p, LG_ABI_DEVICE_MEMORY, &memory, err));
    a.arg.client = s->client->handle;
    a.arg.shape = &shape;
    a.arg.n_shape = 1;
    a.arg.memory = memory.arg.out;
    LG_TRY(lg_pjrt_call_slot(p, LG_ABI_STREAM_CREATE, &a, err));
    s->handle = b.arg.stream = a.arg.stream;
    LG_TRY(lg_pjrt_call_slot(p, LG_ABI_STREAM_BUFFER, &b, err));
    s->buf = b.arg.buffer;
    return LG_OK;
}

lg_status lg_pjrt_stream_open(lg_pjrt_client *c, uint32_t device, const lg_pjrt_dims *d,
                              lg_pjrt_stream **s, lg_err *err) {
    lg_pjrt_buf *none;
    *s = NULL;
    LG_TRY(check(c, device, d, err));
    lg_pjrt_stream *made = lg_mem_alloc(sizeof *made);
    if (!made) return LG_FAIL(err, LG_E_NOMEM, "stream: no memory");
    *made = (lg_pjrt_stream){.client = c, .n_bytes = lg_pjrt_dims_bytes(d)};
    lg_status st = start(made, device, d, err);
    if (st != LG_OK)
        lg_pjrt_stream_close(&made, &none, NULL);
    else
        *s = made;
    return st;
}

lg_status lg_pjrt_stream_put(lg_pjrt_stream *s, const void *data, size_t n_bytes, lg_err *err) {
    LG_ABI_ARGS(lg_abi_stream_put, a);
    if (n_bytes > s->n_bytes - s->done_bytes)
        return LG_FAIL(err, LG_E_ARG, "stream: %zu bytes after %zu of %zu", n_bytes,
                       s->done_bytes, s->n_bytes);
    if (n_bytes == 0) return LG_OK;
    a.arg.stream = s->handle;
    a.arg.data = data;
    a.arg.offset = (int64_t)s->done_bytes;
    a.arg.n = (int64_t)n_bytes;
    s->done_bytes += n_bytes;
    a.arg.last = s->done_bytes == s->n_bytes;
    s->client->traffic.up_bytes += n_bytes;
    s->client->traffic.n_up++;
    LG_TRY(lg_pjrt_call_slot(s->client->plugin, LG_ABI_STREAM_PUT, &a, err));
    return lg_pjrt_await(s->client->plugin, a.arg.done, "stream", err);
}

lg_status lg_pjrt_stream_close(lg_pjrt_stream **s, lg_pjrt_buf **buf, lg_err *err) {
    lg_status st = LG_OK;
    lg_pjrt_stream *o = *s;
    lg_pjrt_call_destroy(o->client->plugin, LG_ABI_STREAM_DESTROY, o->handle);
    *buf = o->buf;
    if (o->done_bytes != o->n_bytes) {
        st = LG_FAIL(err, LG_E_ARG, "stream: ended after %zu of %zu bytes", o->done_bytes,
                     o->n_bytes);
        lg_pjrt_buf_free(o->client, buf);
    }
    LG_FREE(*s);
    return st;
}
