#include "model/gpt_arch.h"

#include <string.h>

static const struct gpt_names gpt2_names = {
    .prefix = "transformer.",
    .tokens = "wte",
    .positions = "wpe",
    .blocks = "h",
    .pairs = {[LN_1] = "ln_1",
              [QKV] = "attn.c_attn",
              [ATT_PROJ] = "attn.c_proj",
              [LN_2] = "ln_2",
              [FC] = "mlp.c_fc",
              [MLP_PROJ] = "mlp.c_proj"},
    .final_norm = "ln_f",
};

static const struct gpt_keys gpt2_keys = {
    .n_positions = "n_positions",
    .n_embd = "n_embd",
    .n_layer = "n_layer",
    .n_head = "n_head",
    .n_inner = "n_inner",
    .activation = "activation_function",
    .norm_epsilon = "layer_norm_epsilon",
    .attn_pdrop = "attn_pdrop",
};

static const struct gpt_names llama_names = {
    .prefix = "model.",
    .tokens = "embed_tokens",
    .blocks = "layers",
    .pairs = {[LN_1] = "input_layernorm",
              [QKV] = "self_attn.qkv_proj",
              [Q_NORM] = "self_attn.q_norm",
              [K_NORM] = "self_attn.k_norm",
              [ATT_PROJ] = "self_attn.o_proj",
              [LN_2] = "post_attention_layernorm",
              [FC] = "mlp.gate_up_proj",
              [MLP_PROJ] = "mlp.down_proj"},
    .final_norm = "norm",
    .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    .gate_up = {"mlp.gate_proj", "mlp.up_proj"},
};

static const struct gpt_keys llama_keys = {
    .n_positions = "max_position_embeddings",
    .n_embd = "hidden_size",
    .n_layer = "num_hidden_layers",
    .n_head = "num_attention_heads",
    .n_inner = "intermediate_size",
    .activation = "hidden_act",
    .norm_epsilon = "rms_norm_eps",
    .attn_pdrop = "attention_dropout",
};

/* What Llama and those after it have in common. */
#define LLAMA_FAMILY .names = &llama_names, .keys = &llama_keys, .transposed = true
#define LLAMA_PARTS  .rms_norm = true, .swiglu = true, .rotary = true
#define LLAMA_DEFAULTS                                                                             \
    .n_embd = 4096, .n_layer = 32, .n_head = 32, .activation_function = ACT_NONE,                  \
    .layer_norm_epsilon = 1e-6f, .initializer_range = 0.02f, .scale_attn_weights = true,           \
    .rope = {.theta = 10000}, .pad_token_id = -1, .num_labels = 2
#define QWEN_DEFAULTS                                                                              \
    .vocab_size = 151936, .n_positions = 32768, .n_inner = 22016, .n_kv_heads = 32,                \
    .window = 4096, .first_windowed = 28, .bos_token_id = -1, .eos_token_id = -1

/* Defaults are those of Transformers' configuration_*.py. */
static const struct gpt_arch architectures[] = {
    {
        .title = "GPT-2",
        .model_type = "gpt2",
        .lm = "GPT2LMHeadModel",
        .classifier = "GPT2ForSequenceClassification",
        .names = &gpt2_names,
        .keys = &gpt2_keys,
        .scales_residuals = true,
        .gpt2_keys = true,
        .defaults = {.parts = {.qkv_bias = true,
                               .projection_bias = true,
                               .mlp_bias = true,
                               .learned_positions = true},
                     .vocab_size = 50257,
                     .n_positions = 1024,
                     .n_embd = 768,
                     .n_layer = 12,
                     .n_head = 12,
                     .n_inner = 4 * 768,
                     .activation_function = ACT_GELU_TANH,
                     .layer_norm_epsilon = 1e-5f,
                     .initializer_range = 0.02f,
                     .embd_pdrop = 0.1f,
                     .attn_pdrop = 0.1f,
                     .resid_pdrop = 0.1f,
                     .scale_attn_weights = true,
                     .tie_word_embeddings = true,
                     .bos_token_id = 50256,
                     .eos_token_id = 50256,
                     .pad_token_id = -1,
                     .num_labels = 2},
    },
    {
        .title = "Llama",
        .model_type = "llama",
        .lm = "LlamaForCausalLM",
        .classifier = "LlamaForSequenceClassification",
        LLAMA_FAMILY,
        .attention_bias = true,
        .mlp_bias = true,
        .defaults = {.parts = {LLAMA_PARTS},
                     LLAMA_DEFAULTS,
                     .vocab_size = 32000,
                     .n_positions = 2048,
                     .n_inner = 11008,
                     .bos_token_id = 1,
                     .eos_token_id = 2},
    },
    {
        .title = "Mistral",
        .model_type = "mistral",
        .lm = "MistralForCausalLM",
        .classifier = "MistralForSequenceClassification",
        LLAMA_FAMILY,
        .windows = GPT_WINDOW_EVERYWHERE,
        .defaults = {.parts = {LLAMA_PARTS},
                     LLAMA_DEFAULTS,
                     .vocab_size = 32000,
                     .n_positions = 131072,
                     .n_kv_heads = 8,
                     .n_inner = 14336,
                     .window = 4096,
                     .bos_token_id = 1,
                     .eos_token_id = 2},
    },
    {
        .title = "Qwen2",
        .model_type = "qwen2",
        .lm = "Qwen2ForCausalLM",
        .classifier = "Qwen2ForSequenceClassification",
        LLAMA_FAMILY,
        .windows = GPT_WINDOW_FROM_LAYER,
        .defaults = {.parts = {LLAMA_PARTS, .qkv_bias = true}, LLAMA_DEFAULTS, QWEN_DEFAULTS},
    },
    {
        .title = "Qwen3",
        .model_type = "qwen3",
        .lm = "Qwen3ForCausalLM",
        .classifier = "Qwen3ForSequenceClassification",
        LLAMA_FAMILY,
        .attention_bias = true,
        .windows = GPT_WINDOW_FROM_LAYER,
        .defaults = {.parts = {LLAMA_PARTS, .qk_norm = true},
                     LLAMA_DEFAULTS,
                     QWEN_DEFAULTS,
                     .head_dim = 128},
    },
    {
        .title = "SmolLM3",
        .model_type = "smollm3",
        .lm = "SmolLM3ForCausalLM",
        .classifier = "SmolLM3ForSequenceClassification",
        LLAMA_FAMILY,
        .attention_bias = true,
        .mlp_bias = true,
        .no_rope_layers = true,
        .defaults = {.parts = {LLAMA_PARTS},
                     .n_embd = 2048,
                     .n_layer = 36,
                     .n_head = 16,
                     .n_kv_heads = 4,
                     .n_inner = 11008,
                     .vocab_size = 128256,
                     .n_positions = 32768,
                     .layer_norm_epsilon = 1e-6f,
                     .initializer_range = 0.02f,
                     .scale_attn_weights = true,
                     .tie_word_embeddings = true,
                     .rope = {.theta = 2e6},
                     .no_rope_interval = 4,
                     .bos_token_id = 128000,
                     .eos_token_id = 128001,
                     .pad_token_id = 128004,
                     .num_labels = 2},
    },
};
#define N_ARCHITECTURES ((int)(sizeof architectures / sizeof *architectures))

const struct gpt_arch *gpt_arch_at(int i)
{
    return i >= 0 && i < N_ARCHITECTURES ? &architectures[i] : NULL;
}

const struct gpt_arch *gpt_arch_find(const char *model_type)
{
    for (int i = 0; i < N_ARCHITECTURES; i++)
        if (strcmp(architectures[i].model_type, model_type) == 0)
            return &architectures[i];
    return NULL;
}

struct gpt_config gpt_arch_defaults(const struct gpt_arch *arch)
{
    struct gpt_config c = arch->defaults;
    c.arch = arch;
    return c;
}

const struct gpt_activation gpt_activations[] = {
    {"gelu_new", ACT_GELU_TANH},  {"gelu_pytorch_tanh", ACT_GELU_TANH},
    {"gelu_fast", ACT_GELU_TANH}, {"gelu", ACT_GELU_ERF},
    {"relu", ACT_RELU},           {NULL},
};

const char *const gpt_rope_types[] = {[ROPE_DEFAULT] = "default",
                                      [ROPE_LINEAR] = "linear",
                                      [ROPE_LLAMA3] = "llama3",
                                      [ROPE_YARN] = "yarn",
                                      [ROPE_YARN + 1] = NULL};
