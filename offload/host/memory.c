#include "offload/host/memory.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

static size_t huge_pages(size_t bytes)
{
    return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

/* Maps one huge page more than is needed and gives back what lies outside the aligned part. */
void *host_memory_allocate(size_t bytes, struct zf_error *err)
{
    size_t wanted = huge_pages(bytes ? bytes : 1);
    char *mapped = bytes > SIZE_MAX - 2 * HUGE_PAGE
                       ? MAP_FAILED
                       : mmap(NULL, wanted + HUGE_PAGE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        zf_fail(err, "out of memory: %zu bytes of host memory for the optimizer's state: %s", bytes,
                strerror(ENOMEM));
        return NULL;
    }
    size_t before = (HUGE_PAGE - (uintptr_t)mapped % HUGE_PAGE) % HUGE_PAGE;
    char *memory = mapped + before;
    if (before)
        munmap(mapped, before);
    if (before < HUGE_PAGE)
        munmap(memory + wanted, HUGE_PAGE - before);
    /* Advice: a kernel without huge pages refuses it, and the memory serves all the same. */
    madvise(memory, wanted, MADV_HUGEPAGE);
    return memory;
}

void host_memory_free(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, huge_pages(bytes ? bytes : 1));
}
