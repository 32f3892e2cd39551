/* Text to words, before BPE: the patterns of GPT-2 and of tokenizers like it, run by PCRE2. Words
 * lie one behind the other and make up the whole text; no merge crosses their ends.
 *
 * Characters are letters, numbers and spaces as Unicode 16 has them, which is what Transformers'
 * tokenizers go by, whatever the age of PCRE2's own tables. A byte that is not UTF-8 counts as a
 * character of none of these kinds, as the replacement character U+FFFD that Python would show in
 * its place does, but keeps its value. */
#ifndef ZF_DATA_SPLIT_H
#define ZF_DATA_SPLIT_H

#include "data/error.h"

#include <stddef.h>

struct splitter;

struct splitter *splitter_create(void);
void splitter_free(struct splitter *s);
/* Adds a pattern in PCRE2's syntax. Each of the pieces that the patterns before it made is cut into
 * its matches and what lies between them. Empty matches do not count. */
bool splitter_add_pattern(struct splitter *s, const char *pattern, struct zf_error *err);
/* GPT-2's pattern, as OpenAI published it. */
bool splitter_add_gpt2_pattern(struct splitter *s, struct zf_error *err);
/* From here on, a piece that does not start with a space gets one in front. At most once. */
void splitter_add_prefix_space(struct splitter *s);

/* Calls emit(context, word, bytes) for each word in order. */
typedef void splitter_emit(void *context, const char *word, size_t n);
void splitter_run(const struct splitter *s, const char *text, size_t n, splitter_emit *emit,
                  void *context);

#endif
