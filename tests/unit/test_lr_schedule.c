/* Learning rates of each step against Transformers' and DeepSpeed's own schedulers. */
#include "cmd/lr_schedule.h"
#include "data/json.h"

#include "tests/testing.h"

#include <math.h>

static double number(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static int whole(const json_t *object, const char *key)
{
    return (int)number(object, key);
}

static int choice(const json_t *object, const char *key, const char *const *names)
{
    const char *name = json_string_value(json_object_get(object, key));
    for (int i = 0; names[i]; i++)
        if (name && strcmp(name, names[i]) == 0)
            return i;
    fail_msg("%s is unknown", name);
    return -1;
}

static const char *const scheduler_names[] = {[LR_LINEAR] = "linear",
                                              [LR_COSINE] = "cosine",
                                              [LR_CONSTANT] = "constant",
                                              [LR_CONSTANT_WITH_WARMUP] = "constant_with_warmup",
                                              NULL};
static const char *const ds_names[] = {[DS_SCHEDULER_NONE] = "none",
                                       [DS_WARMUP_LR] = "WarmupLR",
                                       [DS_WARMUP_DECAY_LR] = "WarmupDecayLR",
                                       [DS_WARMUP_COSINE_LR] = "WarmupCosineLR",
                                       NULL};
static const char *const warmup_names[] = {[WARMUP_LOG] = "log", [WARMUP_LINEAR] = "linear", NULL};

static void assert_rates(const struct config *c, const json_t *item)
{
    const json_t *rates = json_object_get(item, "rates");
    char *text = json_dumps(item, 0);
    assert_true(json_array_size(rates) > 0);
    for (int i = 0; i < (int)json_array_size(rates); i++) {
        double expected = json_number_value(json_array_get(rates, (size_t)i));
        double rate = lr_at_step(c, i);
        if (!(fabs(rate - expected) <= 1e-6 * expected + 1e-12))
            fail_msg("step %d: %.9g, expected %.9g: %s", i, rate, expected, text);
    }
    free(text);
}

static struct json_file load(void)
{
    struct json_file f;
    struct zf_error err = {0};
    assert_works(json_load(&f, ZF_TESTS_DIR "/fixtures/lr_schedule/lr_schedule.json", &err), err);
    return f;
}

static void transformers_schedules(void **state)
{
    (void)state;
    struct json_file f = load();
    json_t *items = json_find(&f, "transformers"), *item;
    size_t i;
    assert_true(json_array_size(items) > 0);
    json_array_foreach(items, i, item)
    {
        struct config c = {.learning_rate = number(f.root, "learning_rate"),
                           .lr_scheduler_type = choice(item, "lr_scheduler_type", scheduler_names),
                           .warmup_steps = whole(item, "warmup_steps"),
                           .total_steps = whole(item, "total_steps")};
        assert_rates(&c, item);
    }
    json_free(&f);
}

static void deepspeed_schedules(void **state)
{
    (void)state;
    struct json_file f = load();
    json_t *items = json_find(&f, "deepspeed"), *item;
    size_t i;
    assert_true(json_array_size(items) > 0);
    json_array_foreach(items, i, item)
    {
        struct config c = {.learning_rate = number(f.root, "learning_rate"), .total_steps = 1};
        struct scheduler_config *s = &c.scheduler;
        s->type = choice(item, "type", ds_names);
        s->warmup_type = choice(item, "warmup_type", warmup_names);
        s->warmup_num_steps = whole(item, "warmup_num_steps");
        s->total_num_steps = whole(item, "total_num_steps");
        if (s->type == DS_WARMUP_COSINE_LR) {
            s->warmup_min_ratio = number(item, "warmup_min_ratio");
            s->cos_min_ratio = number(item, "cos_min_ratio");
        } else {
            s->warmup_min_lr = number(item, "warmup_min_lr");
            s->warmup_max_lr = number(item, "warmup_max_lr");
        }
        assert_rates(&c, item);
    }
    json_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transformers_schedules),
        cmocka_unit_test(deepspeed_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
