/* mosaic_copy.c - copies that a kernel's body starts and waits for itself (mosaic_eval_int.h).
 *
 * A semaphore counts bytes.  A wait for some of what is under way says nothing of which copies are done, so copies whose data comes
 * late arrive together, when all that was sent to their semaphore has been waited for. */
#include "mosaic_eval_int.h"

#include <math.h>
#include <string.h>

#define MAX_COPY 256

typedef struct copy {
    const float *from;
    float *to;
    size_t n;
    int32_t *semaphore;
} copy;

static copy under_way[MAX_COPY];
static uint32_t n_copy;
static bool early;

void mosaic_copies_begin(bool at_once) {
    n_copy = 0;
    early = at_once;
}

void mosaic_copies_finish(void) {
    if (n_copy) mosaic_fail("%u copies are never waited for", n_copy);
}

static void send(const float *from, const value *to, int32_t *semaphore, int32_t bytes) {
    if (n_copy == MAX_COPY) mosaic_fail("more than %d copies at once", MAX_COPY);
    for (uint32_t i = 0; i < n_copy; i++)
        if (under_way[i].to < to->f + to->n && to->f < under_way[i].to + under_way[i].n)
            mosaic_fail("two copies to one place at once");
    under_way[n_copy++] = (copy){from, to->f, to->n, semaphore};
    *semaphore += bytes;
    for (size_t i = 0; i < to->n; i++) to->f[i] = early ? from[i] : NAN;
}

static void receive(int32_t *semaphore, int32_t bytes) {
    if (*semaphore < bytes) mosaic_fail("a wait that never ends");
    *semaphore -= bytes;
    for (uint32_t i = 0; *semaphore == 0 && i < n_copy;) {
        if (under_way[i].semaphore != semaphore) {
            i++;
            continue;
        }
        for (size_t j = 0; !early && j < under_way[i].n; j++)
            under_way[i].to[j] = under_way[i].from[j];
        under_way[i] = under_way[--n_copy];
    }
}

void mosaic_copy(const op *o, value *const *a) {
    static const int32_t width[] = {[E_F32] = 4, [E_BF16] = 2, [E_E4M3] = 1};
    bool sends = !strcmp(o->name, "tpu.enqueue_dma");
    const value *from = a[sends ? 0 : 1], *to = a[sends ? 1 : 2], *sem = a[sends ? 2 : 0];
    int64_t seg[7];
    uint32_t n = mosaic_numbers(o->attrs, "operandSegmentSizes", seg, 7);
    static const int64_t enqueue[7] = {1, 0, 1, 1}, wait[5] = {1, 1, 1};
    if (o->n_arg != 3 || n != (sends ? 7 : 5) ||
        memcmp(seg, sends ? enqueue : wait, n * sizeof *seg) != 0)
        mosaic_fail("%s: its operands", o->name);
    if (from->t.where != IN_HBM || to->t.where != IN_VMEM || sem->t.where != IN_SEMAPHORES ||
        sem->t.rank || from->t.e != to->t.e || !to->f || from->t.rank != to->t.rank ||
        memcmp(from->t.dim, to->t.dim, to->t.rank * sizeof to->t.dim[0]) != 0)
        mosaic_fail("%s: from HBM to as much VMEM, and one semaphore", o->name);
    int32_t bytes = (int32_t)to->n * width[to->t.e];
    if (sends)
        send(from->f, to, sem->i, bytes);
    else
        receive(sem->i, bytes);
}
