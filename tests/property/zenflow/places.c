/* A small model with its engine, in all places: what the device must hold, and what crosses the
 * link. */
#include "tests/property/zenflow/list.h"
#include "tests/property/zenflow/problem.h"
#include "tests/seed.h"
#include "tests/testing.h"

#include "cmd/bench/train_run.h"
#include "cmd/step.h"
#include "data/alloc.h"
#include "offload/engine/internal.h"

#include <math.h>

#define SEQUENCES     2 /* of a micro-batch */
#define TOKENS        6 /* of the longest sequence */
#define MICRO_BATCHES 2 /* of each rank */

/* ---- a device that holds so much and no more ---- */

static size_t held, limit;

static void *allocate_within_limit(size_t bytes)
{
    held += (bytes + 255) / 256 * 256; /* allocations are aligned so */
    if (held > limit)
        fail_msg("a device of %zu bytes was asked for %zu", limit, held);
    return problem_device->allocate(bytes);
}

/* Nothing may be left of the one before. */
static struct device limited_device(size_t bytes)
{
    struct zf_error err;
    struct device d = *problem_device;
    held = 0;
    limit = bytes;
    d.allocate = allocate_within_limit;
    assert_works(d.reserve(bytes, &err), err); /* of a CUDA device all comes out of this piece */
    return d;
}

/* ---- places ---- */

struct place {
    struct engine_config config;
    struct gpt_size size;
};

#define N_PLACES 72

/* Where parameters are: whole on each device; divided over ranks, on the device or on the host; of
 * one rank on the host. In one slot, two, or as many as blocks. */
static const struct params_place {
    bool on_host, divided;
    int slots;
} params_places[] = {{false, false, 0}, {true, true, 1},  {true, true, 2},
                     {true, true, 0},   {false, true, 1}, {false, true, 2}};
#define PARAMS_PLACES (int)(sizeof params_places / sizeof *params_places)

static int params_place(int i)
{
    return i / 4 % PARAMS_PLACES;
}

/* Windows, important state and parameters on the device or on the host; gradients in one slot or
 * two, or as many as blocks. */
static struct place place(int i)
{
    static const int gradient_slots[] = {1, 2, 0};
    const int params = params_place(i);
    struct place p = {.config = problem_zenflow_config()};
    p.config.values_follow = true;
    p.config.bf16 = problem_device->dtype == DTYPE_BF16 || i % 5 == 0;
    p.config.accumulate = i % 2 ? ENGINE_ACCUMULATE_HOST : ENGINE_ACCUMULATE_DEVICE;
    p.config.device_windows = (i + i / 4) % 3 == 2 ? 2 : 0; /* of those on the host */
    p.config.offload_important = i / 2 % 2;
    p.config.params_on_host = params_places[params].on_host;
    p.config.params_divided = params_places[params].divided;
    p.config.zero_copy = i % 3 == 1;
    p.size = (struct gpt_size){.max_tokens = SEQUENCES * TOKENS,
                               .max_seqs = SEQUENCES,
                               .micro_batches = MICRO_BATCHES,
                               .value_slots = params_places[params].slots,
                               .gradient_slots = gradient_slots[i / (4 * PARAMS_PLACES)],
                               .mode = i % 3 ? GPT_TRAIN : GPT_TRAIN_RECOMPUTE};
    if (p.size.gradient_slots == 0) /* then micro-batches may go one after the other */
        p.size.micro_batches = 1;
    return p;
}

/* Over one rank and on the device nothing is divided. Several ranks, and the emulator where people
 * wait for it, take longer: they try each number of gradients' slots with a third of the others. */
static bool is_a_place(int i)
{
    const struct params_place *p = &params_places[params_place(i)];
    const bool is_slow =
        comm_size(world) > 1 || (problem_device->dtype == DTYPE_BF16 && !in_long_ring());
    if (is_slow && i / (4 * PARAMS_PLACES) != (i + params_place(i)) % 3)
        return false;
    return comm_size(world) > 1 || p->on_host || !p->divided;
}

/* Whether ranks keep their own channels' parameters alone. */
static bool is_divided(const struct place *p)
{
    return p->config.params_divided && comm_size(world) > 1;
}

static const char *describe(const struct place *p)
{
    static char text[200];
    snprintf(text, sizeof text,
             "host windows %d but for %d blocks, offload %d, parameters on the host %d, divided "
             "%d, in %d slots, %d "
             "slots for gradients, zero copy %d",
             p->config.accumulate, p->config.device_windows, p->config.offload_important,
             p->config.params_on_host, is_divided(p), p->size.value_slots, p->size.gradient_slots,
             p->config.zero_copy);
    return text;
}

/* A GPT-2 or a Llama, whose heads share keys. */
static const char *const presets[] = {"gpt", "llama"};
#define N_PRESETS ((int)(sizeof presets / sizeof *presets))

/* The model of a place: places of every kind have each. */
static const char *preset_of(int i)
{
    return presets[i / 3 % N_PRESETS];
}

static struct gpt_config thin_model(const char *preset, int layers)
{
    struct zf_error err;
    struct gpt_config c;
    assert_works(gpt_config_preset(&c, preset, &err), err);
    c.n_layer = layers;
    c.n_embd = 32;
    c.n_inner = c.parts.swiglu ? 48 : 128;
    c.n_head = 2;
    c.n_kv_heads = c.parts.rotary ? 1 : 2;
    c.head_dim = 16;
    c.n_positions = 2 * TOKENS;
    c.vocab_size = 24;
    c.head = GPT_HEAD_CLASSIFY;
    c.num_labels = 2;
    return c;
}

/* What one of so many ranks holds. */
static struct memory_use measure_ranks(struct device *device, const struct gpt_config *model,
                                       const struct place *p, int rank, int ranks)
{
    struct memory_use use = {0};
    struct param_table table = gpt_param_table(model);
    struct gpt_size size = p->size;
    size.ranks = ranks;
    gpt_place_params(&table, &size);
    gpt_measure(device, model, &size, &use);
    engine_measure(&p->config, device, &table, rank, ranks, &use);
    params_free(&table);
    return use;
}

static struct memory_use measure(struct device *device, const struct gpt_config *model,
                                 const struct place *p)
{
    return measure_ranks(device, model, p, comm_rank(world), comm_size(world));
}

/* ---- a run ---- */

struct trainer {
    struct device *device;
    struct train_job job; /* its examples */
    struct gpt *model;
    struct engine *engine;
    struct batch *batches;
    int together;
};

static void trainer_create(struct trainer *t, struct device *device, const struct gpt_config *model,
                           const struct place *p, int steps)
{
    static const int lengths[] = {3, TOKENS, 1};
    struct zf_error err;
    struct gpt_size size = p->size;
    size.ranks = comm_size(world);
    *t = (struct trainer){.device = device,
                          .together = p->size.micro_batches,
                          .batches =
                              batches_create(p->size.micro_batches, SEQUENCES * TOKENS, SEQUENCES)};
    t->job = (struct train_job){.device = device,
                                .comm = world,
                                .config = *model,
                                .n_seqs = SEQUENCES,
                                .micro_batches = MICRO_BATCHES,
                                .steps = steps};
    train_data_make(&t->job, lengths, 3, 1);
    t->model = gpt_create(device, model, &size);
    t->engine = engine_create(&p->config, device, world, gpt_params(t->model),
                              gpt_param_data(t->model), gpt_grad_data(t->model), &err);
    if (!t->engine)
        fail_msg("%s", err.text);
    step_connect(t->model, t->engine);
    if (!device->plan)
        gpt_init_weights(t->model, 1);
}

static void trainer_destroy(struct trainer *t)
{
    engine_destroy(t->engine);
    gpt_destroy(t->model);
    batches_free(t->batches, t->together);
    dataset_free(&t->job.data);
}

static struct step_report train(struct trainer *t, int step)
{
    const int n = SEQUENCES * MICRO_BATCHES * comm_size(world);
    int *index = zf_malloc(sizeof *index * (size_t)n);
    struct zf_error err;
    struct step_result result;
    const struct stepper s = {.model = t->model,
                              .engine = t->engine,
                              .comm = world,
                              .set = &t->job.data,
                              .batches = t->batches,
                              .n_labels = t->job.config.num_labels,
                              .micro_batch = SEQUENCES,
                              .micro_batches = MICRO_BATCHES,
                              .together = t->together,
                              .seed = 7};
    for (int i = 0; i < n; i++)
        index[i] = step * n + i;
    assert_works(step_run(&s, index, n, step, problem_lr(step) / 10, &result, &err), err);
    free(index);
    return result.report;
}

/* All parameters, as whoever saves them sees them, in host memory. */
static char *take_params(struct trainer *t, size_t *bytes)
{
    struct device *d = t->device;
    const struct param_table *table = gpt_params(t->model);
    const size_t size = dtype_size(d->dtype);
    char *values = zf_calloc(*bytes = table->n_elements * size, 1);
    for (int layer = 0; layer < table->n_layers; layer++) {
        engine_before_layer(t->engine, layer);
        for (int k = 0; k < table->n_params; k++) {
            const struct param *p = &table->params[k];
            if (p->layer == layer)
                d->copy(d->compute, values + p->offset * size,
                        (char *)gpt_param_data(t->model) + p->value_offset * size,
                        p->n_elements * size);
        }
        engine_after_layer(t->engine, layer);
    }
    d->stream_wait(d->compute);
    return values;
}

/* ---- the invariants ---- */

static void measured_is_enough(const struct gpt_config *model, const struct place *p)
{
    const struct memory_use use = measure(problem_device, model, p);
    struct device device = limited_device(memory_total(&use));
    struct trainer t;
    trainer_create(&t, &device, model, p, 6);
    for (int step = 0; step < 6; step++)
        train(&t, step);
    engine_finish(t.engine);
    if (held != limit)
        fail_msg("%zu bytes were taken, %zu measured: %s", held, limit, describe(p));
    trainer_destroy(&t);
}

/* Device memory is what was measured, to the byte of the arena, and a device that has no more runs
 * steps with a first choice, closings and arrivals. */
void M2(void **state)
{
    (void)state;
    for (int i = 0; i < N_PLACES; i++) {
        const struct gpt_config model = thin_model(preset_of(i), 4);
        const struct place p = place(i);
        if (is_a_place(i))
            measured_is_enough(&model, &p);
    }
}

struct counts {
    double parameters, channels, matrices;
};

static struct counts count(const struct gpt_config *model)
{
    struct param_table table = gpt_param_table(model);
    struct counts n = {.parameters = (double)table.n_parameters, .matrices = table.n_params};
    for (int k = 0; k < table.n_params; k++)
        n.channels += table.params[k].rows;
    params_free(&table);
    return n;
}

/* The shape of a model of 6.6 billion parameters, where it has 32 layers. */
static struct gpt_config large_model(int layers)
{
    struct gpt_config c = thin_model("gpt", layers);
    c.n_embd = 4096;
    c.n_inner = 4 * 4096;
    c.n_head = c.n_kv_heads = 32;
    c.head_dim = 128;
    c.n_positions = 2048;
    c.vocab_size = 32000;
    return c;
}

/* What layers add to the device's memory, activations left out, with bf16. */
struct growth {
    double state; /* bytes of important state for each parameter, with what waits for the factor */
    double all;   /* bytes of all uses for each parameter */
    double rest;  /* bytes beside important state */
    struct counts counts;
};

static struct growth grow(const struct place *p, int from, int to, int ranks)
{
    const struct gpt_config less = large_model(from), more = large_model(to);
    const struct counts a = count(&less), b = count(&more);
    struct device device = *problem_device;
    device.dtype = DTYPE_BF16;
    const struct memory_use before = measure_ranks(&device, &less, p, 0, ranks);
    const struct memory_use after = measure_ranks(&device, &more, p, 0, ranks);
    const double all = (double)(memory_total(&after) - after.activations) -
                       (double)(memory_total(&before) - before.activations);
    const double state = (double)after.important - (double)before.important;
    const double parameters = b.parameters - a.parameters;
    return (struct growth){state / parameters,
                           all / parameters,
                           all - state,
                           {parameters, b.channels - a.channels, b.matrices - a.matrices}};
}

/* Where parameters and windows are on the host, more layers take important state, and tables of
 * channels and matrices: nothing else, however many they are. */
void M3(void **state)
{
    (void)state;
    for (int i = 0; i < N_PLACES; i++) {
        struct place p = place(i);
        p.config.bf16 = true;
        if (p.config.accumulate != ENGINE_ACCUMULATE_HOST || !p.config.params_on_host ||
            p.size.value_slots == 0 || p.size.gradient_slots == 0)
            continue;
        const struct growth g = grow(&p, 24, 96, comm_size(world));
        const double most = 16 * g.counts.channels + 256 * g.counts.matrices;
        if (g.rest > most)
            fail_msg("72 layers more take %.0f bytes of each of %d rank(s) beside important state: "
                     "%s",
                     g.rest, comm_size(world), describe(&p));
    }
}

/* One kind of place: what is printed of it, and the bytes for each parameter that it may take at
 * topk_ratio 0.05, but for slots, embeddings and head. */
struct budget {
    const char *name;
    enum engine_accumulate windows;
    bool offload_important, params_on_host;
    double most;
};

void device_bytes(void **state)
{
    (void)state;
    static const struct budget budgets[] = {
        {"all on the device", ENGINE_ACCUMULATE_DEVICE, false, false, 8.81},
        {"windows on the host", ENGINE_ACCUMULATE_HOST, false, false, 2.81},
        {"important state too", ENGINE_ACCUMULATE_HOST, true, false, 2.21},
        {"parameters too", ENGINE_ACCUMULATE_HOST, true, true, 0.21},
        {"parameters, but not important state", ENGINE_ACCUMULATE_HOST, false, true, 0.81}};
    struct device device = *problem_device;
    const struct gpt_config model = large_model(32);
    device.dtype = DTYPE_BF16;
    printf("device bytes per parameter, topk_ratio 0.05: each layer's; and of a model of %.2f "
           "billion, slots for two blocks, embeddings and head included\n",
           1e-9 * count(&model).parameters);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        const struct budget *b = &budgets[i];
        struct place p = place(0);
        p.config.topk_ratio = 0.05;
        p.config.bf16 = true;
        p.config.accumulate = b->windows;
        p.config.offload_important = b->offload_important;
        p.config.params_on_host = b->params_on_host;
        p.size.value_slots = b->params_on_host ? 2 : 0;
        p.size.gradient_slots = 2;
        const struct growth g = grow(&p, 24, 96, 1);
        const struct memory_use use = measure(&device, &model, &p);
        printf("  %-36s %6.3f  of it important state %5.3f  %6.3f\n", b->name, g.all, g.state,
               (double)(memory_total(&use) - use.activations) / count(&model).parameters);
        assert_true(g.all <= b->most && g.all > b->most - 0.03);
    }
}

/* What layers add to each of R ranks' devices, but for important state and tables of channels and
 * matrices, which each has of all: an Rth of what they add to one; and slots, embeddings and head,
 * which each has whole, are what they are. */
void divided_bytes(void **state)
{
    (void)state;
    for (int i = 0; i < N_PLACES; i++) {
        struct place p = place(i);
        p.config.bf16 = true;
        if (!p.config.params_divided || p.size.value_slots == 0 || p.size.gradient_slots == 0)
            continue;
        struct place whole = p;
        whole.size.value_slots = p.config.params_on_host ? p.size.value_slots : 0;
        const struct growth one = grow(&whole, 24, 96, 1);
        for (int ranks = 2; ranks <= 8; ranks *= 2) {
            const struct growth each = grow(&p, 24, 96, ranks);
            const double tables = 16 * each.counts.channels + 512 * each.counts.matrices;
            if (each.rest > one.rest / ranks + tables)
                fail_msg("72 layers more take %.0f bytes of each of %d ranks, and %.0f of one: %s",
                         each.rest, ranks, one.rest, describe(&p));
        }
    }
}

/* Windows, and the host memory that they are to take at most: in the warm-up, behind it, and when
 * they are chosen. */
struct host_budget {
    int warm_up, update_interval;
    double host_seconds; /* where a step takes one */
    int chosen;
    double first, then, last; /* bytes for each parameter whose state may be there */
};

/* Of buffers that rows pass through and of counts of updates, of which the allocator alone, or the
 * engine alone, knows. */
#define PASSED_THROUGH (64 << 20)

/* What is held behind each step; and never more than was foretold, nor by other uses. */
static double hold_host_bytes(struct trainer *t, int step)
{
    const struct engine_memory m = engine_memory(t->engine);
    assert_true(m.host <= m.host_most);
    assert_int_equal(m.host, engine_host_total(&m.host_use));
    train(t, step);
    const double allocated = (double)plan_host_bytes(t->device->plan);
    const double beside = allocated - (double)engine_memory(t->engine).host;
    if (!(fabs(beside) < PASSED_THROUGH))
        fail_msg("%.0f bytes are allocated, %.0f more than the engine counts", allocated, beside);
    return allocated / (double)m.host_elements;
}

static void keeps_to(const struct host_budget *b)
{
    enum { BEHIND_CHOICE = 10 };
    struct zf_error err;
    struct machine machine;
    struct trainer t;
    const struct gpt_config model = large_model(12);
    struct place p = place(0);
    double most[3] = {0};
    assert_works(machine_load(&machine, ZF_TESTS_DIR "/../configs/machines/h100.json", &err), err);
    struct device *device = device_plan_create(&machine, 1, &PLAN_GRADIENTS);
    p.config.topk_ratio = 0.05;
    p.config.bf16 = true;
    p.config.full_warm_up_rounds = b->warm_up;
    p.config.update_interval = b->update_interval;
    p.config.interval_rule = ENGINE_INTERVAL_KEEP_UP;
    p.config.step_seconds = 1;
    p.config.host_seconds = b->host_seconds;
    trainer_create(&t, device, &model, &p, b->warm_up + BEHIND_CHOICE);
    for (int step = 0; step < b->warm_up + BEHIND_CHOICE; step++) {
        const int part = step < b->warm_up ? 0 : step == b->warm_up ? 1 : 2;
        const double here = hold_host_bytes(&t, step);
        most[part] = here > most[part] ? here : most[part];
    }
    const struct engine_memory m = engine_memory(t.engine);
    assert_int_equal(t.engine->windows.interval, b->chosen);
    assert_int_equal(m.host_most,
                     engine_measure_host(&p.config, device, gpt_params(t.model), 0, 1));
    printf("  warm-up %d, update_interval %2d: %.2f, %.2f, and with windows of %2d steps %.2f; at "
           "most %.2f\n",
           b->warm_up, b->update_interval, most[0], most[1], b->chosen, most[2],
           (double)m.host_most / (double)m.host_elements);
    assert_true(most[0] <= b->first && most[1] <= b->then && most[2] <= b->last);
    trainer_destroy(&t);
    device_plan_destroy(device);
}

/* Host memory from the allocator follows the windows in force: all channels at once in warm-up
 * rounds, and no more than 12.6 bytes once windows have four steps, chosen or given. */
void host_bytes(void **state)
{
    (void)state;
    static const struct host_budget budgets[] = {
        {0, 4, 0, 4, 0, 12.6, 12.6},       {0, 0, 3.5, 4, 0, 12.6, 12.6},
        {3, 4, 0, 4, 14.1, 12.6, 12.6},    {3, 0, 3.5, 4, 14.1, 12.6, 12.6},
        {3, 0, 7.2, 8, 14.1, 12.6, 12.35}, {0, 0, 0.5, 1, 0, 14.1, 14.1}};
    printf("host bytes for each parameter whose state may be there: in the warm-up, behind the "
           "first step of windows, and the last\n");
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        keeps_to(&budgets[i]);
}

/* Elements of matrices, of all layers or of blocks; of those channels that are deferred; and of
 * vectors. */
struct elements {
    double all, blocks, deferred, deferred_in_blocks, vectors, vectors_in_blocks;
};

static struct elements count_elements(const struct gpt_config *model, double topk_ratio)
{
    struct param_table table = gpt_param_table(model);
    struct elements n = {0};
    for (int k = 0; k < table.n_params; k++) {
        const struct param *p = &table.params[k];
        const bool in_block = p->layer > 0 && p->layer < table.n_layers - 1;
        const int chosen = (int)(topk_ratio * p->rows + 1e-9);
        const double deferred = (double)(p->rows - (chosen < 1 ? 1 : chosen)) * p->cols;
        if (p->kind != PARAM_MATRIX) {
            n.vectors += (double)p->n_elements;
            n.vectors_in_blocks += in_block ? (double)p->n_elements : 0;
            continue;
        }
        n.all += (double)p->n_elements;
        n.blocks += in_block ? (double)p->n_elements : 0;
        n.deferred += deferred;
        n.deferred_in_blocks += in_block ? deferred : 0;
    }
    params_free(&table);
    return n;
}

/* How often a block comes in a step, times blocks: in each pass, forward or backward, but for those
 * whose slots still have them from the pass before. */
static double arrivals(const struct place *p, int blocks)
{
    const int passes = 2 * (MICRO_BATCHES / p->size.micro_batches);
    const int kept =
        p->size.value_slots > 0 && p->size.value_slots < blocks ? p->size.value_slots : blocks;
    return blocks + (passes - 1) * (blocks - kept);
}

/* Parameters that come to each rank from others in S steps, over all ranks: what the steps have
 * changed, or where they are divided all of a layer whenever it comes. */
static double gathered(const struct place *p, const struct elements *n, int blocks)
{
    const int S = p->config.update_interval;
    const double in_blocks = n->blocks + n->vectors_in_blocks, all = n->all + n->vectors;
    const double changed = n->deferred + S * (all - n->deferred);
    const double divided = S * (all - in_blocks + arrivals(p, blocks) * in_blocks / blocks);
    return (double)dtype_size(problem_device->dtype) * (comm_size(world) - 1) *
           (is_divided(p) ? divided : changed);
}

static void crosses_as_reckoned(const struct gpt_config *model, const struct place *p)
{
    const int S = p->config.update_interval, blocks = model->n_layer;
    const struct elements n = count_elements(model, p->config.topk_ratio);
    const double size = p->config.bf16 ? 2 : 4;
    const bool streams = p->config.params_on_host;
    double crossed[3] = {0};
    struct trainer t;
    trainer_create(&t, problem_device, model, p, 3 * S);
    for (int step = 0; step < 3 * S; step++) {
        const struct step_report r = train(&t, step);
        const double now[] = {(double)r.bytes_down, (double)r.bytes_up, (double)r.bytes_gathered};
        for (int way = 0; way < 3; way++)
            crossed[way] += step < S ? 0 : now[way];
    }
    comm_all_reduce_f64(world, crossed, 3);
    const double each_step = streams ? arrivals(p, blocks) * n.blocks / blocks : 0;
    const bool copies = !p->config.zero_copy && !problem_device->unified;
    const double leaving = copies ? n.all : n.deferred;
    const double in_blocks = copies ? n.blocks : n.deferred_in_blocks;
    const double arriving = leaving - (streams ? in_blocks : 0);
    const bool on_host = p->config.accumulate == ENGINE_ACCUMULATE_HOST;
    const double in_means = on_host ? in_blocks * p->config.device_windows / blocks : leaving;
    const double expected_down = 2 * size * (in_means + S * (leaving - in_means));
    const double expected_up = 2 * size * (arriving + S * each_step);
    if (crossed[0] != expected_down || crossed[1] != expected_up)
        fail_msg("%.0f bytes down, not %.0f, and %.0f up, not %.0f: %s", crossed[0], expected_down,
                 crossed[1], expected_up, describe(p));
    if (crossed[2] != 2 * gathered(p, &n, blocks))
        fail_msg("%.0f bytes between ranks, not %.0f: %s", crossed[2], 2 * gathered(p, &n, blocks),
                 describe(p));
    trainer_destroy(&t);
}

/* Link bytes of S steps, over all ranks, are the formula's: a deferred channel's mean goes down
 * once, or its gradient S times; its parameter comes up once, or with its whole block whenever that
 * comes. Copies take important channels' places with them. So are those that ranks send each other
 * of parameters. */
void M4(void **state)
{
    (void)state;
    for (int i = 0; i < N_PLACES; i++) {
        const struct gpt_config model = thin_model(preset_of(i), 4);
        const struct place p = place(i);
        if (is_a_place(i))
            crosses_as_reckoned(&model, &p);
    }
}

/* Four steps in one place; returns all parameters. */
static char *four_steps(struct device *device, const struct gpt_config *model,
                        const struct place *p, size_t *bytes)
{
    struct trainer t;
    trainer_create(&t, device, model, p, 4);
    for (int step = 0; step < 4; step++)
        train(&t, step);
    engine_finish(t.engine);
    char *values = take_params(&t, bytes);
    trainer_destroy(&t);
    return values;
}

/* A Llama of so many blocks, and so wide, that one block and tables of channels weigh little. */
static struct gpt_config deep_model(void)
{
    struct gpt_config c = thin_model("llama", problem_device->dtype == DTYPE_BF16 ? 160 : 70);
    c.n_embd = 256;
    c.n_inner = 384;
    c.n_head = c.n_embd / c.head_dim;
    return c;
}

/* A model whose parameters take ten times all of the device's memory trains with the bits of a run
 * that has everything there. */
void ten_times(void **state)
{
    (void)state;
    const struct gpt_config model = deep_model();
    size_t bytes;
    struct place p = place(0);
    p.config.bf16 = true;
    p.config.topk_ratio = 0.004;
    p.config.update_interval = p.config.select_every = 2;
    p.size.gradient_slots = 2;
    p.size.micro_batches = MICRO_BATCHES;
    char *expected = four_steps(problem_device, &model, &p, &bytes);
    p.config.params_on_host = p.config.offload_important = true;
    p.config.accumulate = ENGINE_ACCUMULATE_HOST;
    p.size.value_slots = p.size.gradient_slots = 1;
    p.size.mode = GPT_TRAIN_RECOMPUTE;
    const struct memory_use use = measure(problem_device, &model, &p);
    printf("parameters of %zu bytes on a device of %zu\n", bytes, memory_total(&use));
    assert_true(bytes >= 10 * memory_total(&use));
    struct device device = limited_device(memory_total(&use));
    char *values = four_steps(&device, &model, &p, &bytes);
    assert_memory_equal(values, expected, bytes);
    free(values);
    free(expected);
}

/* Of a device whose memory is never fresh. */
static void *allocate_used(size_t bytes)
{
    void *memory = problem_device->allocate(bytes);
    char *used = problem_device->allocate_host(bytes);
    memset(used, 0x3f, bytes);
    problem_device->copy(problem_device->compute, memory, used, bytes);
    problem_device->stream_wait(problem_device->compute);
    problem_device->release_host(used);
    return memory;
}

/* A tied head reads some rows behind the vocabulary's, which are zero. What ranks gather of an
 * uneven division ends there, and leaves them so. */
void gaps_stay_zero(void **state)
{
    (void)state;
    struct device device = *problem_device;
    struct gpt_config model = thin_model("gpt", 4);
    struct place p = place(0);
    struct trainer t;
    device.allocate = allocate_used;
    model.head = GPT_HEAD_LM;
    model.num_labels = 0;
    model.vocab_size = 25;
    p.config.params_divided = true;
    p.size.value_slots = 1;
    trainer_create(&t, &device, &model, &p, 2);
    for (int step = 0; step < 2; step++)
        train(&t, step);
    engine_before_layer(t.engine, 0);
    const struct param *tokens = &gpt_params(t.model)->params[0];
    const size_t size = dtype_size(device.dtype), row = (size_t)model.n_embd * size;
    const size_t gap = (size_t)(gpt_head_outputs(&model) - model.vocab_size) * row;
    const char *behind = (char *)gpt_param_data(t.model) + tokens->value_offset * size +
                         (size_t)model.vocab_size * row;
    char *found = device.allocate_host(gap);
    device.copy(device.compute, found, behind, gap);
    device.stream_wait(device.compute);
    assert_int_equal(gap, 39 * row);
    for (size_t i = 0; i < gap; i++)
        assert_int_equal(found[i], 0);
    device.release_host(found);
    engine_after_layer(t.engine, 0);
    trainer_destroy(&t);
}

/* ---- evaluation alone ---- */

#define BATCHES 3 /* that a model sees, on each rank */

/* What comes of them: logits, and behind them losses. */
static void evaluate(struct trainer *t, float *results)
{
    const int labels = t->job.config.num_labels;
    for (int i = 0; i < BATCHES; i++) {
        const int index[SEQUENCES] = {SEQUENCES * i, SEQUENCES * i + 1};
        batch_fill(t->batches, &t->job.data, index, SEQUENCES, 0, labels);
        results[BATCHES * SEQUENCES * labels + i] =
            (float)gpt_evaluate(t->model, t->batches, results + SEQUENCES * labels * i);
    }
}

/* In the host's memory parameters are all that there is: each rank's own, of blocks. */
static void holds_parameters_alone(const struct trainer *t, const struct place *p)
{
    const struct engine_memory m = engine_memory(t->engine);
    const struct param_table *table = gpt_params(t->model);
    size_t n = 0;
    for (int k = 0; k < table->n_params; k++) {
        const struct param *q = &table->params[k];
        const struct range own = schedule_owned(k, q->rows, comm_size(world), comm_rank(world));
        if (p->config.params_on_host && q->layer > 0 && q->layer < table->n_layers - 1)
            n += (size_t)(own.last - own.first) * (size_t)q->cols;
    }
    assert_int_equal(m.host, n * dtype_size(t->device->dtype));
    assert_int_equal(m.host_use.parameters, m.host);
    assert_int_equal(m.host_most, m.host);
    assert_int_equal(m.host, engine_measure_host(&p->config, t->device, table, comm_rank(world),
                                                 comm_size(world)));
}

static void evaluates_alike(const struct gpt_config *model, const struct place *p, float *expected,
                            size_t n)
{
    float results[64] = {0};
    struct trainer t;
    const struct memory_use use = measure(problem_device, model, p);
    struct device device = limited_device(memory_total(&use));
    assert_true(n <= sizeof results / sizeof *results);
    assert_int_equal(use.gradients + use.windows + use.important, 0);
    trainer_create(&t, &device, model, p, BATCHES);
    evaluate(&t, results);
    assert_int_equal(held, limit);
    holds_parameters_alone(&t, p);
    trainer_destroy(&t);
    if (expected[n - 1] == 0) /* the first place: all on the device */
        memcpy(expected, results, sizeof *results * n);
    if (memcmp(expected, results, sizeof *results * n) != 0)
        fail_msg("other logits or losses: %s", describe(p));
}

/* Without training the device has parameters and one block's activations, and the host no more than
 * parameters; wherever these are, results are the same bits. */
void evaluation(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_PRESETS; i++) {
        const struct gpt_config model = thin_model(presets[i / 2], 4);
        const size_t n = (size_t)(BATCHES * (SEQUENCES * model.num_labels + 1));
        float expected[64] = {0};
        for (int k = 0; k < PARAMS_PLACES; k++) {
            struct place p = place(4 * k);
            p.config.evaluates = true;
            p.config.bf16 = problem_device->dtype == DTYPE_BF16 || i % 2;
            p.config.params_come_late = k % 3 == 2;
            p.size.micro_batches = 1;
            p.size.mode = GPT_EVALUATE;
            if (comm_size(world) > 1 || p.config.params_on_host || !p.config.params_divided)
                evaluates_alike(&model, &p, expected, n);
        }
    }
}
