/* The exchange: means of closing windows go down through it, and parameters come up. It is a ring
 * of regions in pinned host memory, one for each group whose update is in flight. In a region lie
 * the group's rows, packed (row_groups_count): layer by layer, and there matrix by matrix. So what
 * a layer sends is one run of bytes, and goes by a copy engine, in a piece or a few, from device
 * memory where a short kernel has packed it. With zero_copy, and where device memory is the host's,
 * operators read and write the ring itself. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Device memory in which rows are packed, in bytes, for each direction: no more than this, nor than
 * a block of the model sends. What a layer sends beyond that goes piece by piece. */
#define PACK_BYTES ((size_t)64 << 20)

/* Where matrices are packed: at multiples of 16 bytes of either type, as the widest loads want. */
static size_t aligned(size_t elements)
{
    return (elements + 7) / 8 * 8;
}

/* ---- how much there is of it ---- */

/* Elements of a matrix's owned rows in one of so many groups: of that group; or in any of them, at
 * most, as there is room for. */
static size_t elements_of_group(const struct matrix *m, int interval, int group)
{
    const struct matrix_part part = {m->index, m->owned.first, m->param->rows, m->cols};
    const struct row_groups groups = row_groups_of(&part, interval);
    return (size_t)row_groups_count(&groups, group, m->n_owned) * (size_t)m->cols;
}

static size_t room_of_group(const struct matrix *m, int interval)
{
    size_t most = 0;
    if (!m->selectable)
        return 0;
    for (int j = 0; j < interval; j++) {
        const size_t n = elements_of_group(m, interval, j);
        most = n > most ? n : most;
    }
    return aligned(most);
}

/* Of a region: of all layers, or of the largest block. */
static size_t region_elements(const struct engine *e, int interval, bool of_block)
{
    size_t all = 0, layer = 0, block = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        const int at = e->matrices[i].param->layer;
        layer = i > 0 && e->matrices[i - 1].param->layer == at ? layer : 0;
        const size_t room = room_of_group(&e->matrices[i], interval);
        all += room;
        layer += room;
        if (at > 0 && at < e->table->n_layers - 1)
            block = layer > block ? layer : block;
    }
    return of_block ? block : all;
}

/* Groups in flight at a time, at most, and one whose update is being committed where commits come
 * behind it: they close one a step, or all together, and never two of the same. */
static int most_in_flight(const struct engine *e, int interval, int lag)
{
    const int staggered = (lag > 1 ? lag : 1) + e->config.params_on_host;
    return e->config.stagger && staggered < interval ? staggered : interval;
}

/* Elements of as many regions as a schedule needs. */
static size_t ring_elements(const struct engine *e, int interval, int lag)
{
    return (size_t)most_in_flight(e, interval, lag) * region_elements(e, interval, false);
}

/* Of the schedules that may come: warm-up rounds are windows of one step, all channels at once;
 * update_interval "auto" and "keep_up" may choose any windows that are not shorter than the lag.
 * Staggered ones that are longer than groups in flight take less the longer they are. */
static size_t most_elements(const struct engine *e)
{
    const int lag = e->config.apply_lag, first = lag > 1 ? lag : 1;
    const int from = e->config.update_interval ? e->config.update_interval : first;
    const int longest = e->config.update_interval ? from
                        : e->config.stagger       ? first + 2
                                                  : ENGINE_MAX_INTERVAL;
    const int to = longest < ENGINE_MAX_INTERVAL ? longest : ENGINE_MAX_INTERVAL;
    size_t most = e->config.full_warm_up_rounds > 0 ? ring_elements(e, 1, 0) : 0;
    for (int interval = from; interval <= to; interval++) {
        const size_t n = ring_elements(e, interval, lag);
        most = n > most ? n : most;
    }
    return most;
}

size_t exchange_most_bytes(const struct engine *e)
{
    return most_elements(e) * dtype_size(exchange_dtype(e));
}

/* ---- memory ---- */

/* Elements of the memory that rows are packed in: those of a block, but not less than a row. */
static size_t pack_elements(const struct engine *e)
{
    const size_t size = dtype_size(exchange_dtype(e));
    size_t n = region_elements(e, e->config.update_interval ? e->config.update_interval : 1, true);
    n = n < PACK_BYTES / size ? n : PACK_BYTES / size;
    for (int i = 0; i < e->n_matrices; i++) {
        const size_t cols = e->matrices[i].selectable ? aligned((size_t)e->matrices[i].cols) : 0;
        n = cols > n ? cols : n;
    }
    return n;
}

void exchange_place(struct engine *e)
{
    struct exchange *x = &e->exchange;
    struct arena *a = &e->arena;
    const size_t size = dtype_size(exchange_dtype(e));
    if (!exchange_copies(e) || e->host.elements == 0)
        return;
    x->pack_elements = pack_elements(e);
    x->up = arena_take(a, &a->use.workspace, x->pack_elements, size);
    if (host_window_elements(e, false) > 0)
        x->down = arena_take(a, &a->use.workspace, x->pack_elements, size);
}

void exchange_create(struct engine *e)
{
    struct exchange *x = &e->exchange;
    const size_t n_layers = (size_t)e->table->n_layers;
    x->layer = zf_calloc(n_layers + 1, sizeof *x->layer);
    x->first_piece = zf_calloc(n_layers + 1, sizeof *x->first_piece);
    x->regions = zf_calloc(ENGINE_MAX_INTERVAL, sizeof *x->regions);
}

static void release_region(struct engine *e, struct region *r)
{
    if (!r->left)
        return;
    for (int layer = 0; layer < e->table->n_layers; layer++)
        e->device->event_destroy(r->left[layer]);
    free(r->left);
}

void exchange_release(struct engine *e)
{
    struct exchange *x = &e->exchange;
    if (x->regions)
        for (int r = 0; r < ENGINE_MAX_INTERVAL; r++)
            release_region(e, &x->regions[r]);
    if (x->memory)
        e->device->release_host(x->memory);
    free(x->regions);
    free(x->layer);
    free(x->first_piece);
    free(x->pieces);
}

/* ---- where everything lies ---- */

/* Where matrices and layers begin in a region. */
static void lay_out_region(struct engine *e)
{
    struct exchange *x = &e->exchange;
    size_t at = 0;
    for (int layer = 0; layer < e->table->n_layers; layer++) {
        x->layer[layer] = at;
        for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1];
             i++) {
            struct matrix *m = &e->matrices[i];
            m->host.packed = at - x->layer[layer];
            at += room_of_group(m, e->windows.interval);
            m->packed_end = at - x->layer[layer];
        }
    }
    x->region_elements = at;
}

/* Appends a piece of a layer, from where the last one ended; it ends at element `end`. */
static void add_piece(struct exchange *x, int *n, size_t begin, size_t end)
{
    if (end == begin)
        return;
    x->pieces = zf_realloc(x->pieces, sizeof *x->pieces * (size_t)(*n + 1));
    x->pieces[(*n)++] = (struct packed_piece){begin, end - begin};
}

/* Cuts a layer between rows into pieces that there is room to pack; operators that work on the ring
 * itself take a layer as a whole. Returns how many pieces there are. */
static int cut_layer(struct engine *e, int layer, int n)
{
    struct exchange *x = &e->exchange;
    size_t begin = 0, end = 0; /* of the piece that grows */
    for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1]; i++) {
        const struct matrix *m = &e->matrices[i];
        const size_t cols = (size_t)m->cols;
        while (x->up && m->packed_end - begin > x->pack_elements) {
            const size_t most = begin + x->pack_elements;
            const size_t rows = most > m->host.packed ? (most - m->host.packed) / cols : 0;
            const size_t cut = rows > 0 ? m->host.packed + rows * cols : end;
            add_piece(x, &n, begin, cut);
            begin = cut;
        }
        end = m->packed_end;
    }
    add_piece(x, &n, begin, end);
    return n;
}

/* As much memory as the windows in force need. What there was goes first, so that there is never
 * more than the greater of the two. */
static void make_memory(struct engine *e)
{
    struct exchange *x = &e->exchange;
    const size_t bytes =
        ring_elements(e, e->windows.interval, e->windows.lag) * dtype_size(exchange_dtype(e));
    if (bytes == x->bytes)
        return;
    if (x->memory) {
        streams_wait(e); /* what has arrived may be on its way out of it */
        e->device->release_host(x->memory);
    }
    x->memory = bytes > 0 ? allocate_crossed(e, bytes) : NULL;
    x->bytes = bytes;
}

/* Regions, which are free. */
static void make_regions(struct engine *e)
{
    struct exchange *x = &e->exchange;
    const int n_layers = e->table->n_layers;
    x->n_regions =
        x->region_elements > 0 ? most_in_flight(e, e->windows.interval, e->windows.lag) : 0;
    x->next = 0;
    for (int r = 0; r < x->n_regions; r++) {
        struct region *region = &x->regions[r];
        region->group = NULL;
        if (region->left)
            continue;
        region->left = zf_malloc(sizeof *region->left * (size_t)n_layers);
        for (int layer = 0; layer < n_layers; layer++)
            region->left[layer] = e->device->event_create();
    }
}

void exchange_lay_out(struct engine *e)
{
    struct exchange *x = &e->exchange;
    int n = 0;
    lay_out_region(e);
    make_memory(e);
    for (int layer = 0; layer < e->table->n_layers; layer++) {
        x->first_piece[layer] = n;
        n = cut_layer(e, layer, n);
    }
    x->first_piece[e->table->n_layers] = n;
    make_regions(e);
}

/* ---- regions ---- */

struct group *exchange_next_holder(const struct engine *e)
{
    const struct exchange *x = &e->exchange;
    return x->n_regions > 0 ? x->regions[x->next].group : NULL;
}

void exchange_take_region(struct engine *e, struct group *g)
{
    struct exchange *x = &e->exchange;
    struct group *before = exchange_next_holder(e);
    if (x->region_elements == 0)
        return;
    assert(x->n_regions > 0 && !(before && before->in_flight));
    if (before)
        host_wait(e, &before->commit); /* it reads the region */
    g->region = x->next;
    x->regions[x->next].group = g;
    x->next = (x->next + 1) % x->n_regions;
}

void exchange_resume(struct engine *e)
{
    struct windows *w = &e->windows;
    exchange_lay_out(e);
    /* In the order in which they closed, and will arrive. */
    for (int steps = 0; steps < ENGINE_MAX_INTERVAL; steps++)
        for (int j = 0; j < w->interval; j++)
            if (w->groups[j].in_flight && (long long)w->groups[j].due - e->step == steps)
                exchange_take_region(e, &w->groups[j]);
}

/* ---- crossing ---- */

/* A group's region, from a layer's element on. */
static char *in_region(const struct engine *e, const struct group *g, int layer, size_t at)
{
    const struct exchange *x = &e->exchange;
    return x->memory + ((size_t)g->region * x->region_elements + x->layer[layer] + at) *
                           dtype_size(exchange_dtype(e));
}

void *exchange_layer(const struct engine *e, const struct group *g, int layer)
{
    return e->exchange.memory ? in_region(e, g, layer, 0) : NULL;
}

void *exchange_row(const struct engine *e, const struct matrix *m, int row)
{
    const struct row_groups groups = owned_groups(e, m);
    const int group = row_groups_group(&groups, row);
    const size_t position = (size_t)row_groups_count(&groups, group, row);
    return in_region(e, &e->windows.groups[group], m->param->layer,
                     m->host.packed + position * (size_t)m->cols);
}

size_t exchange_bytes(const struct engine *e, const struct group *g, int layer, bool down)
{
    size_t meant = 0, all = 0;
    for (int i = e->batches.first_of_layer[layer]; i < e->batches.first_of_layer[layer + 1]; i++) {
        const struct matrix *m = &e->matrices[i];
        if (!m->selectable)
            continue;
        const int rows = m->n_deferred[g->index] + (down ? m->n_entering[g->index] : 0);
        meant += (size_t)rows * (size_t)m->cols;
        all += elements_of_group(m, e->windows.interval, g->index);
    }
    return (exchange_copies(e) ? all : meant) * dtype_size(exchange_dtype(e));
}

/* A piece of a layer as the device's operators see it: in the ring, or in `memory`, where copies
 * take it from or to. */
static struct packed_rows piece_of(const struct engine *e, const struct group *g, int layer,
                                   const struct packed_piece *p, void *memory)
{
    return (struct packed_rows){.memory = memory ? memory : in_region(e, g, layer, p->first),
                                .first = p->first,
                                .n = p->n,
                                .group = g->index,
                                .n_groups = e->windows.interval,
                                .on_device = memory != NULL};
}

static size_t piece_bytes(const struct engine *e, const struct packed_piece *p)
{
    return p->n * dtype_size(exchange_dtype(e));
}

void exchange_send(struct engine *e, const struct group *g, int layer)
{
    const struct exchange *x = &e->exchange;
    struct device *d = e->device;
    for (int i = x->first_piece[layer]; i < x->first_piece[layer + 1]; i++) {
        const struct packed_piece *p = &x->pieces[i];
        const struct packed_rows to = piece_of(e, g, layer, p, x->down);
        d->row_ops->send_rows(e->streams.down, &e->batches.layers[layer], exchange_dtype(e), &to,
                              (float)g->closing_steps);
        if (to.on_device)
            d->copy(e->streams.down, in_region(e, g, layer, p->first), to.memory,
                    piece_bytes(e, p));
    }
}

void exchange_receive(struct engine *e, const struct group *g, int layer)
{
    const struct exchange *x = &e->exchange;
    struct device *d = e->device;
    for (int i = x->first_piece[layer]; i < x->first_piece[layer + 1]; i++) {
        const struct packed_piece *p = &x->pieces[i];
        const struct packed_rows from = piece_of(e, g, layer, p, x->up);
        if (from.on_device)
            d->copy(e->streams.up, from.memory, in_region(e, g, layer, p->first),
                    piece_bytes(e, p));
        d->row_ops->receive_rows(e->streams.up, &e->batches.layers[layer], exchange_dtype(e),
                                 &from);
    }
    d->event_record(x->regions[g->region].left[layer], e->streams.up);
}

void exchange_reuse(struct engine *e, const struct group *g, int layer)
{
    if (e->exchange.n_regions > 0)
        e->device->event_order(e->streams.down, e->exchange.regions[g->region].left[layer]);
}

double exchange_seconds(struct engine *e)
{
    const struct exchange *x = &e->exchange;
    const size_t size = dtype_size(exchange_dtype(e));
    struct stream *up = e->streams.up;
    if (!x->up || !x->memory)
        return 0;
    const size_t all = x->bytes / size, n = x->pack_elements < all ? x->pack_elements : all;
    size_t coming = 0; /* blocks whose parameters the host has come anyway */
    for (int i = 0; i < e->n_matrices; i++)
        if (e->matrices[i].selectable && !e->matrices[i].streams)
            coming += owned_elements(&e->matrices[i]);
    e->device->stream_wait(up); /* what came before has been unpacked, and so may be written over */
    const double start = clock_seconds();
    e->device->copy(up, x->up, x->memory, n * size);
    e->device->stream_wait(up);
    return (clock_seconds() - start) * (double)coming / (double)n;
}
