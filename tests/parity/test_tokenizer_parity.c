/* data/tokenizer against Transformers and SentencePiece: the same ids for every line of GLUE, for
 * adversarial and random Unicode, for tokenizers as Llama, Mistral, Qwen and SmolLM2 have them, and
 * for other shapes of tokenizer.json. */
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

#define SHAPES FIXTURES "/shapes"

/* Many texts' ids as one hash: how many there are, and the CRC-32 (of zlib and PNG) of them and of
 * an end after each text. */
struct hash {
    size_t n_ids;
    uint32_t crc;
};

static void hash_id(struct hash *h, int id)
{
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t value = byte;
            for (int bit = 0; bit < 8; bit++)
                value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
            table[byte] = value;
        }
    uint32_t crc = ~h->crc;
    for (int shift = 0; shift < 32; shift += 8)
        crc = crc >> 8 ^ table[(crc ^ (uint32_t)id >> shift) & 0xFF];
    h->crc = ~crc;
}

static void hash_ids(struct hash *h, const int *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash_id(h, ids[i]);
    h->n_ids += n;
}

static void hash_text(struct hash *h, const struct tokenizer *t, const char *text, size_t n)
{
    size_t n_ids;
    int *ids = encode(t, text, n, &n_ids);
    hash_ids(h, ids, n_ids);
    free(ids);
}

/* One text, or two (other is not NULL), with what belongs around them. */
static void hash_example(struct hash *h, const struct tokenizer *t, const char *text, size_t n,
                         const char *other)
{
    const struct token_template a = tokenizer_template(t, other != NULL);
    hash_ids(h, a.ids, (size_t)a.before);
    hash_text(h, t, text, n);
    hash_ids(h, a.ids + a.before, (size_t)(a.between - a.before));
    if (other)
        hash_text(h, t, other, strlen(other));
    hash_ids(h, a.ids + a.between, (size_t)(a.n - a.between));
    hash_id(h, END_OF_LINE);
}

static void check_crc(struct hash h, const json_t *expected, const char *what)
{
    char hash[32];
    snprintf(hash, sizeof hash, "%zu %08x", h.n_ids, (unsigned)h.crc);
    if (strcmp(hash, json_string_value(expected)) != 0)
        fail_msg("the ids of \"%.200s\" differ: %s, but they are %s", what, hash,
                 json_string_value(expected));
}

static const char *text_of(const json_t *texts, size_t i)
{
    const json_t *text = json_array_get(texts, i);
    return json_string_value(json_is_object(text) ? json_object_get(text, "text") : text);
}

/* Groups of texts, a hash each. */
static void check_groups(const struct tokenizer *t, const json_t *texts, const json_t *hashes)
{
    const size_t group = 25, n = json_array_size(texts);
    assert_true(n > 40);
    assert_int_equal(json_array_size(hashes), (n + group - 1) / group);
    for (size_t start = 0; start < n; start += group) {
        struct hash h = {0};
        for (size_t i = start; i < n && i < start + group; i++)
            hash_example(&h, t, text_of(texts, i), strlen(text_of(texts, i)), NULL);
        check_crc(h, json_array_get(hashes, start / group), text_of(texts, start));
    }
}

static void check_pairs(const struct tokenizer *t, const json_t *texts, const json_t *expected)
{
    struct hash h = {0};
    for (size_t i = 0; i + 1 < json_array_size(texts); i++)
        hash_example(&h, t, text_of(texts, i), strlen(text_of(texts, i)), text_of(texts, i + 1));
    check_crc(h, expected, "pairs");
}

/* As hash_example, in one call: there is room for all. */
static void hash_line(struct hash *h, const struct tokenizer *t, const char *line, size_t n,
                      int *ids, size_t room)
{
    const struct token_template a = tokenizer_template(t, false);
    size_t n_ids = tokenizer_encode(t, line, n, ids, room);
    assert_true(n_ids <= room);
    hash_ids(h, a.ids, (size_t)a.before);
    hash_ids(h, ids, n_ids);
    hash_ids(h, a.ids + a.before, (size_t)(a.n - a.before));
    hash_id(h, END_OF_LINE);
}

static void check_glue(const struct tokenizer *t, const json_t *files)
{
    const char *name;
    json_t *expected;
    struct zf_error err;
    json_object_foreach((json_t *)files, name, expected)
    {
        char *text, *path = zf_format("%s/glue/%s", ZF_SHARED_DIR, name);
        size_t n, length;
        struct hash h = {0};
        assert_works(file_read(path, &text, &n, &err), err);
        int *ids = zf_malloc((n + 1) * sizeof *ids);
        for (const char *line = text, *end = text + n; line < end; line += length + 1) {
            const char *stop = memchr(line, '\n', (size_t)(end - line));
            length = (size_t)((stop ? stop : end) - line);
            hash_line(&h, t, line, length, ids, n + 1);
        }
        check_crc(h, expected, name);
        free(ids);
        free(text);
        free(path);
    }
}

/* What the shapes are checked with. */
struct shape_files {
    struct json_file hashes, texts, random;
};

static void load_shape_files(struct shape_files *f)
{
    struct zf_error err;
    assert_works(json_load(&f->hashes, SHAPES "/hashes.json", &err), err);
    assert_works(json_load(&f->texts, FIXTURES "/texts.json", &err), err);
    assert_works(json_load(&f->random, SHAPES "/texts.json", &err), err);
}

static void free_shape_files(struct shape_files *f)
{
    json_free(&f->hashes);
    json_free(&f->texts);
    json_free(&f->random);
}

static void check_shape(const struct shape_files *f, const struct tokenizer *t,
                        const json_t *hashes)
{
    const json_t *random = json_find(&f->random, "random");
    check_groups(t, json_find(&f->texts, "texts"), json_object_get(hashes, "texts"));
    check_groups(t, random, json_object_get(hashes, "random"));
    check_pairs(t, random, json_object_get(hashes, "pairs"));
}

/* As it lies there, and saved and loaded again, where no config.json says of what type a model
 * is. */
static void agrees_on_shapes(void **state)
{
    (void)state;
    struct shape_files f;
    struct zf_error err;
    const char *name;
    json_t *hashes;
    int n = 0;
    load_shape_files(&f);
    json_object_foreach(f.hashes.root, name, hashes)
    {
        if (strcmp(name, "smollm2_real") == 0)
            continue;
        char copy[] = "/tmp/zf-test-shape-XXXXXX";
        char *directory = zf_format("%s/%s", SHAPES, name);
        struct tokenizer *t = load(directory);
        print_message("%s\n", name);
        check_shape(&f, t, hashes);
        assert_non_null(mkdtemp(copy));
        assert_works(tokenizer_save(t, copy, -1, &err), err);
        tokenizer_free(t);
        t = load(copy);
        check_shape(&f, t, hashes);
        tokenizer_free(t);
        assert_works(file_remove_directory(copy, &err), err);
        free(directory);
        n++;
    }
    assert_true(n > 12);
    free_shape_files(&f);
}

static void shapes_agree_on_glue(void **state)
{
    (void)state;
    need_shared("glue/SST-2/train.tsv");
    struct shape_files f;
    const char *name;
    json_t *hashes;
    int n = 0;
    load_shape_files(&f);
    json_object_foreach(f.hashes.root, name, hashes)
    {
        const json_t *glue = json_object_get(hashes, "glue");
        if (strcmp(name, "smollm2_real") == 0 || json_object_size(glue) == 0)
            continue;
        char *directory = zf_format("%s/%s", SHAPES, name);
        struct tokenizer *t = load(directory);
        assert_int_equal(json_object_size(glue), 17);
        check_glue(t, glue);
        tokenizer_free(t);
        free(directory);
        n++;
    }
    assert_true(n > 4);
    free_shape_files(&f);
}

/* The tokenizer of a model that people have: ZF_SMOLLM2 names its folder, which make_smollm2.py of
 * ../shared/tools makes; default: ../shared/smollm2. */
static void agrees_on_smollm2(void **state)
{
    (void)state;
    const char *folder = getenv("ZF_SMOLLM2");
    if (!folder)
        need_shared("smollm2/tokenizer.json");
    need_shared("glue/SST-2/train.tsv");
    struct shape_files f;
    load_shape_files(&f);
    struct tokenizer *t = load(folder ? folder : ZF_SHARED_DIR "/smollm2");
    const json_t *hashes = json_find(&f.hashes, "smollm2_real");
    assert_int_equal(tokenizer_vocab_size(t), 49152);
    check_shape(&f, t, hashes);
    check_glue(t, json_object_get(hashes, "glue"));
    tokenizer_free(t);
    free_shape_files(&f);
}

static const struct {
    const char *text;
    bool after; /* a character comes behind it */
} around_a_character[] = {{"a", true},
                          {"1", true},
                          {"!", true},
                          {" ", true},
                          {"\xCC\xA3", true},
                          {"\xCC\x81", true},
                          {"\xCC\x95", true},
                          {"\xCC\xB4"
                           "A",
                           true},
                          {"\xCC\x87\xEA\xB0\x80", true},
                          {"\xE1\x84\x80", true},
                          {"\n", false}};

/* Writes a text of the 16 characters from `code` on as make_tokenizer_shapes.py does. */
static size_t text_of_characters(uint32_t code, char *text)
{
    size_t n = 0;
    for (uint32_t c = code; c < code + 16; c++)
        for (size_t i = 0; i < sizeof around_a_character / sizeof *around_a_character; i++) {
            size_t length = strlen(around_a_character[i].text);
            memcpy(text + n, around_a_character[i].text, length);
            n += length;
            if (around_a_character[i].after)
                n += utf8_encode(c, text + n);
        }
    return n;
}

/* A folder with the BPE of edges behind this normalizer and pre-tokenizer. */
static struct tokenizer *load_edges(const json_t *row)
{
    char directory[] = "/tmp/zf-test-edges-XXXXXX";
    struct zf_error err;
    struct json_file vocab;
    char *merges, *line, *rest;
    size_t n;
    assert_works(json_load(&vocab, FIXTURES "/edges/vocab.json", &err), err);
    assert_works(file_read(FIXTURES "/edges/merges.txt", &merges, &n, &err), err);
    json_t *list = json_array();
    for (rest = merges; (line = strtok_r(rest, "\n", &rest));)
        json_array_append_new(list, json_string(line));
    json_t *document =
        json_pack("{s:O, s:O, s:{s:s, s:O, s:o}}", "normalizer", json_object_get(row, "normalizer"),
                  "pre_tokenizer", json_object_get(row, "pre_tokenizer"), "model", "type", "BPE",
                  "vocab", vocab.root, "merges", list);
    assert_non_null(document);
    assert_non_null(mkdtemp(directory));
    char *path = zf_format("%s/tokenizer.json", directory);
    assert_works(json_write(path, document, 17, &err), err);
    struct tokenizer *t = load(directory);
    assert_works(file_remove_directory(directory, &err), err);
    json_decref(document);
    json_free(&vocab);
    free(merges);
    free(path);
    return t;
}

static void check_every_character(const struct tokenizer *t, const json_t *ranges,
                                  const json_t *hashes, const char *name)
{
    size_t i;
    json_t *range;
    char text[16 * 64], what[64];
    json_array_foreach(ranges, i, range)
    {
        uint32_t first = (uint32_t)json_integer_value(json_array_get(range, 0));
        uint32_t last = (uint32_t)json_integer_value(json_array_get(range, 1));
        struct hash h = {0};
        for (uint32_t code = first; code < last; code += 16) {
            if (code == 0 || (code >= 0xD800 && code < 0xE000))
                continue;
            hash_text(&h, t, text, text_of_characters(code, text));
            hash_id(&h, END_OF_LINE);
        }
        snprintf(what, sizeof what, "%s from U+%04X", name, (unsigned)first);
        check_crc(h, json_array_get(hashes, i), what);
    }
    assert_true(i > 30);
}

/* The stages that ask of what kind a character is, and Unicode's form C. */
static void stages_agree_on_every_character(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    const char *name;
    json_t *row;
    assert_works(json_load(&f, SHAPES "/edges.json", &err), err);
    json_object_foreach(f.root, name, row)
    {
        if (!json_is_object(row))
            continue;
        struct tokenizer *t = load_edges(row);
        check_every_character(t, json_find(&f, "ranges"), json_object_get(row, "hashes"), name);
        tokenizer_free(t);
    }
    assert_int_equal(json_object_size(f.root), 7);
    json_free(&f);
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
        cmocka_unit_test(agrees_on_shapes),
        cmocka_unit_test(shapes_agree_on_glue),
        cmocka_unit_test(agrees_on_smollm2),
        cmocka_unit_test(stages_agree_on_every_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
