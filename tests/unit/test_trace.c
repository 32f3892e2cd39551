/* offload/trace: spans of streams, whose times come late and from another clock. */
#include "tests/testing.h"

#include "model/device/device.h"
#include "offload/comm/comm.h"
#include "offload/trace.h"

#include <jansson.h>

/* The CPU device, but that its events pass when the test says so, and its clock runs at another
 * speed. */
static struct device device;
static bool passing;
static double speed;

static bool event_passed(struct event *event)
{
    (void)event;
    return passing;
}

static double event_elapsed(struct event *from, struct event *to)
{
    return speed * device_cpu(1)->event_elapsed(from, to);
}

static char path[] = "/tmp/zf-test-trace-XXXXXX";

static struct trace *begin(struct comm *comm)
{
    struct zf_error err;
    device = *device_cpu(1);
    device.event_passed = event_passed;
    device.event_elapsed = event_elapsed;
    struct trace *t = trace_create(path, comm, &device, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

/* The file's spans; with the bracket that it does not have before the trace is destroyed. */
static json_t *read_spans(bool is_whole)
{
    static char text[65536];
    FILE *file = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 2, file);
    fclose(file);
    strcpy(text + n, is_whole ? "" : "]");
    json_error_t error;
    json_t *all = json_loads(text, 0, &error), *spans = json_array();
    if (!all)
        fail_msg("%s: line %d: %s", text, error.line, error.text);
    for (size_t i = 0; i < json_array_size(all); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(all, i), "ph")), "X") == 0)
            json_array_append(spans, json_array_get(all, i));
    json_decref(all);
    return spans;
}

static long long number(const json_t *spans, size_t i, const char *key)
{
    return json_integer_value(json_object_get(json_array_get(spans, i), key));
}

static void assert_span(const json_t *spans, size_t i, const char *name, int lane)
{
    assert_string_equal(json_string_value(json_object_get(json_array_get(spans, i), "name")), name);
    assert_int_equal(number(spans, i, "tid"), lane + 1);
}

static void spans_are_written_when_they_are_known(void **state)
{
    (void)state;
    struct zf_error err;
    struct comm *comm = comm_create_alone();
    speed = 1;
    passing = false;
    struct trace *t = begin(comm);
    trace_begin_step(t, 7);
    trace_begin(t, TRACE_DEVICE, "forward");
    trace_end(t, TRACE_DEVICE, 12);
    trace_end_step(t);
    json_t *spans = read_spans(false);
    assert_int_equal(json_array_size(spans), 1); /* the host's own */
    json_decref(spans);
    passing = true;
    trace_begin(t, TRACE_HOST, "save");
    trace_end(t, TRACE_HOST, 0);
    spans = read_spans(false);
    assert_int_equal(json_array_size(spans), 4);
    assert_span(spans, 0, "step", TRACE_HOST);
    assert_span(spans, 1, "step", TRACE_DEVICE); /* before what is in it */
    assert_span(spans, 2, "forward", TRACE_DEVICE);
    assert_span(spans, 3, "save", TRACE_HOST);
    json_t *arguments = json_object_get(json_array_get(spans, 2), "args");
    assert_int_equal(json_integer_value(json_object_get(arguments, "step")), 7);
    assert_int_equal(json_integer_value(json_object_get(arguments, "bytes")), 12);
    json_decref(spans);
    passing = false;
    trace_begin(t, TRACE_DEVICE, "left open");
    assert_works(trace_destroy(t, &err), err);
    spans = read_spans(true);
    assert_int_equal(json_array_size(spans), 5);
    assert_span(spans, 4, "left open", TRACE_DEVICE);
    json_decref(spans);
    comm_destroy(comm);
}

/* A device whose clock is wrong by a half: no mark comes before it was recorded, or after the host
 * saw that it had passed, and spans stay one within another. */
static void clocks_may_differ(void **state)
{
    (void)state;
    struct zf_error err;
    struct comm *comm = comm_create_alone();
    passing = true;
    for (int fast = 0; fast < 2; fast++) {
        speed = fast ? 1.5 : 0.5;
        struct trace *t = begin(comm);
        for (int i = 0; i < 6; i++) {
            trace_begin_step(t, i);
            trace_begin(t, TRACE_DEVICE, "forward");
            usleep(3000);
            trace_end(t, TRACE_DEVICE, 0);
            trace_end_step(t);
        }
        assert_works(trace_destroy(t, &err), err);
        json_t *spans = read_spans(true);
        assert_int_equal(json_array_size(spans), 18);
        for (size_t i = 0; i < 18; i++) {
            long long begin = number(spans, i, "ts"), end = begin + number(spans, i, "dur");
            assert_span(spans, i, i % 3 == 2 ? "forward" : "step",
                        i % 3 ? TRACE_DEVICE : TRACE_HOST);
            for (size_t k = i - i % 3; k < i; k++) /* what it is in */
                assert_true(number(spans, k, "ts") <= begin &&
                            end <= number(spans, k, "ts") + number(spans, k, "dur"));
        }
        json_decref(spans);
    }
    comm_destroy(comm);
}

static int make_path(void **state)
{
    (void)state;
    int file = mkstemp(path);
    return file < 0 ? -1 : close(file);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_are_written_when_they_are_known),
        cmocka_unit_test(clocks_may_differ),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
