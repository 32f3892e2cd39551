/* A plan beside a run: the same memory to the byte, the same traffic, the same text twice; and a
 * model that no machine here could hold. */
#include "tests/testing.h"

#include "cmd/bench/train_run.h"
#include "cmd/config/engine_settings.h"
#include "data/clock.h"
#include "model/plan/plan.h"

#include <math.h>
#include <sys/resource.h>
#include <time.h>

/* A CPU device that counts what it is asked for. */

static struct device *real;
static size_t device_bytes, host_bytes;

static void *count_device(size_t bytes)
{
    device_bytes += bytes;
    return real->allocate(bytes);
}

static void *count_host(size_t bytes)
{
    host_bytes += bytes;
    return real->allocate_host(bytes);
}

static struct device counting_device(void)
{
    real = device_cpu(1);
    device_bytes = host_bytes = 0;
    struct device d = *real;
    d.allocate = count_device;
    d.allocate_host = d.allocate_host_later = count_host;
    return d;
}

static const struct machine cpu = {.name = "a CPU",
                                   .is_cpu = true,
                                   .measured = 1,
                                   .memory_bytes = 1e12,
                                   .threads = 1,
                                   .product_rate = 1e11,
                                   .memory_rate = 1e10,
                                   .ranks_per_host = 2,
                                   .cores = 2,
                                   .host_memory_bytes = 1e12,
                                   .host_rate = 2e10,
                                   .core_rate = 1e10,
                                   .exchange_rate = 1e9};

static struct engine_config settings(double topk_ratio, int interval, bool on_host)
{
    return (struct engine_config){.beta1 = 0.9f,
                                  .beta2 = 0.999f,
                                  .eps = 1e-8f,
                                  .adam_w_mode = true,
                                  .gradient_clipping = 1,
                                  .topk_ratio = topk_ratio,
                                  .update_interval = interval,
                                  .apply_lag = interval > 1,
                                  .stagger = true,
                                  .accumulate =
                                      on_host ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE,
                                  .deferred_lr_scale = 1,
                                  .reserved_cores = 0.5};
}

static struct gpt_config small_model(enum gpt_head head)
{
    struct zf_error err;
    struct gpt_config c;
    assert_works(gpt_config_preset(&c, "gpt", &err), err);
    c.vocab_size = 300;
    c.head = head;
    c.num_labels = 2;
    return c;
}

/* ---- memory ---- */

struct memory {
    size_t device, host;
    struct engine_memory engine;
};

static const struct gpt_size SIZE = {
    .max_tokens = 64, .max_seqs = 4, .gradient_slots = 2, .mode = GPT_TRAIN};

static void hold(struct device *device, const struct gpt_config *model,
                 const struct engine_config *config, struct memory *m)
{
    struct zf_error err;
    struct comm *comm = comm_create_alone();
    comm_attach(comm, device);
    struct gpt *gpt = gpt_create(device, model, &SIZE);
    struct engine *engine = engine_create(config, device, comm, gpt_params(gpt),
                                          gpt_param_data(gpt), gpt_grad_data(gpt), &err);
    assert_non_null(engine);
    m->engine = engine_memory(engine);
    m->device = device->plan ? plan_device_bytes(device->plan) : device_bytes;
    m->host = device->plan ? plan_host_bytes(device->plan) : host_bytes;
    engine_destroy(engine);
    gpt_destroy(gpt);
    comm_destroy(comm);
}

static void memory_is_a_runs_to_the_byte(void **state)
{
    (void)state;
    const struct engine_config all[] = {settings(1, 1, false), settings(0, 1, false),
                                        settings(0.1, 4, false), settings(0.1, 4, true)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (enum gpt_head head = GPT_HEAD_LM; head <= GPT_HEAD_CLASSIFY; head++) {
            const struct gpt_config model = small_model(head);
            struct memory run, plan;
            struct memory_use use = {0};
            struct device counting = counting_device();
            hold(&counting, &model, &all[i], &run);
            struct device *planned = device_plan_create(&cpu, 1, &PLAN_GRADIENTS);
            hold(planned, &model, &all[i], &plan);
            gpt_measure(planned, &model, &SIZE, &use);
            struct param_table table = gpt_param_table(&model);
            gpt_place_params(&table, &SIZE);
            engine_measure(&all[i], planned, &table, 0, 1, &use);
            params_free(&table);
            assert_int_equal(plan_device_bytes(planned->plan), 0);
            device_plan_destroy(planned);
            assert_int_equal(plan.device, run.device);
            assert_int_equal(plan.engine.device, run.engine.device);
            assert_int_equal(plan.engine.host, run.engine.host);
            /* a run's fp32 state is not the device's to allocate */
            size_t state_bytes = run.engine.host_elements * sizeof(float) *
                                 (all[i].accumulate == ENGINE_ACCUMULATE_HOST ? 4 : 3);
            assert_int_equal(plan.host, run.host + state_bytes);
            /* the start-up table rounds each array to 256 bytes */
            assert_true(memory_total(&use) >= run.device);
            assert_true(memory_total(&use) < run.device + 256 * 1000);
        }
}

/* Host memory, as it was asked for, of 6.7 billion parameters with bf16, S = 4 and a lag of one
 * step: 12 bytes of state, and the exchange has one of four groups. */
static void the_host_holds_little_more_than_its_state(void **state)
{
    (void)state;
    struct zf_error err;
    struct gpt_config model;
    struct machine gpu;
    struct engine_config config = settings(0.05, 4, false);
    struct memory m;
    assert_works(machine_load(&gpu, ZF_TESTS_DIR "/../configs/machines/h100.json", &err), err);
    assert_works(gpt_config_preset(&model, "gpt-6.7b", &err), err);
    config.bf16 = true;
    struct device *planned = device_plan_create(&gpu, 1, &PLAN_GRADIENTS);
    hold(planned, &model, &config, &m);
    device_plan_destroy(planned);
    const double parameters = (double)m.engine.host_elements, each = (double)m.host / parameters;
    print_message("%.3f bytes of host memory for each offloaded parameter\n", each);
    assert_true(parameters > 6e9 && each <= 12.6 && each > 12.5);
    assert_true((double)m.engine.host / parameters <= 12.6);
}

/* ---- traffic and time ---- */

static void run_job(struct device *device, int ranks, struct gpt_config model,
                    const struct engine_config *config, int steps, struct train_result *result)
{
    static const int lengths[] = {9, 16, 5};
    struct zf_error err;
    struct train_job job = {.device = device,
                            .comm = ranks > 1 ? comm_create_planned(ranks, 8) : comm_create_alone(),
                            .config = model,
                            .n_seqs = 3,
                            .micro_batches = 2,
                            .warm_up = 8,
                            .steps = steps,
                            .lr = 1e-3f};
    struct train_method method = {.name = "test", .engine = *config};
    train_data_make(&job, lengths, 3, 1);
    assert_works(train_measure(&job, &method, result, &err), err);
    dataset_free(&job.data);
    comm_destroy(job.comm);
}

/* Over a whole number of windows each deferred channel crosses once each way, whichever it is. */
static void traffic_is_a_runs(void **state)
{
    (void)state;
    const struct engine_config all[] = {settings(1, 1, false), settings(0, 1, false),
                                        settings(0.1, 4, false), settings(0.1, 4, true)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct train_result run, plan;
        run_job(device_cpu(1), 1, small_model(GPT_HEAD_LM), &all[i], 8, &run);
        struct device *planned = device_plan_create(&cpu, 1, &PLAN_GRADIENTS);
        run_job(planned, 1, small_model(GPT_HEAD_LM), &all[i], 8, &plan);
        assert_true(plan.down == run.down && plan.up == run.up && plan.moved == run.moved);
        assert_true(plan.needed == run.needed && plan.tokens == run.tokens);
        assert_true(plan.median > 0 && plan.worst >= plan.median);
        assert_true(i == 0 || plan.down > 0);
        train_result_free(&run);
        train_result_free(&plan);
        device_plan_destroy(planned);
    }
}

static char *tell(uint32_t seed, const struct engine_config *config)
{
    struct zf_error err;
    struct machine gpu;
    struct train_result result;
    struct plan_gradients gradients = PLAN_GRADIENTS;
    char *text = NULL;
    size_t n = 0;
    gradients.seed = seed;
    assert_works(machine_load(&gpu, ZF_TESTS_DIR "/../configs/machines/a100-40gb.json", &err), err);
    struct device *planned = device_plan_create(&gpu, 4, &gradients);
    run_job(planned, 4, small_model(GPT_HEAD_CLASSIFY), config, 24, &result);
    FILE *out = open_memstream(&text, &n);
    plan_report_print(result.planned, 1000000, out);
    fclose(out);
    train_result_free(&result);
    device_plan_destroy(planned);
    return text;
}

/* With choices made anew: the seed of the norms is all that they hang on. */
static void the_same_plan_is_the_same_text(void **state)
{
    (void)state;
    struct engine_config config = settings(0.1, 4, false);
    config.select_every = 8;
    config.bf16 = true;
    char *once = tell(1, &config), *again = tell(1, &config), *other = tell(2, &config);
    assert_string_equal(once, again);
    assert_string_not_equal(once, other);
    assert_non_null(strstr(once, "planned (simulated, not measured) on A100 SXM4 40 GB"));
    assert_non_null(strstr(once, "critical path"));
    assert_non_null(strstr(once, "network"));
    free(once);
    free(again);
    free(other);
}

/* State moves where channels are chosen that were not before: none where nothing passes, and the
 * more the less of norms lasts. */
static void the_machines_gradients_decide_what_moves(void **state)
{
    (void)state;
    struct zf_error err;
    struct machine gpu;
    struct train_result result;
    struct engine_config config = settings(0.1, 4, false);
    double moved[3];
    config.select_every = 8;
    config.bf16 = true;
    assert_works(machine_load(&gpu, ZF_TESTS_DIR "/../configs/machines/a100-40gb.json", &err), err);
    for (int i = 0; i < 3; i++) {
        gpu.lasting = i < 2 ? 1 : 0.1;
        gpu.passing = i < 1 ? 0 : 0.5;
        struct device *planned = device_plan_create(&gpu, 1, NULL);
        run_job(planned, 1, small_model(GPT_HEAD_CLASSIFY), &config, 24, &result);
        moved[i] = result.moved;
        train_result_free(&result);
        device_plan_destroy(planned);
    }
    assert_true(moved[0] == 0 && moved[1] > 0 && moved[2] > 1.2 * moved[1]);
}

/* The host twice as fast, or the link, or the device, never makes a step longer. */
static void what_is_faster_is_not_slower(void **state)
{
    (void)state;
    struct zf_error err;
    struct machine slow, fast[3];
    struct engine_config config = settings(0.1, 4, false);
    struct train_result result;
    config.bf16 = true;
    assert_works(machine_load(&slow, ZF_TESTS_DIR "/../configs/machines/h100.json", &err), err);
    slow.link_rate /= 1000;
    slow.host_rate = slow.core_rate = slow.core_rate / 1000;
    for (int i = 0; i < 3; i++)
        fast[i] = slow;
    fast[0].link_rate *= 2;
    fast[1].host_rate = fast[1].core_rate = 2 * slow.core_rate;
    fast[2].product_rate *= 2;
    struct device *planned = device_plan_create(&slow, 1, &PLAN_GRADIENTS);
    run_job(planned, 1, small_model(GPT_HEAD_LM), &config, 16, &result);
    double before = result.mean;
    assert_true(result.stall > 0.1);
    train_result_free(&result);
    device_plan_destroy(planned);
    for (int i = 0; i < 3; i++) {
        planned = device_plan_create(&fast[i], 1, &PLAN_GRADIENTS);
        run_job(planned, 1, small_model(GPT_HEAD_LM), &config, 16, &result);
        assert_true(result.mean <= before * 1.000001);
        assert_true(i == 2 || result.mean < before * 0.99);
        train_result_free(&result);
        device_plan_destroy(planned);
    }
}

/* ---- stalls ---- */

struct stall_case {
    bool is_cpu;
    double topk_ratio;
    int interval;
    bool on_host;
    int n_layer;        /* with 6 some take the slot for gradients that another has left */
    int more;           /* products that the device has to do behind its passes */
    double worker_rate; /* bytes a second */
    double link_rate;
    bool stalls;
};

/* Nothing takes time but products, 0.01 s each, and what the host's workers move. */
static struct machine machine_beside(const struct stall_case *c, double worker_rate)
{
    struct zf_error err;
    struct machine m = cpu;
    if (!c->is_cpu)
        assert_works(machine_load(&m, ZF_TESTS_DIR "/../configs/machines/h100.json", &err), err);
    m.latency = m.link_latency = m.wake = m.channel = m.launch = m.wait = 0;
    m.memory_rate = m.host_rate = m.attention_rate = 1e30;
    m.link_rate = c->link_rate;
    m.half_m = m.half_n = m.half_k = 0;
    m.product_rate = 1e9;
    m.core_rate = worker_rate;
    return m;
}

static void compute(struct device *d, int products)
{
    const struct matmul product = {.m = 1000, .n = 100, .k = 50};
    for (int i = 0; i < products; i++)
        d->ops->matmul(d->compute, NULL, NULL, NULL, &product);
}

#define STALL_STEPS 24

struct timed_step {
    double passes;  /* that the host takes to queue them */
    double seconds; /* until the device has done all */
    double stall;
};

/* A step of one product a layer forward, and two backward. */
static struct timed_step time_step(struct device *d, struct engine *e, int n_layers, int more)
{
    struct zf_error err;
    struct step_report report;
    struct timed_step step;
    const double begin = clock_seconds();
    engine_begin_step(e, 1e-3f);
    for (int layer = 0; layer < n_layers; layer++) {
        engine_before_layer(e, layer);
        compute(d, 1);
        engine_after_layer(e, layer);
    }
    for (int layer = n_layers - 1; layer >= 0; layer--) {
        engine_before_layer(e, layer);
        engine_before_gradients(e, layer);
        compute(d, 2);
        engine_after_layer(e, layer);
        engine_layer_gradients_ready(e, layer);
    }
    step.passes = clock_seconds() - begin;
    compute(d, more);
    assert_works(engine_end_step(e, &report, &err), err);
    d->stream_wait(d->compute);
    step.seconds = clock_seconds() - begin;
    step.stall = report.stall_seconds;
    return step;
}

static void time_steps(const struct stall_case *c, double worker_rate, struct timed_step *steps)
{
    struct zf_error err;
    const struct machine machine = machine_beside(c, worker_rate);
    struct gpt_config model = small_model(GPT_HEAD_LM);
    struct engine_config config = settings(c->topk_ratio, c->interval, c->on_host);
    config.bf16 = !c->is_cpu;
    model.n_layer = c->n_layer;
    struct device *d = device_plan_create(&machine, 1, &PLAN_GRADIENTS);
    struct comm *comm = comm_create_alone();
    comm_attach(comm, d);
    struct param_table table = gpt_param_table(&model);
    params_share_gradients(&table, 2);
    void *params = d->allocate(table.n_values * dtype_size(d->dtype));
    float *grads = d->allocate(table.n_gradients * sizeof *grads);
    struct engine *e = engine_create(&config, d, comm, &table, params, grads, &err);
    assert_non_null(e);
    for (int i = 0; i < STALL_STEPS; i++)
        steps[i] = time_step(d, e, table.n_layers, c->more);
    engine_destroy(e);
    d->release(params);
    d->release(grads);
    params_free(&table);
    comm_destroy(comm);
    device_plan_destroy(d);
}

/* Beside a slow host a step is longer than beside one that takes no time by what it says that the
 * device has waited, to the digit, however long the host itself waits; by more, where the link then
 * comes later than it would have. And a GPU's host queues the passes without waiting. The first
 * step, in which the host brings state, is not like others. */
static void a_stall_is_what_the_device_waits(void **state)
{
    (void)state;
    static const struct stall_case all[] = {
        {false, 0.1, 4, false, 6, 0, 5e5, 1e30, true},   /* waits for updates */
        {false, 0.1, 4, false, 6, 0, 1e7, 1e30, false},  /* the host is done with them */
        {false, 0.1, 4, false, 6, 20, 5e5, 1e30, true},  /* not as long: there is work */
        {false, 0.1, 4, false, 6, 60, 5e5, 1e30, false}, /* and more than the host takes */
        {false, 0.1, 4, true, 6, 0, 5e5, 1e30, true},    /* for gradients before, and updates */
        {false, 0.1, 4, true, 3, 0, 5e5, 1e30, true},    /* for these at the norms alone */
        {false, 0.1, 4, true, 6, 0, 5e5, 1e6, true},     /* and for the link */
        {false, 0.1, 4, true, 6, 100, 1e6, 1e30, false},
        {false, 0, 1, false, 6, 0, 1e7, 1e30, true}, /* ZeRO-Offload */
        {false, 0, 1, true, 6, 0, 1e7, 1e30, true},
        {true, 0.1, 4, false, 6, 0, 1e6, 1e30, true},
        {true, 0.1, 4, true, 6, 0, 1e6, 1e30, true},
        {true, 0.1, 4, true, 6, 0, 1e8, 1e30, false},
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        struct timed_step quick[STALL_STEPS], slow[STALL_STEPS];
        double stall = 0;
        time_steps(&all[k], 1e30, quick);
        time_steps(&all[k], all[k].worker_rate, slow);
        for (int i = 1; i < STALL_STEPS; i++) {
            const double longer = slow[i].seconds - quick[i].seconds;
            const double off = slow[i].stall - longer;
            if ((all[k].link_rate < 1e30 ? off : fabs(off)) > 1e-9 || quick[i].stall > 1e-9)
                fail_msg("case %zu, step %d: %.9f s longer, a stall of %.9f s", k, i, longer,
                         slow[i].stall);
            if (!all[k].is_cpu && slow[i].passes > 0)
                fail_msg("case %zu, step %d: the host waits %.9f s within the passes", k, i,
                         slow[i].passes);
            stall += slow[i].stall;
        }
        print_message("case %zu: %.4f s of each step\n", k, stall / (STALL_STEPS - 1));
        assert_true(all[k].stalls ? stall > 0.1 : stall < 1e-9);
    }
}

/* A step's median where kernels that cross the link sit on so many multiprocessors. */
static double median_beside(double multiprocessors, bool on_host, bool zero_copy)
{
    struct zf_error err;
    struct machine gpu;
    struct engine_config config = settings(0.1, 4, on_host);
    struct train_result result;
    config.bf16 = true;
    config.zero_copy = zero_copy;
    assert_works(machine_load(&gpu, ZF_TESTS_DIR "/../configs/machines/h100.json", &err), err);
    gpu.link_rate /= 200; /* so that transfers last as long as the step */
    gpu.transfer_multiprocessors = multiprocessors;
    struct device *planned = device_plan_create(&gpu, 1, &PLAN_GRADIENTS);
    run_job(planned, 1, small_model(GPT_HEAD_LM), &config, 24, &result);
    const double median = result.median;
    train_result_free(&result);
    device_plan_destroy(planned);
    return median;
}

/* Copies take the link, and no multiprocessors from the model's kernels. */
static void copies_leave_multiprocessors_alone(void **state)
{
    (void)state;
    for (int on_host = 0; on_host < 2; on_host++) {
        const double few = median_beside(1, on_host, false);
        assert_true(median_beside(120, on_host, false) == few);
        assert_true(median_beside(120, on_host, true) > median_beside(1, on_host, true));
    }
}

/* Of a step of an H100 whose host takes so long for a channel. */
struct host_figures {
    double launches, own, step; /* own: the host's time outside waits; seconds */
};

static struct host_figures measure_host(int ranks, int interval, double channel)
{
    struct zf_error err;
    struct machine gpu;
    struct train_result result;
    struct engine_config config = settings(0.1, interval, false);
    config.bf16 = true;
    config.auto_ratio = 0.5;
    assert_works(machine_load(&gpu, ZF_TESTS_DIR "/../configs/machines/h100.json", &err), err);
    gpu.channel = channel;
    struct device *planned = device_plan_create(&gpu, ranks, &PLAN_GRADIENTS);
    run_job(planned, ranks, small_model(GPT_HEAD_LM), &config, 8, &result);
    json_t *told = plan_report_describe(result.planned, 1000000);
    const struct host_figures figures = {
        json_number_value(json_object_get(told, "launches")),
        json_number_value(json_object_get(told, "own_host_seconds")), result.mean};
    json_decref(told);
    train_result_free(&result);
    device_plan_destroy(planned);
    return figures;
}

/* With several ranks the host looks at every channel twice in a step, for its updates and for those
 * that changed, and launches more: collectives, and no more of them however many ranks there are,
 * whether matrices divide evenly (2) or not (3, 5). And the device waits for it. */
static void the_hosts_own_loops_and_launches_take_time(void **state)
{
    (void)state;
    const int all[] = {1, 2, 3, 5};
    const double channel = 1e-5, launch = 2.5e-6; /* the H100's figure */
    const struct gpt_config model = small_model(GPT_HEAD_LM);
    struct param_table table = gpt_param_table(&model);
    double loop = 0, of_one = 0, of_two = 0; /* loop: over all channels */
    for (int i = 0; i < table.n_params; i++)
        loop += table.params[i].kind == PARAM_MATRIX ? channel * table.params[i].rows : 0;
    params_free(&table);
    for (int i = 0; i < 4; i++) {
        const struct host_figures quick = measure_host(all[i], 4, 0),
                                  slow = measure_host(all[i], 4, channel);
        const double loops = slow.own - quick.own;
        print_message("%d rank(s): %.1f launches, %.3f ms\n", all[i], quick.launches,
                      1e3 * quick.own);
        assert_true(quick.launches == slow.launches);
        of_one = i == 0 ? quick.launches : of_one;
        of_two = i == 1 ? quick.launches : of_two;
        assert_true(i == 0 || quick.launches > of_one);
        assert_true(i < 2 || quick.launches <= of_two);
        assert_true(quick.own >= 0.999 * launch * quick.launches);
        assert_true(all[i] == 1 ? loops > 0 && loops < loop : loops > 2 * loop);
        assert_true(all[i] == 1 || slow.step - quick.step > 0.5 * loops);
    }
    /* where it chooses the interval itself, at each channel's norm too */
    assert_true(measure_host(1, 0, channel).own - measure_host(1, 0, 0).own > loop);
}

/* 70 B parameters on eight ranks: seconds, and no memory of the model's size. */
static void a_large_model_is_planned_in_seconds(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__ /* which takes time and memory of its own */
    skip();
#endif
    struct zf_error err;
    struct machine gpu;
    struct train_result result;
    struct rusage usage;
    struct gpt_config model = small_model(GPT_HEAD_LM);
    struct engine_config config = settings(0.05, 4, false);
    double begin = (double)clock() / CLOCKS_PER_SEC;
    model.vocab_size = 32000;
    model.n_embd = 8192;
    model.n_layer = 86;
    model.n_head = 64;
    model.n_inner = 4 * model.n_embd;
    config.bf16 = true;
    assert_works(machine_load(&gpu, ZF_TESTS_DIR "/../configs/machines/h200.json", &err), err);
    struct device *planned = device_plan_create(&gpu, 8, &PLAN_GRADIENTS);
    run_job(planned, 8, model, &config, 24, &result);
    assert_false(result.fits);
    assert_true((double)result.use.parameters > 2 * 69e9);
    assert_true(result.median > 0.1 && result.median < 60);
    train_result_free(&result);
    device_plan_destroy(planned);
    getrusage(RUSAGE_SELF, &usage);
    double seconds = (double)clock() / CLOCKS_PER_SEC - begin;
    print_message("%.1f s, %ld MB\n", seconds, usage.ru_maxrss / 1024);
    assert_true(usage.ru_maxrss < 1500L * 1024);
    assert_true(seconds < 60); /* some 10 s without sanitizers */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_a_runs_to_the_byte),
        cmocka_unit_test(the_host_holds_little_more_than_its_state),
        cmocka_unit_test(traffic_is_a_runs),
        cmocka_unit_test(the_same_plan_is_the_same_text),
        cmocka_unit_test(the_machines_gradients_decide_what_moves),
        cmocka_unit_test(what_is_faster_is_not_slower),
        cmocka_unit_test(a_stall_is_what_the_device_waits),
        cmocka_unit_test(copies_leave_multiprocessors_alone),
        cmocka_unit_test(the_hosts_own_loops_and_launches_take_time),
        cmocka_unit_test(a_large_model_is_planned_in_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
