#include "data/alloc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *checked(void *memory, size_t bytes)
{
    if (memory)
        return memory;
    fprintf(stderr, "%s: out of memory: %zu bytes could not be allocated\n",
            program_invocation_short_name, bytes);
    _exit(1); /* without what others have asked to be called, which may want memory too */
}

void zf_out_of_memory(void)
{
    fprintf(stderr, "%s: out of memory\n", program_invocation_short_name);
    _exit(1);
}

void *zf_malloc(size_t bytes)
{
    return checked(malloc(bytes ? bytes : 1), bytes);
}

void *zf_calloc(size_t count, size_t bytes)
{
    return checked(calloc(count ? count : 1, bytes ? bytes : 1), count * bytes);
}

void *zf_realloc(void *old, size_t bytes)
{
    return checked(realloc(old, bytes ? bytes : 1), bytes);
}

void *zf_malloc_aligned(size_t bytes)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    return checked(aligned_alloc(64, rounded ? rounded : 64), bytes);
}

void *zf_malloc_huge(size_t bytes)
{
    const size_t unit = (size_t)2 << 20, rounded = (bytes + unit - 1) / unit * unit;
    void *memory = checked(aligned_alloc(unit, rounded ? rounded : unit), bytes);
    madvise(memory, rounded, MADV_HUGEPAGE); /* advice: who has none serves all the same */
    return memory;
}

char *zf_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(zf_malloc(bytes), text, bytes);
}

char *zf_format(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    return checked(n < 0 ? NULL : text, 0);
}
