/* data/json: typed access names the file, line and key of a bad value; files are replaced whole. */
#include "tests/testing.h"

#include "data/file.h"
#include "data/json.h"

static char path[] = "/tmp/zf-test-json-XXXXXX";

static void write_text(const char *text)
{
    struct zf_error err;
    assert_works(file_write(path, text, strlen(text), &err), err);
}

static void finds_lines(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    write_text("{\n  \"a\": {\"b\": [1, {\"c\": 2}],\n    \"c\": \"x\\\"}{\"},\n  \"c\": 0.5,\n"
               "\n  \"ab\": {\n    \"c\": true}}\n");
    assert_works(json_load(&f, path, &err), err);
    assert_int_equal(json_line(&f, "a"), 2);
    assert_int_equal(json_line(&f, "a.b"), 2);
    assert_int_equal(json_line(&f, "a.c"), 3);
    assert_int_equal(json_line(&f, "c"), 4);
    assert_int_equal(json_line(&f, "ab.c"), 7);
    assert_int_equal(json_line(&f, "ab.d"), 0);
    json_free(&f);
}

static void checks_types(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    int i = 7;
    float x = 1;
    const char *s = "default";
    bool b = false;
    write_text("{\"i\": 3,\n \"x\": 2,\n \"n\": null, \"in\": {\"s\": \"text\"}, \"b\": true}");
    assert_works(json_load(&f, path, &err), err);
    assert_true(json_get_int(&f, "i", &i, &err) && i == 3);
    assert_true(json_get_int(&f, "absent", &i, &err) && i == 3);
    assert_true(json_get_int(&f, "n", &i, &err) && i == 3);
    assert_true(json_get_float(&f, "x", &x, &err) && x == 2);
    assert_true(json_get_string(&f, "in.s", &s, &err));
    assert_string_equal(s, "text");
    assert_true(json_get_bool(&f, "b", &b, &err) && b);
    assert_false(json_get_int(&f, "in.s", &i, &err));
    assert_says(err, ":3: in.s is \"text\", but it is a whole number");
    json_free(&f);
}

static void reads_integers_beyond_64_bits(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    int i = 0;
    write_text("{\"text\": \"99999999999999999999 \\\" 99999999999999999999\",\n"
               "\"limit\": 1000000000000000019884624838656, \"least\": -9223372036854775809,\n"
               "\"exact\": [9223372036854775807, -9223372036854775808, 9007199254740993, 7],\n"
               "\"real\": 12345678901234567890.5, \"small\": 5}");
    assert_works(json_load(&f, path, &err), err);
    assert_string_equal(json_string_value(json_find(&f, "text")),
                        "99999999999999999999 \" 99999999999999999999");
    assert_true(json_real_value(json_find(&f, "limit")) == 1e30);
    assert_true(json_real_value(json_find(&f, "least")) == -0x1p63);
    static const json_int_t exact[] = {INT64_MAX, INT64_MIN, 9007199254740993, 7};
    for (size_t k = 0; k < 4; k++) {
        json_t *value = json_array_get(json_find(&f, "exact"), k);
        assert_true(json_is_integer(value) && json_integer_value(value) == exact[k]);
    }
    assert_true(json_real_value(json_find(&f, "real")) == 12345678901234567890.5);
    assert_true(json_get_int(&f, "small", &i, &err) && i == 5);
    assert_int_equal(json_line(&f, "small"), 4);
    assert_false(json_get_int(&f, "limit", &i, &err));
    assert_says(err, ":2: limit is 1e30, but it is a whole number");
    json_free(&f);
    write_text("{\"a\": 1e999}");
    assert_false(json_load(&f, path, &err));
    assert_says(err, ":1: not valid JSON: real number overflow");
}

static void passes_over_a_byte_order_mark(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    write_text("\xEF\xBB\xBF{\n\"a\": 1}");
    assert_works(json_load(&f, path, &err), err);
    assert_int_equal(json_line(&f, "a"), 2);
    json_free(&f);
}

static void says_what_json_has_not(void **state)
{
    (void)state;
    static const struct {
        const char *text, *piece;
    } faults[] = {
        {"{\"a\": \"//\",\n\n // b\n\"b\": 1,}", ":3: not valid JSON: a comment begins here"},
        {"{\"a\": 1, /* b */\n\"b\": 1}", ":1: not valid JSON: a comment begins here"},
        {"# a\n{}", ":1: not valid JSON: a comment begins here"},
        {"{\"a\": [1, 2,\n],\n\"b\": 1}", ":1: not valid JSON: a comma stands after the last item"},
        {"{\"a\": \"\\\\\",\n\"b\": {\"c\": 1\n,\n\n}}",
         ":3: not valid JSON: a comma stands after the"},
        {"{\"a\": 'b',\n// c\n}", ":1: not valid JSON: invalid token near"},
    };
    struct json_file f;
    struct zf_error err;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        write_text(faults[i].text);
        assert_false(json_load(&f, path, &err));
        assert_says(err, faults[i].piece);
    }
}

/* What mkdir said, not what looking for the folder said after it. */
static void says_why_a_directory_cannot_be_made(void **state)
{
    (void)state;
    struct zf_error err;
    char link[] = "/tmp/zf-test-link-XXXXXX", inside[64];
    close(mkstemp(link));
    unlink(link);
    assert_int_equal(symlink("/nonexistent/folder", link), 0);
    snprintf(inside, sizeof inside, "%s/in", link);
    assert_false(file_make_directory(inside, &err));
    assert_says(err, "the directory cannot be made: a file stands in its place");
    unlink(link);
    assert_false(file_make_directory("/sys/zf-test", &err)); /* not by anybody */
    assert_null(strstr(err.text, "No such file"));
}

static void refuses_bad_files(void **state)
{
    (void)state;
    struct json_file f;
    struct zf_error err;
    write_text("{\"a\": 1,\n\"b\" 2}");
    assert_false(json_load(&f, path, &err));
    assert_says(err, ":2: not valid JSON");
    write_text("{\"a\": 1,\n\"a\": 2}");
    assert_false(json_load(&f, path, &err));
    assert_says(err, ":2: not valid JSON: duplicate object key");
    write_text("[1]");
    assert_false(json_load(&f, path, &err));
    assert_says(err, "not a JSON object");
    write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
    assert_false(json_load(&f, path, &err));
    assert_says(err, "this is a pointer of Git LFS, not the file itself: run \"git lfs pull\"");
    assert_false(json_load(&f, "/nonexistent/x.json", &err));
    assert_says(err, "/nonexistent/x.json: cannot be read");
}

static void keeps_the_old_file(void **state)
{
    (void)state;
    struct zf_error err;
    struct file_replace f;
    char *text;
    size_t n;
    write_text("old");
    assert_works(file_replace_begin(&f, path, &err), err);
    fputs("new", f.stream);
    assert_works(file_replace_end(&f, false, &err), err);
    assert_works(file_read(path, &text, &n, &err), err);
    assert_string_equal(text, "old");
    assert_false(file_exists(f.temporary));
    free(text);
    assert_false(file_replace_begin(&f, "/nonexistent/file", &err));
    assert_says(err, "/nonexistent/file: cannot be written");
}

int main(void)
{
    close(mkstemp(path));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_lines),
        cmocka_unit_test(checks_types),
        cmocka_unit_test(reads_integers_beyond_64_bits),
        cmocka_unit_test(passes_over_a_byte_order_mark),
        cmocka_unit_test(says_what_json_has_not),
        cmocka_unit_test(says_why_a_directory_cannot_be_made),
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(keeps_the_old_file),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
