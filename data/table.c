#include "data/table.h"

#include "data/alloc.h"
#include "data/json_scan.h"
#include "data/text.h"
#include "data/tsv.h"

#include <csv.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

char TABLE_NESTED[] = "";

/* Different ones of a JSON file: each is a column of all rows. */
#define MAX_KEYS 1000

static bool ends_with(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n > m && strcasecmp(path + n - m, ending) == 0;
}

static bool is_json_lines(const char *path)
{
    return ends_with(path, ".jsonl") || ends_with(path, ".ndjson");
}

bool table_is_json(const char *path)
{
    return is_json_lines(path) || ends_with(path, ".json");
}

bool table_is(const char *path)
{
    return table_is_json(path) || ends_with(path, ".csv") || ends_with(path, ".tsv");
}

/* A table on its way: cells are offsets into `text` until that no longer moves. */
struct builder {
    struct table *t;
    size_t used, capacity; /* of t->text */
    size_t *at;            /* (n_cells) */
    size_t n_cells, cell_capacity;
    size_t *names; /* (t->n_columns) */
    int row_capacity;
};

#define CELL_ABSENT SIZE_MAX
#define CELL_NESTED (SIZE_MAX - 1)

/* Copies n bytes, with a NUL, and returns where they begin. */
static size_t keep(struct builder *b, const char *bytes, size_t n)
{
    if (b->capacity - b->used <= n) {
        b->capacity = 2 * b->capacity + n + 4096;
        b->t->text = zf_realloc(b->t->text, b->capacity);
    }
    size_t at = b->used;
    if (n > 0)
        memcpy(b->t->text + at, bytes, n);
    b->t->text[at + n] = 0;
    b->used += n + 1;
    return at;
}

static void add_cell(struct builder *b, size_t at)
{
    if (b->n_cells == b->cell_capacity) {
        b->cell_capacity = 2 * b->cell_capacity + 1024;
        b->at = zf_realloc(b->at, b->cell_capacity * sizeof *b->at);
    }
    b->at[b->n_cells++] = at;
}

static void add_column(struct builder *b, const char *name, size_t n)
{
    b->names = zf_realloc(b->names, ((size_t)b->t->n_columns + 1) * sizeof *b->names);
    b->names[b->t->n_columns++] = keep(b, name, n);
}

/* Another column, which no row so far has. */
static void widen(struct builder *b, const char *name)
{
    const size_t rows = (size_t)b->t->n_rows, before = (size_t)b->t->n_columns;
    for (size_t i = 0; i < rows; i++)
        add_cell(b, CELL_ABSENT);
    for (size_t row = rows; row-- > 0;) {
        memmove(b->at + row * (before + 1), b->at + row * before, before * sizeof *b->at);
        b->at[row * (before + 1) + before] = CELL_ABSENT;
    }
    add_column(b, name, strlen(name));
}

/* All cells of a row are there. */
static void end_row(struct builder *b, int line)
{
    struct table *t = b->t;
    if (t->n_rows == b->row_capacity) {
        b->row_capacity = 2 * b->row_capacity + 256;
        t->line = zf_realloc(t->line, (size_t)b->row_capacity * sizeof *t->line);
    }
    t->line[t->n_rows++] = line;
}

/* From offsets to pointers. */
static void finish(struct builder *b)
{
    struct table *t = b->t;
    t->columns = zf_malloc(((size_t)t->n_columns + 1) * sizeof *t->columns);
    for (int i = 0; i < t->n_columns; i++)
        t->columns[i] = t->text + b->names[i];
    t->cells = zf_malloc((b->n_cells + 1) * sizeof *t->cells);
    for (size_t i = 0; i < b->n_cells; i++)
        t->cells[i] = b->at[i] == CELL_ABSENT   ? NULL
                      : b->at[i] == CELL_NESTED ? TABLE_NESTED
                                                : t->text + b->at[i];
    free(b->names);
    free(b->at);
}

/* A row of this many fields, on this line, must be like the header. */
static bool check_width(const struct table *t, int fields, int line, struct zf_error *err)
{
    return fields == t->n_columns ||
           zf_fail(err, "%s:%d: the row has %d column%s, but the header has %d", t->path, line,
                   fields, fields == 1 ? "" : "s", t->n_columns);
}

/* Where there is one column, an empty line may be meant as a row whose text is empty. A row ends in
 * this line, or begins there. */
static bool check_gap(const struct table *t, int ends, int begins, struct zf_error *err)
{
    return t->n_columns > 1 || begins <= ends + 1 ||
           zf_fail(err,
                   "%s:%d: the line is empty, but the file has one column: is it a row? Then it "
                   "is \"\" in a .csv file, else it goes",
                   t->path, ends + 1);
}

/* CSV. libcsv calls back with fields and ends of rows. */

struct csv_reader {
    struct builder *b;
    int line;      /* that it is given */
    int row_line;  /* on which the row began */
    int row_end;   /* and the one before ended */
    bool has_head; /* the header has been read */
    int fields;    /* of the row */
    bool ok;
    struct zf_error *err;
};

static void take_field(void *field, size_t n, void *context)
{
    struct csv_reader *r = context;
    if (!r->has_head)
        add_column(r->b, field, n);
    else
        add_cell(r->b, keep(r->b, field, n));
    r->fields++;
}

static void take_row_end(int terminator, void *context)
{
    struct csv_reader *r = context;
    (void)terminator;
    if (r->ok && r->has_head) {
        r->ok = check_width(r->b->t, r->fields, r->row_line, r->err) &&
                check_gap(r->b->t, r->row_end, r->row_line, r->err);
        end_row(r->b, r->row_line);
    }
    r->row_end = r->line;
    r->has_head = true;
    r->fields = 0;
}

static int no_space(unsigned char c)
{
    (void)c;
    return 0;
}

static bool parse_csv(struct csv_reader *r, struct csv_parser *p, const char *text, size_t n)
{
    for (const char *at = text, *end; at < text + n && r->ok; at = end) {
        const char *newline = memchr(at, '\n', (size_t)(text + n - at));
        end = newline ? newline + 1 : text + n;
        r->line++;
        if (p->pstate == 0) /* between rows */
            r->row_line = r->line;
        if (csv_parse(p, at, (size_t)(end - at), take_field, take_row_end, r) != (size_t)(end - at))
            return zf_fail(r->err,
                           "%s:%d: a quote stands within a field, but a field that has quotes is "
                           "quoted, and its quotes are doubled",
                           r->b->t->path, r->line);
    }
    if (r->ok && csv_fini(p, take_field, take_row_end, r) != 0)
        return zf_fail(r->err, "%s:%d: a quoted field of this row has no closing quote",
                       r->b->t->path, r->row_line);
    return r->ok;
}

static bool read_csv(struct builder *b, const char *text, size_t n, struct zf_error *err)
{
    struct csv_parser p;
    struct csv_reader r = {.b = b, .ok = true, .err = err};
    csv_init(&p, CSV_STRICT | CSV_STRICT_FINI);
    csv_set_realloc_func(&p, zf_realloc);
    csv_set_space_func(&p, no_space);
    bool ok = parse_csv(&r, &p, text, n);
    csv_free(&p);
    if (ok && b->t->n_columns == 1 && strpbrk(b->t->text + b->names[0], ";\t"))
        return zf_fail(err,
                       "%s:1: the header is one column, \"%.100s\": in a .csv file commas separate "
                       "columns, in a .tsv file tabs",
                       b->t->path, b->t->text + b->names[0]);
    return ok;
}

static bool read_tsv(struct builder *b, const char *path, struct zf_error *err)
{
    struct tsv tsv;
    bool ok = tsv_open(&tsv, path, err), head = true;
    int before = 0;
    if (!ok)
        return false;
    for (; ok && tsv_next(&tsv); head = false) {
        ok = tsv.n_fields <= TSV_MAX_FIELDS ||
             zf_fail(err, "%s:%d: the row has %d columns, but at most %d are read", path, tsv.line,
                     tsv.n_fields, TSV_MAX_FIELDS);
        ok = ok && (head || (check_width(b->t, tsv.n_fields, tsv.line, err) &&
                             check_gap(b->t, before, tsv.line, err)));
        before = tsv.line;
        for (int i = 0; ok && i < tsv.n_fields; i++) {
            size_t bytes = strlen(tsv.fields[i]);
            if (head)
                add_column(b, tsv.fields[i], bytes);
            else
                add_cell(b, keep(b, tsv.fields[i], bytes));
        }
        if (ok && !head)
            end_row(b, tsv.line);
    }
    free(tsv.text);
    return ok;
}

/* JSON. */

/* The objects of a text, one after the other. */
struct objects {
    const char *path, *text;
    struct json_scan scan;
    bool in_array, is_array; /* among the array's objects; which is all that there is */
    const char *counted;     /* lines are, up to here */
    int line;
};

static int line_at(struct objects *o, const char *at)
{
    for (; o->counted < at; o->counted++)
        o->line += *o->counted == '\n';
    return o->line;
}

/* Into the array of a .json file that is one: [...] or {"data": [...]}. */
static void enter_array(struct objects *o)
{
    struct json_scan s = o->scan, after = o->scan;
    json_scan_skip(&after);
    bool alone = !after.p[strspn(after.p, " \t\r\n")];
    o->is_array = json_scan_take(&s, '[');
    if (!o->is_array && !(alone && json_scan_enter(&s, "data") && json_scan_take(&s, '[')))
        return;
    o->scan = s;
    o->in_array = true;
}

/* Nothing is behind an array. */
static bool check_end(struct objects *o, struct zf_error *err)
{
    const char *rest = o->scan.p + strspn(o->scan.p, " \t\r\n");
    return !*rest || zf_fail(err, "%s:%d: found \"%.20s\" behind the array of objects", o->path,
                             line_at(o, rest), rest);
}

/* The bytes of the next object; false at the end, or on a fault. */
static bool next_span(struct objects *o, const char **begin, size_t *n, bool first, bool *ok,
                      struct zf_error *err)
{
    struct json_scan *s = &o->scan;
    s->p += strspn(s->p, " \t\r\n");
    if (o->in_array) {
        if (json_scan_take(s, ']')) {
            *ok = !o->is_array || check_end(o, err);
            return false;
        }
        if (!first && !(*ok = json_scan_need(s, ',', err)))
            return false;
        s->p += strspn(s->p, " \t\r\n");
    }
    if (!*s->p && !o->in_array)
        return false;
    *begin = s->p;
    if (is_json_lines(o->path))
        s->p += strcspn(s->p, "\n");
    else
        json_scan_skip(s);
    *n = (size_t)(s->p - *begin);
    return true;
}

static bool visit_objects(struct objects *o, table_visit *visit, void *context,
                          struct zf_error *err)
{
    const char *begin;
    size_t n;
    bool ok = true;
    for (bool first = true; ok && next_span(o, &begin, &n, first, &ok, err); first = false) {
        json_error_t fault;
        int line = line_at(o, begin);
        json_t *object = json_loadb(begin, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &fault);
        if (!object)
            ok = zf_fail(err, "%s:%d: not valid JSON: %s", o->path, line + fault.line - 1,
                         fault.text);
        else if (!json_is_object(object))
            ok = zf_fail(err, "%s:%d: this is not a JSON object in braces", o->path, line);
        else
            ok = visit(context, object, line, err);
        json_decref(object);
    }
    return ok;
}

bool table_each_object(const char *path, table_visit *visit, void *context, struct zf_error *err)
{
    char *text;
    size_t n;
    if (!text_read(path, &text, &n, err))
        return false;
    struct objects o = {.path = path,
                        .text = text,
                        .scan = {.path = path, .text = text, .p = text},
                        .counted = text,
                        .line = 1};
    if (!is_json_lines(path))
        enter_array(&o);
    bool ok = visit_objects(&o, visit, context, err);
    free(text);
    return ok;
}

static size_t keep_value(struct builder *b, const json_t *value)
{
    if (!value || json_is_null(value))
        return CELL_ABSENT;
    if (json_is_string(value))
        return keep(b, json_string_value(value), json_string_length(value));
    if (json_is_object(value) || json_is_array(value))
        return CELL_NESTED;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    size_t at = keep(b, text, strlen(text));
    free(text);
    return at;
}

/* The object's value in a column, or NULL. */
static json_t *value_in(const struct builder *b, json_t *object, int column)
{
    return json_object_get(object, b->t->text + b->names[column]);
}

/* Whether the object has no keys but the columns. */
static bool fits_columns(const struct builder *b, json_t *object)
{
    size_t n = 0;
    for (int i = 0; i < b->t->n_columns; i++)
        n += value_in(b, object, i) != NULL;
    return n == json_object_size(object);
}

static bool has_column(const struct builder *b, const char *name)
{
    for (int i = 0; i < b->t->n_columns; i++)
        if (strcmp(b->t->text + b->names[i], name) == 0)
            return true;
    return false;
}

/* Each key that is none yet becomes a column. */
static bool add_columns(struct builder *b, json_t *object, int line, struct zf_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (has_column(b, key))
            continue;
        if (b->t->n_columns == MAX_KEYS)
            return zf_fail(err, "%s:%d: \"%.60s\" is one key more than the %d that are read",
                           b->t->path, line, key, MAX_KEYS);
        widen(b, key);
    }
    return true;
}

static bool take_object(void *context, json_t *object, int line, struct zf_error *err)
{
    struct builder *b = context;
    if (json_object_size(object) == 0)
        return zf_fail(err, "%s:%d: the object has no keys, which are the columns", b->t->path,
                       line);
    if (!fits_columns(b, object) && !add_columns(b, object, line, err))
        return false;
    for (int i = 0; i < b->t->n_columns; i++)
        add_cell(b, keep_value(b, value_in(b, object, i)));
    end_row(b, line);
    return true;
}

static bool read_rows(struct builder *b, const char *path, struct zf_error *err)
{
    char *text;
    size_t n;
    if (table_is_json(path))
        return table_each_object(path, take_object, b, err);
    if (ends_with(path, ".tsv"))
        return read_tsv(b, path, err);
    if (!ends_with(path, ".csv"))
        return zf_fail(err,
                       "%s: rows are read from CSV (.csv), TSV (.tsv), JSON lines (.jsonl) and "
                       "JSON (.json); plain text is for task_name lm",
                       path);
    if (!text_read(path, &text, &n, err))
        return false;
    bool ok = read_csv(b, text, n, err);
    free(text);
    return ok;
}

bool table_read(struct table *t, const char *path, struct zf_error *err)
{
    struct builder b = {.t = t};
    *t = (struct table){.path = path};
    bool ok = read_rows(&b, path, err);
    if (ok && t->n_rows == 0)
        ok = zf_fail(err, "%s: there are no examples in the file", path);
    finish(&b);
    if (!ok)
        table_free(t);
    return ok;
}

void table_free(struct table *t)
{
    free(t->columns);
    free(t->line);
    free(t->cells);
    free(t->text);
    *t = (struct table){0};
}

int table_find(const struct table *t, const char *name)
{
    for (int i = 0; i < t->n_columns; i++)
        if (strcmp(t->columns[i], name) == 0)
            return i;
    return -1;
}

const char *table_list_columns(const struct table *t, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < t->n_columns && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%.40s", i ? ", " : "", t->columns[i]);
    return out;
}
