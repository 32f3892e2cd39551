/* Where a channel's state lives, how it moves, and the updates on the device. */
#include "offload/engine_internal.h"
#include "offload/select.h"

#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

/* A fresh choice is looked for as often as this (steps) where stale choices are replaced, and made
 * where the chosen channels hold less than this part of what a fresh choice would hold. */
#define STALE_CHECK_STEPS 16
#define STALE_PART        0.5

static void *regrow(struct engine *e, void *old, size_t old_bytes, size_t bytes)
{
    struct device *d = e->device;
    void *memory = d->allocate(bytes);
    if (old) {
        d->copy(d->compute, memory, old, old_bytes);
        d->stream_wait(d->compute);
        d->release(old);
    }
    e->device_bytes += bytes - old_bytes;
    return memory;
}

/* With offload_important the state of important channels stays on the host and visits the device
 * for its update alone, in arrays that all matrices share. */
static bool visits(const struct engine *e, const struct matrix *m)
{
    return e->config.offload_important && m->selectable;
}

static struct state_arrays *arrays_of(struct engine *e, struct matrix *m)
{
    return visits(e, m) ? &e->visiting : &m->slots.state;
}

/* Room for so many floats in each array. Only the state of a matrix's own slots outlives growth. */
static void grow_state(struct engine *e, struct state_arrays *s, size_t n)
{
    size_t old = sizeof(float) * s->n_elements, now = sizeof(float) * n;
    if (n <= s->n_elements)
        return;
    s->m = regrow(e, s->m, old, now);
    s->v = regrow(e, s->v, old, now);
    if (e->config.bf16)
        s->master = regrow(e, s->master, old, now);
    s->n_elements = n;
}

static void grow_slots(struct engine *e, struct matrix *m, int capacity)
{
    struct slots *s = &m->slots;
    size_t old = (size_t)s->capacity, now = (size_t)capacity;
    s->row_host = zf_realloc(s->row_host, sizeof(int) * now);
    s->corrections_host = zf_realloc(s->corrections_host, sizeof(float) * 2 * now);
    s->row = regrow(e, s->row, sizeof(int) * old, sizeof(int) * now);
    s->corrections = regrow(e, s->corrections, sizeof(float) * 2 * old, sizeof(float) * 2 * now);
    grow_state(e, arrays_of(e, m), now * (size_t)m->cols);
    s->capacity = capacity;
}

static int take_slot(struct engine *e, struct matrix *m, int row)
{
    struct slots *s = &m->slots;
    int slot = s->lowest_free;
    while (slot < s->n && s->row_host[slot] >= 0)
        slot++;
    s->lowest_free = slot + 1;
    if (slot == s->capacity) {
        int twice = s->capacity ? 2 * s->capacity : 1;
        int wanted = m->selectable ? select_count(e->config.topk_ratio, m->n_owned) : m->n_owned;
        int capacity = twice > wanted ? twice : wanted;
        grow_slots(e, m, capacity < m->n_owned ? capacity : m->n_owned);
    }
    if (slot == s->n)
        s->n++;
    s->row_host[slot] = row;
    m->slot_of[row] = slot;
    return slot;
}

/* The three fp32 arrays of a channel on either side: master, m, v. */
struct state {
    float *part[3];
};

static struct state host_side(const struct matrix *m, int row)
{
    size_t at = (size_t)row * (size_t)m->cols;
    return (struct state){{m->host.master + at, m->host.m + at, m->host.v + at}};
}

static struct state device_side(struct engine *e, struct matrix *m, int row)
{
    const struct state_arrays *s = arrays_of(e, m);
    size_t at = (size_t)m->slot_of[row] * (size_t)m->cols;
    float *master = s->master ? s->master + at : (float *)m->values + (size_t)row * (size_t)m->cols;
    return (struct state){{master, s->m + at, s->v + at}};
}

float *channels_state(struct engine *e, struct matrix *m, int row, int part)
{
    bool on_device = place_of(e, m, row) == CHANNEL_IMPORTANT && !visits(e, m);
    return on_device ? device_side(e, m, row).part[part] : host_side(m, row).part[part];
}

void channels_adopt(struct engine *e, struct matrix *m)
{
    for (int row = 0; m->selectable && row < m->n_owned; row++)
        if (place_of(e, m, row) == CHANNEL_IMPORTANT)
            take_slot(e, m, row);
}

static void move_state(struct engine *e, const struct matrix *m, struct state to, struct state from,
                       struct step_report *report)
{
    struct device *d = e->device;
    size_t bytes = sizeof(float) * (size_t)m->cols;
    for (int i = 0; i < 3; i++)
        d->copy(d->compute, to.part[i], from.part[i], bytes);
    report->bytes_moved += 3 * bytes;
}

void channels_initialise(struct engine *e, struct matrix *m)
{
    struct device *d = e->device;
    struct state_arrays *s = &m->slots.state;
    size_t bytes = sizeof(float) * (size_t)m->n_owned * (size_t)m->cols;
    for (int row = 0; row < m->n_owned; row++)
        take_slot(e, m, row);
    if (m->n_owned == 0)
        return;
    d->zero(d->compute, s->m, bytes);
    d->zero(d->compute, s->v, bytes);
    if (s->master)
        d->copy(d->compute, s->master, m->values, bytes);
}

void channels_to_device(struct engine *e, struct matrix *m, int row, struct step_report *report)
{
    take_slot(e, m, row);
    if (!visits(e, m))
        move_state(e, m, device_side(e, m, row), host_side(m, row), report);
}

void channels_to_host(struct engine *e, struct matrix *m, int row, struct step_report *report)
{
    if (!visits(e, m))
        move_state(e, m, host_side(m, row), device_side(e, m, row), report);
    int slot = m->slot_of[row];
    m->slots.row_host[slot] = -1;
    if (slot < m->slots.lowest_free)
        m->slots.lowest_free = slot;
    m->slot_of[row] = -1;
}

/* Brings visitors' state, or takes it back. */
static void visit(struct engine *e, struct matrix *m, const int *rows, bool arrive,
                  struct step_report *report)
{
    for (int i = 0; i < m->slots.n && visits(e, m); i++) {
        if (rows[i] < 0)
            continue;
        struct state here = device_side(e, m, rows[i]), home = host_side(m, rows[i]);
        move_state(e, m, arrive ? here : home, arrive ? home : here, report);
    }
}

struct adamw engine_rule(const struct engine *e, const struct matrix *m, float lr)
{
    const struct engine_config *c = &e->config;
    return (struct adamw){.lr = lr,
                          .beta1 = c->beta1,
                          .beta2 = c->beta2,
                          .eps = c->eps,
                          .weight_decay = m->param->decay ? c->weight_decay : 0,
                          .l2 = !c->adam_w_mode};
}

/* Counts one update more for each of these channels and fills in its bias corrections. */
static void count_updates(struct matrix *m, const int *rows, const struct adamw *rule)
{
    struct adamw at = {0};
    uint32_t last = 0;
    for (int i = 0; i < m->slots.n; i++) {
        if (rows[i] < 0)
            continue;
        uint32_t update = ++m->host.updates[rows[i]];
        if (update != last)
            at = host_adam_rule_at(rule, update);
        last = update;
        m->slots.corrections_host[2 * i] = at.correction1;
        m->slots.corrections_host[2 * i + 1] = at.correction2;
    }
}

void channels_update(struct engine *e, struct matrix *m, const int *rows, const float *gradient,
                     float lr, float factor, struct step_report *report)
{
    struct device *d = e->device;
    struct slots *s = &m->slots;
    struct state_arrays *state = arrays_of(e, m);
    struct adamw rule = engine_rule(e, m, lr);
    size_t n = (size_t)s->n;
    count_updates(m, rows, &rule);
    visit(e, m, rows, true, report);
    d->copy(d->compute, s->row, rows, sizeof(int) * n);
    d->copy(d->compute, s->corrections, s->corrections_host, sizeof(float) * 2 * n);
    d->copy(d->compute, e->scale, &factor, sizeof factor);
    d->ops->adamw_rows(d->compute, m->values, state->master, state->m, state->v, gradient, s->row,
                       s->corrections, s->n, m->cols, &rule, e->scale, e->config.bf16);
    visit(e, m, rows, false, report);
}

void channels_update_important(struct engine *e, float factor, struct step_report *report)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        if (m->slots.n > 0)
            channels_update(e, m, m->slots.row_host, m->grad, e->lr, factor, report);
    }
    for (size_t i = 0; i < e->n_channels; i++)
        e->updated[i] |= e->place[i] == CHANNEL_IMPORTANT;
}

/* The newest norms' choice into `chosen`. */
static void choose(const struct engine *e, unsigned char *chosen)
{
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        if (m->selectable)
            select_top(e->norms + m->first_channel, m->param->rows,
                       select_count(e->config.topk_ratio, m->param->rows),
                       chosen + m->first_channel);
    }
}

/* The share of the squared norm, over all selectable matrices, of channels that hold a 1. */
static double share_of(const struct engine *e, const unsigned char *chosen)
{
    double all = 0, held = 0;
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        for (int row = 0; m->selectable && row < m->param->rows; row++) {
            size_t c = m->first_channel + (size_t)row;
            all += e->norms[c];
            held += chosen[c] == 1 ? e->norms[c] : 0;
        }
    }
    return all > 0 ? held / all : 1;
}

static bool is_stale(const struct engine *e, double share)
{
    if (!e->config.reselect_when_stale || e->step % STALE_CHECK_STEPS != 0)
        return false;
    unsigned char *fresh = zf_malloc(e->n_channels);
    memcpy(fresh, e->target, e->n_channels);
    choose(e, fresh);
    bool stale = share < STALE_PART * share_of(e, fresh);
    free(fresh);
    return stale;
}

/* The first choice counts at once: no window is open and no update in flight. */
static void adopt_first_choice(struct engine *e, struct step_report *report)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        for (int row = 0; m->selectable && row < m->n_owned; row++)
            if (e->target[m->first_channel + (size_t)(m->owned.first + row)])
                channels_to_device(e, m, row, report);
    }
    memcpy(e->place, e->target, e->n_channels);
    e->device->copy(e->device->compute, e->place_device, e->place, e->n_channels);
    e->selected = true;
}

void channels_select(struct engine *e, struct step_report *report)
{
    int since = e->config.select_every;
    report->important_share = share_of(e, e->place);
    if (e->config.topk_ratio <= 0 || e->config.topk_ratio >= 1 ||
        e->step < e->config.full_warm_up_rounds)
        return;
    report->selected =
        !e->selected || (since > 0 && e->step % since == 0) || is_stale(e, report->important_share);
    if (!report->selected)
        return;
    choose(e, e->target);
    if (!e->selected)
        adopt_first_choice(e, report);
    report->important_share = share_of(e, e->place);
}

static void release(struct engine *e, void *device_memory)
{
    if (device_memory)
        e->device->release(device_memory);
}

static void release_state(struct engine *e, struct state_arrays *s)
{
    release(e, s->master);
    release(e, s->m);
    release(e, s->v);
}

void channels_release(struct engine *e)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        release(e, m->slots.row);
        release(e, m->slots.corrections);
        release_state(e, &m->slots.state);
        free(m->slots.row_host);
        free(m->slots.corrections_host);
        free(m->slot_of);
    }
    release_state(e, &e->visiting);
}
