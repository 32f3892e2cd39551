/* What the emulator's own sources share. Nothing of it is seen by the program under test. */
#ifndef ZF_CUDA_EMULATOR_INTERNAL_H
#define ZF_CUDA_EMULATOR_INTERNAL_H

#include "emulator.h"

#include <cuda_runtime.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)   ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

#define POISON 0xff /* as float and as bf16 a NaN, as int -1 */

/* Ends the process with a sentence; names the kernel, block and thread where one runs. */
[[noreturn]] void emulator_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes ", kernel x, block (..), thread (..)" where a kernel runs, else nothing. */
void emulator_describe_place(char *text, size_t bytes);

/* The device's dice. */
uint32_t emulator_random();
static inline uint32_t emulator_random_below(uint32_t n)
{
    return (uint32_t)((uint64_t)emulator_random() * n >> 32);
}

/* A number of the environment, or else `otherwise`. */
long emulator_environment(const char *name, long otherwise);

/* The order in which n things are visited: all of them, each once, by an affine map modulo the
 * next power of two, where what lies beyond n is skipped. */
struct emulator_order {
    uint32_t at, stride, mask, left, n;
};
static inline emulator_order emulator_draw_order(uint32_t n)
{
    uint32_t mask = 0;
    while (mask + 1 < n)
        mask = mask << 1 | 1;
    return {emulator_random() & mask, (emulator_random() | 1) & mask, mask, n, n};
}
/* The next of them; to be called n times. */
static inline uint32_t emulator_next(emulator_order &order)
{
    do
        order.at = (order.at + (order.stride | 1)) & order.mask;
    while (order.at >= order.n);
    return order.at;
}

/* Every call of the runtime begins with this: the device belongs to one host thread, and a host
 * function does not call the runtime. */
void emulator_enter(const char *call);

/* Memory. Device memory is closed to the host, and opened while work of the device runs. */
void emulator_open_device();
void emulator_close_device();
enum emulator_place { EMULATOR_ORDINARY, EMULATOR_PINNED, EMULATOR_DEVICE };
enum emulator_place emulator_place_of(const void *memory);
/* A fault unless so many bytes from there on lie within one allocation of the device or pinned. */
void emulator_check_range(const char *what, const void *memory, size_t bytes);
/* A fault where somebody wrote beside one of these allocations. */
void emulator_check_surroundings(const void *const *pointers, int n);
/* The pointers among the arguments that were checked last; room for 32. Returns how many. */
int emulator_take_pointers(const void **pointers);

/* Kernels. */
struct emulator_kernel {
    emulator_launch_shape shape;
    emulator_bound *bound;
    const void *pointers[32]; /* among its arguments */
    int n_pointers;
};
void emulator_run_kernel(const emulator_kernel &kernel);
int emulator_thread(); /* the number in its block of the thread that runs */

/* Shared memory of the block that runs, and copies into it that are under way. */
void emulator_begin_shared(size_t dynamic_bytes); /* before each block */
void emulator_check_shared(const char *what, const void *memory, size_t alignment);

#endif
