/* Each operator as it is called, beside its cost. */
#include "cmd/bench_kernels_cases.h"

#include <math.h>

#define INTERVAL 4 /* groups of channels, one of which closes */

static struct stream *stream_of(const struct kernel_bench *b)
{
    return b->device->compute;
}

static const struct ops *ops_of(const struct kernel_bench *b)
{
    return b->device->ops;
}

static struct dropout dropout_of(const struct kernel_bench *b)
{
    return (struct dropout){.p = b->p, .seed = 1, .step = 2, .site = 3};
}

/* Bytes of an activation (n, C). */
static double activation(const struct kernel_shape *s)
{
    return (double)s->element * s->n * s->C;
}

/* Pairs of tokens that causal attention multiplies, times C: one product of all heads is 2 of it.
 */
static double attended(const struct kernel_shape *s)
{
    return (double)s->n_seqs * s->length * (s->length + 1.0) / 2 * s->C;
}

static void run_embedding_forward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->embedding_forward(stream_of(b), b->wide[2], &b->rows, b->table, b->position,
                                 b->shape.C, dropout_of(b));
}

/* Reads the different rows of both tables, writes x. */
static struct kernel_cost cost_embedding_forward(const struct kernel_shape *s)
{
    double tables = (double)s->element * s->C * (s->distinct + s->length);
    return (struct kernel_cost){.bytes = activation(s) + tables};
}

static void run_embedding_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->embedding_backward(stream_of(b), b->gradient, b->d_position, b->wide[0], &b->rows,
                                  b->order, b->shape.C, dropout_of(b));
}

/* Reads dx, adds to the different rows of both fp32 gradients. */
static struct kernel_cost cost_embedding_backward(const struct kernel_shape *s)
{
    double tables = 2.0 * sizeof(float) * s->C * (s->distinct + s->length);
    return (struct kernel_cost){.bytes = activation(s) + tables};
}

static void run_layernorm_forward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->residual_layernorm_forward(stream_of(b), b->wide[2], b->wide[3], b->mean, b->rstd,
                                          b->wide[0], b->wide[1], &b->rows, b->weight, b->bias,
                                          1e-5f, b->shape.C, dropout_of(b));
}

/* Reads x and branch, writes x and y, mean and rstd. */
static struct kernel_cost cost_layernorm_forward(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 4 * activation(s) + 8.0 * s->n};
}

static void run_layernorm_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->residual_layernorm_backward(stream_of(b), b->wide[2], b->wide[3], b->d_weight,
                                           b->d_bias, b->wide[0], b->wide[1], b->mean, b->rstd,
                                           &b->rows, b->weight, b->shape.C, dropout_of(b));
}

/* Reads dy, x, dx, mean and rstd, writes dx and dbranch. */
static struct kernel_cost cost_layernorm_backward(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 5 * activation(s) + 8.0 * s->n};
}

static void run_bias_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->bias_backward(stream_of(b), b->d_bias, b->wide[0], b->shape.n, b->shape.inner);
}

/* Reads dy: (n, inner). */
static struct kernel_cost cost_bias_backward(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = (double)s->element * s->n * s->inner};
}

static float attention_scale(const struct kernel_shape *s)
{
    return 1 / sqrtf((float)(s->C / s->n_head));
}

static void run_attention_forward(void *bench)
{
    const struct kernel_bench *b = bench;
    const struct kernel_shape *s = &b->shape;
    ops_of(b)->attention_forward(stream_of(b), b->wide[1], b->lse, b->wide[0], &b->rows, s->n_head,
                                 s->C / s->n_head, attention_scale(s), dropout_of(b));
}

/* Two products, q k^T and P v. Reads q, k, v, writes out and lse. */
static struct kernel_cost cost_attention_forward(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 4 * activation(s) + 4.0 * s->n * s->n_head,
                                .flops = 4 * attended(s)};
}

static void run_attention_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    const struct kernel_shape *s = &b->shape;
    ops_of(b)->attention_backward(stream_of(b), b->wide[2], b->wide[3], b->wide[0], b->wide[1],
                                  b->lse, &b->rows, s->n_head, s->C / s->n_head, attention_scale(s),
                                  dropout_of(b));
}

/* Five products: q k^T again, dP = dout v^T, dv, dk and dq. Reads q, k, v, out, dout and lse,
 * writes dq, dk, dv. */
static struct kernel_cost cost_attention_backward(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 8 * activation(s) + 4.0 * s->n * s->n_head,
                                .flops = 10 * attended(s)};
}

static void run_gather_last(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->gather_last(stream_of(b), b->wide[2], b->wide[0], &b->rows, b->shape.C);
}

/* A row of each sequence, read and written. */
static struct kernel_cost cost_gather_last(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 2.0 * s->element * s->n_seqs * s->C};
}

static void run_scatter_last(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->scatter_last(stream_of(b), b->wide[2], b->wide[0], &b->rows, b->shape.C);
}

/* Writes dx, reads a row of each sequence. */
static struct kernel_cost cost_scatter_last(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = activation(s) + (double)s->element * s->n_seqs * s->C};
}

static void run_cross_entropy(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->cross_entropy(stream_of(b), b->losses, b->d_logits, b->logits, b->targets,
                             b->shape.logit_rows, b->shape.vocab, b->shape.vocab, 1e-3f);
}

/* Reads fp32 logits, writes their gradient. */
static struct kernel_cost cost_cross_entropy(const struct kernel_shape *s)
{
    double logits = (double)s->logit_rows * s->vocab;
    return (struct kernel_cost){.bytes = logits * (4 + s->element)};
}

static void run_squared_error(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->squared_error(stream_of(b), b->losses, b->d_logits, b->logits, b->scores,
                             b->shape.n_seqs, 1e-3f);
}

/* Reads logits and scores, writes losses and gradients. */
static struct kernel_cost cost_squared_error(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = (12.0 + s->element) * s->n_seqs};
}

static void run_add_sum(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->add_sum(stream_of(b), b->sum, b->losses, b->shape.n);
}

/* Reads the losses. */
static struct kernel_cost cost_add_sum(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 4.0 * s->n};
}

static void run_from_f32(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->from_f32(stream_of(b), b->table, b->master,
                        (size_t)b->shape.vocab * (size_t)b->shape.C);
}

/* Elements of the matrix (vocab, C). */
static double matrix(const struct kernel_shape *s)
{
    return (double)s->vocab * s->C;
}

/* Reads fp32, writes the device's dtype. */
static struct kernel_cost cost_from_f32(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = matrix(s) * (4 + s->element)};
}

static void run_row_norms(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->row_norms_squared(stream_of(b), &b->batch);
}

/* Reads the gradient, writes a sum a row. */
static struct kernel_cost cost_row_norms(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 4 * matrix(s) + 4.0 * s->vocab};
}

static void run_summarise_norms(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->summarise_norms(stream_of(b), b->summary, b->norms, b->place, b->shape.vocab, 1);
}

/* Reads a sum and a place a row. */
static struct kernel_cost cost_summarise_norms(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 5.0 * s->vocab};
}

static void run_select_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->select_rows(stream_of(b), b->chosen, b->norms, b->shape.vocab, b->shape.important);
}

/* Reads a sum, writes a choice a row. */
static struct kernel_cost cost_select_rows(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 5.0 * s->vocab};
}

static void adamw_rows(const struct kernel_bench *b, int first, int n)
{
    static const struct adamw rule = {.lr = 1e-4f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.999f,
                                      .eps = 1e-8f,
                                      .weight_decay = 0.01f,
                                      .correction1 = 1,
                                      .correction2 = 1};
    ops_of(b)->adamw_rows(stream_of(b), &b->batch, b->updates + first, n, ROWS_GRADIENT, &rule,
                          b->one, b->shape.element == 2);
}

/* Reads master, m, v and the gradient, writes master, m, v and the parameter. */
static struct kernel_cost cost_adamw(const struct kernel_shape *s, int n)
{
    return (struct kernel_cost){.bytes = (double)n * s->C * (28 + s->element)};
}

static void run_adamw_all(void *bench)
{
    const struct kernel_bench *b = bench;
    adamw_rows(b, 0, b->shape.vocab);
}

static struct kernel_cost cost_adamw_all(const struct kernel_shape *s)
{
    return cost_adamw(s, s->vocab);
}

static void run_adamw_important(void *bench)
{
    const struct kernel_bench *b = bench;
    adamw_rows(b, b->shape.vocab, b->shape.important);
}

static struct kernel_cost cost_adamw_important(const struct kernel_shape *s)
{
    return cost_adamw(s, s->important);
}

static struct channel_set channels_in(uint64_t groups)
{
    return (struct channel_set){.n_groups = INTERVAL, .groups = groups};
}

static void run_accumulate_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    struct channel_set set = channels_in((1 << INTERVAL) - 1);
    ops_of(b)->accumulate_rows(stream_of(b), &b->batch, &set, 1, b->one);
}

/* All deferred channels: reads gradient and window, writes the window. A group in INTERVAL is fresh
 * and not read. */
static struct kernel_cost cost_accumulate_rows(const struct kernel_shape *s)
{
    double deferred = (double)(s->vocab - s->important) * s->C;
    return (struct kernel_cost){.bytes = deferred * (8 + 4 * (1 - 1.0 / INTERVAL))};
}

static enum dtype exchange_dtype(const struct kernel_bench *b)
{
    return b->device->dtype;
}

static void run_send_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    struct channel_set set = channels_in(1);
    ops_of(b)->send_rows(stream_of(b), &b->batch, ROWS_WINDOW, exchange_dtype(b), &set, INTERVAL);
}

/* The closing group's deferred channels: read in fp32, sent in the device's dtype. */
static struct kernel_cost cost_send_rows(const struct kernel_shape *s)
{
    double sent = (double)s->closing * s->C;
    return (struct kernel_cost){.bytes = 4 * sent, .link = s->element * sent};
}

static void run_receive_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    struct channel_set set = channels_in(1);
    ops_of(b)->receive_rows(stream_of(b), &b->batch, exchange_dtype(b), &set);
}

static struct kernel_cost cost_receive_rows(const struct kernel_shape *s)
{
    double received = (double)s->closing * s->C * s->element;
    return (struct kernel_cost){.bytes = received, .link = received};
}

static void run_copy_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->copy_rows(stream_of(b), b->m, NULL, b->gradient, b->important, b->shape.important,
                         (size_t)b->shape.C * sizeof(float));
}

/* The important channels in fp32, read and written. */
static struct kernel_cost cost_copy_rows(const struct kernel_shape *s)
{
    return (struct kernel_cost){.bytes = 8.0 * s->important * s->C};
}

const struct kernel_case kernel_cases[] = {
    {"embedding", run_embedding_forward, cost_embedding_forward, true},
    {"embedding backward", run_embedding_backward, cost_embedding_backward, true},
    {"layer norm, residual", run_layernorm_forward, cost_layernorm_forward, true},
    {"layer norm backward", run_layernorm_backward, cost_layernorm_backward, true},
    {"attention", run_attention_forward, cost_attention_forward, true},
    {"attention backward", run_attention_backward, cost_attention_backward, true},
    {"bias backward", run_bias_backward, cost_bias_backward, false},
    {"gather last tokens", run_gather_last, cost_gather_last, false},
    {"scatter last tokens", run_scatter_last, cost_scatter_last, false},
    {"cross-entropy", run_cross_entropy, cost_cross_entropy, false},
    {"squared error", run_squared_error, cost_squared_error, false},
    {"sum of losses", run_add_sum, cost_add_sum, false},
    {"from fp32", run_from_f32, cost_from_f32, false},
    {"row norms", run_row_norms, cost_row_norms, false},
    {"norm summary", run_summarise_norms, cost_summarise_norms, false},
    {"select rows", run_select_rows, cost_select_rows, false},
    {"AdamW, all rows", run_adamw_all, cost_adamw_all, false},
    {"AdamW, important rows", run_adamw_important, cost_adamw_important, false},
    {"accumulate rows", run_accumulate_rows, cost_accumulate_rows, false},
    {"send rows", run_send_rows, cost_send_rows, false},
    {"receive rows", run_receive_rows, cost_receive_rows, false},
    {"copy rows", run_copy_rows, cost_copy_rows, false},
};
const int n_kernel_cases = sizeof kernel_cases / sizeof *kernel_cases;

void kernel_run_product(void *bench)
{
    const struct kernel_bench *b = bench;
    bool head = b->product.n == b->shape.vocab;
    bool gradient = b->product.trans_a;
    void *c = gradient ? (void *)b->d_weight : head ? (void *)b->logits : b->wide[2];
    const void *right = gradient ? b->wide[1] : head ? b->table : b->weight;
    ops_of(b)->matmul(stream_of(b), c, b->wide[0], right, &b->product);
}

/* a: (m, k) and b: (k, n) read, c: (m, n) written, also read where it is added to; with it the
 * values before the activation, written forward and read backward. */
struct kernel_cost kernel_product_cost(const struct matmul *p, int element)
{
    const double m = p->m, n = p->n, k = p->k;
    double out = p->c_is_f32 ? 4 : element;
    out += (p->accumulate ? out : 0) + (p->pre ? element : 0) + (p->gradient_of ? element : 0);
    return (struct kernel_cost){.bytes = element * (m * k + k * n) + out * m * n,
                                .flops = 2 * m * n * k};
}

void kernel_products(const struct kernel_bench *b, struct kernel_product list[KERNEL_PRODUCTS])
{
    const int n = b->shape.n, C = b->shape.C, I = b->shape.inner;
    const struct matmul gradient = {.k = n, .trans_a = true, .accumulate = true, .c_is_f32 = true};
    const struct kernel_product products[KERNEL_PRODUCTS] = {
        {"qkv", {.m = n, .n = 3 * C, .k = C, .bias = b->bias}},
        {"attention projection", {.m = n, .n = C, .k = C, .bias = b->bias}},
        {"mlp up, activation",
         {.m = n, .n = I, .k = C, .bias = b->bias, .pre = b->wide[3], .act = b->act}},
        {"mlp down", {.m = n, .n = C, .k = I, .bias = b->bias}},
        {"mlp down, dx, activation'",
         {.m = n, .n = I, .k = C, .trans_b = true, .gradient_of = b->wide[3], .act = b->act}},
        {"mlp up, dx", {.m = n, .n = C, .k = I, .trans_b = true}},
        {"qkv, dW", gradient},
        {"mlp up, dW", gradient},
        {"mlp down, dW", gradient},
        {"head, logits",
         {.m = b->shape.logit_rows,
          .n = b->shape.vocab,
          .k = C,
          .trans_b = true,
          .c_is_f32 = true}},
    };
    for (int i = 0; i < KERNEL_PRODUCTS; i++)
        list[i] = products[i];
    list[6].product.m = list[7].product.m = list[8].product.n = C;
    list[6].product.n = 3 * C;
    list[7].product.n = list[8].product.m = I;
}
