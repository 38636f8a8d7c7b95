/* collective.c - the reduce-scatter of collective.h as operations of a program.
 *
 * The same text runs on every device, so "the half that is mine" is a window at a place that depends on the device: its address
 * comes out of a table by its number.  Test: tests/unit/test_collective.c */
#include "backend/pjrt/step/collective.h"

#include <stdio.h>
#include <string.h>

/* Number of bits of a side; false when it is no power of two. */
static bool bits_of(int64_t side, uint32_t *n) {
    *n = 0;
    while (side > 1 && side % 2 == 0) {
        side /= 2;
        (*n)++;
    }
    return side == 1;
}

lg_status lg_collective_plan_make(lg_collective_plan *p, const lg_pjrt_device_info *dev,
                                  uint32_t n, lg_err *err) {
    int64_t lo[4], hi[4];
    uint32_t bit[4], seen[LG_PJRT_MAX_DEV] = {0};
    *p = (lg_collective_plan){.n = n};
    if (n < 2 || n > LG_PJRT_MAX_DEV)
        return LG_FAIL(err, LG_E_UNSUPPORTED, "reduce-scatter: %u devices", n);
    for (uint32_t i = 0; i < n; i++)
        for (int d = 0; d < 4; d++) {
            int64_t at = d ? dev[i].coord[d - 1] : dev[i].core;
            if (!i || at < lo[d]) lo[d] = at;
            if (!i || at > hi[d]) hi[d] = at;
        }
    for (int d = 0; d < 4; d++) {
        if (!bits_of(hi[d] - lo[d] + 1, &bit[d]))
            return LG_FAIL(err, LG_E_UNSUPPORTED,
                           "reduce-scatter: %lld devices along a side, no power of two",
                           (long long)(hi[d] - lo[d] + 1));
        p->n_bit += bit[d];
    }
    p->n_core_bit = bit[0];
    if (p->n_bit > 16 || n != 1u << p->n_bit)
        return LG_FAIL(err, LG_E_UNSUPPORTED,
                       "reduce-scatter: %u devices do not fill their box", n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t a = 0, shift = 0;
        for (int d = 0; d < 4; d++) {
            a |= (uint32_t)((d ? dev[i].coord[d - 1] : dev[i].core) - lo[d]) << shift;
            shift += bit[d];
        }
        if (seen[a]++)
            return LG_FAIL(err, LG_E_UNSUPPORTED, "reduce-scatter: two devices at one place");
        p->addr[i] = (uint16_t)a;
    }
    return LG_OK;
}

/* The device whose address is a. */
static uint32_t device_at(const lg_collective_plan *p, uint32_t a) {
    for (uint32_t i = 0; i < p->n; i++)
        if (p->addr[i] == a) return i;
    LG_ASSERT(!"an address of the plan");
    return 0;
}

/* A constant I32 [n]. */
static lg_hlo_val table(lg_hlo *h, const uint32_t *v, uint32_t n) {
    lg_buf attr = {0};
    lg_hlo_type t = LG_HLO_T(I32, n);
    lg_hlo_val r = 0;
    lg_buf_puts(&attr, "{value = dense<[");
    for (uint32_t i = 0; i < n; i++) lg_buf_printf(&attr, "%s%u", i ? ", " : "", v[i]);
    lg_buf_printf(&attr, "]> : tensor<%uxi32>}", n);
    if (attr.failed)
        lg_hlo_fail(h, "no memory");
    else
        lg_hlo_op(h, "stablehlo.constant", NULL, 0, lg_buf_str(&attr), &t, 1, &r);
    lg_buf_fini(&attr);
    return r;
}

/* Part b of a device's address, 0 or 1: a scalar. */
static lg_hlo_val my_bit(lg_hlo *h, lg_hlo_val address, uint32_t b) {
    lg_hlo_val half = lg_hlo_bin_i(h, "divide", address, 1 << b);
    return lg_hlo_bin_i(h, "remainder", half, 2);
}

/* One exchange.  x [parts][rows][cols]; `left` are the bits whose both values x still holds, parts being in the order of those bits, highest
 * first.  -> [parts / 2][rows][cols]. */
static lg_hlo_val exchange(const lg_collective_plan *p, lg_hlo *h, lg_hlo_val x,
                           lg_hlo_val address, uint32_t left, uint32_t b, lg_hlo_dt wire) {
    uint32_t low = 0, high = 0, pair[LG_PJRT_MAX_DEV][2];
    int64_t rows = lg_hlo_dim(h, x, 1), cols = lg_hlo_dim(h, x, 2);
    lg_hlo_dt dt = lg_hlo_type_at(h, x).dt;
    for (uint32_t i = 0; i < p->n_bit; i++) {
        if (left >> i & 1 && i < b) low++;
        if (left >> i & 1 && i > b) high++;
    }
    int64_t size[5] = {1 << high, 1, 1 << low, rows, cols};
    x = lg_hlo_reshape(h, x, lg_hlo_as(LG_HLO_T(F32, size[0], 2, size[2], rows, cols), dt));
    lg_hlo_val zero = lg_hlo_i32(h, 0), mine = my_bit(h, address, b);
    lg_hlo_val other = lg_hlo_sub(h, lg_hlo_i32(h, 1), mine);
    lg_hlo_val kept = lg_hlo_window(h, x, (lg_hlo_val[]){zero, mine, zero, zero, zero}, size);
    lg_hlo_val sent = lg_hlo_window(h, x, (lg_hlo_val[]){zero, other, zero, zero, zero}, size);
    for (uint32_t i = 0; i < p->n; i++) {
        pair[i][0] = i;
        pair[i][1] = device_at(p, p->addr[i] ^ 1u << b);
    }
    lg_hlo_val got =
        lg_hlo_permute(h, lg_hlo_convert(h, sent, wire), (const uint32_t(*)[2])pair, p->n);
    lg_hlo_val sum = lg_hlo_add(h, kept, lg_hlo_convert(h, got, dt));
    return lg_hlo_reshape(h, sum, lg_hlo_as(LG_HLO_T(F32, size[0] * size[2], rows, cols), dt));
}

/* Columns [from, from + n) of piece i of `pieces`, as even as they can be. */
static void piece(int64_t cols, uint32_t pieces, uint32_t i, int64_t *from, int64_t *n) {
    *from = cols * i / pieces;
    *n = cols * (i + 1) / pieces - *from;
}

/* One block of columns: the core's exchanges, then strips that go between chips in turned orders. */
static lg_hlo_val block(const lg_collective_plan *p, lg_hlo *h, lg_hlo_val x,
                        lg_hlo_val address, lg_hlo_dt wire) {
    uint32_t left = (1u << p->n_bit) - 1, far = p->n_bit - p->n_core_bit, n_strip = 0;
    lg_hlo_val strip[16];
    for (uint32_t b = 0; b < p->n_core_bit; b++) {
        x = exchange(p, h, x, address, left, b, wire);
        left &= ~(1u << b);
    }
    for (uint32_t j = 0; j < far; j++) {
        int64_t from, n;
        piece(lg_hlo_dim(h, x, 2), far, j, &from, &n);
        if (n == 0) continue;
        lg_hlo_val y = lg_hlo_slice(h, x, 2, from, n);
        uint32_t rest = left;
        for (uint32_t s = 0; s < far; s++) {
            uint32_t b = p->n_core_bit + (j + s) % far;
            y = exchange(p, h, y, address, rest, b, wire);
            rest &= ~(1u << b);
        }
        strip[n_strip++] = y;
    }
    return far ? lg_hlo_concat(h, 2, strip, n_strip) : x;
}

lg_hlo_val lg_collective_reduce_scatter(const lg_collective_plan *p, lg_hlo *h, lg_hlo_val x,
                                        lg_hlo_dt wire) {
    lg_hlo_type t = lg_hlo_type_at(h, x);
    uint32_t addr[LG_PJRT_MAX_DEV], order[LG_PJRT_MAX_DEV], n_done = 0;
    lg_hlo_val done[8];
    bool plain = true;
    if (h->failed) return 0;
    if (t.n_dim != 2 || t.dim[0] % p->n != 0) {
        lg_hlo_fail(h, "reduce-scatter: rows that %u devices do not share evenly", p->n);
        return 0;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        addr[i] = p->addr[i];
        order[i] = device_at(p, i);
        plain &= order[i] == i;
    }
    int64_t rows = t.dim[0] / p->n, cols = t.dim[1];
    uint32_t blocks = p->n_block         ? p->n_block
                      : t.dim[0] >= 4096 ? 8
                      : t.dim[0] >= 2048 ? 4
                      : t.dim[0] >= 256  ? 2
                                         : 1;
    LG_ASSERT(blocks <= LG_COUNT(done));
    lg_hlo_val address = lg_hlo_row(h, table(h, addr, p->n), lg_hlo_replica_id(h));
    /* Parts in the order of the addresses of the devices they go to. */
    x = lg_hlo_reshape(h, x, lg_hlo_as(LG_HLO_T(F32, p->n, rows, cols), t.dt));
    if (!plain) {
        lg_hlo_val o = table(h, order, p->n);
        x = lg_hlo_take(h, x, lg_hlo_idx(h, &o, 1));
    }
    for (uint32_t i = 0; i < blocks; i++) {
        int64_t from, n;
        piece(cols, blocks, i, &from, &n);
        if (n) done[n_done++] = block(p, h, lg_hlo_slice(h, x, 2, from, n), address, wire);
    }
    x = lg_hlo_concat(h, 2, done, n_done);
    return lg_hlo_reshape(h, x, lg_hlo_as(LG_HLO_T(F32, rows, cols), t.dt));
}
