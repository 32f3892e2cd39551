/* Greedy generation with keys and values kept, beside Transformers' generate(): tokens and logits,
 * of every language model of the fixtures, however the prompt is cut. Fixtures:
 * make_generation.py. */
#include "tests/testing.h"

#include "data/json.h"
#include "model/gpt.h"

#include <math.h>

#define FIXTURES  ZF_TESTS_DIR "/fixtures/gpt"
#define POSITIONS 24
#define MAX_VOCAB 64
#define TOLERANCE 2e-5f

static int greatest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* Puts ids [cache's length, n) behind those that the cache holds, `piece` at a time. */
static void feed(struct gpt *model, struct gpt_cache *cache, const int *ids, int n, int piece,
                 float *logits)
{
    while (gpt_cache_length(cache) < n) {
        int at = gpt_cache_length(cache), left = n - at;
        gpt_continue(model, cache, ids + at, left < piece ? left : piece, logits);
    }
}

static void check_one(struct gpt *model, const char *name, const json_t *one, int piece)
{
    const json_t *prompt = json_object_get(one, "prompt"), *tokens = json_object_get(one, "tokens");
    const json_t *expected = json_object_get(one, "logits");
    const int n_prompt = (int)json_array_size(prompt), n_tokens = (int)json_array_size(tokens);
    const int vocab = gpt_get_config(model)->vocab_size;
    int ids[POSITIONS];
    float logits[MAX_VOCAB];
    struct gpt_cache *cache = gpt_cache_create(model, POSITIONS);
    assert_non_null(cache);
    for (int i = 0; i < n_prompt; i++)
        ids[i] = (int)json_integer_value(json_array_get(prompt, (size_t)i));
    for (int i = 0; i < n_tokens; i++) {
        feed(model, cache, ids, n_prompt + i, piece, logits);
        ids[n_prompt + i] = greatest(logits, vocab);
        if (ids[n_prompt + i] != json_integer_value(json_array_get(tokens, (size_t)i)))
            fail_msg("%s: token %d is %d", name, i, ids[n_prompt + i]);
    }
    for (int i = 0; i < vocab; i++) {
        double theirs = json_number_value(json_array_get(expected, (size_t)i));
        if (fabs(logits[i] - theirs) > TOLERANCE * fmax(1, fabs(theirs)))
            fail_msg("%s: logit %d is %g, not %g", name, i, (double)logits[i], theirs);
    }
    /* What is forgotten is made again. */
    float again[MAX_VOCAB];
    gpt_cache_cut(cache, n_prompt - 1);
    feed(model, cache, ids, n_prompt + n_tokens - 1, piece, again);
    for (int i = 0; i < vocab; i++)
        assert_true(fabsf(again[i] - logits[i]) <= TOLERANCE);
    gpt_cache_destroy(cache);
}

static void tokens_are_transformers(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    const char *name;
    json_t *list, *one;
    size_t i, n = 0;
    assert_works(json_load(&f, FIXTURES "/generation.json", &err), err);
    json_object_foreach(f.root, name, list)
    {
        struct gpt_config config;
        bool head_is_new;
        char folder[256];
        const struct gpt_size size = {
            .max_tokens = POSITIONS, .max_seqs = 1, .micro_batches = 1, .mode = GPT_EVALUATE};
        snprintf(folder, sizeof folder, "%s/%s", FIXTURES, name);
        assert_works(gpt_config_load(&config, folder, &err), err);
        struct gpt *model = gpt_create(device_cpu(2), &config, &size);
        assert_works(gpt_load_weights(model, folder, 0, &head_is_new, &err), err);
        json_array_foreach(list, i, one)
        {
            check_one(model, name, one, POSITIONS);
            check_one(model, name, one, 3);
            check_one(model, name, one, 1);
            n++;
        }
        gpt_destroy(model);
    }
    assert_int_equal(n, 8 * 3);
    json_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_are_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
