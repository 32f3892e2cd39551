/* offload/host/memory.h: how much host memory there is, by made-up control groups. */
#include "tests/folder.h"
#include "tests/testing.h"

#include "offload/host/memory.h"

#include <unistd.h>

static void assert_limit(size_t bytes)
{
    assert_int_equal(host_memory_limit(folder), bytes);
}

static void groups_limit_the_machine(void **state)
{
    (void)state;
    const size_t machine = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    assert_limit(machine); /* nothing is told */
    assert_true(host_memory_limit("") > 0 && host_memory_limit("") <= machine);
    folder_write("/proc/self/cgroup", "0::/slurm/job_7/step_0\n");
    assert_limit(machine);
    folder_write("/sys/fs/cgroup/slurm/job_7/memory.max", "max\n");
    assert_limit(machine);
    folder_write("/sys/fs/cgroup/slurm/memory.max", "8000000\n"); /* an outer group's */
    assert_limit(8000000);
    folder_write("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "6000000\n");
    assert_limit(6000000);
    folder_write("/sys/fs/cgroup/slurm/job_7/memory.max", "9000000\n");
    assert_limit(6000000);
    folder_write("/sys/fs/cgroup/memory.max", "5000000\n"); /* a container's own */
    assert_limit(5000000);
    folder_write("/proc/self/cgroup", "4:cpu,memory:/x\n3:memory:/job\nnothing\n1:cpu:/slurm\n");
    assert_limit(machine);
    folder_write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    assert_limit(machine);
    folder_write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "7000000\n");
    assert_limit(7000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups_limit_the_machine)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
