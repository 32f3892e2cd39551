/* Several ranks: who has which part of a matrix's array; and parameters that changed, which go from
 * their owners to the others, a few matrices at a time. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

struct comm_shares sharing_divide(const struct engine *e, const struct matrix *m, void *data,
                                  size_t bytes)
{
    const size_t row = (size_t)m->cols * bytes, rows = (size_t)m->param->rows;
    return (struct comm_shares){.data = data,
                                .bytes = rows * row,
                                .part = (size_t)schedule_part(m->param->rows, e->ranks) * row,
                                .owner = rows == 1 ? schedule_owner(m->index, 1, e->ranks, 0)
                                                   : COMM_DIVIDED};
}

/* As many bytes of parameters, or a single matrix, are exchanged at a time. */
#define SHARED_BYTES ((size_t)4 << 20)

/* A matrix's parameters, of all ranks or of one. */
static size_t matrix_bytes(const struct engine *e, int matrix, int rows)
{
    return (size_t)rows * (size_t)e->matrices[matrix].cols * dtype_size(e->dtype);
}

static size_t largest_matrix(const struct engine *e)
{
    size_t largest = SHARED_BYTES;
    for (int i = 0; i < e->n_matrices; i++) {
        const size_t bytes = matrix_bytes(e, i, e->matrices[i].param->rows);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/* Matrices [first, result) are exchanged together, whatever the number of ranks. */
static int exchange_end(const struct engine *e, int first, size_t most)
{
    size_t bytes = 0;
    for (int i = first; i < e->n_matrices; i++) {
        bytes += matrix_bytes(e, i, e->matrices[i].param->rows);
        if (bytes > most)
            return i;
    }
    return e->n_matrices;
}

/* The most that one rank has of matrices [first, last). */
static size_t largest_part(const struct engine *e, int first, int last)
{
    size_t largest = 0;
    for (int r = 0; r < e->ranks; r++) {
        size_t bytes = 0;
        for (int i = first; i < last; i++) {
            const struct range owned = schedule_owned(i, e->matrices[i].param->rows, e->ranks, r);
            bytes += matrix_bytes(e, i, owned.last - owned.first);
        }
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

void sharing_place(struct engine *e)
{
    size_t part = 0;
    if (!sharing_is_needed(e))
        return;
    e->sharing.most = largest_matrix(e);
    for (int first = 0, last; first < e->n_matrices; first = last) {
        last = exchange_end(e, first, e->sharing.most);
        const size_t here = largest_part(e, first, last);
        part = here > part ? here : part;
    }
    e->sharing.memory = arena_take(&e->arena, &e->arena.use.workspace, part * (size_t)e->ranks, 1);
    e->sharing.rows = arena_take(&e->arena, &e->arena.use.workspace, e->n_channels, sizeof(int));
    e->sharing.runs = arena_take(&e->arena, &e->arena.use.workspace,
                                 (size_t)e->n_matrices * (size_t)e->ranks, sizeof *e->sharing.runs);
}

void sharing_create(struct engine *e)
{
    e->sharing.updated = zf_calloc(e->n_channels, 1);
    e->sharing.first_run = zf_calloc((size_t)e->ranks + 1, sizeof *e->sharing.first_run);
    if (!sharing_is_needed(e))
        return;
    const size_t runs = (size_t)e->n_matrices * (size_t)e->ranks;
    e->sharing.rows_host = e->device->allocate_host(sizeof(int) * e->n_channels);
    e->sharing.runs_host = e->device->allocate_host(sizeof *e->sharing.runs_host * (runs + 1));
    e->sharing.read = e->device->event_create();
}

void sharing_release(struct engine *e)
{
    free(e->sharing.updated);
    free(e->sharing.first_run);
    if (!e->sharing.read)
        return;
    e->device->release_host(e->sharing.rows_host);
    e->device->release_host(e->sharing.runs_host);
    e->device->event_destroy(e->sharing.read);
}

/* Lists what changed in matrices [first, last) on a rank. Returns its elements; in its part they
 * begin at 0. */
static size_t find_runs(struct engine *e, int first, int last, int rank)
{
    struct sharing *s = &e->sharing;
    size_t at = 0;
    for (int i = first; i < last; i++) {
        const struct matrix *m = &e->matrices[i];
        const struct range owned = schedule_owned(i, m->param->rows, e->ranks, rank);
        struct shared_run run = {.matrix = i, .first = s->n_rows, .at = at};
        for (int row = owned.first; row < owned.last; row++)
            if (s->updated[m->first_channel + (size_t)row])
                s->rows_host[s->n_rows++] = row;
        run.n = s->n_rows - run.first;
        at += (size_t)run.n * (size_t)m->cols;
        if (run.n > 0)
            s->runs_host[s->n_runs++] = run;
    }
    return at;
}

/* The same of all ranks; the longest part is as long as each. Returns its elements. */
static size_t find_all_runs(struct engine *e, int first, int last)
{
    struct sharing *s = &e->sharing;
    size_t part = 0;
    for (int r = 0; r < e->ranks; r++) {
        s->first_run[r] = s->n_runs;
        const size_t elements = find_runs(e, first, last, r);
        part = elements > part ? elements : part;
        s->bytes_gathered += r == e->rank ? 0 : elements * dtype_size(e->dtype);
    }
    s->first_run[e->ranks] = s->n_runs;
    for (int r = 0; r < e->ranks; r++)
        for (int i = s->first_run[r]; i < s->first_run[r + 1]; i++)
            s->runs_host[i].at += (size_t)r * part;
    return part;
}

/* Numbers the pieces of the runs from the first one on, through all of them. */
static void number_pieces(struct sharing *s, const struct matrix *matrices, int first)
{
    int pieces = 0;
    for (int i = first; i < s->n_runs; i++) {
        struct shared_run *run = &s->runs_host[i];
        run->first_piece = pieces;
        pieces += run->n * ((matrices[run->matrix].cols + ROW_PIECE - 1) / ROW_PIECE);
    }
    s->runs_host[s->n_runs] = (struct shared_run){.first_piece = pieces};
}

/* The device gets the list from these on; pinned memory, so that nobody waits. */
static void upload_list(struct engine *e, int first_run, int first_row)
{
    struct sharing *s = &e->sharing;
    e->device->copy(e->streams.reducing, s->rows + first_row, s->rows_host + first_row,
                    sizeof(int) * (size_t)(s->n_rows - first_row));
    e->device->copy(e->streams.reducing, s->runs + first_run, s->runs_host + first_run,
                    sizeof *s->runs * (size_t)(s->n_runs - first_run));
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

/* Packed and unpacked behind the model; in between they go first, as collectives do. */
static void share_matrices(struct engine *e, int first, int last)
{
    struct sharing *s = &e->sharing;
    const struct streams *on = &e->streams;
    const int first_run = s->n_runs, first_row = s->n_rows;
    const size_t part = find_all_runs(e, first, last) * dtype_size(e->dtype);
    const int own = s->first_run[e->rank], end = s->first_run[e->rank + 1];
    const struct comm_shares parts = {
        .data = s->memory, .bytes = part * (size_t)e->ranks, .part = part, .owner = COMM_DIVIDED};
    number_pieces(s, e->matrices, first_run);
    upload_list(e, first_run, first_row);
    copy_runs(e, own, end, true);
    streams_follow(e, on->gathering, on->reducing);
    comm_device_all_gather(e->comm, on->gathering, &parts, 1);
    streams_follow(e, on->reducing, on->gathering);
    copy_runs(e, first_run, own, false);
    copy_runs(e, end, s->n_runs, false);
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
    if (!sharing_is_needed(e))
        return;
    e->device->event_wait(e->sharing.read); /* over, where the host has waited for a norm since */
    e->sharing.n_rows = e->sharing.n_runs = 0;
    streams_follow(e, e->streams.reducing, e->device->compute);
    for (int first = 0, last; first < e->n_matrices; first = last) {
        last = exchange_end(e, first, e->sharing.most);
        exchange_matrices(e, first, last);
    }
    e->device->event_record(e->sharing.read, e->streams.reducing);
    memset(e->sharing.updated, 0, e->n_channels);
    plan_host_loop(e->device->plan, e->n_channels); /* find_runs */
}

void sharing_report(struct engine *e, struct step_report *report)
{
    report->bytes_gathered += e->sharing.bytes_gathered;
    e->sharing.bytes_gathered = 0;
}
