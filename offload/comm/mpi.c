/* Collectives on host memory. */
#include "offload/comm/internal.h"

#include "data/log.h"
#include "model/plan/plan.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void comm_mpi_failed(int code, const char *call, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(code, text, &n);
    fprintf(stderr, "zf-train: %s:%d: %s failed: %s\n", file, line, call, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* Of a planned communicator: so many bytes, which go to all. */
static void plan_host(const struct comm *c, double bytes)
{
    if (c->size > 1 && c->plan)
        plan_host_exchange(c->plan, 2 * bytes * (c->size - 1) / c->size, 1);
}

void comm_all_reduce_f32(struct comm *c, float *data, size_t n)
{
    if (c->planned) {
        plan_host(c, sizeof *data * (double)n);
        return;
    }
    if (c->size == 1)
        return;
    for (int k; n > 0; data += k, n -= (size_t)k) {
        k = comm_piece(n);
        check_mpi(MPI_Allreduce(MPI_IN_PLACE, data, k, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    }
}

void comm_all_reduce_f64(struct comm *c, double *data, size_t n)
{
    if (c->planned) {
        plan_host(c, sizeof *data * (double)n);
        for (size_t i = 0; i < n; i++)
            data[i] *= c->size;
        return;
    }
    if (c->size == 1)
        return;
    for (int k; n > 0; data += k, n -= (size_t)k) {
        k = comm_piece(n);
        check_mpi(MPI_Allreduce(MPI_IN_PLACE, data, k, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    }
}

double comm_max(struct comm *c, double value)
{
    if (c->planned)
        plan_host(c, sizeof value);
    else if (c->size > 1)
        check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
    return value;
}

void comm_broadcast(struct comm *c, void *data, size_t bytes, int root)
{
    char *at = data;
    if (c->planned) {
        plan_host(c, (double)bytes);
        return;
    }
    if (c->size == 1)
        return;
    for (int k; bytes > 0; at += k, bytes -= (size_t)k) {
        k = comm_piece(bytes);
        check_mpi(MPI_Bcast(at, k, MPI_BYTE, root, MPI_COMM_WORLD));
    }
}

void comm_all_gather(struct comm *c, const void *mine, void *all, size_t bytes)
{
    assert(!c->planned && bytes <= INT_MAX);
    if (c->size == 1)
        memcpy(all, mine, bytes);
    else
        check_mpi(
            MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD));
}

void comm_barrier(struct comm *c)
{
    if (c->size > 1 && !c->planned)
        check_mpi(MPI_Barrier(MPI_COMM_WORLD));
}

const char *comm_library(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING]; /* "Open MPI v4.1.4, package: ..." */
    int length;
    check_mpi(MPI_Get_library_version(text, &length));
    text[strcspn(text, ",\n")] = 0;
    char *v = strstr(text, " v");
    if (v)
        memmove(v + 1, v + 2, strlen(v + 1));
    return text;
}

bool comm_all_ok(struct comm *c, bool ok, struct zf_error *err)
{
    if (c->size == 1 || c->planned)
        return ok;
    int failed = ok ? INT_MAX : c->rank;
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    if (failed == INT_MAX)
        return true;
    comm_broadcast(c, err, sizeof *err, failed);
    return false;
}

void comm_abort(struct comm *c, const struct zf_error *err)
{
    log_make_way();
    fprintf(stderr, "zf-train: %s\n", err->text);
    if (!c->alone)
        MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}
