/* Save and load: DIR/optimizer-RRRRR-of-RRRRR.safetensors, one file a rank. It holds, for each
 * parameter, over the channels that the rank owns, of which metadata "<name>" tells the first:
 *
 *   <name>.master, <name>.exp_avg, <name>.exp_avg_sq   (channels, cols) F32
 *   <name>.step                                        (channels) I32, AdamW updates
 *   <name>.place, <name>.target                        (channels) U8
 *   <name>.window                                      (channels, cols) F32, where channels defer
 *
 * and for the engine:
 *
 *   "groups"   (groups, GROUP_FIELDS) I32
 *   "norms"    (2, parameters) I64: the bits of doubles
 *
 * Metadata "engine" holds the counters and the last learning rate, "settings" what must be the same
 * to go on, "layout" which version of all this it is. */
#include "offload/engine/internal.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/safetensors.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_FIELDS 7
/* Windows by groups of blocks (model/device/row_groups.h); those without a number have groups of
 * single channels. */
#define LAYOUT "2"

static const char *const STATE_NAMES[] = {"master", "exp_avg", "exp_avg_sq"};

static char *settings(const struct engine *e)
{
    const struct engine_config *c = &e->config;
    return zf_format("topk_ratio %g, update_interval %d, apply_lag %d, stagger %d, bf16 %d",
                     c->topk_ratio, c->update_interval, c->apply_lag, c->stagger, c->bf16);
}

static char *shard_path(const char *directory, int rank, int ranks)
{
    return zf_format("%s/optimizer-%05d-of-%05d.safetensors", directory, rank + 1, ranks);
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
        declare(w, m, STATE_NAMES[part], DTYPE_F32, 2);
    declare(w, m, "step", DTYPE_I32, 1);
    declare(w, m, "place", DTYPE_U8, 1);
    declare(w, m, "target", DTYPE_U8, 1);
    if (m->selectable)
        declare(w, m, "window", DTYPE_F32, 2);
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
    } else if (e->config.accumulate == ENGINE_ACCUMULATE_HOST) {
        memcpy(to, from, bytes);
    } else {
        d->copy(d->compute, to, from, bytes);
        d->stream_wait(d->compute);
    }
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
        write_values(w, m, values);
    }
    free(values);
}

static void write_engine(const struct engine *e, struct safetensors_writer *w)
{
    for (int j = 0; j < e->windows.interval; j++) {
        const struct group *g = &e->windows.groups[j];
        int32_t fields[GROUP_FIELDS] = {g->open_steps, g->oldest,           g->in_flight,
                                        g->due,        g->oldest_in_flight, g->closing_steps,
                                        g->has_leaving};
        safetensors_write_data(w, fields, sizeof fields);
    }
    safetensors_write_data(w, e->observed.important_norm, sizeof(double) * (size_t)e->n_matrices);
    safetensors_write_data(w, e->observed.deferred_norm, sizeof(double) * (size_t)e->n_matrices);
}

static void write_metadata(const struct engine *e, struct safetensors_writer *w)
{
    char *counters =
        zf_format("%d %d %d %d %d %d %d %d %d %.9g", e->step, e->windows.interval, e->windows.lag,
                  e->windows.began, e->selection.selected, e->skipped_in_a_row, e->observed.steps,
                  e->observed.least_interval, e->selection.chosen_in, (double)e->lr);
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

/* How many ranks wrote this checkpoint; 0 where there is none. */
static int count_shards(const char *directory)
{
    int ranks = 0;
    DIR *d = opendir(directory);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        int of = 0;
        if (sscanf(entry->d_name, "optimizer-00001-of-%5d.safetensors", &of) == 1)
            ranks = of;
    }
    if (d)
        closedir(d);
    return ranks;
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
    int first, n;
};

static bool find_piece(struct piece *p, const struct matrix *m, struct zf_error *err)
{
    const char *first = safetensors_metadata(p->shard, m->param->name);
    char *name = zf_format("%s.step", m->param->name);
    const struct tensor *t = safetensors_find(p->shard, name);
    free(name);
    p->first = first ? atoi(first) : -1;
    p->n = t && t->n_elements <= (size_t)m->param->rows ? (int)t->n_elements : -1;
    return (p->first >= 0 && p->n >= 0 && p->first + p->n <= m->param->rows) ||
           zf_fail(err, "%s: its channels of %s are not a range of the model's %d", p->path,
                   m->param->name, m->param->rows);
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

/* This rank's rows of one tensor into an array of (n_owned, cols); others stay.
 * part 3: the window. */
static bool load_part(struct matrix *m, const struct piece *p, int part, float *values,
                      struct zf_error *err)
{
    size_t cols = (size_t)m->cols;
    const struct tensor *t = piece_of(p->shard, m, part < 3 ? STATE_NAMES[part] : "window",
                                      DTYPE_F32, cols, (size_t)p->n, p->path, err);
    int first = m->owned.first > p->first ? m->owned.first : p->first;
    int last = m->owned.last < p->first + p->n ? m->owned.last : p->first + p->n;
    if (!t || first >= last)
        return t != NULL;
    return tensor_read_f32(t, values + (size_t)(first - m->owned.first) * cols,
                           (size_t)(first - p->first) * cols, (size_t)(last - first) * cols, err);
}

/* Channels that were important have gathered nothing. values: (n_owned, cols) windows */
static bool clear_windows(const struct matrix *m, const struct piece *p, float *values,
                          struct zf_error *err)
{
    const struct tensor *place =
        piece_of(p->shard, m, "place", DTYPE_U8, 1, (size_t)p->n, p->path, err);
    for (int row = 0; place && row < m->n_owned; row++) {
        const int at = m->owned.first + row - p->first;
        if (at >= 0 && at < p->n && ((const unsigned char *)place->data)[at] == CHANNEL_IMPORTANT)
            memset(values + (size_t)row * (size_t)m->cols, 0, sizeof(float) * (size_t)m->cols);
    }
    return place != NULL;
}

static bool load_counts(struct matrix *m, const struct piece *p, struct zf_error *err)
{
    const struct tensor *t =
        piece_of(p->shard, m, "step", DTYPE_I32, 1, (size_t)p->n, p->path, err);
    for (int row = 0; t && row < m->n_owned; row++) {
        int at = m->owned.first + row - p->first;
        if (at >= 0 && at < p->n)
            memcpy(&m->host.updates[row], (const char *)t->data + sizeof(uint32_t) * (size_t)at,
                   sizeof(uint32_t));
    }
    return t != NULL;
}

static bool load_state(struct engine *e, struct matrix *m, const struct piece *p,
                       struct zf_error *err)
{
    size_t n = (size_t)m->n_owned * (size_t)m->cols;
    float *values = zf_malloc(sizeof(float) * (n + 1));
    bool ok = load_counts(m, p, err);
    for (int part = 0; ok && n > 0 && part < 3; part++) {
        state_read(e, m, part, values);
        ok = load_part(m, p, part, values, err);
        if (ok)
            state_write(e, m, part, values);
    }
    if (ok && m->selectable && n > 0) {
        copy_window(e, m, values, false);
        ok = load_part(m, p, 3, values, err) && clear_windows(m, p, values, err);
        copy_window(e, m, values, true);
    }
    free(values);
    return ok;
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
    for (int j = 0; j < e->windows.interval; j++) {
        int32_t f[GROUP_FIELDS];
        memcpy(f, (const char *)t->data + sizeof f * (size_t)j, sizeof f);
        struct group *g = &e->windows.groups[j];
        *g = windows_anew(g);
        g->engine = e;
        g->index = j;
        g->open_steps = f[0];
        g->oldest = f[1];
        g->in_flight = f[2];
        g->due = f[3];
        g->oldest_in_flight = f[4];
        g->closing_steps = f[5];
        g->has_leaving = f[6];
    }
    memcpy(e->observed.important_norm, norms->data, sizeof(double) * n);
    memcpy(e->observed.deferred_norm, (const char *)norms->data + sizeof(double) * n,
           sizeof(double) * n);
    return exchange_resume(e) ||
           zf_fail(err,
                   "%s: it has windows of %d steps and updates in flight that this run's "
                   "update_interval, apply_lag and full_warm_up_rounds do not lead to",
                   p->path, e->windows.interval);
}

static bool load_counters(struct engine *e, const struct piece *p, struct zf_error *err)
{
    const char *counters = safetensors_metadata(p->shard, "engine");
    const char *theirs = safetensors_metadata(p->shard, "settings");
    const char *layout = safetensors_metadata(p->shard, "layout");
    if (counters && (!layout || strcmp(layout, LAYOUT) != 0))
        return zf_fail(err,
                       "%s: this checkpoint has layout %s, but this program reads layout %s: the "
                       "program that wrote it has to finish that run",
                       p->path, layout ? layout : "1", LAYOUT);
    char *ours = settings(e);
    int selected = 0;
    bool ok = (counters && theirs &&
               sscanf(counters, "%d %d %d %d %d %d %d %d %d %f", &e->step, &e->windows.interval,
                      &e->windows.lag, &e->windows.began, &selected, &e->skipped_in_a_row,
                      &e->observed.steps, &e->observed.least_interval, &e->selection.chosen_in,
                      &e->lr) == 10 &&
               e->windows.interval >= 1 && e->windows.interval <= ENGINE_MAX_INTERVAL) ||
              zf_fail(err, "%s: its metadata has no \"engine\" and \"settings\"", p->path);
    if (ok && strcmp(ours, theirs) != 0)
        ok =
            zf_fail(err,
                    "%s: this checkpoint was made with %s, but this run has %s, so it could not go "
                    "on exactly",
                    p->path, theirs, ours);
    e->selection.selected = selected;
    free(ours);
    return ok && load_groups(e, p, err);
}

/* One shard: flags of all its channels (pass 0), then state of those that this rank owns. */
static bool load_shard(struct engine *e, const char *path, int pass, struct zf_error *err)
{
    struct safetensors *s = safetensors_open(path, err);
    struct piece p = {.shard = s, .path = path};
    bool ok = s != NULL && (pass > 0 || load_counters(e, &p, err));
    for (int i = 0; ok && i < e->n_matrices; i++) {
        struct matrix *m = &e->matrices[i];
        ok = find_piece(&p, m, err) &&
             (pass == 0 ? load_flags(e, m, &p, err) : load_state(e, m, &p, err));
    }
    if (s)
        safetensors_close(s);
    return ok;
}

static bool load_all(struct engine *e, const char *directory, struct zf_error *err)
{
    int ranks = count_shards(directory);
    if (ranks == 0)
        return zf_fail(err, "%s: there is no optimizer-00001-of-*.safetensors", directory);
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < ranks; r++) {
            char *path = shard_path(directory, r, ranks);
            bool ok = load_shard(e, path, pass, err);
            free(path);
            if (!ok)
                return false;
        }
        if (pass == 0)
            selection_fit(e);
        for (int i = 0; pass == 0 && i < e->n_matrices; i++)
            state_adopt(e, &e->matrices[i]);
    }
    return true;
}

bool engine_load(struct engine *e, const char *directory, struct zf_error *err)
{
    engine_settle(e);
    windows_wait(e);
    engine_forget(e);
    bool ok = load_all(e, directory, err);
    if (ok) {
        e->selection.to_adopt = UINT64_MAX; /* groups that have looked will find nothing */
        table_update(e);
        selection_publish(e);
        windows_restore_exchange(e);
    }
    return comm_all_ok(e->comm, ok, err);
}
