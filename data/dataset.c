#include "data/batch.h"

#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

/* Examples that one thread tokenizes at a time, so that threads share the work evenly. */
#define CHUNK_EXAMPLES 512

/* The tokens of one chunk, until it is known where they go. */
struct chunk {
    int *tokens;
    size_t n, capacity;
};

static void reserve(struct chunk *c, size_t more)
{
    if (c->capacity - c->n >= more)
        return;
    c->capacity = 2 * c->capacity + more;
    c->tokens = zf_realloc(c->tokens, c->capacity * sizeof *c->tokens);
}

/* Appends a text's ids and returns how many there are. There is room for one more after them. */
static size_t append_text(struct chunk *c, const char *text, size_t bytes,
                          const struct tokenizer *t)
{
    reserve(c, bytes + 2);
    size_t room = c->capacity - c->n - 1;
    size_t n = tokenizer_encode(t, text, bytes, c->tokens + c->n, room);
    if (n > room) { /* rare: normalisation may lengthen a text */
        reserve(c, n + 1);
        n = tokenizer_encode(t, text, bytes, c->tokens + c->n, n);
    }
    c->n += n;
    return n;
}

/* How Hugging Face's "longest_first" shares out max_length: the shorter sentence keeps up to half
 * of it (rounded down), the longer one the rest. Of equal ones the second counts as longer. */
static void truncate_lengths(size_t *first, size_t *second, size_t max_length)
{
    if (*first + *second <= max_length)
        return;
    size_t *shorter = *first > *second ? second : first;
    size_t *longer = *first > *second ? first : second;
    if (*shorter > max_length / 2)
        *shorter = max_length / 2;
    *longer = max_length - *shorter;
}

static void append_ids(struct chunk *c, const int *ids, int n)
{
    reserve(c, (size_t)n + 1);
    memcpy(c->tokens + c->n, ids, (size_t)n * sizeof *ids);
    c->n += (size_t)n;
}

/* Appends one example's tokens, cut to max_length, and returns how many there are. What belongs
 * around its texts is kept, unless max_length has no room for it. */
static size_t append_example(struct chunk *c, const struct glue_example *example,
                             const struct tokenizer *t, size_t max_length)
{
    const char *one = example->sentence[0], *other = example->sentence[1];
    const struct token_template around = tokenizer_template(t, other != NULL);
    size_t start = c->n, n_around = (size_t)around.n;
    append_ids(c, around.ids, around.before);
    size_t first = append_text(c, one, strlen(one), t);
    size_t second = other ? append_text(c, other, strlen(other), t) : 0;
    size_t second_at = c->n - second;
    truncate_lengths(&first, &second, max_length > n_around ? max_length - n_around : 0);
    c->n = start + (size_t)around.before + first;
    reserve(c, n_around + second + 1);
    int *between = c->tokens + c->n;
    int n_between = around.between - around.before;
    memmove(between + n_between, c->tokens + second_at, second * sizeof *c->tokens);
    memcpy(between, around.ids + around.before, (size_t)n_between * sizeof *between);
    c->n += (size_t)n_between + second;
    append_ids(c, around.ids + around.between, around.n - around.between);
    if (c->n - start > max_length)
        c->n = start + max_length;
    if (c->n == start) {
        int end_of_text = tokenizer_eos(t);
        c->tokens[c->n++] = end_of_text >= 0 ? end_of_text : 0;
    }
    return c->n - start;
}

/* Turns start[i + 1], which holds the length of sequence i, into offsets. */
static void sum_lengths(struct dataset *d)
{
    for (int i = 0; i < d->n_sequences; i++) {
        if (d->start[i + 1] > (size_t)d->max_length)
            d->max_length = (int)d->start[i + 1];
        d->start[i + 1] += d->start[i];
    }
}

void dataset_from_glue(struct dataset *d, const struct glue_data *data, const struct tokenizer *t,
                       int max_length)
{
    int n = data->n_examples, n_chunks = (n + CHUNK_EXAMPLES - 1) / CHUNK_EXAMPLES;
    struct chunk *chunks = zf_calloc((size_t)n_chunks, sizeof *chunks);
    *d = (struct dataset){.n_sequences = n};
    d->start = zf_calloc((size_t)n + 1, sizeof *d->start);
    d->label = zf_malloc((size_t)n * sizeof *d->label);

#pragma omp parallel for schedule(dynamic)
    for (int c = 0; c < n_chunks; c++) {
        for (int i = c * CHUNK_EXAMPLES; i < n && i < (c + 1) * CHUNK_EXAMPLES; i++) {
            d->start[i + 1] = append_example(&chunks[c], &data->examples[i], t, (size_t)max_length);
            d->label[i] = data->examples[i].label;
        }
    }
    sum_lengths(d);
    d->tokens = zf_malloc(d->start[n] * sizeof *d->tokens);
    for (int c = 0; c < n_chunks; c++) {
        memcpy(d->tokens + d->start[c * CHUNK_EXAMPLES], chunks[c].tokens,
               chunks[c].n * sizeof *d->tokens);
        free(chunks[c].tokens);
    }
    free(chunks);
}

struct checksum dataset_checksum(const struct dataset *d)
{
    const size_t n = (size_t)d->n_sequences, first = n ? d->start[0] : 0;
    const size_t tokens = n ? d->start[n] - first : 0;
    struct checksum sum = checksum_of(d->tokens + first, sizeof *d->tokens * tokens);
    for (size_t i = 0; i < n; i++) { /* lengths: where they begin may differ in a part of a text */
        const uint64_t length = d->start[i + 1] - d->start[i];
        sum = checksum_join(sum, checksum_of(&length, sizeof length));
    }
    if (d->learned)
        sum = checksum_join(sum, checksum_of(d->learned + first, tokens));
    return d->label ? checksum_join(sum, checksum_of(d->label, sizeof *d->label * n)) : sum;
}

void dataset_free(struct dataset *d)
{
    free(d->tokens);
    free(d->start);
    free(d->label);
    free(d->learned);
    *d = (struct dataset){0};
}

long dataset_targets(const struct dataset *d, int i)
{
    long n = 0;
    if (!d->learned)
        return (long)(d->start[i + 1] - d->start[i]) - 1;
    for (size_t k = d->start[i] + 1; k < d->start[i + 1]; k++)
        n += d->learned[k];
    return n;
}
