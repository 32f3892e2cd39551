/* Matrix products of the CUDA device: every shape, flag and epilogue, fused or in a pass of its
 * own, against the CPU device in fp32 on the same values of bf16. */
#include "tests/gpu/cuda_testing.h"

#define BF16_BOUND 1e-2 /* relative norms of errors */
#define F32_BOUND  1e-4 /* where only the order of fp32 sums differs */

static struct device *cuda, *cpu;

/* One product and its arrays in host memory; all but c and pre are inputs. `offset`: elements by
 * which the device's arrays begin later than their allocation. */
struct example {
    struct matmul p;
    float *a, *b, *bias, *c, *gradient_of;
    size_t c_length;
    size_t offset;
};

static void example_create(struct example *e, const struct matmul *shape, bool bias,
                           bool gradient_of, uint32_t key)
{
    const struct matmul *p = shape;
    e->p = *p;
    e->offset = 0;
    e->c_length = (size_t)p->m * p->n;
    e->a = cuda_random((size_t)p->m * p->k, 1, key);
    e->b = cuda_random((size_t)p->n * p->k, 2.0f / sqrtf((float)p->k + 1), key + 1);
    e->bias = bias ? cuda_random((size_t)p->n, 1, key + 2) : NULL;
    e->c = cuda_random(e->c_length, 1, key + 3);
    e->gradient_of = gradient_of ? cuda_random(e->c_length, 3, key + 4) : NULL;
}

static void example_destroy(struct example *e)
{
    free(e->a);
    free(e->b);
    free(e->bias);
    free(e->c);
    free(e->gradient_of);
}

struct result {
    float *c, *pre; /* pre: or NULL */
};

static void result_destroy(struct result *r)
{
    free(r->c);
    free(r->pre);
}

static struct result run_cpu(const struct example *e, bool pre)
{
    struct result r = {zf_malloc_aligned(sizeof(float) * (e->c_length + 1)), NULL};
    r.pre = pre ? zf_malloc_aligned(sizeof(float) * (e->c_length + 1)) : NULL;
    memcpy(r.c, e->c, sizeof(float) * e->c_length);
    struct matmul p = e->p;
    p.bias = e->bias;
    p.gradient_of = e->gradient_of;
    p.pre = r.pre;
    cpu->ops->matmul(cpu->compute, r.c, e->a, e->b, &p);
    return r;
}

/* The array itself, `offset` elements after the allocation's begin. */
struct placed {
    void *memory, *at;
};

static struct placed place(const float *x, size_t n, size_t offset, enum dtype dtype)
{
    float *padded = zf_malloc_aligned(sizeof(float) * (n + offset + 1));
    memset(padded, 0, sizeof(float) * (offset + 1));
    memcpy(padded + offset, x, sizeof(float) * n);
    struct placed p;
    p.memory = cuda_upload_floats(cuda, padded, n + offset, dtype);
    p.at = (char *)p.memory + offset * dtype_size(dtype);
    free(padded);
    return p;
}

static struct placed place_optional(const float *x, size_t n, size_t offset)
{
    return x ? place(x, n, offset, DTYPE_BF16) : (struct placed){NULL, NULL};
}

static struct result run_cuda(const struct example *e, bool pre)
{
    const size_t o = e->offset;
    const struct matmul *shape = &e->p;
    const enum dtype c_dtype = shape->c_is_f32 ? DTYPE_F32 : DTYPE_BF16;
    struct placed a = place(e->a, (size_t)shape->m * shape->k, o, DTYPE_BF16);
    struct placed b = place(e->b, (size_t)shape->n * shape->k, o, DTYPE_BF16);
    struct placed c = place(e->c, e->c_length, o, c_dtype);
    struct placed bias = place_optional(e->bias, (size_t)shape->n, o);
    struct placed gradient_of = place_optional(e->gradient_of, e->c_length, o);
    struct placed kept = place_optional(pre ? e->c : NULL, e->c_length, o);
    struct matmul p = e->p;
    p.bias = bias.at;
    p.gradient_of = gradient_of.at;
    p.pre = kept.at;
    cuda->ops->matmul(cuda->compute, c.at, a.at, b.at, &p);
    struct result r = {.c = cuda_download(cuda, c.at, e->c_length, c_dtype),
                       .pre = pre ? cuda_download(cuda, kept.at, e->c_length, DTYPE_BF16) : NULL};
    void *all[] = {a.memory, b.memory, c.memory, bias.memory, gradient_of.memory, kept.memory};
    for (int i = 0; i < 6; i++)
        cuda->release(all[i]);
    return r;
}

static const char *describe(const struct example *e, bool pre)
{
    static char text[200];
    const struct matmul *p = &e->p;
    snprintf(text, sizeof text, "m %d n %d k %d%s%s%s%s%s%s%s act %d offset %zu", p->m, p->n, p->k,
             p->trans_a ? " trans_a" : "", p->trans_b ? " trans_b" : "",
             p->accumulate ? " accumulate" : "", p->c_is_f32 ? " f32" : "", e->bias ? " bias" : "",
             e->gradient_of ? " gradient_of" : "", pre ? " pre" : "", (int)p->act, e->offset);
    return text;
}

static void compare(const struct example *e, bool pre)
{
    struct result expected = run_cpu(e, pre), r = run_cuda(e, pre);
    const char *what = describe(e, pre);
    assert_relative_error(what, r.c, expected.c, e->c_length,
                          e->p.c_is_f32 ? F32_BOUND : BF16_BOUND);
    if (pre)
        assert_relative_error(what, r.pre, expected.pre, e->c_length, BF16_BOUND);
    result_destroy(&expected);
    result_destroy(&r);
}

#define N_FLAGS 512

static void compare_flags(int m, int n, int k, unsigned flags, size_t offset, uint32_t key)
{
    const struct matmul shape = {.m = m,
                                 .n = n,
                                 .k = k,
                                 .trans_a = flags & 1,
                                 .trans_b = flags & 2,
                                 .accumulate = flags & 4,
                                 .c_is_f32 = flags & 8,
                                 .act = (enum activation)(flags >> 4 & 3)};
    struct example e;
    example_create(&e, &shape, flags & 64, flags & 128, key);
    e.offset = offset;
    compare(&e, flags & 256);
    example_destroy(&e);
}

/* On aligned rows, odd rows, few labels, unaligned arrays, and sums over nothing. */
static void every_combination_of_flags(void **state)
{
    (void)state;
    static const struct {
        int m, n, k;
        size_t offset;
    } shapes[] = {{21, 24, 40, 0}, {9, 11, 13, 0}, {5, 3, 9, 0}, {7, 16, 8, 3}, {6, 8, 0, 0}};
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned flags = 0; flags < N_FLAGS; flags++)
            compare_flags(shapes[i].m, shapes[i].n, shapes[i].k, flags, shapes[i].offset, i + 1);
}

static void random_shapes(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        const int step = i % 3 == 0 ? 8 : 1;
        compare_flags(cuda_random_int(1, 150, i, 4), step * cuda_random_int(1, 100 / step, i, 5),
                      step * cuda_random_int(1, 200 / step, i, 6),
                      (unsigned)cuda_random_int(0, N_FLAGS - 1, i, 3), 0, i);
    }
}

/* One plan serves many lengths: the products of a layer, forward and backward, with more tokens and
 * with fewer. */
static void any_number_of_tokens(void **state)
{
    (void)state;
    static const int tokens[] = {1, 2, 63, 64, 65, 128, 3, 300, 77, 1};
    for (uint32_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const int t = tokens[i];
        const struct matmul shapes[] = {
            {.m = t, .n = 48, .k = 16, .act = ACT_GELU_TANH},
            {.m = t, .n = 16, .k = 48, .trans_b = true, .act = ACT_GELU_TANH},
            {.m = 16, .n = 48, .k = t, .trans_a = true, .accumulate = true, .c_is_f32 = true},
        };
        for (int j = 0; j < 3; j++) {
            struct example e;
            example_create(&e, &shapes[j], j == 0, j == 1, i);
            compare(&e, j == 0);
            example_destroy(&e);
        }
    }
}

static void nothing_to_compute(void **state)
{
    (void)state;
    const struct matmul shapes[] = {{.m = 0, .n = 8, .k = 8}, {.m = 8, .n = 0, .k = 8}};
    for (int i = 0; i < 2; i++) {
        struct example e;
        example_create(&e, &shapes[i], true, false, 1);
        compare(&e, true);
        example_destroy(&e);
    }
}

/* The same bits each time, whatever came before and in whatever order streams run. */
static void same_bits_in_every_order(void **state)
{
    (void)state;
    const struct matmul shapes[] = {
        {.m = 35, .n = 24, .k = 16, .act = ACT_GELU_TANH},
        {.m = 24, .n = 16, .k = 35, .trans_a = true, .accumulate = true, .c_is_f32 = true},
        {.m = 35, .n = 16, .k = 24, .accumulate = true, .act = ACT_GELU_ERF},
        {.m = 35, .n = 2, .k = 24, .c_is_f32 = true},
    };
    for (int i = 0; i < 4; i++) {
        struct example e;
        example_create(&e, &shapes[i], i != 1, false, 9);
        struct result first = run_cuda(&e, i == 0);
        const uint32_t n_orders = CUDA_ORDERS > 1 ? CUDA_ORDERS : 5;
        for (uint32_t order = 0; order < n_orders; order++) {
            cuda_order(order);
            struct result again = run_cuda(&e, i == 0);
            assert_memory_equal(again.c, first.c, sizeof(float) * e.c_length);
            if (i == 0)
                assert_memory_equal(again.pre, first.pre, sizeof(float) * e.c_length);
            result_destroy(&again);
        }
        result_destroy(&first);
        example_destroy(&e);
    }
}

/* Products on two streams at once, each with scratch of its own. */
static void streams_do_not_share_scratch(void **state)
{
    (void)state;
    const struct matmul shape = {
        .m = 40, .n = 24, .k = 16, .accumulate = true, .act = ACT_GELU_ERF};
    struct example e;
    example_create(&e, &shape, true, false, 11);
    struct result expected = run_cuda(&e, false);
    for (uint32_t order = 0; order < CUDA_ORDERS; order++) {
        cuda_order(order);
        struct stream *streams[2] = {cuda->stream_create(STREAM_BEHIND),
                                     cuda->stream_create(STREAM_BEHIND)};
        struct placed a = place(e.a, 40 * 16, 0, DTYPE_BF16),
                      b = place(e.b, 24 * 16, 0, DTYPE_BF16);
        struct placed bias = place(e.bias, 24, 0, DTYPE_BF16);
        struct placed c[2] = {place(e.c, e.c_length, 0, DTYPE_BF16),
                              place(e.c, e.c_length, 0, DTYPE_BF16)};
        struct matmul p = e.p;
        p.bias = bias.at;
        cuda->stream_wait(cuda->compute);
        for (int i = 0; i < 2; i++)
            cuda->ops->matmul(streams[i], c[i].at, a.at, b.at, &p);
        for (int i = 0; i < 2; i++) {
            cuda->stream_wait(streams[i]);
            float *result = cuda_download(cuda, c[i].at, e.c_length, DTYPE_BF16);
            assert_memory_equal(result, expected.c, sizeof(float) * e.c_length);
            free(result);
            cuda->stream_destroy(streams[i]);
            cuda->release(c[i].memory);
        }
        cuda->release(a.memory);
        cuda->release(b.memory);
        cuda->release(bias.memory);
    }
    result_destroy(&expected);
    example_destroy(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_of_flags),
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(any_number_of_tokens),
        cmocka_unit_test(nothing_to_compute),
        cmocka_unit_test(same_bits_in_every_order),
        cmocka_unit_test(streams_do_not_share_scratch),
    };
    cpu = device_cpu(2);
    cuda = cuda_device();
    return cmocka_run_group_tests_name("cuda_matmul", tests, NULL, NULL);
}
