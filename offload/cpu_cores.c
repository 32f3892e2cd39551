#include "offload/cpu_cores.h"

#include "data/alloc.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_CPUS 8192

struct core {
    int package;
    int sibling; /* the lowest CPU of the same core, allowed or not: what identifies the core */
    int cpu;
};

/* The first number of a file in /sys/devices/system/cpu/cpuN/topology, or `otherwise`. */
static int topology_number(int cpu, const char *name, int otherwise)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name);
    FILE *file = fopen(path, "r");
    int value;
    if (!file)
        return otherwise;
    if (fscanf(file, "%d", &value) != 1)
        value = otherwise;
    fclose(file);
    return value;
}

static int by_package_and_cpu(const void *a, const void *b)
{
    const struct core *x = a, *y = b;
    if (x->package != y->package)
        return x->package < y->package ? -1 : 1;
    return (x->cpu > y->cpu) - (x->cpu < y->cpu);
}

static bool has_sibling(const struct core *cores, int n, int sibling)
{
    for (int i = 0; i < n; i++)
        if (cores[i].sibling == sibling)
            return true;
    return false;
}

int cpu_cores_list(int **cpus)
{
    const size_t set_bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *allowed = zf_malloc(set_bytes);
    struct core *cores = zf_malloc(MAX_CPUS * sizeof *cores);
    int n = 0;
    CPU_ZERO_S(set_bytes, allowed);
    sched_getaffinity(0, set_bytes, allowed);
    for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, set_bytes, allowed))
            continue;
        int sibling = topology_number(cpu, "thread_siblings_list", cpu);
        if (!has_sibling(cores, n, sibling))
            cores[n++] =
                (struct core){topology_number(cpu, "physical_package_id", 0), sibling, cpu};
    }
    qsort(cores, (size_t)n, sizeof *cores, by_package_and_cpu);
    *cpus = zf_malloc((size_t)n * sizeof **cpus);
    for (int i = 0; i < n; i++)
        (*cpus)[i] = cores[i].cpu;
    free(cores);
    free(allowed);
    return n;
}

int cpu_cores_share(int n, int rank, int size, int *first)
{
    *first = (int)((long)n * rank / size);
    return (int)((long)n * (rank + 1) / size) - *first;
}
