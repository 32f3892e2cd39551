/* Frequencies of rotary position embedding (op_rotary_forward's table and scale), of the kinds that
 * do not change with a sequence's length. */
#ifndef ZF_MODEL_ROPE_H
#define ZF_MODEL_ROPE_H

#include <stdbool.h>

enum rope_type {
    ROPE_DEFAULT, /* theta^(-2 i / head_dim) */
    ROPE_LINEAR,  /* that by factor */
    ROPE_LLAMA3,  /* long waves by factor, short ones as they are (Llama 3.1) */
    ROPE_YARN,    /* the same along a ramp, and a scale (Peng et al., "YaRN", ICLR 2024) */
};

/* As config.json's rope_parameters, or rope_scaling and rope_theta, have them. */
struct rope {
    enum rope_type type;
    double theta;
    double factor;                            /* all but ROPE_DEFAULT */
    double low_freq_factor, high_freq_factor; /* ROPE_LLAMA3; the second is the greater */
    double original_positions;   /* ROPE_LLAMA3, ROPE_YARN: original_max_position_embeddings */
    double beta_fast, beta_slow; /* ROPE_YARN: turns within those at the ramp's ends; 32 and 1 */
    double attention_factor;     /* ROPE_YARN: the scale; 0: 0.1 ln(factor) + 1 */
    bool truncate;               /* ROPE_YARN: the ramp's ends are whole numbers; true */
};

/* frequency: (head_dim / 2) radians a position; scale: of cosine and sine. Formulas are those of
 * Transformers' modeling_rope_utils.py. */
void rope_frequencies(float *frequency, float *scale, const struct rope *rope, int head_dim);

#endif
