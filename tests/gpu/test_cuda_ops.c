/* model/cuda: the operators that memory bounds, each against the CPU device's in fp32 on the same
 * inputs, over random shapes; dropout's masks exactly; and the same bits in every order of streams,
 * blocks and threads. Inputs arrive from pinned memory on a stream of their own, behind an event.
 *
 * An operator's test is one function that runs on either device: given(...) makes its inputs,
 * room(...) its outputs, and keep(...) takes an output for comparison. */
#include "tests/gpu/cuda_testing.h"

#include "data/batch.h"

#define BF16_BOUND 4e-3 /* relative: one rounding of what is computed in fp32 */
#define TWICE      6e-3 /* two roundings, one after the other */
#define F32_BOUND  2e-5 /* sums in another order */
#define LOOSE      1e-2 /* what follows from an intermediate value rounded to bf16 */

#define MAX_SEQS   64
#define CUDA_PAIRS 128 /* of the widest head */
#define MAX_ARRAYS 64
#define MAX_KEPT   8

struct example {
    int length[MAX_SEQS]; /* of each sequence, up to the first 0 */
    int C, vocab;
    float p;
    int offset;     /* elements by which arrays are off their alignment */
    bool in_place;  /* x_out is x_in */
    bool no_branch; /* branch and dbranch are NULL */
    bool no_wpe;    /* wpe and dwpe are NULL */
};

/* One mixed batch for most widths; sequences of 300 with few ids, whose runs cross many pieces of
 * the embedding's gradient; one-token sequences, where position 0 does. */
#define MIXED                                                                                      \
    {                                                                                              \
        7, 1, 24, 3, 12, 16, 1, 3                                                                  \
    }
#define SINGLE_TOKENS                                                                              \
    {                                                                                              \
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  \
            1, 1, 1, 1, 1, 1, 1                                                                    \
    }
static const struct example examples[] = {
    {.length = MIXED, .C = 8, .vocab = 1009, .p = 0.3f},
    {.length = MIXED, .C = 24, .vocab = 5, .p = 0, .in_place = true},
    {.length = MIXED, .C = 50, .vocab = 17, .p = 0.3f},
    {.length = MIXED, .C = 64, .vocab = 17, .p = 0.3f, .offset = 1},
    {.length = MIXED, .C = 64, .vocab = 40, .p = 0.3f, .no_branch = true, .no_wpe = true},
    {.length = {300, 5, 1}, .C = 64, .vocab = 4, .p = 0.3f, .in_place = true},
    {.length = {300, 300, 3}, .C = 8, .vocab = 1, .p = 0},
    {.length = SINGLE_TOKENS, .C = 300, .vocab = 1500, .p = 0.3f},
    {.length = {7, 40}, .C = 50, .vocab = 9, .p = 0, .no_wpe = true},
    {.length = {3, 1, 1}, .C = 768, .vocab = 60, .p = 0.3f},
    {.length = {1}, .C = 768, .vocab = 60, .p = 0, .in_place = true, .no_branch = true},
    {.length = {2, 1}, .C = 1600, .vocab = 60, .p = 0.3f},
    {.length = {0}, .C = 64, .vocab = 3, .p = 0.3f},
};
#define N_EXAMPLES (int)(sizeof examples / sizeof *examples)

struct kept {
    const char *name;
    float *x;
    size_t n;
    double bound;   /* of the relative error */
    bool same_mask; /* zeros in the same places */
};

/* The run that is under way. */
static struct device *cpu, *cuda, *on;
static struct stream *uploads;
static struct event *uploaded;
static void *arrays[MAX_ARRAYS], *pinned[MAX_ARRAYS];
static int n_arrays, n_pinned, offset;
static struct kept kept[MAX_KEPT];
static int n_kept;

static void *remember(void *memory, void **list, int *n)
{
    assert_true(*n < MAX_ARRAYS);
    return list[(*n)++] = memory;
}

/* Device memory with these bytes, once the compute stream has waited for the uploads. */
static void *given_bytes(const void *x, size_t bytes)
{
    void *memory = remember(on->allocate(bytes), arrays, &n_arrays);
    void *host = remember(on->allocate_host(bytes), pinned, &n_pinned);
    memcpy(host, x, bytes);
    on->copy(uploads, memory, host, bytes);
    on->event_record(uploaded, uploads);
    on->event_order(on->compute, uploaded);
    return memory;
}

static void *given_values(const float *x, size_t n, enum dtype dtype)
{
    const size_t size = dtype_size(dtype), room = (n + (size_t)offset) * size;
    char *values = zf_malloc_aligned(room);
    memset(values, 0xff, room);
    for (size_t i = 0; i < n; i++)
        if (dtype == DTYPE_F32)
            ((float *)values)[(size_t)offset + i] = x[i];
        else
            ((uint16_t *)values)[(size_t)offset + i] = bf16_from_f32(x[i]);
    char *memory = given_bytes(values, room);
    free(values);
    return memory + (size_t)offset * size;
}

/* Random values in the device's dtype, or in fp32. */
static void *given(size_t n, uint32_t key)
{
    float *x = cuda_random(n, 2, key);
    void *memory = given_values(x, n, on->dtype);
    free(x);
    return memory;
}

static float *given_f32(size_t n, uint32_t key)
{
    float *x = cuda_random(n, 2, key), *memory = given_values(x, n, DTYPE_F32);
    free(x);
    return memory;
}

/* Memory to be overwritten: NaN before. */
static void *room_of(size_t n, enum dtype dtype)
{
    float *x = zf_malloc(sizeof(float) * (n ? n : 1));
    for (size_t i = 0; i < n; i++)
        x[i] = NAN;
    void *memory = given_values(x, n, dtype);
    free(x);
    return memory;
}

static void *room(size_t n)
{
    return room_of(n, on->dtype);
}

static float *room_f32(size_t n)
{
    return room_of(n, DTYPE_F32);
}

/* What an operator adds to, or overwrites. */
static float *given_or_room(bool adds, size_t n, uint32_t key)
{
    return adds ? given_f32(n, key) : room_f32(n);
}

static void keep_x(const char *name, float *x, size_t n, double bound, bool same_mask)
{
    assert_true(n_kept < MAX_KEPT);
    kept[n_kept++] = (struct kept){name, x, n, bound, same_mask};
}

static void keep_f32(const char *name, const float *memory, size_t n, double bound)
{
    keep_x(name, cuda_download(on, memory, n, DTYPE_F32), n, bound, false);
}

static void keep_mask(const char *name, const void *memory, size_t n, double bound, bool same_mask)
{
    keep_x(name, cuda_download(on, memory, n, on->dtype), n, bound, same_mask);
}

static void keep(const char *name, const void *memory, size_t n, double bound)
{
    keep_mask(name, memory, n, bound, false);
}

/* Batches. */

struct rows {
    struct token_rows given; /* in device memory */
    int n;
    const int *order;
};

static struct rows given_rows(const struct example *e)
{
    enum { MOST = 1024 };
    static int tokens[MOST], position[MOST], order[MOST], seq_start[MAX_SEQS + 1];
    static uint32_t token_seq[MOST];
    int n_seqs = 0, n_ordered = 0;
    while (e->length[n_seqs] > 0)
        n_seqs++;
    const int n = cuda_lay_sequences(e->length, n_seqs, 40, position, token_seq, seq_start);
    for (int t = 0; t < n; t++)
        tokens[t] = cuda_random_int(0, e->vocab - 1, (uint32_t)t, 3);
    for (int id = 0; id < e->vocab; id++)
        for (int t = 0; t < n; t++)
            if (tokens[t] == id)
                order[n_ordered++] = t;
    const size_t bytes = sizeof(int) * (size_t)n;
    return (struct rows){.given = {n, n_seqs, given_bytes(tokens, bytes),
                                   given_bytes(position, bytes),
                                   given_bytes(seq_start, sizeof(int) * (size_t)(n_seqs + 1)),
                                   given_bytes(token_seq, bytes)},
                         .n = n,
                         .order = given_bytes(order, bytes)};
}

static struct dropout dropout_of(const struct example *e)
{
    return (struct dropout){.p = e->p, .seed = 7, .step = 11, .site = 5};
}

/* Runs an operator's test on the CPU device, then on the CUDA device in every order, and twice at
 * least. */
typedef void (*operator_test)(const void *example);

static void run_on(struct device *d, operator_test test, const void *example, int off)
{
    on = d;
    offset = off;
    n_kept = n_arrays = n_pinned = 0;
    uploads = d->stream_create(STREAM_BEHIND);
    uploaded = d->event_create();
    test(example);
    d->stream_wait(d->compute);
    d->stream_destroy(uploads);
    d->event_destroy(uploaded);
    for (int i = 0; i < n_arrays; i++)
        d->release(arrays[i]);
    for (int i = 0; i < n_pinned; i++)
        d->release_host(pinned[i]);
}

static void compare(const struct kept *x, const struct kept *expected, const char *where)
{
    const double error = cuda_relative_error(x->x, expected->x, x->n);
    if (!(error <= expected->bound))
        fail_msg("%s, %s: relative error %.3g, above %.3g", where, x->name, error, x->bound);
    if (x->same_mask)
        for (size_t i = 0; i < x->n; i++)
            if ((x->x[i] == 0) != (expected->x[i] == 0))
                fail_msg("%s, %s: element %zu is %g, expected %g", where, x->name, i,
                         (double)x->x[i], (double)expected->x[i]);
}

static void check(operator_test test, const void *example, int off, const char *where)
{
    struct kept expected[MAX_KEPT], first[MAX_KEPT];
    run_on(cpu, test, example, off);
    const int n = n_kept;
    memcpy(expected, kept, sizeof kept);
    for (uint32_t seed = 0; seed < 2 || seed < CUDA_ORDERS; seed++) {
        cuda_order(seed);
        run_on(cuda, test, example, off);
        assert_int_equal(n_kept, n);
        for (int i = 0; i < n; i++) {
            if (seed == 0) {
                compare(&kept[i], &expected[i], where);
                first[i] = kept[i];
            } else if (memcmp(kept[i].x, first[i].x, sizeof(float) * kept[i].n) != 0) {
                fail_msg("%s, %s: other bits in order %u", where, kept[i].name, seed);
            }
        }
        if (seed > 0)
            for (int i = 0; i < n; i++)
                free(kept[i].x);
    }
    for (int i = 0; i < n; i++) {
        free(expected[i].x);
        free(first[i].x);
    }
}

static void agrees_on_examples(void **state)
{
    for (int i = 0; i < N_EXAMPLES; i++) {
        char where[64];
        snprintf(where, sizeof where, "example %d (C %d)", i, examples[i].C);
        check(*(operator_test *)*state, &examples[i], examples[i].offset, where);
    }
}

static struct CMUnitTest on_examples(const char *name, operator_test *test)
{
    return (struct CMUnitTest){name, agrees_on_examples, NULL, NULL, test};
}
#define ON_EXAMPLES(test) on_examples(#test, (operator_test[]){run_##test})

/* The operators. */

static void run_embedding_forward(const void *example)
{
    const struct example *e = example;
    const struct rows rows = given_rows(e);
    const size_t C = (size_t)e->C, n = (size_t)rows.n * C;
    void *wte = given((size_t)e->vocab * C, 1), *x = room(n);
    void *wpe = e->no_wpe ? NULL : given(300 * C, 2);
    on->ops->embedding_forward(on->compute, x, &rows.given, wte, wpe, e->C, dropout_of(e));
    keep_mask("x", x, n, BF16_BOUND, true);
}

static void run_embedding_backward(const void *example)
{
    const struct example *e = example;
    const struct rows rows = given_rows(e);
    const size_t C = (size_t)e->C, wte = (size_t)e->vocab * C, wpe = 300 * C;
    float *dwte = given_f32(wte, 1), *dwpe = e->no_wpe ? NULL : given_f32(wpe, 2);
    void *dx = given((size_t)rows.n * C, 4);
    on->ops->embedding_backward(on->compute, dwte, dwpe, dx, &rows.given, rows.order, e->C,
                                dropout_of(e));
    keep_f32("dwte", dwte, wte, F32_BOUND);
    if (dwpe)
        keep_f32("dwpe", dwpe, wpe, F32_BOUND);
}

static void run_layernorm_forward(const void *example)
{
    const struct example *e = example;
    const struct rows rows = given_rows(e);
    const size_t C = (size_t)e->C, n = (size_t)rows.n * C;
    void *x_in = given(n, 1), *branch = e->no_branch ? NULL : given(n, 2);
    void *gamma = given(C, 5), *beta = given(C, 6);
    void *x_out = e->in_place ? x_in : room(n), *y = room(n);
    float *mean = room_f32((size_t)rows.n), *rstd = room_f32((size_t)rows.n);
    on->ops->residual_layernorm_forward(on->compute, x_out, y, mean, rstd, x_in, branch,
                                        &rows.given, gamma, beta, 1e-5f, e->C, dropout_of(e));
    keep("x_out", x_out, n, BF16_BOUND);
    keep("y", y, n, branch ? LOOSE : BF16_BOUND);
    keep_f32("mean", mean, (size_t)rows.n, branch ? LOOSE : F32_BOUND);
    keep_f32("rstd", rstd, (size_t)rows.n, branch ? LOOSE : F32_BOUND);
}

static void run_layernorm_backward(const void *example)
{
    const struct example *e = example;
    const struct rows rows = given_rows(e);
    const size_t C = (size_t)e->C, n = (size_t)rows.n * C;
    void *dy = given(n, 2), *x_out = given(n, 3), *gamma = given(C, 4);
    float *mean = given_f32((size_t)rows.n, 7), *rstd = given_f32((size_t)rows.n, 8);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        void *dx = given(n, 1), *dbranch = e->no_branch ? NULL : room(n);
        float *dgamma = given_or_room(accumulate, C, 5), *dbeta = given_or_room(accumulate, C, 6);
        on->ops->residual_layernorm_backward(on->compute, dx, dbranch, dgamma, dbeta, dy, x_out,
                                             mean, rstd, &rows.given, gamma, e->C, dropout_of(e),
                                             accumulate);
        keep("dx", dx, n, BF16_BOUND);
        if (dbranch)
            keep_mask("dbranch", dbranch, n, BF16_BOUND, true);
        keep_f32(accumulate ? "dgamma, added to" : "dgamma", dgamma, C, F32_BOUND);
        keep_f32(accumulate ? "dbeta, added to" : "dbeta", dbeta, C, F32_BOUND);
    }
}

static void run_rmsnorm_forward(const void *example)
{
    const struct example *e = example;
    const struct rows rows = given_rows(e);
    const size_t C = (size_t)e->C, n = (size_t)rows.n * C;
    void *x_in = given(n, 1), *branch = e->no_branch ? NULL : given(n, 2), *weight = given(C, 5);
    void *x_out = e->in_place ? x_in : room(n), *y = room(n);
    float *rstd = room_f32((size_t)rows.n);
    on->ops->residual_rmsnorm_forward(on->compute, x_out, y, rstd, x_in, branch, &rows.given,
                                      weight, 1e-5f, e->C, dropout_of(e));
    keep("x_out", x_out, n, BF16_BOUND);
    keep("y", y, n, branch ? LOOSE : TWICE);
    keep_f32("rstd", rstd, (size_t)rows.n, branch ? LOOSE : F32_BOUND);
}

static void run_rmsnorm_backward(const void *example)
{
    const struct example *e = example;
    const struct rows rows = given_rows(e);
    const size_t C = (size_t)e->C, n = (size_t)rows.n * C;
    void *dy = given(n, 2), *x_out = given(n, 3), *weight = given(C, 4);
    float *rstd = given_f32((size_t)rows.n, 8);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        void *dx = given(n, 1), *dbranch = e->no_branch ? NULL : room(n);
        float *dweight = accumulate ? given_f32(C, 5) : room_f32(C);
        on->ops->residual_rmsnorm_backward(on->compute, dx, dbranch, dweight, dy, x_out, rstd,
                                           &rows.given, weight, e->C, dropout_of(e), accumulate);
        keep("dx", dx, n, BF16_BOUND);
        if (dbranch)
            keep_mask("dbranch", dbranch, n, BF16_BOUND, true);
        keep_f32(accumulate ? "dweight, added" : "dweight", dweight, C, F32_BOUND);
    }
}

static void run_bias_backward(const void *example)
{
    const struct example *e = example;
    const struct rows rows = given_rows(e);
    void *dy = given((size_t)rows.n * (size_t)e->C, 2);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        float *db = given_or_room(accumulate, (size_t)e->C, 1);
        on->ops->bias_backward(on->compute, db, dy, rows.n, e->C, accumulate);
        keep_f32(accumulate ? "db, added to" : "db", db, (size_t)e->C, F32_BOUND);
    }
}

static struct heads heads_of(int shape)
{
    static const struct heads shapes[] = {{2, 2, 64}, {3, 1, 32},  {4, 2, 80}, {2, 1, 128},
                                          {3, 3, 10}, {9, 3, 100}, {1, 1, 2},  {2, 1, 256}};
    return shapes[shape % (int)(sizeof shapes / sizeof *shapes)];
}

/* Forward and backward apart: backward's inputs are its own, so that its bound is its own. */
static void rotary_of(const struct example *e, bool norms, int shape)
{
    const struct rows rows = given_rows(e);
    const struct heads heads = heads_of(shape);
    const size_t D = (size_t)heads.head_dim, n = (size_t)rows.n * (size_t)heads_row(&heads);
    const size_t n_pre = (size_t)rows.n * (size_t)(heads.n_head + heads.n_kv_head) * D;
    float frequency[CUDA_PAIRS];
    for (size_t i = 0; i < D / 2; i++)
        frequency[i] = powf(500, -2.0f * (float)i / (float)D);
    const struct rotary rotary = {.heads = heads,
                                  .frequency = given_bytes(frequency, sizeof(float) * D / 2),
                                  .scale = 1.125f,
                                  .q_weight = norms ? given(D, 1) : NULL,
                                  .k_weight = norms ? given(D, 2) : NULL,
                                  .eps = 1e-6f};
    void *qkv = given(n, 3), *pre = norms ? room(n_pre) : NULL, *dqkv = given(n, 4);
    float *dq = room_f32(D), *dk = given_f32(D, 6);
    on->ops->rotary_forward(on->compute, qkv, pre, &rows.given, &rotary);
    keep("qkv", qkv, n, LOOSE);
    if (!norms) {
        on->ops->rotary_backward(on->compute, dqkv, NULL, NULL, NULL, &rows.given, &rotary, true);
        keep("dqkv", dqkv, n, LOOSE);
        return;
    }
    void *dqkv_2 = given(n, 4);
    float *dq_2 = given_f32(D, 5), *dk_2 = room_f32(D);
    on->ops->rotary_backward(on->compute, dqkv, dq, room_f32(D), pre, &rows.given, &rotary, false);
    on->ops->rotary_backward(on->compute, dqkv_2, dq_2, dk, pre, &rows.given, &rotary, true);
    on->ops->rotary_backward(on->compute, given(n, 4), room_f32(D), dk_2, pre, &rows.given, &rotary,
                             false);
    keep("pre", pre, n_pre, 0);
    keep("dqkv", dqkv, n, LOOSE);
    keep_f32("dq", dq, D, LOOSE);
    keep_f32("dk", dk_2, D, LOOSE);
    keep_f32("dq, added", dq_2, D, LOOSE);
    keep_f32("dk, added", dk, D, LOOSE);
}

static void run_rotary(const void *example)
{
    rotary_of(example, false, (int)((const struct example *)example - examples));
}

static void run_rotary_norms(const void *example)
{
    rotary_of(example, true, (int)((const struct example *)example - examples));
}

static void run_swiglu(const void *example)
{
    const struct example *e = example;
    const struct rows rows = given_rows(e);
    const size_t n = (size_t)rows.n * (size_t)e->C;
    void *gate_up = given(2 * n, 1), *y = room(n), *dy = given(n, 2);
    void *dgate_up = e->in_place ? gate_up : room(2 * n);
    void *again = e->in_place ? dy : e->no_branch ? NULL : room(n);
    on->ops->swiglu_forward(on->compute, y, gate_up, rows.n, e->C);
    on->ops->swiglu_backward(on->compute, dgate_up, again, dy, gate_up, rows.n, e->C);
    keep("y", y, n, BF16_BOUND);
    keep("dgate_up", dgate_up, 2 * n, BF16_BOUND);
    if (again)
        keep("y again", again, n, BF16_BOUND);
}

static void run_last_tokens(const void *example)
{
    const struct example *e = example;
    const struct rows rows = given_rows(e);
    const size_t n = (size_t)rows.n * (size_t)e->C,
                 n_last = (size_t)rows.given.n_seqs * (size_t)e->C;
    void *x = given(n, 1), *y = room(n_last), *dx = room(n);
    on->ops->gather_last(on->compute, y, x, &rows.given, e->C);
    on->ops->scatter_last(on->compute, dx, y, &rows.given, e->C);
    keep("y", y, n_last, 0);
    keep("dx", dx, n, 0);
}

struct classes {
    int n, n_classes;
    bool gradient;
    int offset, stride; /* 0: n_classes */
};

static void run_cross_entropy(const void *example)
{
    const struct classes *c = example;
    const int stride = c->stride ? c->stride : c->n_classes;
    const size_t n = (size_t)c->n * (size_t)stride, bytes = sizeof(int) * (size_t)c->n;
    int *target = zf_malloc(bytes + 1);
    for (int i = 0; i < c->n; i++)
        target[i] =
            i % 4 == 2 ? TARGET_IGNORE : cuda_random_int(0, c->n_classes - 1, (uint32_t)i, 9);
    float *x = cuda_random(n, 12, 1);
    if (c->n > 2)
        for (int i = 0; i < c->n_classes; i++)
            x[2 * stride + i] = i % 2 ? INFINITY : NAN; /* the ignored row does not matter */
    float *logits = given_values(x, n, DTYPE_F32), *losses = room_f32((size_t)c->n);
    void *dlogits = !c->gradient ? NULL : on->dtype == DTYPE_F32 ? logits : room(n);
    on->ops->cross_entropy(on->compute, losses, dlogits, logits, given_bytes(target, bytes), c->n,
                           c->n_classes, stride, 0.125f);
    keep_f32("losses", losses, (size_t)c->n, F32_BOUND);
    if (c->gradient)
        keep("dlogits", dlogits, n, BF16_BOUND);
    free(target);
    free(x);
}

static void run_squared_error(const void *example)
{
    const struct classes *c = example;
    const size_t n = (size_t)c->n;
    float *logits = given_f32(n, 1), *scores = given_f32(n, 2), *losses = room_f32(n);
    void *dlogits = !c->gradient ? NULL : on->dtype == DTYPE_F32 ? logits : room(n);
    on->ops->squared_error(on->compute, losses, dlogits, logits, scores, c->n, 0.25f);
    keep_f32("losses", losses, n, F32_BOUND);
    if (c->gradient)
        keep("dlogits", dlogits, n, BF16_BOUND);
}

static void run_add_sum(const void *example)
{
    const int n = *(const int *)example;
    const double start = 1.0 / 3;
    float *x = given_f32((size_t)n, 1);
    double *sum = given_bytes(&start, sizeof start), total;
    on->ops->add_sum(on->compute, sum, x, n);
    on->ops->add_sum(on->compute, sum, x, n);
    on->copy(on->compute, &total, sum, sizeof total);
    float *parts = zf_malloc(sizeof(float) * 2); /* a double as two floats */
    parts[0] = (float)total;
    parts[1] = (float)(total - (double)parts[0]) * 0x1p20f;
    keep_x("sum", parts, 2, 1e-7, false);
}

static void run_from_f32(const void *example)
{
    static const float special[] = {INFINITY,   -INFINITY, -0.0f,   1e-40f,        0x1.01p0f,
                                    -0x1.01p0f, 0x1.03p0f, 3.4e38f, 0x1.010002p0f, 1e-45f};
    const size_t n = *(const size_t *)example, n_special = sizeof special / sizeof *special;
    float *x = cuda_random(n, 3, 1);
    for (size_t i = 0; i < n; i++)
        x[i] *= 1.00123f;
    for (size_t i = 0; i < n && i < n_special; i++)
        x[i] = special[i];
    float *src = given_values(x, n, DTYPE_F32);
    void *dst = room(n);
    on->ops->from_f32(on->compute, dst, src, n);
    float *y = cuda_download(on, dst, n, on->dtype);
    for (size_t i = 0; i < n; i++) {
        const float expected = on->dtype == DTYPE_F32 ? x[i] : bf16_to_f32(bf16_parameter(x[i]));
        assert_memory_equal(&y[i], &expected, sizeof expected);
        y[i] = bf16_to_f32(bf16_parameter(expected));
        y[i] = isfinite(y[i]) ? y[i] : 0;
    }
    keep_x("dst", y, n, 0, false);
    free(x);
}

static void losses(void **state)
{
    (void)state;
    static const struct classes shapes[] = {
        {5, 2, true, 0, 0},    {33, 3, true, 0, 0},      {1, 1, true, 0, 0},
        {3, 1000, true, 0, 0}, {9, 1003, true, 0, 0},    {4, 16, false, 0, 0},
        {5, 64, true, 1, 0},   {2, 9001, true, 0, 0},    {11, 7, true, 0, 0},
        {0, 5, true, 0, 0},    {300, 2, true, 0, 0},     {7, 257, false, 3, 0},
        {5, 61, true, 0, 64},  {3, 1003, true, 0, 1024}, {2, 9, true, 0, 11},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char where[64];
        snprintf(where, sizeof where, "%d rows of %d classes", shapes[i].n, shapes[i].n_classes);
        check(run_cross_entropy, &shapes[i], shapes[i].offset, where);
        check(run_squared_error, &shapes[i], shapes[i].offset, where);
    }
}

static void sums(void **state)
{
    (void)state;
    static const int counts[] = {0, 1, 31, 1024, 3001};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        check(run_add_sum, &counts[i], 0, "add_sum");
}

static void rounding(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 7, 8, 9, 4099};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int off = 0; off < 2; off++)
            check(run_from_f32, &counts[i], off, "from_f32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_EXAMPLES(embedding_forward), ON_EXAMPLES(embedding_backward),
        ON_EXAMPLES(layernorm_forward), ON_EXAMPLES(layernorm_backward),
        ON_EXAMPLES(rmsnorm_forward),   ON_EXAMPLES(rmsnorm_backward),
        ON_EXAMPLES(bias_backward),     ON_EXAMPLES(rotary),
        ON_EXAMPLES(rotary_norms),      ON_EXAMPLES(swiglu),
        ON_EXAMPLES(last_tokens),       cmocka_unit_test(losses),
        cmocka_unit_test(sums),         cmocka_unit_test(rounding),
    };
    cpu = device_cpu(2);
    cuda = cuda_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
