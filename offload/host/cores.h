/* The physical cores that this process may use. */
#ifndef ZF_OFFLOAD_HOST_CORES_H
#define ZF_OFFLOAD_HOST_CORES_H

#include <sched.h>
#include <stddef.h>

/* The CPUs that the process was started on. OpenMP may have bound the calling thread to one of them
 * since (OMP_PROC_BIND): then they are its places. */
void cpu_cores_allowed(cpu_set_t *cpus, size_t bytes);

/* Lists one CPU (the lowest allowed one) of each physical core that the process was started on, by
 * package, then by number. Returns how many; *cpus is the caller's to free. Where the system does
 * not tell its topology, each CPU is a core. */
int cpu_cores_list(int **cpus);

/* The part of n cores that ranks get: rank r of `size` has [*first, *first + return value). */
int cpu_cores_share(int n, int rank, int size, int *first);

#endif
