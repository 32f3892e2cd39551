#include "cmd/report/report.h"

#include "cmd/report/curves.h"
#include "cmd/report/mistakes.h"
#include "cmd/report/page.h"
#include "data/alloc.h"
#include "data/clock.h"
#include "data/file.h"
#include "data/log.h"
#include "data/show.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define PAUSE 100 /* until the next page, in units of what the last one took */

struct report {
    const struct run *run;
    char *path;
    struct curves curves;
    int step;         /* the last one that has been told of */
    json_t *mistakes; /* of the last evaluation, an array, */
    int evaluated;    /* after this step */
    int first_step;   /* where this run began, not the one that it resumes, */
    double start;     /* and when */
    double next;      /* no page earlier */
    bool warned;
};

/* What of a log counts for a run that goes on from first_step. */
static bool read_log(struct report *r, int first_step, struct zf_error *err)
{
    char *path = zf_format("%s/trainer_log.jsonl", r->run->config->output_dir), *text = NULL;
    size_t n;
    bool ok = first_step == 0 || file_read_if_any(path, &text, &n, err);
    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        json_t *entry = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (entry && json_integer_value(json_object_get(entry, "step")) <= first_step &&
            !json_object_get(entry, "model"))
            curves_add(&r->curves, entry);
        json_decref(entry);
    }
    free(text);
    free(path);
    return ok;
}

struct report *report_create(const struct run *run, int first_step, struct zf_error *err)
{
    struct report *r = zf_malloc(sizeof *r);
    *r = (struct report){
        .run = run,
        .path = zf_format("%s/report.html", run->config->output_dir),
        .mistakes = json_array(),
        .first_step = first_step,
        .start = clock_seconds(),
    };
    if (read_log(r, first_step, err))
        return r;
    report_destroy(r);
    return NULL;
}

void report_destroy(struct report *r)
{
    if (!r)
        return;
    curves_free(&r->curves);
    json_decref(r->mistakes);
    free(r->path);
    free(r);
}

static void take_mistakes(struct report *r, int step)
{
    json_array_clear(r->mistakes);
    for (int i = 0; i < r->run->n_dev; i++) {
        json_t *of_split = mistakes_json(r->run, &r->run->dev[i]);
        if (of_split)
            json_array_append_new(r->mistakes, of_split);
    }
    r->evaluated = step;
}

void report_log(struct report *r, const json_t *entry)
{
    const char *model = json_string_value(json_object_get(entry, "model"));
    if (!model || strcmp(model, "best") != 0) /* which is on the curves already */
        curves_add(&r->curves, entry);
    if (json_object_get(entry, "eval_loss"))
        take_mistakes(r, (int)json_integer_value(json_object_get(entry, "step")));
}

static json_t *text_json(const char *text)
{
    char shown[1000];
    show_text(shown, sizeof shown, text ? text : "");
    return json_string(shown);
}

/* Rows of [name, bytes]: each rank's, on its device and on the host. */
static json_t *memory_json(const struct run *run)
{
    const struct memory_use *use = &run->memory;
    const struct {
        const char *name;
        size_t bytes;
    } rows[] = {
        {"parameters", use->parameters},     {"gradients", use->gradients},
        {"windows", use->windows},           {"important state", use->important},
        {"activations", use->activations},   {"workspace", use->workspace},
        {"NCCL, allowed", use->collectives},
    };
    struct rusage usage;
    json_t *device = json_array();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].bytes > 0)
            json_array_append_new(device, json_pack("[s, f]", rows[i].name, (double)rows[i].bytes));
    getrusage(RUSAGE_SELF, &usage);
    return json_pack("{s:b, s:o, s:f, s:f, s:f}", "unified", run->device->unified, "device", device,
                     "device_available", (double)run->memory_available, "host",
                     (double)engine_memory(run->engine).host, "process_peak",
                     1024.0 * (double)usage.ru_maxrss);
}

static void add_names(json_t *json, const struct run *run)
{
    const struct config *c = run->config;
    const struct gpt_config *m = &run->model_config;
    char *full = realpath(c->output_dir, NULL);
    const char *folder = full ? full : c->output_dir;
    char *name = file_name(folder);
    char *from = file_name(c->model_name_or_path ? c->model_name_or_path : c->config_name);
    char *model =
        zf_format("%s, %.4g M parameters (%d layers, width %d)", from,
                  (double)gpt_params(run->model)->n_parameters / 1e6, m->n_layer, m->n_embd);
    json_object_set_new(json, "name", text_json(name));
    json_object_set_new(json, "folder", text_json(folder));
    json_object_set_new(json, "task", text_json(run->task->title));
    json_object_set_new(json, "model", text_json(model));
    json_object_set_new(json, "program", json_string("zf-train " ZF_VERSION));
    json_object_set_new(json, "device", json_string(run->device->name));
    json_object_set_new(json, "ranks", json_integer(comm_size(run->comm)));
    free(model);
    free(from);
    free(name);
    free(full);
}

static json_t *run_json(const struct report *r, const char *state, const char *why,
                        const json_t *results)
{
    const struct config *c = r->run->config;
    json_t *json = json_object();
    add_names(json, r->run);
    json_object_set_new(json, "state", json_string(state));
    json_object_set_new(json, "why", why ? text_json(why) : json_null());
    json_object_set_new(json, "step", json_integer(r->step));
    json_object_set_new(json, "total_steps", json_integer(c->total_steps));
    json_object_set_new(json, "steps_per_epoch", json_integer(c->steps_per_epoch));
    json_object_set_new(json, "first_step", json_integer(r->first_step));
    json_object_set_new(json, "seconds", json_real(clock_seconds() - r->start));
    json_object_set_new(json, "written", json_integer((json_int_t)time(NULL)));
    json_object_set_new(json, "curves", curves_json(&r->curves));
    json_object_set(json, "mistakes", r->mistakes);
    json_object_set_new(json, "evaluated", json_integer(r->evaluated));
    json_object_set_new(json, "memory", memory_json(r->run));
    json_object_set_new(json, "configuration", config_describe(c));
    json_object_set(json, "results", results ? (json_t *)results : json_null());
    return json;
}

bool report_write(struct report *r, int step, const char *state, const char *why,
                  const json_t *results, struct zf_error *err)
{
    const double start = clock_seconds();
    json_t *runs = json_array();
    r->step = step > r->step ? step : r->step; /* the best model's is an earlier one */
    json_array_append_new(runs, run_json(r, state, why, results));
    bool ok = page_write(r->path, runs, err);
    json_decref(runs);
    const double end = clock_seconds();
    r->next = end + PAUSE * (end - start);
    return ok;
}

void report_refresh(struct report *r, int step)
{
    struct zf_error err;
    if (clock_seconds() < r->next)
        return;
    if (report_write(r, step, "training", NULL, NULL, &err) || r->warned)
        return;
    log_warn("%s", err.text);
    r->warned = true;
}
