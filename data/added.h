/* Added tokens: those that are found in a text before it is cut into words, such as
 * "<|endoftext|>". */
#ifndef ZF_DATA_ADDED_H
#define ZF_DATA_ADDED_H

#include <stdbool.h>
#include <stddef.h>

struct added_token {
    char *text; /* as its file has it; the normalized one is in `found` */
    char *found;
    size_t n; /* of found */
    int id;
    bool strip_left, strip_right; /* it takes the white space beside it along */
    bool single_word;             /* it is none between letters, digits and the like */
    bool late; /* found only in what the others have left, normalized ("normalized" in files) */
};

struct added_tokens {
    struct added_token *tokens; /* once indexed: by first byte, the longest first */
    int n;
    int first[257]; /* where the tokens that begin with this byte start */
    /* Of tokens that are not late, and of those that are: the bytes that they begin with, how many
     * such bytes there are, and one of them. */
    bool begins[2][256];
    int n_begins[2], begin[2];
};

void added_free(struct added_tokens *a);
/* The token of this text, which is new if *is_new; by its text alone, until it is changed. */
struct added_token *added_note(struct added_tokens *a, const char *text, bool *is_new);
/* Whether both have the same tokens, once these have their ids. */
bool added_is_same(const struct added_tokens *a, const struct added_tokens *b);
/* Once all are known, with their ids, and before any is looked for. */
void added_index(struct added_tokens *a);

/* A token in a text, with the white space that it takes along: bytes [start, end). */
struct added_match {
    const struct added_token *token;
    size_t start, end;
    size_t next; /* where to look for the next one */
};
/* The next token, late or not, from `next` on in n bytes; `start` is where the one before ended.
 * False where there is none. */
bool added_find(const struct added_tokens *a, bool late, const char *text, size_t n, size_t start,
                size_t next, struct added_match *match);

#endif
