#include "offload/comm/nccl.h"

#include <stddef.h>

#ifndef ZF_CUDA

#pragma GCC diagnostic ignored "-Wunused-parameter"

struct nccl *nccl_open(struct zf_error *err)
{
    zf_fail(err, "this program was built without CUDA");
    return NULL;
}

/* Nobody has a struct nccl to call the others with. */
#define ABSENT(name, ...)                                                                          \
    bool name(__VA_ARGS__, struct zf_error *err)                                                   \
    {                                                                                              \
        return false;                                                                              \
    }
ABSENT(nccl_device_name, char *name, int size)
ABSENT(nccl_make_id, struct nccl *n, struct nccl_id *id)
ABSENT(nccl_connect, struct nccl *n, const struct nccl_id *id, int rank, int size)
ABSENT(nccl_healthy, struct nccl *n)
ABSENT(nccl_group_begin, struct nccl *n)
ABSENT(nccl_group_end, struct nccl *n)
ABSENT(nccl_all_reduce, struct nccl *n, struct stream *s, float *data, size_t count)
ABSENT(nccl_reduce, struct nccl *n, struct stream *s, float *data, size_t count, int root)
ABSENT(nccl_reduce_scatter, struct nccl *n, struct stream *s, float *data, size_t count, int rank)
ABSENT(nccl_broadcast, struct nccl *n, struct stream *s, const void *source, void *data,
       size_t bytes, int root)
ABSENT(nccl_all_gather, struct nccl *n, struct stream *s, const void *source, void *data,
       size_t bytes)

void nccl_close(struct nccl *n)
{
}

#else

#include "data/alloc.h"
#include "data/clock.h"
#include "model/device/device.h"

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_SECONDS 120

/* The functions that are used, without "nccl" before their names. */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(GetUniqueId)                                                                                 \
    X(CommInitRankConfig)                                                                          \
    X(CommFinalize)                                                                                \
    X(CommDestroy)                                                                                 \
    X(CommGetAsyncError)                                                                           \
    X(GetErrorString)                                                                              \
    X(GetLastError)                                                                                \
    X(GroupStart)                                                                                  \
    X(GroupEnd)                                                                                    \
    X(AllReduce)                                                                                   \
    X(Reduce)                                                                                      \
    X(Broadcast)                                                                                   \
    X(AllGather)                                                                                   \
    X(ReduceScatter)

struct nccl {
    ncclComm_t comm;      /* or NULL */
    pthread_mutex_t lock; /* around every call: the watching thread's question may complete what a
                             call of the main thread's has begun */
    bool in_group;
#define DECLARE(name) __typeof__(&nccl##name) name;
    NCCL_FUNCTIONS(DECLARE)
#undef DECLARE
};

static void lock(struct nccl *n)
{
    pthread_mutex_lock(&n->lock);
}

static ncclResult_t unlock(struct nccl *n, ncclResult_t result)
{
    pthread_mutex_unlock(&n->lock);
    return result;
}

/* CALL(n, GroupStart) is ncclGroupStart() under the lock. */
#define CALL(n, name, ...) (lock(n), unlock(n, (n)->name(__VA_ARGS__)))

#ifdef ZF_CUDA_EMULATED
static bool load(struct nccl *n, struct zf_error *err)
{
    (void)err;
#define LOAD(name) n->name = nccl##name;
    NCCL_FUNCTIONS(LOAD)
#undef LOAD
    return true;
}
#else
static bool load(struct nccl *n, struct zf_error *err)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return zf_fail(err, "NCCL cannot be loaded: %s", dlerror());
#define LOAD(name)                                                                                 \
    *(void **)&n->name = dlsym(library, "nccl" #name);                                             \
    if (!n->name)                                                                                  \
        return zf_fail(err, "libnccl.so.2 has no function nccl" #name ": it is too old");
    NCCL_FUNCTIONS(LOAD)
#undef LOAD
    return true;
}
#endif

struct nccl *nccl_open(struct zf_error *err)
{
    struct nccl *n = zf_calloc(1, sizeof *n);
    if (!load(n, err)) {
        free(n);
        return NULL;
    }
    /* Rings and trees add in the same order in every run. Sums inside NVLink switches are not
     * promised to; whoever prefers their speed sets this variable. */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    pthread_mutex_init(&n->lock, NULL);
    return n;
}

/* What a call came to. Calls of a non-blocking communicator may return while they are still in
 * progress; no more may be put on a stream until that is over. `seconds` 0: as long as it takes. */
static bool settle(struct nccl *n, ncclResult_t result, const char *what, double seconds,
                   struct zf_error *err)
{
    double end = clock_seconds() + seconds;
    const struct timespec nap = {0, 20000};
    while (result == ncclInProgress && (seconds == 0 || clock_seconds() < end)) {
        nanosleep(&nap, NULL);
        ncclResult_t asked = CALL(n, CommGetAsyncError, n->comm, &result);
        if (asked != ncclSuccess)
            result = asked;
    }
    if (result == ncclSuccess)
        return true;
    if (result == ncclInProgress)
        return zf_fail(err, "NCCL: %s took more than %.0f seconds: is a rank gone?", what, seconds);
    const char *more = n->GetLastError(n->comm);
    return zf_fail(err, "NCCL: %s failed: %s%s%s", what, n->GetErrorString(result),
                   more && *more ? ": " : "", more ? more : "");
}

/* As settle, for an operation: within a group, nothing is in progress before the group's end. */
static bool settle_operation(struct nccl *n, ncclResult_t result, const char *what,
                             struct zf_error *err)
{
    if (n->in_group && result == ncclInProgress)
        return true;
    return settle(n, result, what, 0, err);
}

void nccl_close(struct nccl *n)
{
    struct zf_error err;
    if (n->comm) {
        settle(n, CALL(n, CommFinalize, n->comm), "the end", CONNECT_SECONDS, &err);
        CALL(n, CommDestroy, n->comm);
    }
    pthread_mutex_destroy(&n->lock);
    free(n);
}

bool nccl_device_name(char *name, int size, struct zf_error *err)
{
    int ordinal;
    if (cudaGetDevice(&ordinal) != cudaSuccess ||
        cudaDeviceGetPCIBusId(name, size, ordinal) != cudaSuccess)
        return zf_fail(err, "CUDA does not say which device this rank uses");
    return true;
}

bool nccl_make_id(struct nccl *n, struct nccl_id *id, struct zf_error *err)
{
    ncclUniqueId made;
    _Static_assert(sizeof made == sizeof *id, "NCCL's identifier has its size");
    if (!settle(n, CALL(n, GetUniqueId, &made), "a new communicator", CONNECT_SECONDS, err))
        return false;
    memcpy(id, &made, sizeof *id);
    return true;
}

bool nccl_connect(struct nccl *n, const struct nccl_id *id, int rank, int size,
                  struct zf_error *err)
{
    ncclUniqueId made;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    memcpy(&made, id, sizeof made);
    return settle(n, CALL(n, CommInitRankConfig, &n->comm, size, made, rank, &config),
                  "connecting the ranks", CONNECT_SECONDS, err);
}

bool nccl_healthy(struct nccl *n, struct zf_error *err)
{
    ncclResult_t result = ncclSuccess;
    ncclResult_t asked = CALL(n, CommGetAsyncError, n->comm, &result);
    if (asked != ncclSuccess)
        result = asked;
    return result == ncclInProgress || settle(n, result, "a collective", 0, err);
}

bool nccl_group_begin(struct nccl *n, struct zf_error *err)
{
    n->in_group = true;
    return settle(n, CALL(n, GroupStart), "the beginning of a group", 0, err);
}

bool nccl_group_end(struct nccl *n, struct zf_error *err)
{
    n->in_group = false;
    return settle(n, CALL(n, GroupEnd), "a group of collectives", 0, err);
}

bool nccl_all_reduce(struct nccl *n, struct stream *s, float *data, size_t count,
                     struct zf_error *err)
{
    ncclResult_t result = CALL(n, AllReduce, data, data, count, ncclFloat32, ncclSum, n->comm,
                               (cudaStream_t)device_cuda_stream(s));
    return settle_operation(n, result, "an all-reduce", err);
}

bool nccl_reduce(struct nccl *n, struct stream *s, float *data, size_t count, int root,
                 struct zf_error *err)
{
    ncclResult_t code = CALL(n, Reduce, data, data, count, ncclFloat32, ncclSum, root, n->comm,
                             (cudaStream_t)device_cuda_stream(s));
    return settle_operation(n, code, "a reduction", err);
}

bool nccl_reduce_scatter(struct nccl *n, struct stream *s, float *data, size_t count, int rank,
                         struct zf_error *err)
{
    ncclResult_t code = CALL(n, ReduceScatter, data, data + (size_t)rank * count, count,
                             ncclFloat32, ncclSum, n->comm, (cudaStream_t)device_cuda_stream(s));
    return settle_operation(n, code, "a reduction", err);
}

bool nccl_broadcast(struct nccl *n, struct stream *s, const void *source, void *data, size_t bytes,
                    int root, struct zf_error *err)
{
    ncclResult_t result = CALL(n, Broadcast, source, data, bytes, ncclUint8, root, n->comm,
                               (cudaStream_t)device_cuda_stream(s));
    return settle_operation(n, result, "a broadcast", err);
}

bool nccl_all_gather(struct nccl *n, struct stream *s, const void *source, void *data, size_t bytes,
                     struct zf_error *err)
{
    ncclResult_t result = CALL(n, AllGather, source, data, bytes, ncclUint8, n->comm,
                               (cudaStream_t)device_cuda_stream(s));
    return settle_operation(n, result, "an all-gather", err);
}

#endif
