/* offload/comm on the CPU device. Alone, and under mpirun with 2 and 4 ranks. */
#include "tests/comm_checks.h"

#define MANY ((size_t)100003)

static void knows_its_ranks(void **state)
{
    (void)state;
    const char *launched = getenv("OMPI_COMM_WORLD_SIZE");
    assert_int_equal(comm_size(world), launched ? atoi(launched) : 1);
    assert_int_equal(comm_local_size(world), comm_size(world));
    assert_int_equal(comm_local_rank(world), comm_rank(world));
    assert_string_equal(comm_device_transport(world), comm_size(world) > 1 ? "MPI" : "none");
}

/* Those of one machine that say the same, in their order; tests run unbound. */
static void peers_say_the_same(void **state)
{
    (void)state;
    const int rank = comm_rank(world), size = comm_size(world);
    int place = -1, peers = -1;
    comm_core_peers(world, 7, &place, &peers);
    assert_true(place == comm_core_rank(world) && peers == comm_core_size(world));
    if (comm_core_size(world) < size)
        return; /* each on cores of its own */
    comm_core_peers(world, rank % 2, &place, &peers);
    assert_int_equal(place, rank / 2);
    assert_int_equal(peers, (size + 1 - rank % 2) / 2);
}

static void all_reduces(void **state)
{
    (void)state;
    check_all_reduce(1);
    check_all_reduce(MANY);
}

static void reduces(void **state)
{
    (void)state;
    check_reduce(3, 1);
    check_reduce(MANY, 70);
    check_reduce(MANY, 1);
}

static void gathers(void **state)
{
    (void)state;
    for (int in_place = 0; in_place < 2; in_place++) {
        check_all_gather(5, in_place);
        check_all_gather(MANY, in_place);
    }
}

static void orders_two_streams(void **state)
{
    (void)state;
    check_two_streams(1000);
}

static void orders_many_streams(void **state)
{
    (void)state;
    check_many_streams(1000);
}

static void sums_have_the_same_bits(void **state)
{
    (void)state;
    check_same_bits(MANY);
}

static void nothing_is_a_size(void **state)
{
    (void)state;
    comm_device_all_reduce(world, device->compute, NULL, 0);
    comm_device_all_gather(world, device->compute, &(struct comm_shares){.owner = COMM_DIVIDED}, 1);
    comm_device_finish(world, device->compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_its_ranks),
        cmocka_unit_test(peers_say_the_same),
        cmocka_unit_test(all_reduces),
        cmocka_unit_test(reduces),
        cmocka_unit_test(gathers),
        cmocka_unit_test(orders_two_streams),
        cmocka_unit_test(orders_many_streams),
        cmocka_unit_test(sums_have_the_same_bits),
        cmocka_unit_test(nothing_is_a_size),
    };
    world = comm_create();
    device = device_cpu(1);
    comm_attach(world, device);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_destroy(world);
    return failed;
}
