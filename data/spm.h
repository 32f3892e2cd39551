/* SentencePiece models, through libsentencepiece. Ids and text are the library's own: its
 * normalisation changes a text before it is cut, and bytes that are not UTF-8 become U+FFFD.
 *
 * This is a C interface to a C++ library: faults come back as sentences, and nothing is thrown
 * through it; where memory runs out, the program ends. */
#ifndef ZF_DATA_SPM_H
#define ZF_DATA_SPM_H

#include "data/error.h"

#include <stddef.h>

struct spm;

/* From a .model file's bytes; `path` is for messages. */
struct spm *spm_create(const char *bytes, size_t n, const char *path, struct zf_error *err);
void spm_free(struct spm *m);
/* As tokenizer_encode. */
size_t spm_encode(const struct spm *m, const char *text, size_t n, int *ids, size_t capacity);
/* As tokenizer_decode; the caller frees the string. */
char *spm_decode(const struct spm *m, const int *ids, size_t n, size_t *bytes);
int spm_vocab_size(const struct spm *m);

/* The ids of the model's own special tokens, or -1. */
enum spm_special { SPM_UNKNOWN, SPM_BEGIN, SPM_END, SPM_PAD };
int spm_special_id(const struct spm *m, enum spm_special special);
/* A token's spelling; owned by the model. */
const char *spm_token(const struct spm *m, int id);

#endif
