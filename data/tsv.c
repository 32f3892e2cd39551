#include "data/tsv.h"

#include "data/file.h"
#include "data/utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The first byte that is NUL or not UTF-8, or NULL. */
static const char *find_bad_byte(const char *text, size_t n)
{
    const uint64_t ones = 0x0101010101010101u, high_bits = 0x8080808080808080u;
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        if (n - i >= sizeof word) {
            memcpy(&word, text + i, sizeof word);
            /* Borrows reach a high bit exactly where a byte is zero, as all are below 0x80. */
            if (((word | (word - ones)) & high_bits) == 0) {
                i += sizeof word;
                continue;
            }
        }
        uint32_t code;
        size_t length = utf8_decode(text + i, n - i, &code);
        if (length == 0 || code == 0)
            return text + i;
        i += length;
    }
    return NULL;
}

static int line_of(const char *text, const char *at)
{
    int line = 1;
    for (const char *p = text; (p = memchr(p, '\n', (size_t)(at - p))) != NULL; p++)
        line++;
    return line;
}

bool tsv_open(struct tsv *t, const char *path, struct zf_error *err)
{
    size_t n;
    *t = (struct tsv){.path = path};
    if (!file_read_text(path, &t->text, &n, err))
        return false;
    const char *bad = find_bad_byte(t->text, n);
    if (bad) {
        if (*bad == 0)
            zf_fail(err, "%s:%d: there is a NUL byte, but this is a text file", path,
                    line_of(t->text, bad));
        else
            zf_fail(err, "%s:%d: byte 0x%02x is not UTF-8", path, line_of(t->text, bad),
                    (unsigned char)*bad);
        free(t->text);
        return false;
    }
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
