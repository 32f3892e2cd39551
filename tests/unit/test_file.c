/* data/file, data/checksum, data/show: files that are replaced whole, directories that take
 * another's place, checksums, and text that does nothing to a terminal. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/checksum.h"
#include "data/file.h"
#include "data/show.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char directory[] = "/tmp/zf-test-file-XXXXXX";

/* DIR/name, in one of two places that calls use in turn. */
static const char *in_directory(const char *name)
{
    static char path[2][256];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", directory, name);
    return path[turn];
}

static void write_text(const char *name, const char *text)
{
    struct zf_error err;
    assert_works(file_write(in_directory(name), text, strlen(text), &err), err);
}

static void assert_holds(const char *name, const char *expected)
{
    struct zf_error err;
    char *text;
    size_t n;
    assert_works(file_read(in_directory(name), &text, &n, &err), err);
    assert_string_equal(text, expected);
    free(text);
}

/* A link that somebody put where the temporary file will be is not followed. */
static void follows_no_link(void **state)
{
    (void)state;
    char name[64];
    write_text("victim", "old");
    snprintf(name, sizeof name, "replaced.%ld.tmp", (long)getpid());
    assert_int_equal(symlink(in_directory("victim"), in_directory(name)), 0);
    write_text("replaced", "new");
    assert_holds("victim", "old");
    assert_holds("replaced", "new");
}

/* A write that failed long before the end is told with the system's reason. */
static void says_why_it_failed(void **state)
{
    (void)state;
    struct zf_error err;
    struct file_replace f;
    struct rlimit old, small = {1 << 16, 1 << 16};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_works(file_replace_begin(&f, in_directory("large"), &err), err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 1 << 17; i++)
        fputc('x', f.stream);
    errno = 0;
    assert_false(file_replace_end(&f, true, &err));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_says(err, "large: cannot be written: File too large");
    assert_false(file_exists(in_directory("large")));
}

static void reads_what_may_not_be_there(void **state)
{
    (void)state;
    struct zf_error err;
    char *text;
    size_t n;
    assert_works(file_read_if_any(in_directory("absent"), &text, &n, &err), err);
    assert_null(text);
    assert_int_equal(n, 0);
    write_text("present", "words");
    assert_works(file_read_if_any(in_directory("present"), &text, &n, &err), err);
    assert_string_equal(text, "words");
    free(text);
}

static void waits_for_no_pipe(void **state)
{
    (void)state;
    struct zf_error err;
    char *text;
    size_t n;
    assert_int_equal(mkfifo(in_directory("pipe"), 0600), 0);
    assert_false(file_read(in_directory("pipe"), &text, &n, &err));
    assert_says(err, "pipe: cannot be read: not a regular file");
}

/* Opens a file that is to be written for long, writes a word, and closes it; or the sentence. */
static const char *output_of(const char *path, bool append)
{
    static struct zf_error err;
    FILE *stream = file_open_output(path, append, &err);
    if (!stream)
        return err.text;
    fputs("word ", stream);
    return fclose(stream) == 0 ? "written" : "not written";
}

/* What is written as a run goes on waits for nobody: a pipe is taken where it is read. */
static void writes_where_nobody_is_waited_for(void **state)
{
    (void)state;
    char got[16] = "";
    assert_int_equal(mkfifo(in_directory("unread"), 0600), 0);
    assert_non_null(strstr(output_of(in_directory("unread"), false),
                           "unread: cannot be written: a pipe that nobody reads"));
    assert_non_null(strstr(output_of(in_directory("unread"), true), "a pipe that nobody reads"));
    int reader = open(in_directory("unread"), O_RDONLY | O_NONBLOCK);
    assert_string_equal(output_of(in_directory("unread"), false), "written");
    assert_int_equal(read(reader, got, sizeof got - 1), 5);
    assert_string_equal(got, "word ");
    close(reader);
    assert_non_null(strstr(output_of(directory, false), "cannot be written: Is a directory"));
    assert_string_equal(output_of("/dev/null", false), "written");
    assert_string_equal(output_of("/dev/full", true), "not written");
    write_text("output", "old ");
    assert_string_equal(output_of(in_directory("output"), true), "written");
    assert_holds("output", "old word ");
    assert_string_equal(output_of(in_directory("output"), false), "written");
    assert_holds("output", "word ");
}

static void takes_another_place(void **state)
{
    (void)state;
    struct zf_error err;
    struct file_names names;
    assert_works(file_make_directory(in_directory("a/b"), &err), err);
    assert_works(file_make_directory(in_directory("new"), &err), err);
    write_text("new/file", "new");
    write_text("a/b/file", "old");
    assert_works(file_publish_directory(in_directory("new"), in_directory("a/b"), &err), err);
    assert_holds("a/b/file", "new");
    assert_holds("new/file", "old"); /* this file system exchanges names */
    assert_works(file_publish_directory(in_directory("new"), in_directory("a/c"), &err), err);
    assert_works(file_list(in_directory("a"), &names, &err), err);
    assert_int_equal(names.n, 2);
    assert_string_equal(names.list[0], "b");
    assert_string_equal(names.list[1], "c");
    file_names_free(&names);
    assert_false(file_list(in_directory("none"), &names, &err));
    assert_says(err, "none: the directory cannot be read: No such file");
}

/* What is finished stands under its name, and comes to the disk when the batch does. */
static void batches(void **state)
{
    (void)state;
    struct zf_error err;
    struct file_batch files;
    struct stat info;
    file_batch_begin(&files);
    assert_works(file_make_directory(in_directory("batch"), &err), err);
    write_text("batch/one", "1");
    write_text("batch/two", "2");
    assert_false(file_write(in_directory("none/three"), "3", 1, &err));
    assert_holds("batch/two", "2");
    file_batch_end();
    assert_int_equal(files.n, 2);
    write_text("batch/later", "4");
    assert_int_equal(files.n, 2);
    assert_works(file_batch_sync(&files, true, &err), err);
    assert_int_equal(files.n, 0);
    assert_holds("batch/one", "1");

    file_batch_begin(&files);
    write_text("batch/dropped", "5");
    file_batch_end();
    assert_works(file_batch_sync(&files, false, &err), err);
    assert_int_equal(stat(in_directory("batch/dropped"), &info), 0); /* to remove it is others' */
}

/* Published: XXH3-128 of nothing, by the algorithm's authors (xxhsum -H2). */
static void sums(void **state)
{
    (void)state;
    struct zf_error err;
    struct checksum sum;
    char text[CHECKSUM_TEXT];
    size_t n;
    checksum_text(checksum_of("", 0), text);
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f");
    const size_t size = 2 * CHECKSUM_PIECE + 5;
    char *bytes = zf_malloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 7 + i / 1000);
    assert_works(file_write(in_directory("large"), bytes, size, &err), err);
    assert_works(checksum_file(in_directory("large"), &sum, &n, &err), err);
    assert_int_equal(n, size);
    const struct checksum pieces[] = {checksum_of(bytes, CHECKSUM_PIECE),
                                      checksum_of(bytes + CHECKSUM_PIECE, CHECKSUM_PIECE),
                                      checksum_of(bytes + 2 * CHECKSUM_PIECE, 5)};
    const struct checksum whole = checksum_of(pieces, sizeof pieces);
    assert_memory_equal(&sum, &whole, sizeof sum);
    assert_works(file_write(in_directory("small"), bytes, 10, &err), err);
    assert_works(checksum_file(in_directory("small"), &sum, &n, &err), err);
    const struct checksum ten = checksum_of(bytes, 10);
    assert_memory_equal(&sum, &ten, sizeof sum);
    free(bytes);
}

static void shows(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"plain, caf\xc3\xa9 \xf0\x9f\x98\x80", "plain, caf\xc3\xa9 \xf0\x9f\x98\x80"},
        {"\x1b[2J\x7f\r\n\t\x01", "\\x1b[2J\\x7f\\r\\n\\t\\x01"},
        {"\xc2\x9b"
         "31m",
         "\\xc2\\x9b"
         "31m"}, /* C1: begins a sequence too */
        {"cut \xe2\x82\"", "cut \xe2\x80\xa6\""},
        {"cut \xf0\x9f\x98", "cut \xe2\x80\xa6"},
        {"bad \xff\x80.", "bad \\xff\\x80."},
        {"", ""},
    };
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        show_text(out, sizeof out, cases[i][0]);
        assert_string_equal(out, cases[i][1]);
    }
    char *whole = show_whole("\xff\x1b\xff\x9b");
    assert_string_equal(whole, "\\xff\\x1b\\xff\\x9b");
    free(whole);
    show_text(out, 8, "12345\xe2\x82\xac");
    assert_string_equal(out, "12345"); /* all of a character or none of it */
    struct zf_error err;
    zf_fail(&err, "\"%.4s\"", "abc\xc3\xa9");
    assert_string_equal(err.text, "\"abc\xe2\x80\xa6\"");
}

static void shows_words_of_a_shell(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"output/cola-2", "output/cola-2"},
        {"my models", "'my models'"},
        {"Ada's $HOME", "'Ada'\\''s $HOME'"},
        {"a\nb", "'a\\nb'"},
        {"", "''"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *word = show_shell_word(cases[i][0]);
        assert_string_equal(word, cases[i][1]);
        free(word);
    }
}

int main(void)
{
    struct zf_error err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_no_link),
        cmocka_unit_test(says_why_it_failed),
        cmocka_unit_test(reads_what_may_not_be_there),
        cmocka_unit_test(waits_for_no_pipe),
        cmocka_unit_test(writes_where_nobody_is_waited_for),
        cmocka_unit_test(takes_another_place),
        cmocka_unit_test(batches),
        cmocka_unit_test(sums),
        cmocka_unit_test(shows),
        cmocka_unit_test(shows_words_of_a_shell),
    };
    if (!mkdtemp(directory))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return file_remove_directory(directory, &err) ? failed : 1;
}
