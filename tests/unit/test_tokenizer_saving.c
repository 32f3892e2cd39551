/* data/tokenizer: what is saved is read again as it was, and which types of model a folder fits. */
#include "tests/unit/tokenizer_testing.h"

#include "data/json.h"

/* Saves what lies in `from`, loads it again and finds the same ids; returns the saved folder's
 * configuration, which the caller frees. */
static void check_saving(const char *from, struct json_file *config, char **config_path)
{
    struct zf_error err;
    int before[64], after[64];
    struct tokenizer *t = load(from);
    char *target = zf_format("%s/saved/deeper", folder);
    assert_works(tokenizer_save(t, target, -1, &err), err);
    struct tokenizer *again = load(target);
    size_t n = tokenizer_encode(t, sentence, strlen(sentence), before, 64);
    assert_int_equal(tokenizer_encode(again, sentence, strlen(sentence), after, 64), n);
    assert_memory_equal(before, after, n * sizeof *before);
    assert_int_equal(tokenizer_eos(again), tokenizer_eos(t));
    assert_int_equal(tokenizer_vocab_size(again), tokenizer_vocab_size(t));
    tokenizer_free(t);
    tokenizer_free(again);
    *config_path = zf_format("%s/tokenizer_config.json", target);
    assert_works(json_load(config, *config_path, &err), err);
    free(target);
}

static void check_saved_class(const char *from, const char *expected)
{
    struct json_file config;
    char *path;
    check_saving(from, &config, &path);
    assert_string_equal(json_string_value(json_find(&config, "tokenizer_class")), expected);
    json_free(&config);
    free(path);
}

static void saves(void **state)
{
    (void)state;
    char *saved = zf_format("%s/saved/deeper", folder);
    check_saved_class(SAMPLE, "GPT2Tokenizer");
    /* A folder that was saved keeps its own configuration. */
    char *kept = zf_format("%s/saved/deeper/tokenizer_config.json", folder);
    put("saved/deeper/tokenizer_config.json",
        "{\"tokenizer_class\": \"GPT2TokenizerFast\", \"add_prefix_space\": true}");
    check_saved_class(saved, "GPT2TokenizerFast");
    /* Another kind replaces it. */
    check_saved_class(FIXTURES "/prefix", "PreTrainedTokenizerFast");
    assert_false(is_there(saved, "vocab.json"));
    assert_false(is_there(saved, "merges.txt"));
    /* A class that the type of a model has decided is written down. */
    copy(FIXTURES "/split/tokenizer.json", "tokenizer.json");
    put("tokenizer_config.json", "\xEF\xBB\xBF{\"model_max_length\": 8}");
    put("config.json", "{\"model_type\": \"gpt2\"}");
    check_saved_class(folder, "GPT2Tokenizer");
    /* So is one that config.json names, or none does. */
    put("config.json", "{\"model_type\": \"llama\", \"tokenizer_class\": \"LlamaTokenizer\"}");
    copy(SHAPES "/llama2/tokenizer.json", "tokenizer.json");
    check_saved_class(folder, "LlamaTokenizer");
    assert_int_equal(remove_file("config.json"), 0);
    check_saved_class(folder, "PreTrainedTokenizerFast");
    copy(SAMPLE "/vocab.json", "vocab.json");
    copy(SAMPLE "/merges.txt", "merges.txt");
    assert_int_equal(remove_file("tokenizer.json"), 0);
    check_saved_class(folder, "GPT2Tokenizer");
    assert_int_equal(remove_file("vocab.json"), 0);
    assert_int_equal(remove_file("merges.txt"), 0);
    assert_int_equal(remove_file("tokenizer_config.json"), 0);
    copy(FIXTURES "/spm_bpe.model", "mine.model");
    check_saved_class(folder, "BertGenerationTokenizer");
    assert_true(is_there(saved, "spiece.model"));
    assert_false(is_there(saved, "tokenizer.json"));
    free(saved);
    free(kept);
}

static bool fits_type(const char *directory, const char *model_type, struct zf_error *err)
{
    struct tokenizer *t = load(directory);
    const bool fits = tokenizer_check_type(t, directory, model_type, err);
    tokenizer_free(t);
    return fits;
}

/* In folders of which types of model Transformers gives a tokenizer's ids. */
static void fits_types_as_in_transformers(void **state)
{
    (void)state;
    static const char *const types[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3"};
    struct json_file f;
    struct zf_error err;
    const char *name;
    json_t *fitting;
    assert_works(json_load(&f, FIXTURES "/types.json", &err), err);
    json_object_foreach(f.root, name, fitting)
    {
        char *directory = zf_format("%s/%s", FIXTURES, name);
        for (size_t i = 0, next = 0; i < sizeof types / sizeof *types; i++) {
            const char *listed = json_string_value(json_array_get(fitting, next));
            const bool expected = listed && strcmp(listed, types[i]) == 0;
            if (fits_type(directory, types[i], &err) != expected)
                fail_msg("%s and a model of type %s: expected %d", name, types[i], expected);
            next += expected;
        }
        free(directory);
    }
    assert_int_equal(json_object_size(f.root), 17);
    json_free(&f);
}

static void says_what_does_not_fit(void **state)
{
    (void)state;
    struct zf_error err;
    assert_false(fits_type(SHAPES "/llama2", "qwen2", &err));
    assert_says(err, "shapes/llama2 has the pipeline of LlamaTokenizer, but with a model of type "
                     "qwen2 Transformers makes that of Qwen2Tokenizer, whatever else the folder "
                     "says (its normalizer differs), and would not read the same ids");
    assert_false(fits_type(SHAPES "/smollm2", "mistral", &err));
    assert_says(err, "makes that of tokenizer.json, whatever else the folder says (its "
                     "pre_tokenizer differs)");
    assert_false(fits_type(SAMPLE, "mistral", &err));
    assert_says(err, "(there is no tokenizer.json)");
    copy(FIXTURES "/spm_bpe.model", "tokenizer.model");
    assert_false(fits_type(folder, "qwen2", &err));
    assert_says(err, "has the pipeline of SentencePiece");
    assert_true(fits_type(folder, "qwen3", &err));
}

/* tokenizer.json of a shape, in the folder; the caller changes it and calls put_shape. */
static void load_shape(const char *path, struct json_file *f)
{
    struct zf_error err;
    assert_works(json_load(f, path, &err), err);
}

static void put_shape(struct json_file *f)
{
    struct zf_error err;
    char *path = zf_format("%s/tokenizer.json", folder);
    assert_works(json_write(path, f->root, 17, &err), err);
    json_free(f);
    free(path);
}

/* What the type's class would make, in the words of another class. */
static void fits_where_the_pipeline_is_the_same(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    put("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
    load_shape(SHAPES "/mistral/tokenizer.json", &f);
    put_shape(&f);
    assert_true(fits_type(folder, "mistral", &err));
    load_shape(SHAPES "/mistral/tokenizer.json", &f);
    json_object_set_new(json_find(&f, "model"), "ignore_merges", json_true());
    put_shape(&f);
    assert_false(fits_type(folder, "mistral", &err));
    assert_says(err, "(its model differs)");
    put("tokenizer_config.json", "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}");
    load_shape(SHAPES "/qwen2/tokenizer.json", &f);
    put_shape(&f);
    assert_true(fits_type(folder, "qwen2", &err));
    /* Of the class's own tokens one is a word to the file. */
    load_shape(SHAPES "/qwen2/tokenizer.json", &f);
    assert_int_equal(json_array_remove(json_find(&f, "added_tokens"), 0), 0);
    json_object_set_new(json_find(&f, "model.vocab"), "<|endoftext|>", json_integer(1000));
    put_shape(&f);
    assert_false(fits_type(folder, "qwen2", &err));
    assert_says(err, "(its added_tokens differs)");
}

static void saves_without_its_source(void **state)
{
    (void)state;
    struct zf_error err;
    char *source = zf_format("%s/source", folder), *target = zf_format("%s/target", folder);
    assert_works(file_make_directory(source, &err), err);
    copy(SAMPLE "/vocab.json", "source/vocab.json");
    copy(SAMPLE "/merges.txt", "source/merges.txt");
    struct tokenizer *t = load(source);
    assert_works(file_remove_directory(source, &err), err);
    assert_works(tokenizer_save(t, target, -1, &err), err);
    tokenizer_free(t);
    tokenizer_free(load(target));
    assert_works(file_make_directory(source, &err), err);
    put("source/x", "");
    t = load(target);
    char *inside_a_file = zf_format("%s/x/y", source);
    assert_false(tokenizer_save(t, inside_a_file, -1, &err));
    assert_says(err, "source/x");
    tokenizer_free(t);
    free(inside_a_file);
    free(source);
    free(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_folder(saves),
        in_folder(fits_types_as_in_transformers),
        in_folder(says_what_does_not_fit),
        in_folder(fits_where_the_pipeline_is_the_same),
        in_folder(saves_without_its_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
