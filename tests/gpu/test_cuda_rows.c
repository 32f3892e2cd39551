/* model/cuda: the operators that gather, send, receive and copy rows, each beside the CPU device's:
 * sums to fp32 rounding, copies and bf16 values exactly, and every byte outside the set of rows
 * untouched; on several streams, in every order that their events allow. */
#include "tests/gpu/cuda_rows_testing.h"

/* Rows that gather, leave and arrive: matrices that differ in everything, some aligned for wide
 * packs and some not. */

static const struct {
    int cols, n_rows, index;
    int offset;      /* from a place that is aligned, in elements */
    int first, rows; /* which rows they are, of how many */
} shapes[] = {{33, 75, 2, 0, 0, 75},      {64, 1, 63, 0, 900, 1801},   {5, 0, 3, 0, 7, 7},
              {1, 75, 0, 0, 75, 150},     {333, 13, 5, 0, 500, 2000},  {7, 75, 1, 0, 5, 80},
              {1032, 13, 9, 0, 260, 280}, {72, 75, 1, 1, 1000, 10000}, {516, 13, 4, 0, 0, 13},
              {8, 0, 0, 0, 0, 0}};

enum { SHAPES = sizeof shapes / sizeof *shapes, MOST_ROWS = 75 };

struct rows_case {
    int n_groups;
    uint64_t groups, fresh;
    bool with_leaving;
    int first, last; /* which matrices the operator is given */
};

static const struct rows_case rows_cases[] = {
    {4, 0x5, 0x4, false, 0, SHAPES}, {64, 0x8000000000000003, 0x2, true, 0, SHAPES},
    {1, 1, 1, true, 3, 7},           {3, 7, 0, true, 6, SHAPES},
    {3, 0, 7, false, 0, SHAPES},     {2, 3, 2, false, 2, 3},
};

enum { N_CASES = sizeof rows_cases / sizeof *rows_cases };

/* Where matrix k begins in flat arrays; for SHAPES, their length. */
static size_t first_of(int k)
{
    size_t at = 0;
    for (int i = 0; i < k; i++)
        at += ((size_t)shapes[i].n_rows * (size_t)shapes[i].cols + 64) / 64 * 64;
    return k < SHAPES ? at + (size_t)shapes[k].offset : at;
}

static unsigned char place_of(int k, int row, uint32_t key)
{
    return (unsigned char)(random_bits((size_t)(k * MOST_ROWS + row), key) % CHANNEL_PLACES);
}

static struct matrix_part part_of(int k)
{
    return (struct matrix_part){shapes[k].index, shapes[k].first, shapes[k].rows, shapes[k].cols};
}

/* For each element of flat arrays, whether it is in the set. */
static bool *members(const struct rows_case *c, uint32_t key)
{
    bool *in = zf_calloc(first_of(SHAPES), sizeof *in);
    for (int k = c->first; k < c->last; k++) {
        const struct matrix_part part = part_of(k);
        const struct row_groups groups = row_groups_of(&part, c->n_groups);
        for (int i = 0; i < shapes[k].n_rows * shapes[k].cols; i++) {
            const int row = i / shapes[k].cols, group = row_groups_group(&groups, row);
            const unsigned char place = place_of(k, row, key);
            in[first_of(k) + (size_t)i] =
                (c->groups >> group & 1) &&
                (place == CHANNEL_DEFERRED || (place == CHANNEL_LEAVING && c->with_leaving));
        }
    }
    return in;
}

/* Flat arrays of one device; those that a test does not need are NULL. */
struct arrays {
    float *window;
    char *values, *deferred, *staged;
    enum dtype dtype; /* of the last two */
};

/* A table over them on a device. */
struct table {
    struct device *device;
    unsigned char *place;
    struct matrix_rows *matrices;
    struct matrix_batch batch;
    struct channel_set set;
};

static void *element(void *array, size_t at, size_t size)
{
    return array ? (char *)array + at * size : NULL;
}

static struct table table_create(struct device *d, const struct rows_case *c, uint32_t key,
                                 struct arrays a)
{
    struct table t = {.device = d, .set = {c->n_groups, c->with_leaving, c->groups}};
    struct matrix_rows rows[SHAPES];
    unsigned char place[SHAPES * MOST_ROWS];
    for (int i = 0; i < SHAPES * MOST_ROWS; i++)
        place[i] = place_of(i / MOST_ROWS, i % MOST_ROWS, key);
    t.place = cuda_upload(d, place, sizeof place);
    for (int k = 0; k < SHAPES; k++) {
        const size_t at = first_of(k);
        rows[k] = (struct matrix_rows){.values = element(a.values, at, dtype_size(d->dtype)),
                                       .deferred = element(a.deferred, at, dtype_size(a.dtype)),
                                       .place = t.place + k * MOST_ROWS,
                                       .window = element(a.window, at, sizeof(float)),
                                       .staged = element(a.staged, at, dtype_size(a.dtype)),
                                       .n_rows = shapes[k].n_rows,
                                       .cols = shapes[k].cols,
                                       .packed = at,
                                       .part = part_of(k)};
    }
    t.matrices = (struct matrix_rows *)matrix_batch_upload(d, rows, SHAPES).matrices;
    t.batch = matrix_batch_part(rows, t.matrices, c->first, c->last);
    return t;
}

static void table_destroy(struct table *t)
{
    t->device->release(t->place);
    t->device->release(t->matrices);
}

/* Random values of a dtype. */
static char *values_as(enum dtype dtype, size_t n, uint32_t key)
{
    float *x = random_array(n, key);
    if (dtype == DTYPE_F32)
        return (char *)x;
    uint16_t *half = rounded(x, n);
    free(x);
    return (char *)half;
}

static void gather(const struct rows_case *c, uint32_t key, enum dtype dtype)
{
    static const float scales[] = {0.25f, 0, 0.75f}; /* the second step is skipped */
    const size_t n = first_of(SHAPES), bytes = sizeof(float) * n, size = dtype_size(dtype);
    bool *in = members(c, key);
    float *window = random_array(n, 1), *before = copy_of(window, bytes);
    char *deferred = values_as(dtype, n, 2), *x = cuda_upload(cuda, deferred, size * n);
    float *w = cuda_upload(cuda, window, bytes), *scale = cuda_upload(cuda, scales, sizeof scales);
    struct arrays a = {.deferred = deferred, .window = window, .dtype = dtype};
    struct arrays b = {.deferred = x, .window = w, .dtype = dtype};
    struct table host = table_create(cpu, c, key, a), device = table_create(cuda, c, key, b);
    for (int i = 0; i < 3; i++) {
        const uint64_t fresh = i < 2 ? c->fresh : 0;
        cpu->row_ops->accumulate_rows(cpu->compute, &host.batch, dtype, &host.set, fresh,
                                      &scales[i]);
        cuda->row_ops->accumulate_rows(cuda->compute, &device.batch, dtype, &device.set, fresh,
                                       scale + i);
    }
    w = off_device(w, bytes);
    assert_close("window", w, window, n, ROUNDING);
    for (size_t i = 0; i < n; i++)
        if (!in[i])
            assert_memory_equal(w + i, before + i, sizeof *w);
    table_destroy(&host);
    table_destroy(&device);
    free(window), free(deferred), free(before), free(w), free(in);
    cuda->release(x);
    cuda->release(scale);
}

static void rows_gather(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < N_CASES; k++) {
        gather(&rows_cases[k], k, DTYPE_F32);
        gather(&rows_cases[k], k, DTYPE_BF16);
    }
}

/* Taken gradients leave into `staged`, as they are; no other array is there. */
static void stage(const struct rows_case *c, uint32_t key, enum dtype dtype)
{
    const size_t n = first_of(SHAPES), size = dtype_size(dtype);
    char *src = values_as(dtype, n, 1), *expected = (char *)random_array(n, 2);
    char *dst = pinned(expected, size * n), *x = cuda_upload(cuda, src, size * n);
    struct arrays a = {.deferred = src, .staged = expected, .dtype = dtype};
    struct arrays b = {.deferred = x, .staged = dst, .dtype = dtype};
    struct table host = table_create(cpu, c, key, a), device = table_create(cuda, c, key, b);
    cpu->row_ops->stage_rows(cpu->compute, &host.batch, dtype, &host.set);
    cuda->row_ops->stage_rows(cuda->compute, &device.batch, dtype, &device.set);
    cuda->stream_wait(cuda->compute);
    assert_memory_equal(dst, expected, size * n);
    table_destroy(&host);
    table_destroy(&device);
    free(src);
    free(expected);
    cuda->release_host(dst);
    cuda->release(x);
}

static void rows_are_staged(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2 * N_CASES; k++)
        stage(&rows_cases[k / 2], k, k % 2 ? DTYPE_BF16 : DTYPE_F32);
}

/* Rows of a group, as the case's matrices have them packed: all, or those that begin in a part of
 * their places. The first of a matrix is where the matrix itself is. */
static struct packed_rows choose_rows(const struct rows_case *c, uint32_t key, void *memory,
                                      bool on_device)
{
    const size_t n = first_of(SHAPES), first = key % 3 ? 0 : first_of(c->first);
    return (struct packed_rows){.memory = memory,
                                .first = first,
                                .n = key % 3 == 1 ? n / 2 : n - first,
                                .group = (int)key % c->n_groups,
                                .n_groups = c->n_groups,
                                .on_device = on_device};
}

/* Memory that rows are packed in, of the device or pinned. */
static char *memory_on(bool on_device, const void *values, size_t bytes)
{
    return on_device ? cuda_upload(cuda, values, bytes) : pinned(values, bytes);
}

static void assert_memory_is(bool on_device, char *memory, const void *expected, size_t bytes)
{
    if (on_device)
        memory = off_device(memory, bytes);
    else
        cuda->stream_wait(cuda->compute);
    assert_memory_equal(memory, expected, bytes);
    if (on_device)
        free(memory);
    else
        cuda->release_host(memory);
}

/* Windows leave, divided. */
static void leave(const struct rows_case *c, uint32_t key, enum dtype dtype, bool on_device)
{
    const size_t n = first_of(SHAPES), size = dtype_size(dtype);
    float *src = random_array(n, 1), *x = cuda_upload(cuda, src, sizeof *src * n);
    char *expected = (char *)random_array(n, 2), *dst = memory_on(on_device, expected, size * n);
    struct table host = table_create(cpu, c, key, (struct arrays){.window = src, .dtype = dtype});
    struct table device = table_create(cuda, c, key, (struct arrays){.window = x, .dtype = dtype});
    const struct packed_rows to = choose_rows(c, key, expected, false);
    const struct packed_rows there = choose_rows(c, key, dst, on_device);
    cpu->row_ops->send_rows(cpu->compute, &host.batch, dtype, &to, 3);
    cuda->row_ops->send_rows(cuda->compute, &device.batch, dtype, &there, 3);
    assert_memory_is(on_device, dst, expected, size * n);
    table_destroy(&host);
    table_destroy(&device);
    free(src);
    free(expected);
    cuda->release(x);
}

static void rows_leave(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 6 * N_CASES; k++)
        for (int form = 0; form < 4; form++)
            leave(&rows_cases[k % N_CASES], k, form & 1 ? DTYPE_BF16 : DTYPE_F32, form & 2);
}

/* As the CPU device's values, which are fp32, rounded. */
static void arrive(const struct rows_case *c, uint32_t key, enum dtype dtype, bool on_device)
{
    const size_t n = first_of(SHAPES), size = dtype_size(dtype);
    char *arriving = values_as(dtype, n, 1), *src = memory_on(on_device, arriving, size * n);
    float *before = random_array(n, 2);
    uint16_t *half = rounded(before, n), *param = cuda_upload(cuda, half, sizeof *half * n);
    struct table host = table_create(cpu, c, key, (struct arrays){.values = (char *)before});
    struct table device = table_create(cuda, c, key, (struct arrays){.values = (char *)param});
    const struct packed_rows from = choose_rows(c, key, arriving, false);
    const struct packed_rows there = choose_rows(c, key, src, on_device);
    cpu->row_ops->receive_rows(cpu->compute, &host.batch, dtype, &from);
    cuda->row_ops->receive_rows(cuda->compute, &device.batch, dtype, &there);
    uint16_t *expected = rounded(before, n);
    param = off_device(param, sizeof *param * n);
    assert_memory_equal(param, expected, sizeof *param * n);
    assert_memory_is(on_device, src, arriving, size * n);
    table_destroy(&host);
    table_destroy(&device);
    free(arriving), free(before), free(half), free(param), free(expected);
}

static void rows_arrive(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 6 * N_CASES; k++)
        for (int form = 0; form < 4; form++)
            arrive(&rows_cases[k % N_CASES], k, form & 1 ? DTYPE_BF16 : DTYPE_F32, form & 2);
}

/* Rows of so many bytes, `offset` bytes into both memories; in one direction, src is pinned. */
static void copy_with(size_t width, size_t offset, bool chooses_dst, bool chooses_src, bool arrives)
{
    enum { N = 13, FROM = 20, ROWS = 31 };
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
    cpu->row_ops->copy_rows(cpu->compute, expected + offset, chooses_dst ? to : NULL, src + offset,
                            chooses_src ? from : NULL, N, width);
    cuda->row_ops->copy_rows(cuda->compute, dst + offset, chooses_dst ? dst_row : NULL, x + offset,
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

static void bf16_is_widened(void **state)
{
    (void)state;
    enum { N = 1003 };
    for (size_t first = 0; first < 3; first++) {
        float *values = random_array(N, 1);
        uint16_t parameters[N];
        for (size_t i = 0; i < N; i++)
            parameters[i] = (uint16_t)(random_bits(i, 2) & 0xbfff); /* finite */
        float *x = cuda_upload(cuda, values, sizeof *values * N);
        uint16_t *host = pinned(parameters, sizeof parameters);
        cpu->row_ops->widen(cpu->compute, values + first, parameters + first, N - 2 * first);
        cuda->row_ops->widen(cuda->compute, x + first, host + first, N - 2 * first);
        x = off_device(x, sizeof *values * N);
        assert_memory_equal(x, values, sizeof *values * N);
        cuda->release_host(host);
        free(values), free(x);
    }
}

static void rows_are_copied(void **state)
{
    (void)state;
    static const size_t row_bytes[] = {2, 12, 24, 64, 4094, 3072};
    for (int i = 0; i < 6; i++)
        for (int form = 0; form < 8; form++)
            copy_with(row_bytes[i], i == 5 && form & 1 ? 2 : 0, form & 1, form & 2, form & 4);
}

/* State of 40 channels of matrices that differ leaves slots, or comes to them. */
static void carry(bool to_slots, bool on_device)
{
    enum { N = 40, SLOTS = 53, MATRICES = 5, PLACE = 9300, MOST = 3100 };
    static const int cols[MATRICES] = {33, 8, 1, MOST, 516};
    struct carried_row rows[N];
    struct matrix_rows here[MATRICES], there[MATRICES];
    float *state[MATRICES][3], *copy[MATRICES][3];
    const size_t n = (size_t)N * PLACE;
    float *packed = random_array(n, 9);
    char *memory = memory_on(on_device, packed, sizeof *packed * n);
    for (int k = 0; k < MATRICES; k++) {
        const size_t elements = (size_t)(SLOTS * cols[k]);
        for (int part = 0; part < 3; part++) {
            state[k][part] = random_array(elements, (uint32_t)(3 * k + part));
            copy[k][part] = cuda_upload(cuda, state[k][part], sizeof(float) * elements);
        }
        here[k] = (struct matrix_rows){
            .master = state[k][0], .m = state[k][1], .v = state[k][2], .cols = cols[k]};
        there[k] = (struct matrix_rows){
            .master = copy[k][0], .m = copy[k][1], .v = copy[k][2], .cols = cols[k]};
    }
    for (int i = 0; i < N; i++)
        rows[i] = (struct carried_row){i % MATRICES, (i * 7 + 5) % SLOTS, -1, (N - 1 - i) * PLACE};
    const struct matrix_batch host = {.matrices = here, .n = MATRICES};
    const struct matrix_batch device = matrix_batch_upload(cuda, there, MATRICES);
    struct carried_row *list = cuda_upload(cuda, rows, sizeof rows);
    const struct carried_rows carried = {rows, N, packed, n, false};
    const struct carried_rows carried_there = {list, N, (float *)memory, n, on_device};
    cpu->row_ops->carry_rows(cpu->compute, &host, &carried, to_slots);
    cuda->row_ops->carry_rows(cuda->compute, &device, &carried_there, to_slots);
    for (int i = 0; i < 3 * MATRICES; i++) {
        const size_t bytes = sizeof(float) * (size_t)(SLOTS * cols[i / 3]);
        float *got = off_device(copy[i / 3][i % 3], bytes);
        assert_memory_equal(got, state[i / 3][i % 3], bytes);
        free(got);
        free(state[i / 3][i % 3]);
    }
    assert_memory_is(on_device, memory, packed, sizeof *packed * n);
    cuda->release((void *)device.matrices);
    cuda->release(list);
    free(packed);
}

static void state_is_carried(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++)
        carry(form & 1, form & 2);
}

/* Rows that changed of matrices that are aligned for wide packs or not, some longer than a piece,
 * go into memory or come out of it; from a run in the middle on. */
static void share(bool pack, int from)
{
    enum { MATRICES = 4, ROWS_OF = 9, OWNED = 2, MOST = 1100, STRIDE = ROWS_OF * (MOST + 8) };
    static const int cols[MATRICES] = {8, 33, MOST, 1};
    static const size_t starts[MATRICES] = {0, 1, 8, 3};
    enum { N = MATRICES * STRIDE };
    struct shared_run runs[MATRICES];
    int rows[4 * MATRICES], n_rows = 0, pieces = 0;
    float *values = random_array(N, 1), *packed = random_array(N, 2);
    uint16_t *half = rounded(values, N), *half_packed = rounded(packed, N);
    for (int i = 0; i < N; i++) { /* the CPU device's are fp32 */
        values[i] = bf16_to_f32(half[i]);
        packed[i] = bf16_to_f32(half_packed[i]);
    }
    uint16_t *there = cuda_upload(cuda, half, sizeof *half * N);
    uint16_t *memory = cuda_upload(cuda, half_packed, sizeof *half * N);
    struct matrix_rows on_cpu[MATRICES], on_cuda[MATRICES];
    for (int k = 0; k < MATRICES; k++) {
        const size_t at = (size_t)(k * STRIDE) + starts[k];
        runs[k] = (struct shared_run){k, n_rows, 1 + k % 3, pieces, at};
        for (int i = 0; i < runs[k].n; i++)
            rows[n_rows++] = (2 + 3 * i + k) % ROWS_OF;
        pieces += runs[k].n * ((cols[k] + ROW_PIECE - 1) / ROW_PIECE);
        on_cpu[k] = (struct matrix_rows){
            .values = values + at + OWNED * cols[k], .cols = cols[k], .part = {.first = OWNED}};
        on_cuda[k] = on_cpu[k];
        on_cuda[k].values = there + at + OWNED * cols[k];
    }
    const struct matrix_batch host = {.matrices = on_cpu, .n = MATRICES};
    const struct matrix_batch device = matrix_batch_upload(cuda, on_cuda, MATRICES);
    struct shared_run *runs_there = cuda_upload(cuda, runs, sizeof runs);
    int *rows_there = cuda_upload(cuda, rows, sizeof rows);
    struct shared_rows shared = {.runs = runs + from,
                                 .n_runs = MATRICES - from,
                                 .rows = rows,
                                 .first_piece = runs[from].first_piece,
                                 .n_pieces = pieces - runs[from].first_piece,
                                 .memory = packed};
    cpu->row_ops->share_rows(cpu->compute, &host, &shared, pack);
    shared.runs = runs_there + from;
    shared.rows = rows_there;
    shared.memory = memory;
    cuda->row_ops->share_rows(cuda->compute, &device, &shared, pack);
    free(half), free(half_packed);
    half = rounded(values, N);
    half_packed = rounded(packed, N);
    there = off_device(there, sizeof *half * N);
    memory = off_device(memory, sizeof *half * N);
    assert_memory_equal(there, half, sizeof *half * N);
    assert_memory_equal(memory, half_packed, sizeof *half * N);
    cuda->release((void *)device.matrices);
    cuda->release(runs_there);
    cuda->release(rows_there);
    free(values), free(packed), free(half), free(half_packed), free(there), free(memory);
}

static void rows_are_shared(void **state)
{
    (void)state;
    for (int from = 0; from < 4; from += 2)
        for (int pack = 0; pack < 2; pack++)
            share(pack, from);
}

static void places_change(void **state)
{
    (void)state;
    enum { N = 700, CHANNELS = 1500 };
    unsigned char *place = (unsigned char *)random_array(CHANNELS / 4, 1);
    int *slot = (int *)random_array(CHANNELS, 2);
    unsigned char *place_there = cuda_upload(cuda, place, CHANNELS);
    int *slot_there = cuda_upload(cuda, slot, sizeof *slot * CHANNELS);
    struct channel_change changes[N];
    for (int i = 0; i < N; i++)
        changes[i] = (struct channel_change){(i * 7 + 3) % CHANNELS, i % CHANNEL_PLACES, i - 1};
    struct channel_change *changes_there = cuda_upload(cuda, changes, sizeof changes);
    cpu->row_ops->change_places(cpu->compute, place, slot, changes, N);
    cuda->row_ops->change_places(cuda->compute, place_there, slot_there, changes_there, N);
    place_there = off_device(place_there, CHANNELS);
    slot_there = off_device(slot_there, sizeof *slot * CHANNELS);
    assert_memory_equal(place_there, place, CHANNELS);
    assert_memory_equal(slot_there, slot, sizeof *slot * CHANNELS);
    cuda->release(changes_there);
    free(place), free(slot), free(place_there), free(slot_there);
}

/* Whether an element's row is in a group, and deferred. */
static bool *in_group(const struct rows_case *c, uint32_t key, int group)
{
    struct rows_case one = *c;
    one.groups = (uint64_t)1 << group;
    one.with_leaving = false;
    return members(&one, key);
}

/* A taken gradient arrives on one stream and is gathered on another; one group's window is packed
 * and leaves on a third; what the host makes of it arrives on the first; and it is read on the
 * second. Events alone order them. gradient: pinned, bf16. Returns the parameters, flat, bf16. */
static uint16_t *round_trip(const struct rows_case *c, uint32_t key, int group, uint16_t *gradient)
{
    const size_t n = first_of(SHAPES), bytes = sizeof(uint16_t) * n;
    const struct channel_set all = {c->n_groups, true, UINT64_MAX};
    struct stream *up = cuda->stream_create(STREAM_BEHIND),
                  *down = cuda->stream_create(STREAM_BEHIND);
    struct event *arrived = cuda->event_create(), *gathered = cuda->event_create();
    struct event *left = cuda->event_create(), *updated = cuda->event_create();
    const float one = 1;
    float *window = cuda->allocate(sizeof *window * n);
    uint16_t *g = cuda->allocate(bytes), *param = cuda->allocate(bytes);
    uint16_t *packed = cuda->allocate(bytes), *unpacked = cuda->allocate(bytes);
    uint16_t *exchange = cuda->allocate_host(bytes);
    float *scale = cuda_upload(cuda, &one, sizeof one);
    struct packed_rows rows = {
        .memory = packed, .n = n, .group = group, .n_groups = c->n_groups, .on_device = true};
    struct table t = table_create(
        cuda, c, key,
        (struct arrays){
            .deferred = (char *)g, .window = window, .values = (char *)param, .dtype = DTYPE_BF16});
    cuda->zero(cuda->compute, window, sizeof(float) * n);
    cuda->zero(cuda->compute, param, bytes);
    cuda->copy(up, g, gradient, bytes);
    cuda->event_record(arrived, up);
    cuda->event_order(cuda->compute, arrived);
    for (int i = 0; i < 3; i++)
        cuda->row_ops->accumulate_rows(cuda->compute, &t.batch, DTYPE_BF16, &all, 0, scale);
    cuda->event_record(gathered, cuda->compute);
    cuda->event_order(down, gathered);
    cuda->row_ops->send_rows(down, &t.batch, DTYPE_BF16, &rows, 3);
    cuda->copy(down, exchange, packed, bytes);
    cuda->event_record(left, down);
    cuda->event_wait(left);
    for (size_t i = 0; i < n; i++)
        exchange[i] ^= 0x8000u;
    cuda->copy(up, unpacked, exchange, bytes);
    rows.memory = unpacked;
    cuda->row_ops->receive_rows(up, &t.batch, DTYPE_BF16, &rows);
    cuda->event_record(updated, up);
    cuda->event_order(cuda->compute, updated);
    param = off_device(param, bytes);
    table_destroy(&t);
    cuda->release(g);
    cuda->release(window);
    cuda->release(scale);
    cuda->release(packed);
    cuda->release(unpacked);
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
        const size_t n = first_of(SHAPES);
        const int group = (int)k % rows_cases[k].n_groups;
        bool *in = in_group(&rows_cases[k], k, group);
        char *values = values_as(DTYPE_BF16, n, 6);
        uint16_t *gradient = pinned(values, sizeof *gradient * n);
        uint16_t *param = round_trip(&rows_cases[k], k, group, gradient);
        for (size_t i = 0; i < n; i++) {
            const float x = bf16_to_f32(gradient[i]), sum = (x + x) + x;
            const uint16_t expected = in[i] ? bf16_from_f32(-(sum / 3)) : 0;
            if (param[i] != expected)
                fail_msg("case %u: element %zu is %#x, expected %#x", k, i, param[i], expected);
        }
        free(param);
        free(values);
        free(in);
        cuda->release_host(gradient);
    }
}

/* No operator touches anything where there are no matrices, or none with rows. */
static void nothing_of_nothing(void **state)
{
    (void)state;
    const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const struct adamw rule = {.lr = 1};
    float *x = cuda_upload(cuda, values, sizeof values), *host = pinned(values, sizeof values);
    const struct channel_set set = {.n_groups = 1, .groups = 1, .with_leaving = true};
    const struct packed_rows packed = {.memory = x, .n = 8, .n_groups = 1, .on_device = true};
    struct matrix_rows rows[2] = {
        {.values = x, .deferred = x, .waiting = x, .window = x, .cols = 4},
        {.values = x, .deferred = x, .waiting = x, .window = x, .cols = 9}};
    struct matrix_rows *table = (struct matrix_rows *)matrix_batch_upload(cuda, rows, 2).matrices;
    const struct row_ops *row_ops = cuda->row_ops;
    struct stream *s = cuda->compute;
    for (int n = 0; n <= 2; n++) {
        const struct matrix_batch none = matrix_batch_part(rows, table, 0, n);
        row_ops->take_rows(s, &none, DTYPE_F32);
        row_ops->take_rows(s, &none, DTYPE_BF16);
        row_ops->adamw_rows(s, &none, NULL, 0, ROWS_GRADIENT, &rule, x, true);
        row_ops->accumulate_rows(s, &none, DTYPE_F32, &set, 0, x);
        row_ops->accumulate_rows(s, &none, DTYPE_BF16, &set, 0, x);
        row_ops->stage_rows(s, &none, DTYPE_F32, &set);
        row_ops->send_rows(s, &none, DTYPE_F32, &packed, 2);
        row_ops->receive_rows(s, &none, DTYPE_F32, &packed);
    }
    row_ops->copy_rows(s, x, NULL, host, NULL, 0, 4);
    row_ops->select_rows(s, (unsigned char *)x, x, 0, 0);
    const struct carried_rows nobody = {.state = x, .on_device = true};
    const struct matrix_batch all = matrix_batch_part(rows, table, 0, 2);
    row_ops->carry_rows(s, &all, &nobody, true);
    row_ops->change_places(s, (unsigned char *)x, (int *)x, NULL, 0);
    x = off_device(x, sizeof values);
    assert_memory_equal(x, values, sizeof values);
    assert_memory_equal(host, values, sizeof values);
    free(x);
    cuda->release(table);
    cuda->release_host(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_gather),          cmocka_unit_test(rows_are_staged),
        cmocka_unit_test(rows_leave),           cmocka_unit_test(rows_arrive),
        cmocka_unit_test(rows_are_copied),      cmocka_unit_test(bf16_is_widened),
        cmocka_unit_test(events_order_streams), cmocka_unit_test(state_is_carried),
        cmocka_unit_test(places_change),        cmocka_unit_test(rows_are_shared),
        cmocka_unit_test(nothing_of_nothing),
    };
    run_in_every_order("cuda_rows", tests);
}
