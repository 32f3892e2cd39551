/* model/cuda: rows that are taken, their norms and what they say, the choice of rows, and AdamW on
 * rows, each beside the CPU device's: sums to fp32 rounding, choices and bf16 values exactly, and
 * every byte outside the rows untouched. */
#include "tests/gpu/cuda_rows_testing.h"

/* Rows that are taken, long ones beside short ones: each array of a matrix is so many elements off
 * a place that allows wide packs. */
static const struct {
    int n_rows, cols;
    int gradient, deferred, waiting; /* their offsets */
} shapes[] = {{1, 1, 0, 0, 0},     {41, 37, 0, 0, 0},  {0, 8, 0, 0, 0},    {9, 768, 0, 0, 0},
              {13, 64, 1, 0, 0},   {13, 64, 0, 1, 0},  {13, 64, 0, 2, 0},  {13, 64, 0, 0, 1},
              {13, 768, 0, 4, 2},  {13, 64, 2, 2, 2},  {3, 4095, 0, 0, 0}, {9, 4096, 0, 0, 0},
              {2, 5001, 0, 0, 0},  {7, 8192, 0, 1, 3}, {5, 4100, 3, 0, 0}, {0, 3, 0, 0, 0},
              {41, 132, 0, 12, 8}, {1, 768, 0, 0, 0}};

/* There are some more slots than rows, and their order is another. */
enum { SHAPES = sizeof shapes / sizeof *shapes, MOST_ROWS = 41, TAKEN_SLOTS = 43 };

/* Where matrix k begins in flat arrays of so many rows each, or its own, for 0; of SHAPES, their
 * length. */
static size_t shape_start(int k, int rows)
{
    size_t at = 0;
    for (int i = 0; i < k; i++)
        at += ((size_t)(rows ? rows : shapes[i].n_rows) * (size_t)shapes[i].cols + 80) / 64 * 64;
    return at;
}

/* One device's arrays, and a table of matrices over them. */
struct taken {
    struct device *device;
    enum dtype dtype; /* of what is deferred */
    float *gradient, *norms, *waiting;
    char *deferred;
    unsigned char *place;
    int *slot;
    struct matrix_rows rows[SHAPES];
    struct matrix_batch batch;
};

/* Channels are in each place by turns, which `shift` shifts. */
static unsigned char place_of(int i, int shift)
{
    return (unsigned char)((random_bits((size_t)i, 7) + (uint32_t)shift) % CHANNEL_PLACES);
}

static struct taken taken_create(struct device *d, enum dtype dtype, int shift)
{
    enum { N = SHAPES * MOST_ROWS };
    const size_t n = shape_start(SHAPES, 0), n_waiting = shape_start(SHAPES, TAKEN_SLOTS);
    float *gradient = random_array(n, 1), *deferred = random_array(n, 2);
    float *waiting = random_array(n_waiting, 3), *norms = random_array(N, 4);
    unsigned char place[N];
    int slot[N];
    for (int i = 0; i < N; i++) {
        place[i] = place_of(i, shift);
        const bool waits = place[i] != CHANNEL_DEFERRED && place[i] != CHANNEL_LEAVING;
        slot[i] = waits ? (i % MOST_ROWS * 19 + 7) % TAKEN_SLOTS : -1;
    }
    struct taken t = {.device = d,
                      .dtype = dtype,
                      .gradient = cuda_upload(d, gradient, sizeof *gradient * n),
                      .norms = cuda_upload(d, norms, sizeof *norms * N),
                      .waiting = cuda_upload(d, waiting, sizeof *waiting * n_waiting),
                      .deferred = cuda_upload(d, deferred, dtype_size(dtype) * n),
                      .place = cuda_upload(d, place, sizeof place),
                      .slot = cuda_upload(d, slot, sizeof slot)};
    for (int k = 0; k < SHAPES; k++) {
        const size_t at = shape_start(k, 0), deferred_at = at + (size_t)shapes[k].deferred;
        t.rows[k] = (struct matrix_rows){.gradient = t.gradient + at + shapes[k].gradient,
                                         .norms = t.norms + k * MOST_ROWS,
                                         .place = t.place + k * MOST_ROWS,
                                         .slot = t.slot + k * MOST_ROWS,
                                         .deferred = t.deferred + dtype_size(dtype) * deferred_at,
                                         .waiting = t.waiting + shape_start(k, TAKEN_SLOTS) +
                                                    shapes[k].waiting,
                                         .n_rows = shapes[k].n_rows,
                                         .cols = shapes[k].cols};
    }
    t.batch = matrix_batch_upload(d, t.rows, SHAPES);
    free(gradient), free(deferred), free(waiting), free(norms);
    return t;
}

static void take(const struct taken *t, int first, int last)
{
    const struct matrix_batch part = matrix_batch_part(t->rows, t->batch.matrices, first, last);
    t->device->row_ops->take_rows(t->device->compute, &part, t->dtype);
}

/* What it wrote comes to host memory, and all else goes. */
static void taken_read(struct taken *t)
{
    void **arrays[] = {(void **)&t->norms, (void **)&t->waiting, (void **)&t->deferred};
    const size_t bytes[] = {sizeof(float) * SHAPES * MOST_ROWS,
                            sizeof(float) * shape_start(SHAPES, TAKEN_SLOTS),
                            dtype_size(t->dtype) * shape_start(SHAPES, 0)};
    for (int i = 0; i < 3; i++) {
        void *x = zf_malloc_aligned(bytes[i]);
        t->device->copy(t->device->compute, x, *arrays[i], bytes[i]);
        t->device->release(*arrays[i]);
        *arrays[i] = x;
    }
    t->device->release(t->gradient);
    t->device->release(t->place);
    t->device->release(t->slot);
    t->device->release((void *)t->batch.matrices);
}

static void taken_destroy(struct taken *t)
{
    free(t->norms), free(t->waiting), free(t->deferred);
}

/* Norms of these matrices, summed in double: the CPU device's depend on how it adds. */
static void sum_norms(float *norms, int first, int last)
{
    float *gradient = random_array(shape_start(SHAPES, 0), 1);
    for (int k = first; k < last; k++)
        for (int row = 0; row < shapes[k].n_rows; row++) {
            const float *x = gradient + shape_start(k, 0) + shapes[k].gradient;
            double sum = 0;
            for (int j = 0; j < shapes[k].cols; j++)
                sum += (double)x[row * shapes[k].cols + j] * x[row * shapes[k].cols + j];
            norms[k * MOST_ROWS + row] = (float)sum;
        }
    free(gradient);
}

static void take_on_both(enum dtype dtype, int first, int last)
{
    struct taken ours = taken_create(cuda, dtype, 0), theirs = taken_create(cpu, dtype, 0);
    take(&ours, first, last);
    take(&theirs, first, last);
    taken_read(&ours);
    taken_read(&theirs);
    sum_norms(theirs.norms, first, last);
    assert_close("sum of squares", ours.norms, theirs.norms, SHAPES * MOST_ROWS, ROUNDING);
    assert_memory_equal(ours.waiting, theirs.waiting,
                        sizeof(float) * shape_start(SHAPES, TAKEN_SLOTS));
    assert_memory_equal(ours.deferred, theirs.deferred, dtype_size(dtype) * shape_start(SHAPES, 0));
    taken_destroy(&ours);
    taken_destroy(&theirs);
}

static void rows_are_taken(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        const enum dtype dtype = k ? DTYPE_BF16 : DTYPE_F32;
        take_on_both(dtype, 0, SHAPES);
        take_on_both(dtype, 3, 8);
        take_on_both(dtype, 13, 14);
    }
}

/* Norms are the same bits whether a matrix is taken alone or with all others, wherever its rows go
 * and as what. */
static void norms_are_those_of_any_batch(void **state)
{
    (void)state;
    struct taken together = taken_create(cuda, DTYPE_BF16, 0);
    take(&together, 0, SHAPES);
    taken_read(&together);
    for (int shift = 0; shift < 4; shift++) {
        struct taken alone = taken_create(cuda, shift % 2 ? DTYPE_F32 : DTYPE_BF16, shift);
        for (int k = 0; k < SHAPES; k++)
            take(&alone, k, k + 1);
        taken_read(&alone);
        assert_memory_equal(alone.norms, together.norms, sizeof(float) * SHAPES * MOST_ROWS);
        taken_destroy(&alone);
    }
    taken_destroy(&together);
}

/* What norms say. */

static struct norm_summary summary_of(struct device *d, const float *sums,
                                      const unsigned char *place, int n, float limit)
{
    struct norm_summary host, *out = d->allocate(sizeof *out);
    float *s = d->allocate(sizeof(float) * (size_t)n);
    unsigned char *p = d->allocate((size_t)n);
    d->copy(d->compute, s, sums, sizeof(float) * (size_t)n);
    d->copy(d->compute, p, place, (size_t)n);
    d->row_ops->summarise_norms(d->compute, out, s, p, n, limit);
    d->copy(d->compute, &host, out, sizeof host);
    d->release(out);
    d->release(s);
    d->release(p);
    return host;
}

static void same_summary(const float *sums, const unsigned char *place, int n, float limit)
{
    const struct norm_summary a = summary_of(cpu, sums, place, n, limit);
    const struct norm_summary b = summary_of(cuda, sums, place, n, limit);
    if (!isfinite(a.norm)) {
        assert_true(!isfinite(b.norm) && b.factor == 0);
        return;
    }
    assert_close("the norm", &b.norm, &a.norm, 1, ROUNDING);
    assert_close("the factor", &b.factor, &a.factor, 1, ROUNDING);
    assert_true(fabs(b.important - a.important) <= 1e-12 * a.important);
    assert_true(fabs(b.selectable - a.selectable) <= 1e-12 * a.selectable);
}

static void norms_are_summed_up(void **state)
{
    (void)state;
    static const int counts[] = {0, 1, 31, 4097, 30011};
    enum { N = 30011 };
    float *sums = random_array(N, 1);
    unsigned char *place = zf_malloc(N);
    for (int i = 0; i < N; i++) {
        sums[i] *= sums[i];
        place[i] = (unsigned char)(random_bits((size_t)i, 2) % CHANNEL_PLACES);
    }
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        same_summary(sums, place, counts[k], 0);
        same_summary(sums, place, counts[k], 0.01f);
        same_summary(sums, place, counts[k], 1e6f);
    }
    sums[N - 1] = INFINITY;
    same_summary(sums, place, N, 1);
    sums[0] = NAN;
    same_summary(sums, place, N, 0);
    free(sums);
    free(place);
}

/* Values with many ties; mostly zeros; of all magnitudes, with the least and the greatest. */
static float norm_of(int kind, int i)
{
    const uint32_t bits = random_bits((size_t)i, 9);
    if (kind == 0)
        return (float)(bits % 5) / 3;
    if (kind == 1)
        return bits % 10 ? 0 : 1e-3f * (float)(bits % 70);
    if (i == 5 || i == 6)
        return i == 5 ? 3e38f : 1e-45f;
    return ldexpf(philox_uniform(bits), (int)(bits % 60) - 30);
}

static void the_same_rows_are_chosen(void **state)
{
    (void)state;
    static const int counts[] = {1, 7, 1024, 4099, 9001};
    enum { MOST = 9001 };
    float *sums = zf_malloc(sizeof(float) * (MOST + 1));
    unsigned char *expected = zf_malloc(MOST);
    for (int kind = 0; kind < 3; kind++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const int n = counts[c], ks[] = {0, 1, n / 20, n / 3, n - 1, n};
            for (int i = 0; i <= n; i++)
                sums[i] = norm_of(kind, i);
            float *s = cuda_upload(cuda, sums, sizeof(float) * (size_t)(n + 1));
            for (int k = 0; k < 6; k++) {
                unsigned char *chosen = cuda->allocate((size_t)n);
                cpu->row_ops->select_rows(cpu->compute, expected, sums + 1, n, ks[k]);
                cuda->row_ops->select_rows(cuda->compute, chosen, s + 1, n, ks[k]);
                chosen = off_device(chosen, (size_t)n);
                for (int i = 0; i < n; i++)
                    if (chosen[i] != expected[i])
                        fail_msg("kind %d, %d of %d: row %d", kind, ks[k], n, i);
                free(chosen);
            }
            cuda->release(s);
        }
    free(sums);
    free(expected);
}

/* AdamW on rows of matrices of several widths, one without rows. */

enum { SLOTS = 23, ROWS = 31, WIDTHS = 6 };

static const struct {
    int cols, n_rows, decays;
} widths[WIDTHS] = {{1, ROWS, 1},   {37, ROWS, 0}, {64, ROWS, 0},
                    {333, ROWS, 1}, {768, 0, 1},   {1100, ROWS, 1}};

/* Flat arrays, matrix after matrix, each from a place that allows wide packs. */
struct slots {
    void *param;
    float *master, *m, *v, *gradient; /* a row of the last for each slot, or each row */
    struct matrix_batch batch;
    struct channel_update *updates;
    float *scale;
};

/* Where matrix k begins in arrays of so many rows each. */
static size_t start_of(int k, int rows)
{
    return k == 0
               ? 0
               : start_of(k - 1, rows) + ((size_t)rows * (size_t)widths[k - 1].cols + 63) / 64 * 64;
}

static int make_updates(struct channel_update *updates)
{
    int n = 0;
    for (int k = 0; k < WIDTHS; k++)
        if (widths[k].n_rows > 0)
            for (int i = 0; i < SLOTS; i++)
                if (i % 7 != 3)
                    updates[n++] =
                        (struct channel_update){k, i, (i * 17 + 5) % ROWS,
                                                i < 10 ? (uint32_t)i % 2 : 1000 * (uint32_t)i, 0};
    return n;
}

static struct matrix_batch describe_slots(struct device *d, const struct slots *s,
                                          enum row_source source)
{
    struct matrix_rows rows[WIDTHS];
    for (int k = 0; k < WIDTHS; k++) {
        const size_t state = start_of(k, SLOTS), all = start_of(k, ROWS);
        rows[k] =
            (struct matrix_rows){.values = (char *)s->param + dtype_size(d->dtype) * all,
                                 .waiting = source == ROWS_GRADIENT ? s->gradient + state : NULL,
                                 .window = source == ROWS_WINDOW ? s->gradient + all : NULL,
                                 .master = s->master + state,
                                 .m = s->m + state,
                                 .v = s->v + state,
                                 .n_rows = widths[k].n_rows,
                                 .cols = widths[k].cols,
                                 .decays = widths[k].decays};
    }
    return matrix_batch_upload(d, rows, WIDTHS);
}

static struct slots slots_create(struct device *d, enum row_source source)
{
    const size_t state = start_of(WIDTHS, SLOTS), all = start_of(WIDTHS, ROWS);
    float *master = random_array(state, 1), *m = random_array(state, 2);
    float *v = random_array(state, 3), *gradient = random_array(all, 4);
    float *param = random_array(all, 5);
    uint16_t *half = rounded(param, all);
    struct channel_update updates[WIDTHS * SLOTS];
    const size_t n = (size_t)make_updates(updates);
    for (size_t i = 0; i < state; i++)
        v[i] = fabsf(v[i]);
    const bool is_bf16 = d->dtype == DTYPE_BF16;
    struct slots s = {
        .param = cuda_upload(d, is_bf16 ? (void *)half : param, dtype_size(d->dtype) * all),
        .master = cuda_upload(d, master, sizeof(float) * state),
        .m = cuda_upload(d, m, sizeof(float) * state),
        .v = cuda_upload(d, v, sizeof(float) * state),
        .gradient = cuda_upload(d, gradient, sizeof(float) * all),
        .updates = cuda_upload(d, updates, sizeof *updates * n),
        .scale = d->allocate(sizeof(float))};
    s.batch = describe_slots(d, &s, source);
    free(master), free(m), free(v), free(gradient), free(param), free(half);
    return s;
}

/* Three updates, the second of them skipped; the last of channels from the fifth on. */
static void slots_update(struct device *d, struct slots *s, enum row_source source,
                         const struct adamw *rule, int n)
{
    static const float scales[] = {0.5f, 0, 0.125f};
    for (int i = 0; i < 3; i++) {
        const int first = i < 2 ? 0 : 5;
        d->copy(d->compute, s->scale, &scales[i], sizeof *scales);
        d->row_ops->adamw_rows(d->compute, &s->batch, s->updates + first, n - first, source, rule,
                               s->scale, true);
    }
}

/* All of it in host memory, as new arrays. */
static void slots_read(struct device *d, struct slots *s, int n)
{
    const size_t state = sizeof(float) * start_of(WIDTHS, SLOTS), all = start_of(WIDTHS, ROWS);
    void **arrays[] = {&s->param, (void **)&s->master, (void **)&s->m, (void **)&s->v,
                       (void **)&s->updates};
    const size_t bytes[] = {dtype_size(d->dtype) * all, state, state, state,
                            sizeof *s->updates * (size_t)n};
    for (int i = 0; i < 5; i++) {
        void *x = zf_malloc(bytes[i]);
        d->copy(d->compute, x, *arrays[i], bytes[i]);
        d->release(*arrays[i]);
        *arrays[i] = x;
    }
    d->release(s->gradient);
    d->release(s->scale);
    d->release((void *)s->batch.matrices);
}

static void adamw_with(enum row_source source, bool l2)
{
    const struct adamw rule = {
        .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f, .l2 = l2};
    const size_t state = start_of(WIDTHS, SLOTS), all = start_of(WIDTHS, ROWS);
    struct channel_update updates[WIDTHS * SLOTS];
    const int n = make_updates(updates);
    struct slots ours = slots_create(cuda, source), theirs = slots_create(cpu, source);
    slots_update(cuda, &ours, source, &rule, n);
    slots_update(cpu, &theirs, source, &rule, n);
    slots_read(cuda, &ours, n);
    slots_read(cpu, &theirs, n);
    assert_close("master", ours.master, theirs.master, state, ROUNDING);
    assert_close("m", ours.m, theirs.m, state, ROUNDING);
    assert_close("v", ours.v, theirs.v, state, ROUNDING);
    assert_memory_equal(ours.updates, theirs.updates, sizeof *updates * (size_t)n);
    float *before = random_array(all, 5);
    uint16_t *expected = rounded(before, all);
    for (int i = 0; i < n; i++) {
        const int k = updates[i].matrix, cols = widths[k].cols;
        uint16_t *row = expected + start_of(k, ROWS) + updates[i].row * cols;
        for (int j = 0; j < cols; j++)
            row[j] = bf16_parameter(
                ours.master[start_of(k, SLOTS) + (size_t)(updates[i].slot * cols + j)]);
    }
    assert_memory_equal(ours.param, expected, sizeof *expected * all);
    struct slots *both[] = {&ours, &theirs};
    for (int i = 0; i < 2; i++) {
        free(both[i]->param), free(both[i]->master), free(both[i]->m), free(both[i]->v);
        free(both[i]->updates);
    }
    free(before);
    free(expected);
}

static void adamw_on_rows(void **state)
{
    (void)state;
    adamw_with(ROWS_GRADIENT, false);
    adamw_with(ROWS_GRADIENT, true);
    adamw_with(ROWS_WINDOW, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_taken),      cmocka_unit_test(norms_are_those_of_any_batch),
        cmocka_unit_test(norms_are_summed_up), cmocka_unit_test(the_same_rows_are_chosen),
        cmocka_unit_test(adamw_on_rows),
    };
    run_in_every_order("cuda_optimizer", tests);
}
