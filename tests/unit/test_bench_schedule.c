/* cmd/bench_schedule: the simulation against what can be worked out by hand. */
#include "tests/testing.h"

#include "cmd/bench_schedule.h"
#include "cmd/bench_schedule_sim.h"
#include "data/json.h"

#include <math.h>

#define STEPS      24
#define PARAMETERS (8 * 12e6) /* of `model`, but for its norms: fewer than one in 5,000 */
#define CLOSE      2e-3       /* so that a share may be off by the norms */

/* Equal layers without embeddings; 1/20 of the channels are whole channels of every matrix. */
static const struct sim_model model = {
    .name = "test", .n_layers = 8, .width = 1000, .kv_width = 1000, .inner = 4000};

/* Devices alone cost time. */
static struct sim_machine fast_machine(void)
{
    return (struct sim_machine){.name = "fast",
                                .device_step = 1,
                                .backward_share = 2.0 / 3,
                                .device_gbs = INFINITY,
                                .device_gigabytes = 80,
                                .link_gbs = INFINITY,
                                .ranks_per_link = 1,
                                .host_gbs = INFINITY,
                                .ranks = 1,
                                .ranks_per_node = 4,
                                .exchange_gbs = INFINITY,
                                .network_gbs = INFINITY};
}

/* Everything costs something, nothing is far from its limit. */
static struct sim_machine balanced_machine(int ranks)
{
    struct sim_machine m = fast_machine();
    m.ranks = ranks;
    m.device_gbs = 30;
    m.link_gbs = 1;
    m.host_gbs = 4;
    m.exchange_gbs = 4;
    m.network_gbs = 2;
    return m;
}

static const struct sim_policy zero_offload = {.name = "ZeRO-Offload",
                                               .interval = 1,
                                               .stagger = true,
                                               .down_in_backward = true,
                                               .inline_copies = true};

static struct sim_policy zenflow(int interval, int lag, bool stagger)
{
    return (struct sim_policy){.name = "ZenFlow",
                               .topk_ratio = 0.05,
                               .interval = interval,
                               .lag = lag,
                               .stagger = stagger};
}

static void assert_near(double value, double expected, double relative)
{
    if (!(fabs(value - expected) <= relative * fabs(expected)))
        fail_msg("%.9g, but %.9g was expected", value, expected);
}

static const int intervals[] = {1, 2, 3, 4, 7, ENGINE_MAX_INTERVAL};
static const int n_intervals = sizeof intervals / sizeof *intervals;

static void closes_every_group_once_an_interval(void **state)
{
    (void)state;
    struct sim_machine m = balanced_machine(2);
    for (int i = 0; i < 4 * n_intervals; i++) {
        struct sim_policy p = zenflow(intervals[i / 4], i & 1, i & 2);
        struct sim_result r = sim_run(&model, &m, &p, STEPS);
        assert_true(r.steps >= STEPS && r.steps % p.interval == 0);
        for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
            assert_int_equal(r.closings[j], j < p.interval ? r.steps / p.interval : 0);
    }
}

static void moves_the_bytes_of_the_formula(void **state)
{
    (void)state;
    static const double ratios[] = {0, 0.05, 0.5};
    for (int i = 0; i < 3 * n_intervals; i++) {
        double k = ratios[i % 3];
        int interval = intervals[i / 3];
        for (int ranks = 1; ranks <= 9; ranks += 4) {
            struct sim_machine m = balanced_machine(ranks);
            struct sim_policy p = zenflow(interval, 1, i & 1);
            p.topk_ratio = k;
            struct sim_result r = sim_run(&model, &m, &p, STEPS);
            assert_near(r.down, (1 - k) / interval, CLOSE);
            assert_near(r.up, (1 - k) / interval, CLOSE);
            p.accumulate = ENGINE_ACCUMULATE_HOST;
            r = sim_run(&model, &m, &p, STEPS);
            assert_near(r.down, 1 - k, CLOSE);
            assert_near(r.up, (1 - k) / interval, CLOSE);
        }
    }
}

static void moves_channels_that_are_alone_in_their_group(void **state)
{
    (void)state;
    struct sim_model narrow = {
        .name = "narrow", .n_layers = 2, .width = 20, .kv_width = 2000, .inner = 30};
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        struct sim_machine m = balanced_machine(ranks);
        struct sim_policy p = zenflow(ENGINE_MAX_INTERVAL, 1, true);
        p.topk_ratio = 0;
        struct sim_result r = sim_run(&narrow, &m, &p, STEPS);
        assert_near(r.down, 1.0 / p.interval, CLOSE);
        assert_near(r.up, 1.0 / p.interval, CLOSE);
    }
}

static void zero_offload_moves_the_model_twice_and_resident_nothing(void **state)
{
    (void)state;
    struct sim_machine m = balanced_machine(4);
    struct sim_policy resident = {.topk_ratio = 1, .interval = 1};
    struct sim_result zero = sim_run(&model, &m, &zero_offload, STEPS);
    struct sim_result none = sim_run(&model, &m, &resident, STEPS);
    assert_near(zero.down, 1, CLOSE);
    assert_near(zero.up, 1, CLOSE);
    assert_true(none.down == 0 && none.up == 0 && none.stall_share == 0 && none.host_share == 0);
}

/* What all that follows tells apart. */
static struct sim_policy numbered_policy(int i)
{
    struct sim_policy p = zenflow(1 + i % 5, i % 2, i & 2);
    p.inline_copies = i & 4;
    p.accumulate = i & 8 ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE;
    return i == 0 ? zero_offload : p;
}
#define N_POLICIES 40

static void infinite_rates_leave_the_device_step(void **state)
{
    (void)state;
    struct sim_machine m = fast_machine();
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int i = 0; i < N_POLICIES; i++) {
            struct sim_policy p = numbered_policy(i);
            m.ranks = ranks;
            struct sim_result r = sim_run(&model, &m, &p, STEPS);
            assert_near(r.median, m.device_step, 1e-9);
            assert_near(r.worst, m.device_step, 1e-9);
            assert_true(fabs(r.stall_share) < 1e-9 && fabs(r.exchange_share) < 1e-9);
        }
}

/* Seconds of the host's AdamW on all deferred channels. */
static double host_seconds(const struct sim_machine *m)
{
    return 0.95 * PARAMETERS * 28 / (m->host_gbs * 1e9);
}

static void a_slow_host_bounds_the_staggered_step(void **state)
{
    (void)state;
    for (int interval = 1; interval <= 5; interval++) {
        struct sim_machine m = fast_machine();
        struct sim_policy p = zenflow(interval, 1, true);
        m.host_gbs = 1e-2;
        struct sim_result r = sim_run(&model, &m, &p, STEPS);
        double expected = host_seconds(&m) / interval;
        assert_near(r.mean, expected, CLOSE);
        assert_near(r.host_share, 1, 1e-6);
        assert_near(r.stall_share, 1 - m.device_step / expected, CLOSE);
        p.accumulate = ENGINE_ACCUMULATE_HOST; /* adds each gradient, and takes means */
        r = sim_run(&model, &m, &p, STEPS);
        assert_near(r.mean, expected * (28 + 6 + 10 * interval) / 28, CLOSE);
    }
}

/* All windows close at a step's end; the step after next waits for the host. */
static void a_burst_waits_for_what_the_lag_does_not_hide(void **state)
{
    (void)state;
    static const double host_gbs[] = {0.3, 0.5, 1, 5};
    for (int i = 0; i < 16; i++) {
        struct sim_machine m = fast_machine();
        int interval = 4, lag = 1 + i / 4;
        struct sim_policy p = zenflow(interval, lag, false);
        m.host_gbs = host_gbs[i % 4];
        struct sim_result r = sim_run(&model, &m, &p, STEPS);
        double late = host_seconds(&m) - lag * m.device_step;
        late = late > 0 ? late : 0;
        assert_near(r.worst, m.device_step + late, CLOSE);
        assert_near(r.median, m.device_step, CLOSE);
        assert_near(r.mean, m.device_step + late / interval, CLOSE);
    }
}

/* However late updates may be, the next gradient needs the place of the one before. */
static void a_slow_host_that_accumulates_bounds_every_step(void **state)
{
    (void)state;
    struct sim_machine m = fast_machine();
    struct sim_policy p = zenflow(ENGINE_MAX_INTERVAL, ENGINE_MAX_INTERVAL, false);
    p.accumulate = ENGINE_ACCUMULATE_HOST;
    m.host_gbs = 0.95 * PARAMETERS * 10 / 1e9 / 3;
    assert_near(sim_run(&model, &m, &p, STEPS).median, 3, CLOSE);
}

/* S = 4, lag 2: the step after a closing waits for its windows' places; the one after the next ends
 * a layer's forward and all backward passes after the last parameters have come. */
static void a_slow_link_stalls_a_burst_twice(void **state)
{
    (void)state;
    struct sim_machine m = fast_machine();
    struct sim_policy p = zenflow(4, 2, false);
    double copy = 3, last = 1.0 / 3 / model.n_layers + 2.0 / 3;
    m.link_gbs = 0.95 * PARAMETERS * 2 / 1e9 / copy;
    struct sim_result r = sim_run(&model, &m, &p, STEPS);
    assert_near(r.worst, copy + last, CLOSE);
    assert_near(r.mean, (copy + 1 + copy + last + 1) / 4, CLOSE);
    p.lag = 4; /* what closes must wait for what arrives to leave the exchange buffer */
    r = sim_run(&model, &m, &p, STEPS);
    assert_near(r.worst, copy + copy, CLOSE);
    assert_near(r.mean, (copy + copy + 3) / 4, CLOSE);
}

/* All parameters, then all gradients; the device alone works between the two, on one layer. */
static void a_slow_exchange_bounds_the_resident_step(void **state)
{
    (void)state;
    struct sim_policy resident = {.topk_ratio = 1, .interval = 1};
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        struct sim_machine m = fast_machine();
        m.ranks = ranks;
        m.exchange_gbs = 0.1;
        m.network_gbs = 0.02;
        double bytes = PARAMETERS * (2 + 4) * (ranks - 1) / ranks;
        double gbs = ranks > m.ranks_per_node ? m.network_gbs : m.exchange_gbs;
        double expected = bytes / (gbs * 1e9) + m.device_step / model.n_layers;
        struct sim_result r = sim_run(&model, &m, &resident, STEPS);
        assert_near(r.median, expected, CLOSE);
        assert_near(r.exchange_share, 1 - m.device_step / expected, CLOSE);
    }
}

static void zero_offload_takes_the_sum_of_its_parts(void **state)
{
    (void)state;
    static const double link_gbs[] = {0.05, 0.2, 0.29, 1, 20};
    for (int i = 0; i < 5; i++) {
        struct sim_machine m = fast_machine();
        m.link_gbs = link_gbs[i];
        m.host_gbs = 4;
        struct sim_result r = sim_run(&model, &m, &zero_offload, STEPS);
        int n = model.n_layers;
        double forward = m.device_step / 3, backward = m.device_step * 2 / 3 / n;
        double copy = 2 * PARAMETERS / (m.link_gbs * 1e9), host = PARAMETERS * 28 / 4e9;
        double down =
            backward * n + copy / n > backward + copy ? backward * n + copy / n : backward + copy;
        assert_near(r.median, forward + down + host + copy, CLOSE);
        assert_near(r.worst, r.median, 1e-9);
        assert_near(r.stall_share, 1 - m.device_step / r.median, CLOSE);
    }
}

static void staggering_evens_out_a_host_near_its_limit(void **state)
{
    (void)state;
    for (int interval = 2; interval <= 8; interval++) {
        struct sim_machine m = fast_machine();
        m.host_gbs = 0.95 * PARAMETERS * 28 / 1e9 / (0.8 * interval); /* busy 80% of the time */
        m.link_gbs = 2 * PARAMETERS / 1e9 / 0.2;
        struct sim_policy staggered = zenflow(interval, 1, true);
        struct sim_policy burst = zenflow(interval, 1, false);
        struct sim_result s = sim_run(&model, &m, &staggered, STEPS);
        struct sim_result b = sim_run(&model, &m, &burst, STEPS);
        assert_true(s.worst <= 1.01 * s.median);
        assert_true(s.worst <= 1.05 * m.device_step);
        assert_true(b.worst >= 1.4 * s.worst);
        assert_true(b.mean > s.mean);
    }
}

static void faster_machines_take_no_longer(void **state)
{
    (void)state;
    for (int i = 0; i < N_POLICIES; i++)
        for (int rate = 0; rate < 4; rate++) {
            struct sim_machine m = balanced_machine(8);
            double *rates[] = {&m.link_gbs, &m.host_gbs, &m.network_gbs, &m.device_gbs};
            struct sim_policy p = numbered_policy(i);
            double before = INFINITY;
            for (*rates[rate] = 0.1; *rates[rate] < 1000; *rates[rate] *= 3) {
                struct sim_result r = sim_run(&model, &m, &p, STEPS);
                assert_true(r.mean <= before * (1 + 1e-9));
                assert_true(r.mean >= m.device_step && r.worst >= r.median);
                before = r.mean;
            }
        }
}

static void ranks_share_the_link_and_the_host(void **state)
{
    (void)state;
    struct sim_machine m = fast_machine();
    m.link_gbs = 1;
    m.host_gbs = 1;
    double host = PARAMETERS * 28 / 1e9, copy = PARAMETERS * 2 / 1e9;
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        int nodes = ranks > 4 ? ranks / 4 : 1;
        m.ranks = ranks;
        m.ranks_per_link = 1;
        struct sim_result own_link = sim_run(&model, &m, &zero_offload, STEPS);
        m.ranks_per_link = 4;
        struct sim_result one_link = sim_run(&model, &m, &zero_offload, STEPS);
        double last = 1.0 / model.n_layers; /* of the copies down, after backward */
        assert_near(own_link.median, 1 + host / nodes + copy / ranks * (1 + last), CLOSE);
        assert_near(one_link.median, 1 + host / nodes + copy / nodes * (1 + last), CLOSE);
    }
}

static void counts_the_memory_that_the_engine_holds(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        enum engine_accumulate accumulate;
        double host, device;
    } cases[] = {
        {1, ENGINE_ACCUMULATE_DEVICE, 14, 2 + 4 + 4 + 0.05 * 12},
        {1, ENGINE_ACCUMULATE_HOST, 20, 2 + 4 + 0.05 * 12},
        {4, ENGINE_ACCUMULATE_DEVICE, 14, 2 + 4 + (4 + 4 + 0.05 * 12) / 4},
        {4, ENGINE_ACCUMULATE_HOST, 20, 2 + 4 + (4 + 0.05 * 12) / 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sim_machine m = balanced_machine(cases[i].ranks);
        struct sim_policy p = zenflow(4, 1, true);
        p.accumulate = cases[i].accumulate;
        struct sim_result r = sim_run(&model, &m, &p, STEPS);
        assert_near(r.host_bytes, cases[i].host, CLOSE);
        assert_near(r.device_bytes, cases[i].device, CLOSE);
    }
}

static void finds_the_host_rate_of_a_step(void **state)
{
    (void)state;
    struct sim_machine m = balanced_machine(4);
    struct sim_policy p = zenflow(4, 4, false);
    const struct sim_policy *policies[] = {&zero_offload, &p};
    for (int i = 0; i < 2; i++) {
        m.host_gbs = sim_find_host_rate(&model, &m, policies[i], 9);
        assert_near(sim_run(&model, &m, policies[i], STEPS).worst, 9, 1e-6);
        assert_true(sim_find_host_rate(&model, &m, policies[i], 0.5) == 0);
    }
}

static void knows_the_published_models(void **state)
{
    (void)state;
    struct sim_model llama = {.n_layers = 32,
                              .width = 4096,
                              .kv_width = 4096,
                              .inner = 11008,
                              .gated = true,
                              .vocab = 32000};
    assert_near(sim_count_parameters(&llama), 6738415616, 0);
    assert_near(sim_count_parameters(&model), PARAMETERS, CLOSE);
}

static bool run(struct zf_error *err, int argc, const char **argv)
{
    return bench_schedule(argc, (char **)(uintptr_t)argv, err);
}

static void refuses_wrong_options(void **state)
{
    (void)state;
    static const struct {
        int argc;
        const char *argv[6];
        const char *says;
    } cases[] = {
        {3, {"schedule", "--nonsense", "1"}, "there is no option --nonsense"},
        {2, {"schedule", "--ranks"}, "takes a value"},
        {3, {"schedule", "--ranks", "0"}, "--ranks is \"0\""},
        {3, {"schedule", "--ranks", "1.5"}, "a whole number"},
        {3, {"schedule", "--topk", "nan"}, "--topk is \"nan\""},
        {3, {"schedule", "--topk", "5"}, "a number from 0 to 1"},
        {3, {"schedule", "--lag", "5"}, "at most --interval, 4"},
        {3, {"schedule", "--model", "x"}, "--model is \"x\""},
        {3, {"schedule", "--machine", "x"}, "--machine is \"x\""},
        {3, {"schedule", "--accumulate", "x"}, "device or host"},
        {3, {"schedule", "--tokens", "10"}, "given together"},
        {5, {"schedule", "--width", "4", "--ranks", "8"}, "less than the 8 ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct zf_error err = {""};
        const char *argv[6];
        memcpy(argv, cases[i].argv, sizeof argv);
        assert_false(run(&err, cases[i].argc, argv));
        assert_says(err, cases[i].says);
    }
}

static void writes_what_it_prints(void **state)
{
    (void)state;
    struct zf_error err = {""};
    struct json_file file;
    char path[] = "/tmp/zf_schedule_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const char *argv[] = {"schedule", "--device-step", "0.5", "--interval", "8", "--ranks",
                          "2",        "--json",        path};
    assert_works(run(&err, 9, argv), err);
    assert_works(json_load(&file, path, &err), err);
    unlink(path);
    json_t *table = json_array_get(json_find(&file, "tables"), 0);
    json_t *staggered = json_object_get(json_object_get(table, "results"), "ZenFlow, staggered");
    assert_true(json_is_true(json_find(&file, "simulated")));
    assert_int_equal(json_integer_value(json_object_get(table, "ranks")), 2);
    assert_near(json_real_value(json_object_get(table, "device_step_seconds")), 0.5, 1e-6);
    assert_near(json_real_value(json_object_get(staggered, "down_model_sizes")), 0.95 / 8, 1e-2);
    json_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closes_every_group_once_an_interval),
        cmocka_unit_test(moves_the_bytes_of_the_formula),
        cmocka_unit_test(moves_channels_that_are_alone_in_their_group),
        cmocka_unit_test(zero_offload_moves_the_model_twice_and_resident_nothing),
        cmocka_unit_test(infinite_rates_leave_the_device_step),
        cmocka_unit_test(a_slow_host_bounds_the_staggered_step),
        cmocka_unit_test(a_burst_waits_for_what_the_lag_does_not_hide),
        cmocka_unit_test(a_slow_host_that_accumulates_bounds_every_step),
        cmocka_unit_test(a_slow_link_stalls_a_burst_twice),
        cmocka_unit_test(a_slow_exchange_bounds_the_resident_step),
        cmocka_unit_test(zero_offload_takes_the_sum_of_its_parts),
        cmocka_unit_test(staggering_evens_out_a_host_near_its_limit),
        cmocka_unit_test(faster_machines_take_no_longer),
        cmocka_unit_test(ranks_share_the_link_and_the_host),
        cmocka_unit_test(counts_the_memory_that_the_engine_holds),
        cmocka_unit_test(finds_the_host_rate_of_a_step),
        cmocka_unit_test(knows_the_published_models),
        cmocka_unit_test(refuses_wrong_options),
        cmocka_unit_test(writes_what_it_prints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
