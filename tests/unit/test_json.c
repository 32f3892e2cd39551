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
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(keeps_the_old_file),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
