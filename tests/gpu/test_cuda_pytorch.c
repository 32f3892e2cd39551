/* The CUDA device's operators against PyTorch: relative errors against its float64, on inputs that
 * bf16 holds exactly, printed beside those of PyTorch's own bf16 (tests/fixtures/make_bf16.py). */
#include "tests/gpu/cuda_testing.h"

#include "data/batch.h"
#include "data/safetensors.h"

#define BOUND    1e-2
#define N_HEADS  2 /* as in make_bf16.py */
#define HEAD_DIM 64
#define THETA    100
#define EPS      1e-5f

static struct device *cuda;
#define OPS     (cuda->ops)
#define COMPUTE (cuda->compute)

static struct safetensors *file;
static const char *case_name;

static const struct dropout no_drop = {.p = 0};

static void open_case(const char *name)
{
    char path[512];
    struct zf_error err;
    snprintf(path, sizeof path, ZF_TESTS_DIR "/fixtures/bf16/%s.safetensors", name);
    file = safetensors_open(path, &err);
    if (!file)
        fail_msg("%s", err.text);
    case_name = name;
}

static const struct tensor *tensor(const char *name)
{
    const struct tensor *t = safetensors_find(file, name);
    if (!t)
        fail_msg("%s has no tensor %s", case_name, name);
    return t;
}

/* Elements of a tensor; its rows; its columns. */
static size_t count(const char *name)
{
    return tensor(name)->n_elements;
}

static int rows_of(const char *name)
{
    return (int)tensor(name)->shape[0];
}

static int cols_of(const char *name)
{
    return (int)tensor(name)->shape[1];
}

static float *read_values(const char *name)
{
    struct zf_error err;
    float *x = zf_malloc_aligned(sizeof(float) * count(name));
    assert_works(tensor_read_f32(tensor(name), x, 0, count(name), &err), err);
    return x;
}

/* A file's data may be unaligned. */
static int *read_ints(const char *name)
{
    const size_t bytes = sizeof(int) * count(name);
    return memcpy(zf_malloc(bytes), tensor(name)->data, bytes);
}

/* A tensor in device memory, as it stands in the file. */
static void *given(const char *name)
{
    return cuda_upload(cuda, tensor(name)->data, count(name) * dtype_size(tensor(name)->dtype));
}

/* Room in the device's dtype; fp32 zeros, to add gradients to. */
static void *room(size_t n)
{
    return cuda->allocate(sizeof(uint16_t) * n);
}

static float *zeros(size_t n)
{
    float *x = cuda->allocate(sizeof(float) * n);
    cuda->zero(COMPUTE, x, sizeof(float) * n);
    return x;
}

static void expect(const char *name, const void *memory, enum dtype dtype)
{
    char error_name[64];
    snprintf(error_name, sizeof error_name, "error.%s", name);
    float *x = cuda_download(cuda, memory, count(name), dtype);
    float *expected = read_values(name), *theirs = read_values(error_name);
    const double ours = cuda_relative_error(x, expected, count(name));
    print_message("%s.%s: relative error %.2e; PyTorch in bf16 %.2e\n", case_name, name, ours,
                  (double)theirs[0]);
    if (!(ours < BOUND))
        fail_msg("%s.%s: relative error %.3g, not below %.3g", case_name, name, ours, BOUND);
    free(x);
    free(expected);
    free(theirs);
}

/* The tests leave their arrays to the end of the program: they are few and small. */

static void layernorm(void **state)
{
    (void)state;
    open_case("layernorm");
    const int n = rows_of("x"), C = cols_of("x");
    const struct token_rows rows = {.n_tokens = n};
    void *x = given("x"), *y = room(count("y")), *gamma = given("gamma"), *dx = room(count("x"));
    float *mean = zeros((size_t)n), *rstd = zeros((size_t)n);
    float *dgamma = zeros((size_t)C), *dbeta = zeros((size_t)C);
    OPS->residual_layernorm_forward(COMPUTE, x, y, mean, rstd, x, NULL, &rows, gamma, given("beta"),
                                    EPS, C, no_drop);
    cuda->zero(COMPUTE, dx, sizeof(uint16_t) * count("x"));
    OPS->residual_layernorm_backward(COMPUTE, dx, NULL, dgamma, dbeta, given("dy"), x, mean, rstd,
                                     &rows, gamma, C, no_drop, true);
    expect("y", y, DTYPE_BF16);
    expect("dx", dx, DTYPE_BF16);
    expect("dgamma", dgamma, DTYPE_F32);
    expect("dbeta", dbeta, DTYPE_F32);
    safetensors_close(file);
}

static void rmsnorm(void **state)
{
    (void)state;
    open_case("rmsnorm");
    const int n = rows_of("x"), C = cols_of("x");
    const struct token_rows rows = {.n_tokens = n};
    void *x = given("x"), *y = room(count("y")), *weight = given("weight"), *dx = room(count("x"));
    float *rstd = zeros((size_t)n), *dweight = zeros((size_t)C);
    OPS->residual_rmsnorm_forward(COMPUTE, x, y, rstd, x, NULL, &rows, weight, EPS, C, no_drop);
    cuda->zero(COMPUTE, dx, sizeof(uint16_t) * count("x"));
    OPS->residual_rmsnorm_backward(COMPUTE, dx, NULL, dweight, given("dy"), x, rstd, &rows, weight,
                                   C, no_drop, false);
    expect("y", y, DTYPE_BF16);
    expect("dx", dx, DTYPE_BF16);
    expect("dweight", dweight, DTYPE_F32);
    safetensors_close(file);
}

static void mlp(void **state)
{
    (void)state;
    open_case("mlp");
    const int n = rows_of("x"), in = cols_of("x"), inner = cols_of("w1"), out = cols_of("w2");
    const size_t n_inner = (size_t)n * (size_t)inner;
    void *x = given("x"), *w1 = given("w1"), *w2 = given("w2"), *dy = given("dy");
    void *pre = room(n_inner), *h = room(n_inner), *dpre = room(n_inner);
    void *y = room(count("y")), *dx = room(count("dx"));
    float *dw1 = zeros(count("dw1")), *db1 = zeros(count("db1"));
    float *dw2 = zeros(count("dw2")), *db2 = zeros(count("db2"));
    OPS->matmul(
        COMPUTE, h, x, w1,
        &(struct matmul){
            .m = n, .n = inner, .k = in, .bias = given("b1"), .act = ACT_GELU_TANH, .pre = pre});
    OPS->matmul(COMPUTE, y, h, w2,
                &(struct matmul){.m = n, .n = out, .k = inner, .bias = given("b2")});
    OPS->matmul(
        COMPUTE, dw2, h, dy,
        &(struct matmul){
            .m = inner, .n = out, .k = n, .trans_a = true, .accumulate = true, .c_is_f32 = true});
    OPS->bias_backward(COMPUTE, db2, dy, n, out, true);
    OPS->matmul(COMPUTE, dpre, dy, w2,
                &(struct matmul){.m = n,
                                 .n = inner,
                                 .k = out,
                                 .trans_b = true,
                                 .act = ACT_GELU_TANH,
                                 .gradient_of = pre});
    OPS->matmul(
        COMPUTE, dw1, x, dpre,
        &(struct matmul){
            .m = in, .n = inner, .k = n, .trans_a = true, .accumulate = true, .c_is_f32 = true});
    OPS->bias_backward(COMPUTE, db1, dpre, n, inner, true);
    OPS->matmul(COMPUTE, dx, dpre, w1,
                &(struct matmul){.m = n, .n = in, .k = inner, .trans_b = true});
    expect("y", y, DTYPE_BF16);
    expect("dx", dx, DTYPE_BF16);
    expect("dw1", dw1, DTYPE_F32);
    expect("db1", db1, DTYPE_F32);
    expect("dw2", dw2, DTYPE_F32);
    expect("db2", db2, DTYPE_F32);
    safetensors_close(file);
}

static void swiglu(void **state)
{
    (void)state;
    open_case("swiglu");
    const int n = rows_of("dy"), inner = cols_of("dy");
    void *gate_up = given("gate_up"), *y = room(count("y")), *dgate_up = room(count("gate_up"));
    OPS->swiglu_forward(COMPUTE, y, gate_up, n, inner);
    OPS->swiglu_backward(COMPUTE, dgate_up, NULL, given("dy"), gate_up, n, inner);
    expect("y", y, DTYPE_BF16);
    expect("dgate_up", dgate_up, DTYPE_BF16);
    safetensors_close(file);
}

/* The sequences of the case's file, in device memory. */
static struct token_rows given_rows(int n)
{
    const int n_seqs = rows_of("seq_start") - 1;
    int *start = read_ints("seq_start"), *position = zf_malloc(sizeof(int) * (size_t)n);
    uint32_t *token_seq = zf_malloc(sizeof *token_seq * (size_t)n);
    for (int i = 0; i < n_seqs; i++)
        for (int t = start[i]; t < start[i + 1]; t++) {
            position[t] = t - start[i];
            token_seq[t] = (uint32_t)i;
        }
    const struct token_rows rows = {n,
                                    n_seqs,
                                    NULL,
                                    cuda_upload(cuda, position, sizeof(int) * (size_t)n),
                                    given("seq_start"),
                                    cuda_upload(cuda, token_seq, sizeof *token_seq * (size_t)n)};
    free(start);
    free(position);
    free(token_seq);
    return rows;
}

static void attention_of(const char *name, struct heads heads)
{
    open_case(name);
    const int n = rows_of("qkv");
    const struct token_rows rows = given_rows(n);
    void *qkv = given("qkv"), *out = room(count("out")), *dqkv = room(count("qkv"));
    float *lse = zeros((size_t)n * (size_t)heads.n_head);
    const struct attention attention = {.heads = heads, .scale = 1 / sqrtf(HEAD_DIM)};
    OPS->attention_forward(COMPUTE, out, lse, qkv, &rows, &attention);
    OPS->attention_backward(COMPUTE, dqkv, given("dout"), qkv, out, lse, &rows, &attention);
    expect("out", out, DTYPE_BF16);
    expect("dqkv", dqkv, DTYPE_BF16);
    safetensors_close(file);
}

static void attention(void **state)
{
    (void)state;
    attention_of("attention", (struct heads){N_HEADS, N_HEADS, HEAD_DIM});
    attention_of("grouped", (struct heads){N_HEADS, 1, HEAD_DIM});
}

static void rotary(void **state)
{
    (void)state;
    open_case("rotary");
    const int n = rows_of("qkv");
    const struct token_rows rows = given_rows(n);
    float frequency[HEAD_DIM / 2];
    for (int i = 0; i < HEAD_DIM / 2; i++)
        frequency[i] = powf(THETA, -2.0f * (float)i / HEAD_DIM);
    const struct rotary rotary = {.heads = {N_HEADS, 1, HEAD_DIM},
                                  .frequency = cuda_upload(cuda, frequency, sizeof frequency),
                                  .scale = 1,
                                  .q_weight = given("q_weight"),
                                  .k_weight = given("k_weight"),
                                  .eps = EPS};
    void *qkv = given("qkv"), *pre = room(count("qkv")), *dqkv = given("dout");
    float *dq_weight = zeros(HEAD_DIM), *dk_weight = zeros(HEAD_DIM);
    OPS->rotary_forward(COMPUTE, qkv, pre, &rows, &rotary);
    OPS->rotary_backward(COMPUTE, dqkv, dq_weight, dk_weight, pre, &rows, &rotary, false);
    expect("out", qkv, DTYPE_BF16);
    expect("dqkv", dqkv, DTYPE_BF16);
    expect("dq_weight", dq_weight, DTYPE_F32);
    expect("dk_weight", dk_weight, DTYPE_F32);
    safetensors_close(file);
}

static void cross_entropy(void **state)
{
    (void)state;
    open_case("cross_entropy");
    const int n = rows_of("logits"), n_classes = cols_of("logits");
    int *target = read_ints("targets"), n_items = 0;
    for (int i = 0; i < n; i++)
        n_items += target[i] != TARGET_IGNORE;
    float *losses = zeros((size_t)n);
    void *dlogits = room(count("logits"));
    OPS->cross_entropy(COMPUTE, losses, dlogits, given("logits"), given("targets"), n, n_classes,
                       n_classes, 1.0f / (float)n_items);
    expect("losses", losses, DTYPE_F32);
    expect("dlogits", dlogits, DTYPE_BF16);
    free(target);
    safetensors_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layernorm),     cmocka_unit_test(rmsnorm),   cmocka_unit_test(mlp),
        cmocka_unit_test(swiglu),        cmocka_unit_test(attention), cmocka_unit_test(rotary),
        cmocka_unit_test(cross_entropy),
    };
    cuda = cuda_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
