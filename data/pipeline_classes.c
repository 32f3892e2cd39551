#include "data/pipeline_classes.h"

#include <string.h>

static const char qwen2_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                                    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const char *const classes[] = {[OF_FILE] = "PreTrainedTokenizerFast",
                                      [OF_GPT2] = "GPT2Tokenizer",
                                      [OF_LLAMA] = "LlamaTokenizer",
                                      [OF_QWEN2] = "Qwen2Tokenizer"};

const char *pipeline_class(enum stages stages)
{
    return classes[stages];
}

static enum stages stages_of_class(const struct settings *s)
{
    for (enum stages stages = OF_GPT2; stages <= OF_QWEN2; stages++)
        if (settings_class_is(s, classes[stages]))
            return stages;
    return OF_FILE;
}

/* Models of some types have a class, whatever the files say; of others, where they say nothing. */
static const struct type {
    const char *model_type;
    enum stages stages;
    bool always;
} types[] = {{"mistral", OF_FILE, true},
             {"qwen2", OF_QWEN2, true},
             {"qwen3", OF_QWEN2, false},
             {"gpt2", OF_GPT2, false}};

static const struct type *find_type(const char *model_type)
{
    for (size_t i = 0; model_type && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].model_type, model_type) == 0)
            return &types[i];
    return NULL;
}

enum stages pipeline_choose_stages(const struct settings *s)
{
    const struct type *type = find_type(s->model_type);
    return type && (type->always || !settings_class(s)) ? type->stages : stages_of_class(s);
}

void pipeline_set_class(struct pipeline *p, enum stages stages, const struct settings *s)
{
    p->class = classes[stages];
    p->needs_class = !json_is_string(settings_get(&s->config, "tokenizer_class")) ||
                     stages_of_class(s) != stages;
}

bool pipeline_type_decides(const char *model_type, enum stages *stages)
{
    const struct type *type = find_type(model_type);
    if (!type || !type->always)
        return false;
    *stages = type->stages;
    return true;
}

static bool set_byte_level_stages(struct pipeline *p, const struct settings *s, bool qwen2,
                                  struct zf_error *err)
{
    const struct split_pattern pattern = {.text = qwen2_pattern};
    if (qwen2) {
        normalizer_add_nfc(p->normalizer);
        if (!splitter_add_pattern(p->splitter, &pattern, err))
            return false;
    }
    return settings_get_flag(s, "add_prefix_space", &p->add_prefix_space, err) &&
           (!p->add_prefix_space || splitter_add_prefix_space(p->splitter, err)) &&
           (qwen2 || splitter_add_gpt2_pattern(p->splitter, err));
}

static bool set_llama_stages(struct pipeline *p, const struct settings *s, struct bpe_rules *rules,
                             struct zf_error *err)
{
    bool legacy = false;
    p->add_prefix_space = true;
    if (!settings_get_flag(s, "legacy", &legacy, err) ||
        !settings_get_flag(s, "add_prefix_space", &p->add_prefix_space, err))
        return false;
    *rules = (struct bpe_rules){.characters = true, .byte_fallback = true, .fuse_unk = true};
    p->drops_first_space = p->add_prefix_space;
    return splitter_add_metaspace(p->splitter,
                                  !p->add_prefix_space ? METASPACE_NEVER
                                  : legacy             ? METASPACE_ALWAYS
                                                       : METASPACE_FIRST,
                                  false, err);
}

bool pipeline_set_stages(struct pipeline *p, enum stages stages, const struct settings *s,
                         struct bpe_rules *rules, struct zf_error *err)
{
    *rules = (struct bpe_rules){0};
    return stages == OF_LLAMA ? set_llama_stages(p, s, rules, err)
                              : set_byte_level_stages(p, s, stages == OF_QWEN2, err);
}
