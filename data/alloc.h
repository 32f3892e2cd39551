/* Memory that is always there: allocation failure ends the program with a sentence, so callers do
 * not check. For sizes that come from a file, check the size first. Release with free(). */
#ifndef ZF_DATA_ALLOC_H
#define ZF_DATA_ALLOC_H

#include <stddef.h>

void *zf_malloc(size_t bytes);
/* For libraries that only say that there is none. */
void zf_out_of_memory(void) __attribute__((noreturn));
void *zf_calloc(size_t count, size_t bytes);
void *zf_realloc(void *old, size_t bytes);
/* Aligned to 64 bytes (a cache line, an AVX-512 register); zeroed by the kernel only if large. */
void *zf_malloc_aligned(size_t bytes);
/* On huge pages, where the kernel has them: for arrays of many megabytes. */
void *zf_malloc_huge(size_t bytes);
char *zf_strdup(const char *text);
/* As snprintf into a new string. */
char *zf_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
