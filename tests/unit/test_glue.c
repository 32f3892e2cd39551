/* data/glue: the nine tasks' files with their quirks, every fault, and the submission format. */
#include "tests/testing.h"

#include "data/file.h"
#include "data/glue.h"
#include "data/tsv.h"

#define FIXTURES ZF_TESTS_DIR "/fixtures/glue"

static char folder[] = "/tmp/zf-test-glue-XXXXXX";
static char path[sizeof folder + 16];

static const struct glue_task *task_of(const char *name)
{
    struct zf_error err;
    const struct glue_task *task = glue_find_task(name, &err);
    assert_non_null(task);
    return task;
}

static void write_bytes(const char *bytes, size_t n)
{
    struct zf_error err;
    assert_works(file_write(path, bytes, n, &err), err);
}

/* Asserts that this text, as a split of the task, is a fault with these words. */
static void assert_refused(const char *task, enum glue_split split, const char *text,
                           const char *words)
{
    struct glue_data data;
    struct zf_error err;
    write_bytes(text, strlen(text));
    if (glue_read_file(&data, task_of(task), path, split, &err))
        fail_msg("%s: \"%s\" was read", task, text);
    assert_says(err, path);
    assert_says(err, words);
    assert_null(data.examples);
}

static void finds_tasks(void **state)
{
    (void)state;
    struct zf_error err;
    int n = 0;
    while (glue_task_at(n))
        n++;
    assert_int_equal(n, 10);
    assert_string_equal(task_of("SST-2")->name, "sst2");
    assert_string_equal(task_of("sst2")->directory, "SST-2");
    assert_string_equal(task_of("StsB")->directory, "STS-B");
    assert_int_equal(task_of("lm")->n_labels, 0);
    assert_string_equal(task_of("cola")->labels[1], "1");
    assert_string_equal(task_of("cola")->names[1], "acceptable");
    assert_string_equal(task_of("wnli")->names[0], "not_entailment");
    assert_null(glue_find_task("sst", &err));
    assert_says(err, "there is no task \"sst\"; the tasks are cola, sst2, mrpc, stsb, qqp, mnli");
    assert_null(glue_find_task("", &err));
}

static void names_splits(void **state)
{
    (void)state;
    assert_string_equal(glue_split_name(task_of("rte"), GLUE_DEV), "dev");
    assert_string_equal(glue_split_name(task_of("rte"), GLUE_TEST), "test");
    assert_string_equal(glue_split_name(task_of("mnli"), GLUE_TRAIN), "train");
    assert_string_equal(glue_split_name(task_of("mnli"), GLUE_DEV), "dev_matched");
    assert_string_equal(glue_split_name(task_of("mnli"), GLUE_TEST_MISMATCHED), "test_mismatched");
}

static void finds_a_tasks_own_folder(void **state)
{
    (void)state;
    struct zf_error err;
    struct glue_data data;
    assert_works(glue_read_split(&data, task_of("rte"), FIXTURES "/RTE", GLUE_DEV, &err), err);
    assert_true(data.n_examples > 0);
    glue_free(&data);
    assert_false(glue_read_split(&data, task_of("rte"), FIXTURES, GLUE_DEV_MISMATCHED, &err));
}

/* What a fixture holds: its examples, and one of them. */
struct expected {
    const char *task;
    enum glue_split split;
    int n_examples, n_skipped;
    int at;
    const char *sentence[2];
    float label;
};

static const struct expected expectations[] = {
    {"cola", GLUE_TRAIN, 3, 0, 0, {"The cat sat on the \"mat.", NULL}, 1},
    {"cola", GLUE_TRAIN, 3, 0, 2, {"Zoë's café opens at nine.", NULL}, 1},
    {"cola", GLUE_DEV, 2, 0, 0, {"The more rain, more.", NULL}, 0},
    {"cola", GLUE_TEST, 2, 0, 1, {"Sing birds the.", NULL}, -1},
    {"sst2", GLUE_TRAIN, 3, 0, 1, {"too long by half ", NULL}, 0},
    {"sst2", GLUE_TRAIN, 3, 0, 2, {"", NULL}, 1},
    {"sst2", GLUE_DEV, 2, 0, 0, {"warm and funny . ", NULL}, 1},
    {"sst2", GLUE_TEST, 2, 0, 1, {"nobody needed this .", NULL}, -1},
    {"mrpc", GLUE_TRAIN, 2, 0, 0, {"He said \"we won.", "\"We won,\" he said."}, 1},
    {"mrpc", GLUE_DEV, 1, 0, 0, {"The fire is out.", "The fire was put out."}, 1},
    {"mrpc", GLUE_TEST, 2, 0, 1, {"He left.", "She stayed."}, -1},
    {"stsb", GLUE_TRAIN, 2, 0, 0, {"A dog runs.", "A dog is running."}, 4.8f},
    {"stsb", GLUE_DEV, 2, 0, 1, {"A bus stops.", "A bus is red."}, 1.25f},
    {"stsb", GLUE_TEST, 2, 0, 1, {"Rain is due.", "It may rain."}, -1},
    {"qqp", GLUE_TRAIN, 2, 3, 1, {"Why is the sky blue?", "Why is grass green?"}, 0},
    {"qqp",
     GLUE_DEV,
     1,
     0,
     0,
     {"Is tea better than \"coffee?", "Which is better, tea or coffee?"},
     1},
    {"qqp", GLUE_TEST, 2, 0, 1, {"What is 2+2?", "What is 2+3?"}, -1},
    {"mnli", GLUE_TRAIN, 3, 0, 2, {"yeah i know", "I do not know."}, 2},
    {"mnli", GLUE_DEV, 2, 1, 1, {"All agree.", "Some agree."}, 0},
    {"mnli", GLUE_DEV_MISMATCHED, 1, 0, 0, {"Words change.", "Words are old."}, 1},
    {"mnli", GLUE_TEST, 2, 0, 0, {"It snows.", "It is cold."}, -1},
    {"mnli", GLUE_TEST_MISMATCHED, 2, 0, 1, {"They left.", "They stayed."}, -1},
    {"qnli", GLUE_TRAIN, 2, 0, 1, {"Who built it?", "It was built in 1900."}, 1},
    {"qnli", GLUE_DEV, 1, 0, 0, {"Where is it?", "It stands by the river."}, 0},
    {"qnli", GLUE_TEST, 2, 0, 1, {"How many doors?", "It has two doors."}, -1},
    {"rte", GLUE_TRAIN, 2, 0, 0, {"The bridge was closed on Monday.", "The bridge is open."}, 1},
    {"rte", GLUE_DEV, 1, 0, 0, {"Ten people came.", "Somebody came."}, 0},
    {"rte", GLUE_TEST, 2, 0, 1, {"A ship sank.", "Nobody drowned."}, -1},
    {"wnli",
     GLUE_TRAIN,
     2,
     0,
     1,
     {"The cup fell off the shelf because it was tilted.", "The cup was glass."},
     0},
    {"wnli", GLUE_DEV, 1, 0, 0, {"Sue thanked Ann because she had helped.", "Sue had helped."}, 0},
    {"wnli", GLUE_TEST, 2, 0, 1, {"Tom beat Jim because he was fast.", "Jim was fast."}, -1},
};

static void reads_all_tasks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
        const struct expected *e = &expectations[i];
        struct glue_data data;
        struct zf_error err;
        assert_works(glue_read_split(&data, task_of(e->task), FIXTURES, e->split, &err), err);
        assert_int_equal(data.n_examples, e->n_examples);
        assert_int_equal(data.n_skipped, e->n_skipped);
        const struct glue_example *example = &data.examples[e->at];
        assert_string_equal(example->sentence[0], e->sentence[0]);
        if (e->sentence[1])
            assert_string_equal(example->sentence[1], e->sentence[1]);
        else
            assert_null(example->sentence[1]);
        assert_true(example->label == e->label);
        assert_int_equal(example->index, e->at);
        glue_free(&data);
    }
}

/* Longer than the header, so that moving it carelessly would overwrite what stands before it. */
#define LONG "the first sentence, which stands last in its row and is longer than all before it"

static void takes_columns_in_any_order(void **state)
{
    (void)state;
    static const char text[] = "label\textra\tsentence2\tsentence1\r\n"
                               "entailment\tx\tsecond\t" LONG "\n\n"
                               "not_entailment\t\t\"2\tone";
    struct glue_data data;
    struct zf_error err;
    write_bytes(text, strlen(text));
    assert_works(glue_read_file(&data, task_of("rte"), path, GLUE_TRAIN, &err), err);
    assert_int_equal(data.n_examples, 2);
    assert_string_equal(data.examples[0].sentence[0], LONG);
    assert_string_equal(data.examples[0].sentence[1], "second");
    assert_string_equal(data.examples[1].sentence[0], "one");
    assert_string_equal(data.examples[1].sentence[1], "\"2");
    assert_true(data.examples[1].label == 1);
    glue_free(&data);
}

static void reads_the_index(void **state)
{
    (void)state;
    struct glue_data data;
    struct zf_error err;
    static const char with[] = "index\tsentence\n7\ta\n9\tb\n", without[] = "sentence\na\nb\n";
    write_bytes(with, strlen(with));
    assert_works(glue_read_file(&data, task_of("sst2"), path, GLUE_TEST, &err), err);
    assert_int_equal(data.examples[1].index, 9);
    glue_free(&data);
    write_bytes(without, strlen(without));
    assert_works(glue_read_file(&data, task_of("sst2"), path, GLUE_TEST, &err), err);
    assert_int_equal(data.examples[1].index, 1);
    glue_free(&data);
}

static void refuses_bad_headers(void **state)
{
    (void)state;
    char wide[2 * TSV_MAX_FIELDS + 32];
    assert_refused("sst2", GLUE_TRAIN, "", ": the file is empty");
    assert_refused("cola", GLUE_TRAIN, "", ": there are no examples in the file");
    assert_refused("sst2", GLUE_TRAIN, "sentence\tlabel\n\n\r\n", ": there are no examples");
    assert_refused(
        "sst2", GLUE_TRAIN, "text\tlabel\na\t1\n",
        ":1: there is no column \"sentence\" in the header; its columns are: text, label");
    assert_refused(
        "sst2", GLUE_TRAIN, "\nindex\tsentence\n0\ta\n",
        ":2: there is no column \"label\" in the header; its columns are: index, sentence");
    assert_refused("mnli", GLUE_TRAIN, "sentence1\tsentence2\tlabel\n", "column \"gold_label\"");
    assert_refused("mrpc", GLUE_TEST, "#1 String\t#1 ID\n", "column \"#2 String\"");
    memset(wide, '\t', 2 * TSV_MAX_FIELDS);
    strcpy(wide + 2 * TSV_MAX_FIELDS, "sentence\tlabel\n");
    assert_refused("sst2", GLUE_TRAIN, wide, ":1: the header has 66 columns, but at most 32 are");
}

static void refuses_bad_rows(void **state)
{
    (void)state;
    assert_refused("cola", GLUE_TRAIN, "a\t1\t\tfine\na\t1\tshort\n",
                   ":2: the row has 3 columns, but every row here has 4");
    assert_refused("sst2", GLUE_TRAIN, "sentence\tlabel\na\t1\n\nb\t1\t0\n",
                   ":4: the row has 3 columns, but every row here has 2");
    assert_refused("sst2", GLUE_DEV, "sentence\tlabel\na\n", ":2: the row has 1 column, but");
    assert_refused("qqp", GLUE_TEST, "id\tquestion1\tquestion2\n0\ta\n", ":2: the row has 2 col");
    assert_refused("qqp", GLUE_TRAIN, "question1\tquestion2\tis_duplicate\na\n", "no examples");
    assert_refused("sst2", GLUE_TRAIN, "sentence\tlabel\na\t2\n",
                   ":2: the label is \"2\", but it is 0 or 1");
    assert_refused("sst2", GLUE_TRAIN, "sentence\tlabel\na\t\n", ":2: the label is \"\", but");
    assert_refused("rte", GLUE_TRAIN, "sentence1\tsentence2\tlabel\na\tb\t-\n",
                   ":2: the label is \"-\", but it is entailment or not_entailment");
    assert_refused(
        "mnli", GLUE_TRAIN, "sentence1\tsentence2\tgold_label\na\tb\tEntailment\n",
        ":2: the label is \"Entailment\", but it is entailment, neutral or contradiction");
    assert_refused("sst2", GLUE_TEST, "index\tsentence\n1.5\ta\n",
                   ":2: the index is \"1.5\", but it is a whole number from 0");
    assert_refused("sst2", GLUE_TEST, "index\tsentence\n-1\ta\n", ":2: the index is \"-1\"");
    assert_refused("sst2", GLUE_TEST, "index\tsentence\n4294967296\ta\n", ":2: the index is");
    static const char *const scores[] = {"5.01", "-0.1", "nan", "inf", "", "3,5", "3 "};
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        char text[64];
        snprintf(text, sizeof text, "sentence1\tsentence2\tscore\na\tb\t%s\n", scores[i]);
        assert_refused("stsb", GLUE_TRAIN, text, "\", but it is a number from 0 to 5");
    }
}

static void refuses_bytes_that_are_not_text(void **state)
{
    (void)state;
    static const char nul[] = "sentence\tlabel\nfine\t1\na\0b\t1\n";
    struct glue_data data;
    struct zf_error err;
    write_bytes(nul, sizeof nul - 1);
    assert_false(glue_read_file(&data, task_of("sst2"), path, GLUE_TRAIN, &err));
    assert_says(err, ":3: there is a NUL byte");
    /* A lone continuation, an overlong form, a surrogate, above U+10FFFF, cut off. */
    static const char *const bad[] = {
        "\x80",         "\xC0\xAF",         "\xE0\x80\x80",
        "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80",
        "\xF5",         "\xE2\x82",         "long enough for a word \xFF"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[64];
        snprintf(text, sizeof text, "sentence\tlabel\nfine\t1\n%s\t1\n", bad[i]);
        assert_refused("sst2", GLUE_TRAIN, text, " is not UTF-8");
        assert_refused("sst2", GLUE_TRAIN, text, ":3: byte 0x");
    }
    static const char good[] =
        "sentence\tlabel\n\xF0\x9F\x98\x80 \xED\x9F\xBF \xC2\xA0 \xEF\xBF\xBF\t1";
    write_bytes(good, strlen(good));
    assert_works(glue_read_file(&data, task_of("sst2"), path, GLUE_TRAIN, &err), err);
    glue_free(&data);
    static const char marked[] = "\xEF\xBB\xBFsentence\tlabel\nfine\t1\n";
    write_bytes(marked, strlen(marked));
    assert_works(glue_read_file(&data, task_of("sst2"), path, GLUE_TRAIN, &err), err);
    assert_string_equal(data.examples[0].sentence[0], "fine");
    glue_free(&data);
}

static void says_where_it_looked(void **state)
{
    (void)state;
    struct glue_data data;
    struct zf_error err;
    assert_false(glue_read_split(&data, task_of("sst2"), "/nonexistent", GLUE_DEV, &err));
    assert_says(err, "/nonexistent/SST-2/dev.tsv: there is no such file");
    assert_says(err, "/nonexistent/dev.tsv");
    assert_says(err, "scripts/download_glue.sh");
    assert_false(glue_read_file(&data, task_of("sst2"), "/nonexistent.tsv", GLUE_DEV, &err));
    assert_says(err, "/nonexistent.tsv: cannot be read");
}

/* Writes a submission and asserts what is in the file of this name. */
static void assert_submission(const char *task, enum glue_split split, const float *prediction,
                              const char *name, const char *expected)
{
    struct glue_data data;
    struct zf_error err;
    char file[256], *text;
    size_t n;
    assert_works(glue_read_split(&data, task_of(task), FIXTURES, split, &err), err);
    snprintf(file, sizeof file, "%s/made/here", folder);
    assert_works(glue_write_submission(task_of(task), split, &data, prediction, file, &err), err);
    snprintf(file, sizeof file, "%s/made/here/%s", folder, name);
    assert_works(file_read(file, &text, &n, &err), err);
    assert_string_equal(text, expected);
    free(text);
    glue_free(&data);
}

static void writes_submissions(void **state)
{
    (void)state;
    const float ids[] = {1, 0}, high[] = {2, 0}, scores[] = {3.14159f, -0.0625f};
    static const char binary[] = "index\tprediction\n0\t1\n1\t0\n";
    static const char text[] = "index\tprediction\n0\tnot_entailment\n1\tentailment\n";
    assert_submission("cola", GLUE_TEST, ids, "CoLA.tsv", binary);
    assert_submission("sst2", GLUE_TEST, ids, "SST-2.tsv", binary);
    assert_submission("mrpc", GLUE_TEST, ids, "MRPC.tsv", binary);
    assert_submission("qqp", GLUE_TEST, ids, "QQP.tsv", binary);
    assert_submission("wnli", GLUE_TEST, ids, "WNLI.tsv", binary);
    assert_submission("qnli", GLUE_TEST, ids, "QNLI.tsv", text);
    assert_submission("rte", GLUE_TEST, ids, "RTE.tsv", text);
    assert_submission("stsb", GLUE_TEST, scores, "STS-B.tsv",
                      "index\tprediction\n0\t3.142\n1\t-0.062\n");
    assert_submission("mnli", GLUE_TEST, high, "MNLI-m.tsv",
                      "index\tprediction\n0\tcontradiction\n1\tentailment\n");
    assert_submission("mnli", GLUE_TEST_MISMATCHED, ids, "MNLI-mm.tsv",
                      "index\tprediction\n0\tneutral\n1\tentailment\n");
}

static void reads_the_sample(void **state)
{
    (void)state;
    static const int n[] = {4000, 400, 200};
    for (enum glue_split split = GLUE_TRAIN; split <= GLUE_TEST; split++) {
        struct glue_data data;
        struct zf_error err;
        assert_works(
            glue_read_split(&data, task_of("sst2"), ZF_TESTS_DIR "/../data/sample", split, &err),
            err);
        assert_int_equal(data.n_examples, n[split]);
        glue_free(&data);
    }
}

static void reads_the_real_files(void **state)
{
    (void)state;
    static const struct {
        const char *task;
        int train, dev, test;
    } sizes[] = {{"cola", 8551, 1043, 1063}, {"sst2", 67349, 872, 0},   {"rte", 2490, 277, 3000},
                 {"wnli", 635, 71, 146},     {"mrpc", 3668, 408, 1725}, {"stsb", 5749, 1500, 1379}};
    need_shared("glue");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int n[] = {sizes[i].train, sizes[i].dev, sizes[i].test};
        for (enum glue_split split = GLUE_TRAIN; split <= GLUE_TEST; split++) {
            const struct glue_task *task = task_of(sizes[i].task);
            struct glue_data data;
            struct zf_error err;
            if (n[split] == 0)
                continue;
            assert_works(glue_read_split(&data, task, ZF_SHARED_DIR "/glue", split, &err), err);
            assert_int_equal(data.n_examples, n[split]);
            assert_int_equal(data.n_skipped, 0);
            glue_free(&data);
        }
    }
}

int main(void)
{
    struct zf_error err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_tasks),
        cmocka_unit_test(names_splits),
        cmocka_unit_test(finds_a_tasks_own_folder),
        cmocka_unit_test(reads_all_tasks),
        cmocka_unit_test(takes_columns_in_any_order),
        cmocka_unit_test(reads_the_index),
        cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(refuses_bad_rows),
        cmocka_unit_test(refuses_bytes_that_are_not_text),
        cmocka_unit_test(says_where_it_looked),
        cmocka_unit_test(writes_submissions),
        cmocka_unit_test(reads_the_sample),
        cmocka_unit_test(reads_the_real_files),
    };
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/file.tsv", folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return file_remove_directory(folder, &err) ? failed : 1;
}
