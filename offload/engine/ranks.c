/* Several ranks: parameters that changed go from their owners to the others, a few matrices at a
 * time. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

/* Least size of the buffer that they go through. */
#define SHARED_BYTES ((size_t)4 << 20)

void ranks_place(struct engine *e)
{
    size_t largest = SHARED_BYTES;
    if (e->ranks == 1)
        return;
    for (int i = 0; i < e->n_matrices; i++) {
        size_t bytes = e->table->params[i].n_elements * dtype_size(e->dtype);
        largest = bytes > largest ? bytes : largest;
    }
    e->shared_bytes = largest;
    e->shared = engine_device_memory(e, &e->use.workspace, largest);
    e->shared_rows = engine_device_memory(e, &e->use.workspace, sizeof(int) * e->n_channels);
}

/* Rows of one matrix that changed on one rank, on their way to the others. */
struct shared_run {
    const struct matrix *matrix;
    int rank, first, n; /* shared_rows[first .. first + n) */
    size_t at;          /* in e->shared, bytes */
};

/* What changed in matrices [first, last), rank by rank. Returns the number of runs. */
static int find_runs(struct engine *e, int first, int last, struct shared_run *runs)
{
    int n_runs = 0, n_rows = 0;
    size_t at = 0;
    for (int r = 0; r < e->ranks; r++) {
        e->shared_offset[r] = at;
        for (int i = first; i < last; i++) {
            const struct matrix *m = &e->matrices[i];
            struct range owned = schedule_owned(i, m->param->rows, e->ranks, r);
            struct shared_run run = {m, r, n_rows, 0, at};
            for (int row = owned.first; row < owned.last; row++)
                if (e->updated[m->first_channel + (size_t)row])
                    e->shared_rows_host[n_rows++] = row;
            run.n = n_rows - run.first;
            at += (size_t)run.n * (size_t)m->cols * dtype_size(e->dtype);
            if (run.n > 0)
                runs[n_runs++] = run;
        }
    }
    e->shared_offset[e->ranks] = at;
    return n_runs;
}

/* Copies a run between the parameters and the buffer. */
static void copy_run(struct engine *e, const struct shared_run *run, bool pack)
{
    const struct param *p = run->matrix->param;
    char *values = (char *)e->params + p->offset * dtype_size(e->dtype), *at = e->shared + run->at;
    const int *rows = e->shared_rows + run->first;
    e->device->row_ops->copy_rows(e->reducing, pack ? at : values, pack ? NULL : rows,
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
    e->device->copy(e->reducing, e->shared_rows, e->shared_rows_host, sizeof(int) * (size_t)n_rows);
    for (int i = 0; i < n_runs; i++)
        if (runs[i].rank == e->rank)
            copy_run(e, &runs[i], true);
    comm_device_all_gather(e->comm, e->reducing, e->shared, e->shared_offset);
    for (int i = 0; i < n_runs; i++)
        if (runs[i].rank != e->rank)
            copy_run(e, &runs[i], false);
    free(runs);
}

void ranks_share_parameters(struct engine *e)
{
    size_t bytes = 0;
    int first = 0;
    if (e->ranks == 1)
        return;
    engine_follow(e, e->reducing, e->device->compute);
    engine_follow(e, e->reducing, e->up);
    for (int i = 0; i < e->n_matrices; i++) {
        size_t here = e->table->params[i].n_elements * dtype_size(e->dtype);
        if (bytes + here > e->shared_bytes) {
            share_matrices(e, first, i);
            first = i;
            bytes = 0;
        }
        bytes += here;
    }
    share_matrices(e, first, e->n_matrices);
    memset(e->updated, 0, e->n_channels);
    for (int layer = 0; layer < e->table->n_layers; layer++) {
        e->device->event_record(e->arrived[layer], e->reducing);
        e->arriving[layer] = true;
    }
}
