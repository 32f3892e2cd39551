/* A model's weights: random initialisation, loading and saving.
 *
 * Parameters lie in device memory in the device's dtype, files and random numbers are fp32 on the
 * host: both meet in a staging buffer that stays in the cache. */
#include "model/gpt_state.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/rng.h"
#include "data/safetensors.h"
#include "data/simd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "transformer."

/* The way of fp32 values between host and device. */
struct staging {
    struct gpt *model;
    struct device *device;
    float *host; /* (GPT_STAGE_ELEMENTS) */
};

static struct staging staging_begin(struct gpt *model)
{
    struct device *device = gpt_device(model);
    return (struct staging){
        .model = model,
        .device = device,
        .host = device->allocate_host(GPT_STAGE_ELEMENTS * sizeof(float)),
    };
}

static void staging_end(struct staging *s)
{
    s->device->release_host(s->host);
}

/* Where element `at` of a parameter lies, once it is there. */
static char *parameter_place(const struct staging *s, const struct param *p, size_t at)
{
    return (char *)gpt_param_data(s->model) + (p->value_offset + at) * dtype_size(s->device->dtype);
}

void gpt_offer_values(struct gpt *model, gpt_take_values *take, void *context)
{
    model->take = take;
    model->taker = context;
}

/* Element `at` of a parameter and n - 1 more = host[0..n). Returns when host may be reused. */
static void upload(const struct staging *s, const struct param *p, size_t at, size_t n)
{
    void *place = parameter_place(s, p, at);
    struct stream *stream = s->device->compute;
    float *staged = s->model->staging;
    s->device->copy(stream, staged ? (void *)staged : place, s->host, n * sizeof(float));
    if (staged)
        s->device->ops->from_f32(stream, place, staged, n);
    if (s->model->take)
        s->model->take(s->model->taker, p->offset + at, s->host, n);
    s->device->stream_wait(stream);
}

/* dst[0..n) = a parameter's elements from `first` on, as fp32. */
static void download(const struct staging *s, float *dst, const struct param *p, size_t first,
                     size_t n)
{
    struct zf_error err;
    for (size_t at = 0; at < n; at += GPT_STAGE_ELEMENTS) {
        size_t m = n - at < GPT_STAGE_ELEMENTS ? n - at : GPT_STAGE_ELEMENTS;
        struct tensor piece = {.dtype = s->device->dtype, .data = s->host};
        s->device->copy(s->device->compute, s->host, parameter_place(s, p, first + at),
                        m * dtype_size(s->device->dtype));
        s->device->stream_wait(s->device->compute);
        tensor_read_f32(&piece, dst + at, 0, m, &err);
    }
}

/* Random initialisation. */

/* FNV-1a. */
static uint64_t hash_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

#define NORMAL_BLOCKS ((size_t)256)
#define NORMAL_PIECE                                                                               \
    (4 * NORMAL_BLOCKS) /* numbers that one call draws; divides GPT_STAGE_ELEMENTS */

/* The natural logarithm of x > 0, by 2 artanh((m - 1) / (m + 1)) of its mantissa m. */
static inline float log_series(float x)
{
    const uint32_t sqrt_half = 0x3f3504f3; /* m lies between it and its double */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits - sqrt_half) >> 23;
    bits -= (uint32_t)exponent << 23;
    memcpy(&x, &bits, sizeof x);
    float s = (x - 1) / (x + 1), s2 = s * s;
    float series = 1 + s2 * (1.0f / 3 + s2 * (1.0f / 5 + s2 * (1.0f / 7 + s2 * (1.0f / 9))));
    return (float)exponent * 0.693147180559945f + 2 * s * series;
}

/* sin and cos of 2 pi turns, turns in [0, 1): Taylor series in the nearest quadrant. */
static inline void sin_cos_turns(float turns, float *sine, float *cosine)
{
    int quadrant = (int)(4 * turns + 0.5f);
    float x = 6.28318530717958648f * (turns - 0.25f * (float)quadrant), y = x * x;
    float s = x * (1 - y / 6 * (1 - y / 20 * (1 - y / 42 * (1 - y / 72))));
    float c = 1 - y / 2 * (1 - y / 12 * (1 - y / 30 * (1 - y / 56)));
    float a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -a : a;
    *cosine = (quadrant + 1) & 2 ? -b : b;
}

/* z[0..NORMAL_PIECE) = std times normal numbers, the piece-th of this seed and name: Box and
 * Muller's transform of two uniform numbers each. The C library's log, sin and cos
 * do not vectorise and would take several times as long. */
ZF_SIMD
static void draw_normals(float *z, uint64_t seed, uint64_t name, uint64_t piece, float std)
{
    uint32_t bits[4][NORMAL_BLOCKS];
    for (size_t i = 0; i < NORMAL_BLOCKS; i++) {
        uint64_t block = piece * NORMAL_BLOCKS + i;
        struct philox random = {
            {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)name, (uint32_t)(name >> 32)}};
        random = philox4x32(random, (uint32_t)seed, (uint32_t)(seed >> 32));
        for (int k = 0; k < 4; k++)
            bits[k][i] = random.v[k];
    }
    for (size_t pair = 0; pair < 2; pair++) {
        float *first = z + 2 * pair * NORMAL_BLOCKS, *second = first + NORMAL_BLOCKS;
        for (size_t i = 0; i < NORMAL_BLOCKS; i++) {
            float sine, cosine;
            float radius = std * sqrtf(-2 * log_series(1 - philox_uniform(bits[2 * pair][i])));
            sin_cos_turns(philox_uniform(bits[2 * pair + 1][i]), &sine, &cosine);
            first[i] = radius * cosine;
            second[i] = radius * sine;
        }
    }
}

/* dst[0..n) = elements first..first+n of the parameter; first is a multiple of NORMAL_PIECE. */
static void fill_normal(float *dst, const struct param *p, uint64_t seed, size_t first, size_t n)
{
    uint64_t name = hash_name(p->name);
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < n; at += NORMAL_PIECE) {
        float z[NORMAL_PIECE];
        draw_normals(z, seed, name, (first + at) / NORMAL_PIECE, p->init_std);
        memcpy(dst + at, z, (n - at < NORMAL_PIECE ? n - at : NORMAL_PIECE) * sizeof *z);
    }
}

static void init_param(const struct staging *s, const struct param *p, uint64_t seed)
{
    for (size_t at = 0; at < p->n_elements; at += GPT_STAGE_ELEMENTS) {
        size_t n =
            p->n_elements - at < GPT_STAGE_ELEMENTS ? p->n_elements - at : GPT_STAGE_ELEMENTS;
        if (p->init_std > 0)
            fill_normal(s->host, p, seed, at, n);
        else
            for (size_t i = 0; i < n; i++)
                s->host[i] = p->init_one ? 1 : 0;
        upload(s, p, at, n);
    }
}

void gpt_init_weights(struct gpt *model, uint64_t seed)
{
    const struct param_table *table = gpt_params(model);
    struct staging s = staging_begin(model);
    for (int i = 0; i < table->n_params; i++)
        init_param(&s, &table->params[i], seed);
    staging_end(&s);
}

/* Loading. */

static const char *without_prefix(const char *name)
{
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? name + strlen(PREFIX) : name;
}

static bool is_score_head(const struct param *p)
{
    return strcmp(p->name, "score.weight") == 0;
}

/* Where the tensors are, and whether a score head is among them. */
struct source {
    struct safetensors *file;
    bool with_head;
};

/* A parameter's tensor, under its name with or without the prefix; NULL: the parameter is new. */
static const struct tensor *find_tensor(const struct source *source, const struct param *p)
{
    const struct safetensors *file = source->file;
    if (is_score_head(p) && !source->with_head)
        return NULL;
    const struct tensor *t = safetensors_find(file, p->name);
    return t ? t : safetensors_find(file, without_prefix(p->name));
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Whether a tensor that is no parameter may stand in a GPT-2's file: the causal masks that older
 * checkpoints hold, and the heads of other tasks. */
static bool may_be_passed_over(const char *name)
{
    static const char *const other_heads[] = {"lm_head.", "score.", "multiple_choice_head.",
                                              "qa_outputs.", "classifier."};
    if (ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias"))
        return true;
    for (size_t i = 0; i < sizeof other_heads / sizeof *other_heads; i++)
        if (strncmp(name, other_heads[i], strlen(other_heads[i])) == 0)
            return true;
    return false;
}

/* Every tensor of the file is a parameter's, or one that may be passed over. */
static bool check_names(const struct safetensors *file, const struct gpt *model,
                        struct zf_error *err)
{
    const struct param_table *table = gpt_params(model);
    for (int i = 0; i < safetensors_count(file); i++) {
        const struct tensor *t = safetensors_at(file, i);
        char name[sizeof table->params->name];
        int n = snprintf(name, sizeof name, PREFIX "%s", without_prefix(t->name));
        if (params_find(table, t->name) || may_be_passed_over(without_prefix(t->name)) ||
            (n < (int)sizeof name && params_find(table, name)))
            continue;
        char shape[100];
        tensor_shape_text(t, shape, sizeof shape);
        return zf_fail(err,
                       "%s: tensor %.200s of shape %s is not part of a GPT-2 of the %d layers that "
                       "config.json gives",
                       t->file, t->name, shape, gpt_get_config(model)->n_layer);
    }
    return true;
}

/* The shape that a parameter has in a file. */
static struct tensor expected_tensor(const struct param *p)
{
    if (p->kind == PARAM_VECTOR)
        return (struct tensor){.n_dims = 1, .shape = {p->cols}};
    if (p->transposed)
        return (struct tensor){.n_dims = 2, .shape = {p->cols, p->rows}};
    return (struct tensor){.n_dims = 2, .shape = {p->rows, p->cols}};
}

static bool check_shape(const struct tensor *t, const struct param *p, struct zf_error *err)
{
    struct tensor expected = expected_tensor(p);
    bool same = t->n_dims == expected.n_dims;
    for (int d = 0; same && d < t->n_dims; d++)
        same = t->shape[d] == expected.shape[d];
    if (same)
        return true;
    char found[100], wanted[100];
    tensor_shape_text(t, found, sizeof found);
    tensor_shape_text(&expected, wanted, sizeof wanted);
    return zf_fail(err, "%s: tensor %.200s has the shape %s, but config.json makes it %s", t->file,
                   t->name, found, wanted);
}

/* dst[0..n) = elements first..first+n of src's transpose.  src: (rows, cols) */
static void transpose(float *dst, const float *src, size_t rows, size_t cols, size_t first,
                      size_t n)
{
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        dst[i] = src[(first + i) % rows * cols + (first + i) / rows];
}

static void load_param(const struct staging *s, const struct tensor *t, const struct param *p)
{
    struct zf_error err; /* never filled: the tensor has been checked */
    float *whole = p->transposed ? zf_malloc(p->n_elements * sizeof *whole) : NULL;
    if (whole)
        tensor_read_f32(t, whole, 0, p->n_elements, &err);
    for (size_t at = 0; at < p->n_elements; at += GPT_STAGE_ELEMENTS) {
        size_t n =
            p->n_elements - at < GPT_STAGE_ELEMENTS ? p->n_elements - at : GPT_STAGE_ELEMENTS;
        if (whole)
            transpose(s->host, whole, (size_t)p->cols, (size_t)p->rows, at, n);
        else
            tensor_read_f32(t, s->host, at, n, &err);
        upload(s, p, at, n);
    }
    free(whole);
}

/* Every parameter has a tensor of its shape and of a dtype that can be read, so that nothing is
 * half-loaded. */
static bool check_params(const struct source *source, const struct param_table *table,
                         const char *path, struct zf_error *err)
{
    for (int i = 0; i < table->n_params; i++) {
        const struct param *p = &table->params[i];
        const struct tensor *t = find_tensor(source, p);
        if (t && (!check_shape(t, p, err) || !tensor_read_f32(t, NULL, 0, 0, err)))
            return false;
        if (t || is_score_head(p))
            continue;
        char shape[100];
        struct tensor expected = expected_tensor(p);
        tensor_shape_text(&expected, shape, sizeof shape);
        return zf_fail(err, "%s: tensor %s of shape %s is missing", path, p->name, shape);
    }
    return true;
}

static void load_params(struct gpt *model, const struct source *source, uint64_t seed,
                        bool *head_is_new)
{
    const struct param_table *table = gpt_params(model);
    struct staging s = staging_begin(model);
    for (int i = 0; i < table->n_params; i++) {
        const struct param *p = &table->params[i];
        const struct tensor *t = find_tensor(source, p);
        if (t)
            load_param(&s, t, p);
        else
            init_param(&s, p, seed);
        *head_is_new |= !t;
    }
    staging_end(&s);
}

/* Everything that can be wrong is found here. Closed with safetensors_close. */
static bool open_source(struct source *source, const struct gpt *model, const char *directory,
                        bool with_head, struct zf_error *err)
{
    char *path = zf_format("%s/model.safetensors", directory);
    char *index = zf_format("%s/model.safetensors.index.json", directory);
    const char *chosen = !file_exists(path) && file_exists(index) ? index : path;
    struct safetensors *file = safetensors_open(chosen, err);
    *source = (struct source){file, with_head};
    bool ok = file && check_names(file, model, err) &&
              check_params(source, gpt_params(model), chosen, err);
    if (!ok)
        safetensors_close(file);
    free(path);
    free(index);
    return ok;
}

static bool load_weights(struct gpt *model, const char *directory, uint64_t seed, bool with_head,
                         bool *head_is_new, struct zf_error *err)
{
    struct source source;
    *head_is_new = false;
    if (!open_source(&source, model, directory, with_head, err))
        return false;
    load_params(model, &source, seed, head_is_new);
    safetensors_close(source.file);
    return true;
}

bool gpt_check_weights(const struct gpt *model, const char *directory, bool with_head,
                       struct zf_error *err)
{
    struct source source;
    bool ok = open_source(&source, model, directory, with_head, err);
    if (ok)
        safetensors_close(source.file);
    return ok;
}

bool gpt_load_weights(struct gpt *model, const char *directory, uint64_t seed, bool *head_is_new,
                      struct zf_error *err)
{
    return load_weights(model, directory, seed, true, head_is_new, err);
}

bool gpt_load_weights_without_head(struct gpt *model, const char *directory, uint64_t seed,
                                   struct zf_error *err)
{
    bool head_is_new;
    return load_weights(model, directory, seed, false, &head_is_new, err);
}

/* Saving. */

static void declare_param(struct safetensors_writer *w, const struct param *p)
{
    struct tensor t = expected_tensor(p);
    safetensors_write_declare(w, p->name, DTYPE_F32, t.n_dims, t.shape);
}

static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* buffer: (GPT_STAGE_ELEMENTS). Returns whether all values are finite. */
static bool save_param(const struct staging *s, struct safetensors_writer *w, const struct param *p,
                       float *buffer)
{
    bool finite = true;
    float *whole = p->transposed ? zf_malloc(p->n_elements * sizeof *whole) : NULL;
    if (whole)
        download(s, whole, p, 0, p->n_elements);
    for (size_t at = 0; at < p->n_elements; at += GPT_STAGE_ELEMENTS) {
        size_t n =
            p->n_elements - at < GPT_STAGE_ELEMENTS ? p->n_elements - at : GPT_STAGE_ELEMENTS;
        if (whole)
            transpose(buffer, whole, (size_t)p->rows, (size_t)p->cols, at, n);
        else
            download(s, buffer, p, at, n);
        finite = finite && all_finite(buffer, n);
        safetensors_write_data(w, buffer, n * sizeof *buffer);
    }
    free(whole);
    return finite;
}

/* Whose parameters are about to be read, and have been. */
static void begin_layer(const struct gpt *m, int layer)
{
    if (m->hooks.before_layer)
        m->hooks.before_layer(m->hooks.context, layer);
}

static void end_layer(const struct gpt *m, int layer)
{
    if (m->hooks.after_layer)
        m->hooks.after_layer(m->hooks.context, layer);
}

static bool save_weights(struct gpt *model, const char *path, struct zf_error *err)
{
    const struct param_table *table = gpt_params(model);
    struct safetensors_writer *w = safetensors_write_begin(path, err);
    if (!w)
        return false;
    safetensors_write_metadata(w, "format", "pt");
    for (int i = 0; i < table->n_params; i++)
        declare_param(w, &table->params[i]);
    struct staging s = staging_begin(model);
    float *buffer = zf_malloc(GPT_STAGE_ELEMENTS * sizeof *buffer);
    bool ok = true;
    for (int i = 0; ok && i < table->n_params; i++) {
        const struct param *p = &table->params[i];
        if (i == 0 || p[-1].layer != p->layer)
            begin_layer(model, p->layer);
        ok = save_param(&s, w, p, buffer) ||
             zf_fail(err, "%s is not written: %s has values that are not finite", path, p->name);
        if (!ok || i + 1 == table->n_params || p[1].layer != p->layer)
            end_layer(model, p->layer);
    }
    free(buffer);
    staging_end(&s);
    return safetensors_write_end(w, ok, err) && ok;
}

bool gpt_save(struct gpt *model, const char *directory, const char *const *labels,
              struct zf_error *err)
{
    char *path = zf_format("%s/model.safetensors", directory);
    bool ok = save_weights(model, path, err) &&
              gpt_config_save(gpt_get_config(model), directory, labels, err);
    free(path);
    return ok;
}
