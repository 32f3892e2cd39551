#include "data/added.h"

#include "data/alloc.h"
#include "data/split.h"
#include "data/utf8.h"

#include <stdlib.h>
#include <string.h>

void added_free(struct added_tokens *a)
{
    for (int i = 0; i < a->n; i++) {
        free(a->tokens[i].text);
        free(a->tokens[i].found);
    }
    free(a->tokens);
    *a = (struct added_tokens){0};
}

struct added_token *added_note(struct added_tokens *a, const char *text, bool *is_new)
{
    *is_new = false;
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->tokens[i].text, text) == 0)
            return &a->tokens[i];
    *is_new = true;
    a->tokens = zf_realloc(a->tokens, ((size_t)a->n + 1) * sizeof *a->tokens);
    struct added_token *t = &a->tokens[a->n++];
    *t = (struct added_token){.text = zf_strdup(text), .id = -1};
    return t;
}

static bool is_same_token(const struct added_token *a, const struct added_token *b)
{
    return strcmp(a->text, b->text) == 0 && a->id == b->id && a->strip_left == b->strip_left &&
           a->strip_right == b->strip_right && a->single_word == b->single_word &&
           a->late == b->late;
}

bool added_is_same(const struct added_tokens *a, const struct added_tokens *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++) {
        same = false;
        for (int j = 0; !same && j < b->n; j++)
            same = is_same_token(&a->tokens[i], &b->tokens[j]);
    }
    return same;
}

/* By first byte, and the longest first. */
static int in_order(const void *a, const void *b)
{
    const struct added_token *left = a, *right = b;
    int first = (unsigned char)*left->found - (unsigned char)*right->found;
    return first ? first : (left->n < right->n) - (left->n > right->n);
}

void added_index(struct added_tokens *a)
{
    for (int i = 0; i < a->n; i++) {
        struct added_token *t = &a->tokens[i];
        if (!t->found)
            t->found = zf_strdup(t->text);
        t->n = strlen(t->found);
    }
    if (a->n)
        qsort(a->tokens, (size_t)a->n, sizeof *a->tokens, in_order);
    for (int i = 0; i < a->n; i++) {
        int byte = (unsigned char)*a->tokens[i].found, late = a->tokens[i].late;
        a->first[byte + 1] = i + 1;
        a->n_begins[late] += !a->begins[late][byte];
        a->begins[late][byte] = true;
        a->begin[late] = byte;
    }
    for (int byte = 0; byte < 256; byte++)
        if (a->first[byte + 1] < a->first[byte])
            a->first[byte + 1] = a->first[byte];
}

/* The next byte from i on with which a token begins, or n. */
static size_t next_begin(const struct added_tokens *a, bool late, const char *text, size_t i,
                         size_t n)
{
    if (a->n_begins[late] == 0 || i >= n)
        return n;
    if (a->n_begins[late] == 1) {
        const char *found = memchr(text + i, a->begin[late], n - i);
        return found ? (size_t)(found - text) : n;
    }
    while (i < n && !a->begins[late][(unsigned char)text[i]])
        i++;
    return i;
}

/* Where the white space that ends at `end` begins, not before `least`. */
static size_t space_before(const char *text, size_t least, size_t end)
{
    uint32_t c;
    for (size_t length = 1; length <= 3 && end >= least + length; length++)
        if (utf8_decode(text + end - length, length, &c) == length && utf8_is_space(c)) {
            end -= length;
            length = 0;
        }
    return end;
}

/* Where the white space that begins at `start` ends. */
static size_t space_after(const char *text, size_t start, size_t n)
{
    uint32_t c;
    while (start < n) {
        size_t length = utf8_decode(text + start, n - start, &c);
        if (!length || !utf8_is_space(c))
            break;
        start += length;
    }
    return start;
}

static bool word_before(const char *text, size_t end)
{
    uint32_t c;
    for (size_t length = 1; length <= 4 && length <= end; length++)
        if (utf8_decode(text + end - length, length, &c) == length)
            return split_is_word(c);
    return false;
}

static bool word_after(const char *text, size_t start, size_t n)
{
    uint32_t c;
    return start < n && utf8_decode(text + start, n - start, &c) && split_is_word(c);
}

/* The longest one of this kind that begins here, or NULL. */
static const struct added_token *added_at(const struct added_tokens *a, bool late, const char *text,
                                          size_t n)
{
    int byte = (unsigned char)*text;
    for (int i = a->first[byte]; i < a->first[byte + 1]; i++) {
        const struct added_token *t = &a->tokens[i];
        if (t->late == late && t->n <= n && memcmp(text, t->found, t->n) == 0)
            return t;
    }
    return NULL;
}

bool added_find(const struct added_tokens *a, bool late, const char *text, size_t n, size_t start,
                size_t next, struct added_match *m)
{
    for (size_t i = next; (i = next_begin(a, late, text, i, n)) < n; i = next) {
        const struct added_token *t = added_at(a, late, text + i, n - i);
        next = i + (t ? t->n : 1);
        if (!t || (t->single_word && (word_before(text, i) || word_after(text, next, n))))
            continue;
        *m = (struct added_match){t, i, next, next};
        /* White space that the token before took along may have reached as far as here. */
        if (t->strip_left || i < start)
            m->start = i > start ? space_before(text, start, i) : start;
        if (t->strip_right)
            m->end = space_after(text, next, n);
        return true;
    }
    return false;
}
