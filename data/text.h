/* Text files that people wrote: UTF-8, and nothing else. */
#ifndef ZF_DATA_TEXT_H
#define ZF_DATA_TEXT_H

#include "data/error.h"

#include <stddef.h>
#include <stdio.h>

/* Reads a whole file, as file_read_text does. A byte that is not UTF-8, or NUL, is a fault that
 * names its line. */
bool text_read(const char *path, char **text, size_t *bytes, struct zf_error *err);

/* The same of a text that is there, or of a part of it that begins in this line, from 1. */
bool text_check(const char *name, int first, const char *text, size_t bytes, struct zf_error *err);

/* A stream, line by line: begins with its name for messages alone; the caller frees `line`. */
struct text_lines {
    const char *name;
    char *line; /* without its end */
    size_t capacity;
    int number; /* from 1 */
};
/* The next line, checked in the same way, the first without its mark; there is none at the stream's
 * end. */
bool text_next_line(struct text_lines *lines, FILE *f, bool *there, struct zf_error *err);

#endif
