/* model/cpu: rows that the engine takes, and that gather, leave and arrive, with every byte outside
 * the set of rows untouched. */
#include "tests/unit/rows_testing.h"

#include "data/bf16.h"

/* Rows that are taken, gather, leave and arrive: matrices that differ in everything. */

static const struct {
    int cols, n_rows, index;
    int first, rows; /* which rows they are, of how many */
} shapes[] = {{33, 203, 2, 0, 203},  {64, 1, 63, 900, 1801},  {5, 0, 3, 7, 7},
              {1, 203, 0, 203, 406}, {1333, 57, 5, 100, 200}, {7, 60, 1, 5, 80}};

enum { SHAPES = sizeof shapes / sizeof *shapes, MOST_ROWS = 203 };

struct rows_case {
    int n_groups;
    uint64_t groups, fresh;
    bool with_leaving;
    int first, last; /* which matrices the operator is given */
};

static const struct rows_case rows_cases[] = {
    {4, 0x5, 0x4, false, 0, 6}, {64, 0x8000000000000003, 0x2, true, 0, 6},
    {1, 1, 1, true, 1, 5},      {3, 7, 0, true, 4, 6},
    {3, 0, 7, false, 0, 6},     {2, 3, 1, false, 2, 3},
};

/* A table; element i of its flat arrays, matrix after matrix, is of the set,
 * and of a fresh group. */
struct table {
    struct matrix_rows rows[SHAPES];
    struct matrix_batch batch;
    struct channel_set set;
    unsigned char place[SHAPES][MOST_ROWS];
    size_t n;
    bool *in, *fresh;
};

static struct matrix_part part_of(int k)
{
    return (struct matrix_part){shapes[k].index, shapes[k].first, shapes[k].rows, shapes[k].cols};
}

static void describe_elements(struct table *t, const struct rows_case *c)
{
    size_t at = 0;
    for (int k = 0; k < SHAPES; k++) {
        const struct matrix_part part = part_of(k);
        const struct row_groups groups = row_groups_of(&part, c->n_groups);
        for (int i = 0; i < shapes[k].n_rows * shapes[k].cols; i++, at++) {
            const int row = i / shapes[k].cols, group = row_groups_group(&groups, row);
            const unsigned char place = t->place[k][row];
            t->fresh[at] = c->fresh >> group & 1;
            t->in[at] =
                k >= c->first && k < c->last && (c->groups >> group & 1) &&
                (place == CHANNEL_DEFERRED || (place == CHANNEL_LEAVING && c->with_leaving));
        }
    }
}

static void table_create(struct table *t, const struct rows_case *c)
{
    *t = (struct table){
        .set = {.n_groups = c->n_groups, .groups = c->groups, .with_leaving = c->with_leaving}};
    for (int k = 0; k < SHAPES; k++) {
        t->rows[k] = (struct matrix_rows){.place = t->place[k],
                                          .n_rows = shapes[k].n_rows,
                                          .cols = shapes[k].cols,
                                          .part = part_of(k)};
        for (int i = 0; i < MOST_ROWS; i++)
            t->place[k][i] =
                (unsigned char)(random_bits((size_t)(k * MOST_ROWS + i), 7) % CHANNEL_PLACES);
        t->n += (size_t)shapes[k].n_rows * (size_t)shapes[k].cols;
    }
    t->in = zf_malloc(t->n);
    t->fresh = zf_malloc(t->n);
    describe_elements(t, c);
    matrix_batch_number(t->rows, SHAPES);
    t->batch = matrix_batch_part(t->rows, t->rows, c->first, c->last);
}

static void table_destroy(struct table *t)
{
    free(t->in);
    free(t->fresh);
}

/* Where matrix k begins in the flat arrays. */
static size_t first_of(int k)
{
    return k == 0 ? 0 : first_of(k - 1) + (size_t)shapes[k - 1].n_rows * (size_t)shapes[k - 1].cols;
}

#define for_each_case(c)                                                                           \
    for (const struct rows_case *c = rows_cases;                                                   \
         c < rows_cases + sizeof rows_cases / sizeof *rows_cases; c++)

static uint16_t *rounded(const float *x, size_t n)
{
    uint16_t *half = zf_malloc(sizeof *half * n);
    for (size_t i = 0; i < n; i++)
        half[i] = bf16_from_f32(x[i]);
    return half;
}

/* Rows are taken to slots in an order that is not theirs, of which there are some more than rows;
 * those that do not wait have none. */
enum { TAKEN_SLOTS = 211 };

static int slot_of(const struct table *t, int k, int row)
{
    const unsigned char place = t->place[k][row];
    const bool waits = place != CHANNEL_DEFERRED && place != CHANNEL_LEAVING;
    return waits ? (row * 100 + 17) % TAKEN_SLOTS : -1;
}

/* Where matrix k's slots begin in a flat array; of SHAPES, its length. */
static size_t first_slot(int k)
{
    return k == 0 ? 0 : first_slot(k - 1) + (size_t)TAKEN_SLOTS * (size_t)shapes[k - 1].cols;
}

/* Flat arrays that a gradient is taken to. */
struct taken {
    size_t deferred_bytes, waiting_bytes;
    char *deferred; /* some dtype */
    float *waiting, norms[SHAPES][MOST_ROWS];
    int slot[SHAPES][MOST_ROWS];
};

static void taken_create(struct taken *to, const struct table *t, enum dtype dtype)
{
    to->deferred_bytes = dtype_size(dtype) * t->n;
    to->waiting_bytes = sizeof(float) * first_slot(SHAPES);
    to->deferred = (char *)random_array(t->n, 8);
    to->waiting = random_array(first_slot(SHAPES), 9);
    for (int k = 0; k < SHAPES; k++)
        for (int row = 0; row < MOST_ROWS; row++) {
            to->norms[k][row] = -1;
            to->slot[k][row] = slot_of(t, k, row);
        }
}

static void taken_destroy(struct taken *to)
{
    free(to->deferred);
    free(to->waiting);
}

static void take(struct table *t, struct taken *to, float *gradient, enum dtype dtype)
{
    for (int k = 0; k < SHAPES; k++) {
        struct matrix_rows *m = &t->rows[k];
        m->gradient = gradient + first_of(k);
        m->norms = to->norms[k];
        m->slot = to->slot[k];
        m->deferred = to->deferred + dtype_size(dtype) * first_of(k);
        m->waiting = to->waiting + first_slot(k);
    }
    ROW_OPS->take_rows(COMPUTE, &t->batch, dtype);
}

/* The plain version of it, for one row. */
static void expect_taken(struct taken *to, int k, int row, const float *gradient, enum dtype dtype)
{
    const int cols = shapes[k].cols, slot = to->slot[k][row];
    const size_t at = first_of(k) + (size_t)(row * cols);
    double sum = 0;
    for (int j = 0; j < cols; j++) {
        const float x = gradient[at + (size_t)j];
        if (slot >= 0)
            to->waiting[first_slot(k) + (size_t)(slot * cols + j)] = x;
        else if (dtype == DTYPE_F32)
            ((float *)to->deferred)[at + (size_t)j] = x;
        else
            ((uint16_t *)to->deferred)[at + (size_t)j] = bf16_from_f32(x);
        sum += (double)x * x;
    }
    to->norms[k][row] = (float)sum;
}

static void take_and_check(const struct rows_case *c, enum dtype dtype)
{
    struct table t;
    struct taken got, expected;
    table_create(&t, c);
    taken_create(&got, &t, dtype);
    taken_create(&expected, &t, dtype);
    float *gradient = random_array(t.n, 1);
    take(&t, &got, gradient, dtype);
    for (int k = c->first; k < c->last; k++)
        for (int row = 0; row < shapes[k].n_rows; row++)
            expect_taken(&expected, k, row, gradient, dtype);
    assert_memory_equal(got.deferred, expected.deferred, expected.deferred_bytes);
    assert_memory_equal(got.waiting, expected.waiting, expected.waiting_bytes);
    for (int k = 0; k < SHAPES; k++)
        for (int row = 0; row < MOST_ROWS; row++)
            assert_near("norm", got.norms[k][row], expected.norms[k][row], 1e-5);
    free(gradient);
    taken_destroy(&got);
    taken_destroy(&expected);
    table_destroy(&t);
}

/* Each row of the batch to where its channel's place says, and nothing else. */
static void rows_are_taken(void **state)
{
    (void)state;
    for_each_case(c)
    {
        take_and_check(c, DTYPE_F32);
        take_and_check(c, DTYPE_BF16);
    }
}

/* Norms are the same bits whether a matrix is taken alone or with all others, wherever its rows lie
 * and go, and as what. */
static void norms_are_those_of_any_batch(void **state)
{
    (void)state;
    struct table t;
    struct taken together, alone;
    table_create(&t, &rows_cases[0]);
    float *gradient = random_array(t.n, 1), *shifted = zf_malloc(sizeof *shifted * (t.n + 3));
    taken_create(&together, &t, DTYPE_F32);
    take(&t, &together, gradient, DTYPE_F32);
    for (int shift = 0; shift < 4; shift++) {
        for (int i = 0; i < SHAPES * MOST_ROWS; i++)
            t.place[i / MOST_ROWS][i % MOST_ROWS] =
                (unsigned char)((t.place[i / MOST_ROWS][i % MOST_ROWS] + 1) % CHANNEL_PLACES);
        taken_create(&alone, &t, DTYPE_F32);
        memcpy(shifted + shift, gradient, sizeof *gradient * t.n);
        for (int k = 0; k < SHAPES; k++) {
            t.batch = matrix_batch_part(t.rows, t.rows, k, k + 1);
            take(&t, &alone, shifted + shift, shift % 2 ? DTYPE_BF16 : DTYPE_F32);
        }
        assert_memory_equal(alone.norms, together.norms, sizeof together.norms);
        taken_destroy(&alone);
    }
    taken_destroy(&together);
    free(gradient);
    free(shifted);
    table_destroy(&t);
}

static void gather(const struct rows_case *c, enum dtype dtype)
{
    struct table t;
    table_create(&t, c);
    float *window = random_array(t.n, 1), *gradient = random_array(t.n, 2);
    uint16_t *half = rounded(gradient, t.n);
    float *before = copy_of(window, sizeof(float) * t.n);
    const float scale = 0.25f, skipped = 0;
    for (int k = 0; k < SHAPES; k++) {
        t.rows[k].window = window + first_of(k);
        t.rows[k].deferred =
            dtype == DTYPE_F32 ? (void *)(gradient + first_of(k)) : half + first_of(k);
    }
    gradient[0] = NAN;
    half[0] = bf16_from_f32(NAN);
    ROW_OPS->accumulate_rows(COMPUTE, &t.batch, dtype, &t.set, c->fresh, &skipped);
    assert_memory_equal(window, before, sizeof(float) * t.n);
    gradient[0] = 1;
    half[0] = bf16_from_f32(1);
    ROW_OPS->accumulate_rows(COMPUTE, &t.batch, dtype, &t.set, c->fresh, &scale);
    for (size_t i = 0; i < t.n; i++) {
        const double x = dtype == DTYPE_F32 ? gradient[i] : bf16_to_f32(half[i]);
        if (t.in[i])
            assert_near("window", window[i], (t.fresh[i] ? 0 : (double)before[i]) + 0.25 * x, 1e-7);
        else
            assert_memory_equal(window + i, before + i, sizeof *window);
    }
    free(window);
    free(gradient);
    free(half);
    free(before);
    table_destroy(&t);
}

static void rows_gather(void **state)
{
    (void)state;
    for_each_case(c)
    {
        gather(c, DTYPE_F32);
        gather(c, DTYPE_BF16);
    }
}

/* Taken gradients leave into `staged`, as they are. */
static void stage(const struct rows_case *c)
{
    struct table t;
    table_create(&t, c);
    float *src = random_array(t.n, 1), *f32 = random_array(t.n, 2), *half = random_array(t.n, 3);
    float *f32_before = copy_of(f32, 4 * t.n);
    uint16_t *half_before = copy_of(half, 2 * t.n), *bf16 = (uint16_t *)half;
    uint16_t *half_src = rounded(src, t.n);
    for (int wide = 0; wide < 2; wide++) {
        for (int k = 0; k < SHAPES; k++) {
            t.rows[k].deferred = wide ? (void *)(src + first_of(k)) : half_src + first_of(k);
            t.rows[k].staged = wide ? (void *)(f32 + first_of(k)) : bf16 + first_of(k);
        }
        ROW_OPS->stage_rows(COMPUTE, &t.batch, wide ? DTYPE_F32 : DTYPE_BF16, &t.set);
    }
    for (size_t i = 0; i < t.n; i++) {
        assert_true(f32[i] == (t.in[i] ? src[i] : f32_before[i]));
        assert_true(bf16[i] == (t.in[i] ? bf16_from_f32(src[i]) : half_before[i]));
    }
    free(src);
    free(f32);
    free(half);
    free(f32_before);
    free(half_before);
    free(half_src);
    table_destroy(&t);
}

static void rows_are_staged(void **state)
{
    (void)state;
    for_each_case(c) stage(c);
}

/* Where a group's rows lie packed, by counting: of each element its place, or SIZE_MAX. Between
 * matrices is a gap. Returns how many places there are. */
static size_t place_elements(struct table *t, const struct rows_case *c, int group, size_t *places)
{
    size_t at = 0, i = 0;
    for (int k = 0; k < SHAPES; k++) {
        const struct matrix_part part = part_of(k);
        const struct row_groups groups = row_groups_of(&part, c->n_groups);
        const bool given = k >= c->first && k < c->last;
        t->rows[k].packed = at;
        for (int row = 0; row < shapes[k].n_rows; row++) {
            const bool in = given && row_groups_group(&groups, row) == group;
            for (int col = 0; col < shapes[k].cols; col++)
                places[i++] = in ? at++ : SIZE_MAX;
        }
        at += 8;
    }
    return at;
}

/* Rows that are meant of one group: all, or those that begin in the middle third of the places,
 * from a row's begin on. */
static struct packed_rows choose_rows(const struct rows_case *c, int group, const size_t *places,
                                      size_t n, bool some)
{
    struct packed_rows p = {.n = n, .group = group, .n_groups = c->n_groups};
    for (int k = 0; k < SHAPES && some; k++)
        for (int row = 0; row < shapes[k].n_rows; row++) {
            const size_t at = places[first_of(k) + (size_t)row * (size_t)shapes[k].cols];
            if (at <= n / 3)
                p.first = at;
            if (at <= 2 * n / 3)
                p.n = at - p.first;
        }
    return p;
}

/* Of each element the place in p->memory that it is to have, or SIZE_MAX. */
static void keep_meant(const struct table *t, const struct packed_rows *p, bool arrives,
                       size_t *places)
{
    for (int k = 0; k < SHAPES; k++)
        for (int row = 0; row < shapes[k].n_rows; row++) {
            size_t *row_places = places + first_of(k) + (size_t)row * (size_t)shapes[k].cols;
            const size_t begin = row_places[0];
            const unsigned char place = t->place[k][row];
            const bool meant =
                begin != SIZE_MAX && begin >= p->first && begin < p->first + p->n &&
                (place == CHANNEL_DEFERRED || (!arrives && place == CHANNEL_ENTERING));
            for (int col = 0; col < shapes[k].cols; col++)
                row_places[col] = meant ? row_places[col] - p->first : SIZE_MAX;
        }
}

/* Windows leave, divided, or values arrive. */
static void cross(const struct rows_case *c, int group, bool some, bool wide, bool arrives)
{
    struct table t;
    table_create(&t, c);
    size_t *places = zf_malloc(sizeof *places * t.n), met = 0;
    const size_t n = place_elements(&t, c, group, places), size = wide ? 4 : 2;
    struct packed_rows p = choose_rows(c, group, places, n, some);
    keep_meant(&t, &p, arrives, places);
    float *rows = random_array(t.n, 1), *rows_before = copy_of(rows, sizeof(float) * t.n);
    float *noise = random_array(n, 2);
    uint16_t *half = rounded(noise, n);
    void *memory = p.memory = copy_of(wide ? (void *)noise : half, size * n);
    for (int k = 0; k < SHAPES; k++)
        t.rows[k].values = t.rows[k].window = rows + first_of(k);
    const enum dtype dtype = wide ? DTYPE_F32 : DTYPE_BF16;
    if (arrives)
        ROW_OPS->receive_rows(COMPUTE, &t.batch, dtype, &p);
    else
        ROW_OPS->send_rows(COMPUTE, &t.batch, dtype, &p, 3);
    for (size_t i = 0; i < t.n; i++) {
        const bool meant = places[i] != SIZE_MAX;
        met += meant;
        if (meant && arrives)
            rows_before[i] = wide ? noise[places[i]] : bf16_to_f32(half[places[i]]);
        else if (meant && wide)
            noise[places[i]] = rows[i] / 3;
        else if (meant)
            half[places[i]] = bf16_from_f32(rows[i] / 3);
    }
    assert_memory_equal(rows, rows_before, sizeof(float) * t.n);
    assert_memory_equal(memory, wide ? (void *)noise : half, size * n);
    assert_true(met > 0 || c->n_groups > 1);
    free(places);
    free(rows);
    free(rows_before);
    free(noise);
    free(half);
    free(memory);
    table_destroy(&t);
}

static void rows_cross(bool arrives)
{
    for_each_case(c)
    {
        for (int group = 0; group < c->n_groups; group += 1 + c->n_groups / 5)
            for (int form = 0; form < 4; form++)
                cross(c, group, form & 1, form & 2, arrives);
    }
}

static void rows_leave(void **state)
{
    (void)state;
    rows_cross(false);
}

static void rows_arrive(void **state)
{
    (void)state;
    rows_cross(true);
}

static void rows_are_copied(void **state)
{
    (void)state;
    static const size_t row_bytes[] = {2, 6, 64, 4094};
    enum { N = 23, FROM = 40, MANY = 60 };
    int to[N], from[N];
    for (int i = 0; i < N; i++) {
        to[i] = (i * 7 + 3) % MANY; /* rows of dst that differ */
        from[i] = (int)(random_bits(i, 5) % FROM);
    }
    for (int k = 0; k < 16; k++) {
        const size_t width = row_bytes[k % 4];
        const int *dst_row = k & 4 ? to : NULL, *src_row = k & 8 ? from : NULL;
        char *src = (char *)random_array(width * FROM / 4, 1);
        char *dst = (char *)random_array(width * MANY / 4, 2);
        char *expected = copy_of(dst, width * MANY);
        for (int i = 0; i < N; i++)
            memcpy(expected + width * (size_t)(dst_row ? dst_row[i] : i),
                   src + width * (size_t)(src_row ? src_row[i] : i), width);
        ROW_OPS->copy_rows(COMPUTE, dst, dst_row, src, src_row, N, width);
        assert_memory_equal(dst, expected, width * MANY);
        free(src);
        free(dst);
        free(expected);
    }
}

static void bf16_is_widened(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 37, 40000};
    for (size_t k = 0; k < 4; k++) {
        const size_t n = lengths[k];
        uint16_t *parameters = zf_malloc(sizeof *parameters * (n + 1));
        float *values = random_array(n + 1, 3), behind = values[n];
        for (size_t i = 0; i < n; i++)
            parameters[i] = (uint16_t)random_bits(i, 4);
        ROW_OPS->widen(COMPUTE, values, parameters, n);
        for (size_t i = 0; i < n; i++) {
            const float expected = bf16_to_f32(parameters[i]);
            assert_memory_equal(&values[i], &expected, sizeof expected);
        }
        assert_memory_equal(&values[n], &behind, sizeof behind);
        free(parameters);
        free(values);
    }
}

/* State leaves slots for places that are not in their order, or comes from there. */
static void carry(bool to_slots)
{
    enum { N = 40, CARRY_SLOTS = 53 };
    static const int cols[] = {33, 8, 1};
    struct matrix_rows rows[3];
    struct carried_row carried[N];
    float *state[3][3], *expected[3][3], *packed = random_array(N * 100, 9);
    float *all = copy_of(packed, sizeof(float) * N * 100);
    for (int k = 0; k < 3; k++) {
        for (int part = 0; part < 3; part++) {
            state[k][part] =
                random_array((size_t)(CARRY_SLOTS * cols[k]), (uint32_t)(3 * k + part));
            expected[k][part] =
                copy_of(state[k][part], sizeof(float) * (size_t)(CARRY_SLOTS * cols[k]));
        }
        rows[k] = (struct matrix_rows){
            .master = state[k][0], .m = state[k][1], .v = state[k][2], .cols = cols[k]};
    }
    for (int i = 0; i < N; i++) {
        const int k = i % 3, slot = (i * 7 + 5) % CARRY_SLOTS, at = (N - 1 - i) * 100;
        carried[i] = (struct carried_row){.matrix = k, .slot = slot, .row = -1, .at = at};
        for (int j = 0; j < 3 * cols[k]; j++) {
            float *there = &expected[k][j / cols[k]][slot * cols[k] + j % cols[k]];
            if (to_slots)
                *there = packed[at + j];
            else
                all[at + j] = *there;
        }
    }
    const struct matrix_batch batch = {.matrices = rows, .n = 3};
    const struct carried_rows what = {carried, N, packed, N * 100, true};
    ROW_OPS->carry_rows(COMPUTE, &batch, &what, to_slots);
    assert_memory_equal(packed, all, sizeof(float) * N * 100);
    for (int i = 0; i < 9; i++) {
        float *got = state[i / 3][i % 3], *right = expected[i / 3][i % 3];
        assert_memory_equal(got, right, sizeof(float) * (size_t)(CARRY_SLOTS * cols[i / 3]));
        free(got);
        free(right);
    }
    free(packed);
    free(all);
}

static void state_is_carried(void **state)
{
    (void)state;
    carry(false);
    carry(true);
}

/* Rows of two matrices that changed, of which a rank owns those from row 3 on, go into memory and
 * back to others' values: those of runs that are given, and no more. */
static void rows_are_shared(void **state)
{
    (void)state;
    enum { COLS = 9, LONG = 2 * ROW_PIECE + 1, ROWS_OF = 8, OWNED = 3 };
    const int rows[] = {1, 4, 7, 0, 3, 6};
    const struct shared_run runs[] = {{0, 0, 2, 0, 0}, {1, 2, 1, 2, 50}, {1, 4, 2, 5, 50 + LONG}};
    const size_t n = 50 + 3 * LONG;
    for (int form = 0; form < 4; form++) {
        const bool pack = form & 1, all = form & 2;
        float *values = random_array(ROWS_OF * (COLS + LONG), 1), *packed = random_array(n, 2);
        float *right = copy_of(values, sizeof(float) * ROWS_OF * (COLS + LONG));
        float *right_packed = copy_of(packed, sizeof(float) * n);
        struct matrix_rows m[2] = {
            {.values = values + OWNED * COLS, .cols = COLS, .part = {.first = OWNED}},
            {.values = values + ROWS_OF * COLS, .cols = LONG}};
        for (int i = all ? 0 : 1; i < 3; i++)
            for (int k = 0; k < runs[i].n; k++) {
                const size_t cols = runs[i].matrix ? LONG : COLS;
                float *row = right + (runs[i].matrix ? ROWS_OF * COLS : 0) +
                             (size_t)rows[runs[i].first + k] * cols;
                float *place = right_packed + runs[i].at + (size_t)k * cols;
                memcpy(pack ? place : row, pack ? row : place, sizeof(float) * cols);
            }
        const struct matrix_batch batch = {.matrices = m, .n = 2};
        const struct shared_rows shared = {.runs = all ? runs : runs + 1,
                                           .n_runs = all ? 3 : 2,
                                           .rows = rows,
                                           .first_piece = all ? 0 : 2,
                                           .n_pieces = all ? 11 : 9,
                                           .memory = packed};
        ROW_OPS->share_rows(COMPUTE, &batch, &shared, pack);
        assert_memory_equal(values, right, sizeof(float) * ROWS_OF * (COLS + LONG));
        assert_memory_equal(packed, right_packed, sizeof(float) * n);
        free(values), free(packed), free(right), free(right_packed);
    }
}

static void places_change(void **state)
{
    (void)state;
    unsigned char place[] = {0, 1, 2, 3, 4, 0};
    const unsigned char expected[] = {0, 2, 2, 3, 1, 4};
    int slot[] = {-1, 5, -1, 6, 7, -1};
    const int slots[] = {-1, -1, -1, 6, 7, 5};
    const struct channel_change changes[] = {
        {4, CHANNEL_IMPORTANT, 7}, {1, CHANNEL_LEAVING, -1}, {5, CHANNEL_ENTERING, 5}};
    ROW_OPS->change_places(COMPUTE, place, slot, changes, 3);
    assert_memory_equal(place, expected, sizeof place);
    assert_memory_equal(slot, slots, sizeof slot);
}

/* No operator touches anything where there are no matrices, or none with rows. */
static void nothing_of_nothing(void **state)
{
    (void)state;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    const struct adamw rule = {0};
    const struct channel_set set = {.n_groups = 1, .groups = 1, .with_leaving = true};
    const struct packed_rows packed = {.memory = x, .n = 8, .n_groups = 1};
    struct matrix_rows rows[2] = {
        {.values = x, .deferred = x, .waiting = x, .window = x, .cols = 4, .part = {.cols = 4}},
        {.values = x, .deferred = x, .waiting = x, .window = x, .cols = 9, .part = {.cols = 9}}};
    memcpy(y, x, sizeof x);
    matrix_batch_number(rows, 2);
    for (int n = 0; n <= 2; n++) {
        const struct matrix_batch none = matrix_batch_part(rows, rows, 0, n);
        ROW_OPS->take_rows(COMPUTE, &none, DTYPE_F32);
        ROW_OPS->adamw_rows(COMPUTE, &none, NULL, 0, ROWS_GRADIENT, &rule, x, false);
        ROW_OPS->accumulate_rows(COMPUTE, &none, DTYPE_F32, &set, 0, x);
        ROW_OPS->stage_rows(COMPUTE, &none, DTYPE_F32, &set);
        ROW_OPS->send_rows(COMPUTE, &none, DTYPE_F32, &packed, 2);
        ROW_OPS->receive_rows(COMPUTE, &none, DTYPE_F32, &packed);
    }
    ROW_OPS->copy_rows(COMPUTE, x, NULL, x, NULL, 0, 4);
    ROW_OPS->select_rows(COMPUTE, (unsigned char *)x, x, 0, 0);
    const struct carried_rows nobody = {.state = x};
    const struct matrix_batch all = matrix_batch_part(rows, rows, 0, 2);
    ROW_OPS->carry_rows(COMPUTE, &all, &nobody, true);
    ROW_OPS->change_places(COMPUTE, (unsigned char *)x, (int *)x, NULL, 0);
    assert_memory_equal(x, y, sizeof x);
}

/* Numbers go through a table, and a part of it begins with its first matrix's. */
static void tables_are_numbered(void **state)
{
    (void)state;
    struct matrix_rows rows[] = {{.n_rows = 9, .cols = ROW_PIECE},
                                 {.n_rows = 1, .cols = ROW_PIECE + 1},
                                 {.n_rows = 0, .cols = 5},
                                 {.n_rows = 3, .cols = NORM_LONG_ROW}};
    static const int pieces[] = {0, 9, 11, 11, 11 + 3 * (NORM_LONG_ROW / ROW_PIECE)};
    static const int norm_pieces[] = {0, 2, 3, 3, 6};
    matrix_batch_number(rows, 4);
    for (int first = 0; first < 4; first++)
        for (int last = first; last <= 4; last++) {
            const struct matrix_batch b = matrix_batch_part(rows, rows, first, last);
            assert_int_equal(b.n, last - first);
            assert_int_equal(b.n_pieces, pieces[last] - pieces[first]);
            assert_int_equal(b.n_norm_pieces, norm_pieces[last] - norm_pieces[first]);
            if (b.n > 0) {
                assert_int_equal(b.first_piece, pieces[first]);
                assert_int_equal(b.first_norm_piece, norm_pieces[first]);
                assert_int_equal(b.matrices[0].first_piece, pieces[first]);
            }
        }
}

/* The same bits on any number of threads. */
static void same_bits_on_any_threads(void **state)
{
    (void)state;
    struct table t;
    struct taken taken[2];
    table_create(&t, &rows_cases[0]);
    float *gradient = random_array(t.n, 1);
    for (int i = 0; i < 2; i++) {
        taken_create(&taken[i], &t, DTYPE_BF16);
        device = device_cpu(i ? 3 : 1);
        take(&t, &taken[i], gradient, DTYPE_BF16);
    }
    device = device_cpu(2);
    assert_memory_equal(taken[0].norms, taken[1].norms, sizeof taken[0].norms);
    assert_memory_equal(taken[0].deferred, taken[1].deferred, taken[0].deferred_bytes);
    assert_memory_equal(taken[0].waiting, taken[1].waiting, taken[0].waiting_bytes);
    taken_destroy(&taken[0]);
    taken_destroy(&taken[1]);
    free(gradient);
    table_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_taken),      cmocka_unit_test(norms_are_those_of_any_batch),
        cmocka_unit_test(tables_are_numbered), cmocka_unit_test(rows_gather),
        cmocka_unit_test(rows_are_staged),     cmocka_unit_test(rows_leave),
        cmocka_unit_test(rows_arrive),         cmocka_unit_test(rows_are_copied),
        cmocka_unit_test(bf16_is_widened),     cmocka_unit_test(state_is_carried),
        cmocka_unit_test(places_change),       cmocka_unit_test(rows_are_shared),
        cmocka_unit_test(nothing_of_nothing),  cmocka_unit_test(same_bits_on_any_threads),
    };
    return cmocka_run_group_tests_name("ops_rows", tests, set_up, NULL);
}
