#include "data/text.h"

#include "data/file.h"
#include "data/utf8.h"

#include <errno.h>
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

/* The line, from 1, on which text[at] stands. */
static int line_of(const char *text, size_t at)
{
    int line = 1;
    const char *end = text + at;
    for (const char *p = text; (p = memchr(p, '\n', (size_t)(end - p))) != NULL; p++)
        line++;
    return line;
}

bool text_check(const char *name, int first, const char *text, size_t bytes, struct zf_error *err)
{
    const char *bad = find_bad_byte(text, bytes);
    if (!bad)
        return true;
    const int line = first - 1 + line_of(text, (size_t)(bad - text));
    if (*bad == 0)
        return zf_fail(err, "%s:%d: there is a NUL byte, but this is a text file", name, line);
    return zf_fail(err, "%s:%d: byte 0x%02x is not UTF-8", name, line, (unsigned char)*bad);
}

bool text_read(const char *path, char **text, size_t *bytes, struct zf_error *err)
{
    if (!file_read_text(path, text, bytes, err))
        return false;
    if (text_check(path, 1, *text, *bytes, err))
        return true;
    free(*text);
    *text = NULL;
    return false;
}

bool text_next_line(struct text_lines *lines, FILE *f, bool *there, struct zf_error *err)
{
    ssize_t n = getline(&lines->line, &lines->capacity, f);
    *there = n >= 0;
    if (n < 0)
        return !ferror(f) || zf_fail(err, "%s: %s", lines->name, strerror(errno));
    lines->number++;
    if (lines->number == 1)
        n = (ssize_t)file_drop_mark(lines->line, (size_t)n);
    if (!text_check(lines->name, lines->number, lines->line, (size_t)n, err))
        return false;
    while (n > 0 && (lines->line[n - 1] == '\n' || lines->line[n - 1] == '\r'))
        lines->line[--n] = 0;
    return true;
}
