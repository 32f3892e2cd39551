/* What is done to a text before it is cut into words: the normalizers of tokenizer.json.
 *
 * Unicode's normalization form C comes from utf8proc, with the characters of Unicode 9: later ones
 * are left as they are, which is what Transformers' tokenizers do. Bytes that are not UTF-8
 * stay. */
#ifndef ZF_DATA_NORMALIZE_H
#define ZF_DATA_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

struct normalizer;

struct normalizer *normalizer_create(void);
void normalizer_free(struct normalizer *n);
/* Steps, taken in the order in which they were added. */
void normalizer_add_nfc(struct normalizer *n);
void normalizer_add_prepend(struct normalizer *n, const char *text);
/* pattern, which is not empty, stands for itself. */
void normalizer_add_replace(struct normalizer *n, const char *pattern, const char *content);

/* Whether both take the same steps. */
bool normalizer_is_same(const struct normalizer *a, const struct normalizer *b);

/* The normalized text as a new string of *n_out bytes, or NULL where it is the same. An empty text
 * stays empty. */
char *normalizer_run(const struct normalizer *n, const char *text, size_t n_text, size_t *n_out);

#endif
