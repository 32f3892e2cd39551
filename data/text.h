/* Text files that people wrote: UTF-8, and nothing else. */
#ifndef ZF_DATA_TEXT_H
#define ZF_DATA_TEXT_H

#include "data/error.h"

#include <stddef.h>

/* Reads a whole file, as file_read_text does. A byte that is not UTF-8, or NUL, is a fault that
 * names its line. */
bool text_read(const char *path, char **text, size_t *bytes, struct zf_error *err);

/* The line, from 1, on which text[at] stands. */
int text_line(const char *text, size_t at);

#endif
