#include "data/address_space.h"

#include <errno.h>
#include <malloc.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAIN_STACK ((size_t)512 << 10) /* more than this program and its libraries have used */

static bool limited;

/* Finite only where somebody has set one. */
static bool has_limit(int resource)
{
    struct rlimit limit;
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

static bool is_there(size_t bytes)
{
    void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return room != MAP_FAILED && munmap(room, bytes) == 0;
}

/* The stack grows as it is used, and where it cannot that is a signal. */
static void grow_stack(void)
{
    char stack[MAIN_STACK];
    explicit_bzero(stack, sizeof stack);
}

static size_t stack_of_a_thread(void)
{
    size_t stack = 0, guard = 0;
    pthread_attr_t standard;
    if (pthread_getattr_default_np(&standard) == 0) {
        pthread_attr_getstacksize(&standard, &stack);
        pthread_attr_getguardsize(&standard, &guard);
        pthread_attr_destroy(&standard);
    }
    return stack + guard;
}

void address_space_begin(void)
{
    limited = has_limit(RLIMIT_AS) || has_limit(RLIMIT_DATA);
    if (!limited)
        return;
    mallopt(M_ARENA_MAX, 1); /* an arena for each thread would take 64 MiB of it */
    address_space_need(MAIN_STACK, "the stack");
    grow_stack();
}

void address_space_need(size_t bytes, const char *what)
{
    if (!limited || is_there(bytes))
        return;
    fprintf(stderr,
            "%s: out of memory: the limit (ulimit -v, ulimit -d) leaves no %zu bytes for %s\n",
            program_invocation_short_name, bytes, what);
    _exit(1);
}

void address_space_start_threads(void)
{
    const int n = omp_get_max_threads();
    atomic_int started = 0;
    if (!limited)
        return;
    address_space_need((size_t)n * stack_of_a_thread(), "OpenMP's threads");
#pragma omp parallel num_threads(n)
    started++;
}
