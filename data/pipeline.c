#include "data/pipeline.h"

#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

struct pipeline *pipeline_create(void)
{
    struct pipeline *p = zf_calloc(1, sizeof *p);
    p->normalizer = normalizer_create();
    p->splitter = splitter_create();
    p->bpe = bpe_create();
    p->eos = p->pad = -1;
    return p;
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    added_free(&p->added);
    normalizer_free(p->normalizer);
    splitter_free(p->splitter);
    bpe_free(p->bpe);
    free(p);
}

const char *pipeline_difference(const struct pipeline *a, const struct pipeline *b)
{
    return !normalizer_is_same(a->normalizer, b->normalizer) ? "normalizer"
           : !splitter_is_same(a->splitter, b->splitter)     ? "pre_tokenizer"
           : !bpe_has_same_rules(a->bpe, b->bpe)             ? "model"
           : !added_is_same(&a->added, &b->added)            ? "added_tokens"
                                                             : NULL;
}

/* Where a call's ids go. A word is encoded in place while its longest result fits, else in scratch
 * memory first. */
struct sink {
    const struct pipeline *p;
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
        sink->n += bpe_encode_word(sink->p->bpe, word, n, sink->ids + sink->n);
        return;
    }
    if (n > sink->scratch_capacity) {
        sink->scratch_capacity = 2 * n;
        sink->scratch = zf_realloc(sink->scratch, 2 * n * sizeof *sink->scratch);
    }
    size_t n_ids = bpe_encode_word(sink->p->bpe, word, n, sink->scratch);
    for (size_t i = 0; i < n_ids; i++)
        emit_id(sink, sink->scratch[i]);
}

/* Added tokens are found twice: in the text, and in what is left of it, normalized. `first`: it
 * begins where the whole text does. */
enum pass { IN_TEXT, IN_NORMALIZED };

static void encode_pass(struct sink *sink, enum pass pass, const char *text, size_t n, bool first);

static void encode_normalized(struct sink *sink, const char *text, size_t n, bool first)
{
    size_t length;
    char *normalized = normalizer_run(sink->p->normalizer, text, n, &length);
    encode_pass(sink, IN_NORMALIZED, normalized ? normalized : text, length, first);
    free(normalized);
}

static void encode_rest(struct sink *sink, enum pass pass, const char *text, size_t n, bool first)
{
    if (n == 0)
        return;
    if (pass == IN_TEXT)
        encode_normalized(sink, text, n, first);
    else
        splitter_run(sink->p->splitter, text, n, first, emit_word, sink);
}

/* Takes one pass' added tokens out of the text; the rest goes to the next pass. */
static void encode_pass(struct sink *sink, enum pass pass, const char *text, size_t n, bool first)
{
    size_t start = 0, next = 0; /* of what is not encoded yet; where the search goes on */
    struct added_match m;
    bool late = pass == IN_NORMALIZED;
    for (; added_find(&sink->p->added, late, text, n, start, next, &m); next = m.next) {
        encode_rest(sink, pass, text + start, m.start - start, first && start == 0);
        emit_id(sink, m.token->id);
        start = m.end;
    }
    if (start < n)
        encode_rest(sink, pass, text + start, n - start, first && start == 0);
}

size_t pipeline_encode(const struct pipeline *p, const char *text, size_t n, int *ids,
                       size_t capacity)
{
    struct sink sink = {.p = p, .ids = ids, .capacity = capacity};
    encode_pass(&sink, IN_TEXT, text, n, true);
    free(sink.scratch);
    return sink.n;
}

char *pipeline_decode(const struct pipeline *p, const int *ids, size_t n, size_t *bytes)
{
    size_t total = 0, n_tokens = (size_t)bpe_n_tokens(p->bpe);
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && (size_t)ids[i] < n_tokens)
            total += bpe_token_text(p->bpe, ids[i], NULL);
    char *text = zf_malloc(total + 1), *end = text;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && (size_t)ids[i] < n_tokens)
            end += bpe_token_text(p->bpe, ids[i], end);
    *end = 0;
    *bytes = total;
    if (p->drops_first_space && *text == ' ')
        memmove(text, text + 1, (*bytes)--);
    return text;
}
