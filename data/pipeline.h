/* A tokenizer as Hugging Face's tokenizers have them: added tokens are found in the text, what lies
 * between them is normalized and split into words, and words become tokens by BPE. The stages and
 * their order are theirs, and so are the ids.
 *
 * A byte that is not UTF-8 is encoded as that byte where there is a token for it, so that decoding
 * gives the text back. */
#ifndef ZF_DATA_PIPELINE_H
#define ZF_DATA_PIPELINE_H

#include "data/added.h"
#include "data/bpe.h"
#include "data/normalize.h"
#include "data/split.h"
#include "data/template.h"

struct pipeline {
    struct added_tokens added;
    struct normalizer *normalizer;
    struct splitter *splitter;
    struct bpe *bpe;
    struct token_template single,
        pair;          /* what is put around one text, and around and between two */
    int eos, pad;      /* ids, or -1 */
    const char *class; /* what describes it in tokenizer_config.json */
    bool needs_class;  /* its own file says another one, or none */
    bool add_prefix_space;
    bool drops_first_space; /* decoding leaves out a space at the start, which encoding put there */
};

struct pipeline *pipeline_create(void);
void pipeline_free(struct pipeline *p);

/* What one of two with the same tables has otherwise, in tokenizer.json's words; NULL: nothing. */
const char *pipeline_difference(const struct pipeline *a, const struct pipeline *b);

/* As tokenizer_encode and tokenizer_decode. */
size_t pipeline_encode(const struct pipeline *p, const char *text, size_t n, int *ids,
                       size_t capacity);
char *pipeline_decode(const struct pipeline *p, const int *ids, size_t n, size_t *bytes);

#endif
