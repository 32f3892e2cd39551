/* Files: read whole, or replaced whole. A reader never sees a half-written file of ours. */
#ifndef ZF_DATA_FILE_H
#define ZF_DATA_FILE_H

#include "data/error.h"

#include <stddef.h>
#include <stdio.h>

/* Opens a regular file to be read, and says how long it is; -1 where it is none. Nothing else is
 * waited for, such as a pipe that nobody writes to. */
int file_open(const char *path, size_t *bytes, struct zf_error *err);

/* Reads a whole file. *text gets a NUL after its last byte; the caller frees it. Fails also on a
 * pointer of Git LFS, which stands where the file itself was not fetched. */
bool file_read(const char *path, char **text, size_t *bytes, struct zf_error *err);
/* The same of a file that may not be there: *text is NULL then, and *bytes 0. */
bool file_read_if_any(const char *path, char **text, size_t *bytes, struct zf_error *err);
/* Takes a byte order mark away from the beginning of a text that ends with a NUL. Returns how many
 * bytes are left. */
size_t file_drop_mark(char *text, size_t bytes);
/* As file_read, without such a mark. */
bool file_read_text(const char *path, char **text, size_t *bytes, struct zf_error *err);
/* Fails where these first bytes of a file are those of a Git LFS pointer. */
bool file_is_fetched(const char *path, const char *bytes, size_t n, struct zf_error *err);

/* Opens a temporary file beside `path`; file_replace_end flushes it to disk, renames it over `path`
 * and makes that durable, unless a batch does so later. On a fault (or keep = false) the temporary
 * is removed and `path` stays as it was. */
struct file_replace {
    FILE *stream;
    char path[4096];
    char temporary[4096 + 32];
};
bool file_replace_begin(struct file_replace *f, const char *path, struct zf_error *err);
bool file_replace_end(struct file_replace *f, bool keep, struct zf_error *err);

/* Files that are finished but not yet on the disk. From file_batch_begin to file_batch_end, what
 * this thread replaces takes its name at once and stays open in the batch, and directories that it
 * makes are not synced: nothing waits for a disk (to close a file of NFS would). Whoever writes the
 * files does not have to know. */
struct file_batch {
    struct batched_file *files;
    int n;
};
void file_batch_begin(struct file_batch *b);
void file_batch_end(void);
/* Flushes the files to the disk, unless they are dropped (keep = false), and closes them. Not the
 * directories: they are the caller's. Any thread may. */
bool file_batch_sync(struct file_batch *b, bool keep, struct zf_error *err);

/* Opens a file that is written as a run goes on: anew, or behind what it has. A device is fine,
 * such as /dev/null, and so is a pipe that somebody reads; others would be waited for, and are
 * refused. NULL and a sentence on a fault. */
FILE *file_open_output(const char *path, bool append, struct zf_error *err);
/* A new file to be written and read; what has this name goes, and no link is followed: for names
 * that are nobody else's. NULL where it cannot be, and errno says why. */
FILE *file_create(const char *path);

/* Replaces `path` by these bytes. */
bool file_write(const char *path, const void *bytes, size_t n, struct zf_error *err);

bool file_exists(const char *path);
/* The last part of a path, as a new string, without slashes behind it. */
char *file_name(const char *path);
bool file_is_directory(const char *path);
/* Whether both are there and the same, whatever either is called. */
bool file_is_same(const char *a, const char *b);

/* The names in a directory, sorted, without "." and ".."; NULL and a sentence where it cannot be
 * read. */
struct file_names {
    char **list;
    int n;
};
bool file_list(const char *directory, struct file_names *names, struct zf_error *err);
void file_names_free(struct file_names *names);
/* Makes a directory and those above it, on the disk too; fine if it is there. */
bool file_make_directory(const char *path, struct zf_error *err);
/* A finished directory takes its name, and is on the disk under it. What had that name before has
 * the other one then, or is gone: at no moment is there neither, where the file system can exchange
 * two names; elsewhere, for a moment, what had the name is beside it under "`to`.replaced". */
bool file_publish_directory(const char *from, const char *to, struct zf_error *err);
/* Removes a directory and all in it, or a file. */
bool file_remove_directory(const char *path, struct zf_error *err);

#endif
