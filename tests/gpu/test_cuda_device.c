/* The CUDA device: memory, copies of ordinary and of pinned memory, streams, events, calls. */
#include "tests/gpu/cuda_testing.h"

#include "model/gpt.h"

#include <math.h>

#define N ((size_t)100003)

static struct device *cuda;

static void says_what_it_is(void **state)
{
    (void)state;
    struct zf_error err;
    assert_string_equal(cuda->name, "cuda");
    assert_int_equal(cuda->dtype, DTYPE_BF16);
    assert_false(cuda->unified);
    assert_true(device_cuda_count() >= 1);
    assert_ptr_equal(device_cuda(0, &err), cuda);
}

static void there_is_no_second_device(void **state)
{
    (void)state;
    struct zf_error err;
    assert_null(device_cuda(1, &err));
    assert_says(err, "uses CUDA device 0 already");
}

static void allocations_are_aligned_and_apart(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 255, 256, 257, 100000};
    char *memory[6];
    for (int i = 0; i < 6; i++) {
        memory[i] = cuda->allocate(sizes[i]);
        assert_int_equal((uintptr_t)memory[i] % 256, 0);
        for (int j = 0; j < i; j++)
            assert_true(memory[i] + sizes[i] <= memory[j] || memory[j] + sizes[j] <= memory[i]);
    }
    for (int i = 0; i < 6; i++)
        cuda->release(memory[i]);
    cuda->release(NULL);
}

static void reserved_memory_is_handed_out(void **state)
{
    (void)state;
    struct zf_error err;
    size_t before = 0; /* of the second round: in the first the driver may take memory for itself */
    for (int round = 0; round < 3; round++) {
        if (round < 2)
            before = cuda->free_bytes();
        assert_works(cuda->reserve((size_t)8 << 20, &err), err);
        assert_false(cuda->reserve(256, &err));
        assert_says(err, "reserved already");
        char *a = cuda->allocate(1000), *b = cuda->allocate((size_t)4 << 20);
        char *outside = cuda->allocate((size_t)6 << 20);
        assert_ptr_equal(b, a + 1024);
        assert_true(outside < a || outside >= a + ((size_t)8 << 20));
        assert_true(cuda->free_bytes() < before);
        cuda->release(a);
        cuda->release(outside);
        cuda->release(b);
        if (round > 0)
            assert_int_equal(cuda->free_bytes(), before);
    }
    assert_false(cuda->reserve((size_t)1 << 50, &err));
    assert_says(err, "cannot reserve 1048576.00 GiB");
    cuda->release(cuda->allocate(1));
}

static unsigned char *bytes_of(size_t n, uint32_t key)
{
    unsigned char *x = zf_malloc(n);
    for (size_t i = 0; i < n; i++)
        x[i] = (unsigned char)(i * 37 + (i >> 8) + (i >> 17) * 11 + key);
    return x;
}

/* More than all of the slots that it goes through hold, and changed as soon as it was given. */
static void ordinary_memory_is_read_at_once(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4099, (size_t)11 << 20};
    for (uint32_t order = 0; order < CUDA_ORDERS; order++) {
        cuda_order(order);
        const size_t n = sizes[order == 0 ? 2 : order % 3];
        unsigned char *x = bytes_of(n, order), *expected = bytes_of(n, order);
        unsigned char *back = zf_malloc(n);
        void *memory = cuda->allocate(n);
        cuda->copy(cuda->compute, memory, x, n);
        memset(x, 0, n);
        cuda->copy(cuda->compute, back, memory, n);
        assert_memory_equal(back, expected, n);
        cuda->release(memory);
        free(x);
        free(expected);
        free(back);
    }
}

static void pinned_memory_is_read_in_the_stream(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < CUDA_ORDERS; order++) {
        cuda_order(order);
        unsigned char *expected = bytes_of(N, order), *x = cuda->allocate_host(N);
        unsigned char *y = cuda->allocate_host(N);
        void *memory = cuda->allocate(N), *other = cuda->allocate(N);
        struct stream *s = cuda->stream_create(STREAM_BEHIND);
        memcpy(x, expected, N);
        cuda->copy(s, memory, x, N);
        cuda->copy(s, other, memory, N);
        cuda->zero(s, memory, N - 1);
        cuda->copy(s, y, other, N);
        cuda->stream_wait(s);
        assert_memory_equal(y, expected, N);
        cuda->copy(s, y, memory, N);
        cuda->stream_wait(s);
        for (size_t i = 0; i < N - 1; i++)
            assert_int_equal(y[i], 0);
        assert_int_equal(y[N - 1], expected[N - 1]);
        cuda->stream_destroy(s);
        cuda->release(memory);
        cuda->release(other);
        cuda->release_host(x);
        cuda->release_host(y);
        free(expected);
    }
}

/* Copies wait for what they need of it, and cross from one piece to the next; where they begin and
 * end is all one. What is released may not be pinned yet. */
static void memory_is_pinned_by_and_by(void **state)
{
    enum { PIECES = 20, PIECE = 4099, LATER = PIECES * PIECE };
    (void)state;
    for (uint32_t order = 0; order < CUDA_ORDERS; order++) {
        cuda_order(order);
        unsigned char *expected = bytes_of(LATER, order);
        unsigned char *x = cuda->allocate_host_later(LATER), *y = cuda->allocate_host_later(LATER);
        void *unused = cuda->allocate_host_later(LATER), *memory = cuda->allocate(LATER);
        memcpy(x, expected, LATER);
        memset(y, 0, LATER);
        cuda->release_host(unused);
        for (int i = PIECES - 1; i >= 0; i--)
            cuda->copy(cuda->compute, (char *)memory + i * PIECE, x + i * PIECE, PIECE);
        cuda->copy(cuda->compute, y, memory, LATER - 1);
        cuda->stream_wait(cuda->compute);
        assert_memory_equal(y, expected, LATER - 1);
        assert_int_equal(y[LATER - 1], 0);
        cuda->release_host(x);
        cuda->release_host(y);
        cuda->release(memory);
        free(expected);
    }
}

/* What one stream writes another reads, there and back, by events alone. */
static void events_order_streams(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < CUDA_ORDERS; order++) {
        cuda_order(order);
        unsigned char *expected = bytes_of(N, order), *x = cuda->allocate_host(N);
        void *memory[5];
        struct stream *streams[5];
        struct event *event = cuda->event_create();
        memcpy(x, expected, N);
        for (int i = 0; i < 5; i++) {
            streams[i] = cuda->stream_create(STREAM_BEHIND);
            memory[i] = cuda->allocate(N);
            if (i > 0)
                cuda->event_order(streams[i], event);
            cuda->copy(streams[i], memory[i], i ? memory[i - 1] : x, N);
            cuda->event_record(event, streams[i]);
        }
        cuda->event_order(cuda->compute, event);
        cuda->copy(cuda->compute, x, memory[4], N);
        cuda->event_record(event, cuda->compute);
        cuda->event_wait(event);
        assert_memory_equal(x, expected, N);
        for (int i = 0; i < 5; i++) {
            cuda->stream_destroy(streams[i]);
            cuda->release(memory[i]);
        }
        cuda->event_destroy(event);
        cuda->release_host(x);
        free(expected);
    }
}

/* The device's own time, of any streams: of work given at once, each piece takes some, and all
 * together what they take together; and the host need not wait to be told. */
static void timed_events_tell_the_devices_time(void **state)
{
    (void)state;
    enum { PIECES = 4, BYTES = 8 << 20 };
    struct stream *other = cuda->stream_create(STREAM_BEHIND);
    struct event *event[PIECES + 1];
    char *memory = cuda->allocate(BYTES);
    double sum = 0;
    for (int i = 0; i <= PIECES; i++) {
        event[i] = cuda->event_create_timed();
        struct stream *stream = i % 2 ? other : cuda->compute;
        if (i > 0) {
            cuda->event_order(stream, event[i - 1]);
            cuda->zero(stream, memory, BYTES);
        }
        cuda->event_record(event[i], stream);
    }
    while (!cuda->event_passed(event[PIECES]))
        ;
    for (int i = 0; i < PIECES; i++) {
        double seconds = cuda->event_elapsed(event[i], event[i + 1]);
        assert_true(seconds > 0);
        sum += seconds;
    }
    double whole = cuda->event_elapsed(event[0], event[PIECES]);
    assert_true(fabs(sum - whole) < 1e-5);
    assert_true(fabs(cuda->event_elapsed(event[PIECES], event[0]) + whole) < 1e-5);
    for (int i = 0; i <= PIECES; i++)
        cuda->event_destroy(event[i]);
    cuda->release(memory);
    cuda->stream_wait(other);
    cuda->stream_destroy(other);
}

static void an_event_never_recorded_has_passed(void **state)
{
    (void)state;
    struct event *event = cuda->event_create();
    cuda->event_order(cuda->compute, event);
    cuda->event_wait(event);
    cuda->stream_wait(cuda->compute);
    cuda->event_destroy(event);
}

struct call {
    const unsigned char *watched; /* pinned */
    unsigned char seen;
    int number, *calls;
};

static void look(void *argument)
{
    struct call *call = argument;
    call->seen = *call->watched;
    call->number = (*call->calls)++;
}

/* Each call comes after what was put on the stream before it, and before what comes after. */
static void calls_come_in_order(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < CUDA_ORDERS; order++) {
        cuda_order(order);
        unsigned char *x = cuda->allocate_host(2);
        unsigned char *values = cuda->allocate_host(8);
        void *memory = cuda->allocate(8);
        struct stream *s = cuda->stream_create(STREAM_BEHIND);
        struct call calls[8];
        int n_calls = 0;
        for (int i = 0; i < 8; i++)
            values[i] = (unsigned char)(i + 1);
        x[0] = 0;
        cuda->copy(s, memory, values, 8);
        for (int i = 0; i < 8; i++) {
            calls[i] = (struct call){x, 0, -1, &n_calls};
            cuda->copy(s, x, (char *)memory + i, 1);
            cuda->stream_call(s, look, &calls[i]);
        }
        cuda->stream_wait(s);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(calls[i].seen, i + 1);
            assert_int_equal(calls[i].number, i);
        }
        cuda->stream_destroy(s);
        cuda->release(memory);
        cuda->release_host(x);
        cuda->release_host(values);
    }
}

static void nothing_is_copied(void **state)
{
    (void)state;
    unsigned char x[4] = {1, 2, 3, 4};
    void *memory = cuda_upload(cuda, x, 4);
    cuda->copy(cuda->compute, memory, x + 1, 0);
    cuda->zero(cuda->compute, memory, 0);
    unsigned char back[4] = {0};
    cuda->copy(cuda->compute, back, memory, 4);
    assert_memory_equal(back, x, 4);
    cuda->release(memory);
}

/* Sentences name the widths as the model's own config.json does. */
static void assert_too_wide(const char *preset, int n_embd, int head_dim, const char *words)
{
    struct gpt_config c;
    struct zf_error err;
    assert_works(gpt_config_preset(&c, preset, &err), err);
    c.n_embd = n_embd;
    c.head_dim = head_dim;
    if (words) {
        assert_false(gpt_fits_device(&c, cuda, &err));
        assert_says(err, words);
    } else {
        assert_works(gpt_fits_device(&c, cuda, &err), err);
    }
}

static void too_wide_models_are_refused(void **state)
{
    (void)state;
    assert_too_wide("gpt2", 8192, 128, NULL);
    assert_too_wide("gpt2", 2047, 256, NULL);
    assert_too_wide("gpt2", 8200, 64, "n_embd is 8200, but the cuda device takes at most 8192");
    assert_too_wide("gpt2", 2049, 64, "2048 where it is no multiple of 8");
    assert_too_wide("gpt2", 1024, 512, "heads are 512 wide (n_embd / n_head), but");
    assert_too_wide("llama", 8200, 64, "hidden_size is 8200, but the cuda device takes");
    assert_too_wide("llama", 1024, 320,
                    "320 wide (head_dim, or hidden_size / num_attention_heads), but the cuda");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_it_is),
        cmocka_unit_test(there_is_no_second_device),
        cmocka_unit_test(allocations_are_aligned_and_apart),
        cmocka_unit_test(reserved_memory_is_handed_out),
        cmocka_unit_test(ordinary_memory_is_read_at_once),
        cmocka_unit_test(pinned_memory_is_read_in_the_stream),
        cmocka_unit_test(memory_is_pinned_by_and_by),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(timed_events_tell_the_devices_time),
        cmocka_unit_test(an_event_never_recorded_has_passed),
        cmocka_unit_test(calls_come_in_order),
        cmocka_unit_test(nothing_is_copied),
        cmocka_unit_test(too_wide_models_are_refused),
    };
    cuda = cuda_device();
    return cmocka_run_group_tests_name("cuda_device", tests, NULL, NULL);
}
