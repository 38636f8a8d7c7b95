/* comm_mpi.c - the carrier over MPI, a shared object of its own: see comm.h.
 *
 * MPI-3, MPI_THREAD_FUNNELED, no own transport.  Loaded by comm.c; links MPI and nothing of Lignum.
 * Open MPI's shared-memory transport would read peers' memory directly (process_vm_readv), which hardened processes forbid, so it is told to copy.
 * Over TCP it would ask the receiver before each message of more than 64 KiB, and every cable would rest meanwhile: up to 1 MiB goes at once,
 * since receives are posted first (docs/EXPERIMENTS.md).
 * Thread: engine.  Memory: MPI's.  Test: tests/e2e/test_ranks.py */
#include "dist/comm.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request fits the handle");

static void err_text(int code, char *text, size_t cap) {
    char msg[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    MPI_Error_string(code, msg, &len);
    snprintf(text, cap, "%s", msg);
}

static MPI_Request get(const lg_comm_req *req) {
    MPI_Request r;
    memcpy(&r, &req->handle, sizeof r);
    return r;
}

static void put(lg_comm_req *req, MPI_Request r) {
    req->handle = NULL;
    memcpy(&req->handle, &r, sizeof r);
}

static lg_status mpi_send(void *impl, uint32_t to, int tag, const void *buf, size_t n_bytes,
                          lg_comm_req *req) {
    (void)impl;
    MPI_Request r;
    if (n_bytes > INT32_MAX) return LG_E_COMM;
    if (MPI_Isend(buf, (int)n_bytes, MPI_BYTE, (int)to, tag, MPI_COMM_WORLD, &r) != MPI_SUCCESS)
        return LG_E_COMM;
    put(req, r);
    return LG_OK;
}

static lg_status mpi_recv(void *impl, uint32_t from, int tag, void *buf, size_t cap_bytes,
                          lg_comm_req *req) {
    (void)impl;
    MPI_Request r;
    if (cap_bytes > INT32_MAX) cap_bytes = INT32_MAX;
    if (MPI_Irecv(buf, (int)cap_bytes, MPI_BYTE, (int)from, tag, MPI_COMM_WORLD, &r) !=
        MPI_SUCCESS)
        return LG_E_COMM;
    put(req, r);
    return LG_OK;
}

static lg_status mpi_test(void *impl, lg_comm_req *req, bool *done) {
    (void)impl;
    MPI_Request r = get(req);
    MPI_Status status;
    int flag = 0, n = 0;
    if (MPI_Test(&r, &flag, &status) != MPI_SUCCESS) return LG_E_COMM;
    put(req, r);
    *done = flag != 0;
    if (!flag) return LG_OK;
    MPI_Get_count(&status, MPI_BYTE, &n);
    req->n_bytes = n > 0 ? (size_t)n : 0;
    return LG_OK;
}

static lg_status mpi_progress(void *impl) {
    (void)impl;
    int flag;
    int code =
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    return code == MPI_SUCCESS ? LG_OK : LG_E_COMM;
}

static lg_status mpi_reduce_scatter(void *impl, const float *x, float *y,
                                    const uint32_t *n_float) {
    (void)impl;
    int n[LG_MAX_RANK], n_rank;
    MPI_Comm_size(MPI_COMM_WORLD, &n_rank);
    for (int i = 0; i < n_rank; i++) n[i] = (int)n_float[i];
    return MPI_Reduce_scatter(x, y, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS
               ? LG_OK
               : LG_E_COMM;
}

static void mpi_close(void *impl, bool abort) {
    (void)impl;
    if (abort)
        MPI_Abort(MPI_COMM_WORLD, 1);
    else
        MPI_Finalize();
}

/* Number machines in order of their lowest rank. */
static int find_nodes(lg_comm *c) {
    MPI_Comm local;
    int rank = (int)c->rank, lead = rank, all[LG_MAX_RANK];
    int code =
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local);
    if (code == MPI_SUCCESS) code = MPI_Bcast(&lead, 1, MPI_INT, 0, local);
    if (code == MPI_SUCCESS)
        code = MPI_Allgather(&lead, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
    if (code != MPI_SUCCESS) return code;
    MPI_Comm_free(&local);
    c->n_node = 0;
    for (uint32_t r = 0; r < c->n_rank; r++) {
        bool leads = all[r] == (int)r;
        c->node[r] = leads ? c->n_node++ : c->node[all[r]];
    }
    return MPI_SUCCESS;
}

static lg_status mpi_open(lg_comm *c, char *text, size_t cap_bytes) {
    static const lg_comm_ops ops = {.send = mpi_send,
                                    .recv = mpi_recv,
                                    .test = mpi_test,
                                    .reduce_scatter = mpi_reduce_scatter,
                                    .close = mpi_close,
                                    .progress = mpi_progress};
    static const char *const eager[] = {"OMPI_MCA_btl_tcp_eager_limit",
                                        "OMPI_MCA_btl_tcp_rndv_eager_limit",
                                        "OMPI_MCA_btl_tcp_max_send_size"};
    int level = 0, rank, n_rank, code;
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    for (size_t i = 0; i < sizeof eager / sizeof *eager; i++) setenv(eager[i], "1048576", 0);
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (code != MPI_SUCCESS) {
        err_text(code, text, cap_bytes);
        return LG_E_COMM;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_rank);
    if (level < MPI_THREAD_FUNNELED || n_rank > LG_MAX_RANK) {
        snprintf(text, cap_bytes, "%d ranks at thread level %d; at most %d at level %d", n_rank,
                 level, LG_MAX_RANK, MPI_THREAD_FUNNELED);
        return LG_E_UNSUPPORTED;
    }
    c->ops = &ops;
    c->rank = (uint32_t)rank;
    c->n_rank = (uint32_t)n_rank;
    code = find_nodes(c);
    if (code == MPI_SUCCESS) return LG_OK;
    err_text(code, text, cap_bytes);
    return LG_E_COMM;
}

LG_API extern const lg_comm_module lg_comm_entry;
const lg_comm_module lg_comm_entry = {LG_COMM_MODULE_VERSION, sizeof(lg_comm), mpi_open};
