/* data/corpus: which files are found, how texts are put together, what rows hold, which of their
 * tokens are learned, and every fault. */
#include "tests/unit/byte_tokenizer.h"

#include "data/alloc.h"
#include "data/corpus.h"
#include "data/corpus_files.h"

static char folder[] = "/tmp/zf-test-corpus-XXXXXX";
static struct tokenizer *bytes; /* a token a byte, and 256 for the end of text */

static char *in_folder(const char *name)
{
    return zf_format("%s/%s", folder, name);
}

static void write_as(const char *name, const char *text)
{
    struct zf_error err;
    char *path = in_folder(name);
    char *slash = strrchr(path, '/');
    *slash = 0;
    assert_works(file_make_directory(path, &err), err);
    *slash = '/';
    assert_works(file_write(path, text, strlen(text), &err), err);
    free(path);
}

static bool read_corpus(struct dataset *d, const char *name, int max_length,
                        struct corpus_report *report, struct zf_error *err)
{
    char *path = in_folder(name);
    bool ok = dataset_from_corpus(d, path, bytes, "MODEL", max_length, 1, report, err);
    free(path);
    return ok;
}

/* Tokens are bytes, '|' stands for the end of text; and of answers, what is learned. */
static void assert_sequence(const struct dataset *d, int i, const char *text, const char *learned)
{
    size_t n = d->start[i + 1] - d->start[i];
    assert_int_equal(n, strlen(text));
    for (size_t k = 0; k < n; k++) {
        size_t at = d->start[i] + k;
        assert_int_equal(d->tokens[at], text[k] == '|' ? 256 : (unsigned char)text[k]);
        if (learned)
            assert_int_equal(d->learned[at], learned[k] != '.');
    }
}

static void finds_files(void **state)
{
    (void)state;
    static const char *const made[] = {"f/b.txt",         "f/a.md",      "f/c/d.jsonl",
                                       "f/c/.hidden.txt", "f/image.png", "f/no_ending",
                                       "g/x.txt",         "g/y.txt"};
    static const struct {
        const char *files, *found;
        int passed_over;
    } cases[] = {
        {"@/f", "f/a.md f/b.txt f/c/d.jsonl", 2},
        {"@/f/image.png", "f/image.png", 0},
        {"@/g/*.txt", "g/x.txt g/y.txt", 0},
        {"@/g/y.txt,@/f/c", "g/y.txt f/c/d.jsonl", 0},
        {"@/?/?.md,@/g", "f/a.md g/x.txt g/y.txt", 0},
    };
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        write_as(made[i], "ab");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct file_list list;
        struct zf_error err;
        char files[256] = "", found[256] = "";
        for (const char *p = cases[i].files; *p; p++)
            if (*p == '@')
                strcat(files, folder);
            else
                strncat(files, p, 1);
        assert_works(corpus_find_files(&list, files, &err), err);
        for (int k = 0; k < list.n; k++)
            strcat(strcat(found, k ? " " : ""), list.paths[k] + strlen(folder) + 1);
        assert_string_equal(found, cases[i].found);
        assert_int_equal(list.n_passed_over, cases[i].passed_over);
        file_list_free(&list);
    }
}

static void puts_texts_together(void **state)
{
    (void)state;
    struct dataset d;
    struct corpus_report report;
    struct zf_error err;
    write_as("t/1.txt", "abc");
    write_as("t/2.jsonl", "{\"text\": \"de\", \"id\": 1}\n{\"text\": \"\"}\n");
    write_as("t/3.csv", "text\nfgh\n");
    char *csv = in_folder("t/3.csv"), *rest = in_folder("t");
    char *files = zf_format("%s,%s", rest, csv);
    assert_works(dataset_from_corpus(&d, files, bytes, "MODEL", 4, 1, &report, &err), err);
    assert_int_equal(report.n_files, 3);
    assert_int_equal(report.n_rows, 4);
    assert_int_equal(report.n_passed_over, 1);
    assert_int_equal(d.n_sequences, 3);
    assert_sequence(&d, 0, "abc|", NULL);
    assert_sequence(&d, 1, "de||", NULL);
    assert_sequence(&d, 2, "fgh|", NULL);
    assert_null(d.learned);
    assert_int_equal(dataset_targets(&d, 0), 3);
    dataset_free(&d);
    free(csv);
    free(rest);
    free(files);
}

static void cuts_one_text(void **state)
{
    (void)state;
    struct dataset d;
    struct corpus_report report;
    struct zf_error err;
    write_as("one.txt", "abcdefgh"); /* alone, it has no end-of-text token */
    assert_works(read_corpus(&d, "one.txt", 3, &report, &err), err);
    assert_int_equal(d.n_sequences, 3);
    assert_sequence(&d, 1, "def", NULL);
    assert_sequence(&d, 2, "gh", NULL);
    assert_null(d.label);
    dataset_free(&d);
    write_as("one.txt", "abcdefg"); /* the last token would be alone */
    assert_works(read_corpus(&d, "one.txt", 3, &report, &err), err);
    assert_int_equal(d.n_sequences, 2);
    dataset_free(&d);
    write_as("one.txt", "ab");
    assert_works(read_corpus(&d, "one.txt", 100, &report, &err), err);
    assert_int_equal(d.max_length, 2);
    dataset_free(&d);
}

static void learns_answers(void **state)
{
    (void)state;
    struct dataset d;
    struct corpus_report report;
    struct zf_error err;
    write_as("a.jsonl", "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n");
    assert_works(read_corpus(&d, "a.jsonl", 100, &report, &err), err);
    assert_sequence(&d, 0, "1+1=2|", "....xx");
    assert_int_equal(dataset_targets(&d, 0), 2);
    assert_true(report.has_answers);
    assert_string_equal(report.form, "plain");
    assert_int_equal(report.n_learned, 2);
    dataset_free(&d);
    write_as("a.csv", "completion,prompt\n2,1+1=\n");
    assert_works(read_corpus(&d, "a.csv", 100, &report, &err), err);
    assert_sequence(&d, 0, "1+1=2|", "....xx");
    dataset_free(&d);
    write_as("a.jsonl", "{\"instruction\": \"Add\", \"input\": \"1\", \"output\": \"2\"}");
    assert_works(read_corpus(&d, "a.jsonl", 1000, &report, &err), err);
    static const char alpaca[] =
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n### "
        "Instruction:\nAdd\n\n### Input:\n1\n\n### Response:\n2|";
    char learned[sizeof alpaca];
    memset(learned, '.', sizeof learned);
    memset(learned + sizeof alpaca - 3, 'x', 2);
    assert_sequence(&d, 0, alpaca, learned);
    dataset_free(&d);
}

static void cuts_answers(void **state)
{
    (void)state;
    struct dataset d;
    struct corpus_report report;
    struct zf_error err;
    write_as("a.jsonl", "{\"prompt\": \"abc\", \"completion\": \"defg\"}\n"
                        "{\"prompt\": \"abcde\", \"completion\": \"f\"}\n"
                        "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    assert_works(read_corpus(&d, "a.jsonl", 5, &report, &err), err);
    assert_int_equal(d.n_sequences, 2);
    int whole = d.start[1] == 3 ? 0 : 1; /* rows are shuffled */
    assert_sequence(&d, whole, "ab|", ".xx");
    assert_sequence(&d, !whole, "abcde", "...xx");
    assert_int_equal(report.n_cut, 2);
    assert_int_equal(report.n_dropped, 1);
    assert_int_equal(report.n_learned, 4);
    assert_int_equal(d.max_length, 5);
    dataset_free(&d);
    assert_false(read_corpus(&d, "a.jsonl", 1, &report, &err));
    assert_says(err, "a.jsonl: no row has an answer within max_seq_length 1");
}

/* Targets of a batch are answers alone, and the loss is of their number. */
static void batches_learn_answers_alone(void **state)
{
    (void)state;
    struct dataset d;
    struct corpus_report report;
    struct zf_error err;
    struct batch b;
    write_as("a.jsonl", "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n");
    assert_works(read_corpus(&d, "a.jsonl", 100, &report, &err), err);
    batch_init(&b, 6, 1);
    batch_fill(&b, &d, (int[]){0}, 1, 0, 0);
    static const int expected[] = {TARGET_IGNORE, TARGET_IGNORE, TARGET_IGNORE,
                                   '2',           256,           TARGET_IGNORE};
    assert_memory_equal(b.targets, expected, sizeof expected);
    assert_int_equal(b.n_items, 2);
    batch_free(&b);
    dataset_free(&d);
}

static void refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"{\"text\": \"a\"}\n{\"txt\": \"a\"}\n", "a.jsonl:2: the row has no \"text\""},
        {"{\"text\": 3}\n", "a.jsonl:1: the row has no \"text\""},
        {"{\"text\": \"a\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}\n",
         "a.jsonl:2: the row has an answer, but those before it are texts"},
        {"{\"prompt\": \"a\", \"completion\": \"b\"}\n\n{\"text\": \"a\"}\n",
         "a.jsonl:3: the row is a text, but those before it have answers"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n",
         "a.jsonl:1: it has messages, but MODEL has no chat template"},
        {"{\"messages\": \"a\"}\n", "a.jsonl:1: its messages are no list"},
        {"{\"messages\": [{\"role\": \"user\"}]}\n", "a.jsonl:1: message 1 is not {\"role\""},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [\"a\"]}]}\n", "a.jsonl:1: message 1"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"tool_calls\": [{}]}]}\n",
         "a.jsonl:1: message 1 has \"tool_calls\", which is not done"},
        {"{\"messages\": [], \"tools\": [{}]}\n", "a.jsonl:1: the row has \"tools\""},
        {"", "there are no rows"},
        {"{\"text\": \"a\"}\n", "fewer than two tokens"},
    };
    struct dataset d;
    struct corpus_report report;
    struct zf_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_as("a.jsonl", bad[i].text);
        if (read_corpus(&d, "a.jsonl", 100, &report, &err))
            fail_msg("\"%s\" was read", bad[i].text);
        assert_says(err, bad[i].words);
        assert_null(d.tokens);
    }
    assert_false(read_corpus(&d, "nowhere*", 100, &report, &err));
    assert_says(err, "nowhere*: there is no such file or folder, and no file of such a pattern");
    write_as("empty/image.png", "x");
    assert_false(read_corpus(&d, "empty", 100, &report, &err));
    assert_says(err, "empty: no file in this folder is a text");
    write_as("one.txt", "a");
    assert_false(read_corpus(&d, "one.txt", 3, &report, &err));
    assert_says(err, "one.txt: the text has fewer than two tokens");
    write_as("one.txt", "");
    assert_false(read_corpus(&d, "one.txt", 3, &report, &err));
    write_as("one.txt", "a\n\xff\xfe b\n"); /* as UTF-16 has it */
    assert_false(read_corpus(&d, "one.txt", 3, &report, &err));
    assert_says(err, "one.txt:2: byte 0xff is not UTF-8");
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return 1;
    char *path = in_folder("bytes");
    struct zf_error err;
    bool ok = file_make_directory(path, &err);
    bytes = make_byte_tokenizer(path);
    free(path);
    return ok ? 0 : 1;
}

static int tear_down(void **state)
{
    (void)state;
    struct zf_error err;
    tokenizer_free(bytes);
    return file_remove_directory(folder, &err) ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_files),   cmocka_unit_test(puts_texts_together),
        cmocka_unit_test(cuts_one_text), cmocka_unit_test(learns_answers),
        cmocka_unit_test(cuts_answers),  cmocka_unit_test(batches_learn_answers_alone),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
