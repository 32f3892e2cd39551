#include "data/byte_level.h"

#include "data/alloc.h"
#include "data/utf8.h"

#include <stdlib.h>
#include <string.h>

void byte_level_free(struct byte_level *b)
{
    if (!b)
        return;
    bpe_free(b->bpe);
    splitter_free(b->splitter);
    for (int i = 0; i < b->n_added; i++)
        free(b->added[i].text);
    free(b->added);
    free(b);
}

/* Where a call's ids go. A word is encoded in place while its longest result fits, else in scratch
 * memory first. */
struct sink {
    const struct byte_level *b;
    int *ids;
    size_t n, capacity; /* n counts on beyond the capacity */
    int *scratch;
    size_t scratch_capacity;
};

static void emit_id(struct sink *sink, int id)
{
    if (sink->n < sink->capacity)
        sink->ids[sink->n] = id;
    sink->n++;
}

static void emit_word(void *context, const char *word, size_t n)
{
    struct sink *sink = context;
    if (sink->n + n <= sink->capacity) {
        sink->n += bpe_encode_word(sink->b->bpe, word, n, sink->ids + sink->n);
        return;
    }
    if (n > sink->scratch_capacity) {
        sink->scratch_capacity = 2 * n;
        sink->scratch = zf_realloc(sink->scratch, 2 * n * sizeof *sink->scratch);
    }
    size_t n_ids = bpe_encode_word(sink->b->bpe, word, n, sink->scratch);
    for (size_t i = 0; i < n_ids; i++)
        emit_id(sink, sink->scratch[i]);
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

/* The longest added token of this pass that begins here, or NULL. */
static const struct added_token *added_at(const struct byte_level *b, bool late, const char *text,
                                          size_t n)
{
    for (int i = 0; i < b->n_added; i++) {
        const struct added_token *t = &b->added[i];
        if (t->late == late && t->n <= n && memcmp(text, t->text, t->n) == 0)
            return t;
    }
    return NULL;
}

/* Takes one pass' added tokens out of the text; the rest goes to the next pass, and then to the
 * splitter. */
static void encode_pass(struct sink *sink, int pass, const char *text, size_t n)
{
    if (pass == 2) {
        splitter_run(sink->b->splitter, text, n, emit_word, sink);
        return;
    }
    size_t start = 0; /* of what is not encoded yet */
    for (size_t i = 0; i < n;) {
        const struct added_token *t = NULL;
        if (sink->b->starts_added[(unsigned char)text[i]])
            t = added_at(sink->b, pass == 1, text + i, n - i);
        if (!t) {
            i++;
            continue;
        }
        /* White space that the token before took along may have reached as far as here. */
        size_t end = i > start ? (t->strip_left ? space_before(text, start, i) : i) : start;
        encode_pass(sink, pass + 1, text + start, end - start);
        emit_id(sink, t->id);
        i += t->n;
        start = t->strip_right ? space_after(text, i, n) : i;
    }
    if (start < n)
        encode_pass(sink, pass + 1, text + start, n - start);
}

size_t byte_level_encode(const struct byte_level *b, const char *text, size_t n, int *ids,
                         size_t capacity)
{
    struct sink sink = {.b = b, .ids = ids, .capacity = capacity};
    encode_pass(&sink, 0, text, n);
    free(sink.scratch);
    return sink.n;
}

char *byte_level_decode(const struct byte_level *b, const int *ids, size_t n, size_t *bytes)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < bpe_n_tokens(b->bpe))
            total += bpe_token_text(b->bpe, ids[i], NULL);
    char *text = zf_malloc(total + 1), *end = text;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < bpe_n_tokens(b->bpe))
            end += bpe_token_text(b->bpe, ids[i], end);
    *end = 0;
    *bytes = total;
    return text;
}
