/* data/batch: what a batch holds, how datasets are cut, and how pairs are truncated. */
#include "tests/unit/byte_tokenizer.h"

#include "data/batch.h"
#include "data/corpus.h"

static char folder[] = "/tmp/zf-test-batch-XXXXXX";
static struct tokenizer *bytes; /* made once for all tests */

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return 1;
    bytes = make_byte_tokenizer(folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    struct zf_error err;
    tokenizer_free(bytes);
    return file_remove_directory(folder, &err) ? 0 : 1;
}

static void assert_sequence(const struct dataset *d, int i, const char *text)
{
    assert_int_equal(d->start[i + 1] - d->start[i], strlen(text));
    for (size_t k = 0; k < strlen(text); k++)
        assert_int_equal(d->tokens[d->start[i] + k], (unsigned char)text[k]);
}

static void tokenizes_examples(void **state)
{
    (void)state;
    struct glue_example examples[] = {
        {.sentence = {"one", "two!"}, .label = 1},
        {.sentence = {"", "x"}, .label = 0},
        {.sentence = {"", ""}, .label = 2},
        {.sentence = {"a much longer sentence", "short"}, .label = -1},
        {.sentence = {"one sentence, too long", NULL}, .label = 3.5f},
    };
    const struct glue_data data = {.examples = examples, .n_examples = 5};
    struct dataset d;
    dataset_from_glue(&d, &data, bytes, 10);
    assert_int_equal(d.n_sequences, 5);
    assert_int_equal(d.max_length, 10);
    assert_sequence(&d, 0, "onetwo!");
    assert_sequence(&d, 1, "x");
    assert_int_equal(d.start[3] - d.start[2], 1);
    assert_int_equal(d.tokens[d.start[2]], 256);
    assert_sequence(&d, 3, "a mucshort");
    assert_sequence(&d, 4, "one senten");
    assert_true(d.label[2] == 2 && d.label[3] == -1 && d.label[4] == 3.5f);
    dataset_free(&d);
}

/* Many chunks, so that threads share them: every sequence stands where it belongs. */
static void keeps_the_order(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct glue_example *examples = calloc(N, sizeof *examples);
    char(*text)[24] = calloc(N, sizeof *text);
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i], "%.*s%d", i % 7, "=======", i);
        examples[i] = (struct glue_example){.sentence = {text[i]}, .label = (float)i};
    }
    const struct glue_data data = {.examples = examples, .n_examples = N};
    struct dataset d;
    dataset_from_glue(&d, &data, bytes, 64);
    for (int i = 0; i < N; i++) {
        assert_sequence(&d, i, text[i]);
        assert_true(d.label[i] == (float)i);
    }
    dataset_free(&d);
    free(examples);
    free(text);
}

/* Cuts pairs as Transformers does (tests/fixtures/make_truncation.py). */
static void truncates_longest_first(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    assert_works(json_load(&f, ZF_TESTS_DIR "/fixtures/glue/truncation.json", &err), err);
    const json_t *cases = json_find(&f, "cases");
    assert_int_equal(json_array_size(cases), 9 * 9 * 7);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        int c[5];
        for (size_t k = 0; k < 5; k++)
            c[k] = (int)json_integer_value(json_array_get(json_array_get(cases, i), k));
        char first[16] = "aaaaaaaaaaaaaaa", second[16] = "bbbbbbbbbbbbbbb", expected[32];
        first[c[0]] = second[c[1]] = 0;
        snprintf(expected, sizeof expected, "%.*s%.*s", c[3], first, c[4], second);
        struct glue_example example = {.sentence = {first, second}};
        const struct glue_data data = {.examples = &example, .n_examples = 1};
        struct dataset d;
        dataset_from_glue(&d, &data, bytes, c[2]);
        if (c[0] + c[1] > 0)
            assert_sequence(&d, 0, expected);
        dataset_free(&d);
    }
    json_free(&f);
}

/* With tokens around each sentence, which are not cut. */
static void keeps_what_is_around_sentences(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    char path[128];
    static const char config[] = "{\"add_bos_token\": true, \"add_eos_token\": true}";
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    assert_works(file_write(path, config, sizeof config - 1, &err), err);
    struct tokenizer *t = tokenizer_load(folder, &err);
    assert_int_equal(unlink(path), 0);
    assert_non_null(t);
    assert_works(json_load(&f, ZF_TESTS_DIR "/fixtures/glue/truncation.json", &err), err);
    const json_t *cases = json_find(&f, "framed");
    assert_int_equal(json_array_size(cases), 9 * 10 * 5);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        int c[3];
        for (size_t k = 0; k < 3; k++)
            c[k] = (int)json_integer_value(json_array_get(json_array_get(cases, i), k));
        const char *ids = json_string_value(json_array_get(json_array_get(cases, i), 3));
        char first[16] = "aaaaaaaaaaaaaaa", second[16] = "bbbbbbbbbbbbbbb";
        first[c[0]] = second[c[1] < 0 ? 0 : c[1]] = 0;
        struct glue_example example = {.sentence = {first, c[1] < 0 ? NULL : second}};
        const struct glue_data data = {.examples = &example, .n_examples = 1};
        struct dataset d;
        dataset_from_glue(&d, &data, t, c[2]);
        assert_int_equal(d.start[1], strlen(ids));
        for (size_t k = 0; k < d.start[1]; k++)
            assert_int_equal(d.tokens[k], ids[k] == '2' ? 256 : 'a' + ids[k] - '0');
        dataset_free(&d);
        dataset_from_glue(&d, &data, t, 1);
        assert_int_equal(d.start[1], 1);
        dataset_free(&d);
    }
    json_free(&f);
    tokenizer_free(t);
}

/* A language model's text is one text. */
static void puts_bos_before_a_text(void **state)
{
    (void)state;
    struct zf_error err;
    struct dataset d;
    char path[128];
    static const char config[] = "{\"add_bos_token\": true}", text[] = "abcd";
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    assert_works(file_write(path, config, sizeof config - 1, &err), err);
    struct tokenizer *t = tokenizer_load(folder, &err);
    assert_int_equal(unlink(path), 0);
    assert_non_null(t);
    snprintf(path, sizeof path, "%s/text.txt", folder);
    assert_works(file_write(path, text, sizeof text - 1, &err), err);
    struct corpus_report report;
    assert_works(dataset_from_corpus(&d, path, t, folder, 3, 1, &report, &err), err);
    static const int expected[] = {256, 'a', 'b', 'c', 'd'};
    assert_int_equal(d.n_sequences, 2);
    assert_int_equal(d.start[2], 5);
    assert_memory_equal(d.tokens, expected, sizeof expected);
    dataset_free(&d);
    tokenizer_free(t);
}

/* Three sequences: 10 11 12 | 20 | 30 31. */
static struct dataset three_sequences(float *label)
{
    static int tokens[] = {10, 11, 12, 20, 30, 31};
    static size_t start[] = {0, 3, 4, 6};
    return (struct dataset){.n_sequences = 3, .tokens = tokens, .start = start, .label = label};
}

static void assert_ints(const int *got, const int *expected, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(got[i], expected[i]);
}

static void fills_streams(void **state)
{
    (void)state;
    float label[] = {0, 2, -1};
    const struct dataset d = three_sequences(label);
    const int index[] = {2, 0, 1};
    struct batch b;
    batch_init(&b, 6, 3);
    batch_fill(&b, &d, index, 3, 40, 3);
    assert_int_equal(b.n_tokens, 6);
    assert_int_equal(b.n_seqs, 3);
    assert_int_equal(b.n_items, 3);
    assert_ints(b.tokens, (int[]){30, 31, 10, 11, 12, 20}, 6);
    assert_ints(b.position, (int[]){0, 1, 0, 1, 2, 0}, 6);
    assert_ints(b.seq_start, (int[]){0, 2, 5, 6}, 4);
    assert_ints((int *)b.token_seq, (int[]){40, 40, 41, 41, 41, 42}, 6);
    assert_ints(b.targets, (int[]){TARGET_IGNORE, 0, 2}, 3);
    assert_null(b.scores);
    batch_fill(&b, &d, index, 0, 0, 3);
    assert_int_equal(b.n_tokens + b.n_seqs + b.n_items, 0);
    batch_free(&b);
}

static void fills_next_tokens(void **state)
{
    (void)state;
    const struct dataset d = three_sequences(NULL);
    struct batch b;
    batch_init(&b, 6, 3);
    batch_fill(&b, &d, (int[]){0, 1, 2}, 3, 0, 0);
    assert_ints(b.targets, (int[]){11, 12, TARGET_IGNORE, TARGET_IGNORE, 31, TARGET_IGNORE}, 6);
    assert_int_equal(b.n_items, 3);
    assert_null(b.scores);
    batch_free(&b);
}

static void fills_scores(void **state)
{
    (void)state;
    float label[] = {0.5f, 4.25f, 5};
    const struct dataset d = three_sequences(label);
    struct batch b;
    batch_init(&b, 6, 3);
    batch_fill(&b, &d, (int[]){1, 0}, 2, 0, 1);
    assert_true(b.scores[0] == 4.25f && b.scores[1] == 0.5f);
    assert_int_equal(b.n_items, 2);
    assert_null(b.targets);
    batch_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizes_examples),      cmocka_unit_test(keeps_the_order),
        cmocka_unit_test(truncates_longest_first), cmocka_unit_test(keeps_what_is_around_sentences),
        cmocka_unit_test(puts_bos_before_a_text),  cmocka_unit_test(fills_streams),
        cmocka_unit_test(fills_next_tokens),       cmocka_unit_test(fills_scores),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
