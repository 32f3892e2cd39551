/* Matrix products, and the sums that are biases' gradients. */
#include "data/address_space.h"
#include "data/alloc.h"
#include "data/simd.h"
#include "model/cpu/cpu.h"
#include "model/cpu/tile.h"

#include <errno.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP && DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error "oneDNN must be one that is built with OpenMP: another's threads cannot be told to stay away"
#endif

/* oneDNN makes its kernels for the processor that it finds, as the program runs. Its sums may
 * depend on how many threads share a product; so c is cut into tiles, by its shape alone, and each
 * is a product of its own on one thread.
 *
 * Each tile packs its rows of a and columns of b anew, so tiles are as large as leaves some for
 * sixteen threads, and in the end so large that packing costs less than a tenth. A tile with what
 * it needs stays in a cache of 1 MiB, and so does what follows the product. */
#define ENOUGH_TILES     16
#define MIN_TILE         (128 * 192) /* elements: no tile is cut below that */
#define MAX_TILE         (384 * 768)
#define TILE_ROW_UNIT    8 /* those of oneDNN's innermost loop */
#define TILE_COLUMN_UNIT 48

const char *device_cpu_products(void)
{
    static char text[64];
    const dnnl_version_t *version = dnnl_version();
    const unsigned isa = dnnl_get_effective_cpu_isa();
    const char *name = (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core ? "AVX-512"
                       : (isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2             ? "AVX2"
                                                                        : "without AVX2";
    snprintf(text, sizeof text, "oneDNN %d.%d.%d, %s", version->major, version->minor,
             version->patch, name);
    return text;
}

struct tiles {
    int rows, cols;       /* of a tile; of the last ones perhaps less */
    int n_down, n_across; /* tiles */
};

static int half(int n, int unit)
{
    return divide_up(divide_up(n, 2), unit) * unit;
}

static struct tiles cut(int m, int n)
{
    struct tiles t = {m, n, 1, 1};
    for (;;) {
        const size_t size = (size_t)t.rows * t.cols;
        const bool enough = t.n_down * t.n_across >= ENOUGH_TILES || size < 2 * MIN_TILE;
        if (size <= MAX_TILE && enough)
            return t;
        if (t.cols > 2 * t.rows || t.rows <= TILE_ROW_UNIT)
            t.cols = half(t.cols, TILE_COLUMN_UNIT);
        else
            t.rows = half(t.rows, TILE_ROW_UNIT);
        t.n_down = divide_up(m, t.rows);
        t.n_across = divide_up(n, t.cols);
    }
}

double device_cpu_product_share(int m, int n, int n_threads)
{
    const struct tiles t = cut(m, n);
    const int n_tiles = t.n_down * t.n_across;
    return (double)n_tiles / (divide_up(n_tiles, n_threads) * n_threads);
}

/* What oneDNN takes for the kernels that it makes, and on each thread for what it packs; where it
 * finds none it may crash. Twice and more of what it was seen to take. */
#define ROOM_FOR_KERNELS ((size_t)32 << 20)
#define ROOM_FOR_PACKING ((size_t)4 << 20)

static bool is_plain(const struct matmul *p)
{
    return !p->bias && !p->pre && p->act == ACT_NONE;
}

/* Columns [first, first + n) of c, and what of b they are made of: (k, n), or transposed (n, k),
 * rows at distance ld. Sums are made in runs of at most `run` of the inner length, each added to
 * those before it, and within a run as oneDNN does. */
struct panel {
    int first, n;
    const float *b;
    size_t ld;
    bool trans;
    int run;
};

/* A tile of c = op(a) op(b), or of c += it: rows from `row`, columns from `col` of the panel's. */
static void multiply(float *c, const float *a, const struct panel *panel, const struct matmul *p,
                     bool accumulate, int row, int rows, int col, int cols)
{
    const size_t lda = p->trans_a ? p->m : p->k, ldb = panel->ld, ldc = p->n;
    const size_t a_step = p->trans_a ? lda : 1, b_step = panel->trans ? 1 : ldb;
    const float *a_tile = a + row * (p->trans_a ? 1 : lda);
    const float *b_tile = panel->b + col * (panel->trans ? ldb : 1);
    for (int l = 0; l < p->k; l += panel->run) {
        const dnnl_status_t status =
            dnnl_sgemm(p->trans_a ? 'T' : 'N', panel->trans ? 'T' : 'N', rows, cols,
                       min_int(panel->run, p->k - l), 1.0f, a_tile + l * a_step, (dnnl_dim_t)lda,
                       b_tile + l * b_step, (dnnl_dim_t)ldb, accumulate || l > 0 ? 1.0f : 0.0f,
                       c + row * ldc + panel->first + col, (dnnl_dim_t)ldc);
        if (status != dnnl_success) {
            fprintf(stderr, "%s: oneDNN could not multiply matrices (its status is %d)\n",
                    program_invocation_short_name, status);
            _exit(1);
        }
    }
}

static void multiply_panel(float *c, const float *a, const struct panel *panel,
                           const struct matmul *p, bool accumulate)
{
    const struct tiles t = cut(p->m, panel->n);
    const int n_tiles = t.n_down * t.n_across;
    address_space_need(ROOM_FOR_KERNELS + ROOM_FOR_PACKING * (size_t)omp_get_max_threads(),
                       "matrix products");
#pragma omp parallel if (n_tiles > 1)
    {
        omp_set_num_threads(1); /* of this thread alone: how many oneDNN may have */
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < n_tiles; i++) {
            const int row = i % t.n_down * t.rows, col = i / t.n_down * t.cols;
            const int rows = min_int(t.rows, p->m - row), cols = min_int(t.cols, panel->n - col);
            const int first = panel->first + col;
            multiply(c, a, panel, p, accumulate, row, rows, col, cols);
            if (!is_plain(p))
                cpu_finish_product(c, p, row, row + rows, first, first + cols);
        }
    }
}

/* b is moved, once for all tiles, where several of them would each pack the same part of it, and
 * packing is slow. It goes in panels of so many elements, which is the memory that it needs.
 *
 * - A transposed b is turned: its columns are far apart in memory.
 * - A b with rows a whole number of pages apart is copied to where they are not: under the
 *   conditions below oneDNN would pack it, where of others it reads the rows as they lie.
 *
 * Where oneDNN packs, it sums up runs of 384; it does also of a transposed b with rows a whole
 * number of KiB apart. What is moved is summed up in the same runs, so that its bits stay. */
#define PANEL_ELEMENTS ((size_t)4 << 20)
#define ENOUGH_COLUMNS 256 /* of a panel: tiles of fewer would pack too much of a */
#define PANEL_PADDING  16  /* rows of a panel are not pages apart */
#define TURNED         16  /* rows and columns of b that are turned at a time: lines of the cache */
#define PAGE_ELEMENTS  1024
#define PACKED_ROWS    100 /* of c, more than */
#define PACKED_INNER   500 /* length, more than */
#define PACKED_UNIT    256
#define PACKED_RUN     384

/* Columns of a panel. */
static int panel_columns(const struct matmul *p)
{
    const size_t most = PANEL_ELEMENTS / (size_t)p->k / TURNED * TURNED;
    return (size_t)p->n < most ? p->n : (int)most;
}

static bool is_moved(const struct matmul *p)
{
    const struct tiles t = cut(p->m, p->n);
    if (p->k == 0 || t.n_down == 1 || panel_columns(p) < min_int(p->n, ENOUGH_COLUMNS))
        return false;
    if (p->trans_b)
        return true;
    if (p->trans_a) /* where a's rows are pages apart too, it is better packed */
        return p->n % PAGE_ELEMENTS == 0 && p->m % PAGE_ELEMENTS != 0;
    return p->n % PAGE_ELEMENTS == 0 && t.rows > PACKED_ROWS && p->k > PACKED_INNER;
}

static int run_of_moved(const struct matmul *p)
{
    const bool packed = !p->trans_b || p->k % PACKED_UNIT == 0;
    return packed && p->k >= 2 * PACKED_RUN ? PACKED_RUN : p->k; /* less is halved either way */
}

/* dst: (k, rows), its rows at distance ld, = the transpose of src: (rows, k).  rows <= TURNED */
ZF_SIMD
static void turn(float *restrict dst, size_t ld, const float *restrict src, int rows, int k)
{
    const int whole = rows == TURNED ? k / TURNED * TURNED : 0;
    for (int l = 0; l < whole; l += TURNED)
        for (int i = 0; i < TURNED; i += 8)
            for (int j = 0; j < TURNED; j += 8)
                transpose_8x8(dst + (size_t)(l + j) * ld + i, ld, src + (size_t)i * k + l + j,
                              (size_t)k);
    for (int l = whole; l < k; l++)
        for (int i = 0; i < rows; i++)
            dst[(size_t)l * ld + i] = src[(size_t)i * k + l];
}

/* dst: (k, n), its rows at distance ld, = columns [first, first + n) of op(b) */
static void move_panel(float *dst, size_t ld, const float *b, const struct matmul *p, int first,
                       int n)
{
    if (!p->trans_b) {
#pragma omp parallel for schedule(static)
        for (int l = 0; l < p->k; l++)
            memcpy(dst + l * ld, b + (size_t)l * p->n + first, sizeof(float) * n);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int i = 0; i < n; i += TURNED)
        turn(dst + i, ld, b + (size_t)(first + i) * p->k, min_int(TURNED, n - i), p->k);
}

static void multiply_moved(struct stream *s, float *c, const float *a, const float *b,
                           const struct matmul *p, bool accumulate)
{
    const int columns = panel_columns(p);
    const size_t ld = (size_t)columns + PANEL_PADDING;
    float *moved = cpu_scratch(s, ld * p->k);
    for (int first = 0; first < p->n; first += columns) {
        const int n = min_int(columns, p->n - first);
        move_panel(moved, ld, b, p, first, n);
        multiply_panel(c, a, &(struct panel){first, n, moved, ld, false, run_of_moved(p)}, p,
                       accumulate);
    }
}

static void product(struct stream *s, float *c, const float *a, const float *b,
                    const struct matmul *p, bool accumulate)
{
    if (p->k == 0 && !accumulate)
        memset(c, 0, sizeof(float) * p->m * p->n);
    if (is_moved(p))
        multiply_moved(s, c, a, b, p, accumulate);
    else
        multiply_panel(
            c, a, &(struct panel){0, p->n, b, (size_t)(p->trans_b ? p->k : p->n), p->trans_b, p->k},
            p, accumulate);
}

ZF_SIMD
static void add_range(float *restrict c, const float *restrict addend, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i] += addend[i];
}

void cpu_matmul(struct stream *s, void *c, const void *a, const void *b, const struct matmul *p)
{
    if (p->m == 0 || p->n == 0)
        return;
    if (!p->accumulate || is_plain(p)) {
        product(s, c, a, b, p, p->accumulate);
        return;
    }
    const size_t n_elements = (size_t)p->m * p->n;
    float *result = zf_malloc_aligned(sizeof(float) * n_elements);
    product(s, result, a, b, p, false);
    add_range(c, result, n_elements);
    free(result);
}

/* sums[j] = sum over rows of dy[i][j] */
ZF_SIMD
static void sum_rows(float *restrict sums, const float *restrict dy, int n, int C)
{
    memset(sums, 0, sizeof(float) * C);
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        const float *restrict a = dy + (size_t)i * C, *restrict b = a + C;
        const float *restrict c = b + C, *restrict d = c + C;
        for (int j = 0; j < C; j++)
            sums[j] += (a[j] + b[j]) + (c[j] + d[j]);
    }
    for (; i < n; i++)
        for (int j = 0; j < C; j++)
            sums[j] += dy[(size_t)i * C + j];
}

void cpu_bias_backward(struct stream *s, float *db, const void *dy, int n, int C, bool accumulate)
{
    const int step = sum_chunk_rows(n), n_chunks = divide_up(n, step);
    float *sums = cpu_scratch(s, (size_t)C * n_chunks);
#pragma omp parallel for schedule(static) if ((size_t)n * C > PARALLEL_ELEMENTS)
    for (int i = 0; i < n_chunks; i++)
        sum_rows(sums + (size_t)C * i, (const float *)dy + (size_t)C * step * i,
                 min_int(step, n - i * step), C);
    if (!accumulate)
        memset(db, 0, sizeof(float) * C);
    for (int i = 0; i < n_chunks; i++)
        add_range(db, sums + (size_t)C * i, (size_t)C);
}
