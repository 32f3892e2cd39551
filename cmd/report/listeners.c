#include "cmd/report/listeners.h"

#include "cmd/monitor.h"
#include "cmd/report/report.h"
#include "cmd/report/tensorboard.h"
#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

struct listeners {
    struct monitor *monitor; /* any may be NULL */
    struct tensorboard *tensorboard;
    struct report *report;
    bool begun; /* a step has been done */
};

struct listeners *listeners_create(const struct run *run, int first_step, struct zf_error *err)
{
    const struct config *c = run->config;
    struct listeners *l = zf_calloc(1, sizeof *l);
    bool ok = monitor_create(&l->monitor, c, first_step, err) &&
              tensorboard_create(&l->tensorboard, run, first_step, err) &&
              (!c->html_report || (l->report = report_create(run, first_step, err)));
    if (ok)
        return l;
    listeners_destroy(l);
    return NULL;
}

void listeners_destroy(struct listeners *l)
{
    if (!l)
        return;
    monitor_destroy(l->monitor);
    tensorboard_destroy(l->tensorboard);
    report_destroy(l->report);
    free(l);
}

bool listeners_step(struct listeners *l, int step, double loss, double lr, struct zf_error *err)
{
    const bool first = !l->begun;
    l->begun = true;
    if (first && l->report) /* another run's may be there */
        report_refresh(l->report, step);
    return monitor_step(l->monitor, step, loss, lr, err);
}

bool listeners_log(struct listeners *l, const json_t *entry, struct zf_error *err)
{
    const char *model = json_string_value(json_object_get(entry, "model"));
    const int step = (int)json_integer_value(json_object_get(entry, "step"));
    if (l->report) {
        report_log(l->report, entry);
        report_refresh(l->report, step);
    }
    if (model && strcmp(model, "best") == 0) /* it has been evaluated at its step */
        return true;
    return monitor_evaluation(l->monitor, entry, err) &&
           tensorboard_log(l->tensorboard, entry, err);
}

/* As Transformers logs a training that is over. */
static bool log_training(struct listeners *l, int step, const json_t *results, struct zf_error *err)
{
    static const char *const keys[] = {"train_runtime", "train_samples_per_second",
                                       "train_steps_per_second", "train_loss", "epoch"};
    json_t *entry = json_pack("{s:i}", "step", step);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_set(entry, keys[i], json_object_get(results, keys[i]));
    bool ok = tensorboard_log(l->tensorboard, entry, err);
    json_decref(entry);
    return ok;
}

bool listeners_finish(struct listeners *l, int step, const char *state, const char *why,
                      const json_t *results, struct zf_error *err)
{
    if (strcmp(state, "done") == 0 && !log_training(l, step, results, err))
        return false;
    if (why && !l->begun) /* what another run left is of use still */
        return true;
    return !l->report || report_write(l->report, step, state, why, results, err);
}
