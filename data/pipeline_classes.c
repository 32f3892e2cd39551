#include "data/pipeline_classes.h"

static const char qwen2_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                                    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static enum stages stages_of_class(const struct settings *s)
{
    return settings_class_is(s, "LlamaTokenizer")   ? OF_LLAMA
           : settings_class_is(s, "Qwen2Tokenizer") ? OF_QWEN2
           : settings_class_is(s, "GPT2Tokenizer")  ? OF_GPT2
                                                    : OF_FILE;
}

/* As AutoTokenizer chooses. Models of some types have a class, whatever the file says; of others,
 * where it says nothing. In another model's folder the tokenizer then needs another class's
 * name. */
enum stages pipeline_choose_stages(struct pipeline *p, const struct settings *s)
{
    static const struct {
        const char *model_type;
        enum stages stages;
        bool always;
    } types[] = {{"mistral", OF_FILE, true},
                 {"qwen2", OF_QWEN2, true},
                 {"qwen3", OF_QWEN2, false},
                 {"gpt2", OF_GPT2, false}};
    bool named =
        settings_get(&s->config, "tokenizer_class") || settings_get(&s->model, "tokenizer_class");
    enum stages stages = stages_of_class(s);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((types[i].always || !named) &&
            settings_is(&s->model, "model_type", types[i].model_type)) {
            p->needs_class = types[i].stages != stages;
            return types[i].stages;
        }
    return stages;
}

static bool set_byte_level_stages(struct pipeline *p, const struct settings *s, bool qwen2,
                                  struct zf_error *err)
{
    const struct split_pattern pattern = {.text = qwen2_pattern};
    p->class = qwen2 ? "Qwen2Tokenizer" : "GPT2Tokenizer";
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
