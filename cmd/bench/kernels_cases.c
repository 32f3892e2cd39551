/* Each operator as it is called, beside its cost. */
#include "cmd/bench/kernels_cases.h"

#include <math.h>
#include <string.h>

#define INTERVAL 4 /* groups of channels, one of which closes */

static struct stream *stream_of(const struct kernel_bench *b)
{
    return b->device->compute;
}

static const struct ops *ops_of(const struct kernel_bench *b)
{
    return b->device->ops;
}

static const struct row_ops *row_ops_of(const struct kernel_bench *b)
{
    return b->device->row_ops;
}

static struct dropout dropout_of(const struct kernel_bench *b)
{
    return (struct dropout){.p = b->p, .seed = 1, .step = 2, .site = 3};
}

/* Pairs of tokens that causal attention multiplies. */
static double pairs(const struct kernel_shape *s)
{
    return s->n_seqs * attention_pairs(s->length, 0);
}

static void run_embedding_forward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->embedding_forward(stream_of(b), b->wide[2], &b->rows, b->table, b->position,
                                 b->shape.C, dropout_of(b));
}

static struct op_cost of_embedding_forward(const struct kernel_shape *s)
{
    return cost_embedding_forward(s->element, s->n, s->distinct, s->length, s->C);
}

static void run_embedding_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->embedding_backward(stream_of(b), b->gradient, b->d_position, b->wide[0], &b->rows,
                                  b->order, b->shape.C, dropout_of(b));
}

static struct op_cost of_embedding_backward(const struct kernel_shape *s)
{
    return cost_embedding_backward(s->element, s->n, s->distinct, s->length, s->C);
}

static void run_layernorm_forward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->residual_layernorm_forward(stream_of(b), b->wide[2], b->wide[3], b->mean, b->rstd,
                                          b->wide[0], b->wide[1], &b->rows, b->weight, b->bias,
                                          1e-5f, b->shape.C, dropout_of(b));
}

static struct op_cost of_layernorm_forward(const struct kernel_shape *s)
{
    return cost_layernorm_forward(s->element, s->n, s->C, true);
}

static void run_layernorm_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->residual_layernorm_backward(stream_of(b), b->wide[2], b->wide[3], b->d_weight,
                                           b->d_bias, b->wide[0], b->wide[1], b->mean, b->rstd,
                                           &b->rows, b->weight, b->shape.C, dropout_of(b), true);
}

static struct op_cost of_layernorm_backward(const struct kernel_shape *s)
{
    return cost_layernorm_backward(s->element, s->n, s->C, true);
}

static void run_rmsnorm_forward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->residual_rmsnorm_forward(stream_of(b), b->wide[2], b->wide[3], b->rstd, b->wide[0],
                                        b->wide[1], &b->rows, b->weight, 1e-5f, b->shape.C,
                                        dropout_of(b));
}

static struct op_cost of_rmsnorm_forward(const struct kernel_shape *s)
{
    return cost_rmsnorm_forward(s->element, s->n, s->C, true);
}

static void run_rmsnorm_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->residual_rmsnorm_backward(stream_of(b), b->wide[2], b->wide[3], b->d_weight,
                                         b->wide[0], b->wide[1], b->rstd, &b->rows, b->weight,
                                         b->shape.C, dropout_of(b), false);
}

static struct op_cost of_rmsnorm_backward(const struct kernel_shape *s)
{
    return cost_rmsnorm_backward(s->element, s->n, s->C, true);
}

static void run_bias_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->bias_backward(stream_of(b), b->d_bias, b->wide[0], b->shape.n, b->shape.inner, true);
}

static struct op_cost of_bias_backward(const struct kernel_shape *s)
{
    return cost_bias_backward(s->element, s->n, s->inner);
}

static struct rotary rotary_of(const struct kernel_bench *b, bool norms)
{
    return (struct rotary){.heads = b->shape.heads,
                           .frequency = b->frequency,
                           .scale = 1,
                           .q_weight = norms ? b->weight : NULL,
                           .k_weight = norms ? b->bias : NULL,
                           .eps = 1e-6f};
}

static void rotate(const struct kernel_bench *b, bool norms)
{
    const struct rotary rotary = rotary_of(b, norms);
    ops_of(b)->rotary_forward(stream_of(b), b->wide[2], b->wide[3], &b->rows, &rotary);
}

static void rotate_back(const struct kernel_bench *b, bool norms)
{
    const struct rotary rotary = rotary_of(b, norms);
    ops_of(b)->rotary_backward(stream_of(b), b->wide[2], b->d_weight, b->d_bias, b->wide[3],
                               &b->rows, &rotary, false);
}

static struct op_cost rotary_cost(const struct kernel_shape *s, bool norms)
{
    const struct rotary rotary = {.heads = s->heads, .q_weight = norms ? s : NULL};
    return cost_rotary(s->element, s->n, &rotary);
}

static void run_rotary_forward(void *bench)
{
    rotate(bench, false);
}

static void run_rotary_backward(void *bench)
{
    rotate_back(bench, false);
}

static struct op_cost of_rotary(const struct kernel_shape *s)
{
    return rotary_cost(s, false);
}

static void run_rotary_norms_forward(void *bench)
{
    rotate(bench, true);
}

static void run_rotary_norms_backward(void *bench)
{
    rotate_back(bench, true);
}

static struct op_cost of_rotary_norms(const struct kernel_shape *s)
{
    return rotary_cost(s, true);
}

static struct attention attention_of(const struct kernel_bench *b)
{
    const struct heads *heads = &b->shape.heads;
    return (struct attention){
        .heads = *heads, .scale = 1 / sqrtf((float)heads->head_dim), .drop = dropout_of(b)};
}

static void run_attention_forward(void *bench)
{
    const struct kernel_bench *b = bench;
    const struct attention attention = attention_of(b);
    ops_of(b)->attention_forward(stream_of(b), b->wide[1], b->lse, b->wide[0], &b->rows,
                                 &attention);
}

static struct op_cost of_attention_forward(const struct kernel_shape *s)
{
    return cost_attention_forward(s->element, s->n, pairs(s), &s->heads);
}

static void run_attention_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    const struct attention attention = attention_of(b);
    ops_of(b)->attention_backward(stream_of(b), b->wide[2], b->wide[3], b->wide[0], b->wide[1],
                                  b->lse, &b->rows, &attention);
}

static struct op_cost of_attention_backward(const struct kernel_shape *s)
{
    return cost_attention_backward(s->element, s->n, pairs(s), &s->heads);
}

/* Columns of gate, and of up: of a model without a gate, as if its product's were both. */
static int gate(const struct kernel_shape *s)
{
    return s->swiglu ? s->inner : s->inner / 2;
}

static void run_swiglu_forward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->swiglu_forward(stream_of(b), b->wide[2], b->wide[0], b->shape.n, gate(&b->shape));
}

static struct op_cost of_swiglu_forward(const struct kernel_shape *s)
{
    return cost_swiglu_forward(s->element, s->n, gate(s));
}

static void run_swiglu_backward(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->swiglu_backward(stream_of(b), b->wide[2], b->wide[3], b->wide[1], b->wide[0],
                               b->shape.n, gate(&b->shape));
}

static struct op_cost of_swiglu_backward(const struct kernel_shape *s)
{
    return cost_swiglu_backward(s->element, s->n, gate(s), true);
}

static void run_gather_last(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->gather_last(stream_of(b), b->wide[2], b->wide[0], &b->rows, b->shape.C);
}

static struct op_cost of_gather_last(const struct kernel_shape *s)
{
    return cost_gather_last(s->element, s->n_seqs, s->C);
}

static void run_scatter_last(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->scatter_last(stream_of(b), b->wide[2], b->wide[0], &b->rows, b->shape.C);
}

static struct op_cost of_scatter_last(const struct kernel_shape *s)
{
    return cost_scatter_last(s->element, s->n, s->n_seqs, s->C);
}

static void run_cross_entropy(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->cross_entropy(stream_of(b), b->losses, b->d_logits, b->logits, b->targets,
                             b->shape.logit_rows, b->shape.vocab, b->shape.vocab, 1e-3f);
}

static struct op_cost of_cross_entropy(const struct kernel_shape *s)
{
    return cost_cross_entropy(s->element, s->logit_rows, s->vocab);
}

static void run_squared_error(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->squared_error(stream_of(b), b->losses, b->d_logits, b->logits, b->scores,
                             b->shape.n_seqs, 1e-3f);
}

static struct op_cost of_squared_error(const struct kernel_shape *s)
{
    return cost_squared_error(s->element, s->n_seqs);
}

static void run_add_sum(void *bench)
{
    const struct kernel_bench *b = bench;
    ops_of(b)->add_sum(stream_of(b), b->sum, b->losses, b->shape.n);
}

static struct op_cost of_add_sum(const struct kernel_shape *s)
{
    return cost_add_sum(s->n);
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

static struct op_cost of_from_f32(const struct kernel_shape *s)
{
    return cost_convert(s->element, matrix(s));
}

static enum dtype exchange_dtype(const struct kernel_bench *b)
{
    return b->device->dtype;
}

static void run_take_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    row_ops_of(b)->take_rows(stream_of(b), &b->batch, exchange_dtype(b));
}

static struct op_cost of_take_rows(const struct kernel_shape *s)
{
    return cost_take_rows(s->element, matrix(s), s->vocab);
}

static void run_summarise_norms(void *bench)
{
    const struct kernel_bench *b = bench;
    row_ops_of(b)->summarise_norms(stream_of(b), b->summary, b->norms, b->place, b->shape.vocab, 1);
}

static struct op_cost of_summarise_norms(const struct kernel_shape *s)
{
    return cost_summarise_norms(s->vocab);
}

static void run_select_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    row_ops_of(b)->select_rows(stream_of(b), b->chosen, b->norms, b->shape.vocab,
                               b->shape.important);
}

static struct op_cost of_select_rows(const struct kernel_shape *s)
{
    return cost_select_rows(s->vocab);
}

static void adamw_rows(const struct kernel_bench *b, int first, int n)
{
    static const struct adamw rule = {
        .lr = 1e-4f,
        .beta1 = 0.9f,
        .beta2 = 0.999f,
        .eps = 1e-8f,
        .weight_decay = 0.01f,
        .correction1 = 1,
        .correction2 = 1,
    };
    row_ops_of(b)->adamw_rows(stream_of(b), &b->batch, b->updates + first, n, ROWS_GRADIENT, &rule,
                              b->one, b->shape.element == 2);
}

static void run_adamw_all(void *bench)
{
    const struct kernel_bench *b = bench;
    adamw_rows(b, 0, b->shape.vocab);
}

static struct op_cost of_adamw_all(const struct kernel_shape *s)
{
    return cost_adamw(kernel_has_masters(s) ? s->element : 0, matrix(s));
}

static void run_adamw_important(void *bench)
{
    const struct kernel_bench *b = bench;
    adamw_rows(b, b->shape.vocab, b->shape.important);
}

static struct op_cost of_adamw_important(const struct kernel_shape *s)
{
    return cost_adamw(kernel_has_masters(s) ? s->element : 0, (double)s->important * s->C);
}

static void run_accumulate_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    const struct channel_set set = {.n_groups = INTERVAL, .groups = (1 << INTERVAL) - 1};
    row_ops_of(b)->accumulate_rows(stream_of(b), &b->batch, exchange_dtype(b), &set, 1, b->one);
}

/* All deferred channels; a group in INTERVAL is fresh. */
static struct op_cost of_accumulate_rows(const struct kernel_shape *s)
{
    double deferred = (double)(s->vocab - s->important) * s->C;
    return cost_accumulate_rows(s->element, deferred, deferred / INTERVAL);
}

/* The group that closes, in host memory. */
static struct packed_rows packed(const struct kernel_bench *b)
{
    return (struct packed_rows){.memory = b->exchange,
                                .n = (size_t)b->shape.vocab * (size_t)b->shape.C,
                                .n_groups = INTERVAL};
}

static void run_send_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    const struct packed_rows to = packed(b);
    row_ops_of(b)->send_rows(stream_of(b), &b->batch, exchange_dtype(b), &to, INTERVAL);
}

static struct op_cost of_send_rows(const struct kernel_shape *s)
{
    return cost_send_rows(sizeof(float), s->element, (double)s->closing * s->C);
}

static void run_receive_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    const struct packed_rows from = packed(b);
    row_ops_of(b)->receive_rows(stream_of(b), &b->batch, exchange_dtype(b), &from);
}

static struct op_cost of_receive_rows(const struct kernel_shape *s)
{
    return cost_receive_rows(s->element, s->element, (double)s->closing * s->C);
}

static void run_copy_rows(void *bench)
{
    const struct kernel_bench *b = bench;
    row_ops_of(b)->copy_rows(stream_of(b), b->m, NULL, b->gradient, b->important,
                             b->shape.important, (size_t)b->shape.C * sizeof(float));
}

static struct op_cost of_copy_rows(const struct kernel_shape *s)
{
    return cost_copy_rows(4.0 * s->important * s->C);
}

const struct kernel_case kernel_cases[] = {
    {"embedding", run_embedding_forward, of_embedding_forward, true},
    {"embedding backward", run_embedding_backward, of_embedding_backward, true},
    {"layer norm, residual", run_layernorm_forward, of_layernorm_forward, true},
    {"layer norm backward", run_layernorm_backward, of_layernorm_backward, true},
    {"RMSNorm, residual", run_rmsnorm_forward, of_rmsnorm_forward, true},
    {"RMSNorm backward", run_rmsnorm_backward, of_rmsnorm_backward, true},
    {"rotary", run_rotary_forward, of_rotary, false},
    {"rotary backward", run_rotary_backward, of_rotary, false},
    {"rotary, norms", run_rotary_norms_forward, of_rotary_norms, false},
    {"rotary backward, norms", run_rotary_norms_backward, of_rotary_norms, false},
    {"attention", run_attention_forward, of_attention_forward, true},
    {"attention backward", run_attention_backward, of_attention_backward, true},
    {"SwiGLU", run_swiglu_forward, of_swiglu_forward, false},
    {"SwiGLU backward", run_swiglu_backward, of_swiglu_backward, false},
    {"bias backward", run_bias_backward, of_bias_backward, false},
    {"gather last tokens", run_gather_last, of_gather_last, false},
    {"scatter last tokens", run_scatter_last, of_scatter_last, false},
    {"cross-entropy", run_cross_entropy, of_cross_entropy, false},
    {"squared error", run_squared_error, of_squared_error, false},
    {"sum of losses", run_add_sum, of_add_sum, false},
    {"from fp32", run_from_f32, of_from_f32, false},
    {"take rows", run_take_rows, of_take_rows, false},
    {"norm summary", run_summarise_norms, of_summarise_norms, false},
    {"select rows", run_select_rows, of_select_rows, false},
    {"AdamW, all rows", run_adamw_all, of_adamw_all, false},
    {"AdamW, important rows", run_adamw_important, of_adamw_important, false},
    {"accumulate rows", run_accumulate_rows, of_accumulate_rows, false},
    {"send rows", run_send_rows, of_send_rows, false},
    {"receive rows", run_receive_rows, of_receive_rows, false},
    {"copy rows", run_copy_rows, of_copy_rows, false},
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

#define WEIGHT_GRADIENT .trans_a = true, .accumulate = true, .c_is_f32 = true

void kernel_products(const struct kernel_bench *b, struct kernel_product list[KERNEL_PRODUCTS])
{
    const struct kernel_shape *s = &b->shape;
    const int n = s->n, C = s->C, I = s->inner, up = s->swiglu ? 2 * I : I;
    const int qkv = heads_row(&s->heads), att = s->heads.n_head * s->heads.head_dim;
    void *bias = s->swiglu ? NULL : b->bias, *pre = s->swiglu ? NULL : b->wide[3];
    const enum activation act = s->swiglu ? ACT_NONE : b->act;
    const struct kernel_product products[KERNEL_PRODUCTS] = {
        {"qkv", {.m = n, .n = qkv, .k = C, .bias = bias}},
        {"attention projection", {.m = n, .n = C, .k = att, .bias = bias}},
        {s->swiglu ? "mlp gate and up" : "mlp up, activation",
         {.m = n, .n = up, .k = C, .bias = bias, .pre = pre, .act = act}},
        {"mlp down", {.m = n, .n = C, .k = I, .bias = bias}},
        {s->swiglu ? "mlp down, dx" : "mlp down, dx, activation'",
         {.m = n, .n = I, .k = C, .trans_b = true, .gradient_of = pre, .act = act}},
        {"mlp up, dx", {.m = n, .n = C, .k = up, .trans_b = true}},
        {"qkv, dW", {.m = C, .n = qkv, .k = n, WEIGHT_GRADIENT}},
        {"mlp up, dW", {.m = C, .n = up, .k = n, WEIGHT_GRADIENT}},
        {"mlp down, dW", {.m = I, .n = C, .k = n, WEIGHT_GRADIENT}},
        {"head, logits",
         {.m = s->logit_rows, .n = s->vocab, .k = C, .trans_b = true, .c_is_f32 = true}},
    };
    memcpy(list, products, sizeof products);
}
