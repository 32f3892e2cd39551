/* cmd/config: what becomes of every argument of Transformers and every key of DeepSpeed, and that
 * the pages which say so are right. */
#include "tests/unit/config_testing.h"

#include "cmd/config/table.h"

/* A row of arguments.tsv or deepspeed_keys.tsv, which fixtures/make_arguments.py and
 * make_deepspeed_keys.py make: an argument of Transformers, or a key path of DeepSpeed's; whose it
 * is, its default, another value, what that cannot be without (or "-"), and what becomes of it.
 * Values are JSON. */
struct argument {
    char *name, *of, *standard, *value, *with, *verdict;
    bool is_deepspeed;
};

static const char *const complete[4][2] = {
    {"task_name", "sst2"}, {"model_name_or_path", "m"}, {"data_dir", "d"}, {"output_dir", "o"}};

static bool is_complete_key(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(complete[i][0], name) == 0)
            return true;
    return false;
}

static json_t *json_of(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!value)
        fail_msg("%s is no JSON", text);
    return value;
}

/* A run that lacks nothing, with the argument at this value. A key of ZenFlow's has what ZenFlow
 * cannot be without in any case. */
static json_t *arguments_with(const struct argument *a, const char *value)
{
    json_t *all = json_object(), *with = strcmp(a->with, "-") ? json_of(a->with) : json_object(),
           *v;
    const char *name;
    for (int i = 0; i < 4; i++)
        json_object_set_new(all, complete[i][0], json_string(complete[i][1]));
    json_object_foreach(with, name, v)
    {
        if (value != a->standard || (a->is_deepspeed && !strstr(name, ".zenflow.")))
            json_object_set(all, name, v);
    }
    if (strcmp(value, "null") != 0)
        json_object_set_new(all, a->name, json_of(value));
    json_decref(with);
    return all;
}

/* Puts a value into nested objects by its key path. */
static void put_at(json_t *root, const char *key_path, json_t *value)
{
    const char *dot = strchr(key_path, '.');
    if (!dot) {
        json_object_set(root, key_path, value);
        return;
    }
    char *name = zf_format("%.*s", (int)(dot - key_path), key_path);
    if (!json_object_get(root, name))
        json_object_set_new(root, name, json_object());
    put_at(json_object_get(root, name), dot + 1, value);
    free(name);
}

/* Parses them as a file. */
static bool parse_as_file(json_t *all, bool is_deepspeed)
{
    json_t *root = json_object(), *value;
    const char *name;
    json_object_foreach(all, name, value)
    {
        const bool is_argument = !is_deepspeed || is_complete_key(name);
        char *at = zf_format("%s%s", is_argument ? CONFIG_ARGUMENTS : "", name);
        put_at(root, at, value);
        free(at);
    }
    char *text = json_dumps(root, 0);
    bool ok = parse_text(text, "", 1);
    free(text);
    json_decref(root);
    return ok;
}

/* Parses them as options. */
static bool parse_as_options(json_t *all)
{
    char *argv[64] = {zf_strdup("zf-train")};
    const char *name;
    json_t *value;
    int argc = 1;
    json_object_foreach(all, name, value)
    {
        if (json_is_null(value))
            continue;
        argv[argc++] = zf_format("--%s", name);
        argv[argc++] = json_is_string(value) ? zf_strdup(json_string_value(value))
                                             : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    }
    bool ok = parse_words(argc, argv, 1);
    while (argc-- > 0)
        free(argv[argc]);
    return ok;
}

/* That what was parsed has done with the value what the row says. */
static void check_verdict(const struct argument *a, const char *value, bool ok)
{
    const struct config_key *key =
        a->is_deepspeed ? config_find_path(a->name) : config_find_option(a->name);
    const char *verdict = value == a->standard ? "done" : a->verdict;
    const bool warned = strstr(warnings, a->name) && strstr(warnings, "has no meaning here: ");
    if (ok == !strcmp(verdict, "refused") || warned == (strcmp(verdict, "idle") != 0 || !ok))
        fail_msg("%s %s: %s, but it is %s", a->name, value, ok ? warnings : err.text, verdict);
    if (!ok && !strstr(err.text, a->name) && strcmp(a->name, "deepspeed") != 0)
        fail_msg("%s %s: %s", a->name, value, err.text);
    if (!ok || !key || value == a->standard)
        return;
    json_t *given = json_of(value), *taken = config_value(&c, key);
    const bool numbers = json_is_number(given) && json_is_number(taken);
    if (numbers ? json_number_value(given) != json_number_value(taken) : !json_equal(given, taken))
        fail_msg("%s %s is not taken", a->name, value);
    json_decref(given);
    json_decref(taken);
}

/* What the program says to the value, for people. */
static void describe_argument(FILE *page, const struct argument *a)
{
    static const char idle[] = "has no meaning here: ";
    const char *note = strstr(warnings, idle), *why = err.text;
    if (strncmp(why, path, strlen(path)) == 0) /* without the place in a file */
        why = strchr(why + strlen(path), ' ') + 1;
    fprintf(page, "| `%s` | `%s` | `%s` | ", a->name, a->standard, a->value);
    if (strcmp(a->verdict, "refused") == 0)
        fprintf(page, "refused: %s |\n", why);
    else if (strcmp(a->verdict, "idle") == 0)
        fprintf(page, "no bearing: %.*s |\n", (int)strcspn(note + strlen(idle), "\n"),
                note + strlen(idle));
    else
        fprintf(page, "%s |\n", a->verdict);
}

/* Whether an option of that name is this argument: it has a value, and where a key of DeepSpeed's
 * is called as an argument of Transformers', the option is that. */
static bool is_option(const struct argument *a, const char *value)
{
    char *argument = zf_format(CONFIG_ARGUMENTS "%s", a->name);
    struct config_foreign foreign;
    const bool other = config_find_path(argument) || config_find_foreign(argument, &foreign);
    free(argument);
    return strcmp(value, "\"\"") != 0 && !(a->is_deepspeed && other);
}

static void check_argument(FILE *page, const struct argument *a)
{
    const char *values[] = {a->standard, a->value};
    for (int i = 0; i < 2; i++) {
        json_t *all = arguments_with(a, values[i]);
        for (int form = 0; form < 2; form++) {
            const bool as_file = (form == 0) != a->is_deepspeed; /* how it is called there, last */
            if (!as_file && !is_option(a, values[i]))
                continue;
            check_verdict(a, values[i],
                          as_file ? parse_as_file(all, a->is_deepspeed) : parse_as_options(all));
            config_free(&c);
        }
        json_decref(all);
    }
    describe_argument(page, a);
}

/* The arguments of one source: their defaults are accepted, their other values done or refused, in
 * a file and as options alike; none is passed over but with a warning, and why it may be. */
static int check_arguments_of(FILE *page, const char *of, const char *text, bool is_deepspeed)
{
    char *copy = zf_strdup(text), *rest = copy, *line;
    int rows = 0;
    fprintf(page, "\n## %s\n\n| name | default | other value | what becomes of it |\n", of);
    fprintf(page, "| --- | --- | --- | --- |\n");
    while ((line = strsep(&rest, "\n")) && *line) {
        char *fields[6] = {NULL};
        for (int i = 0; i < 6; i++)
            fields[i] = strsep(&line, "\t");
        const struct argument a = {fields[0], fields[1], fields[2],   fields[3],
                                   fields[4], fields[5], is_deepspeed};
        if (!a.verdict || *a.name == '#' || strcmp(a.of, of) != 0)
            continue;
        check_argument(page, &a);
        rows++;
    }
    free(copy);
    return rows;
}

/* A page of this room says of every row of a table what the program says; ZF_WRITE=1 writes it. */
static void check_page(const char *name, const char *table, const char *head,
                       const char *const *sources, bool is_deepspeed, int least)
{
    char *file = zf_format(ZF_TESTS_DIR "/../cmd/config/%s", name);
    char *rows_file = zf_format(FIXTURES "%s", table);
    char *text, *page, *written;
    size_t n, bytes;
    int rows = 0;
    FILE *out = open_memstream(&page, &bytes);
    fprintf(out,
            "%s Defaults are accepted. `test_arguments` holds the program to\nevery row, and "
            "makes this page of what it says: `ZF_WRITE=1 build/tests/test_arguments`.\n",
            head);
    assert_works(file_read(rows_file, &text, &n, &err), err);
    for (; *sources; sources++)
        rows += check_arguments_of(out, *sources, text, is_deepspeed);
    assert_in_range(rows, least, 1000);
    assert_int_equal(rows + 1, count(text, "\n")); /* all but the heading */
    fclose(out);
    if (getenv("ZF_WRITE"))
        assert_works(file_write(file, page, bytes, &err), err);
    assert_works(file_read(file, &written, &n, &err), err);
    if (strcmp(written, page) != 0)
        fail_msg("%s is not what the program does: ZF_WRITE=1 makes it anew", name);
    free(written);
    free(page);
    free(text);
    free(rows_file);
    free(file);
}

static void takes_every_argument_of_transformers(void **state)
{
    (void)state;
    check_page(
        "ARGUMENTS.md", "arguments.tsv",
        "# Transformers' arguments\n\nWhat zf-train does with each argument of Transformers "
        "5.23's `TrainingArguments`, of `run_glue.py` and of\n`EarlyStoppingCallback`, as an "
        "option and in a file's `training_arguments`.",
        (const char *const[]){"TrainingArguments", "run_glue.py", "EarlyStoppingCallback",
                              "earlier versions", NULL},
        false, 200);
}

static void takes_every_key_of_deepspeed(void **state)
{
    (void)state;
    check_page(
        "DEEPSPEED.md", "deepspeed_keys.tsv",
        "# DeepSpeed's keys\n\nWhat zf-train does with each key of DeepSpeed 0.19's "
        "configuration, in a file and as an option, such as\n`--zero_optimization.stage 2`. A "
        "block that is one row stands for all in it.",
        (const char *const[]){"DeepSpeed 0.19.8", "documentation", NULL}, true, 140);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_every_argument_of_transformers),
        cmocka_unit_test(takes_every_key_of_deepspeed),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
