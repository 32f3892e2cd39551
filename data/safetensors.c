#include "data/safetensors.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/mapped.h"
#include "data/simd.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES     8                    /* the header's length, before the header */
#define HEADER_MAX_BYTES ((size_t)100000000)  /* the format's own limit */
#define PARALLEL_PIECE   ((size_t)128 * 1024) /* elements that one thread converts at a time */

struct shard {
    char *path;
    const char *map; /* the whole file */
    size_t bytes;
    const char *data; /* what follows the header */
    size_t data_bytes;
    json_t *header; /* owns the tensors' names */
};

struct safetensors {
    struct shard *shards;
    int n_shards;
    struct tensor *tensors; /* in file order, shard after shard */
    int n_tensors;
    const struct tensor **by_name; /* sorted */
};

/* Reading one file. */

static bool read_dtype(struct tensor *t, json_t *entry, struct zf_error *err)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name)
        return zf_fail(err, "%s: tensor %.200s has no \"dtype\"", t->file, t->name);
    if (dtype_find(name, &t->dtype))
        return true;
    return zf_fail(err, "%s: tensor %.200s has the dtype \"%.50s\", which is not one of the format",
                   t->file, t->name, name);
}

static bool read_shape(struct tensor *t, json_t *entry, struct zf_error *err)
{
    json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return zf_fail(err, "%s: tensor %.200s has no \"shape\"", t->file, t->name);
    if (json_array_size(shape) > TENSOR_MAX_DIMS)
        return zf_fail(err, "%s: tensor %.200s has %zu dimensions, but at most %d are supported",
                       t->file, t->name, json_array_size(shape), TENSOR_MAX_DIMS);
    t->n_dims = (int)json_array_size(shape);
    t->n_elements = 1;
    for (int d = 0; d < t->n_dims; d++) {
        json_t *size = json_array_get(shape, (size_t)d);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return zf_fail(err, "%s: tensor %.200s: its shape is not a list of sizes", t->file,
                           t->name);
        t->shape[d] = json_integer_value(size);
        if (__builtin_mul_overflow(t->n_elements, (size_t)t->shape[d], &t->n_elements))
            return zf_fail(err, "%s: tensor %.200s: its shape has too many elements", t->file,
                           t->name);
    }
    return true;
}

static bool read_offsets(struct tensor *t, json_t *entry, const struct shard *shard,
                         struct zf_error *err)
{
    json_t *offsets = json_object_get(entry, "data_offsets");
    json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return zf_fail(err, "%s: tensor %.200s: \"data_offsets\" is not [begin, end]", t->file,
                       t->name);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || (size_t)end > shard->data_bytes)
        return zf_fail(err,
                       "%s: tensor %.200s: its offsets %lld to %lld are not within the file's %zu "
                       "bytes of data",
                       t->file, t->name, (long long)begin, (long long)end, shard->data_bytes);
    size_t bytes;
    if (__builtin_mul_overflow(t->n_elements, dtype_size(t->dtype), &bytes) ||
        bytes != (size_t)(end - begin)) {
        char shape[100];
        tensor_shape_text(t, shape, sizeof shape);
        return zf_fail(err,
                       "%s: tensor %.200s: its shape %s of %s does not take the %lld bytes it has",
                       t->file, t->name, shape, dtype_name(t->dtype), (long long)(end - begin));
    }
    t->data = shard->data + begin;
    return true;
}

static size_t tensor_bytes(const struct tensor *t)
{
    return t->n_elements * dtype_size(t->dtype);
}

/* By place; a tensor without elements before the one that begins at the same byte. */
static int compare_place(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    const char *p = x->data, *q = y->data;
    size_t m = tensor_bytes(x), n = tensor_bytes(y);
    return p != q ? (p > q) - (p < q) : (m > n) - (m < n);
}

/* Sorts the shard's tensors by place and fails unless they cover its data exactly once. */
static bool check_cover(const struct shard *shard, struct tensor *tensors, int n,
                        struct zf_error *err)
{
    const char *end = shard->data;
    if (n > 0)
        qsort(tensors, (size_t)n, sizeof *tensors, compare_place);
    for (int i = 0; i < n; i++) {
        const char *begin = tensors[i].data;
        if (begin != end)
            return zf_fail(err, "%s: tensor %.200s %s", shard->path, tensors[i].name,
                           begin < end ? "overlaps another" : "has unused bytes before it");
        end = begin + tensor_bytes(&tensors[i]);
    }
    size_t used = (size_t)(end - shard->data);
    return used == shard->data_bytes ||
           zf_fail(err, "%s: its tensors take %zu bytes, but %zu follow the header", shard->path,
                   used, shard->data_bytes);
}

static bool check_metadata(const struct shard *shard, json_t *metadata, struct zf_error *err)
{
    const char *key;
    json_t *value;
    bool ok = json_is_object(metadata);
    json_object_foreach(metadata, key, value) ok = ok && json_is_string(value);
    return ok || zf_fail(err, "%s: \"__metadata__\" is not an object of strings", shard->path);
}

static bool read_tensors(struct safetensors *s, const struct shard *shard, struct zf_error *err)
{
    const char *name;
    json_t *entry;
    int first = s->n_tensors;
    size_t room = (size_t)first + json_object_size(shard->header);
    s->tensors = zf_realloc(s->tensors, room * sizeof *s->tensors);
    json_object_foreach(shard->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            if (!check_metadata(shard, entry, err))
                return false;
            continue;
        }
        struct tensor *t = &s->tensors[s->n_tensors];
        *t = (struct tensor){.name = name, .file = shard->path};
        if (!read_dtype(t, entry, err) || !read_shape(t, entry, err) ||
            !read_offsets(t, entry, shard, err))
            return false;
        s->n_tensors++;
    }
    return check_cover(shard, s->tensors + first, s->n_tensors - first, err);
}

static bool map_file(struct shard *shard, struct zf_error *err)
{
    shard->map = mapped_open(shard->path, &shard->bytes, err);
    return shard->map &&
           (shard->bytes >= LENGTH_BYTES ||
            zf_fail(err, "%s: not a safetensors file: it is too short for a header", shard->path));
}

/* Adds a file. `path` becomes the shard's own, also where this fails. */
static bool open_shard(struct safetensors *s, char *path, struct zf_error *err)
{
    s->shards = zf_realloc(s->shards, (size_t)(s->n_shards + 1) * sizeof *s->shards);
    struct shard *shard = &s->shards[s->n_shards++];
    *shard = (struct shard){.path = path};
    if (!map_file(shard, err) || !file_is_fetched(path, shard->map, shard->bytes, err))
        return false;
    uint64_t length;
    memcpy(&length, shard->map, LENGTH_BYTES);
    if (length > HEADER_MAX_BYTES || length > shard->bytes - LENGTH_BYTES)
        return zf_fail(err,
                       "%s: not a safetensors file: its header would take %llu bytes, but the file "
                       "has %zu",
                       path, (unsigned long long)length, shard->bytes);
    json_error_t fault;
    shard->data = shard->map + LENGTH_BYTES + length;
    shard->data_bytes = shard->bytes - LENGTH_BYTES - (size_t)length;
    shard->header =
        json_loadb(shard->map + LENGTH_BYTES, (size_t)length, JSON_REJECT_DUPLICATES, &fault);
    if (!shard->header)
        return zf_fail(err, "%s: not a safetensors file: its header is not JSON: %s", path,
                       fault.text);
    if (!json_is_object(shard->header))
        return zf_fail(err, "%s: not a safetensors file: its header is not a JSON object", path);
    return read_tensors(s, shard, err);
}

/* An index and its shards. */

static char *beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    return zf_format("%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, name);
}

static bool open_shard_once(struct safetensors *s, const char *index, const char *name,
                            struct zf_error *err)
{
    if (!*name || strchr(name, '/'))
        return zf_fail(err, "%s: weight_map names the file \"%.200s\", but shards stand beside it",
                       index, name);
    char *path = beside(index, name);
    for (int i = s->n_shards - 1; i >= 0; i--) {
        if (strcmp(s->shards[i].path, path) == 0) {
            free(path);
            return true;
        }
    }
    return open_shard(s, path, err);
}

static int compare_name(const void *a, const void *b)
{
    const struct tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static bool sort_names(struct safetensors *s, struct zf_error *err)
{
    s->by_name = zf_malloc((size_t)s->n_tensors * sizeof *s->by_name);
    for (int i = 0; i < s->n_tensors; i++)
        s->by_name[i] = &s->tensors[i];
    qsort(s->by_name, (size_t)s->n_tensors, sizeof *s->by_name, compare_name);
    for (int i = 1; i < s->n_tensors; i++)
        if (compare_name(&s->by_name[i - 1], &s->by_name[i]) == 0)
            return zf_fail(err, "%s: tensor %.200s stands in %s too", s->by_name[i]->file,
                           s->by_name[i]->name, s->by_name[i - 1]->file);
    return true;
}

static bool check_weight_map(const struct safetensors *s, const char *index, json_t *weight_map,
                             struct zf_error *err)
{
    const char *name;
    json_t *file;
    json_object_foreach(weight_map, name, file)
    {
        const struct tensor *t = safetensors_find(s, name);
        char *path = beside(index, json_string_value(file));
        bool found = t && strcmp(t->file, path) == 0;
        if (!found)
            zf_fail(err, "%s: weight_map has %.200s in %.200s, but it is not there", index, name,
                    json_string_value(file));
        free(path);
        if (!found)
            return false;
    }
    return true;
}

static bool open_index(struct safetensors *s, const char *path, json_t *root, struct zf_error *err)
{
    const char *name;
    json_t *file, *weight_map = json_object_get(root, "weight_map");
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0)
        return zf_fail(err, "%s: \"weight_map\" is missing or empty", path);
    json_object_foreach(weight_map, name, file)
    {
        if (!json_is_string(file))
            return zf_fail(err, "%s: weight_map.%.200s is not a file name", path, name);
        if (!open_shard_once(s, path, json_string_value(file), err))
            return false;
    }
    return sort_names(s, err) && check_weight_map(s, path, weight_map, err);
}

static bool open_index_file(struct safetensors *s, const char *path, struct zf_error *err)
{
    char *text;
    size_t n;
    json_error_t fault;
    if (!file_read_text(path, &text, &n, err))
        return false;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &fault);
    free(text);
    bool ok = root ? open_index(s, path, root, err)
                   : zf_fail(err, "%s:%d: not valid JSON: %s", path, fault.line, fault.text);
    json_decref(root);
    return ok;
}

struct safetensors *safetensors_open(const char *path, struct zf_error *err)
{
    struct safetensors *s = zf_calloc(1, sizeof *s);
    size_t n = strlen(path);
    bool index = n >= 5 && strcmp(path + n - 5, ".json") == 0;
    bool ok = index ? open_index_file(s, path, err)
                    : open_shard(s, zf_strdup(path), err) && sort_names(s, err);
    if (ok)
        return s;
    safetensors_close(s);
    return NULL;
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_shards; i++) {
        mapped_close(s->shards[i].map);
        json_decref(s->shards[i].header);
        free(s->shards[i].path);
    }
    free(s->shards);
    free(s->tensors);
    free(s->by_name);
    free(s);
}

int safetensors_count(const struct safetensors *s)
{
    return s->n_tensors;
}

const struct tensor *safetensors_at(const struct safetensors *s, int i)
{
    return &s->tensors[i];
}

const struct tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    const struct tensor key = {.name = name}, *wanted = &key;
    const struct tensor **found =
        bsearch(&wanted, s->by_name, (size_t)s->n_tensors, sizeof *s->by_name, compare_name);
    return found ? *found : NULL;
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
    if (s->n_shards == 0)
        return NULL;
    return json_string_value(
        json_object_get(json_object_get(s->shards[0].header, "__metadata__"), key));
}

/* Tensors as fp32. */

void tensor_shape_text(const struct tensor *t, char *text, size_t bytes)
{
    size_t at = (size_t)snprintf(text, bytes, "(");
    for (int d = 0; d < t->n_dims && at < bytes; d++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%lld", d ? ", " : "",
                               (long long)t->shape[d]);
    if (at < bytes)
        snprintf(text + at, bytes - at, ")");
}

ZF_SIMD
static void f32_from_bf16(float *dst, const char *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, src + 2 * i, 2);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(dst + i, &bits, 4);
    }
}

/* Exponent and fraction move into fp32's place; a product by 2^112 then corrects the exponent's
 * bias, of subnormal numbers too. Infinity and NaN keep their largest exponent. */
ZF_SIMD
static void f32_from_f16(float *dst, const char *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        float value;
        memcpy(&half, src + 2 * i, 2);
        uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
        memcpy(&value, &bits, 4);
        value *= 0x1p112f;
        memcpy(&bits, &value, 4);
        bits |= (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
        bits |= (uint32_t)(half & 0x8000) << 16;
        memcpy(dst + i, &bits, 4);
    }
}

static bool check_dtype(const struct tensor *t, struct zf_error *err)
{
    return t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16 ||
           zf_fail(err, "%s: tensor %.200s is %s, but F32, F16 or BF16 is expected", t->file,
                   t->name, dtype_name(t->dtype));
}

/* Of one of these dtypes. */
static void read_piece(const struct tensor *t, float *dst, size_t first, size_t n)
{
    const char *src = (const char *)t->data + first * dtype_size(t->dtype);
    if (t->dtype == DTYPE_F32)
        memcpy(dst, src, n * sizeof *dst);
    else if (t->dtype == DTYPE_F16)
        f32_from_f16(dst, src, n);
    else
        f32_from_bf16(dst, src, n);
}

bool tensor_read_f32(const struct tensor *t, float *dst, size_t first, size_t n,
                     struct zf_error *err)
{
    if (!check_dtype(t, err))
        return false;
#pragma omp parallel for schedule(static) if (n > PARALLEL_PIECE)
    for (size_t at = 0; at < n; at += PARALLEL_PIECE)
        read_piece(t, dst + at, first + at, n - at < PARALLEL_PIECE ? n - at : PARALLEL_PIECE);
    return true;
}

#define TILE_ROWS ((size_t)32)  /* of the tensor, so that of dst whole cache lines are written; */
#define TILE_COLS ((size_t)128) /* the tile stays in a core's own cache */

/* As tensor_read_transposed, of rows [row, row + n_rows), and as many columns from `col` on. */
static void read_tile(const struct tensor *t, float *dst, size_t stride, size_t row, size_t n_rows,
                      size_t col, size_t n_cols)
{
    const size_t cols = t->n_dims == 2 ? (size_t)t->shape[1] : 1;
    float tile[TILE_ROWS][TILE_COLS];
    for (size_t i = 0; i < n_rows; i++)
        read_piece(t, tile[i], (row + i) * cols + col, n_cols);
    for (size_t j = 0; j < n_cols; j++)
        for (size_t i = 0; i < n_rows; i++)
            dst[(col + j) * stride + row + i] = tile[i][j];
}

bool tensor_read_transposed(const struct tensor *t, float *dst, size_t stride, struct zf_error *err)
{
    const size_t rows = (size_t)t->shape[0], cols = t->n_dims == 2 ? (size_t)t->shape[1] : 1;
    if (!check_dtype(t, err))
        return false;
#pragma omp parallel for collapse(2) schedule(static) if (t->n_elements > PARALLEL_PIECE)
    for (size_t row = 0; row < rows; row += TILE_ROWS)
        for (size_t col = 0; col < cols; col += TILE_COLS)
            read_tile(t, dst, stride, row, rows - row < TILE_ROWS ? rows - row : TILE_ROWS, col,
                      cols - col < TILE_COLS ? cols - col : TILE_COLS);
    return true;
}

/* Writing. */

struct safetensors_writer {
    struct file_replace file;
    json_t *header;
    size_t declared, written; /* bytes of data */
    bool header_written;
};

struct safetensors_writer *safetensors_write_begin(const char *path, struct zf_error *err)
{
    struct safetensors_writer *w = zf_calloc(1, sizeof *w);
    if (!file_replace_begin(&w->file, path, err)) {
        free(w);
        return NULL;
    }
    w->header = json_object();
    return w;
}

void safetensors_write_metadata(struct safetensors_writer *w, const char *key, const char *value)
{
    json_t *metadata = json_object_get(w->header, "__metadata__");
    if (!metadata) {
        metadata = json_object();
        json_object_set_new(w->header, "__metadata__", metadata);
    }
    json_object_set_new(metadata, key, json_string(value));
}

void safetensors_write_declare(struct safetensors_writer *w, const char *name, enum dtype dtype,
                               int n_dims, const int64_t *shape)
{
    size_t begin = w->declared, bytes = dtype_size(dtype);
    json_t *sizes = json_array();
    for (int d = 0; d < n_dims; d++) {
        bytes *= (size_t)shape[d];
        json_array_append_new(sizes, json_integer(shape[d]));
    }
    w->declared += bytes;
    json_object_set_new(w->header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(dtype), "shape",
                                  sizes, "data_offsets", (json_int_t)begin,
                                  (json_int_t)w->declared));
}

static void write_header(struct safetensors_writer *w)
{
    char *text = json_dumps(w->header, JSON_COMPACT | JSON_PRESERVE_ORDER);
    uint64_t n = strlen(text), padded = (n + 7) / 8 * 8; /* data begin at a multiple of 8 bytes */
    fwrite(&padded, LENGTH_BYTES, 1, w->file.stream);
    fprintf(w->file.stream, "%s%*s", text, (int)(padded - n), "");
    free(text);
    w->header_written = true;
}

void safetensors_write_data(struct safetensors_writer *w, const void *data, size_t bytes)
{
    if (!w->header_written)
        write_header(w);
    fwrite(data, 1, bytes, w->file.stream);
    w->written += bytes;
}

bool safetensors_write_end(struct safetensors_writer *w, bool keep, struct zf_error *err)
{
    bool ok = true;
    if (keep && !w->header_written)
        write_header(w);
    if (keep && w->written != w->declared)
        ok = zf_fail(err, "%s: cannot be written: %zu bytes of data came, but %zu were declared",
                     w->file.path, w->written, w->declared);
    ok = file_replace_end(&w->file, keep && ok, err) && ok;
    json_decref(w->header);
    free(w);
    return ok;
}
