/* The arrays of zf-bench kernels. */
#include "cmd/bench/device.h"
#include "cmd/bench/kernels_cases.h"
#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

#define IMPORTANT_SHARE 20 /* one channel in so many */
#define GROUPS          4

struct numbered {
    int token, index;
};

static int by_token(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;
    return x->token != y->token ? (x->token > y->token) - (x->token < y->token)
                                : (x->index > y->index) - (x->index < y->index);
}

/* Tokens' indices sorted by id; counts the different ones. */
static int sort_tokens(int *order, const int *tokens, int n)
{
    struct numbered *list = zf_malloc((size_t)n * sizeof *list);
    int distinct = 0;
    for (int i = 0; i < n; i++)
        list[i] = (struct numbered){tokens[i], i};
    qsort(list, (size_t)n, sizeof *list, by_token);
    for (int i = 0; i < n; i++) {
        order[i] = list[i].index;
        distinct += i == 0 || list[i].token != list[i - 1].token;
    }
    free(list);
    return distinct;
}

static int *upload_ints(struct device *device, const int *data, int n)
{
    return bench_upload(device, data, (size_t)n * sizeof *data);
}

/* Ids are far from equally frequent, as in text: the cube of a uniform number. */
static void make_batch(struct kernel_bench *b)
{
    struct kernel_shape *s = &b->shape;
    const int n = s->n;
    int *all = zf_malloc(5 * (size_t)n * sizeof *all),
        *start = zf_malloc((size_t)(s->n_seqs + 1) * sizeof *start);
    int *tokens = all, *position = all + n, *sequence = all + 2 * n, *order = all + 3 * n,
        *targets = all + 4 * n;
    uint32_t state = 1;
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        double u = (state >> 8) * 0x1p-24;
        tokens[i] = (int)(u * u * u * s->vocab);
        position[i] = i % s->length;
        sequence[i] = i / s->length;
        targets[i] = tokens[i];
    }
    for (int i = 0; i <= s->n_seqs; i++)
        start[i] = i * s->length;
    s->distinct = sort_tokens(order, tokens, n);
    b->rows = (struct token_rows){
        .n_tokens = n,
        .n_seqs = s->n_seqs,
        .tokens = upload_ints(b->device, tokens, n),
        .position = upload_ints(b->device, position, n),
        .seq_start = upload_ints(b->device, start, s->n_seqs + 1),
        .token_seq = (uint32_t *)upload_ints(b->device, sequence, n),
    };
    b->order = upload_ints(b->device, order, n);
    b->targets = upload_ints(b->device, targets, n);
    b->device->stream_wait(b->device->compute);
    free(all);
    free(start);
}

/* One channel in IMPORTANT_SHARE is important, spread over the blocks of all groups. */
static void make_channels(struct kernel_bench *b)
{
    struct kernel_shape *s = &b->shape;
    const int rows = s->vocab;
    unsigned char *place = zf_malloc((size_t)rows);
    int *important = zf_malloc(2 * (size_t)rows * sizeof *important), *slot = important + rows;
    struct channel_update *updates = zf_malloc(2 * (size_t)rows * sizeof *updates);
    const struct matrix_part part = {0, 0, rows, s->C};
    const struct row_groups groups = row_groups_of(&part, GROUPS);
    s->important = s->closing = 0;
    for (int i = 0; i < rows; i++) {
        bool chosen = i % IMPORTANT_SHARE == 0;
        place[i] = chosen ? CHANNEL_IMPORTANT : CHANNEL_DEFERRED;
        updates[i] = (struct channel_update){.slot = i, .row = i};
        slot[i] = i;
        if (chosen)
            important[s->important++] = i;
        s->closing += !chosen && row_groups_group(&groups, i) == 0;
    }
    for (int i = 0; i < s->important; i++)
        updates[rows + i] = (struct channel_update){.slot = i, .row = important[i]};
    b->place = bench_upload(b->device, place, (size_t)rows);
    b->updates = bench_upload(b->device, updates, (size_t)(rows + s->important) * sizeof *updates);
    b->important = upload_ints(b->device, important, s->important);
    b->slot = upload_ints(b->device, slot, rows);
    b->device->stream_wait(b->device->compute);
    free(place);
    free(updates);
    free(important);
}

static float *zeros(const struct kernel_bench *b, size_t n)
{
    float *memory = b->device->allocate(n * sizeof *memory);
    b->device->zero(b->device->compute, memory, n * sizeof *memory);
    return memory;
}

static void make_table(struct kernel_bench *b)
{
    struct matrix_rows rows = {
        .values = b->table,
        .gradient = b->gradient,
        .norms = b->norms,
        .place = b->place,
        .slot = b->slot,
        .deferred = b->deferred,
        .waiting = b->waiting,
        .window = b->m,
        .master = kernel_has_masters(&b->shape) ? b->master : NULL,
        .m = b->m,
        .v = b->v,
        .n_rows = b->shape.vocab,
        .cols = b->shape.C,
        .part = {0, 0, b->shape.vocab, b->shape.C},
        .decays = 1,
    };
    b->batch = matrix_batch_upload(b->device, &rows, 1);
}

/* Columns of the widest product: of q, k and v, or behind a block's norm. */
static int widest_product(const struct kernel_shape *s)
{
    const int qkv = heads_row(&s->heads), mlp = s->swiglu ? 2 * s->inner : s->inner;
    return qkv > mlp ? qkv : mlp;
}

void kernel_bench_create(struct kernel_bench *b)
{
    struct device *device = b->device;
    struct kernel_shape *s = &b->shape;
    const float one = 1;
    make_batch(b);
    make_channels(b);
    const size_t n = (size_t)s->n, C = (size_t)s->C, rows = (size_t)s->vocab;
    const size_t width = (size_t)widest_product(s);
    for (int i = 0; i < 4; i++)
        b->wide[i] = bench_random(device, n * width, 1);
    b->weight = bench_random(device, C * width, 0.02f);
    b->bias = bench_random(device, width, 0.02f);
    b->frequency = zeros(b, (size_t)s->heads.head_dim);
    b->mean = zeros(b, n);
    b->rstd = zeros(b, n);
    b->lse = zeros(b, n * (size_t)s->heads.n_head);
    b->d_weight = zeros(b, C * width);
    b->d_bias = zeros(b, width);
    b->logits = zeros(b, (size_t)s->logit_rows * rows);
    /* as in a model: gradients of the logits' own type take their place */
    b->d_logits = device->dtype == DTYPE_F32 ? b->logits : zeros(b, (size_t)s->logit_rows * rows);
    b->losses = zeros(b, n);
    b->scores = zeros(b, n);
    b->sum = (double *)(void *)zeros(b, 2);
    b->table = bench_random(device, rows * C, 0.02f);
    b->position = bench_random(device, (size_t)s->positions * C, 0.02f);
    float **state[] = {&b->master, &b->m, &b->v, &b->gradient, &b->waiting, &b->deferred};
    for (size_t i = 0; i < sizeof state / sizeof *state; i++)
        *state[i] = zeros(b, rows * C);
    b->d_position = zeros(b, (size_t)s->positions * C);
    b->norms = zeros(b, rows);
    b->one = bench_upload(device, &one, sizeof one);
    b->summary = device->allocate(sizeof *b->summary);
    b->chosen = device->allocate(rows);
    b->exchange = device->allocate_host(rows * C * sizeof(float));
    memset(b->exchange, 0, rows * C * sizeof(float));
    make_table(b);
    device->stream_wait(device->compute);
}

void kernel_bench_destroy(struct kernel_bench *b)
{
    void *memory[] = {(void *)b->rows.tokens,
                      (void *)b->rows.position,
                      (void *)b->rows.seq_start,
                      (void *)b->rows.token_seq,
                      b->order,
                      b->targets,
                      b->place,
                      b->important,
                      b->slot,
                      b->wide[0],
                      b->wide[1],
                      b->wide[2],
                      b->wide[3],
                      b->frequency,
                      b->weight,
                      b->bias,
                      b->mean,
                      b->rstd,
                      b->lse,
                      b->d_weight,
                      b->d_bias,
                      b->d_logits == b->logits ? NULL : b->d_logits,
                      b->logits,
                      b->losses,
                      b->scores,
                      b->sum,
                      b->table,
                      b->position,
                      b->master,
                      b->m,
                      b->v,
                      b->gradient,
                      b->waiting,
                      b->deferred,
                      b->d_position,
                      b->updates,
                      b->norms,
                      b->one,
                      b->summary,
                      b->chosen,
                      (void *)b->batch.matrices};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i])
            b->device->release(memory[i]);
    b->device->release_host(b->exchange);
}
