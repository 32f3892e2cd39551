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
    t->important_share += r->important_share;
    t->staleness = r->staleness > t->staleness ? r->staleness : t->staleness;
    t->update_interval = r->update_interval;
    t->selections += r->selected;
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
        {"important_share", t->important_share / n},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(entry, numbers[i].key, json_real(numbers[i].value));
    json_object_set_new(entry, "staleness", json_integer(t->staleness));
    json_object_set_new(entry, "update_interval", json_integer(t->update_interval));
    json_object_set_new(entry, "selections", json_integer(t->selections));
}
