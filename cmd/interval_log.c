#include "cmd/interval_log.h"
#include "cmd/config/engine_settings.h"
#include "data/figures.h"
#include "data/log.h"

#include <stdio.h>

/* "keep_up", "auto", or NULL where S is given or there are no windows. */
static const char *rule_of(const struct config *c)
{
    const struct zenflow_config *z = &c->zenflow;
    if (!z->enabled || z->update_interval > 0 || z->topk_ratio == 1)
        return NULL;
    return z->update_interval == CONFIG_KEEP_UP ? "keep_up" : "auto";
}

static void tell_of_pace(const struct step_report *report)
{
    const struct engine_pace *p = &report->pace;
    char each[64] = "";
    if (p->host_each > 0)
        snprintf(each, sizeof each, " and %.2f in each step", 1e3 * p->host_each);
    log_info("a step takes %.2f ms, of which parameters have %.2f to come in; for all channels the "
             "host needs %.2f%s, the link %.2f",
             1e3 * p->step, 1e3 * p->room, 1e3 * p->host, each, 1e3 * p->link);
    if (report->least_interval == ENGINE_MAX_INTERVAL || p->host_each > p->step)
        log_warn("that is more than the host or the link can do beside it: the device waits");
}

static void warn_of_rarer_choices(struct interval_log *l, const struct config *c)
{
    const int asked = engine_settings(c, NULL).select_every;
    if (l->rarer || c->zenflow.topk_ratio == 0 || asked == 0 || asked >= l->interval)
        return;
    l->rarer = true;
    log_warn("zero_optimization.zenflow.select_interval asks for a choice of channels in every %d "
             "step(s), but one stays for a window's length, %d",
             asked, l->interval);
}

void interval_log_step(struct interval_log *l, const struct config *c, int step,
                       const struct step_report *report)
{
    const int before = l->interval;
    l->interval = report->update_interval;
    if (!report->chose_interval)
        return;
    if (!l->told)
        log_info("update_interval \"%s\": windows are of %d step(s) from step %s on, and were of "
                 "%d",
                 rule_of(c), l->interval, figure_count(step + 1).text, before);
    l->told = true;
    if (report->least_interval > 0)
        tell_of_pace(report);
    warn_of_rarer_choices(l, c);
}

void interval_log_end(struct interval_log *l, const struct config *c, bool resumed)
{
    if (rule_of(c))
        warn_of_rarer_choices(l, c);
    if (rule_of(c) && !l->told)
        log_info("update_interval \"%s\": windows were of %d step(s) throughout%s", rule_of(c),
                 l->interval, resumed ? "" : ": the run was too short to choose");
}
