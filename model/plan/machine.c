#include "model/plan/machine.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/json.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER "configs/machines"

/* Every figure: where it stands in the file and in the struct. */
static const struct figure {
    const char *path;
    size_t offset;
    double least, greatest;
    /* in the files of which machines; OPTIONAL: of all, where it is given */
    enum { OF_ALL, OF_GPUS, OF_CPUS, OPTIONAL } where;
} figures[] = {
#define FIELD(field) offsetof(struct machine, field)
    {"measured_ranks", FIELD(measured), 0, 4096, OF_ALL},
    {"device.memory_bytes", FIELD(memory_bytes), 1e6, 1e15, OF_ALL},
    {"device.threads", FIELD(threads), 1, 8192, OF_CPUS},
    {"device.multiprocessors", FIELD(multiprocessors), 1, 1e5, OF_GPUS},
    {"device.product_flops_per_second", FIELD(product_rate), 1e6, 1e18, OF_ALL},
    {"device.product_half_m", FIELD(half_m), 0, 1e5, OF_GPUS},
    {"device.product_half_n", FIELD(half_n), 0, 1e5, OF_GPUS},
    {"device.product_half_k", FIELD(half_k), 0, 1e5, OF_GPUS},
    {"device.attention_flops_per_second", FIELD(attention_rate), 1e6, 1e18, OF_GPUS},
    {"device.memory_bytes_per_second", FIELD(memory_rate), 1e6, 1e15, OF_ALL},
    {"device.operator_latency_seconds", FIELD(latency), 0, 1, OF_GPUS},
    {"link.bytes_per_second", FIELD(link_rate), 1e6, 1e15, OF_GPUS},
    {"link.latency_seconds", FIELD(link_latency), 0, 1, OF_GPUS},
    {"link.ranks", FIELD(ranks_per_link), 1, 64, OF_GPUS},
    {"link.kernel_multiprocessors", FIELD(transfer_multiprocessors), 0, 1e5, OF_GPUS},
    {"host.ranks", FIELD(ranks_per_host), 1, 1024, OF_ALL},
    {"host.cores", FIELD(cores), 1, 8192, OF_ALL},
    {"host.memory_bytes", FIELD(host_memory_bytes), 1e6, 1e15, OF_ALL},
    {"host.adam_bytes_per_second", FIELD(host_rate), 1e6, 1e15, OF_ALL},
    {"host.core_adam_bytes_per_second", FIELD(core_rate), 1e6, 1e15, OF_ALL},
    {"host.wake_seconds", FIELD(wake), 0, 1, OF_ALL},
    {"host.channel_seconds", FIELD(channel), 0, 1, OF_ALL},
    {"host.launch_seconds", FIELD(launch), 0, 1, OF_GPUS},
    {"host.wait_seconds", FIELD(wait), 0, 1, OF_GPUS},
    {"ranks.exchange_bytes_per_second", FIELD(exchange_rate), 1e3, 1e15, OF_ALL},
    {"ranks.network_bytes_per_second", FIELD(network_rate), 1e3, 1e15, OF_GPUS},
    {"ranks.latency_seconds", FIELD(exchange_latency), 0, 1, OF_ALL},
    {"gradients.lasting_deviation", FIELD(lasting), 0, 10, OPTIONAL},
    {"gradients.passing_deviation", FIELD(passing), 0, 10, OPTIONAL},
    {"gradients.seed", FIELD(seed), 0, UINT32_MAX, OPTIONAL},
#undef FIELD
};
static const size_t n_figures = sizeof figures / sizeof *figures;

static const struct figure *find_figure(const char *path)
{
    for (size_t i = 0; i < n_figures; i++)
        if (strcmp(figures[i].path, path) == 0)
            return &figures[i];
    return NULL;
}

/* ---- reading ---- */

static bool fail_at(const struct json_file *f, const char *path, const char *expected,
                    struct zf_error *err)
{
    return json_find(f, path)
               ? json_fail(f, path, expected, err)
               : zf_fail(err, "%s: %s is missing: it is %s", f->path, path, expected);
}

static bool read_figure(const struct json_file *f, const struct figure *figure, struct machine *m,
                        struct zf_error *err)
{
    char path[96], expected[96];
    json_t *object = json_find(f, figure->path);
    if (figure->where == (m->is_cpu ? OF_GPUS : OF_CPUS))
        return !object || fail_at(f, figure->path, "a figure of the other kind of machine", err);
    if (!object && figure->where == OPTIONAL)
        return true;
    if (!json_is_object(object))
        return fail_at(f, figure->path, "an object with value and source", err);
    json_t *value = json_object_get(object, "value"),
           *share = json_object_get(object, "efficiency");
    double least = figure->least, greatest = figure->greatest;
    snprintf(path, sizeof path, "%s.value", figure->path);
    snprintf(expected, sizeof expected, "a number from %g to %g", least, greatest);
    if (!json_is_number(value) || !(json_number_value(value) >= least) ||
        !(json_number_value(value) <= greatest))
        return fail_at(f, path, expected, err);
    snprintf(path, sizeof path, "%s.efficiency", figure->path);
    if (share && figure->where == OPTIONAL)
        return fail_at(f, path, "not given: this is no rate", err);
    if (share &&
        (!json_is_number(share) || !(json_number_value(share) > 0) || json_number_value(share) > 1))
        return fail_at(f, path, "a number above 0, at most 1", err);
    snprintf(path, sizeof path, "%s.source", figure->path);
    if (!json_is_string(json_object_get(object, "source")))
        return fail_at(f, path, "a text: where the value comes from", err);
    *(double *)((char *)m + figure->offset) =
        json_number_value(value) * (share ? json_number_value(share) : 1);
    return true;
}

/* Blocks hold figures that are known, and nothing else. */
static bool check_block(const struct json_file *f, const char *block, json_t *object,
                        struct zf_error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return fail_at(f, block, "a block of figures", err);
    json_object_foreach(object, key, value)
    {
        char path[128];
        snprintf(path, sizeof path, "%s.%s", block, key);
        if (!find_figure(path))
            return zf_fail(err, "%s:%d: %s is not a known figure", f->path, json_line(f, path),
                           path);
    }
    return true;
}

static bool check_keys(const struct json_file *f, struct zf_error *err)
{
    static const char *const blocks[] = {"device", "link", "host", "ranks", "gradients"};
    static const char *const others[] = {"name",      "kind",     "about",
                                         "operators", "products", "measured_ranks"};
    const char *key;
    json_t *value;
    json_object_foreach(f->root, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
            bool is_block = strcmp(key, blocks[i]) == 0;
            if (is_block && !check_block(f, key, value, err))
                return false;
            known |= is_block;
        }
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            known |= strcmp(key, others[i]) == 0;
        if (!known)
            return zf_fail(err, "%s:%d: %s is not a known key", f->path, json_line(f, key), key);
    }
    return true;
}

/* [[bytes, seconds], ...] */
static bool read_points(const json_t *list, struct machine_operator *o)
{
    o->n_points = (int)json_array_size(list);
    if (o->n_points < 1 || o->n_points > MACHINE_POINTS)
        return false;
    for (int i = 0; i < o->n_points; i++) {
        const json_t *point = json_array_get(list, (size_t)i);
        o->bytes[i] = json_number_value(json_array_get(point, 0));
        o->seconds[i] = json_number_value(json_array_get(point, 1));
        if (!(o->bytes[i] > (i ? o->bytes[i - 1] : 0)) || !(o->seconds[i] > 0))
            return false;
    }
    return true;
}

static bool read_operators(const struct json_file *f, struct machine *m, struct zf_error *err)
{
    const char *name;
    json_t *value, *list = json_find(f, "operators");
    json_object_foreach(list, name, value)
    {
        struct machine_operator *o = &m->operators[m->n_operators];
        char path[128];
        snprintf(path, sizeof path, "operators.%.60s", name);
        if (m->n_operators == MACHINE_OPERATORS || strlen(name) >= sizeof o->name)
            return fail_at(f, path, "one of at most 64 operators with names below 40 bytes", err);
        strcpy(o->name, name);
        o->flops_per_second = json_number_value(json_object_get(value, "flops_per_second"));
        if (!read_points(json_object_get(value, "points"), o) || !(o->flops_per_second >= 0))
            return fail_at(
                f, path, "an object with points: 1 to 4 pairs of bytes, rising, and seconds", err);
        m->n_operators++;
    }
    return true;
}

static bool read_products(const struct json_file *f, struct machine *m, struct zf_error *err)
{
    struct machine_products *p = &m->products;
    json_t *sides = json_find(f, "products.sides"), *rates = json_find(f, "products.rates");
    size_t n = json_array_size(sides);
    if (!json_find(f, "products"))
        return true;
    if (n < 2 || n > MACHINE_SIDES)
        return fail_at(f, "products.sides", "a list of 2 to 6 rising sizes", err);
    for (size_t i = 0; i < n; i++) {
        p->sides[i] = json_number_value(json_array_get(sides, i));
        if (!(p->sides[i] >= 1) || (i > 0 && p->sides[i] <= p->sides[i - 1]))
            return fail_at(f, "products.sides", "a list of 2 to 6 rising sizes", err);
    }
    if (json_array_size(rates) != MACHINE_PRODUCTS * n * n * n)
        return fail_at(f, "products.rates", "a list of 3 times the number of sides cubed", err);
    for (size_t i = 0; i < MACHINE_PRODUCTS * n * n * n; i++) {
        double rate = json_number_value(json_array_get(rates, i));
        if (!(rate > 0))
            return fail_at(f, "products.rates", "a list of FLOPs a second above 0", err);
        p->rates[i / (n * n * n)][i / (n * n) % n][i / n % n][i % n] = rate;
    }
    p->n_sides = (int)n;
    return true;
}

static bool read_machine(struct machine *m, const struct json_file *f, struct zf_error *err)
{
    const char *name = NULL, *kind = "gpu";
    if (!json_get_string(f, "name", &name, err) || !json_get_string(f, "kind", &kind, err))
        return false;
    if (!name || strlen(name) >= sizeof m->name)
        return fail_at(f, "name", "a text of less than 80 bytes", err);
    m->is_cpu = strcmp(kind, "cpu") == 0;
    if (!m->is_cpu && strcmp(kind, "gpu") != 0)
        return fail_at(f, "kind", "\"gpu\" or \"cpu\"", err);
    strcpy(m->name, name);
    if (!check_keys(f, err))
        return false;
    for (size_t i = 0; i < n_figures; i++)
        if (!read_figure(f, &figures[i], m, err))
            return false;
    if (m->seed != floor(m->seed))
        return fail_at(f, "gradients.seed.value", "a whole number", err);
    return read_operators(f, m, err) && read_products(f, m, err);
}

/* The program's folder is BUILD/, beside configs/. */
static char *find_file(const char *name)
{
    char program[512];
    char *path = zf_strdup(name);
    if (file_exists(path))
        return path;
    free(path);
    path = zf_format(FOLDER "/%s.json", name);
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (file_exists(path) || n <= 0)
        return path;
    free(path);
    program[n] = 0;
    *strrchr(program, '/') = 0;
    return zf_format("%s/../" FOLDER "/%s.json", program, name);
}

bool machine_load(struct machine *m, const char *name, struct zf_error *err)
{
    struct json_file f;
    char *path = find_file(name);
    *m = (struct machine){.lasting = 1, .passing = 0.5, .seed = 1};
    bool ok = file_exists(path) ||
              zf_fail(err, "there is no machine \"%s\": neither a file nor one of " FOLDER, name);
    if (ok && (ok = json_load(&f, path, err))) {
        ok = read_machine(m, &f, err);
        json_free(&f);
    }
    free(path);
    return ok;
}

/* ---- writing ---- */

json_t *machine_describe(const struct machine *m, const char *source)
{
    json_t *root = json_pack("{s:s, s:s}", "name", m->name, "kind", m->is_cpu ? "cpu" : "gpu");
    for (size_t i = 0; i < n_figures; i++) {
        const char *dot = strchr(figures[i].path, '.');
        double value = *(const double *)((const char *)m + figures[i].offset);
        if (figures[i].where == (m->is_cpu ? OF_GPUS : OF_CPUS) || figures[i].where == OPTIONAL)
            continue;
        json_t *figure = json_pack("{s:f, s:s}", "value", value, "source", source);
        if (!dot) {
            json_object_set_new(root, figures[i].path, figure);
            continue;
        }
        char block[32];
        snprintf(block, sizeof block, "%.*s", (int)(dot - figures[i].path), figures[i].path);
        if (!json_object_get(root, block))
            json_object_set_new(root, block, json_object());
        json_object_set_new(json_object_get(root, block), dot + 1, figure);
    }
    json_t *operators = json_object();
    for (int i = 0; i < m->n_operators; i++) {
        const struct machine_operator *o = &m->operators[i];
        json_t *points = json_array();
        for (int k = 0; k < o->n_points; k++)
            json_array_append_new(points, json_pack("[f, f]", o->bytes[k], o->seconds[k]));
        json_object_set_new(
            operators, o->name,
            json_pack("{s:o, s:f}", "points", points, "flops_per_second", o->flops_per_second));
    }
    json_object_set_new(root, "operators", operators);
    const struct machine_products *p = &m->products;
    json_t *sides = json_array(), *rates = json_array();
    for (int i = 0; i < p->n_sides; i++)
        json_array_append_new(sides, json_real(p->sides[i]));
    for (int i = 0; i < MACHINE_PRODUCTS; i++)
        for (int a = 0; a < p->n_sides; a++)
            for (int b = 0; b < p->n_sides; b++)
                for (int c = 0; c < p->n_sides; c++)
                    json_array_append_new(rates, json_real(p->rates[i][a][b][c]));
    if (p->n_sides > 0)
        json_object_set_new(root, "products",
                            json_pack("{s:O, s:O}", "sides", sides, "rates", rates));
    json_decref(sides);
    json_decref(rates);
    return root;
}

const struct machine_operator *machine_find(const struct machine *m, const char *name)
{
    for (int i = 0; i < m->n_operators; i++)
        if (strcmp(m->operators[i].name, name) == 0)
            return &m->operators[i];
    return NULL;
}

/* Where x lies on a rising list: between i and i + 1, by logarithms;
 * below 0 and above 1 outside. */
static int place_among(const double *list, int n, double x, double *part)
{
    int i = 0;
    while (i + 2 < n && x >= list[i + 1])
        i++;
    *part = log(x / list[i]) / log(list[i + 1] / list[i]);
    return i;
}

/* Outside the points time is proportional to bytes above, and what the first one takes below. */
double machine_operator_seconds(const struct machine_operator *o, double bytes, double flops)
{
    const int last = o->n_points - 1;
    double part, seconds;
    if (bytes <= o->bytes[0])
        seconds = o->seconds[0];
    else if (bytes >= o->bytes[last])
        seconds = o->seconds[last] * bytes / o->bytes[last];
    else {
        int i = place_among(o->bytes, o->n_points, bytes, &part);
        seconds = exp((1 - part) * log(o->seconds[i]) + part * log(o->seconds[i + 1]));
    }
    return seconds + (o->flops_per_second > 0 ? flops / o->flops_per_second : 0);
}

double machine_product_rate(const struct machine_products *t, int kind, double m, double n,
                            double k)
{
    const double size[] = {m, n, k};
    int at[3];
    double part[3], sum = 0;
    for (int d = 0; d < 3; d++) {
        at[d] = place_among(t->sides, t->n_sides, size[d], &part[d]);
        part[d] = fmin(fmax(part[d], 0), 1);
    }
    for (int corner = 0; corner < 8; corner++) {
        int a = corner & 1, b = corner >> 1 & 1, c = corner >> 2 & 1;
        double weight =
            (a ? part[0] : 1 - part[0]) * (b ? part[1] : 1 - part[1]) * (c ? part[2] : 1 - part[2]);
        sum += weight * log(t->rates[kind][at[0] + a][at[1] + b][at[2] + c]);
    }
    return exp(sum);
}
