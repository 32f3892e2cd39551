/* A file of examples that a person brings: rows with named columns. What it is, its name says:
 *
 *  .csv            RFC 4180, separated by commas, as libcsv reads it: a quoted field may hold
 *                  commas, line breaks and doubled quotes. The first row names the columns.
 *  .tsv            as GLUE's (tsv.h): quotes are plain characters. The first row names the columns.
 *  .jsonl, .ndjson one JSON object a line; empty lines are none.
 *  .json           the same; or one array of objects, or an object whose "data" is one.
 *
 * Of JSON, columns are the keys of all objects; what one lacks is absent. Where there is one
 * column, an empty line between rows is a fault: it may be an empty text. */
#ifndef ZF_DATA_TABLE_H
#define ZF_DATA_TABLE_H

#include "data/error.h"

#include <jansson.h>
#include <stddef.h>

struct table {
    const char *path; /* as given to table_read */
    int n_columns;
    char **columns; /* (n_columns) */
    int n_rows;
    int *line;    /* (n_rows) that a row begins on, from 1 */
    char **cells; /* (n_rows, n_columns) UTF-8; NULL: absent or null; TABLE_NESTED */
    char *text;   /* holds all of them; the caller may take it, with NULL left in its place */
};

/* Stands for a JSON array or object. */
extern char TABLE_NESTED[];

/* Whether a file of this name is a table. */
bool table_is(const char *path);
/* Whether it is JSON. */
bool table_is_json(const char *path);

/* A bad row is a fault that names file and line; so are no rows. */
bool table_read(struct table *t, const char *path, struct zf_error *err);
void table_free(struct table *t);

/* The number of a column, or -1. */
int table_find(const struct table *t, const char *name);
/* What `cells` has there. */
static inline const char *table_cell(const struct table *t, int row, int column)
{
    return t->cells[(size_t)row * (size_t)t->n_columns + (size_t)column];
}
/* The columns' names, for a sentence. Into out. */
const char *table_list_columns(const struct table *t, char *out, size_t size);

/* Walks over the objects of a JSON file (.jsonl, .ndjson, .json) in order, each with its line.
 * visit: returns false on a fault; the object is gone afterwards. */
typedef bool table_visit(void *context, json_t *object, int line, struct zf_error *err);
bool table_each_object(const char *path, table_visit *visit, void *context, struct zf_error *err);

#endif
