/* Tab-separated files as GLUE ships them: one row a line, quotes are plain characters, lines end
 * with LF or CRLF, and a byte-order mark may stand first. Empty lines are no rows. */
#ifndef ZF_DATA_TSV_H
#define ZF_DATA_TSV_H

#include "data/error.h"

#include <stddef.h>

#define TSV_MAX_FIELDS 32

struct tsv {
    const char *path;             /* as given to tsv_open */
    char *text;                   /* the whole file; rows are cut up in place */
    char *next, *end;             /* the bytes not yet read */
    int line;                     /* of the current row, from 1 */
    int n_fields;                 /* in the current row; may exceed TSV_MAX_FIELDS */
    char *fields[TSV_MAX_FIELDS]; /* NUL-terminated, inside text */
};

/* Reads the file and checks that it is UTF-8 without NUL bytes. The caller frees `text`, also
 * after moving into it what it keeps of the rows already read. */
bool tsv_open(struct tsv *t, const char *path, struct zf_error *err);
/* Goes to the next row; false after the last. */
bool tsv_next(struct tsv *t);
/* The position of the field with this text in the current row, or -1. */
int tsv_find(const struct tsv *t, const char *text);

#endif
