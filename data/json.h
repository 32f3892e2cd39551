/* JSON files, on Jansson, with the line of a bad value.
 *
 * Integers beyond 64 bits, which Jansson refuses, are read as real numbers. It forgets where a
 * value stood; json_line finds it again in the text. A key path names a value inside nested
 * objects: "zero_optimization.zenflow.topk_ratio". */
#ifndef ZF_DATA_JSON_H
#define ZF_DATA_JSON_H

#include "data/error.h"

#include <jansson.h>
#include <stdint.h>

struct json_file {
    const char *path; /* as given to json_load */
    char *text;       /* the file's, but for a byte order mark and ".0" after integers too big */
    json_t *root;     /* an object */
};

/* Fails where the file is not JSON, has a key twice, or is not an object at the top. */
bool json_load(struct json_file *f, const char *path, struct zf_error *err);
/* The same of a text of n bytes and a NUL, which becomes f's; path is for messages. */
bool json_parse(struct json_file *f, const char *path, char *text, size_t n, struct zf_error *err);
void json_free(struct json_file *f);

/* The line (from 1) on which this key stands, or 0 where there is none. */
int json_line(const struct json_file *f, const char *key_path);

/* The value at a key path, or NULL where it is absent. Owned by f. */
json_t *json_find(const struct json_file *f, const char *key_path);

/* Typed access. An absent key (or null) leaves *value as it is; one of another type is a fault that
 * says "FILE:LINE: KEY is VALUE, but it is a TYPE". Strings are owned by f. */
bool json_get_int(const struct json_file *f, const char *key_path, int *value,
                  struct zf_error *err);
bool json_get_float(const struct json_file *f, const char *key_path, float *value,
                    struct zf_error *err);
bool json_get_bool(const struct json_file *f, const char *key_path, bool *value,
                   struct zf_error *err);
bool json_get_string(const struct json_file *f, const char *key_path, const char **value,
                     struct zf_error *err);

/* Fills err with "FILE:LINE: KEY is VALUE, but it is EXPECTED" and returns false. */
bool json_fail(const struct json_file *f, const char *key_path, const char *expected,
               struct zf_error *err);

/* Writes root to path, indented, keys in the order in which they were set, real numbers with this
 * many digits (17 keep a double exactly, 9 a float). */
bool json_write(const char *path, const json_t *root, int digits, struct zf_error *err);

#endif
