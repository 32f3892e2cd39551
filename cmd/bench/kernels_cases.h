/* The operators that zf-bench kernels measures, what each costs at least, and their arrays. */
#ifndef ZF_CMD_BENCH_KERNELS_CASES_H
#define ZF_CMD_BENCH_KERNELS_CASES_H

#include "model/device/op_cost.h"
#include "model/device/row_ops.h"
#include "model/gpt.h"

/* A micro-batch of n_seqs sequences of `length` tokens, and a matrix of channels: the token
 * embeddings', the model's largest. */
struct kernel_shape {
    int n, n_seqs, length; /* n = n_seqs * length tokens */
    int C, inner;
    struct heads heads;
    bool swiglu; /* gate and up are of `inner` columns each */
    int vocab, positions;
    int logit_rows; /* of the language model's head at a time */
    int distinct;   /* how many different tokens there are */
    int important;  /* channels of the matrix (vocab, C) that are so */
    int closing;    /* its deferred channels whose window closes */
    int element;    /* bytes of one of the device's dtype */
};

/* Parameters of fp32 are their own masters, as resident ones are in training. */
static inline bool kernel_has_masters(const struct kernel_shape *s)
{
    return s->element < (int)sizeof(float);
}

struct kernel_bench {
    struct device *device;
    struct kernel_shape shape;
    enum activation act;
    float p; /* of dropout */

    struct token_rows rows;
    int *order, *targets;
    float *scores;

    void *wide[4];            /* (n, width) random; width: of the widest product */
    float *frequency;         /* (head_dim) */
    void *weight, *bias;      /* (C, width), (width) */
    float *mean, *rstd, *lse; /* (n), (n), (n, heads.n_head) */
    float *d_weight, *d_bias; /* gradients of weight, and of bias and gains */
    float *logits, *losses;   /* (logit_rows, vocab), (n) */
    void *d_logits;           /* (logit_rows, vocab) */
    double *sum;

    void *table, *position; /* (vocab, C), (positions, C) */
    float *master, *m, *v;  /* (vocab, C) */
    float *gradient, *d_position;
    float *waiting, *deferred;      /* (vocab, C) where gradients are taken to */
    int *important;                 /* (important) some rows */
    int *slot;                      /* (vocab) each row's: its own number */
    struct channel_update *updates; /* (vocab + important) all rows; then those */
    float *norms, *one;
    struct norm_summary *summary;
    unsigned char *place, *chosen;
    void *exchange;            /* (vocab, C) memory of allocate_host */
    struct matrix_batch batch; /* the matrix of channels: its values are `table`, its window is
                                  `m` */

    struct matmul product; /* what run_product does */
};

struct kernel_case {
    const char *name;
    void (*run)(void *bench);
    struct op_cost (*cost)(const struct kernel_shape *s);
    bool drops; /* has dropout */
};
/* All operators but the matrix product. */
extern const struct kernel_case kernel_cases[];
extern const int n_kernel_cases;

struct kernel_product {
    const char *name;
    struct matmul product;
};
#define KERNEL_PRODUCTS 10
/* The matrix products of a block and of a language model's head. */
void kernel_products(const struct kernel_bench *b, struct kernel_product list[KERNEL_PRODUCTS]);
void kernel_run_product(void *bench);

/* dtype and shape are set; allocates and fills the rest. */
void kernel_bench_create(struct kernel_bench *b);
void kernel_bench_destroy(struct kernel_bench *b);

#endif
