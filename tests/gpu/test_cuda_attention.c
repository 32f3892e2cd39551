/* The CUDA device's attention against the CPU device's in fp32, on the same inputs: every head size
 * that has kernels of its own and some that have not, sequences of one token, of 300, on and beside
 * the tiles' bounds; dropout; and the same bits in every order of streams, blocks and threads. */
#include "tests/gpu/cuda_testing.h"

#define BOUND    1e-2 /* relative differences that bf16 may make */
#define MAX_SEQS 40

struct shape {
    int n_head, head_dim, n_seqs;
    int length[MAX_SEQS];
    float p;
};

/* A step's inputs, in host memory. */
struct arrays {
    int n, C;
    struct token_rows rows;
    int *position, *seq_start;
    uint32_t *token_seq;
    float *qkv, *dout;
};

struct results {
    float *out, *lse, *dqkv;
};

static struct device *device;

/* Worst differences so far of out, lse, dq, dk, dv, over the whole program. */
static double worst[5];
static const char *const result_names[5] = {"out", "lse", "dq", "dk", "dv"};

static struct arrays make_arrays(const struct shape *shape)
{
    struct arrays a = {.C = shape->n_head * shape->head_dim};
    for (int i = 0; i < shape->n_seqs; i++)
        a.n += shape->length[i];
    a.position = zf_malloc(sizeof(int) * a.n);
    a.token_seq = zf_malloc(sizeof(uint32_t) * a.n);
    a.seq_start = zf_malloc(sizeof(int) * (shape->n_seqs + 1));
    cuda_lay_sequences(shape->length, shape->n_seqs, 40, a.position, a.token_seq, a.seq_start);
    for (int t = 0; t < a.n; t++)
        a.position[t] += 3 * (int)a.token_seq[t]; /* what counts for dropout is this */
    a.rows = (struct token_rows){.n_tokens = a.n,
                                 .n_seqs = shape->n_seqs,
                                 .position = a.position,
                                 .seq_start = a.seq_start,
                                 .token_seq = a.token_seq};
    a.qkv = cuda_random((size_t)a.n * 3 * a.C, 1.7f, 1);
    a.dout = cuda_random((size_t)a.n * a.C, 1.7f, 2);
    return a;
}

static void free_arrays(struct arrays *a)
{
    free(a->position);
    free(a->seq_start);
    free(a->token_seq);
    free(a->qkv);
    free(a->dout);
}

static void free_results(struct results *r)
{
    free(r->out);
    free(r->lse);
    free(r->dqkv);
}

static struct results run(struct device *d, const struct arrays *a, const struct shape *shape)
{
    const size_t n = (size_t)a->n, C = (size_t)a->C, n_head = (size_t)shape->n_head;
    const size_t element = dtype_size(d->dtype);
    const struct dropout drop = {.p = shape->p, .seed = 3, .step = 9, .site = 6};
    const float scale = 1 / sqrtf((float)shape->head_dim);
    struct token_rows rows = a->rows;
    rows.position = cuda_upload(d, a->position, sizeof(int) * n);
    rows.seq_start = cuda_upload(d, a->seq_start, sizeof(int) * ((size_t)rows.n_seqs + 1));
    rows.token_seq = cuda_upload(d, a->token_seq, sizeof(uint32_t) * n);
    void *qkv = cuda_upload_floats(d, a->qkv, n * 3 * C, d->dtype);
    void *dout = cuda_upload_floats(d, a->dout, n * C, d->dtype);
    void *out = d->allocate(element * n * C), *dqkv = d->allocate(element * n * 3 * C);
    float *lse = d->allocate(sizeof(float) * n * n_head);
    d->ops->attention_forward(d->compute, out, lse, qkv, &rows, shape->n_head, shape->head_dim,
                              scale, drop);
    d->ops->attention_backward(d->compute, dqkv, dout, qkv, out, lse, &rows, shape->n_head,
                               shape->head_dim, scale, drop);
    const struct results r = {cuda_download(d, out, n * C, d->dtype),
                              cuda_download(d, lse, n * n_head, DTYPE_F32),
                              cuda_download(d, dqkv, n * 3 * C, d->dtype)};
    d->stream_wait(d->compute);
    void *const memory[] = {(void *)rows.position,
                            (void *)rows.seq_start,
                            (void *)rows.token_seq,
                            qkv,
                            dout,
                            out,
                            dqkv,
                            lse};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        d->release(memory[i]);
    return r;
}

static void same_bits(const struct results *x, const struct results *y, const struct arrays *a,
                      const struct shape *shape)
{
    const size_t n = (size_t)a->n, C = (size_t)a->C;
    assert_memory_equal(x->out, y->out, sizeof(float) * n * C);
    assert_memory_equal(x->lse, y->lse, sizeof(float) * n * (size_t)shape->n_head);
    assert_memory_equal(x->dqkv, y->dqkv, sizeof(float) * n * 3 * C);
}

/* Both devices on one shape. */
static void check(const struct shape *shape)
{
    struct arrays a = make_arrays(shape);
    struct results got = run(device, &a, shape), again = run(device, &a, shape);
    struct results expected = run(device_cpu(0), &a, shape);
    same_bits(&got, &again, &a, shape);
    const size_t n = (size_t)a.n, C = (size_t)a.C, n_head = (size_t)shape->n_head;
    double distance[5] = {cuda_relative_error(got.out, expected.out, n * C),
                          cuda_relative_error(got.lse, expected.lse, n * n_head)};
    for (size_t i = 0; i < 3; i++)
        distance[2 + i] = cuda_rows_error(got.dqkv + i * C, expected.dqkv + i * C, n, C, 3 * C);
    for (int i = 0; i < 5; i++) {
        if (!(distance[i] < BOUND))
            fail_msg("head size %d, %d heads, %d tokens in %d sequences, dropout %g: %s differs by "
                     "%.2e",
                     shape->head_dim, shape->n_head, a.n, shape->n_seqs, (double)shape->p,
                     result_names[i], distance[i]);
        worst[i] = distance[i] > worst[i] ? distance[i] : worst[i];
    }
    free_results(&got);
    free_results(&again);
    free_results(&expected);
    free_arrays(&a);
}

static const int head_sizes[] = {32, 64, 80, 96, 128};
#define N_HEAD_SIZES (sizeof head_sizes / sizeof *head_sizes)

/* Lengths on and beside the bounds of fragments and tiles, for each head size. */
static void agrees_for_every_head_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_HEAD_SIZES; i++) {
        check(&(struct shape){2, head_sizes[i], 6, {1, 16, 17, 70, 5, 129}, 0});
        check(&(struct shape){1, head_sizes[i], 4, {33, 1, 64, 20}, 0.2f});
    }
}

static void agrees_for_long_sequences(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_HEAD_SIZES; i++) {
        check(&(struct shape){1, head_sizes[i], 2, {300, 1}, 0});
        check(&(struct shape){1, head_sizes[i], 2, {13, 287}, 0.2f});
    }
}

/* More sequences than a warp has lanes. */
static void agrees_for_many_short_sequences(void **state)
{
    (void)state;
    struct shape shape = {1, 64, MAX_SEQS, {0}, 0.2f};
    for (int i = 0; i < MAX_SEQS; i++)
        shape.length[i] = 1 + i * 7 % 19;
    check(&shape);
}

static void agrees_for_odd_head_sizes(void **state)
{
    (void)state;
    check(&(struct shape){2, 8, 4, {5, 1, 40, 67}, 0});
    check(&(struct shape){3, 12, 3, {33, 2, 31}, 0.2f});
    check(&(struct shape){1, 100, 3, {1, 50, 7}, 0.2f});
    check(&(struct shape){1, 256, 2, {21, 1}, 0});
}

/* One token sees itself alone: out = v, dv = dout, and dq = dk = 0 but for the rounding of out. */
static void passes_single_tokens_through(void **state)
{
    (void)state;
    struct shape shape = {2, 64, 3, {1, 1, 1}, 0};
    struct arrays a = make_arrays(&shape);
    struct results r = run(device, &a, &shape);
    const size_t C = (size_t)a.C;
    for (size_t t = 0; t < 3; t++) {
        assert_memory_equal(r.out + t * C, a.qkv + (t * 3 + 2) * C, sizeof(float) * C);
        assert_memory_equal(r.dqkv + (t * 3 + 2) * C, a.dout + t * C, sizeof(float) * C);
        for (size_t i = 0; i < 2 * C; i++)
            assert_true(fabsf(r.dqkv[t * 3 * C + i]) < 1e-4f);
    }
    free_results(&r);
    free_arrays(&a);
}

static void gives_the_same_bits_in_every_order(void **state)
{
    (void)state;
    const struct shape shapes[] = {{2, 32, 3, {18, 1, 40}, 0.2f}, {2, 12, 3, {9, 1, 14}, 0.2f}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct arrays a = make_arrays(&shapes[i]);
        struct results first = run(device, &a, &shapes[i]);
        for (uint32_t order = 0; order < CUDA_ORDERS; order++) {
            cuda_order(order);
            struct results r = run(device, &a, &shapes[i]);
            same_bits(&r, &first, &a, &shapes[i]);
            free_results(&r);
        }
        free_results(&first);
        free_arrays(&a);
    }
}

static void ignores_no_tokens(void **state)
{
    (void)state;
    const struct token_rows none = {0};
    device->ops->attention_forward(device->compute, NULL, NULL, NULL, &none, 2, 64, 1,
                                   (struct dropout){0});
    device->ops->attention_backward(device->compute, NULL, NULL, NULL, NULL, NULL, &none, 2, 64, 1,
                                    (struct dropout){0});
    device->stream_wait(device->compute);
}

static int report(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        print_message("worst relative difference of %s: %.2e\n", result_names[i], worst[i]);
    return 0;
}

int main(void)
{
    device = cuda_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_for_every_head_size),
        cmocka_unit_test(agrees_for_long_sequences),
        cmocka_unit_test(agrees_for_many_short_sequences),
        cmocka_unit_test(agrees_for_odd_head_sizes),
        cmocka_unit_test(passes_single_tokens_through),
        cmocka_unit_test(gives_the_same_bits_in_every_order),
        cmocka_unit_test(ignores_no_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, report);
}
