/* The table of matrices in device memory, on which the device's operators work; and the list of the
 * channels that AdamW is to update there. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <assert.h>
#include <stdlib.h>

void table_place(struct engine *e)
{
    struct arena *a = &e->arena;
    size_t n = 0;
    for (int i = 0; i < e->moves.n_slots; i++)
        n += (size_t)e->moves.slots[i].capacity;
    e->batches.rows =
        arena_take(a, &a->use.workspace, (size_t)e->n_matrices, sizeof *e->batches.rows);
    e->list.device = arena_take(a, &a->use.important, n, sizeof *e->list.device);
    if (is_measuring(e))
        return;
    e->list.host = e->device->allocate_host(sizeof *e->list.host * (n + 1));
    e->list.read = e->device->event_create();
}

static struct matrix_rows rows_of(const struct engine *e, const struct matrix *m)
{
    const size_t first = m->first_channel + (size_t)m->owned.first;
    const struct state_arrays *state = state_arrays(e, m);
    return (struct matrix_rows){.values = m->values,
                                .gradient = m->grad,
                                .norms = e->norms.squared + first,
                                .place = e->selection.place_device + first,
                                .slot = e->selection.slot_device + first,
                                .deferred = m->deferred,
                                .waiting = m->slots->waiting,
                                .window = gathers_on_host(e, m->param->layer) ? NULL : m->window,
                                .staged = m->staged,
                                .master = state->master,
                                .m = state->m,
                                .v = state->v,
                                .n_rows = m->n_owned,
                                .cols = m->cols,
                                .packed = m->host.packed,
                                .part = m->host.part,
                                .decays = m->param->decay,
                                .streams = m->streams,
                                .visiting = state != &m->slots->state};
}

/* Batches of all matrices, and of each layer's. rows: the table in host memory */
static void find_batches(struct engine *e, const struct matrix_rows *rows)
{
    const int *of = e->batches.first_of_layer;
    e->batches.all = matrix_batch_part(rows, e->batches.rows, 0, e->n_matrices);
    int first = 0, last = e->table->n_layers;
    while (first < last && gathers_on_host(e, first))
        first++;
    while (last > first && gathers_on_host(e, last - 1))
        last--;
    e->batches.gathering = matrix_batch_part(rows, e->batches.rows, of[first], of[last]);
    for (int layer = 0; layer < e->table->n_layers; layer++)
        e->batches.layers[layer] =
            matrix_batch_part(rows, e->batches.rows, of[layer], of[layer + 1]);
}

static void upload_rows(struct engine *e)
{
    const size_t n = (size_t)e->n_matrices;
    struct matrix_rows *rows = zf_calloc(n + 1, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = rows_of(e, &e->matrices[i]);
    matrix_batch_number(rows, e->n_matrices);
    e->device->copy(e->device->compute, e->batches.rows, rows, sizeof *rows * n);
    find_batches(e, rows);
    free(rows);
}

void table_number(struct engine *e)
{
    const int n_layers = e->table->n_layers;
    int *of = zf_calloc((size_t)n_layers + 1, sizeof *of);
    for (int layer = 0; layer < n_layers; layer++) {
        of[layer + 1] = of[layer];
        while (of[layer + 1] < e->n_matrices && e->table->params[of[layer + 1]].layer == layer)
            of[layer + 1]++;
    }
    e->batches.first_of_layer = of;
}

void table_fill(struct engine *e)
{
    const size_t n_layers = (size_t)e->table->n_layers;
    e->batches.layers = zf_calloc(n_layers, sizeof *e->batches.layers);
    e->list.first = zf_calloc((size_t)e->n_matrices + 1, sizeof *e->list.first);
    upload_rows(e);
}

void table_update(struct engine *e)
{
    struct stream *readers[] = {e->streams.reducing, e->streams.down, e->streams.up};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        streams_follow(e, e->device->compute, readers[i]);
    upload_rows(e);
}

void table_release(struct engine *e)
{
    free(e->batches.layers);
    free(e->batches.first_of_layer);
    free(e->list.first);
    if (!e->list.read)
        return;
    e->device->release_host(e->list.host);
    e->device->event_destroy(e->list.read);
}

void table_list_begin(struct engine *e)
{
    e->device->event_wait(e->list.read);
    e->list.n = e->list.n_matrices = 0;
    visits_begin(e);
}

static void begin_matrix(struct update_list *l, int matrix)
{
    while (l->n_matrices <= matrix)
        l->first[l->n_matrices++] = l->n;
}

void table_list_add(struct engine *e, const struct matrix *m, int row)
{
    struct update_list *l = &e->list;
    begin_matrix(l, m->index);
    assert(l->n_matrices == m->index + 1);
    struct channel_update *u = &l->host[l->n];
    *u = (struct channel_update){
        .matrix = m->index, .slot = m->slot_of[row], .row = row, .updates = m->host.updates[row]};
    if (state_visits(e, m))
        u->visit = visits_add(e, m, l->n);
    l->n++;
}

void table_list_end(struct engine *e)
{
    struct update_list *l = &e->list;
    struct device *d = e->device;
    begin_matrix(l, e->n_matrices);
    d->copy(d->compute, l->device, l->host, sizeof *l->host * (size_t)l->n);
    d->event_record(l->read, d->compute);
    l->important = false;
}
