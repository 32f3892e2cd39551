#include "data/tsv.h"

#include "data/text.h"

#include <string.h>

bool tsv_open(struct tsv *t, const char *path, struct zf_error *err)
{
    size_t n;
    *t = (struct tsv){.path = path};
    if (!text_read(path, &t->text, &n, err))
        return false;
    t->next = t->text;
    t->end = t->text + n;
    return true;
}

/* Cuts [row, end) at its tabs. *end is writable. */
static void split_fields(struct tsv *t, char *row, char *end)
{
    *end = 0;
    t->n_fields = 0;
    for (;;) {
        if (t->n_fields < TSV_MAX_FIELDS)
            t->fields[t->n_fields] = row;
        t->n_fields++;
        char *tab = memchr(row, '\t', (size_t)(end - row));
        if (!tab)
            return;
        *tab = 0;
        row = tab + 1;
    }
}

bool tsv_next(struct tsv *t)
{
    while (t->next < t->end) {
        char *row = t->next;
        char *newline = memchr(row, '\n', (size_t)(t->end - row));
        char *end = newline ? newline : t->end;
        t->next = newline ? newline + 1 : t->end;
        t->line++;
        if (end > row && end[-1] == '\r')
            end--;
        if (end == row)
            continue;
        split_fields(t, row, end);
        return true;
    }
    return false;
}

int tsv_find(const struct tsv *t, const char *text)
{
    for (int i = 0; i < t->n_fields && i < TSV_MAX_FIELDS; i++) {
        if (strcmp(t->fields[i], text) == 0)
            return i;
    }
    return -1;
}
