/* GPT-2's byte-level BPE as a whole: added tokens are found in the text, what lies between them is
 * split into words, and words become tokens. The stages and their order are those of Hugging
 * Face's tokenizers, and so are the ids.
 *
 * A byte that is not UTF-8 is encoded as that byte, so that decoding always gives the text back. */
#ifndef ZF_DATA_BYTE_LEVEL_H
#define ZF_DATA_BYTE_LEVEL_H

#include "data/bpe.h"
#include "data/split.h"

#include <stdbool.h>

/* A token that is found in the text before anything else looks at it, such as "<|endoftext|>". */
struct added_token {
    char *text;
    size_t n;
    int id;
    bool strip_left, strip_right; /* it takes the white space beside it along */
    bool late; /* found only in what the others have left ("normalized" in tokenizer.json) */
};

struct byte_level {
    struct bpe *bpe;
    struct splitter *splitter;
    struct added_token *added; /* longest text first */
    int n_added;
    bool starts_added[256]; /* whether an added token starts with this byte */
    int eos;                /* id, or -1 */
    bool add_prefix_space;
};

/* From `directory`/tokenizer.json. */
struct byte_level *byte_level_load_json(const char *directory, struct zf_error *err);
/* From vocab.json and merges.txt there. */
struct byte_level *byte_level_load_vocab(const char *directory, struct zf_error *err);
void byte_level_free(struct byte_level *b);

/* As tokenizer_encode and tokenizer_decode. */
size_t byte_level_encode(const struct byte_level *b, const char *text, size_t n, int *ids,
                         size_t capacity);
char *byte_level_decode(const struct byte_level *b, const int *ids, size_t n, size_t *bytes);

#endif
