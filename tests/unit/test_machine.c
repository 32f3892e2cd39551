/* model/plan/machine.h: the files that are here, what is wrong with others, and what lies between
 * measured points. */
#include "tests/testing.h"

#include "model/plan/machine.h"

#include <math.h>

#define FOLDER ZF_TESTS_DIR "/../configs/machines/"

static void assert_near(double value, double expected, double tolerance)
{
    if (fabs(value - expected) > tolerance)
        fail_msg("%.9g, expected %.9g", value, expected);
}

static char path[] = "/tmp/zf-machine-XXXXXX";

static int make_path(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

static void the_files_here_are_good(void **state)
{
    (void)state;
    static const char *const names[] = {"rtx-4090", "a100-40gb", "a100-80gb", "h100", "h200"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char file[256];
        struct machine m;
        struct zf_error err;
        snprintf(file, sizeof file, FOLDER "%s.json", names[i]);
        assert_works(machine_load(&m, file, &err), err);
        assert_false(m.is_cpu);
        assert_true(m.product_rate > 1e14 && m.product_rate < 1e15);
        assert_true(machine_load(&m, names[i], &err)); /* by its name, from the top folder */
    }
}

static void a_value_counts_by_what_is_reached_of_it(void **state)
{
    (void)state;
    struct machine m;
    struct zf_error err;
    assert_works(machine_load(&m, FOLDER "h100.json", &err), err);
    assert_near(m.link_rate, 64e9 * 0.8, 1);
    assert_near(m.multiprocessors, 132, 0);
}

static json_t *good(void)
{
    json_t *root = json_load_file(FOLDER "h100.json", 0, NULL);
    assert_non_null(root);
    return root;
}

/* Takes the reference. */
static void assert_refused(json_t *root, const char *sentence)
{
    struct machine m;
    struct zf_error err;
    assert_int_equal(json_dump_file(root, path, JSON_INDENT(2)), 0);
    assert_false(machine_load(&m, path, &err));
    assert_says(err, path);
    assert_says(err, sentence);
    json_decref(root);
}

static void what_is_wrong_is_said(void **state)
{
    (void)state;
    struct machine m;
    struct zf_error err;
    assert_false(machine_load(&m, "nonsense", &err));
    assert_says(err, "there is no machine \"nonsense\"");

    json_t *root = good();
    json_object_del(json_object_get(root, "link"), "bytes_per_second");
    assert_refused(root, "link.bytes_per_second is missing");

    root = good();
    json_object_set_new(json_object_get(root, "link"), "bytes_per_second", json_real(6.4e10));
    assert_refused(root, "link.bytes_per_second is 64000000000.0, but it is an object with value");

    root = good();
    json_object_set_new(json_object_get(json_object_get(root, "link"), "bytes_per_second"), "value",
                        json_string("fast"));
    assert_refused(root, "link.bytes_per_second.value is \"fast\", but it is a number from");

    root = good();
    json_object_set_new(json_object_get(json_object_get(root, "link"), "bytes_per_second"),
                        "efficiency", json_real(1.2));
    assert_refused(root, "link.bytes_per_second.efficiency is 1.2, but it is a number above 0");

    root = good();
    json_object_del(json_object_get(json_object_get(root, "link"), "bytes_per_second"), "source");
    assert_refused(root, "link.bytes_per_second.source is missing");

    root = good();
    json_object_set_new(json_object_get(root, "host"), "corse", json_real(1));
    assert_refused(root, "host.corse is not a known figure");

    root = good();
    json_object_set_new(root, "devise", json_object());
    assert_refused(root, "devise is not a known key");

    root = good();
    json_object_set_new(root, "kind", json_string("tpu"));
    assert_refused(root, "kind is \"tpu\", but it is \"gpu\" or \"cpu\"");

    root = good();
    json_object_set_new(root, "operators",
                        json_pack("{s:{s:[[f,f],[f,f]]}}", "zero", "points", 2.0, 1.0, 1.0, 1.0));
    assert_refused(root, "operators.zero is");
}

static json_t *with_gradients(const char *name, double value, const char *source)
{
    json_t *root = good();
    json_t *figure = source ? json_pack("{s:f, s:s}", "value", value, "source", source)
                            : json_pack("{s:f}", "value", value);
    json_object_set_new(root, "gradients", json_pack("{s:o}", name, figure));
    return root;
}

static void gradients_may_be_given(void **state)
{
    (void)state;
    struct machine m;
    struct zf_error err;
    json_t *root = with_gradients("passing_deviation", 0.25, "locality of a run");
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    assert_works(machine_load(&m, path, &err), err);
    assert_true(m.lasting == 1 && m.passing == 0.25 && m.seed == 1);
    assert_refused(with_gradients("passing_deviation", -1, "none"),
                   "gradients.passing_deviation.value is -1.0, but it is a number from 0 to 10");
    assert_refused(with_gradients("lasting_deviation", 1, NULL),
                   "gradients.lasting_deviation.source is missing");
    assert_refused(with_gradients("seed", 1.5, "none"),
                   "gradients.seed.value is 1.5, but it is a whole number");
    assert_refused(with_gradients("loss", 1, "none"), "gradients.loss is not a known figure");
    root = with_gradients("seed", 2, "none");
    json_object_set_new(json_object_get(json_object_get(root, "gradients"), "seed"), "efficiency",
                        json_real(0.5));
    assert_refused(root, "gradients.seed.efficiency is 0.5, but it is not given");
}

static struct machine measured(void)
{
    struct machine m = {.name = "measured",
                        .is_cpu = true,
                        .measured = 2,
                        .memory_bytes = 1e9,
                        .threads = 2,
                        .product_rate = 1e11,
                        .memory_rate = 1e10,
                        .ranks_per_host = 2,
                        .cores = 4,
                        .host_memory_bytes = 2e9,
                        .host_rate = 2e10,
                        .core_rate = 1e10,
                        .exchange_rate = 1e9,
                        .exchange_latency = 1e-5,
                        .lasting = 1, /* what a file says that leaves them out */
                        .passing = 0.5,
                        .seed = 1,
                        .n_operators = 1};
    m.operators[0] = (struct machine_operator){
        "attention, dropout", 2, {100, 10000}, {1, 4}, .flops_per_second = 8};
    m.products.n_sides = 2;
    m.products.sides[0] = 10;
    m.products.sides[1] = 1000;
    for (int i = 0; i < MACHINE_PRODUCTS * 8; i++)
        m.products.rates[i / 8][i / 4 % 2][i / 2 % 2][i % 2] = i % 2 ? 9 : 1; /* by k */
    return m;
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct machine m = measured(), read;
    struct zf_error err;
    json_t *root = machine_describe(&m, "a test");
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    assert_works(machine_load(&read, path, &err), err);
    assert_memory_equal(&read, &m, sizeof m);
}

static void between_points_it_goes_by_logarithms(void **state)
{
    (void)state;
    const struct machine m = measured();
    const struct machine_operator *o = machine_find(&m, "attention, dropout");
    assert_null(machine_find(&m, "attention"));
    assert_near(machine_operator_seconds(o, 1000, 0), 2, 1e-9);
    assert_near(machine_operator_seconds(o, 1, 0), 1, 1e-9);
    assert_near(machine_operator_seconds(o, 20000, 16), 8 + 2, 1e-9);
    assert_near(machine_product_rate(&m.products, 1, 50, 50, 100), 3, 1e-9);
    assert_near(machine_product_rate(&m.products, 2, 5, 5000, 5000), 9, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_files_here_are_good),
        cmocka_unit_test(a_value_counts_by_what_is_reached_of_it),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(gradients_may_be_given),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(between_points_it_goes_by_logarithms),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
