/* The ZenFlow engine's operators over channels: rows of matrices, some of which are important. */
#include "data/bf16.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* The matrix's first row whose first piece is not before `piece`. */
static int row_at(const struct matrix_rows *m, int piece)
{
    int before = piece - m->first_piece;
    if (before <= 0)
        return 0;
    return min_int(divide_up(before, divide_up(m->cols, ROW_PIECE)), m->n_rows);
}

/* Work on rows [first, last) of a matrix. */
typedef void row_work(const struct matrix_rows *m, int first, int last, const void *argument);

/* Does it for all rows of a batch, in one parallel region: threads share elements evenly. */
static void for_rows(const struct matrix_batch *b, row_work *work, const void *argument)
{
#pragma omp parallel if (b->n_elements > PARALLEL_ELEMENTS)
    {
        const long thread = omp_get_thread_num(), n = omp_get_num_threads();
        const int from = b->first_piece + (int)(b->n_pieces * thread / n);
        const int to = b->first_piece + (int)(b->n_pieces * (thread + 1) / n);
        for (int i = 0; i < b->n; i++) {
            const struct matrix_rows *m = &b->matrices[i];
            const int first = row_at(m, from), last = row_at(m, to);
            if (first < last)
                work(m, first, last, argument);
        }
    }
}

static bool in_set(const struct channel_set *set, const struct matrix_rows *m, int row, int group)
{
    return (set->groups >> group & 1) && (m->place[row] == CHANNEL_DEFERRED ||
                                          (set->with_leaving && m->place[row] == CHANNEL_LEAVING));
}

ZF_SIMD
static float sum_squares(const float *restrict x, int n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

ZF_SIMD
static void round_row(uint16_t *restrict dst, const float *restrict src, int n)
{
    for (int i = 0; i < n; i++)
        dst[i] = bf16_from_f32(src[i]);
}

static void take(const struct matrix_rows *m, int first, int last, const void *argument)
{
    const enum dtype dtype = *(const enum dtype *)argument;
    for (int i = first; i < last; i++) {
        const size_t at = (size_t)i * m->cols, bytes = sizeof(float) * m->cols;
        const float *row = m->gradient + at;
        m->norms[i] = sum_squares(row, m->cols);
        if (channel_has_slot(m->place[i]))
            memcpy(m->waiting + (size_t)m->slot[i] * m->cols, row, bytes);
        else if (dtype == DTYPE_F32)
            memcpy((float *)m->deferred + at, row, bytes);
        else
            round_row((uint16_t *)m->deferred + at, row, m->cols);
    }
}

void cpu_take_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype)
{
    (void)s;
    for_rows(batch, take, &dtype);
}

ZF_SIMD
static void add_scaled(float *restrict sum, const void *restrict x, enum dtype dtype, float scale,
                       int n, bool fresh)
{
    const float *f32 = x;
    const uint16_t *bf16 = x;
    if (dtype == DTYPE_F32)
        for (int i = 0; i < n; i++)
            sum[i] = fmaf(scale, f32[i], fresh ? 0 : sum[i]);
    else
        for (int i = 0; i < n; i++)
            sum[i] = fmaf(scale, bf16_to_f32(bf16[i]), fresh ? 0 : sum[i]);
}

struct gathering {
    const struct channel_set *set;
    enum dtype dtype;
    uint64_t fresh;
    float scale;
};

static void gather(const struct matrix_rows *m, int first, int last, const void *argument)
{
    const struct gathering *g = argument;
    const struct row_groups groups = row_groups_of(&m->part, g->set->n_groups);
    for (int i = first; i < last; i++) {
        const size_t at = (size_t)i * m->cols;
        const int group = row_groups_group(&groups, i);
        if (in_set(g->set, m, i, group))
            add_scaled(m->window + at, (const char *)m->deferred + at * dtype_size(g->dtype),
                       g->dtype, g->scale, m->cols, g->fresh >> group & 1);
    }
}

void cpu_accumulate_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                         const struct channel_set *set, uint64_t fresh, const float *scale)
{
    (void)s;
    const struct gathering g = {set, dtype, fresh, *scale};
    if (*scale != 0)
        for_rows(batch, gather, &g);
}

ZF_SIMD
static void send_row(void *restrict dst, enum dtype dtype, const float *restrict src, float divisor,
                     int n)
{
    float *f32 = dst;
    uint16_t *bf16 = dst;
    if (dtype == DTYPE_F32)
        for (int i = 0; i < n; i++)
            f32[i] = src[i] / divisor;
    else
        for (int i = 0; i < n; i++)
            bf16[i] = bf16_from_f32(src[i] / divisor);
}

struct staging {
    const struct channel_set *set;
    enum dtype dtype;
};

static void stage(const struct matrix_rows *m, int first, int last, const void *argument)
{
    const struct staging *t = argument;
    const size_t bytes = dtype_size(t->dtype) * (size_t)m->cols;
    const struct row_groups groups = row_groups_of(&m->part, t->set->n_groups);
    for (int i = first; i < last; i++)
        if (in_set(t->set, m, i, row_groups_group(&groups, i)))
            memcpy((char *)m->staged + (size_t)i * bytes,
                   (const char *)m->deferred + (size_t)i * bytes, bytes);
}

void cpu_stage_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                    const struct channel_set *set)
{
    (void)s;
    const struct staging t = {set, dtype};
    for_rows(batch, stage, &t);
}

/* Rows that cross between host and device. */
struct transfer {
    const struct packed_rows *packed;
    enum dtype dtype;
    float divisor;
    bool (*meant)(unsigned char place);
};

/* Calls work(m, row, its place) for the rows of [first, last) that are meant. */
static void for_packed(const struct matrix_rows *m, int first, int last, const struct transfer *t,
                       void (*work)(const struct matrix_rows *, int, void *,
                                    const struct transfer *))
{
    const struct packed_rows *p = t->packed;
    const struct row_groups groups = row_groups_of(&m->part, p->n_groups);
    int low, high;
    packed_positions(p, m, &low, &high);
    for (int row = row_groups_next(&groups, p->group, first); row < last;
         row = row_groups_next(&groups, p->group, row + 1)) {
        const int position = row_groups_count(&groups, p->group, row);
        const size_t at = m->packed + (size_t)position * (size_t)m->cols - p->first;
        if (position >= low && position < high && t->meant(m->place[row]))
            work(m, row, (char *)p->memory + at * dtype_size(t->dtype), t);
    }
}

static void send_one(const struct matrix_rows *m, int row, void *place, const struct transfer *t)
{
    send_row(place, t->dtype, m->window + (size_t)row * (size_t)m->cols, t->divisor, m->cols);
}

static void send(const struct matrix_rows *m, int first, int last, const void *argument)
{
    for_packed(m, first, last, argument, send_one);
}

void cpu_send_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                   const struct packed_rows *to, float divisor)
{
    (void)s;
    const struct transfer t = {to, dtype, divisor, channel_closes};
    for_rows(batch, send, &t);
}

ZF_SIMD
static void receive_row(float *restrict dst, const void *restrict src, enum dtype dtype, int n)
{
    const float *f32 = src;
    const uint16_t *bf16 = src;
    for (int i = 0; i < n; i++)
        dst[i] = dtype == DTYPE_F32 ? f32[i] : bf16_to_f32(bf16[i]);
}

static void receive_one(const struct matrix_rows *m, int row, void *place, const struct transfer *t)
{
    receive_row((float *)m->values + (size_t)row * (size_t)m->cols, place, t->dtype, m->cols);
}

static void receive(const struct matrix_rows *m, int first, int last, const void *argument)
{
    for_packed(m, first, last, argument, receive_one);
}

static bool is_deferred(unsigned char place)
{
    return place == CHANNEL_DEFERRED;
}

void cpu_receive_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                      const struct packed_rows *from)
{
    (void)s;
    const struct transfer t = {.packed = from, .dtype = dtype, .meant = is_deferred};
    for_rows(batch, receive, &t);
}

ZF_SIMD
static void round_parameters(float *restrict dst, const float *restrict src, int n)
{
    for (int i = 0; i < n; i++)
        dst[i] = bf16_to_f32(bf16_parameter(src[i]));
}

static void show(const struct matrix_rows *m, int first, int last, const void *argument)
{
    const enum dtype dtype = *(const enum dtype *)argument;
    for (int i = first; i < last; i++) {
        if (!channel_has_state(m->place[i]) || m->visiting)
            continue;
        float *value = (float *)m->values + (size_t)i * m->cols;
        const float *master = m->master + (size_t)m->slot[i] * m->cols;
        if (dtype == DTYPE_BF16)
            round_parameters(value, master, m->cols);
        else
            memcpy(value, master, sizeof(float) * m->cols);
    }
}

void cpu_show_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype)
{
    (void)s;
    for_rows(batch, show, &dtype);
}

void cpu_widen(struct stream *s, float *values, const uint16_t *parameters, size_t n)
{
    (void)s;
#pragma omp parallel for simd schedule(static) if (n > PARALLEL_ELEMENTS)
    for (size_t i = 0; i < n; i++)
        values[i] = bf16_to_f32(parameters[i]);
}

void cpu_copy_rows(struct stream *s, void *dst, const int *dst_row, const void *src,
                   const int *src_row, int n, size_t row_bytes)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((size_t)n * row_bytes > 4 * PARALLEL_ELEMENTS)
    for (int i = 0; i < n; i++) {
        size_t to = (size_t)(dst_row ? dst_row[i] : i), from = (size_t)(src_row ? src_row[i] : i);
        memcpy((char *)dst + to * row_bytes, (const char *)src + from * row_bytes, row_bytes);
    }
}

/* A row of state and its place in packed memory. */
static void carry(float *state, float *packed, int cols, bool to_slot)
{
    memcpy(to_slot ? state : packed, to_slot ? packed : state, sizeof(float) * (size_t)cols);
}

void cpu_carry_rows(struct stream *s, const struct matrix_batch *batch,
                    const struct carried_rows *carried, bool to_slots)
{
    (void)s;
#pragma omp parallel for schedule(static) if (carried->n_elements > PARALLEL_ELEMENTS)
    for (int i = 0; i < carried->n; i++) {
        const struct carried_row *r = &carried->rows[i];
        const struct matrix_rows *m = &batch->matrices[r->matrix];
        const size_t cols = (size_t)m->cols, row = (size_t)r->slot * cols;
        float *packed = carried->state + r->at;
        carry(m->master + row, packed, m->cols, to_slots);
        carry(m->m + row, packed + cols, m->cols, to_slots);
        carry(m->v + row, packed + 2 * cols, m->cols, to_slots);
    }
}

void cpu_change_places(struct stream *s, unsigned char *place, int *slot,
                       const struct channel_change *changes, int n)
{
    (void)s;
    for (int i = 0; i < n; i++) {
        place[changes[i].channel] = (unsigned char)changes[i].place;
        slot[changes[i].channel] = changes[i].slot;
    }
}

void cpu_share_rows(struct stream *s, const struct matrix_batch *batch,
                    const struct shared_rows *shared, bool pack)
{
    (void)s;
#pragma omp parallel for schedule(static) if ((long)shared->n_pieces * ROW_PIECE >                 \
                                              PARALLEL_ELEMENTS)
    for (int i = 0; i < shared->n_runs; i++) {
        const struct shared_run *run = &shared->runs[i];
        const struct matrix_rows *m = &batch->matrices[run->matrix];
        const size_t cols = (size_t)m->cols;
        for (int k = 0; k < run->n; k++) {
            float *packed = (float *)shared->memory + run->at + (size_t)k * cols;
            float *value =
                (float *)m->values + (shared->rows[run->first + k] - m->part.first) * (long)cols;
            memcpy(pack ? packed : value, pack ? value : packed, sizeof(float) * cols);
        }
    }
}
