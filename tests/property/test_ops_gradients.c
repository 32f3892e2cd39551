/* model/cpu: every operator's backward against finite differences of its forward, with and without
 * dropout. The derivative of sum(weight * output) by each input is taken from four points, so that
 * its own error is of fourth order. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/batch.h"
#include "data/rng.h"
#include "model/device/ops.h"

#include <math.h>

static const struct device *device;

static void fill(float *x, size_t n, uint32_t key, float from, float to)
{
    for (size_t i = 0; i < n; i++) {
        struct philox r = philox4x32((struct philox){{(uint32_t)i, 0, 0, 0}}, key, 1);
        x[i] = from + (to - from) * philox_uniform(r.v[0]);
    }
}

static float *random_array(size_t n, uint32_t key)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    fill(x, n, key, -1, 1);
    return x;
}

static float *zero_array(size_t n)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    memset(x, 0, sizeof(float) * n);
    return x;
}

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* Asserts that `gradient` is the derivative of f by x[0..n); at most 150 of them are tried. */
static void check_gradient(const char *what, double (*f)(void *), void *context, float *x,
                           const float *gradient, size_t n)
{
    const float step = 0.01f;
    const size_t stride = n / 150 + 1;
    double scale = 0;
    for (size_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(gradient[i]));
    for (size_t i = 0; i < n; i += stride) {
        const float x0 = x[i];
        double value[4];
        const float at[4] = {-2, -1, 1, 2};
        for (int j = 0; j < 4; j++) {
            x[i] = x0 + at[j] * step;
            value[j] = f(context);
        }
        x[i] = x0;
        double slope = (value[0] - 8 * value[1] + 8 * value[2] - value[3]) / (12 * step);
        if (fabs(slope - gradient[i]) > 1e-3 * scale + 1e-4)
            fail_msg("%s: gradient %zu is %g, finite differences give %g", what, i, gradient[i],
                     slope);
    }
}

/* Sequences of 1, 40, 5 and 13 tokens. */
enum { N_SEQS = 4, N_TOKENS = 59, VOCAB = 11 };

struct stream_of_tokens {
    int tokens[N_TOKENS], position[N_TOKENS], seq_start[N_SEQS + 1], order[N_TOKENS];
    uint32_t token_seq[N_TOKENS];
    struct token_rows rows;
};

static void make_tokens(struct stream_of_tokens *s)
{
    static const int length[N_SEQS] = {1, 40, 5, 13};
    int t = 0;
    for (int i = 0; i < N_SEQS; i++) {
        s->seq_start[i] = t;
        for (int j = 0; j < length[i]; j++, t++) {
            s->tokens[t] = (t * 7 + t / 5) % (VOCAB - 1); /* the last id never comes */
            s->position[t] = j;
            s->token_seq[t] = 8 + (uint32_t)i;
        }
    }
    s->seq_start[N_SEQS] = t;
    int n = 0;
    for (int id = 0; id < VOCAB; id++)
        for (t = 0; t < N_TOKENS; t++)
            if (s->tokens[t] == id)
                s->order[n++] = t;
    s->rows =
        (struct token_rows){N_TOKENS, N_SEQS, s->tokens, s->position, s->seq_start, s->token_seq};
}

static struct dropout dropout_of(float p)
{
    return (struct dropout){.p = p, .seed = 3, .step = 5, .site = 2};
}

struct embedding_case {
    struct stream_of_tokens stream;
    struct dropout drop;
    int C;
    float *x, *weight, *wte, *wpe;
};

static double embedding_value(void *context)
{
    struct embedding_case *c = context;
    device->ops->embedding_forward(device->compute, c->x, &c->stream.rows, c->wte, c->wpe, c->C,
                                   c->drop);
    return dot(c->x, c->weight, (size_t)N_TOKENS * c->C);
}

static void embedding_with(int C, float p)
{
    struct embedding_case c = {.C = C, .drop = dropout_of(p)};
    make_tokens(&c.stream);
    const size_t n = (size_t)N_TOKENS * C, n_wte = (size_t)VOCAB * C, n_wpe = (size_t)40 * C;
    c.x = zero_array(n);
    c.weight = random_array(n, 1);
    c.wte = random_array(n_wte, 2);
    c.wpe = random_array(n_wpe, 3);
    float *dwte = zero_array(n_wte), *dwpe = zero_array(n_wpe);
    device->ops->embedding_backward(device->compute, dwte, dwpe, c.weight, &c.stream.rows,
                                    c.stream.order, C, c.drop);
    check_gradient("wte", embedding_value, &c, c.wte, dwte, n_wte);
    check_gradient("wpe", embedding_value, &c, c.wpe, dwpe, n_wpe);
    float *arrays[] = {c.x, c.weight, c.wte, c.wpe, dwte, dwpe};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static void embedding(void **state)
{
    (void)state;
    embedding_with(24, 0);
    embedding_with(24, 0.3f);
    embedding_with(300, 0.3f);
}

struct layernorm_case {
    struct stream_of_tokens stream;
    struct dropout drop;
    int C;
    float *x_in, *branch, *gamma, *beta; /* branch NULL: none */
    float *x_out, *y, *mean, *rstd;
    float *weight_x, *weight_y;
};

static double layernorm_value(void *context)
{
    struct layernorm_case *c = context;
    const size_t n = (size_t)N_TOKENS * c->C;
    device->ops->residual_layernorm_forward(device->compute, c->x_out, c->y, c->mean, c->rstd,
                                            c->x_in, c->branch, &c->stream.rows, c->gamma, c->beta,
                                            1e-5f, c->C, c->drop);
    return dot(c->x_out, c->weight_x, n) + dot(c->y, c->weight_y, n);
}

static void layernorm_with(int C, float p, bool with_branch)
{
    struct layernorm_case c = {.C = C, .drop = dropout_of(p)};
    make_tokens(&c.stream);
    const size_t n = (size_t)N_TOKENS * C;
    c.x_in = random_array(n, 1);
    c.branch = with_branch ? random_array(n, 2) : NULL;
    c.gamma = random_array((size_t)C, 3);
    c.beta = random_array((size_t)C, 4);
    c.x_out = zero_array(n);
    c.y = zero_array(n);
    c.mean = zero_array(N_TOKENS);
    c.rstd = zero_array(N_TOKENS);
    c.weight_x = random_array(n, 5);
    c.weight_y = random_array(n, 6);
    layernorm_value(&c);
    float *dx = zero_array(n), *dbranch = with_branch ? zero_array(n) : NULL;
    float *dgamma = zero_array((size_t)C), *dbeta = zero_array((size_t)C);
    memcpy(dx, c.weight_x, sizeof(float) * n);
    device->ops->residual_layernorm_backward(device->compute, dx, dbranch, dgamma, dbeta,
                                             c.weight_y, c.x_out, c.mean, c.rstd, &c.stream.rows,
                                             c.gamma, C, c.drop, true);
    check_gradient("x_in", layernorm_value, &c, c.x_in, dx, n);
    if (with_branch)
        check_gradient("branch", layernorm_value, &c, c.branch, dbranch, n);
    check_gradient("gamma", layernorm_value, &c, c.gamma, dgamma, (size_t)C);
    check_gradient("beta", layernorm_value, &c, c.beta, dbeta, (size_t)C);
    float *arrays[] = {c.x_in, c.branch, c.gamma,    c.beta,     c.x_out, c.y,    c.mean,
                       c.rstd, dx,       c.weight_x, c.weight_y, dbranch, dgamma, dbeta};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static void residual_layernorm(void **state)
{
    (void)state;
    layernorm_with(24, 0, true);
    layernorm_with(24, 0.3f, true);
    layernorm_with(24, 0, false);
    layernorm_with(300, 0.1f, true);
}

struct rmsnorm_case {
    struct stream_of_tokens stream;
    struct dropout drop;
    int C;
    float *x_in, *branch, *weight; /* branch NULL: none */
    float *x_out, *y, *rstd;
    float *weight_x, *weight_y;
};

static double rmsnorm_value(void *context)
{
    struct rmsnorm_case *c = context;
    const size_t n = (size_t)N_TOKENS * c->C;
    device->ops->residual_rmsnorm_forward(device->compute, c->x_out, c->y, c->rstd, c->x_in,
                                          c->branch, &c->stream.rows, c->weight, 1e-5f, c->C,
                                          c->drop);
    return dot(c->x_out, c->weight_x, n) + dot(c->y, c->weight_y, n);
}

/* Asserts that a gradient that was added to is `from` plus one that was written. */
static void check_added(const char *what, const float *added, const float *from,
                        const float *written, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fabs(added[i] - (double)from[i] - written[i]) > 1e-5 * (1 + fabs(written[i])))
            fail_msg("%s: %g was added to %g, not %g", what, (double)added[i] - from[i], from[i],
                     written[i]);
}

static void rmsnorm_with(int C, float p, bool with_branch)
{
    struct rmsnorm_case c = {.C = C, .drop = dropout_of(p)};
    make_tokens(&c.stream);
    const size_t n = (size_t)N_TOKENS * C;
    c.x_in = random_array(n, 1);
    c.branch = with_branch ? random_array(n, 2) : NULL;
    c.weight = random_array((size_t)C, 3);
    c.x_out = zero_array(n);
    c.y = zero_array(n);
    c.rstd = zero_array(N_TOKENS);
    c.weight_x = random_array(n, 5);
    c.weight_y = random_array(n, 6);
    rmsnorm_value(&c);
    float *dx = zero_array(n), *dbranch = with_branch ? zero_array(n) : NULL;
    float *from = random_array((size_t)C, 7), *dweight = random_array((size_t)C, 7);
    float *added = random_array((size_t)C, 7);
    for (int accumulate = 1; accumulate >= 0; accumulate--) {
        memcpy(dx, c.weight_x, sizeof(float) * n);
        device->ops->residual_rmsnorm_backward(
            device->compute, dx, dbranch, accumulate ? added : dweight, c.weight_y, c.x_out, c.rstd,
            &c.stream.rows, c.weight, C, c.drop, accumulate);
    }
    check_gradient("x_in", rmsnorm_value, &c, c.x_in, dx, n);
    if (with_branch)
        check_gradient("branch", rmsnorm_value, &c, c.branch, dbranch, n);
    check_gradient("weight", rmsnorm_value, &c, c.weight, dweight, (size_t)C);
    check_added("weight", added, from, dweight, (size_t)C);
    float *arrays[] = {c.x_in,     c.branch,   c.weight, c.x_out, c.y,   c.rstd, dx,
                       c.weight_x, c.weight_y, dbranch,  dweight, added, from};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static void residual_rmsnorm(void **state)
{
    (void)state;
    rmsnorm_with(24, 0, true);
    rmsnorm_with(24, 0.3f, true);
    rmsnorm_with(24, 0, false);
    rmsnorm_with(300, 0.1f, true);
}

enum { M = 9, N = 21, K = 13 };

struct linear_case {
    enum activation act;
    float *x, *w, *b, *y, *pre, *weight;
};

static double linear_value(void *context)
{
    struct linear_case *c = context;
    struct matmul product = {.m = M, .n = N, .k = K, .bias = c->b, .act = c->act, .pre = c->pre};
    device->ops->matmul(device->compute, c->y, c->x, c->w, &product);
    return dot(c->y, c->weight, M * N);
}

/* A linear layer and its activation, backward as a model does it: the product with the identity
 * stands for the layer above, and brings the activation's slope along. */
static void linear_with(enum activation act)
{
    struct linear_case c = {.act = act,
                            .x = random_array(M * K, 1),
                            .w = random_array(K * N, 2),
                            .b = random_array(N, 3),
                            .y = zero_array(M * N),
                            .pre = zero_array(M * N),
                            .weight = random_array(M * N, 4)};
    float *identity = zero_array(N * N), *dpre = zero_array(M * N), *dx = zero_array(M * K);
    float *dw = zero_array(K * N), *db = zero_array(N);
    for (int i = 0; i < N; i++)
        identity[i * N + i] = 1;
    linear_value(&c);
    struct matmul above = {
        .m = M, .n = N, .k = N, .trans_b = true, .act = act, .gradient_of = c.pre};
    device->ops->matmul(device->compute, dpre, c.weight, identity, &above);
    struct matmul by_x = {.m = M, .n = K, .k = N, .trans_b = true};
    device->ops->matmul(device->compute, dx, dpre, c.w, &by_x);
    struct matmul by_w = {
        .m = K, .n = N, .k = M, .trans_a = true, .accumulate = true, .c_is_f32 = true};
    device->ops->matmul(device->compute, dw, c.x, dpre, &by_w);
    device->ops->bias_backward(device->compute, db, dpre, M, N, true);
    check_gradient("x", linear_value, &c, c.x, dx, M * K);
    check_gradient("w", linear_value, &c, c.w, dw, K * N);
    check_gradient("b", linear_value, &c, c.b, db, N);
    float *arrays[] = {c.x, c.w, c.b, c.y, c.pre, c.weight, identity, dpre, dx, dw, db};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static void linear(void **state)
{
    (void)state;
    linear_with(ACT_NONE);
    linear_with(ACT_GELU_TANH);
    linear_with(ACT_GELU_ERF);
}

struct rotary_case {
    struct stream_of_tokens stream;
    struct rotary rotary;
    float *qkv, *turned, *pre, *weight;
};

static double rotary_value(void *context)
{
    struct rotary_case *c = context;
    const size_t n = (size_t)N_TOKENS * heads_row(&c->rotary.heads);
    memcpy(c->turned, c->qkv, sizeof(float) * n);
    device->ops->rotary_forward(device->compute, c->turned, c->pre, &c->stream.rows, &c->rotary);
    return dot(c->turned, c->weight, n);
}

static void rotary_with(struct heads heads, bool with_norms)
{
    const int D = heads.head_dim;
    const size_t row = (size_t)heads_row(&heads), n = N_TOKENS * row;
    float *frequency = random_array((size_t)D / 2, 1), *q_weight = random_array((size_t)D, 2);
    float *k_weight = random_array((size_t)D, 3), *dqkv = zero_array(n);
    float *from = random_array(2 * (size_t)D, 6), *written = random_array(2 * (size_t)D, 6);
    float *added = random_array(2 * (size_t)D, 6);
    struct rotary_case c = {.rotary = {heads, frequency, 0.8f, with_norms ? q_weight : NULL,
                                       with_norms ? k_weight : NULL, 1e-5f},
                            .qkv = random_array(n, 4),
                            .turned = zero_array(n),
                            .pre = zero_array(n),
                            .weight = random_array(n, 5)};
    make_tokens(&c.stream);
    rotary_value(&c);
    for (int accumulate = 1; accumulate >= 0; accumulate--) {
        float *weights = accumulate ? added : written;
        memcpy(dqkv, c.weight, sizeof(float) * n);
        device->ops->rotary_backward(device->compute, dqkv, weights, weights + D, c.pre,
                                     &c.stream.rows, &c.rotary, accumulate);
    }
    for (size_t t = 0; t < N_TOKENS; t += 3)
        check_gradient("qkv", rotary_value, &c, c.qkv + t * row, dqkv + t * row, row);
    if (with_norms) {
        check_gradient("q's weight", rotary_value, &c, q_weight, written, (size_t)D);
        check_gradient("k's weight", rotary_value, &c, k_weight, written + D, (size_t)D);
        check_added("weights", added, from, written, 2 * (size_t)D);
    }
    float *arrays[] = {frequency, q_weight, k_weight, dqkv,  c.qkv,  c.turned,
                       c.pre,     c.weight, from,     added, written};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static void rotary(void **state)
{
    (void)state;
    rotary_with((struct heads){2, 2, 8}, false);
    rotary_with((struct heads){3, 1, 10}, false);
    rotary_with((struct heads){2, 2, 8}, true);
    rotary_with((struct heads){4, 2, 40}, true);
}

struct attention_case {
    struct stream_of_tokens stream;
    struct attention attention;
    float *qkv, *out, *lse, *weight;
};

static double attention_value(void *context)
{
    struct attention_case *c = context;
    device->ops->attention_forward(device->compute, c->out, c->lse, c->qkv, &c->stream.rows,
                                   &c->attention);
    const struct heads *h = &c->attention.heads;
    return dot(c->out, c->weight, (size_t)N_TOKENS * h->n_head * h->head_dim);
}

static void attention_with(struct heads heads, int window, float p)
{
    struct attention_case c = {
        .attention = {.heads = heads, .window = window, .scale = 0.7f, .drop = dropout_of(p)}};
    make_tokens(&c.stream);
    const size_t n = (size_t)N_TOKENS * heads.n_head * heads.head_dim;
    const size_t row = (size_t)heads_row(&heads);
    c.qkv = random_array(N_TOKENS * row, 1);
    c.out = zero_array(n);
    c.lse = zero_array((size_t)N_TOKENS * heads.n_head);
    c.weight = random_array(n, 2);
    float *dqkv = random_array(N_TOKENS * row, 3);
    attention_value(&c);
    device->ops->attention_backward(device->compute, dqkv, c.weight, c.qkv, c.out, c.lse,
                                    &c.stream.rows, &c.attention);
    for (size_t t = 0; t < N_TOKENS; t += 3)
        check_gradient("qkv", attention_value, &c, c.qkv + t * row, dqkv + t * row, row);
    float *arrays[] = {c.qkv, c.out, c.lse, c.weight, dqkv};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static void attention(void **state)
{
    (void)state;
    attention_with((struct heads){2, 2, 8}, 0, 0);
    attention_with((struct heads){2, 2, 8}, 0, 0.3f);
    attention_with((struct heads){1, 1, 40}, 0, 0.1f);
    attention_with((struct heads){6, 2, 8}, 0, 0.3f);
    attention_with((struct heads){2, 1, 8}, 7, 0);
    attention_with((struct heads){2, 2, 8}, 34, 0.3f);
}

struct swiglu_case {
    float *gate_up, *y, *weight;
};

static double swiglu_value(void *context)
{
    struct swiglu_case *c = context;
    device->ops->swiglu_forward(device->compute, c->y, c->gate_up, M, N);
    return dot(c->y, c->weight, M * N);
}

static void swiglu(void **state)
{
    (void)state;
    struct swiglu_case c = {
        .gate_up = zero_array(2 * M * N), .y = zero_array(M * N), .weight = random_array(M * N, 2)};
    float *dgate_up = random_array(2 * M * N, 3);
    fill(c.gate_up, 2 * M * N, 1, -4, 4);
    device->ops->swiglu_backward(device->compute, dgate_up, NULL, c.weight, c.gate_up, M, N);
    check_gradient("gate_up", swiglu_value, &c, c.gate_up, dgate_up, 2 * M * N);
    free(c.gate_up);
    free(c.y);
    free(c.weight);
    free(dgate_up);
}

struct last_case {
    struct stream_of_tokens stream;
    float *x, *y, *weight;
};

static double last_value(void *context)
{
    struct last_case *c = context;
    device->ops->gather_last(device->compute, c->y, c->x, &c->stream.rows, 6);
    return dot(c->y, c->weight, N_SEQS * 6);
}

static void last(void **state)
{
    (void)state;
    struct last_case c = {.x = random_array(N_TOKENS * 6, 1),
                          .y = zero_array(N_SEQS * 6),
                          .weight = random_array(N_SEQS * 6, 2)};
    make_tokens(&c.stream);
    float *dx = random_array(N_TOKENS * 6, 3);
    device->ops->scatter_last(device->compute, dx, c.weight, &c.stream.rows, 6);
    check_gradient("x", last_value, &c, c.x, dx, N_TOKENS * 6);
    free(c.x);
    free(c.y);
    free(c.weight);
    free(dx);
}

enum { LOSSES = 5, CLASSES = 37 };

struct loss_case {
    int targets[LOSSES];
    float *logits, *scores, *losses; /* scores NULL: cross-entropy */
    float scale;
};

static double loss_value(void *context)
{
    struct loss_case *c = context;
    if (c->scores)
        device->ops->squared_error(device->compute, c->losses, NULL, c->logits, c->scores, LOSSES,
                                   1);
    else
        device->ops->cross_entropy(device->compute, c->losses, NULL, c->logits, c->targets, LOSSES,
                                   CLASSES, CLASSES, 1);
    double sum = 0;
    for (int i = 0; i < LOSSES; i++)
        sum += c->losses[i];
    return c->scale * sum;
}

static void losses(void **state)
{
    (void)state;
    struct loss_case c = {.targets = {0, 36, TARGET_IGNORE, 5, 5},
                          .logits = random_array(LOSSES * CLASSES, 1),
                          .losses = zero_array(LOSSES),
                          .scale = 0.25f};
    float *gradient = random_array(LOSSES * CLASSES, 1);
    device->ops->cross_entropy(device->compute, c.losses, gradient, gradient, c.targets, LOSSES,
                               CLASSES, CLASSES, c.scale);
    check_gradient("logits", loss_value, &c, c.logits, gradient, LOSSES * CLASSES);
    c.scores = random_array(LOSSES, 2);
    device->ops->squared_error(device->compute, c.losses, gradient, c.logits, c.scores, LOSSES,
                               c.scale);
    check_gradient("predictions", loss_value, &c, c.logits, gradient, LOSSES);
    free(c.logits);
    free(c.scores);
    free(c.losses);
    free(gradient);
}

static int set_up(void **state)
{
    (void)state;
    device = device_cpu(2);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding),        cmocka_unit_test(residual_layernorm),
        cmocka_unit_test(residual_rmsnorm), cmocka_unit_test(linear),
        cmocka_unit_test(rotary),           cmocka_unit_test(attention),
        cmocka_unit_test(swiglu),           cmocka_unit_test(last),
        cmocka_unit_test(losses),
    };
    return cmocka_run_group_tests_name("ops_gradients", tests, set_up, NULL);
}
