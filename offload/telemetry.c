#include "offload/telemetry.h"

#include "data/alloc.h"
#include "offload/engine/engine.h"

#include <stdlib.h>

#define BF16_BYTES 2

static void add_part(struct choice_means *m, const struct choice_part *part, bool first)
{
    if (!first && part->chosen > 0) {
        m->overlap += (double)part->kept / part->chosen;
        m->overlaps++;
    }
    if (part->norm > 0) {
        m->share += part->norm_chosen / part->norm;
        m->shares++;
    }
}

static void add_choice(struct telemetry *t, const struct engine_choice *c)
{
    if (!t->layers) {
        t->n_layers = c->n_layers;
        t->layers = zf_calloc((size_t)c->n_layers, sizeof *t->layers);
    }
    add_part(&t->choices, &c->all, c->first);
    for (int i = 0; i < c->n_layers; i++)
        add_part(&t->layers[i], &c->layers[i], c->first);
}

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
    t->selections += r->selected;
    if (r->choice)
        add_choice(t, r->choice);
}

void telemetry_clear(struct telemetry *t)
{
    free(t->layers);
    *t = (struct telemetry){0};
}

double telemetry_stall(const struct telemetry *t)
{
    return t->step_seconds > 0 ? t->stall_seconds / t->step_seconds : 0;
}

static json_t *mean(double sum, int n)
{
    return n > 0 ? json_real(sum / n) : json_null();
}

static void describe_choices(const struct telemetry *t, json_t *entry)
{
    json_t *overlaps = json_array(), *shares = json_array();
    for (int i = 0; i < t->n_layers; i++) {
        json_array_append_new(overlaps, mean(t->layers[i].overlap, t->layers[i].overlaps));
        json_array_append_new(shares, mean(t->layers[i].share, t->layers[i].shares));
    }
    if (t->choices.overlaps > 0) {
        json_object_set_new(entry, "selection_overlap",
                            mean(t->choices.overlap, t->choices.overlaps));
        json_object_set(entry, "selection_overlap_by_layer", overlaps);
    }
    if (t->choices.shares > 0) {
        json_object_set_new(entry, "selection_share", mean(t->choices.share, t->choices.shares));
        json_object_set(entry, "selection_share_by_layer", shares);
    }
    json_decref(overlaps);
    json_decref(shares);
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
    json_object_set_new(entry, "selections", json_integer(t->selections));
    describe_choices(t, entry);
}
