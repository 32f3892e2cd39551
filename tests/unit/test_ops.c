/* model/cpu: every operator against a plain version of it in double precision; dropout's masks
 * against the generator itself; aliasing, empty inputs, and the same bits on any number of threads.
 * Derivatives are tested in tests/property/test_ops_gradients.c, the engine's operators in
 * test_ops_rows.c. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/batch.h"
#include "data/rng.h"
#include "model/cpu/cpu.h"
#include "model/cpu/vector_math.h"
#include "model/device/angle.h"

#include <math.h>

static struct device *device;
#define OPS     (device->ops)
#define COMPUTE (device->compute)

static float *random_array(size_t n, uint32_t key)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    for (size_t i = 0; i < n; i++) {
        struct philox r = philox4x32((struct philox){{(uint32_t)i, 0, 0, 0}}, key, 1);
        x[i] = 2 * philox_uniform(r.v[0]) - 1;
    }
    return x;
}

static float *copy_array(const float *x, size_t n)
{
    return memcpy(zf_malloc_aligned(sizeof(float) * n), x, sizeof(float) * n);
}

static void assert_near(const char *what, const float *x, const double *expected, size_t n,
                        double tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs(x[i] - expected[i]) <= tolerance * (1 + fabs(expected[i]))))
            fail_msg("%s: element %zu is %.9g, expected %.9g", what, i, x[i], expected[i]);
}

static double dropout_factor(const struct dropout *d, uint32_t site, uint32_t sequence,
                             uint32_t position, uint32_t column)
{
    struct philox r =
        philox4x32((struct philox){{column / 4, position, sequence, site}}, d->seed, d->step);
    return philox_uniform(r.v[column % 4]) >= d->p ? 1 / (1 - (double)d->p) : 0;
}

/* Sequences of 3, 70, 1 and 20 tokens. */
enum { N_SEQS = 4, N_TOKENS = 94, VOCAB = 17, POSITIONS = 70 };
static int tokens[N_TOKENS], position[N_TOKENS], seq_start[N_SEQS + 1], order[N_TOKENS];
static uint32_t token_seq[N_TOKENS];
static const struct token_rows rows = {N_TOKENS, N_SEQS, tokens, position, seq_start, token_seq};
static const struct token_rows no_rows = {0, 0, tokens, position, seq_start, token_seq};
static const struct dropout drop = {.p = 0.3f, .seed = 7, .step = 11, .site = 5};
static const struct dropout no_drop = {.p = 0};

static int set_up(void **state)
{
    (void)state;
    static const int length[N_SEQS] = {3, 70, 1, 20};
    device = device_cpu(2);
    int t = 0, n = 0;
    for (int i = 0; i < N_SEQS; i++)
        for (int j = 0; j < length[i]; j++, t++) {
            seq_start[i + 1] = t + 1;
            tokens[t] = (t * 5 + t / 7) % VOCAB;
            position[t] = j;
            token_seq[t] = 20 + (uint32_t)i;
        }
    for (int id = 0; id < VOCAB; id++)
        for (t = 0; t < N_TOKENS; t++)
            if (tokens[t] == id)
                order[n++] = t;
    return 0;
}

static double activation(enum activation act, double x)
{
    switch (act) {
    case ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ACT_RELU:
        return x > 0 ? x : 0;
    default:
        return x;
    }
}

static double activation_slope(enum activation act, double x)
{
    const double h = 1e-5;
    if (act == ACT_RELU)
        return x > 0;
    return (activation(act, x + h) - activation(act, x - h)) / (2 * h);
}

static void expected_product(double *c, double *pre, const float *old, const float *a,
                             const float *b, const struct matmul *p)
{
    for (int i = 0; i < p->m; i++)
        for (int j = 0; j < p->n; j++) {
            const size_t at = (size_t)i * p->n + j;
            double sum = p->bias ? ((const float *)p->bias)[j] : 0;
            for (int l = 0; l < p->k; l++)
                sum += (double)a[p->trans_a ? l * p->m + i : i * p->k + l] *
                       b[p->trans_b ? j * p->k + l : l * p->n + j];
            pre[at] = sum;
            if (p->gradient_of)
                sum *= activation_slope(p->act, ((const float *)p->gradient_of)[at]);
            else
                sum = activation(p->act, sum);
            c[at] = sum + (p->accumulate ? old[at] : 0);
        }
}

static void check_product(struct matmul p)
{
    const size_t mn = (size_t)p.m * p.n;
    float *a = random_array((size_t)p.m * p.k, 1), *b = random_array((size_t)p.k * p.n, 2);
    float *c = random_array(mn, 3), *old = copy_array(c, mn), *pre = random_array(mn, 4);
    double *expected = zf_malloc(sizeof(double) * mn),
           *expected_pre = zf_malloc(sizeof(double) * mn);
    if (p.pre)
        p.pre = pre;
    expected_product(expected, expected_pre, old, a, b, &p);
    OPS->matmul(COMPUTE, c, a, b, &p);
    assert_near("c", c, expected, mn, 2e-5);
    if (p.pre)
        assert_near("pre", pre, expected_pre, mn, 2e-5);
    free(a);
    free(b);
    free(c);
    free(old);
    free(pre);
    free(expected);
    free(expected_pre);
}

static void products(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 1, 1},     {8, 32, 8},    {37, 50, 19},  {2, 65, 300},
                                    {130, 3, 257}, {65, 200, 64}, {9, 129, 520}, {3, 2, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int form = 0; form < 8; form++) {
            struct matmul p = {.m = shapes[i][0],
                               .n = shapes[i][1],
                               .k = shapes[i][2],
                               .trans_a = form & 1,
                               .trans_b = form & 2,
                               .accumulate = form & 4};
            check_product(p);
        }
}

static void epilogues(void **state)
{
    (void)state;
    float *bias = random_array(200, 5), *gradient_of = random_array(200 * 41, 6), here;
    for (int act = ACT_NONE; act <= ACT_RELU; act++)
        for (int form = 0; form < 8; form++) {
            struct matmul p = {.m = 41,
                               .n = 200,
                               .k = 300,
                               .bias = form & 1 ? bias : NULL,
                               .act = (enum activation)act,
                               .pre = form & 2 ? &here : NULL,
                               .gradient_of = form & 4 ? gradient_of : NULL};
            check_product(p);
            p.accumulate = true;
            check_product(p);
        }
    free(bias);
    free(gradient_of);
}

static void embedding_is_dropped_sum(void **state)
{
    (void)state;
    const int C = 300;
    const size_t n = (size_t)N_TOKENS * C;
    float *wte = random_array((size_t)VOCAB * C, 1), *wpe = random_array((size_t)POSITIONS * C, 2);
    float *x = random_array(n, 3);
    double *expected = zf_malloc(sizeof(double) * n);
    int zeros = 0;
    for (int with_wpe = 0; with_wpe < 2; with_wpe++) {
        OPS->embedding_forward(COMPUTE, x, &rows, wte, with_wpe ? wpe : NULL, C, drop);
        zeros = 0;
        for (int t = 0; t < N_TOKENS; t++)
            for (int j = 0; j < C; j++) {
                double f = dropout_factor(&drop, drop.site, token_seq[t], (uint32_t)position[t],
                                          (uint32_t)j);
                double place = with_wpe ? wpe[position[t] * C + j] : 0;
                expected[(size_t)t * C + j] = f * ((double)wte[tokens[t] * C + j] + place);
                zeros += f == 0;
            }
        assert_near("x", x, expected, n, 1e-6);
    }
    assert_true(fabs(zeros / (double)n - 0.3) < 0.01);
    free(wte);
    free(wpe);
    free(x);
    free(expected);
}

static void expected_layernorm(double *x_out, double *y, const float *x_in, const float *branch,
                               const float *gamma, const float *beta, const struct dropout *d,
                               int C)
{
    for (int t = 0; t < N_TOKENS; t++) {
        double *x = x_out + (size_t)t * C, mean = 0, variance = 0;
        for (int j = 0; j < C; j++) {
            double f = d->p == 0 ? 1
                                 : dropout_factor(d, d->site, token_seq[t], (uint32_t)position[t],
                                                  (uint32_t)j);
            x[j] = x_in[(size_t)t * C + j] + (branch ? f * branch[(size_t)t * C + j] : 0);
            mean += x[j] / C;
        }
        for (int j = 0; j < C; j++)
            variance += (x[j] - mean) * (x[j] - mean) / C;
        for (int j = 0; j < C; j++)
            y[(size_t)t * C + j] = gamma[j] * (x[j] - mean) / sqrt(variance + 1e-5) + beta[j];
    }
}

static void layernorm_with(int C, bool with_branch, bool in_place, struct dropout d)
{
    const size_t n = (size_t)N_TOKENS * C;
    float *x_in = random_array(n, 1), *branch = with_branch ? random_array(n, 2) : NULL;
    float *gamma = random_array((size_t)C, 3), *beta = random_array((size_t)C, 4);
    float *x_out = in_place ? x_in : random_array(n, 5), *y = random_array(n, 6);
    float mean[N_TOKENS], rstd[N_TOKENS];
    double *expected_x = zf_malloc(sizeof(double) * n), *expected_y = zf_malloc(sizeof(double) * n);
    expected_layernorm(expected_x, expected_y, x_in, branch, gamma, beta, &d, C);
    OPS->residual_layernorm_forward(COMPUTE, x_out, y, mean, rstd, x_in, branch, &rows, gamma, beta,
                                    1e-5f, C, d);
    assert_near("x_out", x_out, expected_x, n, 1e-6);
    assert_near("y", y, expected_y, n, 1e-5);
    free(x_in);
    free(branch);
    free(gamma);
    free(beta);
    if (!in_place)
        free(x_out);
    free(y);
    free(expected_x);
    free(expected_y);
}

static void layernorm(void **state)
{
    (void)state;
    layernorm_with(300, true, false, drop);
    layernorm_with(300, true, true, drop);
    layernorm_with(24, true, true, no_drop);
    layernorm_with(24, false, false, no_drop);
    layernorm_with(24, false, true, drop);
}

/* The gradients of gain and bias over some tokens: written, or added to `start`. */
static void norm_gradients_with(const struct token_rows *of, float start, bool accumulate)
{
    enum { C = 24 };
    const size_t n = (size_t)N_TOKENS * C;
    float *dx = random_array(n, 1), *dy = random_array(n, 2), *x = random_array(n, 3);
    float *gamma = random_array(C, 4), *mean = random_array(N_TOKENS, 5),
          *dbranch = copy_array(x, n);
    float *rstd = random_array(N_TOKENS, 6), dgamma[C], dbeta[C];
    double expected_dgamma[C], expected_dbeta[C];
    for (int j = 0; j < C; j++) {
        dgamma[j] = dbeta[j] = start;
        expected_dgamma[j] = expected_dbeta[j] = accumulate ? start : 0;
        for (int t = 0; t < of->n_tokens; t++) {
            const double g = dy[t * C + j];
            expected_dgamma[j] += g * ((double)x[t * C + j] - mean[t]) * rstd[t];
            expected_dbeta[j] += g;
        }
    }
    OPS->residual_layernorm_backward(COMPUTE, dx, dbranch, dgamma, dbeta, dy, x, mean, rstd, of,
                                     gamma, C, drop, accumulate);
    assert_near("dgamma", dgamma, expected_dgamma, C, 1e-5);
    assert_near("dbeta", dbeta, expected_dbeta, C, 1e-5);
    free(dx), free(dy), free(x), free(gamma), free(mean), free(dbranch), free(rstd);
}

static void norm_gradients_are_written_or_added(void **state)
{
    (void)state;
    norm_gradients_with(&rows, NAN, false);
    norm_gradients_with(&rows, 3, true);
    norm_gradients_with(&no_rows, NAN, false);
    norm_gradients_with(&no_rows, 3, true);
}

static void rmsnorm_with(int C, bool with_branch, bool in_place, struct dropout d)
{
    const size_t n = (size_t)N_TOKENS * C;
    float *x_in = random_array(n, 1), *branch = with_branch ? random_array(n, 2) : NULL;
    float *weight = random_array((size_t)C, 3);
    float *x_out = in_place ? x_in : random_array(n, 5), *y = random_array(n, 6), rstd[N_TOKENS];
    double *expected_x = zf_malloc(sizeof(double) * n), *expected_y = zf_malloc(sizeof(double) * n);
    double expected_rstd[N_TOKENS];
    expected_layernorm(expected_x, expected_y, x_in, branch, weight, weight, &d, C);
    for (int t = 0; t < N_TOKENS; t++) {
        double squares = 0;
        for (int j = 0; j < C; j++)
            squares += expected_x[t * C + j] * expected_x[t * C + j];
        expected_rstd[t] = 1 / sqrt(squares / C + 1e-5);
        for (int j = 0; j < C; j++)
            expected_y[t * C + j] = weight[j] * expected_x[t * C + j] * expected_rstd[t];
    }
    OPS->residual_rmsnorm_forward(COMPUTE, x_out, y, rstd, x_in, branch, &rows, weight, 1e-5f, C,
                                  d);
    assert_near("x_out", x_out, expected_x, n, 1e-6);
    assert_near("y", y, expected_y, n, 1e-5);
    assert_near("rstd", rstd, expected_rstd, N_TOKENS, 1e-5);
    free(x_in);
    free(branch);
    free(weight);
    if (!in_place)
        free(x_out);
    free(y);
    free(expected_x);
    free(expected_y);
}

static void rmsnorm(void **state)
{
    (void)state;
    rmsnorm_with(300, true, false, drop);
    rmsnorm_with(300, true, true, drop);
    rmsnorm_with(24, true, true, no_drop);
    rmsnorm_with(24, false, false, no_drop);
    rmsnorm_with(24, false, true, drop);
}

/* out: one head of q or k; weight NULL: no norm */
static void expected_rotary(double *out, const float *u, const float *weight, int t,
                            const struct rotary *r)
{
    const int D = r->heads.head_dim, half = D / 2;
    double squares = 0, *x = zf_malloc(sizeof(double) * (size_t)D);
    for (int i = 0; i < D; i++)
        squares += (double)u[i] * u[i];
    for (int i = 0; i < D; i++)
        x[i] = weight ? weight[i] * u[i] / sqrt(squares / D + (double)r->eps) : u[i];
    for (int i = 0; i < half; i++) {
        const double angle = (double)((float)position[t] * r->frequency[i]);
        const double c = (double)r->scale * cos(angle), s = (double)r->scale * sin(angle);
        out[i] = x[i] * c - x[i + half] * s;
        out[i + half] = x[i + half] * c + x[i] * s;
    }
    free(x);
}

static void rotary_with(struct heads heads, bool with_norms)
{
    enum { MOST = 40 };
    const int D = heads.head_dim, row = heads_row(&heads), n_qk = heads.n_head + heads.n_kv_head;
    const size_t n = (size_t)N_TOKENS * row;
    float frequency[MOST], *q_weight = random_array(D, 7), *k_weight = random_array(D, 8);
    for (int i = 0; i < D / 2; i++)
        frequency[i] = powf(100, -2.0f * (float)i / (float)D);
    const struct rotary r = {.heads = heads,
                             .frequency = frequency,
                             .scale = 1.25f,
                             .q_weight = with_norms ? q_weight : NULL,
                             .k_weight = with_norms ? k_weight : NULL,
                             .eps = 1e-3f};
    float *qkv = random_array(n, 1), *old = copy_array(qkv, n);
    float *pre = random_array((size_t)N_TOKENS * n_qk * D, 2);
    double *expected = zf_malloc(sizeof(double) * (size_t)row);
    OPS->rotary_forward(COMPUTE, qkv, with_norms ? pre : NULL, &rows, &r);
    for (int t = 0; t < N_TOKENS; t++) {
        for (int i = 0; i < row; i++)
            expected[i] = old[t * row + i];
        for (int h = 0; h < n_qk; h++)
            expected_rotary(expected + h * D, old + t * row + h * D,
                            h < heads.n_head ? r.q_weight : r.k_weight, t, &r);
        assert_near("qkv", qkv + t * row, expected, (size_t)row, 1e-6);
        if (with_norms)
            assert_memory_equal(pre + t * n_qk * D, old + t * row, sizeof(float) * n_qk * D);
    }
    free(q_weight);
    free(k_weight);
    free(qkv);
    free(old);
    free(pre);
    free(expected);
}

static void rotary(void **state)
{
    (void)state;
    for (int with_norms = 0; with_norms < 2; with_norms++) {
        rotary_with((struct heads){3, 3, 64}, with_norms);
        rotary_with((struct heads){6, 2, 10}, with_norms);
        rotary_with((struct heads){2, 1, 80}, with_norms);
    }
}

/* out and lse of one head of one query */
static void expected_attention(double *out, double *lse, const float *qkv, int start, int t,
                               int head, const struct attention *a)
{
    const struct heads *h = &a->heads;
    const int hd = h->head_dim, row = heads_row(h), kv_head = head * h->n_kv_head / h->n_head;
    const int first = a->window && t - start >= a->window ? t + 1 - a->window : start;
    double weight[POSITIONS], sum = 0, max = -INFINITY;
    const float *q = qkv + (size_t)t * row + head * hd;
    for (int i = first; i <= t; i++) {
        const float *k = qkv + (size_t)i * row + (h->n_head + kv_head) * hd;
        double score = 0;
        for (int j = 0; j < hd; j++)
            score += (double)a->scale * q[j] * k[j];
        weight[i - first] = score;
        max = fmax(max, score);
    }
    for (int i = 0; i <= t - first; i++)
        sum += exp(weight[i] - max);
    *lse = max + log(sum);
    memset(out, 0, sizeof(double) * (size_t)hd);
    for (int i = first; i <= t; i++) {
        const float *v = qkv + (size_t)i * row + (h->n_head + h->n_kv_head + kv_head) * hd;
        double p = exp(weight[i - first] - *lse);
        if (a->drop.p > 0)
            p *= dropout_factor(&a->drop, a->drop.site + ((uint32_t)head << 16), token_seq[t],
                                (uint32_t)position[t], (uint32_t)(i - start));
        for (int j = 0; j < hd; j++)
            out[j] += p * v[j];
    }
}

static void attention_with(struct heads heads, int window, float scale, struct dropout d)
{
    const struct attention a = {heads, window, scale, d};
    const int n_head = heads.n_head, head_dim = heads.head_dim, C = n_head * head_dim;
    const size_t n = (size_t)N_TOKENS * C, n_lse = (size_t)N_TOKENS * n_head;
    float *qkv = random_array((size_t)N_TOKENS * heads_row(&heads), 1);
    float *out = random_array(n, 2), *lse = random_array(n_lse, 3);
    double *expected = zf_malloc(sizeof(double) * n);
    double *expected_lse = zf_malloc(sizeof(double) * n_lse);
    for (int s = 0; s < N_SEQS; s++)
        for (int t = seq_start[s]; t < seq_start[s + 1]; t++)
            for (int h = 0; h < n_head; h++)
                expected_attention(expected + (size_t)t * C + h * head_dim,
                                   expected_lse + t * n_head + h, qkv, seq_start[s], t, h, &a);
    OPS->attention_forward(COMPUTE, out, lse, qkv, &rows, &a);
    assert_near("out", out, expected, n, 1e-5);
    assert_near("lse", lse, expected_lse, n_lse, 1e-5);
    free(qkv);
    free(out);
    free(lse);
    free(expected);
    free(expected_lse);
}

static void attention(void **state)
{
    (void)state;
    attention_with((struct heads){3, 3, 32}, 0, 0.2f, no_drop);
    attention_with((struct heads){3, 3, 32}, 0, 0.2f, drop);
    attention_with((struct heads){2, 2, 20}, 0, 5, drop);
    attention_with((struct heads){1, 1, 64}, 0, 0.125f, no_drop);
}

static void attention_of_groups_and_windows(void **state)
{
    (void)state;
    attention_with((struct heads){6, 2, 20}, 0, 0.2f, drop);
    attention_with((struct heads){4, 1, 32}, 0, 0.2f, no_drop);
    static const int windows[] = {1, 2, 19, 31, 32, 33, 64, 69, 70, 1000};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        attention_with((struct heads){2, 2, 8}, windows[i], 0.7f, no_drop);
        attention_with((struct heads){4, 2, 8}, windows[i], 0.7f, drop);
    }
}

/* Backward's slopes are tested against finite differences; here, where its outputs lie. */
static void swiglu(void **state)
{
    (void)state;
    enum { N = 41, I = 300 };
    float *gate_up = random_array(2 * N * I, 1), *y = random_array(N * I, 2);
    float *dy = random_array(N * I, 3), *dgate_up = random_array(2 * N * I, 4);
    double *expected = zf_malloc(sizeof(double) * N * I);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < I; j++) {
            gate_up[i * 2 * I + j] *= 20;
            const double z = gate_up[i * 2 * I + j];
            expected[i * I + j] = z / (1 + exp(-z)) * gate_up[i * 2 * I + I + j];
        }
    OPS->swiglu_forward(COMPUTE, y, gate_up, N, I);
    assert_near("y", y, expected, N * I, 1e-6);
    OPS->swiglu_backward(COMPUTE, dgate_up, NULL, dy, gate_up, N, I);
    OPS->swiglu_backward(COMPUTE, gate_up, dy, dy, gate_up, N, I); /* in place, and y again */
    assert_memory_equal(gate_up, dgate_up, sizeof(float) * 2 * N * I);
    assert_near("y again", dy, expected, N * I, 1e-6);
    free(gate_up);
    free(y);
    free(dy);
    free(dgate_up);
    free(expected);
}

static void last_tokens(void **state)
{
    (void)state;
    const int C = 5;
    float *x = random_array((size_t)N_TOKENS * C, 1), *dx = random_array((size_t)N_TOKENS * C, 2);
    float y[N_SEQS * 5];
    OPS->gather_last(COMPUTE, y, x, &rows, C);
    OPS->scatter_last(COMPUTE, dx, y, &rows, C);
    for (int s = 0; s < N_SEQS; s++)
        for (int t = seq_start[s]; t < seq_start[s + 1]; t++)
            for (int j = 0; j < C; j++) {
                const bool last = t == seq_start[s + 1] - 1;
                assert_true(dx[t * C + j] == (last ? x[t * C + j] : 0));
                assert_true(!last || y[s * C + j] == x[t * C + j]);
            }
    free(x);
    free(dx);
}

static void cross_entropy(void **state)
{
    (void)state;
    const int n = 4, classes = 1001;
    const int targets[] = {1000, TARGET_IGNORE, 3, 0};
    float losses[4], *logits = random_array((size_t)n * classes, 1);
    for (int j = 0; j < classes; j++)
        logits[2 * classes + j] *= 500; /* exp of these is not finite */
    logits[3] = 9;
    float *gradient = copy_array(logits, (size_t)n * classes);
    OPS->cross_entropy(COMPUTE, losses, gradient, gradient, targets, n, classes, classes, 0.5f);
    for (int i = 0; i < n; i++) {
        const float *x = logits + i * classes;
        double max = -INFINITY, sum = 0;
        for (int j = 0; j < classes; j++)
            max = fmax(max, x[j]);
        for (int j = 0; j < classes; j++)
            sum += exp(x[j] - max);
        const bool ignored = targets[i] == TARGET_IGNORE;
        const double loss = ignored ? 0 : max + log(sum) - x[targets[i]];
        assert_near("loss", losses + i, &loss, 1, 1e-6);
        for (int j = 0; j < classes; j++) {
            const double slope =
                ignored ? 0 : 0.5 * (exp(x[j] - max) / sum - (j == targets[i] ? 1 : 0));
            assert_near("gradient", gradient + i * classes + j, &slope, 1, 1e-6);
        }
    }
    float *scratch = copy_array(logits, (size_t)n * classes), again[4];
    OPS->cross_entropy(COMPUTE, again, NULL, scratch, targets, n, classes, classes, 0.5f);
    assert_memory_equal(again, losses, sizeof losses);
    float *apart = random_array((size_t)n * classes, 2);
    memcpy(scratch, logits, sizeof(float) * (size_t)n * classes);
    OPS->cross_entropy(COMPUTE, again, apart, scratch, targets, n, classes, classes, 0.5f);
    assert_memory_equal(again, losses, sizeof losses);
    assert_memory_equal(apart, gradient, sizeof(float) * (size_t)n * classes);
    enum { STRIDE = 1008 };
    float *wide = random_array((size_t)n * STRIDE, 3);
    for (int i = 0; i < n; i++)
        memcpy(wide + i * STRIDE, logits + i * classes, sizeof(float) * (size_t)classes);
    OPS->cross_entropy(COMPUTE, again, wide, wide, targets, n, classes, STRIDE, 0.5f);
    assert_memory_equal(again, losses, sizeof losses);
    for (int i = 0; i < n; i++) {
        assert_memory_equal(wide + i * STRIDE, gradient + i * classes,
                            sizeof(float) * (size_t)classes);
        for (int j = classes; j < STRIDE; j++)
            assert_true(wide[i * STRIDE + j] == 0);
    }
    free(wide);
    free(logits);
    free(gradient);
    free(scratch);
    free(apart);
}

static void squared_error(void **state)
{
    (void)state;
    enum { N = 5 };
    const float scores[N] = {0, 1, 2.5f, -3, 5};
    float *logits = random_array(N, 1), *both = copy_array(logits, N), losses[N], gradient[N];
    OPS->squared_error(COMPUTE, losses, NULL, both, scores, N, 0.25f);
    memcpy(both, logits, sizeof gradient);
    OPS->squared_error(COMPUTE, losses, gradient, both, scores, N, 0.25f);
    memcpy(both, logits, sizeof gradient);
    OPS->squared_error(COMPUTE, losses, both, both, scores, N, 0.25f);
    for (int i = 0; i < N; i++) {
        const double error = (double)logits[i] - scores[i];
        const double loss = error * error, slope = 0.25 * 2 * error;
        assert_near("loss", losses + i, &loss, 1, 1e-6);
        assert_near("gradient", gradient + i, &slope, 1, 1e-6);
        assert_near("gradient in place", both + i, &slope, 1, 1e-6);
    }
    free(logits);
    free(both);
}

/* Sums in double, added to what is there: float would lose every one of these. */
static void add_sum(void **state)
{
    (void)state;
    enum { N = 4097 };
    float *x = random_array(N, 1);
    double sum = 1e9, expected = 1e9;
    for (int i = 0; i < N; i++)
        expected += x[i];
    OPS->add_sum(COMPUTE, &sum, x, N);
    assert_true(fabs(sum - expected) < 1e-5);
    OPS->add_sum(COMPUTE, &sum, x, 0);
    assert_true(fabs(sum - expected) < 1e-5);
    free(x);
}

/* Column sums of n rows, written or added to what is there. */
static void bias_sums_with(const float *x, int n, int C, bool accumulate)
{
    float *db = random_array((size_t)C, 3);
    double *expected = zf_malloc(sizeof *expected * (size_t)C);
    for (int j = 0; j < C; j++) {
        expected[j] = accumulate ? db[j] : 0;
        db[j] = accumulate ? db[j] : NAN;
        for (int i = 0; i < n; i++)
            expected[j] += x[i * C + j];
    }
    OPS->bias_backward(COMPUTE, db, x, n, C, accumulate);
    assert_near("db", db, expected, (size_t)C, 1e-5);
    free(db);
    free(expected);
}

static void sums(void **state)
{
    (void)state;
    enum { N = 203, C = 77 };
    float *x = random_array(N * C, 1), *copy = random_array(N * C, 2);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        bias_sums_with(x, N, C, accumulate);
        bias_sums_with(x, 1, C, accumulate);
        bias_sums_with(x, 0, C, accumulate);
    }
    OPS->from_f32(COMPUTE, copy, x, N * C);
    assert_memory_equal(copy, x, sizeof(float) * N * C);
    free(x);
    free(copy);
}

/* No operator touches anything where there are no rows. */
static void nothing_of_nothing(void **state)
{
    (void)state;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    const struct matmul no_rows_of_c = {.m = 0, .n = 4, .k = 2},
                        no_columns = {.m = 4, .n = 0, .k = 2};
    memcpy(y, x, sizeof x);
    OPS->embedding_forward(COMPUTE, x, &no_rows, x, x, 4, drop);
    OPS->embedding_backward(COMPUTE, x, x, x, &no_rows, order, 4, drop);
    OPS->residual_layernorm_forward(COMPUTE, x, x, x, x, x, x, &no_rows, x, x, 1e-5f, 4, drop);
    OPS->residual_layernorm_backward(COMPUTE, x, x, x, x, x, x, x, x, &no_rows, x, 4, drop, true);
    OPS->residual_rmsnorm_forward(COMPUTE, x, x, x, x, x, &no_rows, x, 1e-5f, 4, drop);
    OPS->residual_rmsnorm_backward(COMPUTE, x, x, x, x, x, x, &no_rows, x, 4, drop, true);
    OPS->matmul(COMPUTE, x, x, x, &no_rows_of_c);
    OPS->matmul(COMPUTE, x, x, x, &no_columns);
    OPS->bias_backward(COMPUTE, x, x, 0, 4, true);
    const struct rotary turns = {{2, 2, 2}, x, 1, x, x, 1e-5f};
    OPS->rotary_forward(COMPUTE, x, x, &no_rows, &turns);
    OPS->rotary_backward(COMPUTE, x, x, x, x, &no_rows, &turns, true);
    const struct attention two_heads = {.heads = {2, 2, 2}, .scale = 1, .drop = drop};
    OPS->attention_forward(COMPUTE, x, x, x, &no_rows, &two_heads);
    OPS->attention_backward(COMPUTE, x, x, x, x, x, &no_rows, &two_heads);
    OPS->swiglu_forward(COMPUTE, x, x, 0, 4);
    OPS->swiglu_backward(COMPUTE, x, x, x, x, 0, 4);
    OPS->gather_last(COMPUTE, x, x, &no_rows, 4);
    OPS->scatter_last(COMPUTE, x, x, &no_rows, 4);
    OPS->cross_entropy(COMPUTE, x, x, x, order, 0, 4, 4, 1);
    OPS->squared_error(COMPUTE, x, x, x, x, 0, 1);
    OPS->from_f32(COMPUTE, x, y, 0);
    device->copy(COMPUTE, x, y, 0);
    device->zero(COMPUTE, x, 0);
    assert_memory_equal(x, y, sizeof x);
}

/* Gradients that are written are zero where there are no rows. */
static void zeros_of_nothing(void **state)
{
    (void)state;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, dweight[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const float zeros[4] = {0}, rest[4] = {5, 6, 7, 8};
    OPS->residual_rmsnorm_backward(COMPUTE, x, x, dweight, x, x, x, &no_rows, x, 4, drop, false);
    assert_memory_equal(dweight, zeros, sizeof zeros);
    assert_memory_equal(dweight + 4, rest, sizeof rest);
    const struct rotary turns = {{2, 2, 2}, x, 1, x, x, 1e-5f};
    dweight[0] = dweight[3] = 1;
    OPS->rotary_backward(COMPUTE, x, dweight, dweight + 2, x, &no_rows, &turns, false);
    assert_memory_equal(dweight, zeros, sizeof zeros);
    assert_memory_equal(dweight + 4, rest, sizeof rest);
}

enum { WIDE = 384, HEADS = 6, RESULTS = 22 };

/* Runs every operator that splits its work over threads; results[i] is (N_TOKENS, 3 WIDE). */
static void run_all(int n_threads, float *results[RESULTS])
{
    const size_t n = (size_t)N_TOKENS * WIDE;
    struct device *d = device_cpu(n_threads);
    for (uint32_t i = 0; i < RESULTS; i++)
        results[i] = random_array(3 * n, i);
    float **r = results, *gamma = random_array(WIDE, 90), mean[N_TOKENS], rstd[N_TOKENS];
    float *weights = random_array((size_t)3 * WIDE * WIDE, 91), *qkv = random_array(3 * n, 92);
    float *lse = random_array((size_t)N_TOKENS * HEADS, 93);
    d->ops->embedding_forward(d->compute, r[0], &rows, weights, weights, WIDE, drop);
    d->ops->embedding_backward(d->compute, r[1], r[2], qkv, &rows, order, WIDE, drop);
    d->ops->residual_layernorm_forward(d->compute, r[3], r[4], mean, rstd, r[3], qkv, &rows, gamma,
                                       gamma, 1e-5f, WIDE, drop);
    d->ops->residual_layernorm_backward(d->compute, r[5], r[6], r[7], r[7] + WIDE, qkv, r[3], mean,
                                        rstd, &rows, gamma, WIDE, drop, true);
    d->ops->residual_rmsnorm_forward(d->compute, r[12], r[12] + n, rstd, r[3], qkv, &rows, gamma,
                                     1e-5f, WIDE, drop);
    d->ops->residual_rmsnorm_backward(d->compute, r[13], r[13] + n, r[14], qkv, r[12], rstd, &rows,
                                      gamma, WIDE, drop, false);
    for (int norms = 0; norms < 2; norms++) {
        const struct rotary turns = {{HEADS, HEADS / 2, WIDE / HEADS},
                                     gamma,
                                     0.9f,
                                     norms ? gamma : NULL,
                                     norms ? gamma : NULL,
                                     1e-5f};
        float *const *at = r + 17 + 2 * norms;
        d->ops->rotary_forward(d->compute, at[0], norms ? at[1] : NULL, &rows, &turns);
        d->ops->rotary_backward(d->compute, at[norms ? 0 : 1], r[21], r[21] + WIDE,
                                norms ? at[1] : NULL, &rows, &turns, false);
    }
    d->ops->swiglu_forward(d->compute, r[15], qkv, N_TOKENS, WIDE);
    d->ops->swiglu_backward(d->compute, r[16], r[16] + 2 * n, qkv, qkv, N_TOKENS, WIDE);
    const struct attention attention = {
        .heads = {HEADS, HEADS / 2, WIDE / HEADS}, .scale = 0.1f, .drop = drop};
    d->ops->attention_forward(d->compute, r[8], lse, qkv, &rows, &attention);
    d->ops->attention_backward(d->compute, r[9], weights, qkv, r[8], lse, &rows, &attention);
    d->ops->bias_backward(d->compute, r[11], qkv, N_TOKENS, 3 * WIDE, true);
    d->ops->cross_entropy(d->compute, lse, r[11] + n, r[11] + n, order, N_TOKENS, WIDE, WIDE, 1);
    free(gamma);
    free(weights);
    free(qkv);
    free(lse);
}

static void same_bits_on_any_threads(void **state)
{
    (void)state;
    float *one[RESULTS], *more[RESULTS];
    run_all(1, one);
    for (int n_threads = 2; n_threads <= 3; n_threads++) {
        run_all(n_threads, more);
        for (int i = 0; i < RESULTS; i++) {
            if (memcmp(one[i], more[i], sizeof(float) * 3 * N_TOKENS * WIDE) != 0)
                fail_msg("result %d on %d threads is not that of one thread", i, n_threads);
            free(more[i]);
        }
    }
    for (int i = 0; i < RESULTS; i++)
        free(one[i]);
    device_cpu(2);
}

static void math_is_accurate(void **state)
{
    (void)state;
    for (double at = -87; at < 88; at += 1e-3) {
        const float x = (float)at, small = x / 16;
        const double e = exp((double)x), error = fabs(vector_exp(x) - e) / e;
        if (error > 2 * 0x1p-24 * 1.5)
            fail_msg("exp(%.9g) has a relative error of %g", x, error);
        const double erf_error = fabs(vector_erf(small) - erf((double)small));
        if (erf_error > 2 * 0x1p-24 * fabs(erf((double)small)) * 1.5)
            fail_msg("erf(%.9g) has an error of %g", small, erf_error);
    }
    for (double at = -12; at < 12; at += 1e-4) {
        const float x = (float)at;
        const double bound = 3e-7 * fmax(1, fabs(at));
        assert_true(fabs(gelu_tanh(x) - activation(ACT_GELU_TANH, x)) < bound);
        assert_true(fabs(gelu_erf(x) - activation(ACT_GELU_ERF, x)) < bound);
    }
    for (double at = -1e5; at < 1e5; at = at < -20 || at > 20 ? at + 0.37 : at + 1e-4) {
        const float x = (float)at;
        float sine, cosine;
        sine_cosine(x, &sine, &cosine);
        if (fabs(sine - sin((double)x)) > 1.2e-7 || fabs(cosine - cos((double)x)) > 1.2e-7)
            fail_msg("sine and cosine of %.9g are %.9g and %.9g", x, sine, cosine);
    }
    assert_true(vector_exp(-INFINITY) >= 0 && vector_exp(-INFINITY) < 1e-37f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(epilogues),
        cmocka_unit_test(embedding_is_dropped_sum),
        cmocka_unit_test(layernorm),
        cmocka_unit_test(norm_gradients_are_written_or_added),
        cmocka_unit_test(rmsnorm),
        cmocka_unit_test(rotary),
        cmocka_unit_test(attention),
        cmocka_unit_test(attention_of_groups_and_windows),
        cmocka_unit_test(swiglu),
        cmocka_unit_test(last_tokens),
        cmocka_unit_test(cross_entropy),
        cmocka_unit_test(squared_error),
        cmocka_unit_test(add_sum),
        cmocka_unit_test(sums),
        cmocka_unit_test(nothing_of_nothing),
        cmocka_unit_test(zeros_of_nothing),
        cmocka_unit_test(same_bits_on_any_threads),
        cmocka_unit_test(math_is_accurate),
    };
    return cmocka_run_group_tests_name("ops", tests, set_up, NULL);
}
