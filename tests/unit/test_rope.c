/* Frequencies of rotary position embedding against Transformers' (tests/fixtures/make_rope.py). */
#include "data/json.h"
#include "model/rope.h"

#include "tests/testing.h"

#include <math.h>

static double number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);
    return value ? json_number_value(value) : otherwise;
}

static enum rope_type type_of(const json_t *object)
{
    static const char *const names[] = {[ROPE_DEFAULT] = "default",
                                        [ROPE_LINEAR] = "linear",
                                        [ROPE_LLAMA3] = "llama3",
                                        [ROPE_YARN] = "yarn"};
    const char *name = json_string_value(json_object_get(object, "rope_type"));
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0)
            return (enum rope_type)i;
    fail_msg("%s is unknown", name);
    return ROPE_DEFAULT;
}

static struct rope rope_of(const json_t *object)
{
    return (struct rope){
        .type = type_of(object),
        .theta = number(object, "rope_theta", 0),
        .factor = number(object, "factor", 0),
        .low_freq_factor = number(object, "low_freq_factor", 0),
        .high_freq_factor = number(object, "high_freq_factor", 0),
        .original_positions = number(object, "original_max_position_embeddings", 0),
        .beta_fast = number(object, "beta_fast", 32),
        .beta_slow = number(object, "beta_slow", 1),
        .attention_factor = number(object, "attention_factor", 0),
        .truncate = !json_is_false(json_object_get(object, "truncate")),
    };
}

/* Transformers computes in fp32. */
static void assert_near(const char *what, double x, double expected, const json_t *rope)
{
    char *text = json_dumps(rope, 0);
    if (!(fabs(x - expected) <= 1e-6 * expected))
        fail_msg("%s: %.9g, expected %.9g: %s", what, x, expected, text);
    free(text);
}

static void frequencies_are_transformers(void **state)
{
    (void)state;
    enum { MOST = 64 };
    struct json_file f;
    struct zf_error err = {0};
    assert_works(json_load(&f, ZF_TESTS_DIR "/fixtures/rope/rope.json", &err), err);
    json_t *items = json_find(&f, "cases"), *item;
    size_t i;
    assert_true(json_array_size(items) > 0);
    json_array_foreach(items, i, item)
    {
        const json_t *object = json_object_get(item, "rope");
        const json_t *expected = json_object_get(item, "frequency");
        const struct rope rope = rope_of(object);
        const size_t pairs = json_array_size(expected);
        float frequency[MOST], scale;
        assert_in_range(pairs, 1, MOST);
        rope_frequencies(frequency, &scale, &rope, (int)number(item, "head_dim", 0));
        for (size_t j = 0; j < pairs; j++)
            assert_near("frequency", (double)frequency[j],
                        json_number_value(json_array_get(expected, j)), object);
        assert_near("scale", (double)scale, number(item, "scale", 0), object);
    }
    json_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(frequencies_are_transformers)};
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
