#include "tests/property/zenflow/hostile.h"

#include "data/alloc.h"
#include "data/rng.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct draw {
    uint32_t seed, n;
};

static uint32_t next(struct draw *d)
{
    return philox4x32((struct philox){{d->n++, 5, 6, 7}}, d->seed, 91).v[0];
}

static int below(struct draw *d, int n)
{
    return (int)(next(d) % (uint32_t)n);
}

/* A number where there was this one. */
static int32_t another(struct draw *d, int32_t value)
{
    static const int32_t odd[] = {0, 1, -1, 2, 63, 64, 65, 255, 256, 65536, INT_MAX, INT_MIN};
    switch (below(d, 4)) {
    case 0:
        return (int32_t)((uint32_t)value + 1);
    case 1:
        return (int32_t)((uint32_t)value - 1);
    case 2:
        return (int32_t)next(d);
    default:
        return odd[below(d, sizeof odd / sizeof *odd)];
    }
}

/* One of the numbers in a text. */
static char *change_text(struct draw *d, const char *text)
{
    static const char *const odd[] = {"",      " ",   "x",    "-",     "nan", "inf",
                                      "1e999", "007", "0x10", "1 2 3", "%s%n"};
    const int word = below(d, 12);
    const char *p = text;
    for (int i = 0; i < word && strchr(p, ' '); i++)
        p = strchr(p, ' ') + 1;
    const int n = (int)strcspn(p, " ");
    if (below(d, 8) == 0)
        return zf_format("%.*s%s%s", (int)(p - text), text, odd[below(d, 11)], p + n);
    return zf_format("%.*s%d%s", (int)(p - text), text, another(d, atoi(p)), p + n);
}

/* The i-th member of an object. */
static const char *member(json_t *object, int i, json_t **value)
{
    const char *key;
    json_object_foreach(object, key, *value)
    {
        if (i-- == 0)
            return key;
    }
    return NULL;
}

static void change_metadata(struct draw *d, json_t *header)
{
    json_t *metadata = json_object_get(header, "__metadata__"), *value;
    const int n = (int)json_object_size(metadata);
    if (n == 0)
        return;
    const char *key = below(d, 2) ? "engine" : member(metadata, below(d, n), &value);
    const char *text = json_string_value(json_object_get(metadata, key));
    char *changed = change_text(d, text ? text : "");
    json_object_set_new(metadata, key, json_string(changed));
    free(changed);
}

static void change_tensor(struct draw *d, json_t *header)
{
    static const char *const dtypes[] = {"F32", "I32", "U8", "I64", "F16", "BOOL", "none"};
    json_t *tensor = NULL;
    const char *name = member(header, below(d, (int)json_object_size(header)), &tensor);
    json_t *shape = json_object_get(tensor, "shape");
    json_t *offsets = json_object_get(tensor, "data_offsets");
    json_t *list = below(d, 2) ? shape : offsets;
    if (!name || json_array_size(list) == 0)
        return;
    const size_t i = (size_t)below(d, (int)json_array_size(list));
    const json_int_t old = json_integer_value(json_array_get(list, i));
    switch (below(d, 5)) {
    case 0:
        json_object_set_new(tensor, "dtype", json_string(dtypes[below(d, 7)]));
        break;
    case 1:
        json_object_del(header, name);
        break;
    case 2: /* a product that is as it was */
        json_array_append_new(shape, json_integer(1));
        break;
    default:
        json_array_set_new(list, i, json_integer(another(d, (int32_t)old)));
        break;
    }
}

/* The data of one tensor. Those that steer come more often than those that are only numbers. */
static void change_data(struct draw *d, json_t *header, unsigned char *data, size_t n)
{
    static const char *const steering[] = {"groups", "norms", ".place", ".target", ".step"};
    const char *wanted = steering[below(d, 5)], *name;
    const bool any = below(d, 8) == 0;
    json_t *tensor;
    int left = below(d, 8);
    json_object_foreach(header, name, tensor)
    {
        const json_t *offsets = json_object_get(tensor, "data_offsets");
        const size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
        const size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
        if ((!any && !strstr(name, wanted)) || end > n || begin > n || begin + 4 > end ||
            left-- > 0)
            continue;
        const size_t at = begin + (size_t)below(d, (int)(end - begin - 3));
        int32_t value;
        switch (below(d, 4)) {
        case 0: /* two change places */
            value = data[at];
            data[at] = data[begin];
            data[begin] = (unsigned char)value;
            break;
        case 1:
            data[at] = (unsigned char)below(d, 5);
            break;
        case 2: /* all of it */
            memset(data + begin, below(d, 4), end - begin);
            break;
        default:
            memcpy(&value, data + begin + (at - begin) / 4 * 4, sizeof value);
            value = another(d, value);
            memcpy(data + begin + (at - begin) / 4 * 4, &value, sizeof value);
            break;
        }
        return;
    }
}

/* Of a matrix that has a choice, as many channels more are important as there are slots for. */
static void crowd(json_t *header, unsigned char *data, size_t n)
{
    const char *name;
    json_t *tensor;
    json_object_foreach(header, name, tensor)
    {
        const char *end = strstr(name, ".place");
        char *target = zf_format("%.*s.target", end ? (int)(end - name) : 0, name);
        json_t *places = json_object_get(tensor, "data_offsets");
        json_t *targets = json_object_get(json_object_get(header, target), "data_offsets");
        const size_t at = (size_t)json_integer_value(json_array_get(places, 0));
        const size_t last = (size_t)json_integer_value(json_array_get(places, 1));
        const size_t chosen = (size_t)json_integer_value(json_array_get(targets, 0));
        int left = 0;
        free(target);
        if (!end || !targets || last > n || at > last || chosen > n || last - at > n - chosen)
            continue;
        for (size_t i = 0; i < last - at; i++)
            left += data[chosen + i] == 1;
        for (size_t i = 0; i < last - at; i++) {
            const int more = data[chosen + i] == 0 && left-- > 0;
            if (data[at + i] < 3)
                data[at + i] = data[chosen + i] == 1 || more;
        }
    }
}

/* The file with another header. */
static size_t replace_header(unsigned char *bytes, size_t n, size_t capacity, size_t old,
                             const json_t *header)
{
    char *text = json_dumps(header, JSON_COMPACT);
    const uint64_t length = strlen(text);
    const size_t data = n - 8 - old, all = 8 + length + data;
    if (all <= capacity) {
        memmove(bytes + 8 + length, bytes + 8 + old, data);
        memcpy(bytes, &length, sizeof length);
        memcpy(bytes + 8, text, length);
    }
    free(text);
    return all <= capacity ? all : n;
}

size_t hostile_change(unsigned char *bytes, size_t n, size_t capacity, uint32_t seed)
{
    struct draw d = {.seed = seed};
    uint64_t length;
    if (n < 8)
        return n;
    memcpy(&length, bytes, sizeof length);
    json_t *header = length <= n - 8 ? json_loadb((char *)bytes + 8, length, 0, NULL) : NULL;
    if (!json_is_object(header) || json_object_size(header) == 0) {
        json_decref(header);
        return n;
    }
    for (int i = below(&d, 3); i >= 0; i--) {
        switch (below(&d, 9)) {
        case 0:
            change_tensor(&d, header);
            break;
        case 8:
            crowd(header, bytes + 8 + length, n - 8 - length);
            break;
        case 1:
        case 2:
        case 3:
            change_metadata(&d, header);
            break;
        default:
            change_data(&d, header, bytes + 8 + length, n - 8 - length);
            break;
        }
    }
    n = replace_header(bytes, n, capacity, length, header);
    json_decref(header);
    return n;
}

/* One step, which may find numbers that are not finite. */
static bool step(struct problem *p, int number)
{
    struct zf_error err;
    struct step_report report;
    engine_begin_step(p->engine, problem_lr(number));
    problem_add_gradient(p, number, 0, p->params, p->grads);
    problem_give_gradient(p);
    return engine_end_step(p->engine, &report, &err);
}

bool hostile_load(struct problem *p, const char *directory, struct zf_error *err)
{
    if (!engine_load(p->engine, directory, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < 14; i++)
        ok = step(p, i);
    if (ok &&
        (!engine_save(p->engine, directory, err) || !engine_load(p->engine, directory, err))) {
        fprintf(stderr, "what was loaded and ran cannot be loaded again: %s\n", err->text);
        abort();
    }
    problem_finish(p);
    return true;
}
