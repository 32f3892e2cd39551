#include "data/normalize.h"

#include "data/alloc.h"
#include "data/utf8.h"

#include <utf8proc.h>

#include <stdlib.h>
#include <string.h>

/* The first mark, and its first byte. Below it, every text is in form C. */
#define FIRST_MARK          0x300
#define FIRST_BYTE_OF_MARKS 0xCC

/* Marks behind one character. */
#define LONG_ROW 64

enum kind { NFC, PREPEND, REPLACE };

struct step {
    enum kind kind;
    char *pattern, *content; /* NULL where there is none */
};

struct normalizer {
    struct step *steps;
    int n_steps;
};

/* Characters that combine, compose or decompose since a Unicode later than 9; and U+11A7, which
 * does not, but which utf8proc 2.8 swallows behind a Hangul syllable. */
static const uint32_t staying[][2] = {
    {0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},
    {0x9FE, 0x9FE},     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},
    {0x11A7, 0x11A7},   {0x1715, 0x1715},   {0x1ABF, 0x1AF0},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x105C9, 0x105C9}, {0x105D2, 0x105D2}, {0x105DA, 0x105DA},
    {0x105E4, 0x105E4}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
    {0x10ECB, 0x10ECF}, {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11382, 0x11385},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x11391}, {0x113B8, 0x113B8},
    {0x113BB, 0x113BB}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C9},
    {0x113CE, 0x113D0}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x1611E, 0x16129}, {0x1612F, 0x1612F}, {0x16D63, 0x16D63}, {0x16D67, 0x16D6A},
    {0x16FF0, 0x16FF1}, {0x1D127, 0x1D128}, {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C},
    {0x1D25F, 0x1D25F}, {0x1D280, 0x1D281}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
    {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
};

static bool stays(uint32_t c)
{
    size_t low = 0, high = sizeof staying / sizeof *staying;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > staying[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof staying / sizeof *staying && c >= staying[low][0];
}

struct normalizer *normalizer_create(void)
{
    return zf_calloc(1, sizeof(struct normalizer));
}

void normalizer_free(struct normalizer *n)
{
    if (!n)
        return;
    for (int i = 0; i < n->n_steps; i++) {
        free(n->steps[i].pattern);
        free(n->steps[i].content);
    }
    free(n->steps);
    free(n);
}

static void add(struct normalizer *n, enum kind kind, const char *pattern, const char *content)
{
    n->steps = zf_realloc(n->steps, ((size_t)n->n_steps + 1) * sizeof *n->steps);
    n->steps[n->n_steps++] = (struct step){kind, pattern ? zf_strdup(pattern) : NULL,
                                           content ? zf_strdup(content) : NULL};
}

void normalizer_add_nfc(struct normalizer *n)
{
    add(n, NFC, NULL, NULL);
}

void normalizer_add_prepend(struct normalizer *n, const char *text)
{
    add(n, PREPEND, NULL, text);
}

void normalizer_add_replace(struct normalizer *n, const char *pattern, const char *content)
{
    add(n, REPLACE, pattern, content);
}

static bool is_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool normalizer_is_same(const struct normalizer *a, const struct normalizer *b)
{
    bool same = a->n_steps == b->n_steps;
    for (int i = 0; same && i < a->n_steps; i++)
        same = a->steps[i].kind == b->steps[i].kind &&
               is_same_text(a->steps[i].pattern, b->steps[i].pattern) &&
               is_same_text(a->steps[i].content, b->steps[i].content);
    return same;
}

/* A text that grows. */
struct string {
    char *text;
    size_t n, capacity;
};

static void append(struct string *s, const char *text, size_t n)
{
    if (s->n + n + 1 > s->capacity) {
        s->capacity = 2 * s->capacity + n + 1;
        s->text = zf_realloc(s->text, s->capacity);
    }
    memcpy(s->text + s->n, text, n);
    s->n += n;
}

/* The canonical combining class of the character at the start of valid UTF-8: 0, or that of a mark,
 * by which marks in a row are sorted. */
static int class_at(const char *text, size_t n, size_t *length)
{
    uint32_t c = 0;
    *length = utf8_decode(text, n, &c);
    return c < FIRST_MARK ? 0 : utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

/* Writes a row of marks, sorted. */
static void put_sorted(char *to, const char *marks, size_t n)
{
    bool there[256] = {false};
    for (size_t i = 0, length; i < n; i += length)
        there[class_at(marks + i, n - i, &length)] = true;
    for (int wanted = 1; wanted < 256; wanted++) {
        if (!there[wanted])
            continue;
        for (size_t i = 0, length; i < n; i += length)
            if (class_at(marks + i, n - i, &length) == wanted)
                to = mempcpy(to, marks + i, length);
    }
}

/* A copy in which long rows of marks are sorted, or NULL where there is none: utf8proc takes
 * quadratic time for them. */
static char *sort_long_rows(const char *text, size_t n)
{
    char *copy = NULL;
    size_t length = 0;
    for (size_t i = 0, end; i < n; i = end) {
        int marks = 0;
        for (end = i; end < n && class_at(text + end, n - end, &length); end += length)
            marks++;
        if (marks >= LONG_ROW) {
            copy = copy ? copy : memcpy(zf_malloc(n), text, n);
            put_sorted(copy + i, text + i, end - i);
        }
        end += marks ? 0 : length;
    }
    return copy;
}

/* Appends form C of valid UTF-8 without characters that stay. */
static void append_nfc(struct string *s, const char *text, size_t n)
{
    utf8proc_uint8_t *form = NULL;
    if (n == 0)
        return;
    char *sorted = sort_long_rows(text, n);
    const utf8proc_uint8_t *source = (const utf8proc_uint8_t *)(sorted ? sorted : text);
    utf8proc_ssize_t length =
        utf8proc_map(source, (utf8proc_ssize_t)n, &form, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (length == UTF8PROC_ERROR_NOMEM)
        zf_out_of_memory();
    if (length < 0)
        append(s, text, n);
    else
        append(s, (const char *)form, (size_t)length);
    free(sorted);
    free(form);
}

static bool may_change(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= FIRST_BYTE_OF_MARKS)
            return true;
    return false;
}

static char *form_c(const char *text, size_t n, size_t *n_out)
{
    struct string s = {0};
    size_t start = 0;
    if (!may_change(text, n))
        return NULL;
    for (size_t i = 0, length; i < n; i += length) {
        uint32_t c;
        length = utf8_decode(text + i, n - i, &c);
        if (length && !stays(c))
            continue;
        length += !length;
        append_nfc(&s, text + start, i - start);
        append(&s, text + i, length);
        start = i + length;
    }
    append_nfc(&s, text + start, n - start);
    *n_out = s.n;
    return s.text;
}

static char *prepend(const char *front, const char *text, size_t n, size_t *n_out)
{
    struct string s = {0};
    append(&s, front, strlen(front));
    append(&s, text, n);
    *n_out = s.n;
    return s.text;
}

static char *replace(const struct step *step, const char *text, size_t n, size_t *n_out)
{
    struct string s = {0};
    size_t length = strlen(step->pattern);
    const char *end = text + n, *next;
    for (; (next = memmem(text, (size_t)(end - text), step->pattern, length));
         text = next + length) {
        append(&s, text, (size_t)(next - text));
        append(&s, step->content, strlen(step->content));
    }
    if (s.text) /* there was a match */
        append(&s, text, (size_t)(end - text));
    *n_out = s.n;
    return s.text;
}

static char *run_step(const struct step *step, const char *text, size_t n, size_t *n_out)
{
    switch (step->kind) {
    case NFC:
        return form_c(text, n, n_out);
    case PREPEND:
        return prepend(step->content, text, n, n_out);
    case REPLACE:
        return replace(step, text, n, n_out);
    }
    return NULL;
}

char *normalizer_run(const struct normalizer *n, const char *text, size_t n_text, size_t *n_out)
{
    char *now = NULL;
    *n_out = n_text;
    for (int i = 0; i < n->n_steps && *n_out; i++) {
        size_t length;
        char *next = run_step(&n->steps[i], now ? now : text, *n_out, &length);
        if (!next)
            continue;
        free(now);
        now = next;
        *n_out = length;
    }
    return now;
}
