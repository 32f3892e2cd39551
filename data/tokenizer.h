/* Text to token ids. One interface, two tokenizers:
 *  - BPE as Hugging Face's tokenizers have it, from tokenizer.json, from vocab.json + merges.txt,
 *    or for Llama from a SentencePiece model (pipeline_load.h)
 *  - SentencePiece, from tokenizer.model, spiece.model, sentencepiece.bpe.model or the folder's
 *    only *.model, by libsentencepiece (spm.h): alone in its folder, or a BertGenerationTokenizer
 *
 * BPE ids are those of Hugging Face Transformers' tokenizer for the same folder, SentencePiece ids
 * those of the library. What Transformers puts around a text, tokenizer_template tells. A tokenizer
 * is not changed by use: many threads may encode with it at once. */
#ifndef ZF_DATA_TOKENIZER_H
#define ZF_DATA_TOKENIZER_H

#include "data/error.h"
#include "data/template.h"

#include <stddef.h>

struct tokenizer;

/* Loads what lies in the folder, in the order above; says which files it looked for if there is
 * none. The folder is not needed after that. */
struct tokenizer *tokenizer_load(const char *directory, struct zf_error *err);
void tokenizer_free(struct tokenizer *t);

/* Encodes n bytes of UTF-8, without what belongs around them. Bytes that are not UTF-8 are encoded
 * as bytes by BPE and as U+FFFD by SentencePiece. Writes at most `capacity` ids and returns how
 * many the whole text has, as snprintf does: at most n + 1, unless a tokenizer puts spaces between
 * added tokens or its normalisation makes a text longer. */
size_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int *ids,
                        size_t capacity);

/* What belongs around one text, or around and between two. */
struct token_template tokenizer_template(const struct tokenizer *t, bool pair);

/* The text of these ids, as a new string of *bytes bytes (and a NUL); the caller frees it. Ids that
 * the tokenizer does not have are left out. */
char *tokenizer_decode(const struct tokenizer *t, const int *ids, size_t n, size_t *bytes);

int tokenizer_vocab_size(const struct tokenizer *t);   /* ids are below this */
int tokenizer_eos(const struct tokenizer *t);          /* end-of-text id, or -1 */
int tokenizer_pad(const struct tokenizer *t);          /* id for padding, or -1 */
const char *tokenizer_kind(const struct tokenizer *t); /* "BPE" or "SentencePiece", for messages */

/* Whether a token is none of a text's own words. */
bool tokenizer_is_special(const struct tokenizer *t, int id);

/* The bytes, with a NUL behind them, of a file of its folder that Transformers reads beside a
 * tokenizer's tables, such as "tokenizer_config.json"; NULL where there is none. */
const char *tokenizer_file(const struct tokenizer *t, const char *name, size_t *bytes);

/* Whether Transformers gives these ids in the folder of a model of this type, with the files that
 * tokenizer_save writes. It makes the tokenizers of some types by rules of their own, whatever the
 * files say. `directory` is where this one is from. */
bool tokenizer_check_type(const struct tokenizer *t, const char *directory, const char *model_type,
                          struct zf_error *err);

/* Puts into `directory` the files from which both Transformers and tokenizer_load make this
 * tokenizer again, in the folder of any model that tokenizer_check_type lets pass: its own files,
 * and tokenizer_config.json where the source had none, or did not name the class itself. pad: a
 * special token that is named there for padding if the tokenizer has none for that, or -1. Removes
 * another tokenizer's files of the same kind. */
bool tokenizer_save(const struct tokenizer *t, const char *directory, int pad,
                    struct zf_error *err);

#endif
