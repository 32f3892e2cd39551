#include "model/device/op_cost.h"

/* Reads the different rows of both tables, writes x. */
struct op_cost cost_embedding_forward(int element, double n, double distinct, double positions,
                                      double C)
{
    return (struct op_cost){.bytes = element * C * (n + distinct + positions)};
}

/* Reads dx, adds to the different rows of both fp32 gradients. */
struct op_cost cost_embedding_backward(int element, double n, double distinct, double positions,
                                       double C)
{
    return (struct op_cost){.bytes = element * n * C + 2 * 4 * C * (distinct + positions),
                            .more_kernels = 2};
}

/* Reads x and branch, writes x and y, mean and rstd. */
struct op_cost cost_layernorm_forward(int element, double n, double C, bool branch)
{
    return (struct op_cost){.bytes = (branch ? 4 : 3) * element * n * C + 8 * n};
}

/* Reads dy, x, dx, mean and rstd, writes dx and dbranch. */
struct op_cost cost_layernorm_backward(int element, double n, double C, bool branch)
{
    return (struct op_cost){.bytes = (branch ? 5 : 4) * element * n * C + 8 * n, .more_kernels = 1};
}

/* The same without mean. */
struct op_cost cost_rmsnorm_forward(int element, double n, double C, bool branch)
{
    return (struct op_cost){.bytes = (branch ? 4 : 3) * element * n * C + 4 * n};
}

struct op_cost cost_rmsnorm_backward(int element, double n, double C, bool branch)
{
    return (struct op_cost){.bytes = (branch ? 5 : 4) * element * n * C + 4 * n, .more_kernels = 1};
}

/* a: (m, k) and b: (k, n) read, c: (m, n) written, also read where it is added to; with it the
 * values before the activation, written forward and read backward. */
struct op_cost cost_matmul(int element, const struct matmul *p)
{
    const double m = p->m, n = p->n, k = p->k;
    double out = p->c_is_f32 ? 4 : element;
    out += (p->accumulate ? out : 0) + (p->pre ? element : 0) + (p->gradient_of ? element : 0);
    return (struct op_cost){
        .bytes = element * (m * k + k * n) + out * m * n,
        .flops = 2 * m * n * k,
    };
}

/* Reads dy: (n, C). */
struct op_cost cost_bias_backward(int element, double n, double C)
{
    return (struct op_cost){.bytes = element * n * C, .more_kernels = 1};
}

/* Reads q and k, writes them, and with norms what they were, or reads that. */
struct op_cost cost_rotary(int element, double n, const struct rotary *r)
{
    const double E = (double)(r->heads.n_head + r->heads.n_kv_head) * r->heads.head_dim;
    return (struct op_cost){.bytes = (r->q_weight ? 3 : 2) * element * n * E};
}

double attention_pairs(double length, int window)
{
    const double hidden = window > 0 && length > window ? length - window : 0;
    return (length * (length + 1) - hidden * (hidden + 1)) / 2;
}

/* Two products, q k^T and P v, of 2 FLOPs for each pair and column. Reads q, k, v, writes out and
 * lse. */
struct op_cost cost_attention_forward(int element, double n, double pairs, const struct heads *h)
{
    const double C = (double)h->n_head * h->head_dim;
    return (struct op_cost){
        .bytes = element * n * (heads_row(h) + C) + 4.0 * n * h->n_head,
        .flops = 4 * pairs * C,
    };
}

/* Five products: q k^T again, dP = dout v^T, dv, dk and dq. Reads q, k, v, out, dout and lse,
 * writes dq, dk, dv. */
struct op_cost cost_attention_backward(int element, double n, double pairs, const struct heads *h)
{
    const double C = (double)h->n_head * h->head_dim;
    return (struct op_cost){
        .bytes = element * n * (2.0 * heads_row(h) + 2 * C) + 4.0 * n * h->n_head,
        .flops = 10 * pairs * C,
        .more_kernels = 1,
    };
}

/* Reads gate and up, writes y. */
struct op_cost cost_swiglu_forward(int element, double n, double I)
{
    return (struct op_cost){.bytes = 3 * element * n * I};
}

/* Reads gate, up and dy, writes dgate and dup. */
struct op_cost cost_swiglu_backward(int element, double n, double I, bool again)
{
    return (struct op_cost){.bytes = (again ? 6 : 5) * element * n * I};
}

/* A row of each sequence, read and written. */
struct op_cost cost_gather_last(int element, double n_seqs, double C)
{
    return (struct op_cost){.bytes = 2 * element * n_seqs * C};
}

/* Writes dx, reads a row of each sequence. */
struct op_cost cost_scatter_last(int element, double n, double n_seqs, double C)
{
    return (struct op_cost){.bytes = element * C * (n + n_seqs), .more_kernels = 1};
}

/* Reads fp32 logits, writes their gradient. */
struct op_cost cost_cross_entropy(int element, double n, double classes)
{
    return (struct op_cost){.bytes = n * classes * (4 + element)};
}

/* Reads logits and scores, writes losses and gradients. */
struct op_cost cost_squared_error(int element, double n)
{
    return (struct op_cost){.bytes = (12 + element) * n};
}

/* Reads the losses. */
struct op_cost cost_add_sum(double n)
{
    return (struct op_cost){.bytes = 4 * n};
}

struct op_cost cost_convert(int element, double n)
{
    return (struct op_cost){.bytes = n * (4 + element)};
}

/* Reads the gradient, writes it elsewhere, and a sum a row. */
struct op_cost cost_take_rows(int to, double elements, double rows)
{
    return (struct op_cost){.bytes = (4 + to) * elements + 4 * rows};
}

/* Reads a sum and a place a row. */
struct op_cost cost_summarise_norms(double rows)
{
    return (struct op_cost){.bytes = 5 * rows, .more_kernels = 1};
}

/* Reads a sum, writes a choice a row. */
struct op_cost cost_select_rows(double rows)
{
    return (struct op_cost){.bytes = 5 * rows};
}

/* Reads master, m, v and the gradient, writes master, m, v and the parameter. */
struct op_cost cost_adamw(int element, double elements)
{
    return (struct op_cost){.bytes = elements * (28 + element)};
}

/* Reads gradient and window, writes the window. */
struct op_cost cost_accumulate_rows(int from, double elements, double fresh)
{
    return (struct op_cost){.bytes = (8 + from) * elements - 4 * fresh};
}

/* Read, sent. */
struct op_cost cost_send_rows(int from, int exchange, double elements)
{
    return (struct op_cost){.bytes = from * elements, .link = exchange * elements};
}

struct op_cost cost_receive_rows(int element, int exchange, double elements)
{
    return (struct op_cost){.bytes = element * elements, .link = exchange * elements};
}

/* Read as one type, written as the other. */
struct op_cost cost_pack_rows(int from, int to, double elements)
{
    return (struct op_cost){.bytes = (from + to) * elements};
}

/* Read and written. */
struct op_cost cost_copy_rows(double bytes)
{
    return (struct op_cost){.bytes = 2 * bytes};
}
