/* data/safetensors: what is written is read; nothing that a file says is believed unchecked. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/safetensors.h"

#include <math.h>
#include <sys/wait.h>

static char directory[] = "/tmp/zf-test-safetensors-XXXXXX";

/* DIR/name, in memory that the next call uses again. */
static const char *in_directory(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

/* A file of this header and n bytes of data. */
static const char *write_raw(const char *name, const char *header, const void *data, size_t n)
{
    struct zf_error err;
    uint64_t length = strlen(header);
    char *bytes = zf_calloc(8 + length + n, 1);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    if (data)
        memcpy(bytes + 8 + length, data, n);
    assert_works(file_write(in_directory(name), bytes, 8 + length + n, &err), err);
    free(bytes);
    return in_directory(name);
}

static void refused(const char *path, const char *piece)
{
    struct zf_error err;
    struct safetensors *s = safetensors_open(path, &err);
    if (s)
        fail_msg("%s opened, but \"%s\" was expected", path, piece);
    assert_says(err, piece);
    assert_says(err, path);
}

static void reads_what_it_writes(void **state)
{
    (void)state;
    struct zf_error err;
    const float matrix[6] = {1, 2, 3, 4, 5, -6.5f};
    const int32_t ids[3] = {7, -8, 9};
    const char *path = in_directory("written.safetensors");
    struct safetensors_writer *w = safetensors_write_begin(path, &err);
    assert_non_null(w);
    safetensors_write_metadata(w, "format", "pt");
    safetensors_write_declare(w, "w", DTYPE_F32, 2, (int64_t[]){3, 2});
    safetensors_write_declare(w, "none", DTYPE_F16, 2, (int64_t[]){0, 4});
    safetensors_write_declare(w, "ids", DTYPE_I32, 1, (int64_t[]){3});
    safetensors_write_data(w, matrix, 10);
    safetensors_write_data(w, (const char *)matrix + 10, sizeof matrix - 10);
    safetensors_write_data(w, ids, sizeof ids);
    assert_works(safetensors_write_end(w, true, &err), err);

    struct safetensors *s = safetensors_open(path, &err);
    assert_non_null(s);
    assert_string_equal(safetensors_metadata(s, "format"), "pt");
    assert_null(safetensors_metadata(s, "absent"));
    assert_int_equal(safetensors_count(s), 3);
    assert_string_equal(safetensors_at(s, 0)->name, "w");
    assert_string_equal(safetensors_at(s, 1)->name, "none");
    assert_string_equal(safetensors_at(s, 2)->name, "ids");
    assert_null(safetensors_find(s, "v"));
    const struct tensor *t = safetensors_find(s, "w");
    float read[4];
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->shape[1], 2);
    assert_string_equal(t->file, path);
    assert_int_equal((uintptr_t)t->data % 8, 0);
    assert_works(tensor_read_f32(t, read, 2, 4, &err), err);
    assert_memory_equal(read, matrix + 2, sizeof read);
    t = safetensors_find(s, "ids");
    assert_memory_equal(t->data, ids, sizeof ids);
    assert_false(tensor_read_f32(t, read, 0, 1, &err));
    assert_says(err, "tensor ids is I32, but F32, F16 or BF16 is expected");
    safetensors_close(s);
}

static void writes_nothing_by_halves(void **state)
{
    (void)state;
    struct zf_error err;
    const char *path = in_directory("half.safetensors");
    const char byte = 1;
    for (int keep = 0; keep < 2; keep++) {
        struct safetensors_writer *w = safetensors_write_begin(path, &err);
        assert_non_null(w);
        safetensors_write_declare(w, "b", DTYPE_U8, 1, (int64_t[]){2});
        safetensors_write_data(w, &byte, 1);
        assert_int_equal(safetensors_write_end(w, keep, &err), !keep);
        assert_false(file_exists(path));
    }
    assert_says(err, "1 bytes of data came, but 2 were declared");
    assert_null(safetensors_write_begin("/nonexistent/x.safetensors", &err));
    assert_says(err, "/nonexistent/x.safetensors: cannot be written");
}

/* The value of an F16, from its definition. */
static double half_value(unsigned bits)
{
    int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
    double size = exponent == 31  ? (fraction ? NAN : INFINITY)
                  : exponent == 0 ? ldexp(fraction, -24)
                                  : ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -size : size;
}

static void converts_every_half(void **state)
{
    (void)state;
    struct zf_error err;
    const size_t n = 1 << 16;
    uint16_t *bits = zf_malloc(n * sizeof *bits);
    float *values = zf_malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        bits[i] = (uint16_t)i;
    /* One byte before it: the data stand at odd addresses. */
    char *data = zf_malloc(1 + 2 * n * sizeof *bits);
    memcpy(data + 1, bits, n * sizeof *bits);
    memcpy(data + 1 + n * sizeof *bits, bits, n * sizeof *bits);
    const char *path = write_raw(
        "half.safetensors",
        "{\"pad\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"f\":{\"dtype\":\"F16\",\"shape\":[65536],\"data_offsets\":[1,131073]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[256,256],\"data_offsets\":[131073,262145]}}",
        data, 1 + 2 * n * sizeof *bits);
    struct safetensors *s = safetensors_open(path, &err);
    if (!s)
        fail_msg("%s", err.text);
    assert_works(tensor_read_f32(safetensors_find(s, "f"), values, 0, n, &err), err);
    for (size_t i = 0; i < n; i++) {
        double expected = half_value((unsigned)i);
        if (isnan(expected) ? !isnan(values[i])
                            : (double)values[i] != expected || !signbit(values[i]) != (i < n / 2))
            fail_msg("F16 %04zx is read as %g, not %g", i, (double)values[i], expected);
    }
    assert_works(tensor_read_f32(safetensors_find(s, "b"), values, 3, n - 3, &err), err);
    for (size_t i = 3; i < n; i++) {
        uint32_t read;
        memcpy(&read, values + i - 3, sizeof read);
        assert_int_equal(read, i << 16);
    }
    safetensors_close(s);
    free(bits);
    free(values);
    free(data);
}

#define TENSOR(dtype, shape, offsets)                                                              \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void believes_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        const char *piece;
    } faults[] = {
        {"{\"a\":", "its header is not JSON"},
        {"[1]", "its header is not a JSON object"},
        {"{\"a\":3}", "tensor a has no \"dtype\""},
        {"{\"a\":{}}", "tensor a has no \"dtype\""},
        {"{\"a\":" TENSOR("F9", "[2]", "[0,8]") "}", "has the dtype \"F9\""},
        {"{\"a\":" TENSOR("F32", "2", "[0,8]") "}", "has no \"shape\""},
        {"{\"a\":" TENSOR("F32", "[1,1,1,1,2]", "[0,8]") "}", "has 5 dimensions"},
        {"{\"a\":" TENSOR("F32", "[-2]", "[0,8]") "}", "not a list of sizes"},
        {"{\"a\":" TENSOR("F32", "[2.5]", "[0,8]") "}", "not a list of sizes"},
        {"{\"a\":" TENSOR("F32", "[4294967296,4294967296]", "[0,8]") "}", "too many elements"},
        {"{\"a\":" TENSOR("F32", "[4611686018427387904]", "[0,0]") "}",
         "does not take the 0 bytes"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0]") "}", "is not [begin, end]"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,\"8\"]") "}", "is not [begin, end]"},
        {"{\"a\":" TENSOR("F32", "[2]", "[8,0]") "}", "offsets 8 to 0 are not within"},
        {"{\"a\":" TENSOR("F32", "[2]", "[-8,0]") "}", "offsets -8 to 0 are not within"},
        {"{\"a\":" TENSOR("F32", "[2]", "[4,12]") "}", "offsets 4 to 12 are not within"},
        {"{\"a\":" TENSOR("F32", "[3]", "[0,8]") "}", "shape (3) of F32 does not take the 8 bytes"},
        {"{\"a\":" TENSOR("F32", "[1]", "[0,4]") "}", "take 4 bytes, but 8 follow"},
        {"{\"a\":" TENSOR("F32", "[1]", "[4,8]") "}", "tensor a has unused bytes before it"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") ",\"b\":" TENSOR("U8", "[4]", "[4,8]") "}",
         "tensor b overlaps another"},
        {"{\"a\":" TENSOR("F32", "[2]", "[0,8]") ",\"a\":" TENSOR("F32", "[2]", "[0,8]") "}",
         "duplicate object key"},
        {"{\"__metadata__\":{\"format\":1},\"a\":" TENSOR("F32", "[2]", "[0,8]") "}",
         "\"__metadata__\" is not an object of strings"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        refused(write_raw("bad.safetensors", faults[i].header, NULL, 8), faults[i].piece);
}

static void checks_the_length(void **state)
{
    (void)state;
    struct zf_error err;
    const uint64_t lengths[] = {3, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 40};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char bytes[10] = {0};
        memcpy(bytes, &lengths[i], 8);
        memcpy(bytes + 8, "{}", 2);
        assert_works(file_write(in_directory("bad.safetensors"), bytes, sizeof bytes, &err), err);
        refused(in_directory("bad.safetensors"), "but the file has 10");
    }
    assert_works(file_write(in_directory("bad.safetensors"), "1234567", 7, &err), err);
    refused(in_directory("bad.safetensors"), "too short for a header");
    refused("/nonexistent/model.safetensors", "cannot be read: No such file");
    refused(directory, "not a regular file");
    struct safetensors *s = safetensors_open(write_raw("empty.safetensors", "{}  ", NULL, 0), &err);
    assert_non_null(s);
    assert_int_equal(safetensors_count(s), 0);
    assert_null(safetensors_find(s, "a"));
    safetensors_close(s);
}

static const char *write_index(const char *weight_map)
{
    struct zf_error err;
    char *text = zf_format("{\"metadata\": {\"total_size\": 1}, \"weight_map\": %s}", weight_map);
    assert_works(file_write(in_directory("m.safetensors.index.json"), text, strlen(text), &err),
                 err);
    free(text);
    return in_directory("m.safetensors.index.json");
}

static void opens_shards(void **state)
{
    (void)state;
    struct zf_error err;
    const float a[2] = {1, 2}, b[1] = {3};
    write_raw("1.safetensors", "{\"a\":" TENSOR("F32", "[2]", "[0,8]") "}", a, sizeof a);
    write_raw("2.safetensors", "{\"b\":" TENSOR("F32", "[1]", "[0,4]") "}", b, sizeof b);
    write_raw("3.safetensors", "{\"a\":" TENSOR("F32", "[1]", "[0,4]") "}", b, sizeof b);
    const char *path = write_index("{\"b\": \"2.safetensors\", \"a\": \"1.safetensors\"}");
    struct safetensors *s = safetensors_open(path, &err);
    if (!s)
        fail_msg("%s", err.text);
    assert_int_equal(safetensors_count(s), 2);
    float read;
    assert_works(tensor_read_f32(safetensors_find(s, "a"), &read, 1, 1, &err), err);
    assert_true(read == 2);
    assert_string_equal(safetensors_find(s, "b")->file, in_directory("2.safetensors"));
    safetensors_close(s);

    refused(write_index("{\"a\": \"1.safetensors\", \"c\": \"2.safetensors\"}"),
            "weight_map has c in 2.safetensors, but it is not there");
    refused(write_index("{\"a\": \"2.safetensors\", \"b\": \"1.safetensors\"}"),
            "weight_map has a in 2.safetensors, but it is not there");
    refused(write_index("{\"a\": \"../1.safetensors\"}"), "but shards stand beside it");
    refused(write_index("{\"a\": 1}"), "weight_map.a is not a file name");
    refused(write_index("{}"), "\"weight_map\" is missing or empty");
    refused(write_index("{"), "not valid JSON");
    assert_null(safetensors_open(write_index("{\"a\": \"4.safetensors\"}"), &err));
    assert_says(err, "4.safetensors: cannot be read");
    assert_null(safetensors_open(
        write_index("{\"a\": \"1.safetensors\", \"b\": \"3.safetensors\"}"), &err));
    assert_says(err, "tensor a stands in");
}

static void opens_files_of_others(void **state)
{
    (void)state;
    struct zf_error err;
    struct safetensors *s =
        safetensors_open(ZF_TESTS_DIR "/fixtures/gpt/loader-f16/model.safetensors", &err);
    if (!s)
        fail_msg("%s", err.text);
    assert_int_equal(safetensors_find(s, "transformer.h.0.attn.bias")->dtype, DTYPE_BOOL);
    assert_int_equal(safetensors_find(s, "transformer.h.0.attn.masked_bias")->n_dims, 0);
    assert_int_equal(safetensors_find(s, "score.weight")->dtype, DTYPE_F16);
    safetensors_close(s);
}

/* What a child says on standard error as it reads a file that becomes shorter under it. */
static void read_what_shrinks(const char *path, int out)
{
    struct zf_error err;
    dup2(out, STDERR_FILENO);
    struct safetensors *s = safetensors_open(path, &err);
    float values[4096];
    if (!s || truncate(path, 4096) != 0)
        _exit(2);
    tensor_read_f32(safetensors_at(s, 0), values, 4096, 4096, &err);
    _exit(0);
}

static void says_that_a_file_has_shrunk(void **state)
{
    (void)state;
    struct zf_error err;
    static const float zeros[8192];
    int ends[2], status;
    char text[512] = "";
    const char *path = in_directory("shrinks.safetensors");
    struct safetensors_writer *w = safetensors_write_begin(path, &err);
    assert_non_null(w);
    safetensors_write_declare(w, "w", DTYPE_F32, 1, (int64_t[]){8192});
    safetensors_write_data(w, zeros, sizeof zeros);
    assert_works(safetensors_write_end(w, true, &err), err);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0)
        read_what_shrinks(path, ends[1]);
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    close(ends[0]);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_non_null(strstr(text, "shrinks.safetensors: the file became shorter"));
}

int main(void)
{
    struct zf_error err;
    if (!mkdtemp(directory))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_it_writes),  cmocka_unit_test(writes_nothing_by_halves),
        cmocka_unit_test(converts_every_half),   cmocka_unit_test(believes_nothing),
        cmocka_unit_test(checks_the_length),     cmocka_unit_test(opens_shards),
        cmocka_unit_test(opens_files_of_others), cmocka_unit_test(says_that_a_file_has_shrunk),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_directory(directory, &err);
    return failed;
}
