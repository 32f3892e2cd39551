#include "offload/host/cores.h"

#include "data/alloc.h"

#include <omp.h>
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

void cpu_cores_allowed(cpu_set_t *cpus, size_t bytes)
{
    CPU_ZERO_S(bytes, cpus);
    if (omp_get_proc_bind() == omp_proc_bind_false || omp_get_num_places() == 0) {
        sched_getaffinity(0, bytes, cpus);
        return;
    }
    for (int place = 0; place < omp_get_num_places(); place++) {
        int n = omp_get_place_num_procs(place);
        int *ids = zf_malloc(sizeof *ids * (size_t)n);
        omp_get_place_proc_ids(place, ids);
        for (int i = 0; i < n; i++)
            CPU_SET_S((size_t)ids[i], bytes, cpus);
        free(ids);
    }
}

int cpu_cores_list(int **cpus)
{
    const size_t set_bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *allowed = zf_malloc(set_bytes);
    struct core *cores = zf_malloc(MAX_CPUS * sizeof *cores);
    int n = 0;
    cpu_cores_allowed(allowed, set_bytes);
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
