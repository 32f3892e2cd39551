/* The physical cores that this process may use. */
#ifndef ZF_OFFLOAD_CPU_CORES_H
#define ZF_OFFLOAD_CPU_CORES_H

/* Lists one CPU (the lowest allowed one) of each physical core in the process's affinity mask, by
 * package, then by number. Returns how many; *cpus is the caller's to free. Where the system does
 * not tell its topology, each CPU is a core. */
int cpu_cores_list(int **cpus);

/* The part of n cores that ranks get: rank r of `size` has [*first, *first + return value). */
int cpu_cores_share(int n, int rank, int size, int *first);

#endif
