/* Loaded before the C library (LD_PRELOAD): the ZF_FAIL_AT-th call for memory, counted from 1, that
 * comes from this program or the libraries that it reads with finds none; with ZF_FAIL_AT 0 none
 * fails, and ZF_COUNT_FILE gets their number. What comes before main does not count: there the CUDA
 * runtime, which is a part of the program, makes itself ready. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

#define MOST 16
static struct {
    char *first, *last;
} ours[MOST];
static int n_ours;
static atomic_long calls;
static long fail_at = -1;
static int (*their_main)(int, char **, char **);
static int counts;

static int note(struct dl_phdr_info *info, size_t size, void *context)
{
    static const char *const names[] = {"jansson", "pcre2", "utf8proc", "sentencepiece", "xxhash"};
    int wanted = !*info->dlpi_name; /* the program itself */
    (void)size, (void)context;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        wanted |= strstr(info->dlpi_name, names[i]) != NULL;
    for (int i = 0; wanted && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X) || n_ours == MOST)
            continue;
        ours[n_ours].first = (char *)(info->dlpi_addr + part->p_vaddr);
        ours[n_ours].last = ours[n_ours].first + part->p_memsz;
        n_ours++;
    }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("ZF_FAIL_AT");
    dl_iterate_phdr(note, NULL);
    fail_at = at ? atol(at) : -1;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("ZF_COUNT_FILE");
    FILE *file = path && fail_at == 0 ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", (long)calls);
        fclose(file);
    }
}

static int fails(char *caller)
{
    if (fail_at < 0 || !counts)
        return 0;
    for (int i = 0; i < n_ours; i++)
        if (caller >= ours[i].first && caller < ours[i].last)
            return ++calls == fail_at && (errno = ENOMEM);
    return 0;
}

static int begin_main(int argc, char **argv, char **environment)
{
    counts = 1;
    return their_main(argc, argv, environment);
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    __typeof__(__libc_start_main) *start = dlsym(RTLD_NEXT, "__libc_start_main");
    their_main = main;
    return start(begin_main, argc, argv, init, fini, rtld_fini, stack_end);
}

void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}
