#include "data/batch.h"

#include "data/alloc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void batch_init(struct batch *b, int capacity_tokens, int capacity_seqs)
{
    size_t n_tokens = (size_t)capacity_tokens, n_seqs = (size_t)capacity_seqs;
    *b = (struct batch){.capacity_tokens = capacity_tokens, .capacity_seqs = capacity_seqs};
    b->tokens = zf_malloc(n_tokens * sizeof *b->tokens);
    b->position = zf_malloc(n_tokens * sizeof *b->position);
    b->token_seq = zf_malloc(n_tokens * sizeof *b->token_seq);
    b->seq_start = zf_calloc(n_seqs + 1, sizeof *b->seq_start);
}

void batch_free(struct batch *b)
{
    free(b->tokens);
    free(b->position);
    free(b->token_seq);
    free(b->seq_start);
    free(b->targets);
    free(b->scores);
    *b = (struct batch){0};
}

struct batch *batches_create(int n, int capacity_tokens, int capacity_seqs)
{
    struct batch *batches = zf_malloc(sizeof *batches * (size_t)n);
    for (int i = 0; i < n; i++)
        batch_init(&batches[i], capacity_tokens, capacity_seqs);
    return batches;
}

void batches_free(struct batch *batches, int n)
{
    for (int i = 0; i < n; i++)
        batch_free(&batches[i]);
    free(batches);
}

static void append_sequence(struct batch *b, const struct dataset *d, int i, uint32_t number)
{
    size_t start = d->start[i];
    int length = (int)(d->start[i + 1] - start);
    assert(b->n_seqs < b->capacity_seqs && b->n_tokens + length <= b->capacity_tokens);
    memcpy(b->tokens + b->n_tokens, d->tokens + start, (size_t)length * sizeof *b->tokens);
    for (int k = 0; k < length; k++) {
        b->position[b->n_tokens + k] = k;
        b->token_seq[b->n_tokens + k] = number;
    }
    b->n_tokens += length;
    b->seq_start[++b->n_seqs] = b->n_tokens;
}

/* Every token's target is the one behind it in its sequence, if that is learned. */
static void fill_next_tokens(struct batch *b, const struct dataset *d, const int *index)
{
    if (!b->targets)
        b->targets = zf_malloc((size_t)b->capacity_tokens * sizeof *b->targets);
    b->n_items = 0;
    for (int s = 0; s < b->n_seqs; s++) {
        const int first = b->seq_start[s], last = b->seq_start[s + 1] - 1;
        const unsigned char *learned = d->learned ? d->learned + d->start[index[s]] : NULL;
        for (int i = first; i < last; i++) {
            bool is_target = !learned || learned[i + 1 - first];
            b->targets[i] = is_target ? b->tokens[i + 1] : TARGET_IGNORE;
            b->n_items += is_target;
        }
        b->targets[last] = TARGET_IGNORE;
    }
}

static void fill_labels(struct batch *b, const struct dataset *d, const int *index)
{
    if (!b->targets)
        b->targets = zf_malloc((size_t)b->capacity_seqs * sizeof *b->targets);
    for (int s = 0; s < b->n_seqs; s++) {
        float label = d->label[index[s]];
        b->targets[s] = label >= 0 ? (int)label : TARGET_IGNORE;
    }
}

static void fill_scores(struct batch *b, const struct dataset *d, const int *index)
{
    if (!b->scores)
        b->scores = zf_malloc((size_t)b->capacity_seqs * sizeof *b->scores);
    for (int s = 0; s < b->n_seqs; s++)
        b->scores[s] = d->label[index[s]];
}

void batch_fill(struct batch *b, const struct dataset *d, const int *index, int count, int first,
                int n_labels)
{
    b->n_tokens = b->n_seqs = 0;
    b->seq_start[0] = 0;
    for (int i = 0; i < count; i++)
        append_sequence(b, d, index[i], (uint32_t)(first + i));
    b->n_items = b->n_seqs;
    if (n_labels == 0)
        fill_next_tokens(b, d, index);
    else if (n_labels == 1)
        fill_scores(b, d, index);
    else
        fill_labels(b, d, index);
}
