/* Save and load: DIR/optimizer-RRRRR-of-RRRRR.safetensors, one file a rank. It holds, for each
 * parameter, over the channels that the rank owns, of which metadata "<name>" tells the first:
 *
 *   <name>.master, <name>.exp_avg, <name>.exp_avg_sq   (channels, cols) F32
 *   <name>.step                                        (channels) I32, AdamW updates
 *   <name>.place, <name>.target                        (channels) U8
 *   <name>.window                                      (channels, cols) F32, where channels defer;
 *                                                      0 where no window is open
 *   <name>.window_norm                                 (channels) F32, the same of squared norms,
 *                                                      where an update stands for all steps
 *
 * and for the engine:
 *
 *   "groups"   (groups, GROUP_FIELDS) I32: struct group_state
 *   "norms"    (2, parameters) I64: the bits of doubles
 *
 * Metadata "engine" holds the counters and the last learning rate, "settings" what must be the same
 * to go on, "layout" which version of all this it is. Loading believes none of it: restore.c says
 * what may stand there. */
#include "offload/engine/restore.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_FIELDS ((int)(sizeof(struct group_state) / sizeof(int32_t)))
/* With channels that enter; 3 had none, 2 had what happened to be in memory where nothing is told,
 * and those without a number have groups of single channels. */
#define LAYOUT "4"

static const char *const PART_NAMES[] = {"master", "exp_avg", "exp_avg_sq", "window",
                                         "window_norm"};
#define WINDOW      3
#define WINDOW_NORM 4

static char *settings(const struct engine *e)
{
    const struct engine_config *c = &e->config;
    return zf_format("topk_ratio %g, update_interval %d, apply_lag %d, stagger %d, bf16 %d, "
                     "full_warm_up_rounds %d%s",
                     c->topk_ratio, c->update_interval, c->apply_lag, c->stagger, c->bf16,
                     c->full_warm_up_rounds, c->all_steps ? ", deferred_update all_steps" : "");
}

char *engine_file_name(int rank, int ranks)
{
    return zf_format("optimizer-%05d-of-%05d.safetensors", rank + 1, ranks);
}

static char *shard_path(const char *directory, int rank, int ranks)
{
    char *name = engine_file_name(rank, ranks), *path = zf_format("%s/%s", directory, name);
    free(name);
    return path;
}

/* ---- save ---- */

static void declare(struct safetensors_writer *w, const struct matrix *m, const char *what,
                    enum dtype dtype, int n_dims)
{
    char *name = zf_format("%s.%s", m->param->name, what);
    int64_t shape[2] = {m->n_owned, m->cols};
    safetensors_write_declare(w, name, dtype, n_dims, shape);
    free(name);
}

static void declare_matrix(struct safetensors_writer *w, const struct matrix *m)
{
    char *first = zf_format("%d", m->owned.first);
    safetensors_write_metadata(w, m->param->name, first);
    free(first);
    for (int part = 0; part < 3; part++)
        declare(w, m, PART_NAMES[part], DTYPE_F32, 2);
    declare(w, m, "step", DTYPE_I32, 1);
    declare(w, m, "place", DTYPE_U8, 1);
    declare(w, m, "target", DTYPE_U8, 1);
    if (m->selectable)
        declare(w, m, PART_NAMES[WINDOW], DTYPE_F32, 2);
    if (m->selectable && m->window_norms)
        declare(w, m, PART_NAMES[WINDOW_NORM], DTYPE_F32, 1);
}

static void write_values(struct safetensors_writer *w, const struct matrix *m, const float *values)
{
    safetensors_write_data(w, values, sizeof(float) * (size_t)m->n_owned * (size_t)m->cols);
}

/* The windows, wherever they are, to host memory or back. */
static void copy_window(struct engine *e, const struct matrix *m, float *values, bool write)
{
    struct device *d = e->device;
    size_t bytes = sizeof(float) * (size_t)m->n_owned * (size_t)m->cols;
    float *to = write ? m->window : values, *from = write ? values : m->window;
    if (!m->window) { /* none is ever open */
        if (!write)
            memset(values, 0, bytes);
    } else if (m->host.window) {
        memcpy(to, from, bytes);
    } else {
        d->copy(d->compute, to, from, bytes);
        d->stream_wait(d->compute);
    }
}

/* Where no window is open there is what happens to be in memory. */
static void clear_closed(const struct engine *e, const struct matrix *m, float *windows,
                         size_t cols)
{
    const struct row_groups groups = owned_groups(e, m);
    for (int row = 0; row < m->n_owned; row++)
        if (channel_is_important(place_of(e, m, row)) ||
            e->windows.groups[row_groups_group(&groups, row)].open_steps == 0)
            memset(windows + (size_t)row * cols, 0, sizeof *windows * cols);
}

static void write_matrix(struct engine *e, struct safetensors_writer *w, struct matrix *m)
{
    size_t first = m->first_channel + (size_t)m->owned.first, n = (size_t)m->n_owned;
    float *values = zf_malloc(sizeof(float) * (n * (size_t)m->cols + 1));
    for (int part = 0; part < 3; part++) {
        state_read(e, m, part, values);
        write_values(w, m, values);
    }
    safetensors_write_data(w, m->host.updates, sizeof(uint32_t) * n);
    safetensors_write_data(w, e->selection.place + first, n);
    safetensors_write_data(w, e->selection.target + first, n);
    if (m->selectable) {
        copy_window(e, m, values, false);
        clear_closed(e, m, values, (size_t)m->cols);
        write_values(w, m, values);
    }
    if (m->selectable && m->window_norms) {
        memcpy(values, m->window_norms, sizeof *values * n);
        clear_closed(e, m, values, 1);
        safetensors_write_data(w, values, sizeof *values * n);
    }
    free(values);
}

static struct group_state tell_group(const struct group *g)
{
    struct group_state s = {.open_steps = g->open_steps};
    s.oldest = g->open_steps ? g->oldest : 0;
    if (!g->in_flight)
        return s;
    s.in_flight = 1;
    s.due = g->due;
    s.oldest_in_flight = g->oldest_in_flight;
    s.closing_steps = g->closing_steps;
    s.has_leaving = g->has_leaving;
    return s;
}

static void write_engine(const struct engine *e, struct safetensors_writer *w)
{
    for (int j = 0; j < e->windows.interval; j++) {
        const struct group_state s = tell_group(&e->windows.groups[j]);
        safetensors_write_data(w, &s, sizeof s);
    }
    safetensors_write_data(w, e->observed.important_norm, sizeof(double) * (size_t)e->n_matrices);
    safetensors_write_data(w, e->observed.deferred_norm, sizeof(double) * (size_t)e->n_matrices);
}

/* The rule that has measured it is its sign: another one measures anew. */
static int signed_least(const struct engine *e)
{
    const bool keeps_up = e->config.interval_rule == ENGINE_INTERVAL_KEEP_UP;
    return keeps_up ? e->observed.least_interval : -e->observed.least_interval;
}

static void write_metadata(const struct engine *e, struct safetensors_writer *w)
{
    char *counters =
        zf_format("%d %d %d %d %d %d %d %d %d %.9g", e->step, e->windows.interval, e->windows.lag,
                  e->windows.began, e->selection.selected, e->skipped_in_a_row, e->observed.steps,
                  signed_least(e), e->selection.chosen_in, (double)e->lr);
    char *same = settings(e);
    safetensors_write_metadata(w, "engine", counters);
    safetensors_write_metadata(w, "settings", same);
    safetensors_write_metadata(w, "layout", LAYOUT);
    free(same);
    free(counters);
}

bool engine_save(struct engine *e, const char *directory, struct zf_error *err)
{
    char *path = shard_path(directory, comm_rank(e->comm), comm_size(e->comm));
    struct safetensors_writer *w = safetensors_write_begin(path, err);
    free(path);
    engine_settle(e);
    windows_wait(e);
    if (w) {
        int64_t groups[2] = {e->windows.interval, GROUP_FIELDS}, norms[2] = {2, e->n_matrices};
        write_metadata(e, w);
        for (int i = 0; i < e->n_matrices; i++)
            declare_matrix(w, &e->matrices[i]);
        safetensors_write_declare(w, "groups", DTYPE_I32, 2, groups);
        safetensors_write_declare(w, "norms", DTYPE_I64, 2, norms);
        for (int i = 0; i < e->n_matrices; i++)
            write_matrix(e, w, &e->matrices[i]);
        write_engine(e, w);
    }
    bool ok = w && safetensors_write_end(w, true, err);
    return comm_all_ok(e->comm, ok, err);
}

/* ---- load ---- */

/* The number of ranks in such a name, or 0: 0 too where a name is no rank's first. */
static int ranks_of(const char *name)
{
    static const char begin[] = "optimizer-00001-of-";
    const char *digits = name + sizeof begin - 1;
    if (strncmp(name, begin, sizeof begin - 1) != 0 || strspn(digits, "0123456789") != 5 ||
        strcmp(digits + 5, ".safetensors") != 0)
        return 0;
    return atoi(digits);
}

/* How many ranks wrote this checkpoint; 0 and a sentence where that cannot be said. */
static int count_shards(const char *directory, struct zf_error *err)
{
    struct file_names names;
    int ranks = 0;
    bool one = true;
    if (!file_list(directory, &names, err))
        return 0;
    for (int i = 0; i < names.n; i++) {
        const int found = ranks_of(names.list[i]);
        one = one && (!found || !ranks);
        ranks = found ? found : ranks;
    }
    file_names_free(&names);
    if (!one)
        zf_fail(err, "%s: there are optimizer files of several numbers of ranks", directory);
    else if (ranks == 0)
        zf_fail(err, "%s: there is no optimizer-00001-of-*.safetensors", directory);
    return one ? ranks : 0;
}

/* A tensor of a matrix that holds at least the piece's channels, or a fault. */
static const struct tensor *piece_of(const struct safetensors *s, const struct matrix *m,
                                     const char *what, enum dtype dtype, size_t cols, size_t rows,
                                     const char *path, struct zf_error *err)
{
    char *name = zf_format("%s.%s", m->param->name, what);
    const struct tensor *t = safetensors_find(s, name);
    if (!t || t->dtype != dtype || t->n_elements != rows * cols) {
        zf_fail(err, "%s: %s is %s, but %zu elements of %s are expected", path, name,
                t ? "of another size or type" : "absent", rows * cols, dtype_name(dtype));
        t = NULL;
    }
    free(name);
    return t;
}

/* A shard's range of a matrix's channels. */
struct piece {
    const struct safetensors *shard;
    const char *path;
    int rank, ranks; /* that wrote it */
    int first, n;
};

/* The channels that its rank owned. */
static bool find_piece(struct piece *p, const struct matrix *m, struct zf_error *err)
{
    const struct range owned = schedule_owned(m->index, m->param->rows, p->ranks, p->rank);
    const char *found = safetensors_metadata(p->shard, m->param->name);
    char *first = zf_format("%d", owned.first);
    bool same = found && strcmp(found, first) == 0;
    free(first);
    p->first = owned.first;
    p->n = owned.last - owned.first;
    return same ||
           zf_fail(err,
                   "%s: its channels of %s begin at %.20s, but those of rank %d of %d at "
                   "%d",
                   p->path, m->param->name, found ? found : "none", p->rank, p->ranks, owned.first);
}

static bool load_flags(struct engine *e, struct matrix *m, const struct piece *p,
                       struct zf_error *err)
{
    size_t first = m->first_channel + (size_t)p->first, n = (size_t)p->n;
    const struct tensor *place = piece_of(p->shard, m, "place", DTYPE_U8, 1, n, p->path, err);
    const struct tensor *t =
        place ? piece_of(p->shard, m, "target", DTYPE_U8, 1, n, p->path, err) : NULL;
    if (!t)
        return false;
    memcpy(e->selection.place + first, place->data, n);
    memcpy(e->selection.target + first, t->data, n);
    return true;
}

/* This rank's rows of one tensor into an array of (n_owned, cols), or (n_owned); others stay. */
static bool load_part(struct matrix *m, const struct piece *p, int part, float *values,
                      struct zf_error *err)
{
    const size_t cols = part == WINDOW_NORM ? 1 : (size_t)m->cols;
    const struct tensor *t =
        piece_of(p->shard, m, PART_NAMES[part], DTYPE_F32, cols, (size_t)p->n, p->path, err);
    int first = m->owned.first > p->first ? m->owned.first : p->first;
    int last = m->owned.last < p->first + p->n ? m->owned.last : p->first + p->n;
    if (!t || first >= last)
        return t != NULL;
    return tensor_read_f32(t, values + (size_t)(first - m->owned.first) * cols,
                           (size_t)(first - p->first) * cols, (size_t)(last - first) * cols, err);
}

/* Updates that a channel can have had: those of an update that stands for all steps of its window
 * come when that closes. One that finds no slot on these ranks has had more. */
static uint32_t most_updates(const struct engine *e, const struct matrix *m, int row)
{
    const struct row_groups groups = owned_groups(e, m);
    const struct group *g = &e->windows.groups[row_groups_group(&groups, row)];
    const bool gathers = m->selectable && !channel_has_state(place_of(e, m, row));
    return (uint32_t)(e->step - (gathers && notes_norms(e) ? g->open_steps : 0));
}

static bool load_counts(const struct engine *e, struct matrix *m, const struct piece *p,
                        struct zf_error *err)
{
    const struct tensor *t =
        piece_of(p->shard, m, "step", DTYPE_I32, 1, (size_t)p->n, p->path, err);
    if (!t)
        return false;
    for (int row = 0; row < m->n_owned; row++) {
        int at = m->owned.first + row - p->first;
        if (at < 0 || at >= p->n)
            continue;
        uint32_t count;
        memcpy(&count, (const char *)t->data + sizeof count * (size_t)at, sizeof count);
        const uint32_t most = most_updates(e, m, row);
        if (count > (uint32_t)e->step)
            return zf_fail(err, "%s: %s: a channel has %u updates after %d steps", p->path,
                           m->param->name, count, e->step);
        m->host.updates[row] = count < most ? count : most;
    }
    return true;
}

static bool load_window_norms(struct matrix *m, const struct piece *p, struct zf_error *err)
{
    if (!load_part(m, p, WINDOW_NORM, m->window_norms, err))
        return false;
    for (int row = 0; row < m->n_owned; row++)
        if (!(m->window_norms[row] >= 0))
            return zf_fail(err, "%s: %s.window_norm has what is no norm", p->path, m->param->name);
    return true;
}

static bool load_state(struct engine *e, struct matrix *m, const struct piece *p,
                       struct zf_error *err)
{
    size_t n = (size_t)m->n_owned * (size_t)m->cols;
    float *values = zf_malloc(sizeof(float) * (n + 1));
    bool ok = load_counts(e, m, p, err);
    for (int part = 0; ok && n > 0 && part < 3; part++) {
        state_read(e, m, part, values);
        ok = load_part(m, p, part, values, err);
        if (ok)
            state_write(e, m, part, values);
    }
    if (ok && m->selectable && n > 0) {
        copy_window(e, m, values, false);
        ok = load_part(m, p, WINDOW, values, err);
        copy_window(e, m, values, true);
    }
    if (ok && m->selectable && m->window_norms)
        ok = load_window_norms(m, p, err);
    free(values);
    return ok;
}

static void take_group(struct engine *e, int j, const struct group_state *s)
{
    struct group *g = &e->windows.groups[j];
    *g = windows_anew(g);
    g->engine = e;
    g->index = j;
    g->open_steps = s->open_steps;
    g->oldest = s->oldest;
    g->in_flight = s->in_flight;
    g->due = s->due;
    g->oldest_in_flight = s->oldest_in_flight;
    g->closing_steps = s->closing_steps;
    g->has_leaving = s->has_leaving;
}

static bool load_groups(struct engine *e, const struct piece *p, struct zf_error *err)
{
    const struct tensor *t = safetensors_find(p->shard, "groups");
    const struct tensor *norms = safetensors_find(p->shard, "norms");
    size_t n = (size_t)e->n_matrices;
    if (!t || t->dtype != DTYPE_I32 ||
        t->n_elements != (size_t)e->windows.interval * GROUP_FIELDS || !norms ||
        norms->dtype != DTYPE_I64 || norms->n_elements != 2 * n)
        return zf_fail(err, "%s: \"groups\" or \"norms\" is absent or of another size", p->path);
    struct group_state s[ENGINE_MAX_INTERVAL];
    memcpy(s, t->data, sizeof *s * (size_t)e->windows.interval);
    const bool finished = restore_is_finished(s, e->windows.interval);
    for (int j = 0; j < e->windows.interval; j++) {
        if (!finished && !restore_group(e, j, &s[j]))
            return zf_fail(err, "%s: group %d is not what a run leaves after step %d", p->path, j,
                           e->step);
        take_group(e, j, &s[j]);
    }
    memcpy(e->observed.important_norm, norms->data, sizeof(double) * n);
    memcpy(e->observed.deferred_norm, (const char *)norms->data + sizeof(double) * n,
           sizeof(double) * n);
    if (!restore_norms(e->observed.important_norm, n) ||
        !restore_norms(e->observed.deferred_norm, n))
        return zf_fail(err, "%s: \"norms\" has what is no norm", p->path);
    exchange_resume(e);
    return true;
}

static void take_counters(struct engine *e, const struct restored *r)
{
    e->step = r->step;
    e->windows.interval = r->interval;
    e->windows.lag = r->lag;
    e->windows.began = r->began;
    e->selection.selected = r->selected;
    e->skipped_in_a_row = r->skipped_in_a_row;
    e->observed.steps = r->observed_steps;
    e->observed.least_interval = abs(r->least_interval);
    if (signed_least(e) != r->least_interval)
        e->observed.least_interval = 0;
    e->selection.chosen_in = r->chosen_in;
    e->lr = r->lr;
}

static bool same_settings(const struct engine *e, const struct piece *p, struct zf_error *err)
{
    const char *theirs = safetensors_metadata(p->shard, "settings");
    const char *layout = safetensors_metadata(p->shard, "layout");
    char *ours = settings(e);
    bool ok = (layout && strcmp(layout, LAYOUT) == 0) ||
              zf_fail(err,
                      "%s: this checkpoint has layout %.20s, but this program reads layout %s: the "
                      "program that wrote it has to finish that run",
                      p->path, layout ? layout : "1", LAYOUT);
    if (ok && (!theirs || strcmp(ours, theirs) != 0))
        ok = zf_fail(err,
                     "%s: this checkpoint was made with %.300s, but this run has %s, so it could "
                     "not go on exactly",
                     p->path, theirs ? theirs : "unknown settings", ours);
    free(ours);
    return ok;
}

/* All shards say the same. counters: those of the first one, or NULL until it has been read. */
static bool load_counters(struct engine *e, const struct piece *p, char **counters,
                          struct zf_error *err)
{
    struct restored r;
    const char *found = safetensors_metadata(p->shard, "engine");
    if (!found)
        return zf_fail(err, "%s: its metadata has no \"engine\"", p->path);
    if (!same_settings(e, p, err))
        return false;
    if (*counters && strcmp(*counters, found) != 0)
        return zf_fail(err, "%s: it is of another step or run than rank 0's: %.100s, not %s",
                       p->path, found, *counters);
    if (!restore_counters(e, found, &r))
        return zf_fail(err, "%s: no run leaves the counters %.100s", p->path, found);
    if (!*counters)
        *counters = zf_strdup(found);
    take_counters(e, &r);
    return load_groups(e, p, err);
}

/* One shard: flags of all its channels (pass 0), then state of those that this rank owns. */
static bool load_shard(struct engine *e, struct piece p, int pass, char **counters,
                       struct zf_error *err)
{
    struct safetensors *s = safetensors_open(p.path, err);
    p.shard = s;
    bool ok = s != NULL && (pass > 0 || load_counters(e, &p, counters, err));
    for (int i = 0; ok && i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        ok = find_piece(&p, m, err) &&
             (pass == 0 ? load_flags(e, m, &p, err) : load_state(e, m, &p, err));
    }
    safetensors_close(s);
    return ok;
}

static bool load_shards(struct engine *e, const char *directory, int ranks, int pass,
                        struct zf_error *err)
{
    char *counters = NULL;
    bool ok = true;
    for (int r = 0; ok && r < ranks; r++) {
        char *path = shard_path(directory, r, ranks);
        ok = load_shard(e, (struct piece){.path = path, .rank = r, .ranks = ranks}, pass, &counters,
                        err);
        free(path);
    }
    free(counters);
    return ok;
}

/* Channels that are important get their slots. */
static bool adopt_places(struct engine *e, const char *directory, struct zf_error *err)
{
    for (int i = 0; i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        if (!restore_places(e, m))
            return zf_fail(err, "%s: no run leaves the channels of %s in these places", directory,
                           m->param->name);
    }
    selection_fit(e);
    for (int i = 0; i < e->n_matrices; i++)
        state_adopt(e, &e->matrices[i]);
    return true;
}

static bool load_all(struct engine *e, const char *directory, struct zf_error *err)
{
    const int ranks = count_shards(directory, err);
    return ranks > 0 && load_shards(e, directory, ranks, 0, err) &&
           adopt_places(e, directory, err) && load_shards(e, directory, ranks, 1, err);
}

bool engine_load(struct engine *e, const char *directory, struct zf_error *err)
{
    engine_settle(e);
    windows_wait(e);
    engine_forget(e);
    bool ok = load_all(e, directory, err);
    if (ok) {
        selection_resume(e);
        table_update(e);
        selection_publish(e);
        windows_restore_exchange(e);
    }
    return comm_all_ok(e->comm, ok, err);
}
