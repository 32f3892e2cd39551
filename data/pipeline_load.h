/* Making a pipeline from the files of a folder. What AutoTokenizer of Transformers 5.23 makes of
 * the same folder decides: the stages are tokenizer.json's, unless it has a class of its own for
 * them, by tokenizer_config.json's tokenizer_class and config.json's model_type.
 *
 *  - LlamaTokenizer, unless tokenizer.json is byte-level: a Metaspace before the first word, as
 *    `legacy` and `add_prefix_space` want it, and BPE with byte fallback.
 *  - GPT2Tokenizer: a byte-level BPE with GPT-2's pattern; Qwen2Tokenizer: NFC, and Qwen2's.
 *
 * add_bos_token and add_eos_token count where there is no tokenizer.json; else its template
 * does. */
#ifndef ZF_DATA_PIPELINE_LOAD_H
#define ZF_DATA_PIPELINE_LOAD_H

#include "data/pipeline.h"

/* From `directory`/tokenizer.json, as in the folder of a model of this type; NULL: of that which
 * config.json there names. */
struct pipeline *pipeline_load_json(const char *directory, const char *model_type,
                                    struct zf_error *err);
/* The same, from vocab.json and merges.txt. */
struct pipeline *pipeline_load_vocab(const char *directory, const char *model_type,
                                     struct zf_error *err);
/* From the bytes of a SentencePiece model, where tokenizer_config.json says LlamaTokenizer. *p is
 * NULL where it is to be the SentencePiece library's own: alone in its folder, or a
 * BertGenerationTokenizer. Anything else is a fault. `path` is for messages. */
bool pipeline_load_model(struct pipeline **p, const char *directory, const char *bytes, size_t n,
                         const char *path, struct zf_error *err);

#endif
