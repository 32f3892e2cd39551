/* Text to token ids. One interface, two tokenizers:
 *  - GPT-2's byte-level BPE, from vocab.json + merges.txt or from tokenizer.json
 *  - SentencePiece, from tokenizer.model or spiece.model or *.model, by libsentencepiece (spm.cc)
 *
 * Ids are those of Hugging Face Transformers' tokenizer for the same folder, without special tokens
 * added. A tokenizer is not changed by use: many threads may encode with it at once. */
#ifndef ZF_DATA_TOKENIZER_H
#define ZF_DATA_TOKENIZER_H

#include "data/error.h"

#include <stddef.h>

struct tokenizer;

/* Loads what lies in the folder; says which files it looked for if there is none. */
struct tokenizer *tokenizer_load(const char *directory, struct zf_error *err);
void tokenizer_free(struct tokenizer *t);

/* Encodes n bytes of UTF-8 (invalid bytes are encoded as bytes). Writes at most `capacity` ids and
 * returns how many the whole text has. At most n + 1 ids ever come. */
size_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int *ids,
                        size_t capacity);

/* The text of these ids, as a new string of *bytes bytes (and a NUL); the caller frees it. */
char *tokenizer_decode(const struct tokenizer *t, const int *ids, size_t n, size_t *bytes);

int tokenizer_vocab_size(const struct tokenizer *t);   /* ids are below this */
int tokenizer_eos(const struct tokenizer *t);          /* end-of-text id, or -1 */
const char *tokenizer_kind(const struct tokenizer *t); /* "BPE" or "SentencePiece", for messages */

/* Puts into `directory` the files from which both Transformers and tokenizer_load make this
 * tokenizer again (its own files, and tokenizer_config.json where the source had none). */
bool tokenizer_save(const struct tokenizer *t, const char *directory, struct zf_error *err);

#endif
