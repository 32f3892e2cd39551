/* Which memory and cores of the host are near a GPU: its NUMA node's. On a machine of one node, and
 * where the system does not tell, nothing is nearer than the rest, and everything here does
 * nothing. root: "", or a folder in which /sys is looked for. */
#ifndef ZF_MODEL_DEVICE_NUMA_H
#define ZF_MODEL_DEVICE_NUMA_H

#include <stddef.h>

/* The node of a device on the PCI bus, by its address "0000:3b:00.0", in hexadecimal digits of
 * either case; -1: unknown, or the only one. */
int numa_node_of_pci(const char *root, const char *address);

/* Keeps those of n CPUs that are a node's, in their order. Returns how many. */
int numa_keep_cpus(const char *root, int node, int *cpus, int n);

/* Pages of this memory that nobody has touched yet come from a node, as long as it has any. memory:
 * at the beginning of a page. node -1: from anywhere. */
void numa_prefer(void *memory, size_t bytes, int node);
/* The same for all that this thread touches first, or lets the system allocate, from now on. */
void numa_prefer_here(int node);

#endif
