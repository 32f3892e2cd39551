#include "cmd/bench_schedule_sim.h"

#include "cmd/bench_device.h"
#include "data/alloc.h"
#include "model/row_groups.h"
#include "offload/schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of memory traffic per element, as the engine's passes read and write. */
#define BYTES_LINK          2.0  /* bf16 gradients down, parameters up */
#define BYTES_GRADIENT      4.0  /* fp32, between ranks and in device memory */
#define BYTES_DEVICE_ADAM   30.0 /* gradient; master, m, v twice; bf16 parameter */
#define BYTES_DEVICE_WINDOW 12.0 /* gradient; the window twice */
#define BYTES_HOST_ADAM     28.0 /* master, m, v twice; bf16 gradient and parameter */
#define BYTES_HOST_WINDOW   10.0 /* bf16 gradient; the window twice */
#define BYTES_HOST_MEAN     6.0  /* the window; its bf16 mean */
#define BYTES_STATE         12.0 /* held: master, m, v */
#define BYTES_WINDOW        4.0  /* held */
#define SETTLING_INTERVALS  8
#define SEARCH_ROUNDS       60
#define GREATEST_HOST_RATE  1e6 /* GB/s that sim_find_host_rate looks at */
#define SEARCH_STEPS        1   /* made one interval */
#define GIGA                1e9

/* ---- the model's table ---- */

static void add(struct param_table *t, const char *name, int rows, int cols, int layer)
{
    params_add(t, name, rows == 1 ? PARAM_VECTOR : PARAM_MATRIX, rows, cols, layer);
}

static void add_block(struct param_table *t, const struct sim_model *m, int layer)
{
    add(t, "norm_attention", 1, m->width, layer);
    add(t, "query", m->width, m->width, layer);
    add(t, "key", m->width, m->kv_width, layer);
    add(t, "value", m->width, m->kv_width, layer);
    add(t, "attention_out", m->width, m->width, layer);
    add(t, "norm_feed_forward", 1, m->width, layer);
    add(t, "up", m->width, m->inner, layer);
    if (m->gated)
        add(t, "gate", m->width, m->inner, layer);
    add(t, "down", m->inner, m->width, layer);
}

struct param_table sim_describe_model(const struct sim_model *m)
{
    struct param_table t = {0};
    if (m->vocab > 0)
        add(&t, "token_embedding", m->vocab, m->width, 0);
    if (m->positions > 0)
        add(&t, "position_embedding", m->positions, m->width, 0);
    for (int l = 1; l <= m->n_layers; l++)
        add_block(&t, m, l);
    add(&t, "norm_final", 1, m->width, m->n_layers + 1);
    if (m->vocab > 0 && !m->tied)
        add(&t, "head", m->width, m->vocab, m->n_layers + 1);
    return t;
}

double sim_count_parameters(const struct sim_model *model)
{
    struct param_table table = sim_describe_model(model);
    double n = (double)table.n_parameters;
    params_free(&table);
    return n;
}

/* ---- what a layer costs ---- */

/* Elements of parameters. */
struct share {
    double all, selectable, important;
    double deferred[ENGINE_MAX_INTERVAL]; /* by group */
};

struct layer {
    struct share own, whole;  /* the simulated rank's; all ranks' */
    double forward, backward; /* seconds on the device */
};

/* A machine, model and policy, reduced to work and seconds per element. */
struct plan {
    const struct sim_policy *policy;
    struct layer *layers;
    int n_layers;
    struct share own, whole;                                         /* over all layers */
    double link_second, host_second, device_second, exchange_second; /* of a byte */
    int ranks;
};

/* A group's rows among the first n of a part. */
static int rows_in_group(const struct row_groups *groups, int group, int n)
{
    int sum = 0;
    for (int row = row_groups_next(groups, group, 0), end; row < n;
         row = row_groups_next(groups, group, end)) {
        end = row_groups_end(groups, row);
        sum += (end < n ? end : n) - row;
    }
    return sum;
}

/* Adds a range of a parameter's channels. Which channels are important is not known: each rank and
 * group is taken to have its part of them. */
static void add_share(struct share *s, const struct sim_policy *policy, const struct param *p,
                      int index, struct range rows)
{
    bool selectable = p->kind == PARAM_MATRIX && policy->topk_ratio < 1;
    int k = selectable ? schedule_important(policy->topk_ratio, p->rows) : p->rows;
    double kept = (double)k / p->rows, n = (double)(rows.last - rows.first) * p->cols;
    const struct matrix_part part = {index, rows.first, p->rows, p->cols};
    const struct row_groups groups = row_groups_of(&part, policy->interval);
    s->all += n;
    s->selectable += selectable ? n : 0;
    s->important += n * kept;
    for (int j = 0; j < policy->interval; j++)
        s->deferred[j] +=
            rows_in_group(&groups, j, rows.last - rows.first) * (double)p->cols * (1 - kept);
}

static void sum_share(struct share *sum, const struct share *s, int interval)
{
    sum->all += s->all;
    sum->selectable += s->selectable;
    sum->important += s->important;
    for (int j = 0; j < interval; j++)
        sum->deferred[j] += s->deferred[j];
}

static double deferred_elements(const struct share *s, int interval)
{
    double n = 0;
    for (int j = 0; j < interval; j++)
        n += s->deferred[j];
    return n;
}

/* The device's time goes to layers by their products: looking up an embedding costs nothing, a head
 * that is the embedding costs what one of its own would. */
static void share_device_time(struct plan *p, const struct sim_model *model,
                              const struct sim_machine *machine)
{
    double products = 0;
    for (int l = 0; l < p->n_layers; l++) {
        double n = l == 0 ? 0 : p->layers[l].whole.all;
        if (l == p->n_layers - 1 && model->tied)
            n += (double)model->vocab * model->width;
        p->layers[l].forward = n;
        products += n;
    }
    for (int l = 0; l < p->n_layers; l++) {
        double seconds = machine->device_step * p->layers[l].forward / products;
        p->layers[l].forward = seconds * (1 - machine->backward_share);
        p->layers[l].backward = seconds * machine->backward_share;
    }
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static void set_rates(struct plan *p, const struct sim_machine *m)
{
    int on_node = m->ranks < m->ranks_per_node ? m->ranks : m->ranks_per_node;
    int on_link = on_node < m->ranks_per_link ? on_node : m->ranks_per_link;
    bool nodes = m->ranks > m->ranks_per_node;
    double exchange = nodes ? least(m->network_gbs, m->exchange_gbs) : m->exchange_gbs;
    p->ranks = m->ranks;
    p->link_second = on_link / (m->link_gbs * GIGA);
    p->host_second = on_node / (m->host_gbs * GIGA);
    p->device_second = 1 / (m->device_gbs * GIGA);
    /* A ring passes all but a rank's own part through each rank, and once into each node. */
    p->exchange_second = (double)(m->ranks - 1) / m->ranks / (exchange * GIGA);
}

static struct plan make_plan(const struct sim_model *model, const struct sim_machine *machine,
                             const struct sim_policy *policy)
{
    struct param_table table = sim_describe_model(model);
    struct plan p = {.policy = policy, .n_layers = table.n_layers};
    p.layers = zf_calloc((size_t)p.n_layers, sizeof *p.layers);
    for (int i = 0; i < table.n_params; i++) {
        const struct param *param = &table.params[i];
        struct layer *layer = &p.layers[param->layer];
        /* Of ranges that are equal to within a channel, the last rank's are the longest. */
        struct range own = schedule_owned(i, param->rows, machine->ranks, machine->ranks - 1);
        add_share(&layer->own, policy, param, i, own);
        add_share(&layer->whole, policy, param, i, (struct range){0, param->rows});
    }
    params_free(&table);
    for (int l = 0; l < p.n_layers; l++) {
        sum_share(&p.own, &p.layers[l].own, policy->interval);
        sum_share(&p.whole, &p.layers[l].whole, policy->interval);
    }
    share_device_time(&p, model, machine);
    set_rates(&p, machine);
    return p;
}

/* ---- servers and events ---- */

/* Serves one thing after the other, in the order of the calls. Events of a step are generated in
 * the order of its program, in which every server is first come, first served. */
struct server {
    double free; /* from when on */
    double busy; /* seconds served */
};

static double serve(struct server *s, double ready, double seconds)
{
    s->free = (s->free > ready ? s->free : ready) + seconds;
    s->busy += seconds;
    return s->free;
}

struct sim_layer {
    double landed;   /* when the parameters that arrive for its next forward pass are on the
                        owner's device */
    double gathered; /* and on all ranks' */
    double changed;  /* elements of parameters that other ranks must have, in this step */
};

struct sim_group {
    bool in_flight;
    int due;        /* the step at whose end its update becomes visible */
    double sent;    /* when the closed window's mean has left the device */
    double updated; /* when the host is done */
    double taken;   /* when the result has left the exchange buffer */
    int closings;
};

struct sim {
    struct plan plan;
    double now; /* on the device */
    struct server down, up, host, exchange;
    struct sim_layer *layers;
    struct sim_group groups[ENGINE_MAX_INTERVAL];
    double gradients_down;       /* down_in_backward: when the last one is on the host */
    double accumulated;          /* when the host has added the staged gradients */
    double stall, exchange_wait; /* seconds that the device waited */
    double bytes_down, bytes_up;
};

/* The device waits until then. */
static void wait_until(struct sim *s, double time, double *waited)
{
    if (time > s->now) {
        *waited += time - s->now;
        s->now = time;
    }
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double send_down(struct sim *s, double ready, double elements)
{
    s->bytes_down += elements * BYTES_LINK;
    return serve(&s->down, ready, elements * BYTES_LINK * s->plan.link_second);
}

static void run_forward(struct sim *s)
{
    for (int l = 0; l < s->plan.n_layers; l++) {
        wait_until(s, s->layers[l].landed, &s->stall);
        wait_until(s, s->layers[l].gathered, &s->exchange_wait);
        s->now += s->plan.layers[l].forward;
    }
}

static void run_backward(struct sim *s)
{
    const struct plan *p = &s->plan;
    double reduced = 0;
    for (int l = p->n_layers - 1; l >= 0; l--) {
        const struct layer *layer = &p->layers[l];
        s->now += layer->backward;
        reduced =
            serve(&s->exchange, s->now, layer->whole.all * BYTES_GRADIENT * p->exchange_second);
        if (p->policy->down_in_backward)
            s->gradients_down =
                send_down(s, reduced, deferred_elements(&layer->own, p->policy->interval));
    }
    wait_until(s, reduced, &s->exchange_wait);
}

/* Norms, clearing the gradients, AdamW on important channels, and adding to the windows. */
static void run_device_passes(struct sim *s)
{
    const struct plan *p = &s->plan;
    double window =
        p->policy->accumulate == ENGINE_ACCUMULATE_DEVICE ? BYTES_DEVICE_WINDOW : BYTES_GRADIENT;
    double deferred =
        p->policy->down_in_backward ? 0 : deferred_elements(&p->own, p->policy->interval);
    double bytes = (p->own.all + p->whole.all) * BYTES_GRADIENT +
                   p->own.important * BYTES_DEVICE_ADAM + deferred * window;
    s->now += bytes * p->device_second;
}

/* The step's deferred gradients join the open windows, in whose place no older ones may lie. */
static void accumulate(struct sim *s)
{
    const struct plan *p = &s->plan;
    double deferred = deferred_elements(&p->own, p->policy->interval);
    if (p->policy->down_in_backward)
        return;
    if (p->policy->accumulate == ENGINE_ACCUMULATE_DEVICE) {
        for (int j = 0; j < p->policy->interval; j++)
            wait_until(s, s->groups[j].sent, &s->stall);
        return;
    }
    wait_until(s, s->accumulated, &s->stall);
    double staged = send_down(s, s->now, deferred);
    if (p->policy->inline_copies)
        wait_until(s, staged, &s->stall);
    s->accumulated = serve(&s->host, staged, deferred * BYTES_HOST_WINDOW * p->host_second);
}

static void close_window(struct sim *s, int group, int step)
{
    const struct plan *p = &s->plan;
    const struct sim_policy *policy = p->policy;
    struct sim_group *g = &s->groups[group];
    double elements = p->own.deferred[group], bytes = elements * BYTES_HOST_ADAM;
    double ready = s->now; /* for the host: clipping needs the norm of all gradients */
    if (policy->down_in_backward) {
        ready = later(ready, s->gradients_down);
    } else if (policy->accumulate == ENGINE_ACCUMULATE_DEVICE) {
        ready = g->sent = send_down(s, later(s->now, g->taken), elements);
        if (policy->inline_copies)
            wait_until(s, g->sent, &s->stall);
    } else {
        ready = later(s->accumulated, g->taken);
        bytes += elements * BYTES_HOST_MEAN;
    }
    g->updated = serve(&s->host, ready, bytes * p->host_second);
    g->in_flight = true;
    g->due = step + policy->lag;
    g->closings++;
}

/* One layer's part of an update that has become due goes up. */
static void land(struct sim *s, int layer, int group)
{
    const struct plan *p = &s->plan;
    struct sim_group *g = &s->groups[group];
    double bytes = p->layers[layer].own.deferred[group] * BYTES_LINK;
    s->bytes_up += bytes;
    g->taken = serve(&s->up, later(s->now, g->updated), bytes * p->link_second);
    s->layers[layer].landed = g->taken;
    s->layers[layer].changed += p->layers[layer].whole.deferred[group];
}

/* Updates that are due become visible, from the first layer on, as the forward pass needs them. */
static void arrive(struct sim *s, int step)
{
    const struct plan *p = &s->plan;
    bool due[ENGINE_MAX_INTERVAL];
    for (int j = 0; j < p->policy->interval; j++) {
        due[j] = s->groups[j].in_flight && s->groups[j].due <= step;
        s->groups[j].in_flight &= !due[j];
    }
    for (int l = 0; l < p->n_layers; l++)
        for (int j = 0; j < p->policy->interval; j++)
            if (due[j])
                land(s, l, j);
    if (p->policy->inline_copies)
        for (int l = 0; l < p->n_layers; l++)
            wait_until(s, s->layers[l].landed, &s->stall);
}

/* Parameters that changed go to the other ranks. */
static void gather(struct sim *s)
{
    const struct plan *p = &s->plan;
    for (int l = 0; l < p->n_layers; l++) {
        struct sim_layer *layer = &s->layers[l];
        double bytes = (layer->changed + p->layers[l].whole.important) * BYTES_LINK;
        layer->gathered =
            serve(&s->exchange, later(s->now, layer->landed), bytes * p->exchange_second);
        layer->changed = 0;
    }
}

static void run_step(struct sim *s, int step)
{
    const struct sim_policy *policy = s->plan.policy;
    bool offloads = deferred_elements(&s->plan.own, policy->interval) > 0;
    run_forward(s);
    run_backward(s);
    run_device_passes(s);
    if (offloads) {
        accumulate(s);
        arrive(s, step);
        for (int j = 0; j < policy->interval; j++)
            if (schedule_closes(j, step, policy->interval, policy->stagger))
                close_window(s, j, step);
        arrive(s, step);
    }
    gather(s);
}

/* ---- results ---- */

static void reset_counts(struct sim *s)
{
    s->stall = s->exchange_wait = s->bytes_down = s->bytes_up = s->host.busy = 0;
    for (int j = 0; j < ENGINE_MAX_INTERVAL; j++)
        s->groups[j].closings = 0;
}

/* What the engine allocates, per parameter of the model: a place for all that may be deferred. */
static void count_memory(const struct plan *p, struct sim_result *r)
{
    bool on_host = p->policy->accumulate == ENGINE_ACCUMULATE_HOST;
    bool on_device = !on_host && !p->policy->down_in_backward;
    double all = p->whole.all;
    double host = BYTES_STATE + BYTES_LINK + (on_host ? BYTES_WINDOW + BYTES_LINK : 0);
    double own = (p->ranks > 1 ? p->own.all * BYTES_GRADIENT : 0) + p->own.important * BYTES_STATE +
                 (on_device ? p->own.selectable * BYTES_WINDOW : 0);
    r->host_bytes = p->whole.selectable / all * host;
    r->device_bytes = BYTES_LINK + BYTES_GRADIENT + own / all;
}

static void summarise(const struct sim *s, const double *steps, struct sim_result *r)
{
    double total = 0, model = s->plan.own.all * BYTES_LINK * r->steps;
    for (int i = 0; i < r->steps; i++) {
        total += steps[i];
        r->worst = fmax(r->worst, steps[i]);
    }
    r->median = bench_median(steps, r->steps);
    r->mean = total / r->steps;
    r->stall_share = s->stall / total;
    r->exchange_share = s->exchange_wait / total;
    r->host_share = s->host.busy / total;
    r->down = s->bytes_down / model;
    r->up = s->bytes_up / model;
    for (int j = 0; j < s->plan.policy->interval; j++)
        r->closings[j] = s->groups[j].closings;
    count_memory(&s->plan, r);
}

struct sim_result sim_run(const struct sim_model *model, const struct sim_machine *machine,
                          const struct sim_policy *policy, int steps)
{
    struct sim s = {.plan = make_plan(model, machine, policy)};
    int interval = policy->interval, settling = SETTLING_INTERVALS * interval;
    struct sim_result r = {.steps = (steps + interval - 1) / interval * interval};
    double *seconds = zf_malloc(sizeof *seconds * (size_t)r.steps);
    s.layers = zf_calloc((size_t)s.plan.n_layers, sizeof *s.layers);
    for (int t = 0; t < settling; t++)
        run_step(&s, t);
    reset_counts(&s);
    for (int t = 0; t < r.steps; t++) {
        double before = s.now;
        run_step(&s, settling + t);
        seconds[t] = s.now - before;
    }
    summarise(&s, seconds, &r);
    free(seconds);
    free(s.layers);
    free(s.plan.layers);
    return r;
}

double sim_find_host_rate(const struct sim_model *model, const struct sim_machine *machine,
                          const struct sim_policy *policy, double seconds)
{
    struct sim_machine tried = *machine;
    double low = 0, high = GREATEST_HOST_RATE;
    tried.host_gbs = high;
    if (sim_run(model, &tried, policy, SEARCH_STEPS).worst > seconds)
        return 0;
    for (int i = 0; i < SEARCH_ROUNDS; i++) {
        tried.host_gbs = (low + high) / 2;
        if (sim_run(model, &tried, policy, SEARCH_STEPS).worst > seconds)
            low = tried.host_gbs;
        else
            high = tried.host_gbs;
    }
    return high;
}
