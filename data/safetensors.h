/* The safetensors format: named tensors in one file, or in shards listed by an index file.
 * https://github.com/huggingface/safetensors: u64 header length, JSON header, raw data.
 *
 * Reading maps the file and never trusts it: offsets, shapes and dtypes are checked when it is
 * opened, so a tensor that is found is whole. Data are little-endian, as on every machine here. */
#ifndef ZF_DATA_SAFETENSORS_H
#define ZF_DATA_SAFETENSORS_H

#include "data/dtype.h"
#include "data/error.h"

#include <stddef.h>
#include <stdint.h>

#define TENSOR_MAX_DIMS 4

struct tensor {
    const char *name; /* owned by the file */
    const char *file; /* the file that it stands in */
    enum dtype dtype;
    int n_dims;
    int64_t shape[TENSOR_MAX_DIMS];
    size_t n_elements;
    const void *data; /* inside the mapped file, maybe unaligned */
};

struct safetensors; /* one file, or all shards of an index */

/* Opens `path`: a .safetensors file, or a .safetensors.index.json whose shards stand beside it. */
struct safetensors *safetensors_open(const char *path, struct zf_error *err);
void safetensors_close(struct safetensors *s);

int safetensors_count(const struct safetensors *s);
const struct tensor *safetensors_at(const struct safetensors *s, int i); /* in file order */
const struct tensor *safetensors_find(const struct safetensors *s, const char *name); /* or NULL */
/* The string metadata under "__metadata__" of the first file, or NULL. */
const char *safetensors_metadata(const struct safetensors *s, const char *key);

/* Writes "(out, in)" of a tensor's shape into text, for sentences. */
void tensor_shape_text(const struct tensor *t, char *text, size_t bytes);
/* dst[0..n) = elements first..first+n of t as fp32. F32, F16 and BF16 only. On OpenMP threads. */
bool tensor_read_f32(const struct tensor *t, float *dst, size_t first, size_t n,
                     struct zf_error *err);
/* The transpose of a tensor of one or two dimensions, read once and in its own order:
 * dst[col * stride + row] = its element (row, col). */
bool tensor_read_transposed(const struct tensor *t, float *dst, size_t stride,
                            struct zf_error *err);

/* Writes one file, atomically. Tensors are declared first, so that the header stands before the
 * data; then their bytes are appended in the order of declaration, in pieces of any size. */
struct safetensors_writer;
struct safetensors_writer *safetensors_write_begin(const char *path, struct zf_error *err);
void safetensors_write_metadata(struct safetensors_writer *w, const char *key, const char *value);
void safetensors_write_declare(struct safetensors_writer *w, const char *name, enum dtype dtype,
                               int n_dims, const int64_t *shape);
void safetensors_write_data(struct safetensors_writer *w, const void *data, size_t bytes);
/* Checks that all declared bytes came, replaces the file and frees w. keep = false: drops it. */
bool safetensors_write_end(struct safetensors_writer *w, bool keep, struct zf_error *err);

#endif
