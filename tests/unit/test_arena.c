/* model/arena: what is measured is what is placed. */
#include "tests/testing.h"

#include "model/device/arena.h"

static size_t allocated;
static int held;

static void *count_allocation(size_t bytes)
{
    allocated += (bytes + 255) / 256 * 256; /* allocations are aligned so */
    held++;
    return device_cpu(0)->allocate(bytes);
}

static void count_release(void *memory)
{
    held--;
    device_cpu(0)->release(memory);
}

static void place(struct arena *a, char *piece[3])
{
    piece[0] = arena_take(a, &a->use.parameters, 100, 4);
    piece[1] = arena_take(a, &a->use.workspace, 0, 8);
    piece[2] = arena_take(a, &a->use.workspace, 3, 1);
}

static void measures_what_it_places(void **state)
{
    (void)state;
    struct device device = *device_cpu(0);
    struct arena measured = {0}, placed = {.device = &device};
    char *piece[3];
    device.allocate = count_allocation;
    device.release = count_release;
    place(&measured, piece);
    assert_true(!piece[0] && !piece[1] && !piece[2] && allocated == 0);
    place(&placed, piece);
    assert_true(piece[0] && !piece[1] && piece[2]);
    assert_memory_equal(&placed.use, &measured.use, sizeof placed.use);
    assert_int_equal(placed.use.parameters, 512);
    assert_int_equal(placed.use.workspace, 256);
    assert_int_equal(memory_total(&placed.use), allocated);
    assert_int_equal(held, 2);
    memset(piece[0], 1, 400);
    memset(piece[2], 1, 3);
    arena_release(&placed);
    assert_int_equal(held, 0);
    arena_release(&measured);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_what_it_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
