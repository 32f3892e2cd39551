/* AdamW on the device. */
#include "offload/engine/internal.h"

struct adamw channels_rule(const struct engine *e, float lr)
{
    const struct engine_config *c = &e->config;
    return (struct adamw){.lr = lr,
                          .beta1 = c->beta1,
                          .beta2 = c->beta2,
                          .eps = c->eps,
                          .weight_decay = c->weight_decay,
                          .l2 = !c->adam_w_mode};
}

void channels_update(struct engine *e, enum row_source source, float lr, const float *factor,
                     struct step_report *report)
{
    const struct update_list *l = &e->list;
    const struct adamw rule = channels_rule(e, lr);
    const int n_visits = e->visits.n;
    for (int visit = 0, first = 0; visit < n_visits || visit == 0; visit++) {
        const int end = n_visits > 0 ? visits_end(e, visit) : l->n;
        if (n_visits > 0)
            visits_come(e, visit, report);
        e->device->row_ops->adamw_rows(e->device->compute, &e->batches.all, l->device + first,
                                       end - first, source, &rule, factor, e->config.bf16);
        if (n_visits > 0)
            visits_leave(e, visit, report);
        first = end;
    }
    visits_land(e);
}

void channels_count_updates(struct engine *e)
{
    const struct update_list *l = &e->list;
    for (int i = 0; i < l->n; i++)
        e->matrices[l->host[i].matrix].host.updates[l->host[i].row]++;
}

/* The list holds all channels that have slots. */
static void list_important(struct engine *e)
{
    table_list_begin(e);
    for (int i = 0; i < e->n_matrices; i++) {
        const struct matrix *m = &e->matrices[i];
        for (int row = 0; row < m->n_owned; row++)
            if (m->slot_of[row] >= 0)
                table_list_add(e, m, row);
    }
    table_list_end(e);
    plan_host_loop(e->device->plan, e->n_channels / (size_t)e->ranks);
    e->list.important = true;
}

void channels_update_important(struct engine *e, struct step_report *report)
{
    if (!e->list.important)
        list_important(e);
    channels_update(e, ROWS_GRADIENT, e->lr, &e->norms.summary->factor, report);
}
