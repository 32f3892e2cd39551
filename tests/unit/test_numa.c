/* model/device/numa.h: nodes of made-up machines, and where memory of this one comes from. */
#include "tests/folder.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "model/device/numa.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void devices_have_nodes(void **state)
{
    (void)state;
    assert_int_equal(numa_node_of_pci(folder, "0000:3B:00.0"), -1); /* nothing is told */
    folder_write("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    folder_write("/sys/bus/pci/devices/0000:af:00.0/numa_node", "3\n");
    folder_write("/sys/bus/pci/devices/0000:00:02.0/numa_node", "-1\n");
    folder_write("/sys/devices/system/node/has_memory", "1\n"); /* one node is all there is */
    assert_int_equal(numa_node_of_pci(folder, "0000:3B:00.0"), -1);
    folder_write("/sys/devices/system/node/has_memory", "0-1\n");
    assert_int_equal(numa_node_of_pci(folder, "0000:3B:00.0"), 1);
    assert_int_equal(numa_node_of_pci(folder, "0000:3b:00.0"), 1);
    assert_int_equal(numa_node_of_pci(folder, "0000:00:02.0"), -1);
    assert_int_equal(numa_node_of_pci(folder, "0000:af:00.0"), -1); /* a node without memory */
    folder_write("/sys/devices/system/node/has_memory", "0,2-3\n");
    assert_int_equal(numa_node_of_pci(folder, "0000:af:00.0"), 3);
    assert_int_equal(numa_node_of_pci(folder, "0000:3b:00.0"), -1);
}

static void nodes_have_cpus(void **state)
{
    (void)state;
    folder_write("/sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    folder_write("/sys/devices/system/node/node1/cpulist", "4,5-7,12-15\n");
    folder_write("/sys/devices/system/node/node2/cpulist", "\n"); /* memory alone */
    int cpus[] = {15, 0, 4, 8, 7, 3, 12};
    assert_int_equal(numa_keep_cpus(folder, 1, cpus, 7), 4);
    assert_true(cpus[0] == 15 && cpus[1] == 4 && cpus[2] == 7 && cpus[3] == 12);
    assert_int_equal(numa_keep_cpus(folder, 0, cpus, 4), 0);
    assert_int_equal(numa_keep_cpus(folder, 2, cpus, 4), 0);
    assert_int_equal(numa_keep_cpus(folder, 7, cpus, 4), 0); /* there is no such node */
}

/* What the kernel says of memory that begins there: "default", "prefer:0". */
static char *policy_of(const void *memory)
{
    FILE *file = fopen("/proc/self/numa_maps", "r");
    char line[4096], policy[64] = "";
    unsigned long at;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%lx %63s", &at, policy) == 2 && at == (unsigned long)memory)
            break;
        else
            *policy = 0;
    if (file)
        fclose(file);
    return zf_strdup(policy);
}

static void assert_policy(const void *memory, const char *expected)
{
    char *policy = policy_of(memory);
    assert_true(strncmp(policy, expected, strlen(expected)) == 0);
    free(policy);
}

/* Of this thread. */
static int thread_policy(void)
{
    unsigned long nodes[16];
    int mode = -1;
    assert_int_equal(syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, NULL, 0), 0);
    return mode;
}

/* Node 0, which every machine has. The memory is a mapping of its own, between two that nobody may
 * read. */
static void memory_comes_from_a_node(void **state)
{
    (void)state;
    const size_t bytes = (size_t)1 << 20;
    char *mapped = mmap(NULL, 3 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *memory = mapped + bytes, *known;
    assert_ptr_not_equal(mapped, MAP_FAILED);
    assert_int_equal(mprotect(memory, bytes, PROT_READ | PROT_WRITE), 0);
    known = policy_of(memory);
    if (!*known) {
        print_message("skipped: this kernel tells no memory policies\n");
        skip();
    }
    free(known);
    numa_prefer(memory, bytes, -1);
    assert_policy(memory, "default");
    numa_prefer(memory, bytes, 0);
    assert_policy(memory, "prefer");
    numa_prefer_here(0);
    assert_int_equal(thread_policy(), MPOL_PREFERRED);
    numa_prefer_here(-1);
    assert_int_equal(thread_policy(), MPOL_DEFAULT);
    munmap(mapped, 3 * bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_have_nodes),
        cmocka_unit_test(nodes_have_cpus),
        cmocka_unit_test(memory_comes_from_a_node),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
