/* The CUDA device: memory, streams, events and copies by the runtime.
 * One process uses one device. */
#include "model/cuda/cuda.cuh"
#include "model/cuda/cuda_ops.h"
#include "model/cuda/matmul.cuh"
#include "model/cuda/pinning.cuh"

extern "C" {
#include "data/alloc.h"
#include "model/device/numa.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_MAJOR 8

/* Ordinary host memory goes to the device through a few pinned slots: the copy into a slot is all
 * that the caller waits for, unless all of them are on their way. */
#define N_SLOTS    32
#define SLOT_BYTES ((size_t)256 << 10)

struct event {
    cudaEvent_t cuda;
};

struct slot {
    void *memory;
    struct event sent;
};

static struct {
    struct device device;
    struct stream compute;
    int ordinal;
    char address[32]; /* on the PCI bus */
    int node;         /* of the host's memory that is near it, or -1 */
    struct cudaDeviceProp properties;
    int least_priority, greatest_priority;
    struct slot slots[N_SLOTS];
    int next_slot;
    char *arena; /* reserved memory, or NULL: allocations come out of it one after another */
    size_t arena_bytes, arena_used;
    int arena_live; /* allocations that have not been released */
} cuda;

/* Memory. */

static size_t rounded(size_t bytes)
{
    return bytes ? (bytes + 255) / 256 * 256 : 256;
}

static size_t memory_free_bytes(void)
{
    size_t free_bytes, total;
    check_cuda(cudaMemGetInfo(&free_bytes, &total));
    return free_bytes + cuda.arena_bytes - cuda.arena_used;
}

static bool memory_reserve(size_t bytes, struct zf_error *err)
{
    if (cuda.arena)
        return zf_fail(err, "device memory is reserved already");
    if (cudaMalloc((void **)&cuda.arena, rounded(bytes)) != cudaSuccess) {
        cudaGetLastError(); /* it has been seen */
        cuda.arena = NULL;
        return zf_fail(err,
                       "the CUDA device cannot reserve %.2f GiB of memory: %.2f GiB of it are free",
                       (double)bytes / (1 << 30), (double)memory_free_bytes() / (1 << 30));
    }
    cuda.arena_bytes = rounded(bytes);
    cuda.arena_used = 0;
    return true;
}

static void *memory_allocate(size_t bytes)
{
    if (rounded(bytes) <= cuda.arena_bytes - cuda.arena_used) {
        void *memory = cuda.arena + cuda.arena_used;
        cuda.arena_used += rounded(bytes);
        cuda.arena_live++;
        return memory;
    }
    void *memory;
    cudaError_t code = cudaMalloc(&memory, bytes ? bytes : 1);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        fprintf(stderr,
                "zf-train: the CUDA device is out of memory: %zu bytes were needed, and %zu are "
                "free\n",
                bytes, memory_free_bytes());
        exit(1);
    }
    check_cuda(code);
    return memory;
}

/* The reserved piece goes back with the last allocation that came out of it. */
static void memory_release(void *memory)
{
    char *p = (char *)memory;
    if (!p)
        return;
    if (!cuda.arena || p < cuda.arena || p >= cuda.arena + cuda.arena_bytes) {
        check_cuda(cudaFree(p));
        return;
    }
    if (--cuda.arena_live > 0)
        return;
    check_cuda(cudaFree(cuda.arena));
    cuda.arena = NULL;
    cuda.arena_bytes = cuda.arena_used = 0;
}

/* Its pages are the ones that this thread would get. */
static void *host_allocate(size_t bytes)
{
    void *memory;
    if (cuda.node >= 0)
        numa_prefer_here(cuda.node);
    cudaError_t code = cudaMallocHost(&memory, bytes ? bytes : 1);
    if (cuda.node >= 0)
        numa_prefer_here(-1);
    if (code == cudaErrorMemoryAllocation) {
        fprintf(stderr,
                "zf-train: out of memory: %zu bytes of pinned host memory could not be "
                "allocated\n",
                bytes);
        exit(1);
    }
    check_cuda(code);
    return memory;
}

static void *host_allocate_later(size_t bytes)
{
    void *memory = pinning_allocate(bytes, cuda.ordinal, cuda.node);
    if (memory)
        return memory;
    fprintf(stderr, "zf-train: out of memory: %zu bytes of host memory could not be allocated\n",
            bytes);
    exit(1);
}

static void host_release(void *memory)
{
    if (memory && !pinning_release(memory))
        check_cuda(cudaFreeHost(memory));
}

/* Streams and events. */

static void open_stream(struct stream *s, int priority)
{
    check_cuda(cudaStreamCreateWithPriority(&s->cuda, cudaStreamNonBlocking, priority));
    s->scratch = NULL;
    s->scratch_bytes = 0;
}

/* Between those of collectives and of all else. Lower numbers go first. */
static int compute_priority(void)
{
    return (cuda.greatest_priority + cuda.least_priority) / 2;
}

static struct stream *stream_create(enum stream_priority priority)
{
    struct stream *s = (struct stream *)zf_malloc(sizeof *s);
    open_stream(s, priority == STREAM_FIRST ? cuda.greatest_priority : cuda.least_priority);
    return s;
}

static void stream_wait(struct stream *s)
{
    check_cuda(cudaStreamSynchronize(s->cuda));
}

static void stream_destroy(struct stream *s)
{
    stream_wait(s);
    if (s->scratch)
        check_cuda(cudaFree(s->scratch));
    check_cuda(cudaStreamDestroy(s->cuda));
    free(s);
}

static void open_event(struct event *event, unsigned flags)
{
    check_cuda(cudaEventCreateWithFlags(&event->cuda, flags));
}

static struct event *event_create(void)
{
    struct event *event = (struct event *)zf_malloc(sizeof *event);
    open_event(event, cudaEventDisableTiming);
    return event;
}

static struct event *event_create_timed(void)
{
    struct event *event = (struct event *)zf_malloc(sizeof *event);
    open_event(event, cudaEventDefault);
    return event;
}

static void event_destroy(struct event *event)
{
    check_cuda(cudaEventDestroy(event->cuda));
    free(event);
}

static void event_record(struct event *event, struct stream *s)
{
    check_cuda(cudaEventRecord(event->cuda, s->cuda));
}

static void event_order(struct stream *s, struct event *event)
{
    check_cuda(cudaStreamWaitEvent(s->cuda, event->cuda, 0));
}

static void event_wait(struct event *event)
{
    check_cuda(cudaEventSynchronize(event->cuda));
}

static bool event_passed(struct event *event)
{
    cudaError_t code = cudaEventQuery(event->cuda);
    if (code == cudaErrorNotReady)
        return false;
    check_cuda(code);
    return true;
}

/* Events of two streams pass in any order, and nobody promises that times are less than 0 then. */
static double event_elapsed(struct event *from, struct event *to)
{
    float milliseconds;
    check_cuda(cudaEventElapsedTime(&milliseconds, from->cuda, to->cuda));
    if (milliseconds > 0)
        return 1e-3 * milliseconds;
    check_cuda(cudaEventElapsedTime(&milliseconds, to->cuda, from->cuda));
    return -1e-3 * milliseconds;
}

static void stream_call(struct stream *s, void (*function)(void *), void *argument)
{
    check_cuda(cudaLaunchHostFunc(s->cuda, function, argument));
}

/* Copies. */

static enum cudaMemoryType memory_type(const void *memory)
{
    struct cudaPointerAttributes attributes;
    check_cuda(cudaPointerGetAttributes(&attributes, memory));
    return attributes.type;
}

static void upload(struct stream *s, char *dst, const char *src, size_t bytes)
{
    while (bytes > 0) {
        struct slot *slot = &cuda.slots[cuda.next_slot];
        cuda.next_slot = (cuda.next_slot + 1) % N_SLOTS;
        if (slot->memory) {
            event_wait(&slot->sent);
        } else {
            slot->memory = host_allocate(SLOT_BYTES);
            open_event(&slot->sent, cudaEventDisableTiming);
        }
        const size_t part = bytes < SLOT_BYTES ? bytes : SLOT_BYTES;
        memcpy(slot->memory, src, part);
        check_cuda(cudaMemcpyAsync(dst, slot->memory, part, cudaMemcpyDefault, s->cuda));
        event_record(&slot->sent, s);
        dst += part;
        src += part;
        bytes -= part;
    }
}

static void copy_part(struct stream *s, char *dst, const char *src, size_t bytes)
{
    if (memory_type(src) == cudaMemoryTypeUnregistered) {
        upload(s, dst, src, bytes);
        return;
    }
    check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->cuda));
    if (memory_type(dst) == cudaMemoryTypeUnregistered)
        stream_wait(s);
}

/* What is pinned by and by is copied in pieces of it: no copy may go from one to the next. */
static void copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    for (size_t at = 0, part; at < bytes; at += part) {
        char *to = (char *)dst + at;
        const char *from = (const char *)src + at;
        part = pinning_await(to, pinning_await(from, bytes - at));
        copy_part(s, to, from, part);
    }
}

static void zero(struct stream *s, void *dst, size_t bytes)
{
    if (bytes > 0)
        check_cuda(cudaMemsetAsync(dst, 0, bytes, s->cuda));
}

/* The device. */

#define X(name) .name = cuda_##name,
static const struct ops cuda_ops = {MODEL_OPERATORS(X).attention_cached = NULL};
static const struct row_ops cuda_row_ops = {ROW_OPERATORS(X)};
#undef X

/* The device's number among those that this process may use is good, and the device new enough. */
static bool check_device(int ordinal, struct zf_error *err)
{
    int n = 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code == cudaErrorInsufficientDriver)
        return zf_fail(err, "this machine has no CUDA driver, or one too old for CUDA %d.%d",
                       CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100);
    if (code == cudaErrorNoDevice || (code == cudaSuccess && n == 0))
        return zf_fail(err, "this machine has no CUDA device, or CUDA_VISIBLE_DEVICES hides it");
    if (code != cudaSuccess)
        return zf_fail(err, "the CUDA driver does not start: %s", cudaGetErrorString(code));
    if (ordinal < 0 || ordinal >= n)
        return zf_fail(err, "there is no CUDA device %d: this machine has %d, numbered from 0",
                       ordinal, n);
    int major = 0, minor = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
    check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
    if (major < MIN_MAJOR)
        return zf_fail(err,
                       "CUDA device %d has compute capability %d.%d, but 8.0 (Ampere) or newer is "
                       "needed",
                       ordinal, major, minor);
    return true;
}

static void fill_device(struct device *d)
{
    d->name = "cuda";
    d->model = cuda.properties.name;
    d->multiprocessors = cuda_multiprocessors();
#ifdef ZF_CUDA_EMULATED
    d->emulated = true;
#else
    d->address = cuda.address;
#endif
    d->ops = &cuda_ops;
    d->row_ops = &cuda_row_ops;
    d->dtype = DTYPE_BF16;
    d->unified = false;
    d->head_rows = 1024;
    d->most.n_embd = CUDA_MAX_WIDTH;
    d->most.odd_n_embd = CUDA_MAX_ODD_WIDTH;
    d->most.head_dim = CUDA_MAX_HEAD_DIM;
    d->compute = &cuda.compute;
    d->reserve = memory_reserve;
    d->allocate = memory_allocate;
    d->release = memory_release;
    d->free_bytes = memory_free_bytes;
    d->allocate_host = host_allocate;
    d->allocate_host_later = host_allocate_later;
    d->release_host = host_release;
    d->stream_create = stream_create;
    d->stream_destroy = stream_destroy;
    d->stream_wait = stream_wait;
    d->event_create = event_create;
    d->event_destroy = event_destroy;
    d->event_record = event_record;
    d->event_order = event_order;
    d->event_wait = event_wait;
    d->event_create_timed = event_create_timed;
    d->event_passed = event_passed;
    d->event_elapsed = event_elapsed;
    d->stream_call = stream_call;
    d->copy = copy;
    d->zero = zero;
}

struct device *device_cuda(int ordinal, struct zf_error *err)
{
    if (cuda.device.ops && cuda.ordinal == ordinal)
        return &cuda.device;
    if (cuda.device.ops) {
        zf_fail(err, "this process uses CUDA device %d already, and can have no second one",
                cuda.ordinal);
        return NULL;
    }
    if (!check_device(ordinal, err))
        return NULL;
    cudaError_t code = cudaSetDevice(ordinal);
    if (code != cudaSuccess) {
        zf_fail(err, "CUDA device %d cannot be used: %s", ordinal, cudaGetErrorString(code));
        return NULL;
    }
    if (!matmul_open(err))
        return NULL;
    cuda.ordinal = ordinal;
    check_cuda(cudaGetDeviceProperties(&cuda.properties, ordinal));
    check_cuda(cudaDeviceGetStreamPriorityRange(&cuda.least_priority, &cuda.greatest_priority));
    open_stream(&cuda.compute, compute_priority());
    check_cuda(cudaDeviceGetPCIBusId(cuda.address, sizeof cuda.address, ordinal));
    fill_device(&cuda.device);
    cuda.node = cuda.device.address ? numa_node_of_pci("", cuda.device.address) : -1;
    return &cuda.device;
}

int device_cuda_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

const char *device_cuda_toolkit(void)
{
#ifdef ZF_CUDA_EMULATED
    return "emulated";
#else
    static char text[16];
    snprintf(text, sizeof text, "%d.%d", CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100);
    return text;
#endif
}

void *device_cuda_stream(struct stream *stream)
{
    return stream->cuda;
}
