/* model/cuda: the operators that the ZenFlow engine works with, each beside the CPU device's: sums
 * to fp32 rounding, choices, copies and bf16 values exactly, and every byte outside the set of rows
 * untouched; on several streams, in every order that their events allow. */
#include "tests/gpu/cuda_testing.h"

#define ROUNDING 1e-6 /* relative: what an order of sums and fused multiply-adds may change */

static struct device *cuda, *cpu;

static int set_up(void **state)
{
    (void)state;
    cpu = device_cpu(2);
    cuda = cuda_device();
    return 0;
}

static uint32_t random_bits(size_t i, uint32_t key)
{
    return philox4x32((struct philox){{(uint32_t)i, 0, 0, 0}}, key, 3).v[0];
}

static float *random_array(size_t n, uint32_t key)
{
    float *x = zf_malloc_aligned(sizeof(float) * n);
    for (size_t i = 0; i < n; i++)
        x[i] = 2 * philox_uniform(random_bits(i, key)) - 1;
    return x;
}

static uint16_t *rounded(const float *x, size_t n)
{
    uint16_t *half = zf_malloc_aligned(sizeof *half * n);
    for (size_t i = 0; i < n; i++)
        half[i] = bf16_from_f32(x[i]);
    return half;
}

static void *copy_of(const void *x, size_t bytes)
{
    return memcpy(zf_malloc_aligned(bytes), x, bytes);
}

/* Reads it back into a new array and releases it. */
static void *off_device(void *memory, size_t bytes)
{
    void *x = zf_malloc_aligned(bytes);
    cuda->copy(cuda->compute, x, memory, bytes);
    cuda->release(memory);
    return x;
}

static void *pinned(const void *x, size_t bytes)
{
    return memcpy(cuda->allocate_host(bytes), x, bytes);
}

static void assert_close(const char *what, const float *x, const float *expected, size_t n,
                         double tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - expected[i]) <= tolerance * (1 + fabs((double)expected[i]))))
            fail_msg("%s: element %zu is %.9g, on the CPU device %.9g", what, i, (double)x[i],
                     (double)expected[i]);
}

/* Norms and what they say. */

static void norms_of_rows(void **state)
{
    (void)state;
    static const int shapes[][2] = {{1, 1}, {41, 37}, {9, 768}, {3, 4095}, {3, 4096}, {2, 5001}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const int rows = shapes[k][0], cols = shapes[k][1];
        const size_t n = (size_t)rows * cols, bytes = sizeof(float) * (size_t)rows;
        float *x = random_array(n, 1), *expected = zf_malloc(bytes), *again = zf_malloc(bytes);
        cpu->ops->row_norms_squared(cpu->compute, expected, x, rows, cols);
        float *g = cuda_upload(cuda, x, sizeof(float) * n), *sums = cuda->allocate(bytes);
        cuda->ops->row_norms_squared(cuda->compute, sums, g, rows, cols);
        cuda->copy(cuda->compute, again, sums, bytes);
        cuda->ops->row_norms_squared(cuda->compute, sums, g, rows, cols);
        sums = off_device(sums, bytes);
        assert_memory_equal(sums, again, bytes);
        assert_close("sum of squares", sums, expected, (size_t)rows, 4 * ROUNDING);
        free(x), free(expected), free(again), free(sums);
        cuda->release(g);
    }
}

static struct norm_summary summary_of(struct device *d, const float *sums,
                                      const unsigned char *place, int n, float limit)
{
    struct norm_summary host, *out = d->allocate(sizeof *out);
    float *s = d->allocate(sizeof(float) * (size_t)n);
    unsigned char *p = d->allocate((size_t)n);
    d->copy(d->compute, s, sums, sizeof(float) * (size_t)n);
    d->copy(d->compute, p, place, (size_t)n);
    d->ops->summarise_norms(d->compute, out, s, p, n, limit);
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
        place[i] = (unsigned char)(random_bits((size_t)i, 2) % 4);
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
                cpu->ops->select_rows(cpu->compute, expected, sums + 1, n, ks[k]);
                cuda->ops->select_rows(cuda->compute, chosen, s + 1, n, ks[k]);
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

/* AdamW on rows. */

enum { SLOTS = 23, ROWS = 31 };

struct slots {
    void *param;
    float *master, *m, *v, *gradient;
    int *row;
    uint32_t *updates;
    float *scale;
};

static struct slots slots_create(struct device *d, int cols)
{
    const size_t state = (size_t)SLOTS * cols, all = (size_t)ROWS * cols;
    float *master = random_array(state, 1), *m = random_array(state, 2);
    float *v = random_array(state, 3), *gradient = random_array(all, 4);
    float *param = random_array(all, 5);
    uint16_t *half = rounded(param, all);
    int row[SLOTS];
    uint32_t updates[SLOTS];
    for (size_t i = 0; i < state; i++)
        v[i] = fabsf(v[i]);
    for (int i = 0; i < SLOTS; i++) {
        row[i] = i % 7 == 3 ? -1 : (i * 17 + 5) % ROWS;
        updates[i] = i < 10 ? (uint32_t)i % 2 : 1000 * (uint32_t)i;
    }
    const bool is_bf16 = d->dtype == DTYPE_BF16;
    struct slots s = {
        .param = cuda_upload(d, is_bf16 ? (void *)half : param, dtype_size(d->dtype) * all),
        .master = cuda_upload(d, master, sizeof(float) * state),
        .m = cuda_upload(d, m, sizeof(float) * state),
        .v = cuda_upload(d, v, sizeof(float) * state),
        .gradient = cuda_upload(d, gradient, sizeof(float) * all),
        .row = cuda_upload(d, row, sizeof row),
        .updates = cuda_upload(d, updates, sizeof updates),
        .scale = d->allocate(sizeof(float))};
    free(master), free(m), free(v), free(gradient), free(param), free(half);
    return s;
}

/* Three updates, the second of them skipped. */
static void slots_update(struct device *d, struct slots *s, int cols, const struct adamw *rule)
{
    static const float scales[] = {0.5f, 0, 0.125f};
    for (int i = 0; i < 3; i++) {
        d->copy(d->compute, s->scale, &scales[i], sizeof *scales);
        d->ops->adamw_rows(d->compute, s->param, s->master, s->m, s->v, s->gradient, s->row,
                           s->updates, SLOTS, cols, rule, s->scale, true);
    }
}

/* All of it in host memory, as new arrays. */
static void slots_read(struct device *d, struct slots *s, int cols)
{
    const size_t state = sizeof(float) * SLOTS * (size_t)cols, all = (size_t)ROWS * cols;
    void **arrays[] = {&s->param, (void **)&s->master, (void **)&s->m, (void **)&s->v,
                       (void **)&s->updates};
    const size_t bytes[] = {dtype_size(d->dtype) * all, state, state, state,
                            sizeof(uint32_t) * SLOTS};
    for (int i = 0; i < 5; i++) {
        void *x = zf_malloc(bytes[i]);
        d->copy(d->compute, x, *arrays[i], bytes[i]);
        d->release(*arrays[i]);
        *arrays[i] = x;
    }
    d->release(s->gradient);
    d->release(s->scale);
}

static void adamw_with(int cols, bool l2)
{
    const struct adamw rule = {
        .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f, .l2 = l2};
    const size_t state = (size_t)SLOTS * cols, all = (size_t)ROWS * cols;
    struct slots ours = slots_create(cuda, cols), theirs = slots_create(cpu, cols);
    slots_update(cuda, &ours, cols, &rule);
    slots_update(cpu, &theirs, cols, &rule);
    int row[SLOTS];
    cuda->copy(cuda->compute, row, ours.row, sizeof row);
    slots_read(cuda, &ours, cols);
    slots_read(cpu, &theirs, cols);
    assert_close("master", ours.master, theirs.master, state, ROUNDING);
    assert_close("m", ours.m, theirs.m, state, ROUNDING);
    assert_close("v", ours.v, theirs.v, state, ROUNDING);
    assert_memory_equal(ours.updates, theirs.updates, sizeof(uint32_t) * SLOTS);
    float *before = random_array(all, 5);
    uint16_t *expected = rounded(before, all);
    for (int i = 0; i < SLOTS; i++)
        for (int j = 0; row[i] >= 0 && j < cols; j++)
            expected[row[i] * cols + j] = bf16_from_f32(ours.master[i * cols + j]);
    assert_memory_equal(ours.param, expected, sizeof *expected * all);
    struct slots *both[] = {&ours, &theirs};
    for (int i = 0; i < 2; i++) {
        free(both[i]->param), free(both[i]->master), free(both[i]->m), free(both[i]->v);
        free(both[i]->updates);
    }
    cuda->release(ours.row);
    cpu->release(theirs.row);
    free(before);
    free(expected);
}

static void adamw_on_rows(void **state)
{
    (void)state;
    static const int widths[] = {1, 37, 64, 333, 1100};
    for (int i = 0; i < 5; i++) {
        adamw_with(widths[i], false);
        adamw_with(widths[i], true);
    }
}

/* Rows that gather, leave and arrive. */

struct rows_case {
    int cols, shift, n_groups;
    uint64_t groups, fresh;
    bool with_leaving;
    int offset; /* of the matrices, in elements: nothing is aligned then */
};

static const struct rows_case rows_cases[] = {
    {33, 2, 4, 0x5, 0x4, false, 0}, {64, 63, 64, 0x8000000000000003, 0x2, true, 0},
    {1, 0, 1, 1, 1, true, 0},       {333, 5, 3, 7, 0, true, 0},
    {7, 1, 3, 0, 7, false, 0},      {1032, 9, 2, 2, 2, false, 0},
    {72, 1, 3, 5, 4, true, 1},      {516, 4, 4, 0xb, 0x3, false, 0},
};

enum { N_CASES = sizeof rows_cases / sizeof *rows_cases, SET_ROWS = 75 };

/* A set in host memory, and the same with its places on the device. */
struct sets {
    unsigned char places[SET_ROWS];
    struct channel_set host, device;
};

static void sets_create(struct sets *sets, const struct rows_case *c, uint32_t key)
{
    for (size_t i = 0; i < SET_ROWS; i++)
        sets->places[i] = (unsigned char)(random_bits(i, key) % 4);
    sets->host = (struct channel_set){sets->places, SET_ROWS,  c->shift,
                                      c->n_groups,  c->groups, c->with_leaving};
    sets->device = sets->host;
    sets->device.place = cuda_upload(cuda, sets->places, SET_ROWS);
}

static void sets_destroy(struct sets *sets)
{
    cuda->release((void *)sets->device.place);
}

static size_t length_of(const struct rows_case *c)
{
    return (size_t)SET_ROWS * c->cols + c->offset;
}

static bool is_in(const struct channel_set *set, size_t row)
{
    const size_t group = (row + (size_t)set->shift) % (size_t)set->n_groups;
    return (set->groups >> group & 1) &&
           (set->place[row] == CHANNEL_DEFERRED ||
            (set->place[row] == CHANNEL_LEAVING && set->with_leaving));
}

static void rows_gather(void **state)
{
    (void)state;
    static const float scales[] = {0.25f, 0, 0.75f}; /* the second step is skipped */
    for (uint32_t k = 0; k < N_CASES; k++) {
        const struct rows_case *c = &rows_cases[k];
        const size_t n = length_of(c), bytes = sizeof(float) * n;
        const int offset = c->offset;
        struct sets sets;
        sets_create(&sets, c, k);
        float *window = random_array(n, 1), *gradient = random_array(n, 2);
        float *before = copy_of(window, bytes);
        float *w = cuda_upload(cuda, window, bytes), *g = cuda_upload(cuda, gradient, bytes);
        float *scale = cuda_upload(cuda, scales, sizeof scales);
        for (int i = 0; i < 3; i++) {
            const uint64_t fresh = i < 2 ? c->fresh : 0;
            cpu->ops->accumulate_rows(cpu->compute, window + offset, gradient + offset, &sets.host,
                                      fresh, c->cols, &scales[i]);
            cuda->ops->accumulate_rows(cuda->compute, w + offset, g + offset, &sets.device, fresh,
                                       c->cols, scale + i);
        }
        w = off_device(w, bytes);
        assert_close("window", w, window, n, ROUNDING);
        for (size_t i = 0; i < n; i++)
            if (i < (size_t)offset || !is_in(&sets.host, (i - (size_t)offset) / (size_t)c->cols))
                assert_memory_equal(w + i, before + i, sizeof *w);
        free(window), free(gradient), free(before), free(w);
        cuda->release(g);
        cuda->release(scale);
        sets_destroy(&sets);
    }
}

static void rows_leave(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2 * N_CASES; k++) {
        const struct rows_case *c = &rows_cases[k / 2];
        const enum dtype dtype = k % 2 ? DTYPE_BF16 : DTYPE_F32;
        const size_t n = length_of(c), size = dtype_size(dtype), at = size * (size_t)c->offset;
        struct sets sets;
        sets_create(&sets, c, k);
        float *src = random_array(n, 1), *expected = random_array(n, 2);
        char *dst = pinned(expected, size * n);
        float *x = cuda_upload(cuda, src, sizeof(float) * n);
        cpu->ops->send_rows(cpu->compute, (char *)expected + at, dtype, src + c->offset, &sets.host,
                            c->cols, 3);
        cuda->ops->send_rows(cuda->compute, dst + at, dtype, x + c->offset, &sets.device, c->cols,
                             3);
        cuda->stream_wait(cuda->compute);
        assert_memory_equal(dst, expected, size * n);
        free(src);
        free(expected);
        cuda->release_host(dst);
        cuda->release(x);
        sets_destroy(&sets);
    }
}

static void rows_arrive(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2 * N_CASES; k++) {
        const struct rows_case *c = &rows_cases[k / 2];
        const enum dtype dtype = k % 2 ? DTYPE_BF16 : DTYPE_F32;
        const size_t n = length_of(c), size = dtype_size(dtype), first = (size_t)c->offset;
        struct sets sets;
        sets_create(&sets, c, k);
        float *values = random_array(n, 1), *before = random_array(n, 2);
        uint16_t *arriving = rounded(values, n), *expected = rounded(before, n);
        char *src = pinned(dtype == DTYPE_F32 ? (void *)values : arriving, size * n);
        uint16_t *param = cuda_upload(cuda, expected, sizeof *param * n);
        cuda->ops->receive_rows(cuda->compute, param + first, src + size * first, dtype,
                                &sets.device, c->cols);
        param = off_device(param, sizeof *param * n);
        for (size_t i = first; i < n; i++)
            if (is_in(&sets.host, (i - first) / (size_t)c->cols))
                expected[i] = arriving[i];
        assert_memory_equal(param, expected, sizeof *param * n);
        free(values), free(before), free(arriving), free(expected), free(param);
        cuda->release_host(src);
        sets_destroy(&sets);
    }
}

/* Rows of so many bytes, `offset` bytes into both memories; in one direction, src is pinned. */
static void copy_with(size_t width, size_t offset, bool chooses_dst, bool chooses_src, bool arrives)
{
    enum { N = 13, FROM = 20 };
    int to[N], from[N];
    for (int i = 0; i < N; i++) {
        to[i] = (i * 7 + 3) % ROWS;
        from[i] = (int)(random_bits((size_t)i, 5) % FROM);
    }
    const size_t src_bytes = width * FROM + offset, dst_bytes = width * ROWS + offset;
    char *src = (char *)random_array(src_bytes / sizeof(float) + 1, 1);
    char *expected = (char *)random_array(dst_bytes / sizeof(float) + 1, 2);
    char *dst = cuda_upload(cuda, expected, dst_bytes);
    char *x = arrives ? pinned(src, src_bytes) : cuda_upload(cuda, src, src_bytes);
    int *dst_row = cuda_upload(cuda, to, sizeof to),
        *src_row = cuda_upload(cuda, from, sizeof from);
    cpu->ops->copy_rows(cpu->compute, expected + offset, chooses_dst ? to : NULL, src + offset,
                        chooses_src ? from : NULL, N, width);
    cuda->ops->copy_rows(cuda->compute, dst + offset, chooses_dst ? dst_row : NULL, x + offset,
                         chooses_src ? src_row : NULL, N, width);
    dst = off_device(dst, dst_bytes);
    assert_memory_equal(dst, expected, dst_bytes);
    if (arrives)
        cuda->release_host(x);
    else
        cuda->release(x);
    cuda->release(dst_row);
    cuda->release(src_row);
    free(src), free(expected), free(dst);
}

static void rows_are_copied(void **state)
{
    (void)state;
    static const size_t widths[] = {2, 12, 24, 64, 4094, 3072};
    for (int i = 0; i < 6; i++)
        for (int form = 0; form < 8; form++)
            copy_with(widths[i], i == 5 && form & 1 ? 2 : 0, form & 1, form & 2, form & 4);
}

/* A gradient arrives on one stream and is gathered on another; the window leaves on a third; what
 * the host makes of it arrives on the first; and it is read on the second. Events alone order
 * them. Returns the parameters, (SET_ROWS, cols) bf16. */
static uint16_t *round_trip(const struct rows_case *c, const struct sets *sets, float *gradient)
{
    const size_t n = length_of(c);
    struct stream *up = cuda->stream_create(), *down = cuda->stream_create();
    struct event *arrived = cuda->event_create(), *gathered = cuda->event_create();
    struct event *left = cuda->event_create(), *updated = cuda->event_create();
    const float one = 1;
    float *g = cuda->allocate(sizeof(float) * n), *window = cuda->allocate(sizeof(float) * n);
    uint16_t *param = cuda->allocate(sizeof *param * n);
    uint16_t *exchange = cuda->allocate_host(sizeof *exchange * n);
    float *scale = cuda_upload(cuda, &one, sizeof one);
    memset(exchange, 0, sizeof *exchange * n);
    cuda->zero(cuda->compute, window, sizeof(float) * n);
    cuda->zero(cuda->compute, param, sizeof *param * n);
    cuda->copy(up, g, gradient, sizeof(float) * n);
    cuda->event_record(arrived, up);
    cuda->event_order(cuda->compute, arrived);
    for (int i = 0; i < 3; i++)
        cuda->ops->accumulate_rows(cuda->compute, window, g, &sets->device, 0, c->cols, scale);
    cuda->event_record(gathered, cuda->compute);
    cuda->event_order(down, gathered);
    cuda->ops->send_rows(down, exchange, DTYPE_BF16, window, &sets->device, c->cols, 3);
    cuda->event_record(left, down);
    cuda->event_wait(left);
    for (size_t i = 0; i < n; i++)
        exchange[i] ^= 0x8000u;
    cuda->ops->receive_rows(up, param, exchange, DTYPE_BF16, &sets->device, c->cols);
    cuda->event_record(updated, up);
    cuda->event_order(cuda->compute, updated);
    param = off_device(param, sizeof *param * n);
    cuda->release(g);
    cuda->release(window);
    cuda->release(scale);
    cuda->release_host(exchange);
    struct event *events[] = {arrived, gathered, left, updated};
    for (int i = 0; i < 4; i++)
        cuda->event_destroy(events[i]);
    cuda->stream_destroy(up);
    cuda->stream_destroy(down);
    return param;
}

static void events_order_streams(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < N_CASES; k++) {
        const struct rows_case *c = &rows_cases[k];
        const size_t n = length_of(c);
        struct sets sets;
        sets_create(&sets, c, k);
        float *values = random_array(n, 6), *gradient = pinned(values, sizeof(float) * n);
        uint16_t *param = round_trip(c, &sets, gradient);
        for (size_t i = 0; i < (size_t)SET_ROWS * c->cols; i++) {
            const float sum = (gradient[i] + gradient[i]) + gradient[i];
            const uint16_t expected =
                is_in(&sets.host, i / (size_t)c->cols) ? bf16_from_f32(-(sum / 3)) : 0;
            if (param[i] != expected)
                fail_msg("case %u: element %zu is %#x, expected %#x", k, i, param[i], expected);
        }
        free(param);
        free(values);
        cuda->release_host(gradient);
        sets_destroy(&sets);
    }
}

/* No operator touches anything where there are no rows. */
static void nothing_of_nothing(void **state)
{
    (void)state;
    const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const struct adamw rule = {.lr = 1};
    float *x = cuda_upload(cuda, values, sizeof values), *host = pinned(values, sizeof values);
    const struct channel_set none = {(unsigned char *)x, 0, 0, 1, 1, true};
    const struct ops *ops = cuda->ops;
    struct stream *s = cuda->compute;
    ops->row_norms_squared(s, x, x, 0, 4);
    ops->adamw_rows(s, x, x, x, x, x, (int *)x, (uint32_t *)x, 0, 4, &rule, x, true);
    ops->accumulate_rows(s, x, x, &none, 0, 4, x);
    ops->send_rows(s, host, DTYPE_F32, x, &none, 4, 2);
    ops->receive_rows(s, x, host, DTYPE_F32, &none, 4);
    ops->copy_rows(s, x, NULL, host, NULL, 0, 4);
    ops->select_rows(s, (unsigned char *)x, x, 0, 0);
    x = off_device(x, sizeof values);
    assert_memory_equal(x, values, sizeof values);
    assert_memory_equal(host, values, sizeof values);
    free(x);
    cuda->release_host(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_rows),
        cmocka_unit_test(norms_are_summed_up),
        cmocka_unit_test(the_same_rows_are_chosen),
        cmocka_unit_test(adamw_on_rows),
        cmocka_unit_test(rows_gather),
        cmocka_unit_test(rows_leave),
        cmocka_unit_test(rows_arrive),
        cmocka_unit_test(rows_are_copied),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(nothing_of_nothing),
    };
    int n_failed = 0;
    for (uint32_t order = 0; order < CUDA_ORDERS; order++) {
        cuda_order(order);
        n_failed += cmocka_run_group_tests_name("cuda_rows", tests, set_up, NULL);
    }
    return n_failed;
}
