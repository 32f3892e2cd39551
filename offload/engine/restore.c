/* What a checkpoint may say of an engine: only what one of this configuration can have left. The
 * rest of the engine is written as if nothing else could be, so all else is refused here. */
#include "offload/engine/restore.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Steps that there can be: the ends of windows and updates are whole numbers too. */
#define MOST_STEPS (INT32_MAX - 4 * ENGINE_MAX_INTERVAL)

/* ---- counters ---- */

/* Whole numbers, and one that is none, with single spaces between them and nothing behind. */
static bool parse(const char *text, int *numbers, int n, float *last)
{
    char *end;
    for (int i = 0; i < n; i++, text = end + 1) {
        const long value = strtol(text, &end, 10);
        if (end == text || *end != ' ' || value < -INT32_MAX || value > INT32_MAX)
            return false;
        numbers[i] = (int)value;
    }
    *last = strtof(text, &end);
    return end != text && !*end;
}

static bool within(int value, int low, int high)
{
    return value >= low && value <= high;
}

/* Windows of one step before the configured ones begin. */
static bool is_warm_up(const struct engine *e, const struct restored *r)
{
    return r->step <= e->config.full_warm_up_rounds && r->interval == 1 && r->lag == 0 &&
           r->began == 0;
}

static bool is_schedule(const struct engine *e, const struct restored *r)
{
    const struct engine_config *c = &e->config;
    const int fixed = c->update_interval, first = c->full_warm_up_rounds;
    return r->step >= first && r->lag == c->apply_lag && within(r->began, first, r->step) &&
           (fixed ? r->interval == fixed && r->began == first
                  : within(r->interval, r->lag > 1 ? r->lag : 1, ENGINE_MAX_INTERVAL));
}

static bool is_choice(const struct engine *e, const struct restored *r)
{
    const struct engine_config *c = &e->config;
    const bool selected =
        c->topk_ratio > 0 && c->topk_ratio < 1 && r->step > c->full_warm_up_rounds;
    return r->selected == selected &&
           (selected ? within(r->chosen_in, c->full_warm_up_rounds, r->step - 1)
                     : r->chosen_in == 0);
}

bool restore_counters(const struct engine *e, const char *text, struct restored *r)
{
    int n[9];
    if (!parse(text, n, 9, &r->lr))
        return false;
    r->step = n[0];
    r->interval = n[1];
    r->lag = n[2];
    r->began = n[3];
    r->selected = n[4];
    r->skipped_in_a_row = n[5];
    r->observed_steps = n[6];
    r->least_interval = n[7];
    r->chosen_in = n[8];
    return within(r->step, 0, MOST_STEPS) && (is_warm_up(e, r) || is_schedule(e, r)) &&
           is_choice(e, r) && within(r->skipped_in_a_row, 0, ENGINE_SKIPPED_LIMIT - 1) &&
           within(r->observed_steps, 0, r->step) &&
           within(r->least_interval, -ENGINE_MAX_INTERVAL, ENGINE_MAX_INTERVAL) &&
           isfinite(r->lr) && r->lr >= 0;
}

/* ---- groups ---- */

/* The last step of the schedule, before `step`, in which a group's window closed; -1: none yet. */
static int last_closing(const struct engine *e, int group)
{
    const struct windows *w = &e->windows;
    for (int s = e->step - 1; s >= w->began && s >= e->step - w->interval; s--)
        if (schedule_closes(group, s - w->began, w->interval, e->config.stagger))
            return s;
    return -1;
}

/* What the counters say of a group: all but has_leaving. */
static struct group_state expected_group(const struct engine *e, int group)
{
    const struct windows *w = &e->windows;
    const int closed = last_closing(e, group), began = closed < 0 ? w->began : closed + 1;
    struct group_state g = {.open_steps = e->step - began};
    if (!e->defers)
        return (struct group_state){0};
    g.oldest = g.open_steps ? began : 0;
    g.in_flight = closed >= 0 && closed + w->lag >= e->step;
    if (!g.in_flight)
        return g;
    const int first = closed - w->began + 1;
    g.closing_steps = first < w->interval ? first : w->interval;
    g.due = closed + w->lag;
    g.oldest_in_flight = closed - g.closing_steps + 1;
    return g;
}

/* A run that was over when it was stopped has closed all windows. */
bool restore_is_finished(const struct group_state *groups, int n)
{
    static const struct group_state none;
    for (int j = 0; j < n; j++)
        if (memcmp(&groups[j], &none, sizeof none) != 0)
            return false;
    return true;
}

bool restore_group(const struct engine *e, int group, const struct group_state *found)
{
    struct group_state expected = expected_group(e, group);
    if (expected.in_flight && found->has_leaving == 1)
        expected.has_leaving = 1;
    return memcmp(&expected, found, sizeof expected) == 0;
}

bool restore_norms(const double *norms, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(norms[i]) || norms[i] < 0)
            return false;
    return true;
}

/* ---- places ---- */

/* Whether a group has taken over the newest choice. */
static bool has_adopted(const struct engine *e, int group)
{
    const int chosen = e->selection.chosen_in, warm_up = e->config.full_warm_up_rounds;
    return chosen == warm_up || last_closing(e, group) >= chosen ||
           (e->windows.began > warm_up && e->windows.began - 1 >= chosen); /* all closed then */
}

static bool is_resident(const unsigned char *place, const unsigned char *target, int n)
{
    for (int row = 0; row < n; row++)
        if (place[row] != CHANNEL_RESIDENT || target[row] != 1)
            return false;
    return true;
}

static bool may_stand(const struct engine *e, int group, bool adopted, unsigned char place,
                      unsigned char target)
{
    const struct group *g = &e->windows.groups[group];
    const int closed = last_closing(e, group);
    if (target > 1 || place >= CHANNEL_PLACES || place == CHANNEL_RESIDENT)
        return false;
    if (place == CHANNEL_LEAVING && (closed < 0 || (g->in_flight && !g->has_leaving)))
        return false;
    if (place == CHANNEL_ENTERING && !(closed == e->step - 1 && g->in_flight && target))
        return false;
    return !adopted || place != CHANNEL_IMPORTANT || target;
}

/* Of two choices at most. One that is to enter may wait for a slot. */
bool restore_places(const struct engine *e, const struct matrix *m)
{
    const unsigned char *place = e->selection.place + m->first_channel;
    const unsigned char *target = e->selection.target + m->first_channel;
    const int chosen = schedule_important(e->config.topk_ratio, m->param->rows);
    const struct row_groups groups = row_groups_of(
        &(struct matrix_part){m->index, 0, m->param->rows, m->cols}, e->windows.interval);
    int targets = 0, former = 0;
    bool adopted[ENGINE_MAX_INTERVAL];
    if (!m->selectable)
        return is_resident(place, target, m->param->rows);
    for (int j = 0; j < e->windows.interval; j++)
        adopted[j] = has_adopted(e, j);
    for (int row = 0; row < m->param->rows; row++) {
        const int j = row_groups_group(&groups, row);
        if (!may_stand(e, j, adopted[j], place[row], target[row]))
            return false;
        targets += target[row];
        former += place[row] == CHANNEL_IMPORTANT && !target[row];
    }
    return e->selection.selected ? targets == chosen && former <= chosen
                                 : targets == 0 && former == 0;
}
