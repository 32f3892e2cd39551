#include "cmd/report/curves.h"

#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

struct point {
    json_int_t step; /* of the last entry */
    int n;           /* entries */
    double sum, least, greatest;
};

struct curve {
    char *name;
    int n;     /* points */
    int width; /* entries of a point; the last one's may be fewer */
    struct point points[CURVE_POINTS];
};

static struct curve *find(struct curves *curves, const char *name)
{
    for (int i = 0; i < curves->n; i++)
        if (strcmp(curves->list[i].name, name) == 0)
            return &curves->list[i];
    curves->list = zf_realloc(curves->list, (size_t)(curves->n + 1) * sizeof *curves->list);
    struct curve *curve = &curves->list[curves->n++];
    *curve = (struct curve){.name = zf_strdup(name), .width = 1};
    return curve;
}

static struct point join(struct point a, struct point b)
{
    return (struct point){
        .step = b.step,
        .n = a.n + b.n,
        .sum = a.sum + b.sum,
        .least = a.least < b.least ? a.least : b.least,
        .greatest = a.greatest > b.greatest ? a.greatest : b.greatest,
    };
}

/* Two points become one. */
static void halve(struct curve *curve)
{
    curve->n /= 2;
    curve->width *= 2;
    for (int i = 0; i < curve->n; i++)
        curve->points[i] = join(curve->points[2 * i], curve->points[2 * i + 1]);
}

static void add(struct curve *curve, json_int_t step, double value)
{
    struct point *last = curve->n ? &curve->points[curve->n - 1] : NULL;
    const struct point entry = {step, 1, value, value, value};
    if (last && step < last->step)
        return;
    if (last && last->n < curve->width) {
        *last = join(*last, entry);
        return;
    }
    if (curve->n == CURVE_POINTS)
        halve(curve);
    curve->points[curve->n++] = entry;
}

static void add_array(struct curves *curves, json_int_t step, const char *key, const json_t *array)
{
    const json_t *value;
    size_t i;
    json_array_foreach(array, i, value)
    {
        char *name = zf_format("%s.%zu", key, i);
        if (json_is_number(value))
            add(find(curves, name), step, json_number_value(value));
        free(name);
    }
}

void curves_add(struct curves *curves, const json_t *entry)
{
    const json_int_t step = json_integer_value(json_object_get(entry, "step"));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)entry, key, value)
    {
        if (json_is_number(value) && strcmp(key, "step") != 0 && strcmp(key, "epoch") != 0)
            add(find(curves, key), step, json_number_value(value));
        add_array(curves, step, key, value);
    }
}

void curves_free(struct curves *curves)
{
    for (int i = 0; i < curves->n; i++)
        free(curves->list[i].name);
    free(curves->list);
    *curves = (struct curves){0};
}

static json_t *curve_json(const struct curve *curve)
{
    json_t *json = json_object(), *step = json_array(), *value = json_array();
    json_t *least = json_array(), *greatest = json_array();
    for (int i = 0; i < curve->n; i++) {
        const struct point *p = &curve->points[i];
        json_array_append_new(step, json_integer(p->step));
        json_array_append_new(value, json_real(p->sum / p->n));
        json_array_append_new(least, json_real(p->least));
        json_array_append_new(greatest, json_real(p->greatest));
    }
    json_object_set_new(json, "step", step);
    json_object_set_new(json, "value", value);
    if (curve->width > 1) {
        json_object_set(json, "least", least);
        json_object_set(json, "greatest", greatest);
    }
    json_decref(least);
    json_decref(greatest);
    return json;
}

json_t *curves_json(const struct curves *curves)
{
    json_t *json = json_object();
    for (int i = 0; i < curves->n; i++)
        json_object_set_new(json, curves->list[i].name, curve_json(&curves->list[i]));
    return json;
}
