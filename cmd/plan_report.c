#include "cmd/plan_report.h"

#include "data/alloc.h"
#include "data/clock.h"
#include "data/median.h"
#include "model/plan/plan.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_KINDS  32
#define WORSE       1.1   /* than the median: the worst step is told too */
#define CHAIN_LEAST 0.005 /* of the step: shorter stretches of the chain are not told */
#define KIND_LEAST  0.001 /* and what takes less in all */

struct planned_step {
    double begin, seconds;
    struct step_report report;
    struct plan_host host;
    struct sim_stretch *path; /* from the last to the first */
    int n_stretches;
};

struct plan_report {
    struct plan *plan;
    double last;           /* when the last step ended, */
    struct plan_host done; /* and what the host had done by then */
    struct planned_step *steps;
    int n_steps, capacity;
};

struct plan_report *plan_report_create(struct device *device)
{
    struct plan_report *r = zf_calloc(1, sizeof *r);
    r->plan = device->plan;
    plan_report_restart(r);
    return r;
}

static void free_steps(struct plan_report *r)
{
    for (int i = 0; i < r->n_steps; i++)
        free(r->steps[i].path);
    r->n_steps = 0;
}

void plan_report_destroy(struct plan_report *r)
{
    if (!r)
        return;
    free_steps(r);
    free(r->steps);
    free(r);
}

void plan_report_restart(struct plan_report *r)
{
    free_steps(r);
    r->last = clock_seconds();
    r->done = plan_host_work(r->plan);
    sim_forget(plan_sim(r->plan));
}

void plan_report_step(struct plan_report *r, const struct step_report *report)
{
    double now = clock_seconds();
    if (r->n_steps == r->capacity) {
        r->capacity = 2 * r->capacity + 32;
        r->steps = zf_realloc(r->steps, (size_t)r->capacity * sizeof *r->steps);
    }
    struct planned_step *s = &r->steps[r->n_steps++];
    const struct plan_host done = plan_host_work(r->plan);
    *s = (struct planned_step){
        .begin = r->last,
        .seconds = now - r->last,
        .report = *report,
        .host = {done.launches - r->done.launches, done.seconds - r->done.seconds},
    };
    s->n_stretches = sim_critical_path(plan_sim(r->plan), r->last, &s->path);
    sim_forget(plan_sim(r->plan));
    r->last = now;
    r->done = done;
}

/* ---- what is told ---- */

struct kind {
    const char *what;
    double seconds;
};

static int by_seconds(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

/* What a step's path is made of, the most first. */
static int count_kinds(const struct planned_step *s, struct kind *kinds)
{
    int n = 0;
    for (int i = 0; i < s->n_stretches; i++) {
        int k = 0;
        while (k < n && strcmp(kinds[k].what, s->path[i].what) != 0)
            k++;
        if (k == MOST_KINDS)
            continue;
        if (k == n)
            kinds[n++] = (struct kind){s->path[i].what, 0};
        kinds[k].seconds += s->path[i].end - s->path[i].begin;
    }
    qsort(kinds, (size_t)n, sizeof *kinds, by_seconds);
    return n;
}

/* Operators that alternate a thousand times are one stretch to a person. */
static const char *told_as(const char *what)
{
    static const char *const model[] = {"products", "attention", "other operators",
                                        "host: launches"};
    for (size_t i = 0; i < sizeof model / sizeof *model; i++)
        if (strcmp(what, model[i]) == 0)
            return "model";
    return what;
}

/* Stretches of the path as a person is told of them. */
struct chain {
    struct kind *links;
    int n;
};

static void add_link(struct chain *c, const char *what, double seconds)
{
    if (c->n > 0 && strcmp(c->links[c->n - 1].what, what) == 0)
        c->links[c->n - 1].seconds += seconds;
    else
        c->links[c->n++] = (struct kind){what, seconds};
}

/* Links [first, last), each too short to be told, by the name of what most of them are. */
static void add_short_links(struct chain *c, const struct kind *links, int first, int last)
{
    struct kind most = {0};
    double all = 0;
    for (int i = first; i < last; i++) {
        double same = 0;
        for (int k = first; k < last; k++)
            same += strcmp(links[i].what, links[k].what) == 0 ? links[k].seconds : 0;
        if (same > most.seconds)
            most = (struct kind){links[i].what, same};
        all += links[i].seconds;
    }
    if (most.what)
        add_link(c, most.what, all);
}

/* The path in the order of time, as "model 12.0 ms, link down 3.1 ms, ...". */
static void print_chain(const struct planned_step *s, FILE *out)
{
    struct chain all = {zf_malloc(sizeof(struct kind) * (size_t)(s->n_stretches + 1)), 0};
    struct chain told = {zf_malloc(sizeof(struct kind) * (size_t)(s->n_stretches + 1)), 0};
    for (int i = s->n_stretches - 1; i >= 0; i--)
        add_link(&all, told_as(s->path[i].what), s->path[i].end - s->path[i].begin);
    for (int i = 0; i < all.n;) {
        int first = i;
        while (i < all.n && all.links[i].seconds < CHAIN_LEAST * s->seconds)
            i++;
        add_short_links(&told, all.links, first, i);
        if (i < all.n) {
            add_link(&told, all.links[i].what, all.links[i].seconds);
            i++;
        }
    }
    all.n = 0;
    for (int i = 0; i < told.n; i++)
        if (told.links[i].seconds >= CHAIN_LEAST * s->seconds)
            add_link(&all, told.links[i].what, told.links[i].seconds);
    fprintf(out, "  in order:  ");
    for (int i = 0; i < all.n; i++)
        fprintf(out, "%s%s %.2f ms", i ? ", " : "", all.links[i].what, 1e3 * all.links[i].seconds);
    fputc('\n', out);
    free(all.links);
    free(told.links);
}

static double *seconds_of(const struct plan_report *r)
{
    double *seconds = zf_malloc(sizeof *seconds * (size_t)(r->n_steps + 1));
    for (int i = 0; i < r->n_steps; i++)
        seconds[i] = r->steps[i].seconds;
    return seconds;
}

struct summary {
    double median, worst, mean, stall, down, up, moved, workers;
    struct plan_host host;
    int interval, selections;
    const struct planned_step *middle, *longest; /* the step nearest to the median; the worst */
};

static struct summary summarise(const struct plan_report *r)
{
    struct summary s = {0};
    assert(r->n_steps > 0);
    double *seconds = seconds_of(r), n = r->n_steps;
    s.median = median_of(seconds, r->n_steps);
    free(seconds);
    for (int i = 0; i < r->n_steps; i++) {
        const struct planned_step *step = &r->steps[i];
        s.worst = fmax(s.worst, step->seconds);
        s.mean += step->seconds / n;
        s.stall += step->report.stall_seconds / n;
        s.workers += step->report.host_seconds / n;
        s.host.launches += step->host.launches / n;
        s.host.seconds += step->host.seconds / n;
        s.down += (double)step->report.bytes_down / n;
        s.up += (double)step->report.bytes_up / n;
        s.moved += (double)step->report.bytes_moved / n;
        s.selections += step->report.selected;
        s.interval = step->report.update_interval;
        if (!s.longest || step->seconds > s.longest->seconds)
            s.longest = step;
        if (!s.middle || fabs(step->seconds - s.median) < fabs(s.middle->seconds - s.median))
            s.middle = step;
    }
    return s;
}

static void print_path(const struct planned_step *s, const char *name, FILE *out)
{
    struct kind kinds[MOST_KINDS];
    int n = count_kinds(s, kinds);
    fprintf(out, "  critical path of the %s step%s:\n", name,
            s->report.selected ? ", which chooses anew" : "");
    for (int i = 0; i < n && kinds[i].seconds > KIND_LEAST * s->seconds; i++)
        fprintf(out, "  %8.2f ms %6.1f%%  %s\n", 1e3 * kinds[i].seconds,
                100 * kinds[i].seconds / s->seconds, kinds[i].what);
    print_chain(s, out);
}

void plan_report_print(const struct plan_report *r, size_t n_parameters, FILE *out)
{
    struct summary s = summarise(r);
    double model = 2 * (double)n_parameters;
    fprintf(
        out,
        "planned (simulated, not measured) on %s: %d steps, windows of %d, %d new choice(s)\n"
        "  step:      median %.2f ms, worst %.2f ms, mean %.2f ms; the device waits for the "
        "host %.2f ms (%.1f%%)\n"
        "  traffic:   down %.1f MB, up %.1f MB, state that moves %.1f MB a step: %.3f, %.3f "
        "and %.3f sizes of the model in bf16\n"
        "  host:      %.1f launches a step; %.3f ms of its own, outside waits; workers busy %.2f "
        "ms, summed over them\n",
        plan_machine(r->plan)->name, r->n_steps, s.interval, s.selections, 1e3 * s.median,
        1e3 * s.worst, 1e3 * s.mean, 1e3 * s.stall, 100 * s.stall / s.mean, 1e-6 * s.down,
        1e-6 * s.up, 1e-6 * s.moved, s.down / model, s.up / model, s.moved / model, s.host.launches,
        1e3 * s.host.seconds, 1e3 * s.workers);
    print_path(s.middle, "median", out);
    if (s.worst > WORSE * s.median)
        print_path(s.longest, "worst", out);
    fflush(out);
}

json_t *plan_report_describe(const struct plan_report *r, size_t n_parameters)
{
    struct summary s = summarise(r);
    struct kind kinds[MOST_KINDS];
    json_t *path = json_object();
    int n = count_kinds(s.middle, kinds);
    for (int i = 0; i < n; i++)
        json_object_set_new(path, kinds[i].what, json_real(kinds[i].seconds));
    return json_pack("{s:b, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}",
                     "simulated", 1, "machine", plan_machine(r->plan)->name, "steps", r->n_steps,
                     "median_seconds", s.median, "worst_seconds", s.worst, "mean_seconds", s.mean,
                     "stall_seconds", s.stall, "bytes_down", s.down, "bytes_up", s.up,
                     "bytes_moved", s.moved, "launches", s.host.launches, "own_host_seconds",
                     s.host.seconds, "link_model_sizes",
                     (s.down + s.up) / (2 * (double)n_parameters), "critical_path_seconds", path);
}
