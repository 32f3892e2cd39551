#include "model/device/numa.h"

#include "data/alloc.h"

#include <ctype.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_NODES 1024 /* a multiple of WORD_BITS */
#define WORD_BITS (8 * (int)sizeof(unsigned long))

/* Whether a list such as "0-3,8,10-11" has a number. */
static bool list_has(const char *list, int number)
{
    for (const char *at = list; isdigit((unsigned char)*at);) {
        char *end;
        const long first = strtol(at, &end, 10);
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (number >= first && number <= last)
            return true;
        at = *end == ',' ? end + 1 : end;
    }
    return false;
}

/* The line of a file folder/name/file, as a new string without its end; "" where there is none. */
static char *read_line(const char *root, const char *folder, const char *name,
                       const char *file_name)
{
    char *path = zf_format("%s%s/%s/%s", root, folder, name, file_name), *line = NULL;
    size_t room = 0;
    FILE *file = fopen(path, "r");
    if (!file || getline(&line, &room, file) < 0) {
        free(line);
        line = zf_strdup("");
    }
    if (file)
        fclose(file);
    line[strcspn(line, "\n")] = 0;
    free(path);
    return line;
}

/* Of several nodes that have memory. */
static bool has_node(const char *root, int node)
{
    char *nodes = read_line(root, "/sys/devices/system", "node", "has_memory");
    int n = 0;
    for (int i = 0; i < MAX_NODES; i++)
        n += list_has(nodes, i);
    const bool has = n > 1 && list_has(nodes, node);
    free(nodes);
    return has;
}

int numa_node_of_pci(const char *root, const char *address)
{
    char *lower = zf_strdup(address), *end;
    for (char *c = lower; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    char *line = read_line(root, "/sys/bus/pci/devices", lower, "numa_node");
    const long node = strtol(line, &end, 10);
    const bool known = end != line && node >= 0 && node < MAX_NODES && has_node(root, (int)node);
    free(line);
    free(lower);
    return known ? (int)node : -1;
}

int numa_keep_cpus(const char *root, int node, int *cpus, int n)
{
    char name[16];
    int kept = 0;
    snprintf(name, sizeof name, "node%d", node);
    char *list = read_line(root, "/sys/devices/system/node", name, "cpulist");
    for (int i = 0; i < n; i++)
        if (list_has(list, cpus[i]))
            cpus[kept++] = cpus[i];
    free(list);
    return kept;
}

/* Advice: where the kernel refuses it, the memory serves all the same. */
static void prefer(void *memory, size_t bytes, int node)
{
    unsigned long nodes[MAX_NODES / WORD_BITS] = {0};
    if (node >= 0)
        nodes[node / WORD_BITS] = 1ul << node % WORD_BITS;
    /* Without nodes the kernel takes no array; of one it reads a bit less than it is told. */
    const unsigned long *const given = node >= 0 ? nodes : NULL;
    const unsigned long count = node >= 0 ? MAX_NODES : 0;
    const int mode = node >= 0 ? MPOL_PREFERRED : MPOL_DEFAULT;
    if (memory)
        syscall(SYS_mbind, memory, bytes, mode, given, count, 0);
    else
        syscall(SYS_set_mempolicy, mode, given, count);
}

void numa_prefer(void *memory, size_t bytes, int node)
{
    if (node >= 0 && bytes > 0)
        prefer(memory, bytes, node);
}

void numa_prefer_here(int node)
{
    prefer(NULL, 0, node);
}
