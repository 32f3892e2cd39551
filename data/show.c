#include "data/show.h"

#include "data/alloc.h"
#include "data/utf8.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 5 /* bytes that one piece is shown as: \x1b, with a NUL */

/* How many bytes at p begin a character that does not go on; 0: none do. */
static size_t cut_character(const char *p, size_t n)
{
    const unsigned char first = (unsigned char)*p;
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    size_t got = 1;
    if (first < 0xC2 || first > 0xF4)
        return 0;
    while (got < n && got < length && ((unsigned char)p[got] & 0xC0) == 0x80)
        got++;
    return got < length ? got : 0;
}

/* What the next piece of a text is shown as; returns its length in the text. */
static size_t show_piece(char shown[LONGEST], const char *p, size_t n)
{
    uint32_t code = 0;
    const size_t length = utf8_decode(p, n, &code), cut = length ? 0 : cut_character(p, n);
    const char *name = strchr("\nn\tt\rr", *p);
    if (length && code >= ' ' && (code < 0x7f || code > 0x9f)) {
        memcpy(shown, p, length);
        shown[length] = 0;
        return length;
    }
    if (cut) {
        strcpy(shown, "\xe2\x80\xa6");
        return cut;
    }
    if (code && code < ' ' && name)
        snprintf(shown, LONGEST, "\\%c", name[1]);
    else
        snprintf(shown, LONGEST, "\\x%02x", (unsigned char)*p);
    return 1;
}

void show_text(char *out, size_t size, const char *text)
{
    size_t n = strlen(text), used = 0;
    while (n > 0) {
        char shown[LONGEST];
        const size_t length = show_piece(shown, text, n), all = strlen(shown);
        if (used + all >= size)
            break;
        memcpy(out + used, shown, all);
        used += all;
        text += length;
        n -= length;
    }
    if (size > 0)
        out[used] = 0;
}

char *show_whole(const char *text)
{
    const size_t size = strlen(text) * (LONGEST - 1) + 1;
    char *out = zf_malloc(size);
    show_text(out, size, text);
    return out;
}

char *show_shell_word(const char *text)
{
    char *shown = show_whole(text), *word = zf_malloc(4 * strlen(shown) + 3), *end = word;
    bool plain = *text;
    for (const char *p = shown; *p; p++)
        plain = plain && (isalnum((unsigned char)*p) || strchr("_./-+,:@%=", *p));
    if (!plain)
        *end++ = '\'';
    for (const char *p = shown; *p; p++)
        end += sprintf(end, *p == '\'' ? "'\\'%c" : "%c", *p);
    if (!plain)
        *end++ = '\'';
    *end = 0;
    free(shown);
    return word;
}
