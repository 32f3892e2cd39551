/* Streams: queues of operations that nothing runs until the host waits, but for a few now and then;
 * then in a random legal order. An event's record is an operation; a wait refers to the newest
 * record as of the call. */
#include "streams.h"

#include "internal.h"

extern "C" {
#include "data/clock.h"
}

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <vector>

struct record {
    bool done;
    double milliseconds; /* when, on the device's clock */
};

struct operation {
    const char *name;
    std::function<emulator_progress()> run;
    std::shared_ptr<record> awaited; /* runs only when this is done; may be NULL */
};

struct CUstream_st {
    int number;
    std::deque<operation> queue;
    int priority = 0;
};

struct CUevent_st {
    bool has_time;
    std::shared_ptr<record> newest; /* NULL: never recorded */
};

static CUstream_st default_stream;
static std::vector<cudaStream_t> streams = {&default_stream};
static int n_streams;
static bool is_running, in_host_function;
static struct emulator_counts counts;
static std::map<const void *, size_t> dynamic_limits; /* of kernels: cudaFuncSetAttribute */

struct emulator_counts emulator_counts(void)
{
    return counts;
}

void emulator_enter(const char *call)
{
    static pthread_t owner;
    static bool owned;
    if (in_host_function)
        emulator_fault("%s is called by a host function of a stream", call);
    if (!owned)
        owner = pthread_self();
    owned = true;
    if (!pthread_equal(owner, pthread_self()))
        emulator_fault("%s is called by a second host thread", call);
}

static bool is_ready(cudaStream_t stream)
{
    return !stream->queue.empty() &&
           (!stream->queue.front().awaited || stream->queue.front().awaited->done);
}

/* A random one of those that can go on, NULL if there is none. */
static cudaStream_t choose_stream()
{
    cudaStream_t chosen = NULL;
    uint32_t n = 0;
    for (cudaStream_t stream : streams)
        if (is_ready(stream) && emulator_random_below(++n) == 0)
            chosen = stream;
    return chosen;
}

/* Runs one stream for a while: sometimes one operation, sometimes many. */
static void run_stream(cudaStream_t stream, int n, const std::function<bool()> &goal)
{
    while (n-- > 0 && is_ready(stream) && !goal()) {
        if (stream->queue.front().run() == EMULATOR_NOT_YET) {
            sched_yield();
            return;
        }
        stream->queue.pop_front();
    }
}

static void describe_waits()
{
    for (cudaStream_t stream : streams)
        if (!stream->queue.empty())
            fprintf(stderr, "cuda emulator: stream %d stands before %s, with %zu operations left\n",
                    stream->number, stream->queue.front().name, stream->queue.size());
}

void emulator_run_until(const char *what, const std::function<bool()> &goal)
{
    if (is_running)
        emulator_fault("%s within an operation of a stream", what);
    is_running = true;
    emulator_open_device();
    while (!goal()) {
        cudaStream_t stream = choose_stream();
        if (!stream) {
            describe_waits();
            emulator_fault("%s waits forever: no stream can go on", what);
        }
        run_stream(stream, 1 << emulator_random_below(7), goal);
    }
    emulator_close_device();
    is_running = false;
}

void emulator_run_some()
{
    if (!choose_stream())
        return;
    int left = 1 + (int)emulator_random_below(8);
    emulator_run_until("the host", [&] { return left-- <= 0 || !choose_stream(); });
}

void emulator_enqueue(cudaStream_t stream, const char *name,
                      std::function<emulator_progress()> operation)
{
    stream = stream ? stream : &default_stream;
    stream->queue.push_back({name, std::move(operation), NULL});
    if (emulator_random_below(16) == 0)
        emulator_run_some();
}

static bool all_empty()
{
    return std::all_of(streams.begin(), streams.end(),
                       [](cudaStream_t stream) { return stream->queue.empty(); });
}

void emulator_drain(void)
{
    emulator_run_until("the host", all_empty);
}

/* Kernels. */

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    emulator_enter("cudaFuncSetAttribute");
    (void)attribute; /* there is one */
    if (value < 0 || value > 227 << 10)
        return cudaErrorInvalidValue;
    dynamic_limits[kernel] = (size_t)value;
    return cudaSuccess;
}

static void check_shape(const emulator_launch_shape &shape)
{
    const dim3 &g = shape.grid, &b = shape.block;
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
        emulator_fault("kernel %s is launched with a grid of (%u, %u, %u)", shape.name, g.x, g.y,
                       g.z);
    if (!b.x || !b.y || !b.z || b.z > 64 || (size_t)b.x * b.y * b.z > 1024)
        emulator_fault("kernel %s is launched with blocks of (%u, %u, %u)", shape.name, b.x, b.y,
                       b.z);
    auto set = dynamic_limits.find(shape.kernel);
    size_t limit = set == dynamic_limits.end() ? 48 << 10 : std::max(set->second, (size_t)48 << 10);
    if (shape.shared_bytes > limit)
        emulator_fault("kernel %s is launched with %zu bytes of shared memory, but only %zu are "
                       "allowed to it",
                       shape.name, shape.shared_bytes, limit);
}

void emulator_enqueue_kernel(const emulator_launch_shape &shape, emulator_bound *bound)
{
    emulator_enter("a launch");
    check_shape(shape);
    emulator_kernel kernel = {shape, bound, {}, 0};
    kernel.n_pointers = emulator_take_pointers(kernel.pointers);
    emulator_enqueue(shape.stream, shape.name, [kernel] {
        counts.launches++;
        emulator_run_kernel(kernel);
        delete kernel.bound;
        return EMULATOR_DONE;
    });
}

/* Copies. */

static cudaError_t wait_for(const char *what, cudaStream_t stream)
{
    stream = stream ? stream : &default_stream;
    counts.host_waits++;
    emulator_run_until(what, [stream] { return stream->queue.empty(); });
    return cudaSuccess;
}

static void check_kind(enum cudaMemcpyKind kind, bool from_device, bool to_device)
{
    static const char *const names[] = {"HostToHost", "HostToDevice", "DeviceToHost",
                                        "DeviceToDevice"};
    int is = 2 * from_device + to_device;
    if (kind != cudaMemcpyDefault && (int)kind != is)
        emulator_fault("a copy is said to be %s, but is %s", names[kind], names[is]);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    emulator_enter("cudaMemcpyAsync");
    if (bytes == 0)
        return cudaSuccess;
    emulator_place to = emulator_place_of(dst), from = emulator_place_of(src);
    check_kind(kind, from == EMULATOR_DEVICE, to == EMULATOR_DEVICE);
    if (to != EMULATOR_ORDINARY)
        emulator_check_range("a copy's destination", dst, bytes);
    if (from != EMULATOR_ORDINARY)
        emulator_check_range("a copy's source", src, bytes);
    if ((char *)dst < (char *)src + bytes && (char *)src < (char *)dst + bytes)
        emulator_fault("a copy's source and destination overlap");
    std::shared_ptr<std::vector<char>> taken;
    if (from == EMULATOR_ORDINARY)
        taken = std::make_shared<std::vector<char>>((const char *)src, (const char *)src + bytes);
    emulator_enqueue(stream, "a copy", [=] {
        counts.copies++;
        memcpy(dst, taken ? taken->data() : src, bytes);
        return EMULATOR_DONE;
    });
    return to == EMULATOR_ORDINARY ? wait_for("cudaMemcpyAsync", stream) : cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t code = cudaMemcpyAsync(dst, src, bytes, kind, NULL);
    return default_stream.queue.empty() ? code : wait_for("cudaMemcpy", NULL);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    emulator_enter("cudaMemsetAsync");
    if (bytes == 0)
        return cudaSuccess;
    emulator_check_range("cudaMemset", dst, bytes);
    emulator_enqueue(stream, "cudaMemset", [=] {
        counts.copies++;
        memset(dst, value, bytes);
        return EMULATOR_DONE;
    });
    return cudaSuccess;
}

cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    return cudaMemsetAsync(dst, value, bytes, NULL);
}

/* Streams. */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    emulator_enter("cudaStreamCreate");
    if (flags != cudaStreamNonBlocking)
        emulator_fault("a stream is made without cudaStreamNonBlocking: the emulator has none that "
                       "wait for the default stream");
    *stream = new CUstream_st();
    (*stream)->number = ++n_streams;
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    const cudaError_t code = cudaStreamCreateWithFlags(stream, flags);
    (*stream)->priority = priority;
    return code;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    *priority = stream->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emulator_enter("cudaStreamDestroy");
    emulator_run_until("cudaStreamDestroy", [stream] { return stream->queue.empty(); });
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    emulator_enter("cudaStreamSynchronize");
    return wait_for("cudaStreamSynchronize", stream);
}

cudaError_t cudaDeviceSynchronize(void)
{
    emulator_enter("cudaDeviceSynchronize");
    counts.host_waits++;
    emulator_run_until("cudaDeviceSynchronize", all_empty);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    emulator_enter("cudaLaunchHostFunc");
    emulator_enqueue(stream, "a host function", [=] {
        emulator_close_device();
        in_host_function = true;
        function(argument);
        in_host_function = false;
        emulator_open_device();
        return EMULATOR_DONE;
    });
    return cudaSuccess;
}

/* Events. */

/* The device's clock: it has another zero than the host's, and goes a little faster. */
static double device_milliseconds()
{
    return 1e3 * (1 + 1e-4) * clock_seconds() - 1e5;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    emulator_enter("cudaEventCreate");
    *event = new CUevent_st();
    (*event)->has_time = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    emulator_enter("cudaEventDestroy");
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    emulator_enter("cudaEventRecord");
    std::shared_ptr<record> mine = std::make_shared<record>();
    event->newest = mine;
    emulator_enqueue(stream, "the record of an event", [mine] {
        mine->milliseconds = device_milliseconds();
        mine->done = true;
        return EMULATOR_DONE;
    });
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    emulator_enter("cudaStreamWaitEvent");
    (void)flags;
    if (event->newest)
        (stream ? stream : &default_stream)
            ->queue.push_back(
                {"the wait for an event", [] { return EMULATOR_DONE; }, event->newest});
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    emulator_enter("cudaEventSynchronize");
    counts.host_waits++;
    std::shared_ptr<record> newest = event->newest;
    emulator_run_until("cudaEventSynchronize", [&] { return !newest || newest->done; });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    emulator_enter("cudaEventQuery");
    if (!event->newest || event->newest->done)
        return cudaSuccess;
    emulator_run_some();
    return event->newest->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    emulator_enter("cudaEventElapsedTime");
    for (cudaEvent_t event : {from, to}) {
        if (!event->has_time || !event->newest)
            return cudaErrorInvalidResourceHandle;
        if (!event->newest->done)
            return cudaErrorNotReady;
    }
    double elapsed = to->newest->milliseconds - from->newest->milliseconds;
    *milliseconds = elapsed > 0 ? (float)elapsed : 0;
    return cudaSuccess;
}
