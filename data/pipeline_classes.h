/* Whose stages a tokenizer has: what AutoTokenizer of Transformers 5.23 decides by the class that
 * tokenizer_config.json names and the type of model that config.json does (pipeline_load.h). */
#ifndef ZF_DATA_PIPELINE_CLASSES_H
#define ZF_DATA_PIPELINE_CLASSES_H

#include "data/pipeline.h"
#include "data/pipeline_settings.h"

/* Its tokenizer.json's, or those of a class. */
enum stages { OF_FILE, OF_GPT2, OF_LLAMA, OF_QWEN2 };

/* As AutoTokenizer chooses. */
enum stages pipeline_choose_stages(const struct settings *s);
/* Sets p->class and p->needs_class. */
void pipeline_set_class(struct pipeline *p, enum stages stages, const struct settings *s);
/* Whether a model of this type has these stages, whatever class the files name. */
bool pipeline_type_decides(const char *model_type, enum stages *stages);
/* What Transformers calls them. */
const char *pipeline_class(enum stages stages);
/* The stages of a class, which is not OF_FILE, and its rules. */
bool pipeline_set_stages(struct pipeline *p, enum stages stages, const struct settings *s,
                         struct bpe_rules *rules, struct zf_error *err);

#endif
