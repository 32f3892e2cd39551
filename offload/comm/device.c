/* Collectives on a device's memory, over one of three transports. */
#include "offload/comm/internal.h"

#include "data/alloc.h"
#include "data/log.h"
#include "model/plan/plan.h"
#include "offload/comm/nccl.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STAGING_BYTES ((size_t)4 << 20)
/* NCCL does not say how much it will take. Up to 32 channels with the connections of a ring and a
 * tree, three to receive by, each of some 10 MiB: 4 are NCCL_BUFFSIZE, the rest is for short
 * messages. */
#define NCCL_BYTES ((size_t)1 << 30)

enum transport {
    TRANSPORT_NONE,
    TRANSPORT_MPI,
    TRANSPORT_STAGED,
    TRANSPORT_NCCL,
    TRANSPORT_PLANNED
};

struct reduction {
    float *data;
    size_t n;
    int root;
    struct stream *stream;
};

struct attached {
    struct device *device;
    enum transport transport;

    /* TRANSPORT_MPI: reductions that were begun */
    MPI_Request *requests;
    int n_requests, requests_capacity;

    /* TRANSPORT_STAGED */
    char *staging;               /* STAGING_BYTES of pinned host memory */
    struct event *staging_empty; /* recorded after the last copy out of it */
    struct reduction *later;     /* (n_later) reductions that wait for comm_device_finish */
    size_t n_later, later_capacity;

    /* TRANSPORT_NCCL */
    struct nccl *nccl;
    size_t nccl_taken; /* of device memory, when it was connected */
    atomic_flag failing;
    pthread_t watch;
    sem_t watch_ends;
};

/* ---- NCCL ---- */

/* Ends the program on all ranks. All ranks see the fault; the lowest of them says so, and takes the
 * others with it: the next one leaves it two seconds, since a launcher may take one to end them. */
static _Noreturn void nccl_failed(struct comm *c, const struct zf_error *err)
{
    if (atomic_flag_test_and_set(&c->attached->failing))
        for (;;)
            pause(); /* the other thread is about to end the program */
    sleep(2 * (unsigned)(c->rank < 10 ? c->rank : 10));
    /* MPI_Abort is not promised to work in the watching thread. If it does not, the signal ends
     * this rank, and the launcher the others. */
    alarm(10);
    comm_abort(c, err);
}

#define check_nccl(c, call)                                                                        \
    do {                                                                                           \
        struct zf_error err;                                                                       \
        place_enter(#call);                                                                        \
        bool ok_ = call;                                                                           \
        place_leave();                                                                             \
        if (!ok_)                                                                                  \
            nccl_failed(c, &err);                                                                  \
    } while (0)

/* Asks once a second whether a peer has failed. The main thread cannot: when a peer is gone, it may
 * be waiting for a stream that will never get there. */
static void *watch(void *argument)
{
    struct comm *c = argument;
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (sem_timedwait(&c->attached->watch_ends, &until) == 0)
            return NULL;
        if (errno == ETIMEDOUT)
            check_nccl(c, nccl_healthy(c->attached->nccl, &err));
    }
}

/* The devices of the ranks on this machine are different ones. */
static bool devices_differ(struct comm *c, struct zf_error *err)
{
    char mine[32] = "", *all = zf_calloc((size_t)c->local_size, sizeof mine);
    bool ok = nccl_device_name(mine, sizeof mine, err);
    MPI_Comm node;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    check_mpi(MPI_Allgather(mine, sizeof mine, MPI_CHAR, all, sizeof mine, MPI_CHAR, node));
    check_mpi(MPI_Comm_free(&node));
    for (int r = 0; r < c->local_size && ok; r++)
        if (r != c->local_rank && strcmp(mine, all + (size_t)r * sizeof mine) == 0)
            ok = zf_fail(err, "several ranks share the GPU %s", mine);
    free(all);
    return ok;
}

/* Whether all ranks can use NCCL; if not, why. */
static bool nccl_usable(struct comm *c, struct attached *a, struct zf_error *err)
{
    const char *wish = getenv("ZF_COMM");
    bool ok;
    if (wish && strcmp(wish, "mpi") != 0) {
        zf_fail(err, "the environment's ZF_COMM is \"%s\", but it can only be \"mpi\"", wish);
        comm_abort(c, err);
    }
    if (wish)
        ok = zf_fail(err, "ZF_COMM is \"mpi\"");
    else
        ok = (a->nccl = nccl_open(err)) != NULL;
    return comm_all_ok(c, ok, err) && comm_all_ok(c, devices_differ(c, err), err);
}

static void attach_nccl(struct comm *c, struct attached *a)
{
    struct nccl_id id;
    if (c->rank == 0)
        check_nccl(c, nccl_make_id(a->nccl, &id, &err));
    comm_broadcast(c, &id, sizeof id, 0);
    const size_t before = a->device->free_bytes();
    check_nccl(c, nccl_connect(a->nccl, &id, c->rank, c->size, &err));
    const size_t after = a->device->free_bytes();
    a->nccl_taken = before > after ? before - after : 0;
    a->transport = TRANSPORT_NCCL;
    sem_init(&a->watch_ends, 0, 0);
    if (pthread_create(&a->watch, NULL, watch, c) != 0) {
        struct zf_error err;
        zf_fail(&err, "cannot start a thread to watch NCCL");
        comm_abort(c, &err);
    }
}

/* ---- MPI through host memory ---- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void stage_down(struct attached *a, struct stream *s, const void *data, size_t bytes)
{
    a->device->event_order(s, a->staging_empty);
    a->device->copy(s, a->staging, data, bytes);
    a->device->stream_wait(s);
}

static void stage_up(struct attached *a, struct stream *s, void *data, size_t bytes)
{
    a->device->copy(s, data, a->staging, bytes);
    a->device->event_record(a->staging_empty, s);
}

static void staged_all_reduce(struct attached *a, struct stream *s, float *data, size_t n)
{
    for (size_t k; n > 0; data += k, n -= k) {
        k = least(n, STAGING_BYTES / sizeof *data);
        stage_down(a, s, data, k * sizeof *data);
        check_mpi(
            MPI_Allreduce(MPI_IN_PLACE, a->staging, (int)k, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
        stage_up(a, s, data, k * sizeof *data);
    }
}

static void staged_reduce(struct comm *c, struct reduction *r)
{
    struct attached *a = c->attached;
    bool root = r->root == c->rank;
    for (size_t done = 0, k; done < r->n; done += k) {
        k = least(r->n - done, STAGING_BYTES / sizeof(float));
        stage_down(a, r->stream, r->data + done, k * sizeof(float));
        check_mpi(MPI_Reduce(root ? MPI_IN_PLACE : a->staging, root ? a->staging : NULL, (int)k,
                             MPI_FLOAT, MPI_SUM, r->root, MPI_COMM_WORLD));
        if (root)
            stage_up(a, r->stream, r->data + done, k * sizeof(float));
    }
}

static void staged_broadcast(struct comm *c, struct stream *s, char *data, size_t bytes, int root)
{
    struct attached *a = c->attached;
    for (size_t k; bytes > 0; data += k, bytes -= k) {
        k = least(bytes, STAGING_BYTES);
        if (root == c->rank)
            stage_down(a, s, data, k);
        else
            a->device->event_wait(a->staging_empty);
        check_mpi(MPI_Bcast(a->staging, (int)k, MPI_BYTE, root, MPI_COMM_WORLD));
        if (root != c->rank)
            stage_up(a, s, data, k);
    }
}

/* Waits for comm_device_finish: the host would otherwise wait for the stream in the middle of
 * backward, and the device then for the host. */
static void staged_reduce_later(struct attached *a, const struct reduction *r)
{
    if (a->n_later == a->later_capacity) {
        a->later_capacity = a->later_capacity ? 2 * a->later_capacity : 64;
        a->later = zf_realloc(a->later, sizeof *a->later * a->later_capacity);
    }
    a->later[a->n_later++] = *r;
}

/* ---- MPI on memory that is the host's ---- */

static void mpi_reduce_begin(struct comm *c, const struct reduction *r)
{
    struct attached *a = c->attached;
    for (size_t done = 0; done < r->n;) {
        int k = comm_piece(r->n - done);
        if (a->n_requests == a->requests_capacity) {
            a->requests_capacity = a->requests_capacity ? 2 * a->requests_capacity : 64;
            a->requests =
                zf_realloc(a->requests, sizeof *a->requests * (size_t)a->requests_capacity);
        }
        const bool root = r->root == c->rank;
        float *data = r->data + done;
        check_mpi(MPI_Ireduce(root ? MPI_IN_PLACE : data, root ? data : NULL, k, MPI_FLOAT, MPI_SUM,
                              r->root, MPI_COMM_WORLD, &a->requests[a->n_requests++]));
        done += (size_t)k;
    }
}

/* ---- planned ---- */

/* All ranks' links carry a ring's share of it: n bytes for a reduction to owners or a gathering, of
 * which each rank has sent or got all but its own part; twice that for a sum that all get. In a
 * group, operations of different roots use different links of the ring at a time: as much passes
 * each link as if they were one. */
static void plan_ring(const struct comm *c, struct stream *s, double bytes, int rounds)
{
    plan_exchange(c->attached->device->plan, s, bytes * (c->size - 1) / c->size, rounds);
}

/* ---- the interface ---- */

static void attach_staged(struct attached *a)
{
    a->transport = TRANSPORT_STAGED;
    a->staging = a->device->allocate_host(STAGING_BYTES);
    a->staging_empty = a->device->event_create();
}

void comm_attach(struct comm *c, struct device *device)
{
    struct zf_error why;
    comm_detach(c);
    struct attached *a = c->attached = zf_calloc(1, sizeof *a);
    a->device = device;
    if (c->size == 1)
        return;
    if (c->planned) {
        a->transport = TRANSPORT_PLANNED;
        c->plan = device->plan;
    } else if (device->unified) {
        a->transport = TRANSPORT_MPI;
    } else if (nccl_usable(c, a, &why)) {
        attach_nccl(c, a);
    } else {
        log_info("ranks exchange gradients through host memory, not by NCCL: %s", why.text);
        attach_staged(a);
    }
}

void comm_detach(struct comm *c)
{
    struct attached *a = c->attached;
    if (!a)
        return;
    if (a->transport == TRANSPORT_NCCL) {
        sem_post(&a->watch_ends);
        pthread_join(a->watch, NULL);
        sem_destroy(&a->watch_ends);
    }
    if (a->nccl)
        nccl_close(a->nccl);
    if (a->transport == TRANSPORT_STAGED) {
        a->device->event_wait(a->staging_empty);
        a->device->event_destroy(a->staging_empty);
        a->device->release_host(a->staging);
    }
    free(a->requests);
    free(a->later);
    free(a);
    c->attached = NULL;
    c->plan = NULL;
}

const char *comm_device_transport(const struct comm *c)
{
    static const char *const names[] = {"none", "MPI", "MPI through host memory", "NCCL",
                                        "planned"};
    return names[c->attached->transport];
}

size_t comm_device_allowance(const struct comm *c)
{
    const struct attached *a = c->attached;
    bool by_nccl = a && (a->transport == TRANSPORT_NCCL ||
                         (a->transport == TRANSPORT_PLANNED && !a->device->is_cpu));
    return by_nccl && a->nccl_taken < NCCL_BYTES ? NCCL_BYTES - a->nccl_taken : 0;
}

void comm_device_all_reduce(struct comm *c, struct stream *s, float *data, size_t n)
{
    struct attached *a = c->attached;
    if (n == 0 || a->transport == TRANSPORT_NONE)
        return;
    c->sums.to_all += n * sizeof *data;
    switch (a->transport) {
    case TRANSPORT_NONE:
        break;
    case TRANSPORT_MPI:
        a->device->stream_wait(s);
        comm_all_reduce_f32(c, data, n);
        break;
    case TRANSPORT_STAGED:
        staged_all_reduce(a, s, data, n);
        break;
    case TRANSPORT_NCCL:
        check_nccl(c, nccl_all_reduce(a->nccl, s, data, n, &err));
        break;
    case TRANSPORT_PLANNED:
        plan_ring(c, s, 2 * sizeof *data * (double)n, 1);
    }
}

void comm_device_finish(struct comm *c, struct stream *s)
{
    struct attached *a = c->attached;
    switch (a->transport) {
    case TRANSPORT_NONE:
        break;
    case TRANSPORT_MPI:
        if (a->n_requests > 0)
            check_mpi(MPI_Waitall(a->n_requests, a->requests, MPI_STATUSES_IGNORE));
        a->n_requests = 0;
        break;
    case TRANSPORT_STAGED:
        for (size_t i = 0; i < a->n_later; i++) {
            assert(a->later[i].stream == s);
            staged_reduce(c, &a->later[i]);
        }
        a->n_later = 0;
        break;
    case TRANSPORT_NCCL:
    case TRANSPORT_PLANNED:
        break;
    }
}

/* A rank's part of an array goes to all. own: where it comes from */
static void broadcast(struct comm *c, struct stream *s, const void *own, void *data, size_t bytes,
                      int root)
{
    struct attached *a = c->attached;
    if (root == c->rank && own != data)
        a->device->copy(s, data, own, bytes);
    if (a->transport == TRANSPORT_MPI) {
        a->device->stream_wait(s);
        comm_broadcast(c, data, bytes, root);
    } else {
        staged_broadcast(c, s, data, bytes, root);
    }
}

/* A rank's bytes of an array: where they begin, and how many there are. */
struct piece {
    size_t at, bytes;
};

static struct piece piece_of(const struct comm_shares *array, int rank)
{
    if (array->owner != COMM_DIVIDED)
        return (struct piece){0, rank == array->owner ? array->bytes : 0};
    const size_t at = least((size_t)rank * array->part, array->bytes);
    return (struct piece){at, least(array->part, array->bytes - at)};
}

/* Where this rank's part comes from. */
static const void *own_part(const struct comm *c, const struct comm_shares *array)
{
    const size_t at = array->owner == COMM_DIVIDED ? (size_t)c->rank * array->part : 0;
    return array->own ? array->own : (const char *)array->data + at;
}

static void nccl_gather(struct comm *c, struct stream *s, const struct comm_shares *array)
{
    struct nccl *n = c->attached->nccl;
    const void *own = own_part(c, array);
    if (array->owner == COMM_DIVIDED)
        check_nccl(c, nccl_all_gather(n, s, own, array->data, array->part, &err));
    else
        check_nccl(c, nccl_broadcast(n, s, c->rank == array->owner ? own : array->data, array->data,
                                     array->bytes, array->owner, &err));
}

static void gather(struct comm *c, struct stream *s, const struct comm_shares *array)
{
    if (c->attached->transport == TRANSPORT_NCCL) {
        nccl_gather(c, s, array);
        return;
    }
    for (int r = 0; r < c->size; r++) {
        const struct piece piece = piece_of(array, r);
        if (piece.bytes > 0)
            broadcast(c, s, own_part(c, array), (char *)array->data + piece.at, piece.bytes, r);
    }
}

static void nccl_reduce_array(struct comm *c, struct stream *s, const struct comm_shares *array)
{
    struct nccl *n = c->attached->nccl;
    if (array->owner == COMM_DIVIDED)
        check_nccl(
            c, nccl_reduce_scatter(n, s, array->data, array->part / sizeof(float), c->rank, &err));
    else
        check_nccl(
            c, nccl_reduce(n, s, array->data, array->bytes / sizeof(float), array->owner, &err));
}

static void reduce(struct comm *c, struct stream *s, const struct comm_shares *array)
{
    if (c->attached->transport == TRANSPORT_NCCL) {
        nccl_reduce_array(c, s, array);
        return;
    }
    for (int r = 0; r < c->size; r++) {
        const struct piece piece = piece_of(array, r);
        const struct reduction sum = {(float *)((char *)array->data + piece.at),
                                      piece.bytes / sizeof(float), r, s};
        if (sum.n > 0 && c->attached->transport == TRANSPORT_MPI)
            mpi_reduce_begin(c, &sum);
        else if (sum.n > 0)
            staged_reduce_later(c->attached, &sum);
    }
}

/* What n arrays have for all ranks, what of it travels, and NCCL's calls for them. */
struct group_work {
    size_t bytes, travelling;
    int calls;
};

static struct group_work count_work(const struct comm *c, const struct comm_shares *arrays, int n)
{
    struct group_work g = {0};
    for (int i = 0; i < n; i++) {
        const struct comm_shares *array = &arrays[i];
        g.bytes += array->bytes;
        g.travelling += array->owner == COMM_DIVIDED ? (size_t)c->size * array->part : array->bytes;
        g.calls += array->bytes > 0;
    }
    return g;
}

/* One operation on each of n arrays, all of them one for NCCL. */
static void for_arrays(struct comm *c, struct stream *s, const struct comm_shares *arrays, int n,
                       void (*operate)(struct comm *, struct stream *, const struct comm_shares *))
{
    struct attached *a = c->attached;
    const struct group_work g = count_work(c, arrays, n);
    if (a->transport == TRANSPORT_NONE || g.calls == 0)
        return;
    if (a->transport == TRANSPORT_PLANNED) {
        plan_ring(c, s, (double)g.travelling, g.calls);
        return;
    }
    if (a->transport == TRANSPORT_MPI)
        a->device->stream_wait(s);
    if (a->transport == TRANSPORT_NCCL)
        check_nccl(c, nccl_group_begin(a->nccl, &err));
    for (int i = 0; i < n; i++)
        if (arrays[i].bytes > 0)
            operate(c, s, &arrays[i]);
    if (a->transport == TRANSPORT_NCCL)
        check_nccl(c, nccl_group_end(a->nccl, &err));
}

void comm_device_all_gather(struct comm *c, struct stream *s, const struct comm_shares *arrays,
                            int n)
{
    for_arrays(c, s, arrays, n, gather);
}

void comm_device_reduce(struct comm *c, struct stream *s, const struct comm_shares *arrays, int n)
{
    if (c->attached->transport != TRANSPORT_NONE)
        c->sums.to_owners += count_work(c, arrays, n).bytes;
    for_arrays(c, s, arrays, n, reduce);
}

struct comm_sums comm_device_sums(const struct comm *c)
{
    return c->sums;
}
