/* cmd/bench_train_run: its FLOPs beside those of the products that a training step really makes,
 * and its runs' figures beside what they must be. */
#include "tests/testing.h"

#include "cmd/bench/train_run.h"
#include "cmd/config/engine_settings.h"
#include "model/device/row_ops.h"

#include <math.h>
#include <string.h>

#define LENGTHS 3
static const int lengths[LENGTHS] = {7, 1, 12};

/* A device whose products are counted. */

static const struct ops *real;
static const struct row_ops *real_rows;
static double counted;

static void count_matmul(struct stream *s, void *c, const void *a, const void *b,
                         const struct matmul *p)
{
    counted += 2.0 * p->m * p->n * p->k;
    real->matmul(s, c, a, b, p);
}

/* Two products forward, and four backward without the scores that it computes again: each of 2
 * FLOPs for a pair of tokens and an element of the width. */
static double attention_flops(const struct token_rows *rows, int width, int products)
{
    double pairs = 0;
    for (int i = 0; i < rows->n_seqs; i++)
        for (int t = rows->seq_start[i]; t < rows->seq_start[i + 1]; t++)
            pairs += t - rows->seq_start[i] + 1;
    return 2.0 * products * pairs * width;
}

static void count_attention_forward(struct stream *s, void *out, float *lse, const void *qkv,
                                    const struct token_rows *rows,
                                    const struct attention *attention)
{
    counted += attention_flops(rows, attention->heads.n_head * attention->heads.head_dim, 2);
    real->attention_forward(s, out, lse, qkv, rows, attention);
}

static void count_attention_backward(struct stream *s, void *dqkv, const void *dout,
                                     const void *qkv, const void *out, const float *lse,
                                     const struct token_rows *rows,
                                     const struct attention *attention)
{
    counted += attention_flops(rows, attention->heads.n_head * attention->heads.head_dim, 4);
    real->attention_backward(s, dqkv, dout, qkv, out, lse, rows, attention);
}

static struct train_job job_of_preset(struct device *device, enum gpt_head head, const char *preset)
{
    struct zf_error err;
    struct train_job job = {.device = device,
                            .comm = comm_create_alone(),
                            .n_seqs = LENGTHS,
                            .micro_batches = 2,
                            .warm_up = 4,
                            .steps = 8,
                            .lr = 1e-3f};
    assert_works(gpt_config_preset(&job.config, preset, &err), err);
    job.config.n_layer = 3;
    job.config.vocab_size = 128; /* no padding among the logits */
    job.config.head = head;
    return job;
}

static struct train_job job_of(struct device *device, enum gpt_head head)
{
    return job_of_preset(device, head, "gpt");
}

static struct train_method method_of(float topk_ratio, int interval, int lag, bool stagger)
{
    return (struct train_method){.name = "test",
                                 .engine = {.beta1 = 0.9f,
                                            .beta2 = 0.999f,
                                            .eps = 1e-8f,
                                            .adam_w_mode = true,
                                            .gradient_clipping = 1,
                                            .bf16 = true,
                                            .topk_ratio = (double)topk_ratio,
                                            .select_every = 1000,
                                            .update_interval = interval,
                                            .apply_lag = lag,
                                            .stagger = stagger,
                                            .deferred_lr_scale = 1}};
}

static void flops_are_those_of_the_products(void **state)
{
    (void)state;
    const enum gpt_head heads[] = {GPT_HEAD_LM, GPT_HEAD_CLASSIFY};
    for (int i = 0; i < 4; i++) {
        const enum gpt_head head = heads[i % 2];
        struct device device = *device_cpu(1);
        struct ops ops = *device.ops;
        real = device.ops;
        ops.matmul = count_matmul;
        ops.attention_forward = count_attention_forward;
        ops.attention_backward = count_attention_backward;
        device.ops = &ops;
        struct train_job job = job_of_preset(&device, head, i < 2 ? "gpt" : "llama");
        train_data_make(&job, lengths, LENGTHS, 1);
        struct gpt *model = gpt_create(
            &device, &job.config,
            &(struct gpt_size){.max_tokens = 20, .max_seqs = LENGTHS, .mode = GPT_TRAIN});
        struct batch batch;
        const int index[LENGTHS] = {0, 1, 2};
        gpt_init_weights(model, 1);
        batch_init(&batch, 20, LENGTHS);
        batch_fill(&batch, &job.data, index, LENGTHS, 0, head == GPT_HEAD_LM ? 0 : 2);
        counted = 0;
        gpt_train(model, &batch, 1, &(struct gpt_step){.scale = 1, .seed = 1, .step = 1});
        double expected = train_flops(&job.config, lengths, LENGTHS);
        if (fabs(counted - expected) > 1e-9 * expected)
            fail_msg("case %d: %.0f FLOPs were done, train_flops says %.0f", i, counted, expected);
        batch_free(&batch);
        gpt_destroy(model);
        comm_destroy(job.comm);
        dataset_free(&job.data);
    }
}

static void a_step_of_gpt2_takes_the_flops_that_papers_count(void **state)
{
    (void)state;
    struct gpt_config config;
    struct zf_error err;
    assert_works(gpt_config_preset(&config, "gpt2", &err), err);
    const int length = 1024;
    /* 6 x 124 M a token, and 12 x 12 layers x 768 x 512.5 tokens before each on average. */
    double expected = 1024 * (6 * 123.65e6 + 12 * 12 * 768 * 512.5);
    assert_true(fabs(train_flops(&config, &length, 1) / expected - 1) < 0.002);
}

/* Sequences take the lengths by turns, all ids are words, labels follow from them. */
static void data_are_what_is_asked_for(void **state)
{
    (void)state;
    struct train_job job = job_of(device_cpu(1), GPT_HEAD_CLASSIFY);
    train_data_make(&job, lengths, LENGTHS, 1);
    const struct dataset *d = &job.data;
    assert_int_equal(d->n_sequences, ((TRAIN_CHOICE_STEPS + 8) * 2 + 1) * LENGTHS);
    assert_int_equal(d->max_length, 12);
    int low = 0, all = (int)d->start[d->n_sequences];
    for (int i = 0; i < d->n_sequences; i++) {
        int last = d->tokens[d->start[i + 1] - 1];
        assert_int_equal(d->start[i + 1] - d->start[i], lengths[i % LENGTHS]);
        assert_int_equal((int)d->label[i], last % 2);
    }
    for (int i = 0; i < all; i++) {
        assert_in_range(d->tokens[i], 0, 127);
        low += d->tokens[i] < 50;
    }
    assert_true(low > 0.7 * all); /* 0.79 of the cubes are below one half */
    comm_destroy(job.comm);
    dataset_free(&job.data);
}

/* Traffic as zenflow.md has it: nothing resident, once each way a step under ZeRO-Offload, a share
 * of (1 - topk_ratio) / S under ZenFlow; the loss falls alike. */
static void runs_report_the_traffic_of_their_method(void **state)
{
    (void)state;
    struct train_job job = job_of(device_cpu(1), GPT_HEAD_LM);
    train_data_make(&job, (const int[]){9}, 1, 1);
    struct param_table table = gpt_param_table(&job.config);
    double matrices = 0;
    for (int i = 0; i < table.n_params; i++)
        matrices += table.params[i].kind == PARAM_MATRIX ? (double)table.params[i].n_elements : 0;
    const struct {
        struct train_method method;
        double share, tolerance;
    } cases[] = {{method_of(1, 1, 0, true), 0, 0},
                 {method_of(0, 1, 0, true), 1, 0},
                 {method_of(0.05f, 4, 1, false), 0.95 / 4, 0.02},
                 {method_of(0.05f, 4, 1, true), 0.95 / 4, 0.02}};
    double before = 0;
    for (int i = 0; i < 4; i++) {
        struct train_result r;
        struct zf_error err;
        assert_works(train_measure(&job, &cases[i].method, &r, &err), err);
        assert_true(r.fits);
        double expected = 2 * matrices * cases[i].share;
        if (fabs(r.down - expected) > cases[i].tolerance * expected ||
            fabs(r.up - expected) > cases[i].tolerance * expected)
            fail_msg("method %d: %.0f bytes down, %.0f up, but %.0f were expected", i, r.down, r.up,
                     expected);
        assert_int_equal(r.interval, cases[i].method.engine.update_interval);
        assert_true(r.memory.host_elements == (i == 0 ? 0 : (size_t)matrices));
        assert_true(r.median > 0 && r.worst >= r.median && r.stall >= 0 && r.stall < 1);
        assert_true(r.tokens == 2 * LENGTHS * 9);
        assert_true(r.loss_after < r.loss_before && r.loss_before < 1.2 * log(101));
        assert_true(i == 0 || r.loss_before == before);
        before = r.loss_before;
        train_result_free(&r);
    }
    params_free(&table);
    comm_destroy(job.comm);
    dataset_free(&job.data);
}

static size_t no_memory(void)
{
    return 1000;
}

static void says_what_does_not_fit(void **state)
{
    (void)state;
    struct device device = *device_cpu(1);
    device.free_bytes = no_memory;
    struct train_job job = job_of(&device, GPT_HEAD_LM);
    train_data_make(&job, (const int[]){9}, 1, 1);
    struct train_method method = method_of(1, 1, 0, true);
    struct train_result r;
    struct zf_error err;
    assert_works(train_measure(&job, &method, &r, &err), err);
    assert_false(r.fits);
    assert_int_equal(r.free, 1000);
    assert_true(r.needed > 4 * 300000); /* the parameters alone */
    train_result_free(&r);
    comm_destroy(job.comm);
    dataset_free(&job.data);
}

/* The order of a step: until the engine's part is queued, the host waits for nothing. */

static bool backward_is_queued;
static int waits_before_the_end;
static void (*real_wait)(struct event *event);

static void note_backward(struct stream *s, float *dwte, float *dwpe, const void *dx,
                          const struct token_rows *rows, const int *order, int C,
                          struct dropout drop)
{
    backward_is_queued = true;
    real->embedding_backward(s, dwte, dwpe, dx, rows, order, C, drop);
}

static void note_summary(struct stream *s, struct norm_summary *out, const float *sums,
                         const unsigned char *place, int n, float limit)
{
    backward_is_queued = false;
    real_rows->summarise_norms(s, out, sums, place, n, limit);
}

static void count_wait(struct event *event)
{
    waits_before_the_end += backward_is_queued;
    real_wait(event);
}

static void a_step_is_queued_before_its_loss_is_asked_for(void **state)
{
    (void)state;
    struct device device = *device_cpu(1);
    struct ops ops = *device.ops;
    struct row_ops row_ops = *device.row_ops;
    real = device.ops;
    real_rows = device.row_ops;
    real_wait = device.event_wait;
    ops.embedding_backward = note_backward;
    row_ops.summarise_norms = note_summary;
    device.ops = &ops;
    device.row_ops = &row_ops;
    device.event_wait = count_wait;
    struct train_job job = job_of(&device, GPT_HEAD_LM);
    train_data_make(&job, (const int[]){9}, 1, 1);
    job.micro_batches = 1;
    struct train_method method = method_of(1, 1, 0, true);
    struct train_result r;
    struct zf_error err;
    waits_before_the_end = 0;
    assert_works(train_measure(&job, &method, &r, &err), err);
    assert_int_equal(waits_before_the_end, 0);
    train_result_free(&r);
    comm_destroy(job.comm);
    dataset_free(&job.data);
}

/* What zf-train does under a configuration is what is measured. */

static void assert_same_settings(const struct engine_config *a, const struct engine_config *b)
{
    assert_true(a->beta1 == b->beta1 && a->beta2 == b->beta2 && a->eps == b->eps);
    assert_true(a->weight_decay == b->weight_decay && a->adam_w_mode == b->adam_w_mode);
    assert_true(a->gradient_clipping == b->gradient_clipping && a->bf16 == b->bf16);
    assert_true(a->topk_ratio == b->topk_ratio && a->select_every == b->select_every);
    assert_true(a->reselect_when_stale == b->reselect_when_stale);
    assert_true(a->update_interval == b->update_interval && a->auto_ratio == b->auto_ratio);
    assert_int_equal(a->interval_rule, b->interval_rule);
    assert_true(a->auto_keeps_up == b->auto_keeps_up && a->apply_lag == b->apply_lag);
    assert_true(a->stagger == b->stagger && a->offload_important == b->offload_important);
    assert_true(a->full_warm_up_rounds == b->full_warm_up_rounds);
    assert_true(a->accumulate == b->accumulate && a->reserved_cores == b->reserved_cores);
    assert_true(a->deferred_lr_scale == b->deferred_lr_scale);
}

static void methods_have_the_trainers_settings(void **state)
{
    (void)state;
#define ZENFLOW "--zero_optimization.zenflow."
    char *const common[] = {"zf-train",
                            "--print_config",
                            "--zero_optimization.stage=2",
                            "--zero_optimization.offload_optimizer.device=cpu",
                            ZENFLOW "overlap_step=true",
                            ZENFLOW "topk_ratio=0.2",
                            ZENFLOW "select_strategy=step",
                            ZENFLOW "select_interval=32"};
    const struct {
        enum train_kind kind;
        int n_common;
        char *own[2];
    } cases[] = {
        {TRAIN_RESIDENT, 3, {NULL}},
        {TRAIN_OFFLOAD, 4, {NULL}},
        {TRAIN_BURST, 8, {ZENFLOW "update_interval=8", ZENFLOW "stagger=false"}},
        {TRAIN_STAGGERED, 8, {ZENFLOW "update_interval=8"}},
        {TRAIN_AUTO, 8, {ZENFLOW "update_interval=auto"}},
        {TRAIN_KEEP_UP, 8, {ZENFLOW "update_interval=keep_up"}},
    };
    struct zf_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config own, theirs;
        char *argv[10];
        int argc = cases[i].n_common;
        memcpy(argv, common, sizeof common);
        for (int k = 0; k < 2 && cases[i].own[k]; k++)
            argv[argc++] = cases[i].own[k];
        assert_works(config_parse(&theirs, argc, argv, 1, &err), err);
        config_defaults(&own, 1);
        own.zenflow.overlap_step = true;
        own.zenflow.topk_ratio = 0.2;
        own.zenflow.select_strategy = ZENFLOW_SELECT_STEP;
        own.zenflow.select_interval = 32;
        own.zenflow.update_interval = 8;
        struct train_method method = train_method_make(cases[i].kind, &own);
        struct engine_config expected = engine_settings(&theirs, NULL);
        assert_same_settings(&method.engine, &expected);
        config_free(&own);
        config_free(&theirs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_queued_before_its_loss_is_asked_for),
        cmocka_unit_test(methods_have_the_trainers_settings),
        cmocka_unit_test(flops_are_those_of_the_products),
        cmocka_unit_test(a_step_of_gpt2_takes_the_flops_that_papers_count),
        cmocka_unit_test(data_are_what_is_asked_for),
        cmocka_unit_test(runs_report_the_traffic_of_their_method),
        cmocka_unit_test(says_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
