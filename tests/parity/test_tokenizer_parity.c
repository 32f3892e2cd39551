/* data/tokenizer against Transformers and SentencePiece: the same ids for every line of GLUE, for
 * adversarial and random Unicode, and for other shapes of tokenizer.json. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/json.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

#define FIXTURES ZF_TESTS_DIR "/fixtures/tokenizer"
#define SAMPLE   ZF_TESTS_DIR "/../data/sample/tokenizer"
#define GPT2     ZF_SHARED_DIR "/gpt2-bpe"

#define FNV_START         0xCBF29CE484222325u
#define END_OF_LINE       (-1)
#define CHARACTERS_A_TEXT 4096

static uint64_t fnv_id(uint64_t h, int id)
{
    for (int shift = 0; shift < 32; shift += 8)
        h = (h ^ ((uint32_t)id >> shift & 0xFF)) * 0x100000001B3u;
    return h;
}

static struct tokenizer *load(const char *directory)
{
    struct zf_error err;
    struct tokenizer *t = tokenizer_load(directory, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

/* The ids as a new array, written once for all and once in two calls with little room. */
static int *encode(const struct tokenizer *t, const char *text, size_t n, size_t *n_ids)
{
    *n_ids = tokenizer_encode(t, text, n, NULL, 0);
    int *ids = zf_malloc((*n_ids + 1) * sizeof *ids);
    ids[*n_ids / 2] = -7;
    assert_int_equal(tokenizer_encode(t, text, n, ids, *n_ids / 2), *n_ids);
    assert_int_equal(ids[*n_ids / 2], -7);
    int *all = zf_malloc((*n_ids + 1) * sizeof *all);
    assert_int_equal(tokenizer_encode(t, text, n, all, *n_ids), *n_ids);
    assert_memory_equal(ids, all, *n_ids / 2 * sizeof *ids);
    free(ids);
    return all;
}

static void check_ids(const struct tokenizer *t, const char *text, const json_t *expected)
{
    size_t n;
    int *ids = encode(t, text, strlen(text), &n);
    bool same = n == json_array_size(expected);
    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == json_integer_value(json_array_get(expected, i));
    if (!same) {
        char *want = json_dumps(expected, JSON_COMPACT);
        print_message("\"%s\" should be %s, but is:", text, want);
        for (size_t i = 0; i < n; i++)
            print_message(" %d", ids[i]);
        print_message("\n");
        free(want);
    }
    free(ids);
    assert_true(same);
}

static void check_decode(const struct tokenizer *t, const char *text, size_t n,
                         const char *expected, size_t n_expected)
{
    size_t n_ids, n_back;
    int *ids = encode(t, text, n, &n_ids);
    char *back = tokenizer_decode(t, ids, n_ids, &n_back);
    assert_int_equal(n_back, n_expected);
    assert_memory_equal(back, expected, n_expected);
    free(ids);
    free(back);
}

static void check_hash(const struct tokenizer *t, const char *text, size_t n,
                       const json_t *expected)
{
    size_t n_ids;
    char hash[17];
    int *ids = encode(t, text, n, &n_ids);
    uint64_t h = FNV_START;
    for (size_t i = 0; i < n_ids; i++)
        h = fnv_id(h, ids[i]);
    free(ids);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)h);
    if (strcmp(hash, json_string_value(expected)) != 0)
        fail_msg("the ids of \"%.200s\" differ", text);
    check_decode(t, text, n, text, n);
}

static void check_texts(const char *directory, const char *key)
{
    struct json_file f;
    struct zf_error err;
    size_t i;
    json_t *row;
    struct tokenizer *t = load(directory);
    assert_works(json_load(&f, FIXTURES "/texts.json", &err), err);
    json_array_foreach(json_find(&f, "texts"), i, row)
    {
        const char *text = json_string_value(json_object_get(row, "text"));
        check_ids(t, text, json_object_get(row, key));
        check_decode(t, text, strlen(text), text, strlen(text));
    }
    assert_true(i > 40);
    json_array_foreach(json_find(&f, "random"), i, row)
    {
        const char *text = json_string_value(json_object_get(row, "text"));
        check_hash(t, text, strlen(text), json_object_get(row, key));
    }
    assert_int_equal(i, 2000);
    json_array_foreach(json_find(&f, "long"), i, row)
    {
        const char *text = json_string_value(json_object_get(row, "text"));
        size_t n = strlen(text), times = (size_t)json_integer_value(json_object_get(row, "times"));
        char *repeated = zf_malloc(n * times + 1);
        for (size_t k = 0; k < times; k++)
            memcpy(repeated + k * n, text, n + 1);
        check_hash(t, repeated, n * times, json_object_get(row, key));
        free(repeated);
    }
    assert_true(i > 10);
    json_free(&f);
    tokenizer_free(t);
}

static void agrees_on_unicode(void **state)
{
    (void)state;
    check_texts(SAMPLE, "small");
}

static void agrees_on_unicode_with_gpt2(void **state)
{
    (void)state;
    need_shared("gpt2-bpe/vocab.json");
    check_texts(GPT2, "full");
}

/* Each character beside a letter, a digit, another character and a space, by a BPE whose ids tell
 * which of them it was put together with. */
static void agrees_on_every_character(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    size_t i;
    json_t *hash;
    struct tokenizer *t = load(FIXTURES "/edges");
    char *text = zf_malloc(CHARACTERS_A_TEXT * 4 * (4 + 1));
    assert_works(json_load(&f, FIXTURES "/texts.json", &err), err);
    json_array_foreach(json_find(&f, "every_character"), i, hash)
    {
        size_t n = 0;
        for (uint32_t c = (uint32_t)i * CHARACTERS_A_TEXT; c < (i + 1) * CHARACTERS_A_TEXT; c++) {
            if (c >= 0xD800 && c < 0xE000)
                continue;
            for (const char *beside = "a1! "; *beside; beside++) {
                text[n++] = *beside;
                n += utf8_encode(c ? c : 1, text + n);
            }
        }
        check_hash(t, text, n, hash);
    }
    assert_int_equal(i, 0x110000 / CHARACTERS_A_TEXT);
    free(text);
    json_free(&f);
    tokenizer_free(t);
}

static void check_variant(const char *name)
{
    struct json_file f;
    struct zf_error err;
    size_t i;
    json_t *text;
    char *directory = zf_format("%s/%s", FIXTURES, name);
    struct tokenizer *t = load(directory);
    assert_works(json_load(&f, FIXTURES "/variants.json", &err), err);
    json_array_foreach(json_find(&f, "texts"), i, text)
        check_ids(t, json_string_value(text), json_array_get(json_find(&f, name), i));
    assert_true(i > 40);
    json_free(&f);
    tokenizer_free(t);
    free(directory);
}

static void agrees_on_prefix_space(void **state)
{
    (void)state;
    check_variant("prefix");
}

static void agrees_on_split_patterns(void **state)
{
    (void)state;
    check_variant("split");
}

static void agrees_on_what_transformers_saved(void **state)
{
    (void)state;
    check_variant("resaved");
}

static uint64_t hash_lines(const struct tokenizer *t, const char *text, size_t n, int *n_lines)
{
    uint64_t h = FNV_START;
    int *ids = zf_malloc((n + 1) * sizeof *ids);
    *n_lines = 0;
    for (const char *line = text, *end = text + n; line < end; ++*n_lines) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((stop ? stop : end) - line);
        size_t n_ids = tokenizer_encode(t, line, length, ids, n + 1);
        for (size_t i = 0; i < n_ids; i++)
            h = fnv_id(h, ids[i]);
        h = fnv_id(h, END_OF_LINE);
        line += length + 1;
    }
    free(ids);
    return h;
}

static void agrees_on_glue(void **state)
{
    (void)state;
    need_shared("gpt2-bpe/vocab.json");
    need_shared("glue/SST-2/train.tsv");
    char name[64];
    int expected_lines, n_lines, n_files = 0;
    unsigned long long expected;
    struct zf_error err;
    struct tokenizer *t = load(GPT2);
    FILE *hashes = fopen(FIXTURES "/glue_hashes.txt", "r");
    assert_non_null(hashes);
    while (fscanf(hashes, "%63s %d %llx", name, &expected_lines, &expected) == 3) {
        char *text, *path = zf_format("%s/glue/%s", ZF_SHARED_DIR, name);
        size_t n;
        assert_works(file_read(path, &text, &n, &err), err);
        uint64_t h = hash_lines(t, text, n, &n_lines);
        assert_int_equal(n_lines, expected_lines);
        if (h != expected)
            fail_msg("the ids of %s differ", name);
        free(text);
        free(path);
        n_files++;
    }
    assert_int_equal(n_files, 17);
    fclose(hashes);
    tokenizer_free(t);
}

/* A folder that holds one file, a SentencePiece model; removed by the caller. */
static char *folder_with_model(const char *model)
{
    char *directory = zf_strdup("/tmp/zf-test-spm-XXXXXX");
    char *source = zf_format("%s/%s", FIXTURES, model);
    assert_non_null(mkdtemp(directory));
    char *target = zf_format("%s/%s", directory, model);
    copy_file(source, target);
    free(source);
    free(target);
    return directory;
}

static void check_spm(const char *kind)
{
    struct json_file f;
    struct zf_error err;
    size_t i;
    json_t *text;
    char *model = zf_format("spm_%s.model", kind), *key = zf_format("%s_text", kind);
    char *directory = folder_with_model(model);
    struct tokenizer *t = load(directory);
    assert_string_equal(tokenizer_kind(t), "SentencePiece");
    assert_works(json_load(&f, FIXTURES "/spm.json", &err), err);
    json_array_foreach(json_find(&f, "texts"), i, text)
    {
        const char *s = json_string_value(text);
        const char *back = json_string_value(json_array_get(json_find(&f, key), i));
        check_ids(t, s, json_array_get(json_find(&f, kind), i));
        check_decode(t, s, strlen(s), back, strlen(back));
    }
    assert_true(i > 40);
    json_free(&f);
    tokenizer_free(t);
    assert_works(file_remove_directory(directory, &err), err);
    free(directory);
    free(model);
    free(key);
}

static void agrees_on_sentencepiece(void **state)
{
    (void)state;
    check_spm("unigram");
    check_spm("bpe");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_on_unicode),
        cmocka_unit_test(agrees_on_unicode_with_gpt2),
        cmocka_unit_test(agrees_on_every_character),
        cmocka_unit_test(agrees_on_prefix_space),
        cmocka_unit_test(agrees_on_split_patterns),
        cmocka_unit_test(agrees_on_what_transformers_saved),
        cmocka_unit_test(agrees_on_glue),
        cmocka_unit_test(agrees_on_sentencepiece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
