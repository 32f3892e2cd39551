/* Every operator of the CPU device at the shapes of GPT-2 small and of a small model, as the median
 * of several runs, beside what the machine can do: the rate of a large matrix product and of a copy
 * measured here. For each operator the time, the bytes it must move and the operations it must do,
 * and the share of the nearer limit that it reaches.
 *
 *   bench_ops [threads] */
#include "data/alloc.h"
#include "data/clock.h"
#include "model/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 15 };

struct shape {
    const char *name;
    int n_seqs, length, C, n_head, vocab, n_classes;
};

struct bench {
    struct device *device;
    struct shape shape;
    struct token_rows rows;
    int n;        /* tokens */
    float p;      /* of dropout */
    float *a, *b; /* (n, 4C) random */
    float *c, *d; /* (n, 4C) results */
    float *w;     /* (4C, C), and n_parameters of it for AdamW */
    float *vector, *master, *m, *v, *gradient;
    size_t n_parameters;
    int *order, *targets;
    float *logits, *losses;
    struct matmul product;
    double peak_flops, peak_bytes; /* per second */
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of one run of f. */
static double measure(void (*f)(struct bench *), struct bench *b)
{
    double seconds[RUNS];
    f(b);
    for (int i = 0; i < RUNS; i++) {
        double begin = clock_seconds();
        f(b);
        seconds[i] = clock_seconds() - begin;
    }
    qsort(seconds, RUNS, sizeof *seconds, compare_doubles);
    return seconds[RUNS / 2];
}

static void report(const char *name, void (*f)(struct bench *), struct bench *b, double flops,
                   double bytes)
{
    const double seconds = measure(f, b);
    const double by_flops = flops / seconds / b->peak_flops;
    const double by_bytes = bytes / seconds / b->peak_bytes;
    printf("  %-28s %10.1f us  %8.1f MB %6.1f GB/s  %8.1f MFLOP %6.1f GFLOP/s  %4.0f %% of %s\n",
           name, seconds * 1e6, bytes * 1e-6, bytes / seconds * 1e-9, flops * 1e-6,
           flops / seconds * 1e-9, 100 * (by_flops > by_bytes ? by_flops : by_bytes),
           by_flops > by_bytes ? "product" : "copy");
}

static float *random_array(const struct bench *b, size_t n)
{
    float *x = b->device->allocate(sizeof(float) * n);
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-23f - 1;
    }
    return x;
}

static struct dropout dropout_of(const struct bench *b)
{
    return (struct dropout){.p = b->p, .seed = 1, .step = 2, .site = 3};
}

static void run_product(struct bench *b)
{
    b->device->ops->matmul(b->device->compute, b->c, b->a, b->w, &b->product);
}

static void run_copy(struct bench *b)
{
    b->device->copy(b->device->compute, b->m, b->v, sizeof(float) * b->n_parameters);
}

static void run_embedding_forward(struct bench *b)
{
    b->device->ops->embedding_forward(b->device->compute, b->c, &b->rows, b->master, b->w,
                                      b->shape.C, dropout_of(b));
}

static void run_embedding_backward(struct bench *b)
{
    b->device->ops->embedding_backward(b->device->compute, b->gradient, b->m, b->a, &b->rows,
                                       b->order, b->shape.C, dropout_of(b));
}

static void run_layernorm_forward(struct bench *b)
{
    b->device->ops->residual_layernorm_forward(b->device->compute, b->c, b->d, b->vector,
                                               b->vector + b->n, b->a, b->b, &b->rows, b->w,
                                               b->w + b->shape.C, 1e-5f, b->shape.C, dropout_of(b));
}

static void run_layernorm_backward(struct bench *b)
{
    b->device->ops->residual_layernorm_backward(b->device->compute, b->c, b->d, b->m, b->v, b->a,
                                                b->b, b->vector, b->vector + b->n, &b->rows, b->w,
                                                b->shape.C, dropout_of(b));
}

static void run_bias_backward(struct bench *b)
{
    b->device->ops->bias_backward(b->device->compute, b->m, b->a, b->n, 4 * b->shape.C);
}

static float attention_scale(const struct bench *b)
{
    (void)b;
    return 0.125f;
}

static void run_attention_forward(struct bench *b)
{
    b->device->ops->attention_forward(b->device->compute, b->c, b->vector, b->a, &b->rows,
                                      b->shape.n_head, b->shape.C / b->shape.n_head,
                                      attention_scale(b), dropout_of(b));
}

static void run_attention_backward(struct bench *b)
{
    b->device->ops->attention_backward(b->device->compute, b->d, b->b, b->a, b->c, b->vector,
                                       &b->rows, b->shape.n_head, b->shape.C / b->shape.n_head,
                                       attention_scale(b), dropout_of(b));
}

static void run_cross_entropy(struct bench *b)
{
    b->device->ops->cross_entropy(b->device->compute, b->losses, b->logits, b->targets, b->n,
                                  b->shape.vocab, 1, true);
}

static void run_row_norms(struct bench *b)
{
    b->device->ops->row_norms_squared(b->device->compute, b->c, b->gradient,
                                      (int)(b->n_parameters / (size_t)b->shape.C), b->shape.C);
}

static void run_adamw(struct bench *b)
{
    static const float one = 1;
    const struct adamw rule = {1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f, 0.1f, 0.001f, false};
    b->device->ops->adamw(b->device->compute, b->master, b->master, b->m, b->v, b->gradient,
                          b->n_parameters, &rule, &one);
}

static void report_product(struct bench *b, const char *name, struct matmul product)
{
    b->product = product;
    const double m = product.m, n = product.n, k = product.k;
    report(name, run_product, b, 2 * m * n * k, 4 * (m * n + n * k + m * k));
}

static void report_products(struct bench *b)
{
    const int n = b->n, C = b->shape.C;
    report_product(b, "qkv", (struct matmul){.m = n, .n = 3 * C, .k = C, .bias = b->vector});
    report_product(b, "attention projection",
                   (struct matmul){.m = n, .n = C, .k = C, .bias = b->vector});
    report_product(
        b, "mlp up, gelu",
        (struct matmul){
            .m = n, .n = 4 * C, .k = C, .bias = b->vector, .pre = b->d, .act = ACT_GELU_TANH});
    report_product(b, "mlp down", (struct matmul){.m = n, .n = C, .k = 4 * C, .bias = b->vector});
    report_product(b, "mlp down, dx, gelu'",
                   (struct matmul){.m = n,
                                   .n = 4 * C,
                                   .k = C,
                                   .trans_b = true,
                                   .gradient_of = b->d,
                                   .act = ACT_GELU_TANH});
    report_product(b, "mlp up, dx", (struct matmul){.m = n, .n = C, .k = 4 * C, .trans_b = true});
    b->product = (struct matmul){
        .m = C, .n = 4 * C, .k = n, .trans_a = true, .accumulate = true, .c_is_f32 = true};
    report_product(b, "mlp up, dW", b->product);
    b->product.m = 4 * C;
    b->product.n = C;
    report_product(b, "mlp down, dW", b->product);
}

static void report_rest(struct bench *b)
{
    const double nc = 4.0 * b->n * b->shape.C; /* bytes of one activation */
    const double T = b->shape.length, pairs = T * (T + 1) / 2 * b->shape.n_seqs * b->shape.C;
    for (int i = 0; i < 2; i++) {
        b->p = i ? 0.1f : 0;
        printf("  dropout %g\n", (double)b->p);
        report("embedding", run_embedding_forward, b, 0, 3 * nc);
        report("embedding backward", run_embedding_backward, b, 0, 6 * nc);
        report("layer norm", run_layernorm_forward, b, 0, 4 * nc);
        report("layer norm backward", run_layernorm_backward, b, 0, 5 * nc);
        report("attention", run_attention_forward, b, 4 * pairs, 4 * nc);
        report("attention backward", run_attention_backward, b, 10 * pairs, 8 * nc);
    }
    report("bias backward", run_bias_backward, b, 0, 4 * nc);
    report("cross-entropy", run_cross_entropy, b, 0, 8.0 * b->n * b->shape.vocab);
    report("row norms", run_row_norms, b, 0, 4.0 * (double)b->n_parameters);
    report("AdamW", run_adamw, b, 0, 28.0 * (double)b->n_parameters);
}

static void make_rows(struct bench *b)
{
    int *tokens = zf_calloc((size_t)b->n, sizeof(int)),
        *position = zf_calloc((size_t)b->n, sizeof(int));
    int *seq_start = zf_calloc((size_t)b->shape.n_seqs + 1, sizeof(int));
    uint32_t *token_seq = zf_calloc((size_t)b->n, sizeof(uint32_t));
    b->order = zf_calloc((size_t)b->n, sizeof(int));
    b->targets = zf_calloc((size_t)b->n, sizeof(int));
    for (int t = 0; t < b->n; t++) {
        tokens[t] = t; /* ids in order, each once: the table is read and written as if at random */
        position[t] = t % b->shape.length;
        token_seq[t] = (uint32_t)(t / b->shape.length);
        b->order[t] = t;
    }
    for (int i = 0; i <= b->shape.n_seqs; i++)
        seq_start[i] = i * b->shape.length;
    b->rows = (struct token_rows){b->n, b->shape.n_seqs, tokens, position, seq_start, token_seq};
}

static void make_arrays(struct bench *b)
{
    const size_t n = (size_t)b->n, C = (size_t)b->shape.C;
    b->n_parameters = (size_t)b->shape.vocab * C;
    if (b->n_parameters < 16 * C * C)
        b->n_parameters = 16 * C * C;
    b->a = random_array(b, 4 * n * C);
    b->b = random_array(b, 4 * n * C);
    b->c = random_array(b, 4 * n * C);
    b->d = random_array(b, 4 * n * C);
    b->w = random_array(b, n * C > 4 * C * C ? n * C : 4 * C * C);
    b->vector = random_array(b, n * C);
    float **parameters[] = {&b->master, &b->m, &b->v, &b->gradient};
    for (int i = 0; i < 4; i++) {
        *parameters[i] = b->device->allocate(sizeof(float) * b->n_parameters);
        b->device->zero(b->device->compute, *parameters[i], sizeof(float) * b->n_parameters);
    }
    b->logits = random_array(b, n * (size_t)b->shape.vocab);
    b->losses = random_array(b, n);
}

static void free_all(struct bench *b)
{
    void *arrays[] = {b->a,
                      b->b,
                      b->c,
                      b->d,
                      b->w,
                      b->vector,
                      b->master,
                      b->m,
                      b->v,
                      b->gradient,
                      b->order,
                      b->targets,
                      b->logits,
                      b->losses,
                      (void *)b->rows.tokens,
                      (void *)b->rows.position,
                      (void *)b->rows.seq_start,
                      (void *)b->rows.token_seq};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

/* The rates of a large product of square matrices and of a copy, bytes read and written. */
static void measure_peaks(struct bench *b)
{
    const int n = 1024;
    float *a = b->a, *w = b->w, *c = b->c;
    b->a = random_array(b, (size_t)n * n);
    b->w = random_array(b, (size_t)n * n);
    b->c = random_array(b, (size_t)n * n);
    b->product = (struct matmul){.m = n, .n = n, .k = n};
    b->peak_flops = 2.0 * n * n * n / measure(run_product, b);
    free(b->a);
    free(b->w);
    free(b->c);
    b->a = a, b->w = w, b->c = c;
    b->peak_bytes = 8.0 * (double)b->n_parameters / measure(run_copy, b);
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        {"GPT-2 small, 8 x 128 tokens", 8, 128, 768, 12, 50257, 2},
        {"a small model, 32 x 20 tokens", 32, 20, 128, 4, 8000, 2},
    };
    double peak_bytes = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct bench b = {.device = device_cpu(argc > 1 ? atoi(argv[1]) : 0),
                          .shape = shapes[i],
                          .n = shapes[i].n_seqs * shapes[i].length};
        make_rows(&b);
        make_arrays(&b);
        measure_peaks(&b);
        if (i == 0)
            peak_bytes = b.peak_bytes;
        b.peak_bytes = peak_bytes; /* small arrays would be copied within the cache */
        printf("%s: product of 1024 %.1f GFLOP/s, copy %.1f GB/s\n", b.shape.name,
               b.peak_flops * 1e-9, b.peak_bytes * 1e-9);
        report_products(&b);
        report_rest(&b);
        free_all(&b);
    }
    return 0;
}
