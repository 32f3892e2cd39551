/* The presets: configurations of models that people know by name. */
#include "model/gpt_arch.h"

#include <stdio.h>
#include <string.h>

/* GPT-2 and DistilGPT-2: https://huggingface.co/openai-community/gpt2 and its sisters.
 * Cerebras-GPT: Dey et al., "Cerebras-GPT: Open Compute-Optimal Language Models" (2023), table 1.
 * gpt-6.7b: the shape of Brown et al., "Language Models are Few-Shot Learners"
 * (2020), table 2.1. */
static const struct gpt2_preset {
    const char *name;
    int vocab_size, n_positions, n_embd, n_layer, n_head;
    enum activation activation;
    float dropout;
} gpt2_presets[] = {
    {"gpt", 8000, 512, 96, 2, 3, ACT_GELU_TANH, 0.1f},
    {"distilgpt2", 50257, 1024, 768, 6, 12, ACT_GELU_TANH, 0.1f},
    {"gpt2", 50257, 1024, 768, 12, 12, ACT_GELU_TANH, 0.1f},
    {"gpt2-medium", 50257, 1024, 1024, 24, 16, ACT_GELU_TANH, 0.1f},
    {"gpt2-large", 50257, 1024, 1280, 36, 20, ACT_GELU_TANH, 0.1f},
    {"gpt2-xl", 50257, 1024, 1600, 48, 25, ACT_GELU_TANH, 0.1f},
    {"cerebras-gpt-111m", 50257, 2048, 768, 10, 12, ACT_GELU_ERF, 0},
    {"cerebras-gpt-256m", 50257, 2048, 1088, 14, 17, ACT_GELU_ERF, 0},
    {"cerebras-gpt-590m", 50257, 2048, 1536, 18, 12, ACT_GELU_ERF, 0},
    {"cerebras-gpt-1.3b", 50257, 2048, 2048, 24, 16, ACT_GELU_ERF, 0},
    {"cerebras-gpt-2.7b", 50257, 2048, 2560, 32, 32, ACT_GELU_ERF, 0},
    {"cerebras-gpt-6.7b", 50257, 2048, 4096, 32, 32, ACT_GELU_ERF, 0},
    {"cerebras-gpt-13b", 50257, 2048, 5120, 40, 40, ACT_GELU_ERF, 0},
    {"gpt-6.7b", 50257, 2048, 4096, 32, 32, ACT_GELU_TANH, 0.1f},
};
#define N_GPT2_PRESETS ((int)(sizeof gpt2_presets / sizeof *gpt2_presets))

/* Their own config.json, but for the first one, a tiny one. */
static const struct llama_preset {
    const char *name, *model_type;
    int vocab_size, n_positions, n_embd, n_inner, n_layer, n_head, n_kv_heads;
    bool tied;
    float norm_epsilon;
    struct rope rope;
} llama_presets[] = {
    {"llama", "llama", 8000, 512, 96, 256, 2, 6, 2, false, 1e-5f, {.theta = 1e4}},
    {"smollm2-135m", "llama", 49152, 8192, 576, 1536, 30, 9, 3, true, 1e-5f, {.theta = 1e5}},
    {"llama-2-7b", "llama", 32000, 4096, 4096, 11008, 32, 32, 32, false, 1e-5f, {.theta = 1e4}},
    {"llama-2-13b", "llama", 32000, 4096, 5120, 13824, 40, 40, 40, false, 1e-5f, {.theta = 1e4}},
    {"llama-2-70b", "llama", 32000, 4096, 8192, 28672, 80, 64, 8, false, 1e-5f, {.theta = 1e4}},
    {"llama-3.1-8b",
     "llama",
     128256,
     131072,
     4096,
     14336,
     32,
     32,
     8,
     false,
     1e-5f,
     {.type = ROPE_LLAMA3,
      .theta = 5e5,
      .factor = 8,
      .low_freq_factor = 1,
      .high_freq_factor = 4,
      .original_positions = 8192}},
    {"llama-3.2-1b",
     "llama",
     128256,
     131072,
     2048,
     8192,
     16,
     32,
     8,
     true,
     1e-5f,
     {.type = ROPE_LLAMA3,
      .theta = 5e5,
      .factor = 32,
      .low_freq_factor = 1,
      .high_freq_factor = 4,
      .original_positions = 8192}},
    {"qwen2.5-0.5b", "qwen2", 151936, 32768, 896, 4864, 24, 14, 2, true, 1e-6f, {.theta = 1e6}},
    {"qwen2.5-1.5b", "qwen2", 151936, 131072, 1536, 8960, 28, 12, 2, true, 1e-6f, {.theta = 1e6}},
};
#define N_LLAMA_PRESETS ((int)(sizeof llama_presets / sizeof *llama_presets))

const char *gpt_preset_name(int i)
{
    if (i < 0 || i >= N_GPT2_PRESETS + N_LLAMA_PRESETS)
        return NULL;
    return i < N_GPT2_PRESETS ? gpt2_presets[i].name : llama_presets[i - N_GPT2_PRESETS].name;
}

static struct gpt_config gpt2_preset(const struct gpt2_preset *p)
{
    struct gpt_config c = gpt_arch_defaults(gpt_arch_find("gpt2"));
    c.vocab_size = p->vocab_size;
    c.n_positions = p->n_positions;
    c.n_embd = p->n_embd;
    c.n_layer = p->n_layer;
    c.n_head = p->n_head;
    c.n_inner = 4 * p->n_embd;
    c.activation_function = p->activation;
    c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = p->dropout;
    if (p->vocab_size <= c.eos_token_id)
        c.bos_token_id = c.eos_token_id = -1;
    return c;
}

static struct gpt_config llama_preset(const struct llama_preset *p)
{
    struct gpt_config c = gpt_arch_defaults(gpt_arch_find(p->model_type));
    c.vocab_size = p->vocab_size;
    c.n_positions = p->n_positions;
    c.n_embd = p->n_embd;
    c.n_inner = p->n_inner;
    c.n_layer = p->n_layer;
    c.n_head = p->n_head;
    c.n_kv_heads = p->n_kv_heads;
    c.head_dim = p->n_embd / p->n_head;
    c.tie_word_embeddings = p->tied;
    c.layer_norm_epsilon = p->norm_epsilon;
    c.rope = p->rope;
    c.window = c.first_windowed = 0;
    return c;
}

bool gpt_config_preset(struct gpt_config *config, const char *name, struct zf_error *err)
{
    char names[512] = "";
    for (int i = 0; gpt_preset_name(i); i++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", gpt_preset_name(i));
        if (strcmp(gpt_preset_name(i), name) != 0)
            continue;
        *config = i < N_GPT2_PRESETS ? gpt2_preset(&gpt2_presets[i])
                                     : llama_preset(&llama_presets[i - N_GPT2_PRESETS]);
        return true;
    }
    return zf_fail(err, "\"%.200s\" is not a preset model: choose one of %s", name, names);
}
