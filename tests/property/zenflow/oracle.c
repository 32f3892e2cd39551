#include "tests/property/zenflow/oracle.h"

#include "data/alloc.h"
#include "data/bf16.h"
#include "tests/testing.h"

#include <math.h>

#define MAX_COLS   64
#define MAX_WINDOW 64

struct channel {
    const struct param *param;
    int matrix, row, cols;
    bool selectable, important;
    bool deferred;                                    /* as this step began */
    double value[MAX_COLS], m[MAX_COLS], v[MAX_COLS]; /* wherever they live */
    int updates;
    double window[MAX_COLS];  /* sum */
    double window_norm;       /* sum of their squared norms */
    int window_steps, oldest; /* gradients in it, step of the first */
    bool in_flight;
    int due, oldest_in_flight;
    double norm; /* squared, of this step */
    long used;   /* gradients that have entered an update */
};

struct oracle {
    struct engine_config config;
    const struct param_table *table;
    struct channel *channels;
    int n_channels, step;
    int chosen_in;           /* the step of the newest choice */
    int interval, lag;       /* of windows, in force */
    int began;               /* the step in which these windows began */
    int seen;                /* "auto": steps since it last chose */
    double *deferred, *most; /* (n_params) sums over them of mean norms, deferred and important */
    bool bf16;               /* parameters, and means on their way to the host, are bf16 */
    unsigned char *target, *target_before; /* (n_channels) the newest choice, and the one before */
    bool chose;                            /* the last step did */
    float *visible;
};

struct oracle *oracle_create(const struct problem *p, const struct engine_config *config)
{
    struct oracle *o = zf_calloc(1, sizeof *o);
    o->config = *config;
    o->table = &p->table;
    o->bf16 = config->bf16 || p->device->dtype == DTYPE_BF16;
    for (int k = 0; k < p->table.n_params; k++)
        o->n_channels += p->table.params[k].rows;
    o->channels = zf_calloc((size_t)o->n_channels, sizeof *o->channels);
    o->target = zf_calloc((size_t)o->n_channels, 1);
    o->target_before = zf_calloc((size_t)o->n_channels, 1);
    o->visible = zf_malloc(sizeof(float) * p->table.n_elements);
    memcpy(o->visible, p->params, sizeof(float) * p->table.n_elements);
    o->interval = 1;
    o->deferred = zf_calloc((size_t)p->table.n_params, sizeof(double));
    o->most = zf_calloc((size_t)p->table.n_params, sizeof(double));
    struct channel *c = o->channels;
    for (int k = 0; k < p->table.n_params; k++)
        for (int row = 0; row < p->table.params[k].rows; row++, c++) {
            c->param = &p->table.params[k];
            c->matrix = k;
            c->row = row;
            c->cols = c->param->cols;
            assert_true(c->cols <= MAX_COLS);
            c->selectable = c->param->kind == PARAM_MATRIX && config->topk_ratio < 1;
            c->important = !c->selectable;
            for (int j = 0; j < c->cols; j++)
                c->value[j] =
                    o->visible[c->param->offset + (size_t)row * (size_t)c->cols + (size_t)j];
        }
    return o;
}

void oracle_destroy(struct oracle *o)
{
    free(o->channels);
    free(o->target);
    free(o->target_before);
    free(o->visible);
    free(o->deferred);
    free(o->most);
    free(o);
}

const float *oracle_params(const struct oracle *o)
{
    return o->visible;
}

int oracle_interval(const struct oracle *o)
{
    return o->interval;
}

bool oracle_is_important(const struct oracle *o, int channel)
{
    return o->channels[channel].important;
}

/* steps: that it stands for; spread: how many times the square of their mean gradient their squared
 * gradients are in the mean */
static void adamw(const struct oracle *o, struct channel *c, const double *g, double lr, int steps,
                  double spread)
{
    const struct engine_config *k = &o->config;
    const double decay = c->param->decay ? k->weight_decay : 0;
    const double beta1 = pow(k->beta1, steps), beta2 = pow(k->beta2, steps);
    c->updates += steps;
    for (int j = 0; j < c->cols; j++) {
        double x = g[j] + (k->adam_w_mode ? 0 : decay * c->value[j]);
        if (k->adam_w_mode)
            c->value[j] -= lr * decay * c->value[j];
        c->m[j] = beta1 * c->m[j] + (1 - beta1) * x;
        c->v[j] = beta2 * c->v[j] + (1 - beta2) * spread * x * x;
        c->value[j] -= lr * (c->m[j] / (1 - pow(k->beta1, c->updates))) /
                       (sqrt(c->v[j] / (1 - pow(k->beta2, c->updates))) + k->eps);
    }
}

/* Gradients on the link. */
static float rounded(const struct oracle *o, double x)
{
    return o->bf16 ? bf16_to_f32(bf16_from_f32((float)x)) : (float)x;
}

static void show(struct oracle *o, const struct channel *c)
{
    float *row = o->visible + c->param->offset + (size_t)c->row * (size_t)c->cols;
    for (int j = 0; j < c->cols; j++) {
        const float x = (float)c->value[j];
        row[j] = o->bf16 ? bf16_to_f32(bf16_parameter(x)) : x;
    }
}

/* How many of a parameter's channels are chosen. */
static int chosen_of(const struct oracle *o, const struct param *p)
{
    const int k = (int)floor(o->config.topk_ratio * p->rows + 1e-9);
    return o->config.topk_ratio > 0 && k < 1 ? 1 : k;
}

/* Whether one more channel as wide as this can be important: as many are to be as are chosen. */
static bool has_room(const struct oracle *o, const struct channel *c)
{
    int room = 0;
    for (int k = 0; k < o->table->n_params; k++)
        if (o->table->params[k].kind == PARAM_MATRIX && o->table->params[k].cols == c->cols)
            room += chosen_of(o, &o->table->params[k]);
    for (int i = 0; i < o->n_channels; i++)
        room -=
            o->channels[i].selectable && o->channels[i].cols == c->cols && o->channels[i].important;
    return room > 0;
}

/* The K channels of greatest norm, by asking of each how many come before it. */
static void choose(struct oracle *o)
{
    for (int i = 0; i < o->n_channels; i++) {
        const struct channel *c = &o->channels[i];
        int before = 0, k = chosen_of(o, c->param);
        for (int j = 0; j < o->n_channels; j++) {
            const struct channel *d = &o->channels[j];
            before += d->matrix == c->matrix &&
                      (d->norm > c->norm || (d->norm == c->norm && d->row < c->row));
        }
        o->target[i] = !c->selectable || before < k;
    }
}

static double share(const struct oracle *o, bool of_target)
{
    double held = 0, all = 0;
    for (int i = 0; i < o->n_channels; i++) {
        const struct channel *c = &o->channels[i];
        if (!c->selectable)
            continue;
        all += c->norm;
        held += (of_target ? o->target[i] : c->important) ? c->norm : 0;
    }
    return all > 0 ? held / all : 1;
}

static bool is_stale(struct oracle *o)
{
    unsigned char *kept = zf_malloc((size_t)o->n_channels);
    memcpy(kept, o->target, (size_t)o->n_channels);
    choose(o);
    bool stale = share(o, false) < 0.5 * share(o, true);
    memcpy(o->target, kept, (size_t)o->n_channels);
    free(kept);
    return stale;
}

static void select_channels(struct oracle *o, int since_warm_up)
{
    const struct engine_config *k = &o->config;
    if (k->topk_ratio <= 0 || k->topk_ratio >= 1 || since_warm_up < 0)
        return;
    if (since_warm_up > 0 && o->step - o->chosen_in < o->interval)
        return; /* some channels may not have taken over the last choice */
    bool due = since_warm_up == 0 || (k->select_every && o->step % k->select_every == 0);
    if (!due && !(k->reselect_when_stale && o->step % 16 == 0 && is_stale(o)))
        return;
    memcpy(o->target_before, o->target, (size_t)o->n_channels);
    choose(o);
    o->chose = true;
    o->chosen_in = o->step;
    if (since_warm_up == 0)
        for (int i = 0; i < o->n_channels; i++)
            o->channels[i].important = o->target[i];
}

bool oracle_choice(const struct oracle *o, int layer, struct choice_part *part)
{
    *part = (struct choice_part){0};
    for (int i = 0; i < o->n_channels; i++) {
        const struct channel *c = &o->channels[i];
        if (!c->selectable || (layer >= 0 && c->param->layer != layer))
            continue;
        part->norm += c->norm;
        if (!o->target[i])
            continue;
        part->norm_chosen += c->norm;
        part->chosen++;
        part->kept += o->target_before[i];
    }
    return o->chose;
}

/* The group of a channel, by laying block after block until it is covered. The problems' matrices
 * are far too small for long blocks: they have four for each group,
 * or fewer where they lack rows. */
static int group_of(const struct channel *c, int interval)
{
    int rows = c->param->rows, blocks = 4 * interval, group = c->matrix % interval;
    assert_true(rows * c->cols < 16384);
    while (blocks > interval && blocks > rows)
        blocks -= interval;
    for (int covered = 0, block = 0;; block++, group = (group + 1) % interval) {
        covered += rows / blocks + (block < rows % blocks);
        if (c->row < covered)
            return group;
    }
}

static double deferred_lr(const struct oracle *o, const struct channel *c, double lr)
{
    double scale = o->config.deferred_lr_scale;
    if (o->config.all_steps)
        return lr * c->window_steps;
    return lr * (scale == ENGINE_LR_SQRT ? sqrt(c->window_steps) : scale);
}

/* Over the channel; of windows with more than one gradient. */
static double spread_of(const struct channel *c, const double *mean)
{
    double of_mean = 0;
    for (int j = 0; j < c->cols; j++)
        of_mean += mean[j] * mean[j];
    const double spread = c->window_norm / c->window_steps / of_mean;
    return spread > 1 && isfinite(spread) ? spread : 1;
}

/* The window's mean is one update, visible `lag` steps later, also of a channel that enters: but
 * that shows it with the first update of its own. One that was important as the window closed has
 * none. */
static void close_window(struct oracle *o, int i, double lr)
{
    struct channel *c = &o->channels[i];
    double mean[MAX_COLS];
    if (c->window_steps == 0)
        return;
    assert_false(c->in_flight);
    assert_true(c->window_steps <= o->interval);
    for (int j = 0; j < c->cols; j++)
        mean[j] = rounded(o, c->window[j] / c->window_steps);
    if (o->config.all_steps && c->window_steps > 1)
        adamw(o, c, mean, deferred_lr(o, c, lr), c->window_steps, spread_of(c, mean));
    else
        adamw(o, c, mean, deferred_lr(o, c, lr), 1, 1);
    c->used += c->window_steps;
    c->in_flight = true;
    c->due = o->step + o->lag;
    c->oldest_in_flight = c->oldest;
    c->window_steps = 0;
}

/* The windows of one group close. First its channels change sides: all that leave, then those that
 * enter, in their order, while there is room. */
static void close_group(struct oracle *o, int group, double lr)
{
    for (int i = 0; i < o->n_channels; i++)
        if (o->channels[i].selectable && group_of(&o->channels[i], o->interval) == group)
            o->channels[i].important &= o->target[i];
    for (int i = 0; i < o->n_channels; i++) {
        struct channel *c = &o->channels[i];
        if (!c->selectable || c->important || !o->target[i] || c->window_steps == 0 ||
            group_of(c, o->interval) != group)
            continue;
        c->important = has_room(o, c);
    }
    for (int i = 0; i < o->n_channels; i++)
        if (o->channels[i].selectable && group_of(&o->channels[i], o->interval) == group)
            close_window(o, i, lr);
}

static void arrive(struct oracle *o, bool all)
{
    for (int i = 0; i < o->n_channels; i++) {
        struct channel *c = &o->channels[i];
        if (!c->in_flight || (!all && c->due > o->step))
            continue;
        assert_true(o->step - c->oldest_in_flight <= o->interval - 1 + o->lag);
        show(o, c);
        c->in_flight = false;
    }
}

static void use_gradient(struct oracle *o, struct channel *c, const float *grads, double factor,
                         double lr)
{
    double g[MAX_COLS];
    size_t at = c->param->offset + (size_t)c->row * (size_t)c->cols;
    for (int j = 0; j < c->cols; j++) /* a deferred one's waits for the factor as bf16 */
        g[j] = factor * (c->deferred ? rounded(o, grads[at + (size_t)j]) : grads[at + (size_t)j]);
    if (c->important) {
        adamw(o, c, g, lr, 1, 1);
        c->used++;
        show(o, c);
        return;
    }
    if (c->window_steps++ == 0) {
        memset(c->window, 0, sizeof c->window);
        c->window_norm = 0;
        c->oldest = o->step;
    }
    for (int j = 0; j < c->cols; j++)
        c->window[j] += g[j];
    c->window_norm += factor * factor * c->norm;
}

static double clip(struct oracle *o, const float *grads)
{
    double sum = 0;
    for (int i = 0; i < o->n_channels; i++) {
        struct channel *c = &o->channels[i];
        size_t at = c->param->offset + (size_t)c->row * (size_t)c->cols;
        c->norm = 0;
        for (int j = 0; j < c->cols; j++)
            c->norm += (double)grads[at + (size_t)j] * grads[at + (size_t)j];
        sum += c->norm;
    }
    double limit = o->config.gradient_clipping;
    return limit > 0 && sqrt(sum) + 1e-6 > limit ? limit / (sqrt(sum) + 1e-6) : 1;
}

/* All windows close, and what they bring is visible at once. */
static void flush(struct oracle *o, double lr)
{
    arrive(o, true);
    for (int group = 0; group < o->interval; group++)
        close_group(o, group, lr);
    arrive(o, true);
}

/* A mean of norms, not squared, over one side's channels of a matrix that have a gradient. */
static double mean_norm(const struct oracle *o, int matrix, bool important)
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < o->n_channels; i++) {
        const struct channel *c = &o->channels[i];
        if (c->matrix != matrix || c->important != important || c->norm == 0)
            continue;
        sum += sqrt(c->norm);
        n++;
    }
    return n ? sum / n : 0;
}

/* The shortest window with which the host keeps up, with a tenth to spare, by trying one after the
 * other. */
static int shortest_window(const struct engine_config *k)
{
    int s = 1;
    while ((k->auto_keeps_up || k->interval_rule == ENGINE_INTERVAL_KEEP_UP) && s < MAX_WINDOW &&
           1.1 * k->host_seconds > s * k->step_seconds)
        s++;
    return s;
}

static void change_windows(struct oracle *o, int interval, double lr)
{
    flush(o, lr);
    o->interval = interval;
    o->began = o->step + 1;
}

/* update_interval "keep_up", as all is known from the first step on. */
static void keep_up(struct oracle *o, double lr)
{
    const int shortest = shortest_window(&o->config), lag = o->config.apply_lag;
    const int chosen = shortest < lag ? lag : shortest;
    if (o->seen++ == 0 && chosen != o->interval)
        change_windows(o, chosen, lr);
}

/* update_interval "auto": DeepSpeed's rule, our bounds. */
static void choose_interval(struct oracle *o, double lr)
{
    const struct engine_config *k = &o->config;
    int matrices = 0, due = 0;
    if (k->interval_rule == ENGINE_INTERVAL_KEEP_UP) {
        keep_up(o, lr);
        return;
    }
    o->seen++;
    for (int m = 0; m < o->table->n_params; m++) {
        if (o->table->params[m].kind != PARAM_MATRIX)
            continue;
        o->deferred[m] += mean_norm(o, m, false);
        o->most[m] += mean_norm(o, m, true);
        matrices++;
        due += o->deferred[m] >= o->most[m] / o->seen;
    }
    if (o->seen < k->apply_lag || (due < k->auto_ratio * matrices && o->seen < MAX_WINDOW))
        return;
    int floor = shortest_window(k), chosen = o->seen < floor ? floor : o->seen;
    double change = fabs((double)chosen / o->interval - 1);
    o->seen = 0;
    memset(o->deferred, 0, sizeof(double) * (size_t)o->table->n_params);
    memset(o->most, 0, sizeof(double) * (size_t)o->table->n_params);
    if (change > 0.25 || o->interval < floor)
        change_windows(o, chosen, lr);
}

/* After the warm-up windows have their length: four steps, or the lag, until "auto" has chosen. */
static void begin_windows(struct oracle *o)
{
    const struct engine_config *k = &o->config;
    o->lag = k->apply_lag;
    o->interval = k->update_interval ? k->update_interval : k->apply_lag > 4 ? k->apply_lag : 4;
    o->began = o->step;
}

void oracle_step(struct oracle *o, const float *grads, float lr)
{
    const struct engine_config *k = &o->config;
    int elapsed = o->step - k->full_warm_up_rounds;
    double factor = clip(o, grads);
    if (elapsed == 0)
        begin_windows(o);
    for (int i = 0; i < o->n_channels; i++)
        o->channels[i].deferred = !o->channels[i].important;
    o->chose = false;
    select_channels(o, elapsed);
    for (int i = 0; i < o->n_channels; i++)
        use_gradient(o, &o->channels[i], grads, factor, lr);
    arrive(o, false);
    const int t = (o->step - o->began) % o->interval;
    for (int group = 0; group < o->interval; group++)
        if (t == (k->stagger ? group : o->interval - 1))
            close_group(o, group, lr);
    arrive(o, false);
    if (k->update_interval == 0 && elapsed >= 0 && k->topk_ratio > 0 && k->topk_ratio < 1)
        choose_interval(o, lr);
    o->step++;
}

void oracle_finish(struct oracle *o, float lr)
{
    flush(o, lr);
    for (int i = 0; i < o->n_channels; i++)
        assert_int_equal(o->channels[i].used, o->step);
}
