/* What operators must move and do, were every array read or written once: the formulas that
 * zf-bench kernels and the device that only counts (model/plan/) share.
 *
 * element: bytes of one of the device's dtype. */
#ifndef ZF_MODEL_DEVICE_OP_COST_H
#define ZF_MODEL_DEVICE_OP_COST_H

#include "model/device/ops.h"

struct op_cost {
    double bytes;     /* within device memory */
    double link;      /* between device and host */
    double flops;     /* of matrix products alone */
    int more_kernels; /* kernels that the CUDA device launches for it beyond the first */
};

/* distinct: different tokens; positions: different positions; forward reads their rows, backward
 * adds to their fp32 gradients. */
struct op_cost cost_embedding_forward(int element, double n, double distinct, double positions,
                                      double C);
struct op_cost cost_embedding_backward(int element, double n, double distinct, double positions,
                                       double C);
struct op_cost cost_layernorm_forward(int element, double n, double C, bool branch);
struct op_cost cost_layernorm_backward(int element, double n, double C, bool branch);
struct op_cost cost_rmsnorm_forward(int element, double n, double C, bool branch);
struct op_cost cost_rmsnorm_backward(int element, double n, double C, bool branch);
struct op_cost cost_matmul(int element, const struct matmul *p);
struct op_cost cost_bias_backward(int element, double n, double C);
/* Either direction. */
struct op_cost cost_rotary(int element, double n, const struct rotary *r);
/* Pairs of tokens that causal attention multiplies, in a sequence of `length`. window: as in struct
 * attention. */
double attention_pairs(double length, int window);
/* pairs: of all sequences. */
struct op_cost cost_attention_forward(int element, double n, double pairs, const struct heads *h);
struct op_cost cost_attention_backward(int element, double n, double pairs, const struct heads *h);
struct op_cost cost_swiglu_forward(int element, double n, double I);
/* again: whether it makes the output too */
struct op_cost cost_swiglu_backward(int element, double n, double I, bool again);
struct op_cost cost_gather_last(int element, double n_seqs, double C);
struct op_cost cost_scatter_last(int element, double n, double n_seqs, double C);
struct op_cost cost_cross_entropy(int element, double n, double classes);
struct op_cost cost_squared_error(int element, double n);
struct op_cost cost_add_sum(double n);
struct op_cost cost_convert(int element, double n); /* from_f32, to_f32 */

/* The engine's: elements and rows of the channels that are meant. */
/* to: bytes of an element where most rows go */
struct op_cost cost_take_rows(int to, double elements, double rows);
struct op_cost cost_summarise_norms(double rows);
struct op_cost cost_select_rows(double rows);
/* element: 0 where the parameter is the master itself */
struct op_cost cost_adamw(int element, double elements);
/* from: bytes of an element that is read;  fresh: of the elements, those whose windows begin and
 * are not read */
struct op_cost cost_accumulate_rows(int from, double elements, double fresh);
/* exchange: bytes of an element on the link */
struct op_cost cost_send_rows(int from, int exchange, double elements);
struct op_cost cost_receive_rows(int element, int exchange, double elements);
/* The same, where they are only packed, or unpacked, within device memory. */
struct op_cost cost_pack_rows(int from, int to, double elements);
struct op_cost cost_copy_rows(double bytes);

#endif
