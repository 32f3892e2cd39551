/* Byte-pair encoding of one word: the vocabulary, the merges, and the loop that applies them
 * (Sennrich, Haddow and Birch, "Neural machine translation of rare words with subword units", ACL
 * 2016). A word's first tokens are its bytes, as in GPT-2, or its characters, as in Llama-2.
 *
 * Where they are bytes, files spell a byte as a character that can be seen ("\u0120" is a space);
 * the word given to bpe_encode_word and the text from bpe_token_text are the bytes themselves.
 * Where they are characters, files spell a space as METASPACE, and so do words; the text from
 * bpe_token_text has spaces. */
#ifndef ZF_DATA_BPE_H
#define ZF_DATA_BPE_H

#include "data/error.h"

#include <stdbool.h>
#include <stddef.h>

#define METASPACE "\xE2\x96\x81" /* U+2581, a lower block */

struct bpe;

/* In the words of tokenizer.json's "model". */
struct bpe_rules {
    bool characters;       /* first tokens are characters, not bytes */
    bool byte_fallback;    /* a character without a token becomes its bytes, spelled "<0x0A>" */
    bool fuse_unk;         /* unknown characters in a row become one unknown token */
    bool ignore_merges;    /* a word that is a token as it stands is not merged */
    const char *unk_token; /* what an unknown byte or character becomes; NULL: it is left out */
};

/* Building: create, add every token, index, add the merges in order of rank. */
struct bpe *bpe_create(void);
void bpe_free(struct bpe *b);
/* `literal`: the text stands for itself (an added token); else its characters stand for bytes.
 * A text that was added already keeps its first kind. */
void bpe_add_token(struct bpe *b, const char *text, size_t n, long id, bool literal);
/* Fails where ids are not 0 to n - 1, each once, or an unknown token is needed and there is none.
 * `path` is for messages; rules are not needed after the call. */
bool bpe_index(struct bpe *b, const struct bpe_rules *rules, const char *path,
               struct zf_error *err);
/* Whether first tokens are bytes and byte_fallback would make something of one that has no token;
 * bpe_encode_word does not. */
bool bpe_falls_back_from_bytes(const struct bpe *b);
/* Fails where a part, or what both make together, is no token, or the merge is there already. */
bool bpe_add_merge(struct bpe *b, const char *left, size_t n_left, const char *right,
                   size_t n_right, struct zf_error *err);

/* Whether both go by the same rules, of two with the same tokens. */
bool bpe_has_same_rules(const struct bpe *a, const struct bpe *b);

int bpe_n_tokens(const struct bpe *b);
/* The id of the token that files spell like this, or -1. */
int bpe_find(const struct bpe *b, const char *text, size_t n);
/* The same, of those that are not literal. */
int bpe_find_own(const struct bpe *b, const char *text, size_t n);
/* Writes at most n ids for a word of n bytes and returns how many. */
size_t bpe_encode_word(const struct bpe *b, const char *word, size_t n, int *ids);
/* Writes a token's bytes and returns how many; out = NULL: only that. */
size_t bpe_token_text(const struct bpe *b, int id, char *out);

#endif
