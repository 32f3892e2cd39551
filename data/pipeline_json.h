/* What tokenizer.json says around its two big tables: the stages of a pipeline. Anything that is
 * not done here is refused. */
#ifndef ZF_DATA_PIPELINE_JSON_H
#define ZF_DATA_PIPELINE_JSON_H

#include "data/json.h"
#include "data/pipeline.h"

/* "normalizer", "pre_tokenizer" and the rules in "model"; rules->unk_token is owned by f. Without
 * `stages`, the first two are left to the caller. */
bool pipeline_read_rules(struct pipeline *p, struct bpe_rules *rules, const struct json_file *f,
                         bool stages, struct zf_error *err);
/* Once the tokens are indexed: that "byte_fallback" beside ByteLevel has nothing to do. */
bool pipeline_check_fallback(const struct pipeline *p, const struct json_file *f,
                             struct zf_error *err);
/* "post_processor", once the tokens are indexed. */
bool pipeline_read_templates(struct pipeline *p, const struct json_file *f, struct zf_error *err);

#endif
