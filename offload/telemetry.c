#include "offload/telemetry.h"

#include "offload/engine/engine.h"

#define BF16_BYTES 2

void telemetry_add(struct telemetry *t, const struct step_report *r, double step_seconds)
{
    t->steps++;
    t->step_seconds += step_seconds;
    t->stall_seconds += r->stall_seconds;
    t->host_seconds += r->host_seconds;
    t->bytes_down += (double)r->bytes_down;
    t->bytes_up += (double)r->bytes_up;
    t->bytes_moved += (double)r->bytes_moved;
    t->bytes_gathered += (double)r->bytes_gathered;
    t->bytes_norms += (double)r->bytes_norms;
    t->bytes_gradients += (double)r->bytes_gradients;
    t->important_share += r->important_share;
    t->staleness = r->staleness > t->staleness ? r->staleness : t->staleness;
    t->update_interval = r->update_interval;
}

double telemetry_stall(const struct telemetry *t)
{
    return t->step_seconds > 0 ? t->stall_seconds / t->step_seconds : 0;
}

void telemetry_describe(const struct telemetry *t, size_t n_parameters, json_t *entry)
{
    double n = t->steps ? t->steps : 1, model = (double)(n_parameters * BF16_BYTES);
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"stall", telemetry_stall(t)},
        {"stall_seconds", t->stall_seconds / n},
        {"host_seconds", t->host_seconds / n},
        {"bytes_down", t->bytes_down / n},
        {"bytes_up", t->bytes_up / n},
        {"bytes_moved", t->bytes_moved / n},
        {"link_model_sizes", (t->bytes_down + t->bytes_up) / n / model},
        {"bytes_gathered", t->bytes_gathered / n},
        {"bytes_norms", t->bytes_norms / n},
        {"bytes_gradients", t->bytes_gradients / n},
        {"important_share", t->important_share / n},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(entry, numbers[i].key, json_real(numbers[i].value));
    json_object_set_new(entry, "staleness", json_integer(t->staleness));
    json_object_set_new(entry, "update_interval", json_integer(t->update_interval));
}

static json_t *overlap_of(const struct choice_part *part)
{
    return part->chosen > 0 ? json_real((double)part->kept / part->chosen) : json_null();
}

static json_t *share_of(const struct choice_part *part)
{
    return part->norm > 0 ? json_real(part->norm_chosen / part->norm) : json_null();
}

/* KEY and KEY_by_layer. */
static void describe_figure(const struct engine_choice *c, const char *key,
                            const char *key_by_layer,
                            json_t *(*figure_of)(const struct choice_part *), json_t *entry)
{
    json_t *layers = json_array();
    for (int i = 0; i < c->n_layers; i++)
        json_array_append_new(layers, figure_of(&c->layers[i]));
    json_object_set_new(entry, key, figure_of(&c->all));
    json_object_set_new(entry, key_by_layer, layers);
}

void telemetry_describe_choice(const struct engine_choice *c, json_t *entry)
{
    if (!c->first)
        describe_figure(c, "selection_overlap", "selection_overlap_by_layer", overlap_of, entry);
    describe_figure(c, "selection_share", "selection_share_by_layer", share_of, entry);
}
