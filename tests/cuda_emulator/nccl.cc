/* NCCL over MPI. A group of operations begins when its stream gets there and all groups of the
 * communicator before it have begun; then it is a number of non-blocking MPI collectives, which the
 * stream asks about until they are done. Until then its results are poison.
 *
 * On a GPU, streams go on while the host waits for another rank. Here nothing runs unless this
 * thread runs it; and a rank that sat in a blocking MPI call would keep its peers waiting for the
 * NCCL operations on its streams, which they may have to finish before they come to that call. So
 * the blocking MPI calls that the program uses are defined here (over their PMPI names): they begin
 * the non-blocking kind, and run streams until it is done.
 *
 * Environment: ZF_EMULATOR_NCCL_FAULT, after how many groups a peer seems gone: operations then
 * never end, and the communicator says ncclRemoteError. */
#include "internal.h"
#include "streams.h"

#include <atomic>
#include <memory>
#include <mpi.h>
#include <nccl.h>
#include <sched.h>
#include <string.h>
#include <vector>

struct ncclComm {
    MPI_Comm mpi;
    int rank, size;
    long enqueued, begun; /* groups */
    long fault_after;     /* or -1 */
    bool blocking;
    std::atomic<int> busy;   /* how often it will yet say that it is in progress */
    std::atomic<bool> fault; /* read by other threads */
};

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER };

struct collective {
    enum kind kind;
    const char *data;
    char *result;
    size_t bytes; /* of the data */
    int root;
    std::vector<char> sent, received; /* ordinary memory, for MPI */
    bool is_read(const ncclComm *c) const
    {
        return kind != BROADCAST || root == c->rank;
    }
    bool is_written(const ncclComm *c) const
    {
        if (kind == REDUCE)
            return root == c->rank;
        return kind != BROADCAST || root != c->rank || data != result;
    }
    size_t result_bytes(const ncclComm *c) const
    {
        return kind == ALL_GATHER       ? bytes * (size_t)c->size
               : kind == REDUCE_SCATTER ? bytes / (size_t)c->size
                                        : bytes;
    }
    /* Whether what it reads is a part of what it writes, or the other way round. */
    bool in_place(const ncclComm *c) const
    {
        return data < result + result_bytes(c) && result < data + bytes;
    }
};

struct group {
    ncclComm_t comm;
    cudaStream_t stream;
    long number; /* in its communicator */
    bool begun;
    std::vector<collective> collectives;
    std::vector<MPI_Request> requests;
};

static int group_depth;
static std::shared_ptr<group> open_group;

static void check_mpi(int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &n);
    emulator_fault("NCCL over MPI: %s", text);
}

/* ---- operations ---- */

static MPI_Request begin_collective(collective &c, ncclComm_t comm)
{
    MPI_Request request;
    int floats = (int)(c.bytes / sizeof(float));
    c.received.resize(c.result_bytes(comm));
    if (c.is_read(comm))
        c.sent.assign(c.data, c.data + c.bytes);
    if (c.is_written(comm))
        memset(c.result, POISON, c.result_bytes(comm));
    switch (c.kind) {
    case ALL_REDUCE:
        check_mpi(MPI_Iallreduce(c.sent.data(), c.received.data(), floats, MPI_FLOAT, MPI_SUM,
                                 comm->mpi, &request));
        break;
    case REDUCE:
        check_mpi(MPI_Ireduce(c.sent.data(), c.received.data(), floats, MPI_FLOAT, MPI_SUM, c.root,
                              comm->mpi, &request));
        break;
    case BROADCAST:
        if (c.root == comm->rank)
            c.received = c.sent;
        check_mpi(
            MPI_Ibcast(c.received.data(), (int)c.bytes, MPI_BYTE, c.root, comm->mpi, &request));
        break;
    case ALL_GATHER:
        check_mpi(MPI_Iallgather(c.sent.data(), (int)c.bytes, MPI_BYTE, c.received.data(),
                                 (int)c.bytes, MPI_BYTE, comm->mpi, &request));
        break;
    case REDUCE_SCATTER:
        check_mpi(MPI_Ireduce_scatter_block(c.sent.data(), c.received.data(), floats / comm->size,
                                            MPI_FLOAT, MPI_SUM, comm->mpi, &request));
    }
    return request;
}

/* The operation may have read its data, and written its result, at any time since it began. */
static void end_collective(const collective &c, ncclComm_t comm)
{
    if (c.is_written(comm))
        for (size_t i = 0; i < c.result_bytes(comm); i++)
            if ((unsigned char)c.result[i] != POISON)
                emulator_fault("the result of an NCCL operation was written by others before the "
                               "operation was done (byte %zu of %zu)",
                               i, c.result_bytes(comm));
    if (c.is_read(comm) && !c.in_place(comm) && memcmp(c.data, c.sent.data(), c.bytes) != 0)
        emulator_fault("the data of an NCCL operation changed before the operation was done");
    if (c.is_written(comm))
        memcpy(c.result, c.received.data(), c.result_bytes(comm));
}

static emulator_progress run_group(group &g)
{
    ncclComm_t comm = g.comm;
    int done;
    if (comm->fault_after >= 0 && g.number >= comm->fault_after) {
        comm->fault = true;
        return EMULATOR_NOT_YET;
    }
    if (!g.begun && g.number != comm->begun)
        return EMULATOR_NOT_YET;
    if (!g.begun) {
        g.begun = true;
        comm->begun++;
        for (collective &c : g.collectives)
            g.requests.push_back(begin_collective(c, comm));
    }
    check_mpi(MPI_Testall((int)g.requests.size(), g.requests.data(), &done, MPI_STATUSES_IGNORE));
    if (!done)
        return EMULATOR_NOT_YET;
    for (const collective &c : g.collectives)
        end_collective(c, comm);
    return EMULATOR_DONE;
}

/* What a call of a non-blocking communicator may return. */
static ncclResult_t some_progress(ncclComm_t comm)
{
    if (!comm->blocking)
        comm->busy = (int)emulator_random_below(3);
    return comm->busy > 0 ? ncclInProgress : ncclSuccess;
}

static ncclResult_t enqueue(const std::shared_ptr<group> &g)
{
    g->number = g->comm->enqueued++;
    emulator_enqueue(g->stream, "an NCCL operation", [g] { return run_group(*g); });
    return some_progress(g->comm);
}

static ncclResult_t add(ncclComm_t comm, cudaStream_t stream, const collective &c)
{
    emulator_enter("an NCCL operation");
    if (comm->busy > 0)
        emulator_fault("an NCCL operation is put on a stream while the communicator is still in "
                       "progress");
    if (c.is_read(comm))
        emulator_check_range("the data of an NCCL operation", c.data, c.bytes);
    if (c.is_written(comm))
        emulator_check_range("the result of an NCCL operation", c.result, c.result_bytes(comm));
    std::shared_ptr<group> g = open_group;
    if (!g)
        g = std::make_shared<group>(group{comm, stream, 0, false, {}, {}});
    if (g->comm != comm || g->stream != stream)
        emulator_fault("an NCCL group has several streams or communicators: the emulator has no "
                       "such groups");
    g->collectives.push_back(c);
    if (group_depth == 0)
        return enqueue(g);
    open_group = g;
    return ncclSuccess;
}

static size_t size_of(size_t count, ncclDataType_t type)
{
    return type == ncclFloat32 ? count * sizeof(float) : count;
}

ncclResult_t ncclGroupStart(void)
{
    emulator_enter("ncclGroupStart");
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    emulator_enter("ncclGroupEnd");
    if (group_depth == 0)
        return ncclInvalidUsage;
    if (--group_depth > 0 || !open_group)
        return ncclSuccess;
    std::shared_ptr<group> g = std::move(open_group);
    open_group = NULL;
    return enqueue(g);
}

ncclResult_t ncclAllReduce(const void *data, void *result, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclFloat32)
        return ncclInvalidArgument;
    return add(comm, stream,
               {ALL_REDUCE, (const char *)data, (char *)result, size_of(count, type), 0, {}, {}});
}

ncclResult_t ncclReduce(const void *data, void *result, size_t count, ncclDataType_t type,
                        ncclRedOp_t, int root, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclFloat32)
        return ncclInvalidArgument;
    return add(comm, stream,
               {REDUCE, (const char *)data, (char *)result, size_of(count, type), root, {}, {}});
}

ncclResult_t ncclBroadcast(const void *data, void *result, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, stream,
               {BROADCAST, (const char *)data, (char *)result, size_of(count, type), root, {}, {}});
}

/* part: of `whole`, which has as much of each rank; they are apart, or the part is this rank's. */
static void check_parts(const char *part, const char *whole, size_t bytes, ncclComm_t comm)
{
    if (part + bytes > whole && part < whole + bytes * (size_t)comm->size &&
        part != whole + (size_t)comm->rank * bytes)
        emulator_fault("an NCCL operation is in place, but a rank's part is not in its place");
}

ncclResult_t ncclAllGather(const void *data, void *result, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = size_of(count, type);
    check_parts((const char *)data, (const char *)result, bytes, comm);
    return add(comm, stream, {ALL_GATHER, (const char *)data, (char *)result, bytes, 0, {}, {}});
}

ncclResult_t ncclReduceScatter(const void *data, void *result, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = size_of(count, type);
    if (type != ncclFloat32)
        return ncclInvalidArgument;
    check_parts((const char *)result, (const char *)data, bytes, comm);
    return add(comm, stream,
               {REDUCE_SCATTER,
                (const char *)data,
                (char *)result,
                bytes * (size_t)comm->size,
                0,
                {},
                {}});
}

/* ---- communicators ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    for (char &c : id->internal)
        c = (char)emulator_random();
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    int world_size, world_rank, device;
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &world_size));
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
    if (size != world_size || rank != world_rank)
        emulator_fault("an NCCL communicator has rank %d of %d, MPI %d of %d: the emulator wants "
                       "them the same",
                       rank, size, world_rank, world_size);
    emulator_drain();
    ncclComm_t comm = *made = new ncclComm();
    comm->rank = rank;
    comm->size = size;
    comm->blocking = config->blocking != 0;
    comm->fault_after = emulator_environment("ZF_EMULATOR_NCCL_FAULT", -1);
    check_mpi(PMPI_Comm_dup(MPI_COMM_WORLD, &comm->mpi));

    ncclUniqueId theirs = id;
    check_mpi(PMPI_Bcast(&theirs, sizeof theirs, MPI_BYTE, 0, comm->mpi));
    if (memcmp(&theirs, &id, sizeof id) != 0)
        emulator_fault("ranks make an NCCL communicator of different identifiers");
    std::vector<int> devices((size_t)size);
    cudaGetDevice(&device);
    check_mpi(PMPI_Allgather(&device, 1, MPI_INT, devices.data(), 1, MPI_INT, comm->mpi));
    for (int r = 0; r < size; r++)
        if (r != rank && devices[(size_t)r] == device)
            return ncclInvalidUsage; /* as NCCL: a device twice */
    return some_progress(comm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    emulator_drain();
    return some_progress(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->begun != comm->enqueued)
        emulator_fault("an NCCL communicator is destroyed while operations are on streams");
    check_mpi(PMPI_Comm_free(&comm->mpi));
    delete comm;
    return ncclSuccess;
}

/* Any thread may ask. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    int busy = comm->busy;
    *error = comm->fault ? ncclRemoteError : busy > 0 ? ncclInProgress : ncclSuccess;
    if (busy > 0)
        comm->busy.compare_exchange_strong(busy, busy - 1);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "invalid usage";
    }
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

/* ---- MPI calls that wait ---- */

/* Streams go on until all requests are done. */
static int wait_for(int n, MPI_Request *requests, MPI_Status *statuses)
{
    for (int done = 0;;) {
        int code = MPI_Testall(n, requests, &done, statuses);
        if (code != MPI_SUCCESS || done)
            return code;
        emulator_run_some();
        sched_yield();
    }
}

static int wait_if(int code, MPI_Request request)
{
    return code != MPI_SUCCESS ? code : wait_for(1, &request, MPI_STATUSES_IGNORE);
}

int MPI_Allreduce(const void *data, void *result, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm)
{
    MPI_Request request;
    int code = MPI_Iallreduce(data, result, count, type, op, comm, &request);
    return wait_if(code, request);
}

int MPI_Reduce(const void *data, void *result, int count, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm)
{
    MPI_Request request;
    int code = MPI_Ireduce(data, result, count, type, op, root, comm, &request);
    return wait_if(code, request);
}

int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    MPI_Request request;
    int code = MPI_Ibcast(data, count, type, root, comm, &request);
    return wait_if(code, request);
}

int MPI_Allgather(const void *data, int count, MPI_Datatype type, void *result, int result_count,
                  MPI_Datatype result_type, MPI_Comm comm)
{
    MPI_Request request;
    int code = MPI_Iallgather(data, count, type, result, result_count, result_type, comm, &request);
    return wait_if(code, request);
}

int MPI_Barrier(MPI_Comm comm)
{
    MPI_Request request;
    int code = MPI_Ibarrier(comm, &request);
    return wait_if(code, request);
}

int MPI_Waitall(int n, MPI_Request *requests, MPI_Status *statuses)
{
    return wait_for(n, requests, statuses);
}

/* Those without a non-blocking kind: first all streams run empty. */
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made)
{
    emulator_drain();
    return PMPI_Comm_split_type(comm, type, key, info, made);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    emulator_drain();
    return PMPI_Comm_free(comm);
}

int MPI_Finalize(void)
{
    emulator_drain();
    return PMPI_Finalize();
}
