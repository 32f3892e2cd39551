/* data/table, data/own: the four formats, the columns that are taken for text and label, labels in
 * their order, and every fault. */
#include "tests/folder.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/own.h"

static char path[sizeof folder + 32];

/* Writes FOLDER/name, which `path` is then. */
static void write_as(const char *name, const char *text)
{
    struct zf_error err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_works(file_write(path, text, strlen(text), &err), err);
}

static struct table read_as(const char *name, const char *text)
{
    struct table t;
    struct zf_error err;
    write_as(name, text);
    assert_works(table_read(&t, path, &err), err);
    return t;
}

static const char *cell(const struct table *t, int row, int column)
{
    return t->cells[row * t->n_columns + column];
}

static void assert_refused(const char *name, const char *text, const char *words)
{
    struct table t;
    struct zf_error err;
    write_as(name, text);
    if (table_read(&t, path, &err))
        fail_msg("\"%s\" was read", text);
    assert_says(err, path);
    assert_says(err, words);
    assert_null(t.cells);
}

static void reads_csv(void **state)
{
    (void)state;
    struct table t = read_as("a.csv", "\xEF\xBB\xBFtext,label\r\n"
                                      "plain, spaced \r\n"
                                      "\r\n"
                                      "\"a, \"\"quoted\"\"\r\n\r\nfield\",\"\"\n"
                                      "last,\xC3\xA9");
    assert_int_equal(t.n_columns, 2);
    assert_int_equal(t.n_rows, 3);
    assert_string_equal(t.columns[0], "text");
    assert_string_equal(cell(&t, 0, 1), " spaced ");
    assert_string_equal(cell(&t, 1, 0), "a, \"quoted\"\r\n\r\nfield");
    assert_string_equal(cell(&t, 1, 1), "");
    assert_string_equal(cell(&t, 2, 1), "\xC3\xA9");
    const int lines[] = {2, 4, 7};
    assert_memory_equal(t.line, lines, sizeof lines);
    table_free(&t);
}

static void reads_tsv(void **state)
{
    (void)state;
    struct table t = read_as("a.TSV", "text\tlabel\nsaid \"so\tno\n\"x\"\tyes\n");
    assert_int_equal(t.n_rows, 2);
    assert_string_equal(cell(&t, 0, 0), "said \"so");
    assert_string_equal(cell(&t, 1, 0), "\"x\"");
    assert_int_equal(t.line[1], 3);
    table_free(&t);
}

static void reads_json(void **state)
{
    (void)state;
    static const char rows[] = "{\"text\": \"a\\n\\u00e9\", \"label\": 3, \"score\": 3.8}";
    static const char more[] = "{\"score\": [1], \"label\": null, \"text\": true}";
    static const char *const shapes[][2] = {
        {"a.jsonl", "%s\n\n%s\n"},        {"a.ndjson", "%s\r\n\r\n%s"},
        {"a.json", "%s\n\n%s\n"},         {"a.json", "[%s,\n\n%s]\n"},
        {"a.json", " [ %s , \n\n%s\n] "}, {"a.json", "{\"version\": 1, \"data\": [%s,\n\n%s]}"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char text[256];
        snprintf(text, sizeof text, shapes[i][1], rows, more);
        struct table t = read_as(shapes[i][0], text);
        assert_int_equal(t.n_columns, 3);
        assert_int_equal(t.n_rows, 2);
        assert_string_equal(t.columns[2], "score");
        assert_string_equal(cell(&t, 0, 0), "a\n\xC3\xA9");
        assert_string_equal(cell(&t, 0, 1), "3");
        assert_string_equal(cell(&t, 0, 2), "3.8");
        assert_string_equal(cell(&t, 1, 0), "true");
        assert_null(cell(&t, 1, 1));
        assert_ptr_equal(cell(&t, 1, 2), TABLE_NESTED);
        assert_int_equal(t.line[0], 1);
        assert_int_equal(t.line[1], 3);
        table_free(&t);
    }
}

/* Columns are those of all rows. */
static void widens_json(void **state)
{
    (void)state;
    struct table t = read_as("a.jsonl", "{\"a\": 1}\n{\"b\": 2}\n{\"a\": 3, \"c\": 4, \"b\": 5}\n");
    static const char *const cells[3][3] = {{"1"}, {NULL, "2"}, {"3", "5", "4"}};
    assert_int_equal(t.n_columns, 3);
    assert_int_equal(t.n_rows, 3);
    for (int row = 0; row < 3; row++)
        for (int column = 0; column < 3; column++) {
            const char *expected = cells[row][column], *found = cell(&t, row, column);
            assert_true(expected ? found && strcmp(found, expected) == 0 : !found);
        }
    table_free(&t);
}

/* A map from names to values is no table. */
static void refuses_many_keys(void **state)
{
    (void)state;
    char *text = zf_malloc(32 * 1001), *end = text;
    for (int i = 0; i <= 1000; i++)
        end += sprintf(end, "{\"key%d\": 1}\n", i);
    assert_refused("a.jsonl", text, ".jsonl:1001: \"key1000\" is one key more than the 1000 ");
    free(text);
}

/* Empty lines at a file's end are no rows, and an empty text in quotes is one. */
static void reads_one_column(void **state)
{
    (void)state;
    struct table t = read_as("a.csv", "text\na\n\"\"\n\"b\n\nc\"\nd\n\n\n");
    assert_int_equal(t.n_rows, 4);
    assert_string_equal(cell(&t, 1, 0), "");
    table_free(&t);
    t = read_as("a.tsv", "text\r\na\r\nb\r\n\r\n");
    assert_int_equal(t.n_rows, 2);
    table_free(&t);
}

static void refuses_tables(void **state)
{
    (void)state;
    assert_refused("a.csv", "", "no examples");
    assert_refused("a.csv", "text,label\n", "no examples");
    assert_refused("a.csv", "text,label\na,b\nc\n", ".csv:3: the row has 1 column, but the header");
    assert_refused("a.csv", "text,label\n\"a\n\nb\",c,d\n", ".csv:2: the row has 3 columns");
    assert_refused("a.csv", "text,label\na,b\nc \"d\" e,f\n", ".csv:3: a quote stands within");
    assert_refused("a.csv", "text,label\na,b\n\n\"c,d\n\n", ".csv:4: a quoted field of this row");
    assert_refused("a.csv", "text;label\na;b\n", "commas separate columns");
    assert_refused("a.csv", "text,label\na,b\n\xff,d\n", ".csv:3: byte 0xff is not UTF-8");
    assert_refused("a.tsv", "text\tlabel\na\n", ".tsv:2: the row has 1 column");
    assert_refused("a.txt", "text\n", "plain text is for task_name lm");
    assert_refused("a.jsonl", "{\"a\": 1}\n{\"a\": }\n", ".jsonl:2: not valid JSON");
    assert_refused("a.jsonl", "{\"a\": 1}\n[1]\n", ".jsonl:2: this is not a JSON object");
    assert_refused("a.jsonl", "{\"a\":\n1}\n", ".jsonl:1: not valid JSON");
    assert_refused("a.json", "[{\"a\": 1} {\"a\": 1}]", ".json:1: found");
    assert_refused("a.json", "[{\"a\": 1},\n{\"a\"]", ".json:2: not valid JSON");
    assert_refused("a.json", "[", ".json:1: ");
    assert_refused("a.json", "[]", "no examples");
    assert_refused("a.json", "[{\"a\": 1}]\n\n[{\"a\": 2}]",
                   ".json:3: found \"[{\"a\": 2}]\" behind");
    assert_refused("a.json", "[{\"a\": 1}] x", ".json:1: found \"x\" behind the array");
    assert_refused("a.jsonl", "{}\n{\"a\": 1}\n", ".jsonl:1: the object has no keys");
    assert_refused("a.json", "[{\"a\": 1},\n{}]", ".json:2: the object has no keys");
    assert_refused("a.csv", "text\na\n\nb\n", ".csv:3: the line is empty, but the file has one");
    assert_refused("a.tsv", "text\n\na\n", ".tsv:2: the line is empty, but the file has one");
    assert_refused("a.json", "{\"a\": 1}\n7", ".json:2: this is not a JSON object");
    struct table t;
    struct zf_error err;
    assert_false(table_read(&t, "/tmp/zf-nowhere.csv", &err));
    assert_says(err, "/tmp/zf-nowhere.csv");
}

/* header: of a CSV file */
static void assert_columns(const char *header, struct own_columns given, const char *text,
                           const char *pair)
{
    char file[256], row[64] = "x";
    for (const char *p = header; *p; p++)
        if (*p == ',')
            strcat(row, ",x");
    snprintf(file, sizeof file, "%s\n%s\n", header, row);
    struct table t = read_as("a.csv", file);
    struct zf_error err;
    assert_works(own_find_columns(&given, &t, true, &err), err);
    assert_string_equal(given.text, text);
    assert_int_equal(given.pair != NULL, pair != NULL);
    if (pair)
        assert_string_equal(given.pair, pair);
    table_free(&t);
}

static void guesses_columns_as_run_glue(void **state)
{
    (void)state;
    const struct own_columns none = {0}, category = {.label = "category"};
    assert_columns("text,label", none, "text", NULL);
    assert_columns("label,text", none, "text", NULL);
    assert_columns("text,category", category, "text", NULL);
    assert_columns("premise,hypothesis,label", none, "premise", "hypothesis");
    assert_columns("label,premise,idx,hypothesis,x", none, "premise", "hypothesis");
    assert_columns("id,sentence2,sentence1,label", none, "sentence1", "sentence2");
    assert_columns(",text,label,", none, "text", NULL);
    assert_columns("id,source,sentence,label", none, "sentence", NULL);
    assert_columns("premise,hypothesis,label", (struct own_columns){.text = "hypothesis"},
                   "hypothesis", NULL);
    assert_columns("a,b,label", (struct own_columns){.text = "b", .pair = "a"}, "b", "a");
    /* With a second text alone, the first is another. */
    const struct own_columns a = {.pair = "a"}, first = {.pair = "sentence1"};
    assert_columns("a,b,label", a, "b", "a");
    assert_columns("b,a,label", a, "b", "a");
    assert_columns("a,sentence,label", a, "sentence", "a");
    assert_columns("sentence,b,label", (struct own_columns){.pair = "sentence"}, "b", "sentence");
    assert_columns("sentence1,sentence2,label", first, "sentence2", "sentence1");
    assert_columns("a,sentence1,sentence2,label", a, "sentence1", "a");
}

static void refuses_columns(void **state)
{
    (void)state;
    struct zf_error err;
    struct table t = read_as("a.csv", "text,category\na,b\n");
    struct own_columns c = {0};
    assert_false(own_find_columns(&c, &t, true, &err));
    assert_says(err, "a.csv: there is no column \"label\" (label_column); its columns are: text, "
                     "category");
    c = (struct own_columns){.text = "txt", .label = "category"};
    assert_false(own_find_columns(&c, &t, true, &err));
    assert_says(err, "no column \"txt\" (text_column)");
    c = (struct own_columns){.text = "text", .pair = "other"};
    assert_false(own_find_columns(&c, &t, false, &err));
    assert_says(err, "no column \"other\" (text_pair_column)");
    c = (struct own_columns){0}; /* the second column may be the label */
    assert_false(own_find_columns(&c, &t, false, &err));
    assert_says(err, "without a column \"label\" it is not clear");
    c = (struct own_columns){.pair = "text", .label = "category"};
    assert_false(own_find_columns(&c, &t, true, &err));
    assert_says(err, "there is no column of text beside the label and text_pair_column; its");
    c = (struct own_columns){.text = "text", .pair = "text", .label = "category"};
    assert_false(own_find_columns(&c, &t, true, &err));
    assert_says(err, "\"text\" cannot be text_column and text_pair_column at once");
    table_free(&t);
    t = read_as("a.csv", "text,a,b\nx,y,z\n");
    c = (struct own_columns){.pair = "text"}; /* a or b may be the label */
    assert_false(own_find_columns(&c, &t, false, &err));
    assert_says(err, "without a column \"label\" it is not clear");
    table_free(&t);
    t = read_as("a.csv", "id,label\na,b\n");
    c = (struct own_columns){0};
    assert_false(own_find_columns(&c, &t, true, &err));
    assert_says(err, "no column of text");
    c = (struct own_columns){.text = "label"};
    assert_false(own_find_columns(&c, &t, true, &err));
    assert_says(err, "column \"label\" cannot be text and label at once");
    table_free(&t);
    t = read_as("a.csv", "text,label,label\na,b,c\n");
    c = (struct own_columns){0};
    assert_false(own_find_columns(&c, &t, true, &err));
    assert_says(err, "a.csv: 2 columns are called \"label\" (label_column)");
    table_free(&t);
}

/* labels: of a column, each once, with commas between */
static void assert_labels(const char *rows, const char *expected)
{
    char file[256], all[256] = "";
    struct own_labels labels = {0};
    struct zf_error err;
    int row;
    snprintf(file, sizeof file, "label,x\n%s", rows);
    struct table t = read_as("a.csv", file);
    assert_works(own_labels_add(&labels, &t, "label", &row, &err), err);
    assert_int_equal(row, 0);
    assert_works(own_labels_add(&labels, &t, "label", &row, &err), err);
    assert_int_equal(row, -1);
    for (int i = 0; i < labels.n; i++)
        strcat(strcat(all, i ? "," : ""), labels.names[i]);
    assert_string_equal(all, expected);
    own_labels_free(&labels);
    table_free(&t);
}

static void sorts_labels(void **state)
{
    (void)state;
    assert_labels("spam,1\nham,1\nspam,1\nHam,1\n", "Ham,ham,spam");
    assert_labels("10,1\n2,1\n-1,1\n2,1\n", "-1,2,10");
    assert_labels("10,1\n2,1\nx,1\n", "10,2,x");
}

static void makes_examples(void **state)
{
    (void)state;
    struct zf_error err;
    struct glue_data data;
    char *names[] = {"spam", "ham"}; /* a model's order */
    const struct own_labels labels = {2, names};
    const struct own_columns c = {"a", "b", "label"};
    struct table t = read_as("a.csv", "label,b,a\nham,two,one\nspam,,three\n");
    assert_works(own_examples(&data, &t, &c, &labels, &err), err);
    table_free(&t);
    assert_int_equal(data.n_examples, 2);
    assert_string_equal(data.examples[0].sentence[0], "one");
    assert_string_equal(data.examples[0].sentence[1], "two");
    assert_string_equal(data.examples[1].sentence[1], "");
    assert_true(data.examples[0].label == 1 && data.examples[1].label == 0);
    assert_int_equal(data.examples[1].index, 1);
    glue_free(&data);
}

static void refuses_examples(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text, *words;
        bool scores;
    } bad[] = {
        {"a.csv", "text,label\na,ham\nb,eggs\n", "a.csv:3: the label is \"eggs\", which is none",
         false},
        {"a.csv", "text,label\na,\n", "a.csv:2: the label is empty", false},
        {"a.csv", "text,label\na,\"h\nam\"\n", "a.csv:2: the label has a tab or a line break",
         false},
        {"a.jsonl", "{\"text\": \"a\", \"label\": \"ham\"}\n{\"label\": \"ham\"}\n",
         "a.jsonl:2: text is absent or null", false},
        {"a.jsonl", "{\"text\": [\"a\"], \"label\": \"ham\"}\n", "a.jsonl:1: text is a list",
         false},
        {"a.jsonl", "{\"text\": \"a\", \"label\": [1]}\n", "a.jsonl:1: label is a list", false},
        {"a.csv", "text,label\na,1.5\nb,much\n", "a.csv:3: the score is \"much\"", true},
        {"a.csv", "text,label\na,nan\n", "a.csv:2: the score is \"nan\"", true},
        {"a.csv", "text,label\na,1e99\n", "a.csv:2: the score is \"1e99\"", true},
    };
    char *names[] = {"ham", "spam"};
    const struct own_labels labels = {2, names};
    const struct own_columns c = {"text", NULL, "label"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct zf_error err;
        struct glue_data data;
        struct table t = read_as(bad[i].file, bad[i].text);
        assert_false(own_examples(&data, &t, &c, bad[i].scores ? NULL : &labels, &err));
        assert_says(err, bad[i].words);
        table_free(&t);
    }
}

static void tells_scores_from_labels(void **state)
{
    (void)state;
    static const struct {
        const char *rows;
        bool scores;
    } cases[] = {{"1\n0\n5\n", false}, {"1\n0.5\n", true}, {"1e3\n2\n", true},
                 {"1\nx\n", false},    {"-1.0\n", true},   {"nan\n2\n", false}};
    static const char *const mixed[] = {"0.5\nx\n", "0.5\nnan\n", "0.5\n1e99\n"};
    struct zf_error err;
    bool scores;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[64];
        snprintf(file, sizeof file, "label\n%s", cases[i].rows);
        struct table t = read_as("a.csv", file);
        assert_works(own_tell_scores(&t, "label", &scores, &err), err);
        assert_int_equal(scores, cases[i].scores);
        table_free(&t);
    }
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++) {
        char file[64];
        snprintf(file, sizeof file, "label\n1\n%s", mixed[i]);
        struct table t = read_as("a.csv", file);
        assert_false(own_tell_scores(&t, "label", &scores, &err));
        assert_says(err, "a.csv:4: the label is \"");
        assert_says(err, "\", but line 3 has the score 0.5");
        table_free(&t);
    }
}

static void holds_out(void **state)
{
    (void)state;
    enum { N = 100, HELD = 5 };
    struct glue_data from = {.n_examples = N}, to;
    from.examples = calloc(N, sizeof *from.examples);
    for (int i = 0; i < N; i++)
        from.examples[i].index = i;
    own_hold_out(&from, &to, HELD, 1);
    assert_int_equal(from.n_examples, N - HELD);
    assert_int_equal(to.n_examples, HELD);
    bool seen[N] = {false};
    for (int i = 0; i < N; i++) {
        int index = i < HELD ? to.examples[i].index : from.examples[i - HELD].index;
        assert_false(seen[index]);
        seen[index] = true;
        if (i > HELD) /* in their order */
            assert_true(index > from.examples[i - HELD - 1].index);
    }
    bool spread = false; /* not simply the last ones */
    for (int i = 0; i < HELD; i++)
        spread = spread || to.examples[i].index < N - HELD;
    assert_true(spread);
    glue_free(&from);
    glue_free(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_csv),
        cmocka_unit_test(reads_tsv),
        cmocka_unit_test(reads_json),
        cmocka_unit_test(widens_json),
        cmocka_unit_test(refuses_many_keys),
        cmocka_unit_test(reads_one_column),
        cmocka_unit_test(refuses_tables),
        cmocka_unit_test(guesses_columns_as_run_glue),
        cmocka_unit_test(refuses_columns),
        cmocka_unit_test(sorts_labels),
        cmocka_unit_test(makes_examples),
        cmocka_unit_test(refuses_examples),
        cmocka_unit_test(tells_scores_from_labels),
        cmocka_unit_test(holds_out),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
