/* Whose stages a tokenizer has: what AutoTokenizer of Transformers 5.23 decides by the class that
 * tokenizer_config.json names and the type of model that config.json does (pipeline_load.h). */
#ifndef ZF_DATA_PIPELINE_CLASSES_H
#define ZF_DATA_PIPELINE_CLASSES_H

#include "data/pipeline.h"
#include "data/pipeline_settings.h"

/* Its tokenizer.json's, or those of a class. */
enum stages { OF_FILE, OF_GPT2, OF_LLAMA, OF_QWEN2 };

/* Sets p->needs_class where the type of the model decides. */
enum stages pipeline_choose_stages(struct pipeline *p, const struct settings *s);
/* The stages of a class, which is not OF_FILE, and its rules. */
bool pipeline_set_stages(struct pipeline *p, enum stages stages, const struct settings *s,
                         struct bpe_rules *rules, struct zf_error *err);

#endif
