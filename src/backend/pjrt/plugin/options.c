/* options.c - compile options in the wire form of protocol buffers, written by hand.
 *
 * Field numbers are those of XLA's CompileOptionsProto (executable_build_options 3, env_option_overrides 7),
 * ExecutableBuildOptionsProto (num_replicas 4, num_partitions 5, use_spmd_partitioning 6, device_assignment 9,
 * use_shardy_partitioner 19), DeviceAssignmentProto (replica_count 1, computation_count 2, computation_devices 3) and
 * OptionOverrideProto (string 1, bool 2, int64 3).
 * Thread: any.  Memory: the caller's buffer.  Test: tests/unit/test_pjrt.c */
#include "backend/pjrt/pjrt.h"

#include <string.h>

static void put_varint(lg_buf *b, uint64_t v) {
    for (; v > 127; v >>= 7) lg_buf_putc(b, (char)(v | 128));
    lg_buf_putc(b, (char)v);
}

static void put_number(lg_buf *b, uint32_t field, uint64_t v) {
    put_varint(b, (uint64_t)field << 3);
    put_varint(b, v);
}

static void put_bytes(lg_buf *b, uint32_t field, const void *data, size_t n) {
    put_varint(b, (uint64_t)field << 3 | 2);
    put_varint(b, n);
    lg_buf_put(b, data, n);
}

static void put_message(lg_buf *b, uint32_t field, const lg_buf *m) {
    put_bytes(b, field, lg_buf_str(m), m->len_bytes);
    b->failed |= m->failed;
}

/* Which device computes what: one group of devices per partition, each with a device for every replica. */
static void put_assignment(lg_buf *b, const lg_pjrt_compile *how) {
    lg_buf a = {0}, ids = {0}, group = {0};
    put_number(&a, 1, how->n_replica);
    put_number(&a, 2, how->n_partition);
    for (uint32_t p = 0; p < how->n_partition; p++) {
        lg_buf_clear(&ids);
        lg_buf_clear(&group);
        for (uint32_t r = 0; r < how->n_replica; r++)
            put_varint(&ids, r * how->n_partition + p);
        put_message(&group, 1, &ids);
        put_message(&a, 3, &group);
    }
    put_message(b, 9, &a);
    lg_buf_fini(&a);
    lg_buf_fini(&ids);
    lg_buf_fini(&group);
}

static void put_flag(lg_buf *b, const lg_pjrt_option *o) {
    lg_buf value = {0}, entry = {0};
    switch (o->kind) {
    case LG_PJRT_OPT_BOOL: put_number(&value, 2, o->list[0] != 0); break;
    case LG_PJRT_OPT_INT: put_number(&value, 3, (uint64_t)o->list[0]); break;
    default: put_bytes(&value, 1, o->text, strlen(o->text));
    }
    put_bytes(&entry, 1, o->name, strlen(o->name));
    put_message(&entry, 2, &value);
    put_message(b, 7, &entry);
    lg_buf_fini(&value);
    lg_buf_fini(&entry);
}

lg_status lg_pjrt_compile_bytes(const lg_pjrt_compile *how, lg_buf *out, lg_err *err) {
    lg_pjrt_options flags;
    uint32_t r = how->n_replica, p = how->n_partition;
    if (r == 0 || p == 0 || r > LG_PJRT_MAX_DEV || p > LG_PJRT_MAX_DEV || (r > 1 && p > 1))
        return LG_FAIL(err, LG_E_ARG,
                       "compile: %u replicas and %u partitions, expected 1 of one of them and "
                       "1 to %d of the other",
                       r, p, LG_PJRT_MAX_DEV);
    LG_TRY(lg_pjrt_options_parse(how->flags, &flags, err));
    lg_buf build = {0};
    put_number(&build, 4, r);
    put_number(&build, 5, p);
    if (p > 1) put_number(&build, 6, 1);
    if (r > 1 || p > 1) put_assignment(&build, how);
    if (p > 1) put_number(&build, 19, 1);
    put_message(out, 3, &build);
    lg_buf_fini(&build);
    for (size_t i = 0; i < flags.n; i++) put_flag(out, &flags.opt[i]);
    return out->failed ? LG_FAIL(err, LG_E_NOMEM, "compile: no memory") : LG_OK;
}
