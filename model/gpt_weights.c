/* A model's weights: random initialisation, loading and saving.
 *
 * Parameters lie in device memory in the device's dtype, files and random numbers are fp32 on the
 * host: both meet in a staging buffer that stays in the cache. */
#include "model/gpt_state.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/rng.h"
#include "data/safetensors.h"
#include "data/show.h"
#include "data/simd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* A tensor of a file: a parameter, or some of its columns. */
struct piece {
    char name[sizeof((struct param *)0)->name];
    const struct param *param;
    int first, cols;
};

/* In the order of the table, a parameter's in that of its columns. */
struct pieces {
    struct piece *list;
    int n;
};

/* Tensors that stand side by side in this parameter of a block's, and each one's columns. NULL: it
 * is one tensor. */
static const char *const *piece_names(const struct gpt *m, const struct param *p, int cols[])
{
    const struct gpt_names *names = m->config.arch->names;
    const struct heads h = gpt_heads(&m->config);
    const int i = (int)(p - m->table.params);
    if (p->layer < 1 || p->layer > m->config.n_layer)
        return NULL;
    const struct gpt_pair *qkv = gpt_block_pair(m, p->layer - 1, QKV);
    const struct gpt_pair *fc = gpt_block_pair(m, p->layer - 1, FC);
    if (names->qkv[0] && (i == qkv->weight || i == qkv->bias)) {
        cols[0] = h.n_head * h.head_dim;
        cols[1] = cols[2] = h.n_kv_head * h.head_dim;
        return names->qkv;
    }
    if (names->gate_up[0] && m->config.parts.swiglu && (i == fc->weight || i == fc->bias)) {
        cols[0] = cols[1] = m->config.n_inner;
        return names->gate_up;
    }
    return NULL;
}

/* The tensors of one parameter. out: (GPT_MAX_PIECES) Returns how many there are. */
static int cut_param(const struct gpt *m, const struct param *p, struct piece *out)
{
    const struct gpt_names *names = m->config.arch->names;
    int cols[GPT_MAX_PIECES], first = 0, n = 0;
    const char *const *pieces = piece_names(m, p, cols);
    out[0] = (struct piece){.param = p, .cols = p->cols};
    memcpy(out[0].name, p->name, sizeof p->name);
    if (!pieces)
        return 1;
    for (; n < GPT_MAX_PIECES && pieces[n]; first += cols[n++]) {
        out[n] = (struct piece){.param = p, .first = first, .cols = cols[n]};
        snprintf(out[n].name, sizeof out[n].name, "%s%s.%d.%s%s", names->prefix, names->blocks,
                 p->layer - 1, pieces[n], strrchr(p->name, '.'));
    }
    return n;
}

static struct pieces list_pieces(const struct gpt *m)
{
    const struct param_table *table = &m->table;
    struct pieces pieces = {0};
    pieces.list = zf_malloc(sizeof *pieces.list * GPT_MAX_PIECES * (size_t)table->n_params);
    for (int i = 0; i < table->n_params; i++)
        pieces.n += cut_param(m, &table->params[i], pieces.list + pieces.n);
    return pieces;
}

static const char *without_prefix(const struct gpt *m, const char *name)
{
    const char *prefix = m->config.arch->names->prefix;
    return strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
}

static bool is_score_head(const struct param *p)
{
    return strcmp(p->name, "score.weight") == 0;
}

/* Where the tensors are, which ones there must be, and whether a score head is among them. */
struct source {
    const struct gpt *model;
    struct pieces pieces;
    struct safetensors *file;
    bool with_head;
};

/* A piece's tensor, under its name with or without the prefix; NULL: the parameter is new. */
static const struct tensor *find_tensor(const struct source *source, const struct piece *piece)
{
    const struct safetensors *file = source->file;
    if (is_score_head(piece->param) && !source->with_head)
        return NULL;
    const struct tensor *t = safetensors_find(file, piece->name);
    return t ? t : safetensors_find(file, without_prefix(source->model, piece->name));
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Whether a tensor that is no parameter may stand in a file: causal masks and frequencies of
 * positions, which older checkpoints hold, and the heads of other tasks. */
static bool may_be_passed_over(const char *name)
{
    static const char *const buffers[] = {".attn.bias", ".attn.masked_bias",
                                          ".rotary_emb.inv_freq"};
    static const char *const other_heads[] = {"lm_head.", "score.", "multiple_choice_head.",
                                              "qa_outputs.", "classifier."};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (ends_with(name, buffers[i]))
            return true;
    for (size_t i = 0; i < sizeof other_heads / sizeof *other_heads; i++)
        if (strncmp(name, other_heads[i], strlen(other_heads[i])) == 0)
            return true;
    return false;
}

/* name: without prefix */
static bool is_piece(const struct source *source, const char *name)
{
    for (int i = 0; i < source->pieces.n; i++)
        if (strcmp(without_prefix(source->model, source->pieces.list[i].name), name) == 0)
            return true;
    return false;
}

/* Every tensor of the file is a parameter's, or one that may be passed over. */
static bool check_names(const struct source *source, struct zf_error *err)
{
    const struct gpt_config *c = &source->model->config;
    for (int i = 0; i < safetensors_count(source->file); i++) {
        const struct tensor *t = safetensors_at(source->file, i);
        const char *name = without_prefix(source->model, t->name);
        if (is_piece(source, name) || may_be_passed_over(name))
            continue;
        char shape[100];
        tensor_shape_text(t, shape, sizeof shape);
        return zf_fail(err,
                       "%s: tensor %.200s of shape %s is not part of a %s of the %d layers that "
                       "config.json gives",
                       t->file, t->name, shape, c->arch->title, c->n_layer);
    }
    return true;
}

/* The shape that a piece has in a file. */
static struct tensor expected_tensor(const struct piece *piece)
{
    const int rows = piece->param->rows, cols = piece->cols;
    if (piece->param->kind == PARAM_VECTOR)
        return (struct tensor){.n_dims = 1, .shape = {cols}};
    if (piece->param->transposed)
        return (struct tensor){.n_dims = 2, .shape = {cols, rows}};
    return (struct tensor){.n_dims = 2, .shape = {rows, cols}};
}

static bool check_shape(const struct tensor *t, const struct piece *piece, struct zf_error *err)
{
    struct tensor expected = expected_tensor(piece);
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

#define TRANSPOSE_TILE ((size_t)32)

/* dst[i][j] = src[j][i] of dst's (rows, cols); rows of dst lie dst_stride apart, those of src
 * src_stride. */
static void transpose(float *dst, size_t dst_stride, const float *src, size_t src_stride,
                      size_t rows, size_t cols)
{
#pragma omp parallel for collapse(2) schedule(static)
    for (size_t at_i = 0; at_i < rows; at_i += TRANSPOSE_TILE)
        for (size_t at_j = 0; at_j < cols; at_j += TRANSPOSE_TILE)
            for (size_t i = at_i; i < rows && i < at_i + TRANSPOSE_TILE; i++)
                for (size_t j = at_j; j < cols && j < at_j + TRANSPOSE_TILE; j++)
                    dst[i * dst_stride + j] = src[j * src_stride + i];
}

/* Whether a parameter is made of tensors in the order of its own elements. */
static bool is_straight(const struct piece *piece)
{
    return piece->cols == piece->param->cols && !piece->param->transposed;
}

/* Elements of the largest parameter that is not. */
static size_t count_assembled(const struct pieces *pieces)
{
    size_t most = 0;
    for (int i = 0; i < pieces->n; i++) {
        const size_t n = pieces->list[i].param->n_elements;
        if (!is_straight(&pieces->list[i]) && n > most)
            most = n;
    }
    return most;
}

/* The parameter that n pieces are. whole: room for one that is not straight, as it is in memory */
static void load_param(const struct staging *s, const struct source *source,
                       const struct piece *piece, int n, float *whole)
{
    struct zf_error err; /* never filled: the tensors have been checked */
    const struct param *p = piece->param;
    const struct tensor assembled = {.dtype = DTYPE_F32, .data = whole};
    const struct tensor *t = is_straight(piece) ? find_tensor(source, piece) : &assembled;
    for (int i = 0; t == &assembled && i < n; i++)
        tensor_read_transposed(find_tensor(source, &piece[i]), whole + piece[i].first,
                               (size_t)p->cols, &err);
    for (size_t at = 0; at < p->n_elements; at += GPT_STAGE_ELEMENTS) {
        size_t m =
            p->n_elements - at < GPT_STAGE_ELEMENTS ? p->n_elements - at : GPT_STAGE_ELEMENTS;
        tensor_read_f32(t, s->host, at, m, &err);
        upload(s, p, at, m);
    }
}

/* Every parameter has its tensors, of their shapes and of a dtype that can be read, so that nothing
 * is half-loaded. */
static bool check_params(const struct source *source, const char *path, struct zf_error *err)
{
    for (int i = 0; i < source->pieces.n; i++) {
        const struct piece *piece = &source->pieces.list[i];
        const struct tensor *t = find_tensor(source, piece);
        if (t && (!check_shape(t, piece, err) || !tensor_read_f32(t, NULL, 0, 0, err)))
            return false;
        if (t || is_score_head(piece->param))
            continue;
        char shape[100];
        struct tensor expected = expected_tensor(piece);
        tensor_shape_text(&expected, shape, sizeof shape);
        return zf_fail(err, "%s: tensor %s of shape %s is missing", path, piece->name, shape);
    }
    return true;
}

/* How many pieces, from this one on, are one parameter's. */
static int count_pieces(const struct pieces *pieces, int first)
{
    int n = 1;
    while (first + n < pieces->n && pieces->list[first + n].param == pieces->list[first].param)
        n++;
    return n;
}

static void load_params(struct gpt *model, const struct source *source, uint64_t seed,
                        bool *head_is_new)
{
    const struct pieces *pieces = &source->pieces;
    struct staging s = staging_begin(model);
    float *whole = zf_malloc_huge(count_assembled(pieces) * sizeof *whole);
    for (int i = 0, n; i < pieces->n; i += n) {
        const struct piece *piece = &pieces->list[i];
        const bool is_there = find_tensor(source, piece);
        n = count_pieces(pieces, i);
        if (is_there)
            load_param(&s, source, piece, n, whole);
        else
            init_param(&s, piece->param, seed);
        *head_is_new |= !is_there;
    }
    free(whole);
    staging_end(&s);
}

static void close_source(struct source *source)
{
    safetensors_close(source->file);
    free(source->pieces.list);
}

static const char *const weights_files[] = {"model.safetensors", "model.safetensors.index.json",
                                            "pytorch_model.bin", "pytorch_model.bin.index.json"};
#define FIRST_PICKLE    2
#define N_WEIGHTS_FILES 4

/* The first of them that is there; else the first, which is missing. */
static int find_weights(const char *directory)
{
    int found = N_WEIGHTS_FILES;
    for (int i = N_WEIGHTS_FILES - 1; i >= 0; i--) {
        char *path = zf_format("%s/%s", directory, weights_files[i]);
        found = file_exists(path) ? i : found;
        free(path);
    }
    return found % N_WEIGHTS_FILES;
}

/* Pickles are programs: Python turns them into what is read here. */
static void fail_pickled(const char *directory, int file, struct zf_error *err)
{
    const char *shards =
        "set(json.load(open('pytorch_model.bin.index.json'))['weight_map'].values())";
    char *folder = show_shell_word(directory);
    zf_fail(err,
            "%s/%s is not read, but model.safetensors beside it is; this makes it: cd %s && "
            "python3 -c \"import json, torch, safetensors.torch as s; s.save_file({k: "
            "v.contiguous().clone() for f in %s for k, v in torch.load(f, map_location='cpu', "
            "weights_only=True).items()}, 'model.safetensors')\"",
            directory, weights_files[file], folder,
            file == FIRST_PICKLE ? "['pytorch_model.bin']" : shards);
    free(folder);
}

/* Everything that can be wrong is found here. Closed with close_source. */
static bool open_source(struct source *source, const struct gpt *model, const char *directory,
                        bool with_head, struct zf_error *err)
{
    const int file = find_weights(directory);
    char *path = zf_format("%s/%s", directory, weights_files[file]);
    *source = (struct source){.model = model,
                              .pieces = list_pieces(model),
                              .file = file < FIRST_PICKLE ? safetensors_open(path, err) : NULL,
                              .with_head = with_head};
    if (file >= FIRST_PICKLE)
        fail_pickled(directory, file, err);
    bool ok = source->file && check_names(source, err) && check_params(source, path, err);
    if (!ok)
        close_source(source);
    free(path);
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
    close_source(&source);
    return true;
}

bool gpt_check_weights(const struct gpt *model, const char *directory, bool with_head,
                       struct zf_error *err)
{
    struct source source;
    bool ok = open_source(&source, model, directory, with_head, err);
    if (ok)
        close_source(&source);
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

static void declare_piece(struct safetensors_writer *w, const struct piece *piece)
{
    struct tensor t = expected_tensor(piece);
    safetensors_write_declare(w, piece->name, DTYPE_F32, t.n_dims, t.shape);
}

static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* As save_param, of pieces that have to be cut out. */
static bool save_pieces(const struct staging *s, struct safetensors_writer *w,
                        const struct piece *piece, int n)
{
    const struct param *p = piece->param;
    const size_t rows = (size_t)p->rows, cols = (size_t)p->cols;
    float *whole = zf_malloc(p->n_elements * sizeof *whole);
    float *cut = zf_malloc(p->n_elements * sizeof *cut);
    download(s, whole, p, 0, p->n_elements);
    for (int i = 0; i < n; i++) {
        const size_t width = (size_t)piece[i].cols;
        transpose(cut, rows, whole + piece[i].first, cols, width, rows);
        safetensors_write_data(w, cut, width * rows * sizeof *cut);
    }
    const bool finite = all_finite(whole, p->n_elements);
    free(cut);
    free(whole);
    return finite;
}

/* A parameter, as its n pieces. buffer: (GPT_STAGE_ELEMENTS). Returns whether all values are
 * finite. */
static bool save_param(const struct staging *s, struct safetensors_writer *w,
                       const struct piece *piece, int n, float *buffer)
{
    const struct param *p = piece->param;
    bool finite = true;
    if (!is_straight(piece))
        return save_pieces(s, w, piece, n);
    for (size_t at = 0; at < p->n_elements; at += GPT_STAGE_ELEMENTS) {
        size_t m =
            p->n_elements - at < GPT_STAGE_ELEMENTS ? p->n_elements - at : GPT_STAGE_ELEMENTS;
        download(s, buffer, p, at, m);
        finite = finite && all_finite(buffer, m);
        safetensors_write_data(w, buffer, m * sizeof *buffer);
    }
    return finite;
}

/* A model on its way into a file. */
struct saving {
    struct staging staging;
    struct safetensors_writer *writer;
    const char *path;
    struct pieces pieces;
    int next;      /* piece that is to be written */
    float *buffer; /* (GPT_STAGE_ELEMENTS) */
};

static bool save_layer(struct saving *s, int layer, struct zf_error *err)
{
    for (int n; s->next < s->pieces.n && s->pieces.list[s->next].param->layer == layer;
         s->next += n) {
        const struct piece *piece = &s->pieces.list[s->next];
        n = count_pieces(&s->pieces, s->next);
        if (!save_param(&s->staging, s->writer, piece, n, s->buffer))
            return zf_fail(err, "%s is not written: %s has values that are not finite", s->path,
                           piece->param->name);
    }
    return true;
}

/* All layers, as a pass comes to them; after a fault nothing more is written. */
static bool save_layers(struct saving *s, struct zf_error *err)
{
    const struct gpt *m = s->staging.model;
    const struct gpt_hooks *hooks = &m->hooks;
    bool ok = true;
    for (int layer = 0; layer <= m->config.n_layer + 1; layer++) {
        if (hooks->before_layer)
            hooks->before_layer(hooks->context, layer);
        ok = ok && save_layer(s, layer, err);
        if (hooks->after_layer && layer > 0)
            hooks->after_layer(hooks->context, layer);
    }
    if (hooks->after_layer)
        hooks->after_layer(hooks->context, 0);
    return ok;
}

static bool save_weights(struct gpt *model, const char *path, struct zf_error *err)
{
    struct saving s = {.path = path, .writer = safetensors_write_begin(path, err)};
    if (!s.writer) {
        gpt_pass_by(model);
        return false;
    }
    s.pieces = list_pieces(model);
    safetensors_write_metadata(s.writer, "format", "pt");
    for (int i = 0; i < s.pieces.n; i++)
        declare_piece(s.writer, &s.pieces.list[i]);
    s.staging = staging_begin(model);
    s.buffer = zf_malloc(GPT_STAGE_ELEMENTS * sizeof *s.buffer);
    const bool ok = save_layers(&s, err);
    free(s.buffer);
    free(s.pieces.list);
    staging_end(&s.staging);
    return safetensors_write_end(s.writer, ok, err) && ok;
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
