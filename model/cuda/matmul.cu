/* Matrix products by cuBLASLt, with what follows fused into them where it can.
 *
 * Limit: 2 m n k FLOPs on tensor cores (bf16, fp32 sums); for few tokens, the bytes of the weight.
 *
 * Choosing an algorithm takes far longer than starting one, and token streams come in any length.
 * So a choice (a plan) is kept and serves all lengths that round up to the same multiple of
 * ROUND_ROWS; what it is depends on the rounded shape alone, never on the length that came first.
 *
 * Row-major on column-major: a row-major matrix is its own transpose in columns, so
 *   c = op(a) op(b)  is computed as  c^T = op(b)^T op(a)^T. */
#include "model/cuda/matmul.cuh"

extern "C" {
#include "data/alloc.h"
#include "data/log.h"
}
#include "model/cuda/cuda_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE_BYTES ((size_t)32 << 20) /* what NVIDIA recommends for Hopper */
#define ROUND_ROWS      64
#define N_BUCKETS       256
#define MIN_SIZE        8 /* narrower products go to matmul_small */

/* What an algorithm is chosen by. */
struct plan_key {
    int m, n, k; /* rounded */
    int trans_a, trans_b, accumulate, c_is_f32;
    int epilogue;
    int align_a, align_b, align_c; /* bytes, at most 16 */
};

struct plan {
    struct plan_key key;
    bool works; /* cuBLASLt takes this shape */
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
    struct plan *next;
};

static struct {
    struct cublaslt lt;
    cublasLtHandle_t handle;
    struct plan *plans[N_BUCKETS];
} blas;

#define check_lt(call) lt_check((call), #call, __LINE__)

static void lt_check(cublasStatus_t status, const char *call, int line)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    fflush(stdout);
    fprintf(stderr, "zf-train: %s:%d: cublasLt: %s failed: %s\n", __FILE__, line, call,
            blas.lt.GetStatusString(status));
    exit(1);
}

bool matmul_open(struct zf_error *err)
{
    if (blas.handle)
        return true;
    if (!cublaslt_load(&blas.lt, err))
        return false;
    cublasStatus_t status = blas.lt.Create(&blas.handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    blas.handle = NULL;
    return zf_fail(err, "cuBLASLt does not start: %s", blas.lt.GetStatusString(status));
}

/* One product in cuBLASLt's words: its A is our b, its B our a. A layout is (columns, rows, leading
 * dimension) of a row-major matrix, whose rows are lda, ldb or ldc elements long. */
struct call {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t b, a, c;
};

static void set_attribute(struct call *call, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t bytes)
{
    check_lt(blas.lt.MatmulDescSetAttribute(call->desc, attribute, value, bytes));
}

/* m and k may differ from p's. */
static void call_open(struct call *call, const struct matmul *p, int m, int k, int epilogue)
{
    const cublasOperation_t transpose_a = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t transpose_b = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType c_type = p->c_is_f32 ? CUDA_R_32F : CUDA_R_16BF;
    check_lt(blas.lt.MatmulDescCreate(&call->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set_attribute(call, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_b, sizeof transpose_b);
    set_attribute(call, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_a, sizeof transpose_a);
    const uint32_t e = (uint32_t)epilogue;
    set_attribute(call, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e);
    if (epilogue & CUBLASLT_EPILOGUE_BIAS)
        set_attribute(call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
    const void *aux = p->gradient_of ? p->gradient_of : p->pre;
    if (epilogue & (CUBLASLT_EPILOGUE_GELU_AUX & CUBLASLT_EPILOGUE_DGELU)) {
        const int64_t ld_aux = p->n;
        set_attribute(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
        set_attribute(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld_aux, sizeof ld_aux);
    }
    const int n = p->n;
    const int lda = p->trans_a ? m : k, ldb = p->trans_b ? k : n, ldc = n;
    check_lt(blas.lt.MatrixLayoutCreate(&call->b, CUDA_R_16BF, ldb, p->trans_b ? n : k, ldb));
    check_lt(blas.lt.MatrixLayoutCreate(&call->a, CUDA_R_16BF, lda, p->trans_a ? k : m, lda));
    check_lt(blas.lt.MatrixLayoutCreate(&call->c, c_type, ldc, m, ldc));
}

static void call_close(struct call *call)
{
    check_lt(blas.lt.MatrixLayoutDestroy(call->c));
    check_lt(blas.lt.MatrixLayoutDestroy(call->a));
    check_lt(blas.lt.MatrixLayoutDestroy(call->b));
    check_lt(blas.lt.MatmulDescDestroy(call->desc));
}

/* Plans. */

static void set_preference(cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute, uint32_t value)
{
    check_lt(blas.lt.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

/* Sums that are cut along k are added in a second step, in fp32 and one order. */
static cublasLtMatmulPreference_t preferences(const struct plan_key *key)
{
    cublasLtMatmulPreference_t preference;
    const uint64_t workspace = WORKSPACE_BYTES;
    check_lt(blas.lt.MatmulPreferenceCreate(&preference));
    check_lt(blas.lt.MatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_b);
    set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_a);
    set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_c);
    set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->align_c);
    return preference;
}

/* What cuBLASLt does not take without an epilogue either is left to matmul_small, which may be a
 * hundred times slower: worth a word. */
static void refuse(struct plan *plan, cublasStatus_t status)
{
    const struct plan_key *key = &plan->key;
    plan->works = false;
    if (key->epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        log_warn("cuBLASLt refuses a product of m %d, n %d, k %d (%s): a slow kernel computes it",
                 key->m, key->n, key->k,
                 status == CUBLAS_STATUS_SUCCESS ? "no algorithm"
                                                 : blas.lt.GetStatusString(status));
}

static struct plan *make_plan(const struct plan_key *key, const struct matmul *p)
{
    struct plan *plan = (struct plan *)zf_calloc(1, sizeof *plan);
    plan->key = *key;
    struct call call;
    call_open(&call, p, key->m, key->k, key->epilogue);
    cublasLtMatmulPreference_t preference = preferences(key);
    cublasLtMatmulHeuristicResult_t result;
    int n_results = 0;
    cublasStatus_t status = blas.lt.MatmulAlgoGetHeuristic(
        blas.handle, call.desc, call.b, call.a, call.c, call.c, preference, 1, &result, &n_results);
    plan->works = status == CUBLAS_STATUS_SUCCESS && n_results == 1;
    if (plan->works) {
        plan->algo = result.algo;
        plan->workspace_bytes = result.workspaceSize;
    } else {
        refuse(plan, status);
    }
    check_lt(blas.lt.MatmulPreferenceDestroy(preference));
    call_close(&call);
    return plan;
}

static int alignment(const void *address)
{
    const uintptr_t bits = (uintptr_t)address;
    return bits % 16 == 0 ? 16 : (int)(bits & -bits);
}

static int round_up(int x, int multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

/* The number of tokens is the m of a layer and the k of a weight's gradient. A length that is
 * between two rows of some matrix decides how its rows are aligned and is not rounded. */
static struct plan_key key_of(const struct matmul *p, const void *c, const void *a, const void *b,
                              int epilogue, bool exact)
{
    struct plan_key key;
    memset(&key, 0, sizeof key);
    key.m = p->trans_a || exact ? p->m : round_up(p->m, ROUND_ROWS);
    key.n = p->n;
    key.k = p->trans_a && !p->trans_b && !exact ? round_up(p->k, ROUND_ROWS) : p->k;
    key.trans_a = p->trans_a;
    key.trans_b = p->trans_b;
    key.accumulate = p->accumulate;
    key.c_is_f32 = p->c_is_f32;
    key.epilogue = epilogue;
    key.align_a = alignment(a);
    key.align_b = alignment(b);
    key.align_c = alignment(c);
    return key;
}

static struct plan *find_plan(const struct plan_key *key, const struct matmul *p)
{
    const int *words = (const int *)key;
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < sizeof *key / sizeof *words; i++)
        hash = (hash ^ (uint32_t)words[i]) * 16777619u;
    struct plan **bucket = &blas.plans[(hash ^ hash >> 16) % N_BUCKETS];
    for (struct plan *plan = *bucket; plan; plan = plan->next)
        if (memcmp(&plan->key, key, sizeof *key) == 0)
            return plan;
    struct plan *plan = make_plan(key, p);
    plan->next = *bucket;
    return *bucket = plan;
}

/* Whether cuBLASLt did it. A plan for rounded lengths may not suit the length itself, whatever
 * status says so; then there is one of its own. */
static bool try_product(struct stream *s, void *c, const void *a, const void *b,
                        const struct matmul *p, int epilogue, bool exact)
{
    const struct plan_key key = key_of(p, c, a, b, epilogue, exact);
    struct plan *plan = find_plan(&key, p);
    if (!plan->works)
        return false;
    const float alpha = 1, beta = p->accumulate ? 1 : 0;
    void *workspace = plan->workspace_bytes ? cuda_scratch(s, plan->workspace_bytes) : NULL;
    struct call call;
    call_open(&call, p, p->m, p->k, epilogue);
    cublasStatus_t status =
        blas.lt.Matmul(blas.handle, call.desc, &alpha, b, call.b, a, call.a, &beta, c, call.c, c,
                       call.c, &plan->algo, workspace, plan->workspace_bytes, s->cuda);
    call_close(&call);
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    if (!exact)
        return try_product(s, c, a, b, p, epilogue, true);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
        lt_check(status, "cublasLtMatmul", __LINE__);
    refuse(plan, status);
    return false;
}

static bool run_product(struct stream *s, void *c, const void *a, const void *b,
                        const struct matmul *p, int epilogue)
{
    if (p->n < MIN_SIZE || p->k < MIN_SIZE)
        return false;
    return try_product(s, c, a, b, p, epilogue, false);
}

/* The epilogue that does all of it, or 0. cuBLASLt's GELU is the one by tanh; what it keeps or
 * takes as the value before it has c's type and rows of a multiple of 8. */
static int whole_epilogue(const struct matmul *p)
{
    const bool gelu = p->act == ACT_GELU_TANH && !p->c_is_f32 && !p->accumulate;
    if (p->gradient_of && p->act != ACT_NONE) {
        const bool fits = gelu && p->n % 8 == 0 && alignment(p->gradient_of) == 16;
        return fits && !p->bias && !p->pre ? CUBLASLT_EPILOGUE_DGELU : 0;
    }
    if (p->bias && (p->c_is_f32 || alignment(p->bias) < 16))
        return 0;
    if (p->act == ACT_NONE)
        return p->pre ? 0 : p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (!gelu)
        return 0;
    if (!p->pre)
        return p->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    if (p->n % 8 != 0 || alignment(p->pre) < 16)
        return 0;
    return p->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
}

/* The product with its bias where cuBLASLt adds it; whether it did. */
static bool biased_product(struct stream *s, void *c, const void *a, const void *b,
                           const struct matmul *p)
{
    struct matmul biased = *p;
    biased.act = ACT_NONE;
    biased.pre = NULL;
    biased.gradient_of = NULL;
    const int epilogue = whole_epilogue(&biased);
    if (biased.bias && epilogue && run_product(s, c, a, b, &biased, epilogue))
        return true;
    if (!run_product(s, c, a, b, &biased, CUBLASLT_EPILOGUE_DEFAULT))
        matmul_small(s, c, a, b, &biased);
    return false;
}

/* The product where the value before the activation is wanted anyway, else in c itself, and what
 * follows it in a pass of its own. If old c comes after something that it must not go through, the
 * product has a place of its own in scratch. */
static void product_then_finish(struct stream *s, void *c, const void *a, const void *b,
                                const struct matmul *p)
{
    const bool shapes = p->act != ACT_NONE; /* it or its slope is no mere addition */
    const bool late = p->accumulate && (shapes || p->pre);
    struct matmul first = *p, rest = *p;
    void *product = c;
    if (p->pre && !p->c_is_f32) {
        product = p->pre;
    } else if (late) {
        /* The product lies behind what run_product asks for as workspace, in the same piece. */
        const size_t bytes = (size_t)p->m * p->n * (p->c_is_f32 ? sizeof(float) : 2);
        product = (char *)cuda_scratch(s, WORKSPACE_BYTES + bytes) + WORKSPACE_BYTES;
    }
    first.accumulate = p->accumulate && !late;
    rest.accumulate = late;
    if (biased_product(s, product, a, b, &first))
        rest.bias = NULL;
    if (rest.bias || shapes || late || p->pre)
        matmul_finish(s, c, product, &rest);
}

void cuda_matmul(struct stream *s, void *c, const void *a, const void *b, const struct matmul *p)
{
    if (p->m == 0 || p->n == 0)
        return;
    const int epilogue = whole_epilogue(p);
    if (epilogue == 0 || !run_product(s, c, a, b, p, epilogue))
        product_then_finish(s, c, a, b, p);
}
