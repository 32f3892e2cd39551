/* Text to words, before BPE: the patterns of GPT-2 and of tokenizers like it, run by PCRE2. No
 * merge crosses a word's ends. Words lie one behind the other and make up the whole text, unless a
 * step leaves something out or puts something in front.
 *
 * Characters are letters, numbers and spaces as Unicode 16 has them, which is what Transformers'
 * tokenizers go by, whatever the age of PCRE2's own tables. A byte that is not UTF-8 counts as a
 * character of none of these kinds, as the replacement character U+FFFD that Python would show in
 * its place does, but keeps its value. */
#ifndef ZF_DATA_SPLIT_H
#define ZF_DATA_SPLIT_H

#include "data/error.h"

#include <stddef.h>
#include <stdint.h>

struct splitter;

/* What becomes of a pattern's matches, in the words of tokenizer.json: each is a piece, or is left
 * out, or is joined with the piece before or behind it, or with matches beside it. */
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};

struct split_pattern {
    const char *text; /* not needed after the call */
    bool literal;     /* it stands for itself; else it is in PCRE2's syntax */
    enum split_behavior behavior;
    bool invert; /* what lies between matches counts as matches */
};

/* Which pieces get a METASPACE (bpe.h) in front: none, all, or the one at the start of the text.
 * One that begins with it gets no other. */
enum metaspace_prefix { METASPACE_NEVER, METASPACE_ALWAYS, METASPACE_FIRST };

struct splitter *splitter_create(void);
void splitter_free(struct splitter *s);
/* Each step cuts the pieces that the steps before it made. Empty matches of a pattern do not
 * count. */
bool splitter_add_pattern(struct splitter *s, const struct split_pattern *pattern,
                          struct zf_error *err);
/* GPT-2's pattern, as OpenAI published it. */
bool splitter_add_gpt2_pattern(struct splitter *s, struct zf_error *err);
/* A piece that does not start with a space gets one in front. */
bool splitter_add_prefix_space(struct splitter *s, struct zf_error *err);
/* Spaces become METASPACEs; with `cut`, each begins a piece. */
bool splitter_add_metaspace(struct splitter *s, enum metaspace_prefix prefix, bool cut,
                            struct zf_error *err);

/* Whether both take the same steps. */
bool splitter_is_same(const struct splitter *a, const struct splitter *b);

/* Calls emit(context, word, bytes) for each word in order. first: the text begins where the whole
 * text does. */
typedef void splitter_emit(void *context, const char *word, size_t n);
void splitter_run(const struct splitter *s, const char *text, size_t n, bool first,
                  splitter_emit *emit, void *context);

/* Whether regular expressions count this character to words: letters, marks, decimal digits and
 * what connects them. */
bool split_is_word(uint32_t c);

#endif
