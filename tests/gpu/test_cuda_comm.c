/* offload/comm on the CUDA device: NCCL where each rank has a device of its own, MPI through host
 * memory otherwise or with ZF_COMM=mpi. Alone, and under mpirun. With the argument "forever" it
 * reduces until it is killed, for nccl_failure.sh. */
#include "tests/comm_checks.h"

#include "data/log.h"
#include "tests/seed.h"

#define MANY         ((size_t)5003)
#define OVER_STAGING (((size_t)4 << 18) + 3) /* floats: more than the staging buffer holds */

/* The emulator's; NULL on a GPU. */
extern void emulator_seed(uint32_t seed) __attribute__((weak));

/* Runs a check once on a GPU, and emulated in as many orders as others of what streams do;
 * ranks differ in theirs. */
#define each_order(check)                                                                          \
    do {                                                                                           \
        for (uint32_t order = 0; order < (emulator_seed ? test_repeats(20) : 1); order++) {        \
            if (emulator_seed)                                                                     \
                emulator_seed(4 * order + (uint32_t)comm_rank(world));                             \
            check;                                                                                 \
        }                                                                                          \
    } while (0)

static void chooses_a_transport(void **state)
{
    (void)state;
    const char *wish = getenv("ZF_COMM");
    bool own = device_cuda_count() >= comm_local_size(world);
    const char *expected = comm_size(world) == 1                        ? "none"
                           : own && !(wish && strcmp(wish, "mpi") == 0) ? "NCCL"
                                                                        : "MPI through host memory";
    assert_string_equal(comm_device_transport(world), expected);
}

static void all_reduces(void **state)
{
    (void)state;
    each_order(check_all_reduce(1));
    each_order(check_all_reduce(MANY));
    check_all_reduce(OVER_STAGING);
}

static void reduces(void **state)
{
    (void)state;
    each_order(check_reduce(3, 1));
    each_order(check_reduce(MANY, 7));
    check_reduce(2 * OVER_STAGING, 1);
}

static void gathers(void **state)
{
    (void)state;
    for (int in_place = 0; in_place < 2; in_place++) {
        each_order(check_all_gather(MANY, in_place));
        check_all_gather(2 * OVER_STAGING, in_place);
    }
}

static void orders_two_streams(void **state)
{
    (void)state;
    each_order(check_two_streams(1000));
}

static void orders_many_streams(void **state)
{
    (void)state;
    each_order(check_many_streams(1000));
}

static void sums_have_the_same_bits(void **state)
{
    (void)state;
    each_order(check_same_bits(MANY));
}

/* The host's own collectives between those of the device, which it does not wait for. */
static void mixes_with_host_collectives(size_t n)
{
    double one = 1;
    struct arrays a = arrays_create(n);
    send_values(&a);
    comm_device_all_reduce(world, a.stream, a.data, n);
    comm_all_reduce_f64(world, &one, 1);
    assert_true(one == comm_size(world));
    comm_device_all_reduce(world, a.stream, a.data, n);
    comm_barrier(world);
    for (size_t i = 0; i < n; i++)
        a.expected[i] = sum_of(i) * (float)comm_size(world);
    check_values(&a, a.data);
    arrays_destroy(&a);
}

static void host_collectives_in_between(void **state)
{
    (void)state;
    each_order(mixes_with_host_collectives(100));
}

static void attaches_again(void **state)
{
    (void)state;
    for (int time = 0; time < 3; time++) {
        comm_attach(world, device);
        check_all_reduce(MANY);
    }
}

/* Rank 0's, which may be a fresh one. */
static void share_seed(void)
{
    uint32_t seed = test_seed();
    comm_broadcast(world, &seed, sizeof seed, 0);
    test_set_seed(seed);
    if (comm_rank(world) == 0)
        test_print_seed();
}

static _Noreturn void reduce_forever(void)
{
    for (;;)
        check_all_reduce(MANY);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chooses_a_transport),
        cmocka_unit_test(all_reduces),
        cmocka_unit_test(reduces),
        cmocka_unit_test(gathers),
        cmocka_unit_test(orders_two_streams),
        cmocka_unit_test(orders_many_streams),
        cmocka_unit_test(sums_have_the_same_bits),
        cmocka_unit_test(host_collectives_in_between),
        cmocka_unit_test(attaches_again),
    };
    struct zf_error err;
    world = comm_create();
    log_set_rank(comm_rank(world));
    if (emulator_seed)
        share_seed();
    int count = device_cuda_count();
    device = device_cuda(count > 0 ? comm_local_rank(world) % count : 0, &err);
    if (!device) {
        print_message("skipped: %s\n", err.text);
        comm_destroy(world);
        return 77;
    }
    comm_attach(world, device);
    if (argc == 2 && strcmp(argv[1], "forever") == 0)
        reduce_forever();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_destroy(world);
    return failed;
}
