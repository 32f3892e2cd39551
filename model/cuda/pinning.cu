#include "model/cuda/pinning.cuh"

#include "model/cuda/cuda.cuh"

extern "C" {
#include "data/alloc.h"
#include "model/device/numa.h"
}

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* One call of the driver's, during which others may have to wait for it: some ten milliseconds. */
#ifndef ZF_CUDA_EMULATED
#define PIECE_BYTES ((size_t)64 << 20)
#define ALIGNMENT   ((size_t)2 << 20) /* a huge page */
#else
#define PIECE_BYTES ((size_t)4 << 10) /* where arrays are small */
#define ALIGNMENT   PIECE_BYTES
#endif

struct pinned_array {
    char *memory;
    size_t bytes;
    size_t pinned; /* bytes from the beginning */
    bool dropped;
    struct pinned_array *next;
};

/* The list is the main thread's, who changes it under the lock; what is in it is both threads'. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct pinned_array *first, *last;
    struct pinned_array *busy; /* a piece of it is being pinned */
    bool running;              /* there is a thread */
    int ordinal;
} pinning = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL, NULL, false, 0};

static size_t piece_bytes(const struct pinned_array *a, size_t at)
{
    return a->bytes - at < PIECE_BYTES ? a->bytes - at : PIECE_BYTES;
}

/* The first array of which something is to be pinned. */
static struct pinned_array *next_array(void)
{
    struct pinned_array *a = pinning.first;
    while (a && (a->dropped || a->pinned == a->bytes))
        a = a->next;
    return a;
}

static void pin(char *memory, size_t bytes)
{
    const cudaError_t code = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (code == cudaErrorMemoryAllocation) {
        fprintf(stderr, "zf-train: out of memory: %zu bytes of host memory could not be pinned\n",
                bytes);
        exit(1);
    }
    check_cuda(code);
}

/* Ends when there is nothing left to do. */
static void *pin_all(void *)
{
    check_cuda(cudaSetDevice(pinning.ordinal));
    pthread_mutex_lock(&pinning.lock);
    while ((pinning.busy = next_array())) {
        struct pinned_array *a = pinning.busy;
        const size_t at = a->pinned, bytes = piece_bytes(a, at);
        pthread_mutex_unlock(&pinning.lock);
        pin(a->memory + at, bytes);
        pthread_mutex_lock(&pinning.lock);
        a->pinned += bytes;
        pthread_cond_broadcast(&pinning.changed);
    }
    pinning.running = false;
    pthread_mutex_unlock(&pinning.lock);
    return NULL;
}

static void start_thread(void)
{
    pthread_t thread;
    const int code = pthread_create(&thread, NULL, pin_all, NULL);
    if (code) {
        fprintf(stderr, "zf-train: a thread that pins memory could not be started: %s\n",
                strerror(code));
        exit(1);
    }
    pthread_detach(thread);
    pinning.running = true;
}

static void append(struct pinned_array *a)
{
    if (pinning.last)
        pinning.last->next = a;
    else
        pinning.first = a;
    pinning.last = a;
}

void *pinning_allocate(size_t bytes, int ordinal, int node)
{
    void *memory;
    bytes = bytes ? bytes : 1;
    if (posix_memalign(&memory, ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) != 0)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE); /* advice: who has none serves all the same */
    numa_prefer(memory, bytes, node);
    struct pinned_array *a = (struct pinned_array *)zf_calloc(1, sizeof *a);
    a->memory = (char *)memory;
    a->bytes = bytes;
    pthread_mutex_lock(&pinning.lock);
    append(a);
    pinning.ordinal = ordinal;
    if (!pinning.running)
        start_thread();
    pthread_mutex_unlock(&pinning.lock);
    return memory;
}

/* The main thread reads its own list. */
static struct pinned_array *find(const void *memory)
{
    struct pinned_array *a = pinning.first;
    while (a && !((const char *)memory >= a->memory && (const char *)memory < a->memory + a->bytes))
        a = a->next;
    return a;
}

static void take_out(struct pinned_array *a)
{
    struct pinned_array **link = &pinning.first;
    pinning.last = NULL;
    while (*link) {
        if (*link == a)
            *link = a->next;
        if (!*link)
            return;
        pinning.last = *link;
        link = &(*link)->next;
    }
}

bool pinning_release(void *memory)
{
    struct pinned_array *a = find(memory);
    if (!a)
        return false;
    pthread_mutex_lock(&pinning.lock);
    a->dropped = true;
    while (pinning.busy == a)
        pthread_cond_wait(&pinning.changed, &pinning.lock);
    take_out(a);
    pthread_mutex_unlock(&pinning.lock);
    for (size_t at = 0; at < a->pinned; at += piece_bytes(a, at))
        check_cuda(cudaHostUnregister(a->memory + at));
    free(a->memory);
    free(a);
    return true;
}

size_t pinning_await(const void *memory, size_t bytes)
{
    struct pinned_array *a = find(memory);
    if (!a)
        return bytes;
    const size_t at = (size_t)((const char *)memory - a->memory), begin = at - at % PIECE_BYTES;
    const size_t end = begin + piece_bytes(a, begin);
    pthread_mutex_lock(&pinning.lock);
    while (a->pinned < end)
        pthread_cond_wait(&pinning.changed, &pinning.lock);
    pthread_mutex_unlock(&pinning.lock);
    return end - at < bytes ? end - at : bytes;
}
