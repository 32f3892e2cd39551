/* From examples to batches: datasets of token sequences, the deterministic order in which an epoch
 * visits them, and batches as flat token streams.
 *
 * A batch is a stream of tokens with sequence offsets. There is no padding anywhere. */
#ifndef ZF_DATA_BATCH_H
#define ZF_DATA_BATCH_H

#include "data/checksum.h"
#include "data/glue.h"
#include "data/tokenizer.h"

#include <stdint.h>

#define TARGET_IGNORE (-100) /* a token without a target, as in PyTorch's cross-entropy */

/* Token sequences, one behind the other. */
struct dataset {
    int n_sequences;
    int *tokens;            /* (start[n_sequences]) */
    size_t *start;          /* (n_sequences + 1) */
    float *label;           /* (n_sequences): label id or score; NULL for language modelling */
    unsigned char *learned; /* (start[n_sequences]), of language modelling: 1 where a token is to be
                               predicted; NULL: everywhere */
    int max_length;         /* of the longest sequence, in tokens */
};

/* Tokenizes examples in parallel, as run_glue.py does: a pair is the first sentence's ids and then
 * the second's, with the tokens around and between them that the tokenizer's template has. Longer
 * than max_length: tokens are dropped from the end of the longer sentence first ("longest_first").
 * An example without tokens becomes one end-of-text token (id 0 where the tokenizer has none). */
void dataset_from_glue(struct dataset *d, const struct glue_data *data, const struct tokenizer *t,
                       int max_length);
/* How many tokens of sequence i a language model is to predict: those that are learned, but the
 * first one. */
long dataset_targets(const struct dataset *d, int i);
void dataset_free(struct dataset *d);
/* Of its tokens, where sequences begin, and labels. */
struct checksum dataset_checksum(const struct dataset *d);

/* order: (n), a permutation of 0..n-1 that depends on (seed, epoch) alone. */
void sampler_shuffle(int *order, int n, uint64_t seed, int epoch);

/* The slice of a step's examples that one rank takes in one micro-batch. A step takes
 * train_batch_size = micro_batch * accumulation * ranks examples of the epoch's order, the epoch's
 * last step what is left. Rank r's micro-batch m is examples [first, first + count) of the step,
 * where first = (m * ranks + r) * micro_batch; count may be 0 in the last step. So every example
 * is taken once an epoch, whatever the number of ranks. */
struct slice {
    int first; /* within the step */
    int count;
};
struct slice sampler_slice(int step_examples, int micro_batch, int ranks, int rank, int m);

struct batch {
    int n_tokens, n_seqs;
    int *tokens;         /* (n_tokens) ids */
    int *position;       /* (n_tokens) from 0 in each sequence */
    int *seq_start;      /* (n_seqs + 1) offsets into tokens */
    uint32_t *token_seq; /* (n_tokens) number of the token's sequence within the step, over all
                            ranks and micro-batches: the dropout generator's counter */
    int *targets;        /* classification: (n_seqs) label ids, TARGET_IGNORE in a test split;
                            language modelling: (n_tokens) the next token's id, TARGET_IGNORE on a
                            sequence's last and where that is not learned; regression: NULL */
    float *scores;       /* regression: (n_seqs), -1 in a test split; else NULL */
    int n_items;         /* what the loss averages over: sequences, or tokens with a target */
    int capacity_tokens, capacity_seqs;
};

/* Room for batches of at most this many tokens and sequences. */
void batch_init(struct batch *b, int capacity_tokens, int capacity_seqs);
void batch_free(struct batch *b);
/* n of them. */
struct batch *batches_create(int n, int capacity_tokens, int capacity_seqs);
void batches_free(struct batch *batches, int n);
/* Fills b with sequences index[0..count) of d; `first` is the first one's number within the step.
 * n_labels: 0 language modelling, 1 regression, more: classification; the same in every call. */
void batch_fill(struct batch *b, const struct dataset *d, const int *index, int count, int first,
                int n_labels);

#endif
