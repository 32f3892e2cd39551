/* GPT-2, Llama and what is of their architectures, with a language-modelling, classification or
 * regression head: configuration, weights, forward and backward. The schedule of a transformer
 * block is written here once; a device supplies the operators. */
#ifndef ZF_MODEL_GPT_H
#define ZF_MODEL_GPT_H

#include "data/batch.h"
#include "data/error.h"
#include "model/device/arena.h"
#include "model/device/device.h"
#include "model/device/ops.h"
#include "model/device/params.h"
#include "model/rope.h"

#include <jansson.h>

enum gpt_head {
    GPT_HEAD_LM,       /* logits = ln_f(x) wte^T, or a matrix of its own: ...ForCausalLM */
    GPT_HEAD_CLASSIFY, /* score head on the last token, cross-entropy:
                          ...ForSequenceClassification */
    GPT_HEAD_REGRESS,  /* the same with one output and squared error */
};

/* What models of this family may have or lack. */
struct gpt_parts {
    bool rms_norm;                            /* norms are RMSNorm, without biases */
    bool qkv_bias, projection_bias, mlp_bias; /* of a block's linear layers */
    bool swiglu; /* the MLP has a gate: down(silu(gate(x)) * up(x)), and no activation besides */
    bool learned_positions; /* position embeddings are added to the tokens' */
    bool rotary;            /* q and k turn with the position */
    bool qk_norm;           /* behind an RMSNorm of each head; only where they turn */
};

struct gpt_arch; /* names of tensors and of keys (model/gpt_arch.h) */

#define GPT_MAX_EOS 16

/* Tokens that end a text: config.json may name several. */
struct gpt_eos {
    int n;
    int ids[GPT_MAX_EOS];
};

/* Names are those of Transformers' GPT2Config. */
struct gpt_config {
    const struct gpt_arch *arch;
    struct gpt_parts parts;
    int vocab_size, n_positions, n_embd, n_layer, n_head;
    int n_kv_heads; /* of k and v; 0: n_head */
    int head_dim;   /* 0: n_embd / n_head */
    int n_inner;    /* width of the MLP; of GPT-2 4 * n_embd where the file says null */
    enum activation activation_function;
    struct rope rope;     /* of rotary positions */
    bool rope_parameters; /* config.json has them under that key, as Transformers 5 writes it,
                                   and not as rope_theta and rope_scaling */
    int no_rope_interval; /* of so many blocks the last one's q and k do not turn; 0: all do */
    int window, first_windowed; /* tokens that attention sees from this block on; 0: all */
    float layer_norm_epsilon;   /* of RMSNorm too */
    float initializer_range;
    float embd_pdrop, attn_pdrop, resid_pdrop;
    bool scale_attn_weights, scale_attn_by_inverse_layer_idx;
    bool tie_word_embeddings;
    int bos_token_id, eos_token_id, pad_token_id; /* -1: none */
    struct gpt_eos also_eos;                      /* behind eos_token_id */
    enum gpt_head head;
    int num_labels; /* outputs of the score head */
};

/* What attention's heads are. */
struct heads gpt_heads(const struct gpt_config *config);
/* What config.json calls the longest sequence: "n_positions" or "max_position_embeddings". */
const char *gpt_positions_key(const struct gpt_config *config);
/* What config.json says of the architecture, such as "llama". */
const char *gpt_model_type(const struct gpt_config *config);
/* Fails where the model is wider than the device's operators take. */
bool gpt_fits_device(const struct gpt_config *config, const struct device *device,
                     struct zf_error *err);
/* Reads DIR/config.json. Fails where the architecture is none of the family's, has parts that are
 * not supported, or a value is out of range. */
bool gpt_config_load(struct gpt_config *config, const char *directory, struct zf_error *err);
/* A preset of known shape: "gpt" (about 1 M parameters with a vocabulary of 8,000), "distilgpt2",
 * "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "cerebras-gpt-111m", ... Fails with the list of
 * names. gpt_preset_name(i) is the i-th name, NULL after the last. */
bool gpt_config_preset(struct gpt_config *config, const char *name, struct zf_error *err);
const char *gpt_preset_name(int i);
/* Writes DIR/config.json for Transformers. labels: num_labels names for id2label, or NULL. Without
 * a padding token the end-of-text token is named, so that Transformers can batch sequences. */
bool gpt_config_save(const struct gpt_config *config, const char *directory,
                     const char *const *labels, struct zf_error *err);
/* What it writes. The caller releases it. */
json_t *gpt_config_json(const struct gpt_config *config, const char *const *labels);

/* A key of a config.json that this configuration would write with another value, as a new string,
 * or NULL: what makes it another model. Dropout and labels do not. */
struct json_file;
char *gpt_config_difference(const struct gpt_config *config, const struct json_file *f);

struct gpt; /* parameters, gradients and activations of one model on one device */

/* What a model is for. */
enum gpt_mode {
    GPT_EVALUATE,        /* gpt_evaluate alone: no gradients, one block's activations */
    GPT_TRAIN,           /* both; every block's activations are kept for backward */
    GPT_TRAIN_RECOMPUTE, /* both; of each block only what enters it is kept, and backward computes
                            the rest again (gradient checkpointing). The same bits */
};

/* How much a model has memory for. */
struct gpt_size {
    int max_tokens, max_seqs; /* of a micro-batch */
    int micro_batches;        /* that go through the layers together; 0: one */
    int ranks;                /* for params_divide; 0: one */
    int value_slots;    /* for params_share_values and params_share_gradients: blocks that the */
    int gradient_slots; /* device has room for; 0: all */
    enum gpt_mode mode;
};

/* Parameters and gradients are not initialised. `config` is copied. */
struct gpt *gpt_create(struct device *device, const struct gpt_config *config,
                       const struct gpt_size *size);
/* Adds the device memory that gpt_create with these arguments will take. */
void gpt_measure(struct device *device, const struct gpt_config *config,
                 const struct gpt_size *size, struct memory_use *use);
/* How a step of n micro-batches is held: all together, with room for the gradients of two blocks;
 * or, where blocks' parameters stay on the device, one after the other, with room for all blocks'
 * gradients, if that takes less memory: those that take turns in slots would come for each
 * micro-batch. size: the rest of it is given. */
void gpt_size_for_step(struct device *device, const struct gpt_config *config,
                       struct gpt_size *size, int n);
/* Logits of a row: the labels', or the vocabulary's, rounded up where the head is tied. */
int gpt_head_outputs(const struct gpt_config *config);
/* The parameters of such a model, each layer in a place of its own; release with params_free. */
struct param_table gpt_param_table(const struct gpt_config *config);
/* Places them as a model of this size does. */
void gpt_place_params(struct param_table *table, const struct gpt_size *size);
void gpt_destroy(struct gpt *model);

struct device *gpt_device(const struct gpt *model);
const struct gpt_config *gpt_get_config(const struct gpt *model);
const struct param_table *gpt_params(const struct gpt *model);
void *gpt_param_data(struct gpt *model); /* (n_values) of the device's dtype */
float *
gpt_grad_data(struct gpt *model); /* (n_gradients) fp32, in device memory; NULL: evaluation */

/* Who else gets the parameters in fp32, as they are initialised or loaded from now on: elements
 * [offset, offset + n) of the table's at a time, each once. values: host memory, which stays as it
 * is until the compute stream has been waited for. NULL: nobody. */
typedef void gpt_take_values(void *context, size_t offset, const float *values, size_t n);
void gpt_offer_values(struct gpt *model, gpt_take_values *take, void *context);

/* Transformers' initialisation: normal(0, initializer_range), residual projections divided by
 * sqrt(2 n_layer), norms 1, biases 0. A function of seed and the parameter's name alone. */
void gpt_init_weights(struct gpt *model, uint64_t seed);
/* Reads DIR/model.safetensors or DIR/model.safetensors.index.json; F32, F16 or BF16. A score head
 * that the file lacks is initialised from `seed` and *head_is_new set; any other missing tensor, a
 * wrong shape, or a tensor that is no part of such a model with this configuration, is a fault.
 * Names may come with or without "transformer." or "model."; causal masks, frequencies of positions
 * and other heads are passed over. */
bool gpt_load_weights(struct gpt *model, const char *directory, uint64_t seed, bool *head_is_new,
                      struct zf_error *err);
/* The same, but the score head is always a new one, whatever the file has. */
bool gpt_load_weights_without_head(struct gpt *model, const char *directory, uint64_t seed,
                                   struct zf_error *err);
/* Whether they would, the score head included or not; nothing is loaded. */
bool gpt_check_weights(const struct gpt *model, const char *directory, bool with_head,
                       struct zf_error *err);
/* Writes DIR/model.safetensors (fp32) and DIR/config.json, for Transformers. labels: as in
 * gpt_config_save. Fails, and leaves the folder as it was, where a value is not finite. Hooks are
 * called as in gpt_evaluate, even then. */
bool gpt_save(struct gpt *model, const char *directory, const char *const *labels,
              struct zf_error *err);

/* What surrounds each layer's work; NULL: nothing. Layers are numbered as in param.layer. */
struct gpt_hooks {
    void *context;
    /* What is put on the compute stream from now on reads a layer's parameters: forward, backward,
     * or to save them. Afterwards: nothing more that does, until the next call of the first. The
     * first and the last layer's are read until the whole pass is over. */
    void (*before_layer)(void *context, int layer);
    void (*after_layer)(void *context, int layer);
    void (*before_backward)(void *context);             /* forward is over */
    void (*gradients_needed)(void *context, int layer); /* backward: they are written from now on */
    void (*gradients_ready)(void *context, int layer);  /* backward: its gradients are complete */
};

/* From now on, and in every pass. hooks: copied, or NULL: none */
void gpt_set_hooks(struct gpt *model, const struct gpt_hooks *hooks);
/* Calls them as gpt_evaluate does, and computes nothing: what a rank does while another evaluates
 * or saves, if it has parameters that the other needs. */
void gpt_pass_by(struct gpt *model);

/* Evaluation: logits: (n_seqs, num_labels) in host memory, or NULL; never for language modelling.
 * Returns the sum of the items' losses: 0 where the batch has neither targets nor scores, or all
 * targets are TARGET_IGNORE. No dropout. The host waits for the device. */
double gpt_evaluate(struct gpt *model, const struct batch *batch, float *logits);

/* Generation: what a language model keeps of one sequence, so that each token goes through it once.
 * NULL where the model's device does not generate (ops.h's attention_cached). capacity: tokens, at
 * most n_positions. */
struct gpt_cache;
struct gpt_cache *gpt_cache_create(struct gpt *model, int capacity);
void gpt_cache_destroy(struct gpt_cache *cache);
/* How many tokens it holds; and to forget all but the first n. */
int gpt_cache_length(const struct gpt_cache *cache);
void gpt_cache_cut(struct gpt_cache *cache, int n);
/* Puts n tokens, 1 to max_tokens, behind those that the cache holds. logits: (vocab_size) in host
 * memory, of the token that follows them. The host waits for the device. */
void gpt_continue(struct gpt *model, struct gpt_cache *cache, const int *tokens, int n,
                  float *logits);

/* A step, or the part of it that one call does. */
struct gpt_step {
    float scale;         /* on losses: usually one over the items of the whole step */
    uint32_t seed, step; /* of the dropouts */
    bool continues;      /* gradients are added to those of the call before; every block then has a
                            gradient slot of its own */
    bool to_continue;    /* gradients are not complete: there is another call */
};

/* Training: forward and backward of n micro-batches. They go through each layer together, so that a
 * layer is needed twice and its gradient is complete at once: that of scale * (sum of the items'
 * losses), summed over micro-batches in their order. A batch may be empty.
 * All of it is put on the compute stream. The host waits for the call before the last one at most;
 * the batches may be reused at once. */
void gpt_train(struct gpt *model, const struct batch *batches, int n, const struct gpt_step *step);

/* The sum of the losses, unscaled, of all items that gpt_train was given since the last call. The
 * host waits until the device knows them, which is before the last step's backward pass. */
double gpt_take_loss(struct gpt *model);

#endif
