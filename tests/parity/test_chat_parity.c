/* Conversations beside Transformers' apply_chat_template: texts, ids, and which ids are answers.
 * Fixtures: make_chat.py. */
#include "tests/folder.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/chat.h"
#include "data/corpus.h"
#include "data/file.h"
#include "data/json.h"

#define FIXTURES ZF_TESTS_DIR "/fixtures"

static void copy_into(const char *from, const char *name)
{
    char *to = zf_format("%s/%s", folder, name);
    copy_file(from, to);
    free(to);
}

/* The tokenizer of a shape with a template beside it. */
static struct tokenizer *load(const char *name, const char *shape)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "config.json"};
    struct zf_error err;
    for (int i = 0; i < 3; i++) {
        char *from = zf_format("%s/tokenizer/shapes/%s/%s", FIXTURES, shape, files[i]);
        copy_into(from, files[i]);
        free(from);
    }
    char *template = zf_format("%s/chat/%s.jinja", FIXTURES, name);
    copy_into(template, "chat_template.jinja");
    free(template);
    struct tokenizer *t = tokenizer_load(folder, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

static void assert_ids(const int *ids, size_t n, const json_t *expected, const char *name)
{
    if (n != json_array_size(expected))
        fail_msg("%s: %zu ids, not %zu", name, n, json_array_size(expected));
    for (size_t i = 0; i < n; i++)
        if (ids[i] != json_integer_value(json_array_get(expected, i)))
            fail_msg("%s: id %zu is %d, not %lld", name, i, ids[i],
                     (long long)json_integer_value(json_array_get(expected, i)));
}

/* As a row of a file: whole, ids and answers. */
static void check_corpus(const struct tokenizer *t, const char *name, const json_t *one)
{
    struct dataset d;
    struct corpus_report report;
    struct zf_error err;
    char *path = zf_format("%s/rows.jsonl", folder);
    json_t *row = json_pack("{sO}", "messages", json_object_get(one, "messages"));
    char *text = json_dumps(row, JSON_COMPACT);
    const json_t *learned = json_object_get(one, "learned");
    assert_works(file_write(path, text, strlen(text), &err), err);
    assert_works(dataset_from_corpus(&d, path, t, folder, 1000, 1, &report, &err), err);
    assert_true(report.has_answers && report.n_cut == 0);
    assert_int_equal(d.n_sequences, 1);
    assert_ids(d.tokens, d.start[1], json_object_get(one, "ids"), name);
    for (size_t i = 0; i < d.start[1]; i++)
        if (d.learned[i] != json_integer_value(json_array_get(learned, i)))
            fail_msg("%s: whether id %zu is an answer", name, i);
    dataset_free(&d);
    json_decref(row);
    free(text);
    free(path);
}

static void check_text(const struct tokenizer *t, const char *name, const json_t *messages,
                       size_t n, bool to_answer, const json_t *expected)
{
    struct chat_template c;
    struct chat_turn turns[8];
    struct chat_text text = {0};
    struct zf_error err;
    int ids[1000];
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        turns[i] =
            (struct chat_turn){json_string_value(json_object_get(message, "role")),
                               json_string_value(json_object_get(message, "content")), false};
    }
    assert_works(chat_template_read(&c, t, folder, &err), err);
    assert_works(chat_render(&text, &c, turns, (int)n, to_answer, &err), err);
    if (strcmp(text.text, json_string_value(json_object_get(expected, "text"))) != 0)
        fail_msg("%s: the text is \"%s\"", name, text.text);
    size_t n_ids = tokenizer_encode(t, text.text, text.n, ids, 1000);
    assert_ids(ids, n_ids, json_object_get(expected, "ids"), name);
    chat_text_free(&text);
    chat_template_free(&c);
}

static void conversations_are_transformers(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    const char *name;
    json_t *group, *one;
    size_t i, n_groups = 0;
    assert_works(json_load(&f, FIXTURES "/chat/cases.json", &err), err);
    json_object_foreach(f.root, name, group)
    {
        struct tokenizer *t = load(name, json_string_value(json_object_get(group, "shape")));
        json_array_foreach(json_object_get(group, "cases"), i, one)
        {
            const json_t *messages = json_object_get(one, "messages");
            size_t n = json_array_size(messages);
            check_text(t, name, messages, n, false, one);
            check_text(t, name, messages, n - 1, true, json_object_get(one, "to_answer"));
            check_corpus(t, name, one);
        }
        assert_true(i >= 2);
        n_groups++;
        tokenizer_free(t);
    }
    assert_int_equal(n_groups, 8);
    json_free(&f);
}

/* In tokenizer_config.json, alone or among others. */
static void a_template_may_stand_in_the_configuration(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"chat_template\": \"{{ '<|im_start|>' + message['role'] + '<|im_end|>' }}\"}",
        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}, {\"name\": "
        "\"default\", \"template\": \"{{ '<|im_start|>' + message['role'] + '<|im_end|>' }}\"}]}"};
    struct zf_error err;
    tokenizer_free(load("chatml", "smollm2"));
    char *template = zf_format("%s/chat_template.jinja", folder);
    char *config = zf_format("%s/tokenizer_config.json", folder);
    assert_int_equal(unlink(template), 0);
    for (int i = 0; i < 2; i++) {
        struct chat_template c;
        assert_works(file_write(config, configs[i], strlen(configs[i]), &err), err);
        struct tokenizer *t = tokenizer_load(folder, &err);
        assert_non_null(t);
        assert_works(chat_template_read(&c, t, folder, &err), err);
        assert_int_equal(c.family, CHAT_CHATML);
        assert_null(c.system);
        chat_template_free(&c);
        tokenizer_free(t);
    }
    free(template);
    free(config);
}

static void refuses_other_templates(void **state)
{
    (void)state;
    static const char *const others[] = {
        "{{ '<start_of_turn>' + message['role'] }}",
        "{{ '<|im_start|>' + '<think>' + '<|im_end|>' }}",
        "{{ bos_token + '[INST] <<SYS>>' + ' [/INST]' + message['content'] + eos_token }}",
    };
    struct zf_error err;
    char *path = zf_format("%s/chat_template.jinja", folder);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct chat_template c;
        tokenizer_free(load("chatml", "smollm2"));
        assert_works(file_write(path, others[i], strlen(others[i]), &err), err);
        struct tokenizer *t = tokenizer_load(folder, &err);
        assert_non_null(t);
        assert_false(chat_template_read(&c, t, folder, &err));
        assert_says(err, "its chat template is none of");
        tokenizer_free(t);
    }
    free(path);
}

static void refuses_conversations(void **state)
{
    (void)state;
    static const struct {
        const char *template, *shape;
        struct chat_turn turns[3];
        int n;
        const char *words;
    } bad[] = {
        {"chatml", "smollm2", {{"tool", "x", false}}, 1, "message 1 is of role \"tool\""},
        {"chatml",
         "smollm2",
         {{"user", "x", false}, {"system", "y", false}},
         2,
         "message 2 is the system's"},
        {"mistral0.1", "mistral", {{"system", "x", false}}, 1, "takes no system message"},
        {"mistral0.2",
         "mistral",
         {{"user", "x", false}, {"user", "y", false}},
         2,
         "message 2 is of role \"user\", but user and assistant take turns"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct chat_template c;
        struct chat_text text = {0};
        struct zf_error err;
        struct tokenizer *t = load(bad[i].template, bad[i].shape);
        assert_works(chat_template_read(&c, t, folder, &err), err);
        assert_false(chat_render(&text, &c, bad[i].turns, bad[i].n, false, &err));
        assert_says(err, bad[i].words);
        chat_text_free(&text);
        chat_template_free(&c);
        tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_are_transformers),
        cmocka_unit_test(a_template_may_stand_in_the_configuration),
        cmocka_unit_test(refuses_other_templates),
        cmocka_unit_test(refuses_conversations),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
