#include "offload/host/memory.h"

#include "data/alloc.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* The number in a file, if there is one, and it is less. "max" is none. */
static size_t least_of(size_t limit, const char *path)
{
    FILE *file = fopen(path, "r");
    unsigned long long bytes;
    if (!file)
        return limit;
    if (fscanf(file, "%llu", &bytes) == 1 && bytes < limit)
        limit = (size_t)bytes;
    fclose(file);
    return limit;
}

/* Of a control group and all above it. A container sees its own as the first. */
static size_t least_of_groups(size_t limit, const char *root, const char *mount, char *group,
                              const char *name)
{
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = 0;
        char *path = zf_format("%s/sys/fs/cgroup%s%s/%s", root, mount, group, name);
        limit = least_of(limit, path);
        free(path);
    }
    return limit;
}

/* A line is "number:controllers:group", without controllers in version 2. */
static size_t least_of_line(size_t limit, const char *root, char *line)
{
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return limit;
    *group++ = 0;
    controllers++;
    if (!*controllers)
        return least_of_groups(limit, root, "", group, "memory.max");
    if (strcmp(controllers, "memory") == 0)
        return least_of_groups(limit, root, "/memory", group, "memory.limit_in_bytes");
    return limit;
}

size_t host_memory_limit(const char *root)
{
    size_t limit = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    char *path = zf_format("%s/proc/self/cgroup", root), line[4096];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        limit = least_of_line(limit, root, line);
    if (file)
        fclose(file);
    free(path);
    return limit;
}
