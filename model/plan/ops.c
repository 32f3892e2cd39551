/* The operators: what each costs, from what it is given.
 * They touch what the host reads, no more. */
#include "model/plan/internal.h"

#define ATTENTION "attention"
#define OTHER     "other operators"
#define OPTIMIZER "AdamW on the device"
#define WINDOWS   "windows"
#define NORMS     "norms and choices"

static int element(const struct stream *s)
{
    return (int)dtype_size(s->plan->device.dtype);
}

static int longest(const struct token_rows *rows)
{
    int most = 0;
    if (!rows->seq_start)
        return 0;
    for (int i = 0; i < rows->n_seqs; i++) {
        int n = rows->seq_start[i + 1] - rows->seq_start[i];
        most = n > most ? n : most;
    }
    return most;
}

static double pairs(const struct token_rows *rows, int window)
{
    double sum = 0;
    for (int i = 0; i < rows->n_seqs; i++)
        sum += attention_pairs(rows->seq_start[i + 1] - rows->seq_start[i], window);
    return sum;
}

static int distinct(const struct token_rows *rows, const int *order)
{
    int n = 0;
    for (int i = 0; i < rows->n_tokens; i++)
        n += i == 0 || rows->tokens[order[i]] != rows->tokens[order[i - 1]];
    return n;
}

static void embedding_forward(struct stream *s, void *x, const struct token_rows *rows,
                              const void *wte, const void *wpe, int C, struct dropout drop)
{
    (void)x, (void)wte, (void)wpe;
    plan_operate(
        s, "embedding", OTHER,
        cost_embedding_forward(element(s), rows->n_tokens, rows->n_tokens, longest(rows), C),
        drop.p > 0);
}

static void embedding_backward(struct stream *s, float *dwte, float *dwpe, const void *dx,
                               const struct token_rows *rows, const int *order, int C,
                               struct dropout drop)
{
    (void)dwte, (void)dwpe, (void)dx;
    plan_operate(s, "embedding backward", OTHER,
                 cost_embedding_backward(element(s), rows->n_tokens, distinct(rows, order),
                                         longest(rows), C),
                 drop.p > 0);
}

static void residual_layernorm_forward(struct stream *s, void *x_out, void *y, float *mean,
                                       float *rstd, const void *x_in, const void *branch,
                                       const struct token_rows *rows, const void *gamma,
                                       const void *beta, float eps, int C, struct dropout drop)
{
    (void)x_out, (void)y, (void)mean, (void)rstd, (void)x_in, (void)gamma, (void)beta, (void)eps;
    plan_operate(s, "layer norm, residual", OTHER,
                 cost_layernorm_forward(element(s), rows->n_tokens, C, branch), drop.p > 0);
}

static void residual_layernorm_backward(struct stream *s, void *dx, void *dbranch, float *dgamma,
                                        float *dbeta, const void *dy, const void *x_out,
                                        const float *mean, const float *rstd,
                                        const struct token_rows *rows, const void *gamma, int C,
                                        struct dropout drop, bool accumulate)
{
    (void)accumulate, (void)dx, (void)dgamma, (void)dbeta, (void)dy, (void)x_out, (void)mean,
        (void)rstd, (void)gamma;
    plan_operate(s, "layer norm backward", OTHER,
                 cost_layernorm_backward(element(s), rows->n_tokens, C, dbranch), drop.p > 0);
}

static void residual_rmsnorm_forward(struct stream *s, void *x_out, void *y, float *rstd,
                                     const void *x_in, const void *branch,
                                     const struct token_rows *rows, const void *weight, float eps,
                                     int C, struct dropout drop)
{
    (void)x_out, (void)y, (void)rstd, (void)x_in, (void)weight, (void)eps;
    plan_operate(s, "RMSNorm, residual", OTHER,
                 cost_rmsnorm_forward(element(s), rows->n_tokens, C, branch), drop.p > 0);
}

static void residual_rmsnorm_backward(struct stream *s, void *dx, void *dbranch, float *dweight,
                                      const void *dy, const void *x_out, const float *rstd,
                                      const struct token_rows *rows, const void *weight, int C,
                                      struct dropout drop, bool accumulate)
{
    (void)dx, (void)dweight, (void)dy, (void)x_out, (void)rstd, (void)weight, (void)accumulate;
    plan_operate(s, "RMSNorm backward", OTHER,
                 cost_rmsnorm_backward(element(s), rows->n_tokens, C, dbranch), drop.p > 0);
}

static void matmul(struct stream *s, void *c, const void *a, const void *b,
                   const struct matmul *product)
{
    (void)c, (void)a, (void)b;
    plan_product(s, product);
}

static void bias_backward(struct stream *s, float *db, const void *dy, int n, int C,
                          bool accumulate)
{
    (void)accumulate, (void)db, (void)dy;
    plan_operate(s, "bias backward", OTHER, cost_bias_backward(element(s), n, C), false);
}

static void rotary_forward(struct stream *s, void *qkv, void *pre, const struct token_rows *rows,
                           const struct rotary *r)
{
    (void)qkv, (void)pre;
    plan_operate(s, r->q_weight ? "rotary, norms" : "rotary", OTHER,
                 cost_rotary(element(s), rows->n_tokens, r), false);
}

static void rotary_backward(struct stream *s, void *dqkv, float *dq_weight, float *dk_weight,
                            const void *pre, const struct token_rows *rows, const struct rotary *r,
                            bool accumulate)
{
    (void)dqkv, (void)dq_weight, (void)dk_weight, (void)pre, (void)accumulate;
    plan_operate(s, r->q_weight ? "rotary backward, norms" : "rotary backward", OTHER,
                 cost_rotary(element(s), rows->n_tokens, r), false);
}

static void attention_forward(struct stream *s, void *out, float *lse, const void *qkv,
                              const struct token_rows *rows, const struct attention *a)
{
    (void)out, (void)lse, (void)qkv;
    plan_operate(
        s, "attention", ATTENTION,
        cost_attention_forward(element(s), rows->n_tokens, pairs(rows, a->window), &a->heads),
        a->drop.p > 0);
}

static void attention_backward(struct stream *s, void *dqkv, const void *dout, const void *qkv,
                               const void *out, const float *lse, const struct token_rows *rows,
                               const struct attention *a)
{
    (void)dqkv, (void)dout, (void)qkv, (void)out, (void)lse;
    plan_operate(
        s, "attention backward", ATTENTION,
        cost_attention_backward(element(s), rows->n_tokens, pairs(rows, a->window), &a->heads),
        a->drop.p > 0);
}

static void swiglu_forward(struct stream *s, void *y, const void *gate_up, int n, int I)
{
    (void)y, (void)gate_up;
    plan_operate(s, "SwiGLU", OTHER, cost_swiglu_forward(element(s), n, I), false);
}

static void swiglu_backward(struct stream *s, void *dgate_up, void *y, const void *dy,
                            const void *gate_up, int n, int I)
{
    (void)dgate_up, (void)dy, (void)gate_up;
    plan_operate(s, "SwiGLU backward", OTHER, cost_swiglu_backward(element(s), n, I, y), false);
}

static void gather_last(struct stream *s, void *y, const void *x, const struct token_rows *rows,
                        int C)
{
    (void)y, (void)x;
    plan_operate(s, "gather last tokens", OTHER, cost_gather_last(element(s), rows->n_seqs, C),
                 false);
}

static void scatter_last(struct stream *s, void *dx, const void *dy, const struct token_rows *rows,
                         int C)
{
    (void)dx, (void)dy;
    plan_operate(s, "scatter last tokens", OTHER,
                 cost_scatter_last(element(s), rows->n_tokens, rows->n_seqs, C), false);
}

static void cross_entropy(struct stream *s, float *losses, void *dlogits, float *logits,
                          const int *targets, int n, int n_classes, int stride, float scale)
{
    (void)losses, (void)dlogits, (void)logits, (void)targets, (void)stride, (void)scale;
    plan_operate(s, "cross-entropy", OTHER, cost_cross_entropy(element(s), n, n_classes), false);
}

static void squared_error(struct stream *s, float *losses, void *dlogits, float *logits,
                          const float *scores, int n, float scale)
{
    (void)losses, (void)dlogits, (void)logits, (void)scores, (void)scale;
    plan_operate(s, "squared error", OTHER, cost_squared_error(element(s), n), false);
}

static void add_sum(struct stream *s, double *sum, const float *x, int n)
{
    (void)x;
    *sum += n;
    plan_operate(s, "sum of losses", OTHER, cost_add_sum(n), false);
}

static void from_f32(struct stream *s, void *dst, const float *src, size_t n)
{
    (void)dst, (void)src;
    plan_operate(s, "from fp32", OTHER, cost_convert(element(s), (double)n), false);
}

static void to_f32(struct stream *s, float *dst, const void *src, size_t n)
{
    (void)dst, (void)src;
    plan_operate(s, "from fp32", OTHER, cost_convert(element(s), (double)n), false);
}

/* ---- the engine's ---- */

static void take_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype)
{
    double rows = 0;
    for (int i = 0; i < batch->n; i++)
        rows += batch->matrices[i].n_rows;
    s->plan->norms_stale = true;
    plan_operate(s, "take rows", NORMS,
                 cost_take_rows((int)dtype_size(dtype), (double)batch->n_elements, rows), false);
}

/* The norms are made here, where those of all ranks' channels stand side by side. */
static void summarise_norms(struct stream *s, struct norm_summary *out, const float *sums,
                            const unsigned char *place, int n, float limit)
{
    struct plan *p = s->plan;
    if (p->norms_stale)
        plan_make_norms(p, (float *)sums, n);
    p->norms_stale = false;
    device_cpu(0)->row_ops->summarise_norms(NULL, out, sums, place, n, limit);
    plan_operate(s, "norm summary", NORMS, cost_summarise_norms(n), false);
}

static void select_rows(struct stream *s, unsigned char *chosen, const float *sums, int n, int k)
{
    device_cpu(0)->row_ops->select_rows(NULL, chosen, sums, n, k);
    plan_operate(s, "select rows", NORMS, cost_select_rows(n), false);
}

static void adamw_rows(struct stream *s, const struct matrix_batch *batch,
                       struct channel_update *updates, int n, enum row_source source,
                       const struct adamw *rule, const float *gradient_scale, bool bf16)
{
    struct op_cost cost = {0};
    (void)source, (void)rule, (void)gradient_scale, (void)bf16;
    for (int i = 0; i < n; i++) {
        const struct matrix_rows *m = &batch->matrices[updates[i].matrix];
        cost.bytes += cost_adamw(m->master ? element(s) : 0, m->cols).bytes;
    }
    plan_operate(s, "AdamW, important rows", OPTIMIZER, cost, false);
}

/* Rows [row, end) that are in a set. */
static int count_in(const struct matrix_rows *m, const struct channel_set *set, int row, int end)
{
    int n = 0;
    for (; row < end; row++)
        n += m->place[row] == CHANNEL_DEFERRED ||
             (set->with_leaving && m->place[row] == CHANNEL_LEAVING);
    return n;
}

/* Elements of a set's rows, and of those whose group is in `among`. */
static double elements_in(const struct matrix_batch *batch, const struct channel_set *set,
                          uint64_t among, double *found)
{
    double all = 0;
    *found = 0;
    for (int i = 0; i < batch->n; i++) {
        const struct matrix_rows *m = &batch->matrices[i];
        const struct row_groups groups = row_groups_of(&m->part, set->n_groups);
        int rows = 0, rows_among = 0;
        for (int row = 0, end; row < m->n_rows; row = end) {
            const int group = row_groups_group(&groups, row);
            const int next = row_groups_end(&groups, row);
            end = next < m->n_rows ? next : m->n_rows;
            const int here = set->groups >> group & 1 ? count_in(m, set, row, end) : 0;
            rows += here;
            rows_among += among >> group & 1 ? here : 0;
        }
        all += (double)rows * m->cols;
        *found += (double)rows_among * m->cols;
    }
    return all;
}

static void accumulate_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                            const struct channel_set *set, uint64_t fresh, const float *scale)
{
    double new_ones, elements = elements_in(batch, set, fresh, &new_ones);
    (void)scale;
    plan_operate(s, "accumulate rows", WINDOWS,
                 cost_accumulate_rows((int)dtype_size(dtype), elements, new_ones), false);
}

static void stage_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                       const struct channel_set *set)
{
    const int size = (int)dtype_size(dtype);
    double none, elements = elements_in(batch, set, 0, &none);
    plan_transfer(s, "send rows", cost_send_rows(size, size, elements), true, true);
}

/* Rows [row, end) of one of its groups that are meant, on the way down or up. */
static int count_meant(const struct matrix_rows *m, int row, int end, bool down)
{
    int n = 0;
    for (; row < end; row++)
        n += m->place[row] == CHANNEL_DEFERRED || (down && m->place[row] == CHANNEL_ENTERING);
    return n;
}

/* Elements of a layer's packed rows that are meant. */
static double elements_packed(const struct matrix_batch *batch, const struct packed_rows *p,
                              bool down)
{
    double all = 0;
    for (int i = 0; i < batch->n; i++) {
        const struct matrix_rows *m = &batch->matrices[i];
        const struct row_groups groups = row_groups_of(&m->part, p->n_groups);
        int low, high;
        packed_positions(p, m, &low, &high);
        for (int row = row_groups_next(&groups, p->group, 0); row < m->n_rows;) {
            const int next = row_groups_end(&groups, row),
                      end = next < m->n_rows ? next : m->n_rows;
            const int position = row_groups_count(&groups, p->group, row);
            const int from = position > low ? row : row + low - position;
            const int to = position + end - row < high ? end : row + high - position;
            all += (double)count_meant(m, from, to, down) * m->cols;
            row = row_groups_next(&groups, p->group, end);
        }
    }
    return all;
}

/* By a kernel that sits at the link, or within device memory. */
static void transfer(struct stream *s, const struct packed_rows *packed, const char *name,
                     struct op_cost crossing, struct op_cost within, bool down)
{
    if (plan_on_device(s->plan, packed->memory) && !s->plan->machine.is_cpu)
        plan_operate(s, name, down ? "packing" : "unpacking", within, false);
    else
        plan_transfer(s, name, crossing, down, true);
}

static void send_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                      const struct packed_rows *to, float divisor)
{
    const int size = (int)dtype_size(dtype);
    const double elements = elements_packed(batch, to, true);
    (void)divisor;
    transfer(s, to, "send rows", cost_send_rows((int)sizeof(float), size, elements),
             cost_pack_rows((int)sizeof(float), size, elements), true);
}

static void receive_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                         const struct packed_rows *from)
{
    const int size = (int)dtype_size(dtype);
    const double elements = elements_packed(batch, from, false);
    transfer(s, from, "receive rows", cost_receive_rows(element(s), size, elements),
             cost_pack_rows(size, element(s), elements), false);
}

static void show_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype)
{
    double elements = 0;
    (void)dtype;
    for (int i = 0; i < batch->n; i++) {
        const struct matrix_rows *m = &batch->matrices[i];
        if (m->visiting)
            continue;
        for (int row = 0; row < m->n_rows; row++)
            elements += channel_has_state(m->place[row]) ? m->cols : 0;
    }
    plan_operate(s, "show rows", OTHER, cost_convert(element(s), elements), false);
}

static void widen(struct stream *s, float *values, const uint16_t *parameters, size_t n)
{
    struct op_cost cost = cost_convert(sizeof *parameters, (double)n);
    (void)values;
    cost.link = (double)(n * sizeof *parameters);
    plan_transfer(s, "widen", cost, false, true);
}

static void copy_rows(struct stream *s, void *dst, const int *dst_row, const void *src,
                      const int *src_row, int n, size_t row_bytes)
{
    struct op_cost cost = cost_copy_rows((double)n * (double)row_bytes);
    bool down = !plan_on_device(s->plan, dst), up = !plan_on_device(s->plan, src);
    (void)dst_row, (void)src_row;
    if (down || up) {
        cost.link = (double)n * (double)row_bytes;
        plan_transfer(s, "copy rows", cost, down, true);
    } else {
        plan_operate(s, "copy rows", OTHER, cost, false);
    }
}

static void carry_rows(struct stream *s, const struct matrix_batch *batch,
                       const struct carried_rows *carried, bool to_slots)
{
    const double bytes = sizeof(float) * (double)carried->n_elements;
    struct op_cost cost = cost_copy_rows(bytes);
    (void)batch;
    if (carried->on_device || s->plan->machine.is_cpu) {
        plan_operate(s, "copy rows", "packing", cost, false);
        return;
    }
    cost.link = bytes;
    plan_transfer(s, "copy rows", cost, !to_slots, true);
}

static void change_places(struct stream *s, unsigned char *place, int *slot,
                          const struct channel_change *changes, int n)
{
    device_cpu(0)->row_ops->change_places(NULL, place, slot, changes, n);
    plan_operate(s, "change places", NORMS, cost_copy_rows((double)sizeof *changes * n), false);
}

static void share_rows(struct stream *s, const struct matrix_batch *batch,
                       const struct shared_rows *shared, bool pack)
{
    double elements = 0;
    (void)pack;
    for (int i = 0; i < shared->n_runs; i++)
        elements += (double)shared->runs[i].n * batch->matrices[shared->runs[i].matrix].cols;
    plan_operate(s, "copy rows", OTHER, cost_copy_rows(element(s) * elements), false);
}

#define X(name) .name = name,
const struct ops plan_ops = {MODEL_OPERATORS(X).attention_cached = NULL};
const struct row_ops plan_row_ops = {ROW_OPERATORS(X)};
#undef X
