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
    int n_kv_head, window; /* 0: n_head; none */
};

static struct heads heads_of(const struct shape *shape)
{
    return (struct heads){shape->n_head, shape->n_kv_head ? shape->n_kv_head : shape->n_head,
                          shape->head_dim};
}

/* A step's inputs, in host memory. */
struct arrays {
    int n, C, row; /* row: of q, k and v */
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
    const struct heads heads = heads_of(shape);
    struct arrays a = {.C = shape->n_head * shape->head_dim, .row = heads_row(&heads)};
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
    a.qkv = cuda_random((size_t)a.n * a.row, 1.7f, 1);
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
    const size_t element = dtype_size(d->dtype), n_row = n * (size_t)a->row;
    const struct attention attention = {
        .heads = heads_of(shape),
        .window = shape->window,
        .scale = 1 / sqrtf((float)shape->head_dim),
        .drop = {.p = shape->p, .seed = 3, .step = 9, .site = 6},
    };
    struct token_rows rows = a->rows;
    rows.position = cuda_upload(d, a->position, sizeof(int) * n);
    rows.seq_start = cuda_upload(d, a->seq_start, sizeof(int) * ((size_t)rows.n_seqs + 1));
    rows.token_seq = cuda_upload(d, a->token_seq, sizeof(uint32_t) * n);
    void *qkv = cuda_upload_floats(d, a->qkv, n_row, d->dtype);
    void *dout = cuda_upload_floats(d, a->dout, n * C, d->dtype);
    void *out = d->allocate(element * n * C), *dqkv = d->allocate(element * n_row);
    float *lse = d->allocate(sizeof(float) * n * n_head);
    d->ops->attention_forward(d->compute, out, lse, qkv, &rows, &attention);
    d->ops->attention_backward(d->compute, dqkv, dout, qkv, out, lse, &rows, &attention);
    const struct results r = {cuda_download(d, out, n * C, d->dtype),
                              cuda_download(d, lse, n * n_head, DTYPE_F32),
                              cuda_download(d, dqkv, n_row, d->dtype)};
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
    assert_memory_equal(x->dqkv, y->dqkv, sizeof(float) * n * (size_t)a->row);
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
    const size_t row = (size_t)a.row, kv = (row - C) / 2, width[3] = {C, kv, kv};
    for (size_t i = 0, at = 0; i < 3; at += width[i++])
        distance[2 + i] = cuda_rows_error(got.dqkv + at, expected.dqkv + at, n, width[i], row);
    for (int i = 0; i < 5; i++) {
        if (!(distance[i] < BOUND))
            fail_msg("head size %d, %d heads, %d of keys, window %d, %d tokens in %d sequences, "
                     "dropout %g: %s differs by %.2e",
                     shape->head_dim, shape->n_head, shape->n_kv_head, shape->window, a.n,
                     shape->n_seqs, (double)shape->p, result_names[i], distance[i]);
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
        check(&(struct shape){2, head_sizes[i], 6, {1, 16, 17, 70, 5, 129}, .p = 0});
        check(&(struct shape){1, head_sizes[i], 4, {33, 1, 64, 20}, .p = 0.2f});
    }
}

static void agrees_for_long_sequences(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_HEAD_SIZES; i++) {
        check(&(struct shape){1, head_sizes[i], 2, {300, 1}, .p = 0});
        check(&(struct shape){1, head_sizes[i], 2, {13, 287}, .p = 0.2f});
    }
}

/* More sequences than a warp has lanes. */
static void agrees_for_many_short_sequences(void **state)
{
    (void)state;
    struct shape shape = {1, 64, MAX_SEQS, {0}, .p = 0.2f};
    for (int i = 0; i < MAX_SEQS; i++)
        shape.length[i] = 1 + i * 7 % 19;
    check(&shape);
}

static void agrees_for_odd_head_sizes(void **state)
{
    (void)state;
    check(&(struct shape){2, 8, 4, {5, 1, 40, 67}, .p = 0});
    check(&(struct shape){3, 12, 3, {33, 2, 31}, .p = 0.2f});
    check(&(struct shape){1, 100, 3, {1, 50, 7}, .p = 0.2f});
    check(&(struct shape){1, 256, 2, {21, 1}, .p = 0});
}

/* Groups of 2, 3 and 4; a group's heads follow one another in one walk over queries. */
static void agrees_for_shared_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_HEAD_SIZES; i++) {
        check(&(struct shape){6, head_sizes[i], 4, {17, 1, 129, 40}, .p = 0, .n_kv_head = 2});
        check(&(struct shape){2, head_sizes[i], 2, {70, 64}, .p = 0.2f, .n_kv_head = 1});
    }
    check(&(struct shape){4, 12, 3, {33, 2, 31}, .p = 0.2f, .n_kv_head = 1});
    check(&(struct shape){4, 20, 2, {5, 40}, .p = 0, .n_kv_head = 2});
}

/* Windows on and beside the bounds of fragments and tiles, within a tile and across several. */
static void agrees_for_windows(void **state)
{
    (void)state;
    static const int windows[] = {2, 15, 16, 33, 50, 64, 65, 90, 128, 130, 199, 200, 500};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        check(&(struct shape){1, 64, 2, {200, 40}, .p = 0, .window = windows[i]});
        check(&(struct shape){2, 128, 1, {170}, .p = 0.2f, .n_kv_head = 1, .window = windows[i]});
        check(&(struct shape){2, 12, 2, {70, 3}, .p = 0.2f, .n_kv_head = 1, .window = windows[i]});
    }
    check(&(struct shape){1, 32, 1, {300}, .p = 0, .window = 40});
    check(&(struct shape){1, 80, 1, {300}, .p = 0.2f, .window = 100});
}

/* One token sees itself alone: out = v, dv = dout, and dq = dk = 0 but for the rounding of out. */
static void passes_single_tokens_through(void **state)
{
    (void)state;
    struct shape shape = {2, 64, 3, {1, 1, 1}, .p = 0};
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
    const struct shape shapes[] = {
        {2, 32, 3, {18, 1, 40}, .p = 0.2f},
        {2, 12, 3, {9, 1, 14}, .p = 0.2f},
        {3, 32, 3, {18, 1, 70}, .p = 0.2f, .n_kv_head = 1, .window = 30},
        {2, 12, 3, {9, 1, 14}, .p = 0.2f, .n_kv_head = 1, .window = 5},
    };
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
    const struct attention attention = {.heads = {2, 2, 64}, .scale = 1};
    device->ops->attention_forward(device->compute, NULL, NULL, NULL, &none, &attention);
    device->ops->attention_backward(device->compute, NULL, NULL, NULL, NULL, NULL, &none,
                                    &attention);
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
        cmocka_unit_test(agrees_for_shared_keys),
        cmocka_unit_test(agrees_for_windows),
        cmocka_unit_test(passes_single_tokens_through),
        cmocka_unit_test(gives_the_same_bits_in_every_order),
        cmocka_unit_test(ignores_no_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, report);
}
