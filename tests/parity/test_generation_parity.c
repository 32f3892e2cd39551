/* Greedy generation with keys and values kept, beside Transformers' generate(): tokens and logits,
 * of every language model of the fixtures, however the prompt is cut. Fixtures:
 * make_generation.py. */
#include "tests/parity/gpt_fixture.h"

#include "data/json.h"

#define POSITIONS 24
#define MAX_VOCAB 64
#define N_PROMPTS 3
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
    const char *name = *state;
    struct fixture fixture = open_fixture(device_cpu(2), name, GPT_EVALUATE);
    struct json_file f;
    struct zf_error err;
    json_t *one;
    size_t i;
    assert_works(json_load(&f, GPT_FIXTURES "generation.json", &err), err);
    json_t *list = json_object_get(f.root, name);
    if (json_array_size(list) != N_PROMPTS)
        fail_msg("%s: %s has not %d prompts", f.path, name, N_PROMPTS);
    json_array_foreach(list, i, one)
    {
        check_one(fixture.model, name, one, POSITIONS);
        check_one(fixture.model, name, one, 3);
        check_one(fixture.model, name, one, 1);
    }
    close_fixture(&fixture);
    json_free(&f);
}

static bool is_language_model(const char *name)
{
    struct gpt_config config;
    struct zf_error err;
    char *directory = zf_format("%s%s", GPT_FIXTURES, name);
    if (!gpt_config_load(&config, directory, &err))
        fail_msg("%s", err.text);
    free(directory);
    return config.head == GPT_HEAD_LM;
}

int main(void)
{
    struct file_names names = fixture_names();
    int n = 0;
    for (int i = 0; i < names.n; i++)
        n += is_language_model(names.list[i]);
    struct CMUnitTest tests[n];
    for (int i = 0, at = 0; i < names.n; i++)
        if (is_language_model(names.list[i]))
            tests[at++] = (struct CMUnitTest){names.list[i], tokens_are_transformers, NULL, NULL,
                                              names.list[i]};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_names_free(&names);
    return failed;
}
