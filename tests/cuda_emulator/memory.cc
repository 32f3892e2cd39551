/* Device memory: one reserved range of addresses, of which allocations take the first gap that is
 * wide enough. Between them lie red zones. The host may touch none of it but while work of the
 * device runs. */
#include "internal.h"

#include <map>
#include <mutex>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 256
#define RED_ZONE  256
#define RED       0xa5
#define HUGE_PAGE (2 << 20)

struct allocation {
    size_t bytes;
    bool pinned;
    bool registered; /* pinned, but not allocated here */
};

/* By their beginning. Other threads may register some: whoever looks or changes holds the lock. */
static std::map<uintptr_t, allocation> allocations;
static std::mutex allocations_lock;
static char *reserved, *frontier; /* in use: reserved to frontier */
static size_t reserved_bytes, total_bytes, used_bytes;
static struct sigaction earlier_handler;

static bool in_reserve(const void *memory)
{
    return reserved && (char *)memory >= reserved && (char *)memory < reserved + reserved_bytes;
}

static void handle_bad_access(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    if (in_reserve(info->si_addr))
        emulator_fault("host code touches device memory, at %p", info->si_addr);
    sigaction(SIGSEGV, &earlier_handler, NULL); /* it happens again, and is reported as ever */
}

/* Again each time: a test's framework may have put its own there in the meantime. */
static void install_handler()
{
    struct sigaction action = {}, present;
    action.sa_sigaction = handle_bad_access;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &present);
    if (present.sa_sigaction != handle_bad_access)
        earlier_handler = present;
}

static void reserve_memory()
{
    static char stack[1 << 16]; /* for the handler: that of a kernel's thread may be full */
    if (reserved)
        return;
    total_bytes = (size_t)emulator_environment("ZF_EMULATOR_MEMORY", 4096) << 20;
    reserved_bytes = 4 * total_bytes;
    reserved = (char *)mmap(NULL, reserved_bytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        emulator_fault("cannot reserve %zu bytes of addresses", reserved_bytes);
    /* Opening and closing takes as long as there are pages: let them be large. */
    size_t skipped = HUGE_PAGE - (uintptr_t)reserved % HUGE_PAGE;
    reserved += skipped;
    reserved_bytes -= skipped;
    madvise(reserved, reserved_bytes, MADV_HUGEPAGE);
    frontier = reserved;
    stack_t alternative = {stack, 0, sizeof stack};
    sigaltstack(&alternative, NULL);
}

static void protect(int protection)
{
    if (frontier != reserved && mprotect(reserved, frontier - reserved, protection) != 0)
        emulator_fault("mprotect fails");
}

void emulator_open_device()
{
    protect(PROT_READ | PROT_WRITE);
}

void emulator_close_device()
{
    protect(PROT_NONE);
    install_handler();
}

static void note_allocation(const void *memory, allocation one)
{
    const std::lock_guard<std::mutex> hold(allocations_lock);
    allocations[(uintptr_t)memory] = one;
}

/* What begins there is taken out of the list; its bytes are 0 where nothing does. */
static allocation forget_allocation(const void *memory)
{
    const std::lock_guard<std::mutex> hold(allocations_lock);
    auto found = allocations.find((uintptr_t)memory);
    if (found == allocations.end())
        return {};
    const allocation one = found->second;
    allocations.erase(found);
    return one;
}

/* The first gap for so many bytes with a red zone on both sides; NULL: there is none. */
static char *find_gap(size_t bytes)
{
    char *at = reserved;
    const std::lock_guard<std::mutex> hold(allocations_lock);
    for (const auto &[begin, one] : allocations) {
        if (one.pinned)
            continue;
        if (at + RED_ZONE + bytes + RED_ZONE <= (char *)begin)
            break;
        at = (char *)begin + (one.bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    at += RED_ZONE;
    return at + bytes + RED_ZONE <= reserved + reserved_bytes ? at : NULL;
}

static void extend_frontier(char *end)
{
    if (end <= frontier)
        return;
    char *from = frontier;
    frontier = reserved + ((size_t)(end - reserved) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    ASAN_POISON_MEMORY_REGION(from, frontier - from);
}

/* Bytes beside an allocation, for builds in which nobody else watches them. */
static void paint_surroundings(char *begin, size_t bytes)
{
#ifndef __SANITIZE_ADDRESS__
    memset(begin - RED_ZONE, RED, RED_ZONE);
    memset(begin + bytes, RED, RED_ZONE);
#else
    (void)begin, (void)bytes, (void)RED;
#endif
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    emulator_enter("cudaMalloc");
    reserve_memory();
    *memory = NULL;
    if (bytes == 0)
        return cudaSuccess;
    char *at = used_bytes + bytes <= total_bytes ? find_gap(bytes) : NULL;
    if (!at)
        return cudaErrorMemoryAllocation;
    extend_frontier(at + bytes + RED_ZONE);
    emulator_open_device();
    ASAN_UNPOISON_MEMORY_REGION(at, bytes);
    memset(at, POISON, bytes);
    paint_surroundings(at, bytes);
    emulator_close_device();
    note_allocation(at, {bytes, false, false});
    used_bytes += bytes;
    *memory = at;
    return cudaSuccess;
}

static void check_red_zone(const char *zone, const char *begin, size_t bytes)
{
#ifndef __SANITIZE_ADDRESS__
    for (int i = 0; i < RED_ZONE; i++)
        if ((unsigned char)zone[i] != RED)
            emulator_fault("a write out of bounds: byte %td of an allocation of %zu bytes",
                           zone + i - begin, bytes);
#else
    (void)zone, (void)begin, (void)bytes;
#endif
}

static void check_surroundings(const char *begin, size_t bytes)
{
    check_red_zone(begin - RED_ZONE, begin, bytes);
    check_red_zone(begin + bytes, begin, bytes);
}

cudaError_t cudaFree(void *memory)
{
    emulator_enter("cudaFree");
    if (!memory)
        return cudaSuccess;
    const allocation one = forget_allocation(memory);
    if (!one.bytes || one.pinned)
        emulator_fault("cudaFree of %p, which cudaMalloc did not return", memory);
    note_allocation(memory, one); /* what is under way may use it */
    emulator_drain();
    emulator_open_device();
    check_surroundings((char *)memory, one.bytes);
    memset(memory, POISON, one.bytes);
    ASAN_POISON_MEMORY_REGION(memory, one.bytes);
    emulator_close_device();
    used_bytes -= one.bytes;
    forget_allocation(memory);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    emulator_enter("cudaMallocHost");
    *memory = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (posix_memalign(memory, ALIGNMENT, bytes) != 0)
        return cudaErrorMemoryAllocation;
    memset(*memory, POISON, bytes);
    note_allocation(*memory, {bytes, true, false});
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    emulator_enter("cudaFreeHost");
    if (!memory)
        return cudaSuccess;
    const allocation one = forget_allocation(memory);
    if (!one.pinned || one.registered)
        emulator_fault("cudaFreeHost of %p, which cudaMallocHost did not return", memory);
    note_allocation(memory, one);
    emulator_drain();
    forget_allocation(memory);
    free(memory);
    return cudaSuccess;
}

/* Any thread may call this one. It takes a while. */
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    if (flags != cudaHostRegisterPortable || bytes == 0)
        return cudaErrorInvalidValue;
    usleep(20);
    note_allocation(memory, {bytes, true, true});
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    emulator_enter("cudaHostUnregister");
    const allocation one = forget_allocation(memory);
    if (!one.registered)
        emulator_fault("cudaHostUnregister of %p, which is not registered", memory);
    note_allocation(memory, one);
    emulator_drain();
    forget_allocation(memory);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes)
{
    emulator_enter("cudaMemGetInfo");
    reserve_memory();
    *free_bytes = total_bytes - used_bytes;
    *all_bytes = total_bytes;
    return cudaSuccess;
}

/* The allocation that begins at or before an address, if the address lies in it or at its end. */
static const std::pair<const uintptr_t, allocation> *find_allocation(const void *memory)
{
    const std::lock_guard<std::mutex> hold(allocations_lock);
    auto after = allocations.upper_bound((uintptr_t)memory);
    if (after == allocations.begin())
        return NULL;
    const auto &one = *--after;
    return (uintptr_t)memory - one.first <= one.second.bytes ? &one : NULL;
}

enum emulator_place emulator_place_of(const void *memory)
{
    if (in_reserve(memory))
        return EMULATOR_DEVICE;
    return find_allocation(memory) ? EMULATOR_PINNED : EMULATOR_ORDINARY;
}

void emulator_check_range(const char *what, const void *memory, size_t bytes)
{
    const auto *one = find_allocation(memory);
    if (!one)
        emulator_fault("%s: %p lies in no allocation", what, memory);
    size_t offset = (uintptr_t)memory - one->first;
    if (bytes > one->second.bytes - offset)
        emulator_fault("%s: %zu bytes from byte %zu on of an allocation of %zu bytes", what, bytes,
                       offset, one->second.bytes);
}

void emulator_check_surroundings(const void *const *pointers, int n)
{
    for (int i = 0; i < n; i++) {
        const auto *one = find_allocation(pointers[i]);
        if (one && !one->second.pinned)
            check_surroundings((const char *)one->first, one->second.bytes);
    }
}

/* The pointers among the arguments that are being checked, for the launch that follows. */
static const void *argument_pointers[32];
static int n_argument_pointers;

int emulator_take_pointers(const void **pointers)
{
    int n = n_argument_pointers;
    memcpy(pointers, argument_pointers, (size_t)n * sizeof *pointers);
    n_argument_pointers = 0;
    return n;
}

static void note_pointer(const void *pointer)
{
    if (n_argument_pointers < 32)
        argument_pointers[n_argument_pointers++] = pointer;
}

void emulator_check_pointer(const char *kernel, int argument, const void *pointer)
{
    if (!pointer)
        return;
    if (!find_allocation(pointer))
        emulator_fault("argument %d of kernel %s is or holds %p, which is %s", argument, kernel,
                       pointer,
                       in_reserve(pointer) ? "device memory that is not allocated"
                                           : "neither device memory nor pinned memory");
    note_pointer(pointer);
}
