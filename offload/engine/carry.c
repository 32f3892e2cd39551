/* State of channels that change sides, on a stream of its own beside the model's: what leaves goes
 * down while the next step's passes run, and what enters comes up behind it, into the slots that
 * are then free. It goes in pieces, through two buffers each way: a short kernel packs what the
 * copy engine takes, and the host's threads take it on into the host's arrays, which are too large
 * to be pinned; the other way round likewise. With zero_copy, and where device memory is the
 * host's, the kernel reads and writes the buffers itself.
 *
 * The host goes on with it when a step's passes have been queued (selection_carry): that waits for
 * copies and for workers, and the device has the passes to do. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <stdlib.h>

/* A piece, in bytes, at most; less where no more can be important. */
#define PIECE_BYTES ((size_t)8 << 20)
/* And in rows. */
#define PIECE_ROWS 8192
/* Fewer elements are one thread's. */
#define PARALLEL_ELEMENTS ((long)64 << 10)

/* Of a row, packed. */
static size_t row_elements(const struct matrix *m)
{
    return (3 * (size_t)m->cols + 3) / 4 * 4;
}

/* ---- memory ---- */

static size_t piece_elements(const struct engine *e)
{
    size_t all = 0, widest = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        if (!m->selectable || e->config.topk_ratio <= 0 || state_visits(e, m))
            continue;
        const int chosen = schedule_important(e->config.topk_ratio, m->param->rows);
        const size_t row = row_elements(m);
        all += row * (size_t)(chosen < m->n_owned ? chosen : m->n_owned);
        widest = row > widest ? row : widest;
    }
    const size_t most = PIECE_BYTES / sizeof(float), n = all < most ? all : most;
    return n > widest ? n : widest;
}

void carry_place(struct engine *e)
{
    struct carry *c = &e->carry;
    struct arena *a = &e->arena;
    c->piece_elements = piece_elements(e);
    if (c->piece_elements == 0)
        return;
    c->rows = arena_take(a, &a->use.workspace, PIECE_ROWS, sizeof *c->rows);
    if (!exchange_copies(e))
        return;
    c->down.device = arena_take(a, &a->use.workspace, c->piece_elements, sizeof(float));
    c->up.device = arena_take(a, &a->use.workspace, c->piece_elements, sizeof(float));
}

static void create_side(struct engine *e, struct carried_side *side)
{
    struct device *d = e->device;
    for (int i = 0; i < 2; i++) {
        struct carried_piece *p = &side->pieces[i];
        p->passed = d->event_create();
        if (e->carry.piece_elements == 0)
            continue;
        p->rows = d->allocate_host(PIECE_ROWS * sizeof *p->rows);
        p->state = d->allocate_host(e->carry.piece_elements * sizeof *p->state);
    }
}

void carry_create(struct engine *e)
{
    create_side(e, &e->carry.down);
    create_side(e, &e->carry.up);
}

static void release_side(struct engine *e, struct carried_side *side)
{
    struct device *d = e->device;
    for (int i = 0; i < 2; i++) {
        struct carried_piece *p = &side->pieces[i];
        if (p->passed)
            d->event_destroy(p->passed);
        if (p->rows) {
            d->release_host(p->rows);
            d->release_host(p->state);
        }
    }
    free(side->rows);
}

void carry_release(struct engine *e)
{
    release_side(e, &e->carry.down);
    release_side(e, &e->carry.up);
}

static void forget_side(struct carried_side *side)
{
    side->n = side->begun = side->turn = 0;
    side->pieces[0].n = side->pieces[1].n = 0;
}

void carry_forget(struct engine *e)
{
    forget_side(&e->carry.down);
    forget_side(&e->carry.up);
}

/* ---- what is to go ---- */

static void add_row(struct engine *e, struct carried_side *side, const struct matrix *m, int row,
                    struct step_report *report)
{
    if (state_visits(e, m))
        return;
    if (side->n == side->capacity) {
        side->capacity = side->capacity ? 2 * side->capacity : 256;
        side->rows = zf_realloc(side->rows, sizeof *side->rows * (size_t)side->capacity);
    }
    side->rows[side->n++] =
        (struct carried_row){.matrix = m->index, .slot = m->slot_of[row], .row = row};
    report->bytes_moved += 3 * sizeof(float) * (size_t)m->cols;
}

void carry_down(struct engine *e, const struct matrix *m, int row, struct step_report *report)
{
    add_row(e, &e->carry.down, m, row, report);
}

void carry_up(struct engine *e, const struct matrix *m, int row, struct step_report *report)
{
    add_row(e, &e->carry.up, m, row, report);
}

/* As many of them as there is room for. */
static void fill(struct engine *e, struct carried_side *side, struct carried_piece *p)
{
    p->n = 0;
    p->n_elements = 0;
    for (; side->begun < side->n && p->n < PIECE_ROWS; side->begun++) {
        struct carried_row row = side->rows[side->begun];
        const size_t n = row_elements(&e->matrices[row.matrix]);
        if (p->n_elements + n > e->carry.piece_elements)
            return;
        row.at = (int)p->n_elements;
        p->rows[p->n++] = row;
        p->n_elements += n;
    }
}

/* ---- on the host ---- */

/* A piece's rows into the host's arrays, or out of them. */
static void copy_on_host(struct engine *e, const struct carried_piece *p, bool to_host)
{
    if (e->device->plan) {
        plan_host_copies(e->device->plan, sizeof(float) * p->n_elements);
        return;
    }
#pragma omp parallel for schedule(static) if ((long)p->n_elements > PARALLEL_ELEMENTS)
    for (int i = 0; i < p->n; i++) {
        const struct carried_row *r = &p->rows[i];
        const struct matrix *m = &e->matrices[r->matrix];
        if (to_host)
            state_write_row(e, m, r->row, p->state + r->at, (size_t)m->cols);
        else
            state_read_row(e, m, r->row, p->state + r->at, (size_t)m->cols);
    }
}

/* The host's arrays have what the newest update makes of a piece's rows. */
static void await_commits(struct engine *e, const struct carried_piece *p)
{
    const struct group *last = NULL;
    int layer = -1;
    for (int i = 0; i < p->n; i++) {
        const struct matrix *m = &e->matrices[p->rows[i].matrix];
        const struct row_groups groups = owned_groups(e, m);
        const struct group *g = &e->windows.groups[row_groups_group(&groups, p->rows[i].row)];
        if (g == last && m->param->layer == layer)
            continue;
        last = g;
        layer = m->param->layer;
        host_wait_layer(e, &g->commit, layer);
    }
}

/* ---- crossing ---- */

/* Of state, without what lies between its rows. */
static size_t state_bytes(const struct engine *e, const struct carried_piece *p)
{
    size_t elements = 0;
    for (int i = 0; i < p->n; i++)
        elements += 3 * (size_t)e->matrices[p->rows[i].matrix].cols;
    return sizeof(float) * elements;
}

static void cross(struct engine *e, struct carried_side *side, struct carried_piece *p, bool up)
{
    struct device *d = e->device;
    struct stream *s = e->streams.carrying;
    const size_t bytes = sizeof(float) * p->n_elements;
    const struct carried_rows carried = {.rows = e->carry.rows,
                                         .n = p->n,
                                         .state = side->device ? side->device : p->state,
                                         .n_elements = p->n_elements,
                                         .on_device = side->device != NULL};
    trace_begin(e->config.trace, TRACE_STATE, up ? "state, to the device" : "state, to the host");
    d->copy(s, e->carry.rows, p->rows, sizeof *p->rows * (size_t)p->n);
    if (up && side->device)
        d->copy(s, side->device, p->state, bytes);
    d->row_ops->carry_rows(s, &e->batches.all, &carried, up);
    if (!up && side->device)
        d->copy(s, p->state, side->device, bytes);
    trace_end(e->config.trace, TRACE_STATE, state_bytes(e, p));
    d->event_record(p->passed, s);
}

/* The piece whose turn it is. */
static struct carried_piece *take_turn(struct carried_side *side)
{
    struct carried_piece *p = &side->pieces[side->turn];
    side->turn = !side->turn;
    return p;
}

void carry_start(struct engine *e)
{
    struct carried_side *side = &e->carry.down;
    if (side->n == 0 && e->carry.up.n == 0)
        return;
    streams_follow(e, e->streams.carrying, e->device->compute);
    for (int i = 0; i < 2 && side->begun < side->n; i++) {
        struct carried_piece *p = take_turn(side);
        fill(e, side, p);
        cross(e, side, p, false);
    }
}

void carry_land(struct engine *e)
{
    struct carried_side *side = &e->carry.down;
    while (side->begun < side->n || side->pieces[0].n > 0 || side->pieces[1].n > 0) {
        struct carried_piece *p = take_turn(side);
        if (p->n > 0) {
            e->device->event_wait(p->passed);
            copy_on_host(e, p, true);
        }
        fill(e, side, p);
        if (p->n > 0)
            cross(e, side, p, false);
    }
    side->n = side->begun = 0;
}

void carry_bring(struct engine *e)
{
    struct carried_side *side = &e->carry.up;
    if (side->n == 0)
        return;
    while (side->begun < side->n) {
        struct carried_piece *p = take_turn(side);
        if (p->n > 0)
            e->device->event_wait(p->passed);
        fill(e, side, p);
        await_commits(e, p);
        copy_on_host(e, p, false);
        cross(e, side, p, true);
    }
    streams_follow(e, e->device->compute, e->streams.carrying);
    side->n = side->begun = 0;
}
