/* Files: read whole, or replaced whole. A reader never sees a half-written file of ours. */
#ifndef ZF_DATA_FILE_H
#define ZF_DATA_FILE_H

#include "data/error.h"

#include <stddef.h>
#include <stdio.h>

/* Reads a whole file. *text gets a NUL after its last byte; the caller frees it. */
bool file_read(const char *path, char **text, size_t *bytes, struct zf_error *err);

/* Opens a temporary file beside `path`; file_replace_end flushes it to disk and renames it over
 * `path`. On a fault (or keep = false) the temporary is removed and `path` stays as it was. */
struct file_replace {
    FILE *stream;
    char path[4096];
    char temporary[4096];
};
bool file_replace_begin(struct file_replace *f, const char *path, struct zf_error *err);
bool file_replace_end(struct file_replace *f, bool keep, struct zf_error *err);

/* Replaces `path` by these bytes. */
bool file_write(const char *path, const void *bytes, size_t n, struct zf_error *err);
bool file_copy(const char *from, const char *to, struct zf_error *err);

bool file_exists(const char *path);
bool file_is_directory(const char *path);
/* Makes a directory and those above it; fine if it is there. */
bool file_make_directory(const char *path, struct zf_error *err);
/* Removes a directory and all in it. */
bool file_remove_directory(const char *path, struct zf_error *err);

#endif
