/* Several ranks: who has which part of a matrix's array; and parameters that changed, which go from
 * their owners to the others, a few matrices at a time. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

void sharing_divide(const struct engine *e, struct divided *d, size_t bytes)
{
    const size_t n = (size_t)e->n_matrices, ranks = (size_t)e->ranks;
    d->arrays = zf_calloc(n, sizeof *d->arrays);
    d->shares = zf_calloc(n * ranks, sizeof *d->shares);
    for (size_t i = 0; i < n; i++) {
        const struct matrix *m = &e->matrices[i];
        const size_t row = (size_t)m->cols * bytes;
        d->arrays[i].shares = d->shares + i * ranks;
        for (int r = 0; r < e->ranks; r++) {
            const struct range owned = schedule_owned(m->index, m->param->rows, e->ranks, r);
            d->shares[i * ranks + (size_t)r] = (struct comm_share){
                (size_t)owned.first * row, (size_t)(owned.last - owned.first) * row};
        }
    }
}

void sharing_free(struct divided *d)
{
    free(d->arrays);
    free(d->shares);
}

/* Least size of the buffer that they go through. */
#define SHARED_BYTES ((size_t)4 << 20)

void sharing_place(struct engine *e)
{
    size_t largest = SHARED_BYTES;
    if (!sharing_is_needed(e))
        return;
    for (int i = 0; i < e->n_matrices; i++) {
        size_t bytes = e->table->params[i].n_elements * dtype_size(e->dtype);
        largest = bytes > largest ? bytes : largest;
    }
    e->sharing.bytes = largest;
    e->sharing.memory = arena_take(&e->arena, &e->arena.use.workspace, largest, 1);
    e->sharing.rows = arena_take(&e->arena, &e->arena.use.workspace, e->n_channels, sizeof(int));
    e->sharing.runs = arena_take(&e->arena, &e->arena.use.workspace,
                                 (size_t)e->n_matrices * (size_t)e->ranks, sizeof *e->sharing.runs);
}

void sharing_create(struct engine *e)
{
    e->sharing.updated = zf_calloc(e->n_channels, 1);
    e->sharing.parts = zf_calloc((size_t)e->ranks, sizeof *e->sharing.parts);
    if (!sharing_is_needed(e))
        return;
    const size_t runs = (size_t)e->n_matrices * (size_t)e->ranks;
    e->sharing.rows_host = zf_malloc(sizeof(int) * e->n_channels);
    e->sharing.runs_host = zf_malloc(sizeof *e->sharing.runs_host * (runs + 1));
}

void sharing_release(struct engine *e)
{
    free(e->sharing.updated);
    free(e->sharing.parts);
    free(e->sharing.rows_host);
    free(e->sharing.runs_host);
}

/* What changed in matrices [first, last) on a rank, from run *n_runs on. Returns its bytes, which
 * begin at `at`. */
static size_t find_runs(struct engine *e, int first, int last, int rank, size_t at, int *n_runs,
                        int *n_rows)
{
    const size_t size = dtype_size(e->dtype), begin = at;
    for (int i = first; i < last; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct range owned = schedule_owned(i, m->param->rows, e->ranks, rank);
        struct shared_run run = {.matrix = i, .first = *n_rows, .at = at / size};
        for (int row = owned.first; row < owned.last; row++)
            if (e->sharing.updated[m->first_channel + (size_t)row])
                e->sharing.rows_host[(*n_rows)++] = row;
        run.n = *n_rows - run.first;
        at += (size_t)run.n * (size_t)m->cols * size;
        if (run.n > 0)
            e->sharing.runs_host[(*n_runs)++] = run;
    }
    return at - begin;
}

/* Numbers the pieces of n runs, through all of them. */
static void number_pieces(struct engine *e, int n)
{
    int pieces = 0;
    for (int i = 0; i < n; i++) {
        struct shared_run *run = &e->sharing.runs_host[i];
        run->first_piece = pieces;
        pieces += run->n * ((e->matrices[run->matrix].cols + ROW_PIECE - 1) / ROW_PIECE);
    }
    e->sharing.runs_host[n] = (struct shared_run){.first_piece = pieces};
}

/* Runs [first, last) into the buffer, or out of it. */
static void copy_runs(struct engine *e, int first, int last, bool pack)
{
    const struct shared_run *runs = e->sharing.runs_host;
    const struct shared_rows shared = {.runs = e->sharing.runs + first,
                                       .n_runs = last - first,
                                       .rows = e->sharing.rows,
                                       .first_piece = runs[first].first_piece,
                                       .n_pieces = runs[last].first_piece - runs[first].first_piece,
                                       .memory = e->sharing.memory};
    if (last > first)
        e->device->row_ops->share_rows(e->streams.reducing, &e->batches.all, &shared, pack);
}

static void share_matrices(struct engine *e, int first, int last)
{
    struct sharing *s = &e->sharing;
    int n_runs = 0, n_rows = 0, own = 0, end = 0;
    size_t at = 0;
    for (int r = 0; r < e->ranks; r++) {
        own = r == e->rank ? n_runs : own;
        const size_t bytes = find_runs(e, first, last, r, at, &n_runs, &n_rows);
        end = r == e->rank ? n_runs : end;
        s->parts[r] = (struct comm_share){at, bytes};
        s->bytes_gathered += r == e->rank ? 0 : bytes;
        at += bytes;
    }
    number_pieces(e, n_runs);
    e->device->copy(e->streams.reducing, s->rows, s->rows_host, sizeof(int) * (size_t)n_rows);
    e->device->copy(e->streams.reducing, s->runs, s->runs_host, sizeof *s->runs * (size_t)n_runs);
    copy_runs(e, own, end, true);
    comm_device_all_gather(e->comm, e->streams.reducing,
                           &(struct comm_shares){.data = s->memory, .shares = s->parts}, 1);
    copy_runs(e, 0, own, false);
    copy_runs(e, end, n_runs, false);
}

/* Matrices [first, last), once what has come up of their layers is there. */
static void exchange_matrices(struct engine *e, int first, int last)
{
    const int from = e->matrices[first].param->layer, to = e->matrices[last - 1].param->layer;
    for (int layer = from; layer <= to; layer++)
        e->device->event_order(e->streams.reducing, e->streams.arrived[layer]);
    share_matrices(e, first, last);
    for (int layer = from; layer <= to; layer++)
        streams_bring(e, layer, e->streams.reducing);
}

void sharing_exchange(struct engine *e)
{
    size_t bytes = 0;
    int first = 0;
    if (!sharing_is_needed(e))
        return;
    streams_follow(e, e->streams.reducing, e->device->compute);
    for (int i = 0; i < e->n_matrices; i++) {
        size_t here = e->table->params[i].n_elements * dtype_size(e->dtype);
        if (bytes + here > e->sharing.bytes) {
            exchange_matrices(e, first, i);
            first = i;
            bytes = 0;
        }
        bytes += here;
    }
    exchange_matrices(e, first, e->n_matrices);
    memset(e->sharing.updated, 0, e->n_channels);
    plan_host_loop(e->device->plan, e->n_channels); /* find_runs */
}

void sharing_report(struct engine *e, struct step_report *report)
{
    report->bytes_gathered += e->sharing.bytes_gathered;
    e->sharing.bytes_gathered = 0;
}
