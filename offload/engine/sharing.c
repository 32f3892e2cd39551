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
}

void sharing_create(struct engine *e)
{
    e->sharing.updated = zf_calloc(e->n_channels, 1);
    e->sharing.parts = zf_calloc((size_t)e->ranks, sizeof *e->sharing.parts);
    if (sharing_is_needed(e))
        e->sharing.rows_host = zf_malloc(sizeof(int) * e->n_channels);
}

void sharing_release(struct engine *e)
{
    free(e->sharing.updated);
    free(e->sharing.parts);
    free(e->sharing.rows_host);
}

/* Rows of one matrix that changed on one rank, on their way to the others. */
struct shared_run {
    const struct matrix *matrix;
    int rank, first, n; /* shared_rows[first .. first + n) */
    size_t at;          /* in e->sharing.memory, bytes */
};

/* What changed in matrices [first, last), rank by rank. Returns the number of runs. */
static int find_runs(struct engine *e, int first, int last, struct shared_run *runs)
{
    int n_runs = 0, n_rows = 0;
    size_t at = 0;
    for (int r = 0; r < e->ranks; r++) {
        const size_t begin = at;
        for (int i = first; i < last; i++) {
            const struct matrix *m = &e->matrices[i];
            struct range owned = schedule_owned(i, m->param->rows, e->ranks, r);
            struct shared_run run = {m, r, n_rows, 0, at};
            for (int row = owned.first; row < owned.last; row++)
                if (e->sharing.updated[m->first_channel + (size_t)row])
                    e->sharing.rows_host[n_rows++] = row;
            run.n = n_rows - run.first;
            at += (size_t)run.n * (size_t)m->cols * dtype_size(e->dtype);
            if (run.n > 0)
                runs[n_runs++] = run;
        }
        e->sharing.parts[r] = (struct comm_share){begin, at - begin};
    }
    return n_runs;
}

/* Copies a run between the parameters and the buffer. */
static void copy_run(struct engine *e, const struct shared_run *run, bool pack)
{
    const struct param *p = run->matrix->param;
    char *values = (char *)e->params + p->offset * dtype_size(e->dtype),
         *at = e->sharing.memory + run->at;
    const int *rows = e->sharing.rows + run->first;
    e->device->row_ops->copy_rows(e->streams.reducing, pack ? at : values, pack ? NULL : rows,
                                  pack ? values : at, pack ? rows : NULL, run->n,
                                  (size_t)p->cols * dtype_size(e->dtype));
}

static void share_matrices(struct engine *e, int first, int last)
{
    size_t most = (size_t)(last - first) * (size_t)e->ranks;
    struct shared_run *runs = zf_malloc(sizeof *runs * (most + 1));
    int n_runs = find_runs(e, first, last, runs), n_rows = 0;
    for (int i = 0; i < n_runs; i++)
        n_rows += runs[i].n;
    e->device->copy(e->streams.reducing, e->sharing.rows, e->sharing.rows_host,
                    sizeof(int) * (size_t)n_rows);
    for (int i = 0; i < n_runs; i++)
        if (runs[i].rank == e->rank)
            copy_run(e, &runs[i], true);
    comm_device_all_gather(
        e->comm, e->streams.reducing,
        &(struct comm_shares){.data = e->sharing.memory, .shares = e->sharing.parts}, 1);
    for (int i = 0; i < n_runs; i++)
        if (runs[i].rank != e->rank)
            copy_run(e, &runs[i], false);
    for (int r = 0; r < e->ranks; r++)
        e->sharing.bytes_gathered += r == e->rank ? 0 : e->sharing.parts[r].bytes;
    free(runs);
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
