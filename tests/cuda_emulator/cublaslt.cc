/* Matrix products as cuBLASLt computes them, by a plain library on fp32 copies. What the real one
 * refuses (sizes that do not fit, leading dimensions, alignment) is refused here as well. */
#include "internal.h"
#include "streams.h"

extern "C" {
#include "data/bf16.h"
}

#include <algorithm>
#include <cublasLt.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>
#include <vector>

#define WORKSPACE_BYTES (64 << 10) /* as much as it may have, but no more than this, is used */

struct cublasLtContext {
    int unused;
};

struct cublasLtMatmulDescOpaque {
    int32_t trans_a, trans_b;
    int32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
};

struct cublasLtMatrixLayoutOpaque {
    int32_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct cublasLtMatmulPreferenceOpaque {
    uint64_t workspace_bytes;
    uint32_t alignment[4]; /* of A, B, C, D, in bytes */
    uint32_t reductions;
};

/* What a heuristic has promised about a product; lies in cublasLtMatmulAlgo_t. */
struct promise {
    uint64_t workspace_bytes;
    uint32_t alignment[4];
    int32_t kind[5]; /* it is for products of this kind, of any size */
};

struct product {
    cublasLtMatmulDescOpaque desc;
    cublasLtMatrixLayoutOpaque a_layout, b_layout, c_layout, d_layout;
    const void *a, *b, *c;
    void *d, *workspace;
    float alpha, beta;
    size_t workspace_bytes;
};

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_INVALID_VALUE   ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                   : "CUBLAS_STATUS_SUCCESS";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale_type)
{
    if (compute != CUBLAS_COMPUTE_32F || scale_type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *desc = new cublasLtMatmulDescOpaque();
    (*desc)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

/* Copies an attribute if its size is as expected. */
template <typename T> static cublasStatus_t set(T *field, const void *value, size_t bytes)
{
    if (bytes != sizeof *field)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&desc->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&desc->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&desc->aux_ld, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *layout = new cublasLtMatrixLayoutOpaque{type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference =
        new cublasLtMatmulPreferenceOpaque{0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                   value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

static bool is_layout(const cublasLtMatrixLayoutOpaque *layout)
{
    return (layout->type == CUDA_R_32F || layout->type == CUDA_R_16BF) && layout->rows > 0 &&
           layout->cols > 0 && layout->ld >= (int64_t)layout->rows;
}

/* Whether the sizes fit together and the epilogue has what it needs. */
static cublasStatus_t check(const product *p)
{
    const cublasLtMatrixLayoutOpaque *a = &p->a_layout, *b = &p->b_layout, *d = &p->d_layout;
    const cublasLtMatmulDescOpaque *desc = &p->desc;
    if (!is_layout(a) || !is_layout(b) || !is_layout(&p->c_layout) || !is_layout(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    uint64_t m = desc->trans_a ? a->cols : a->rows, k = desc->trans_a ? a->rows : a->cols;
    uint64_t n = desc->trans_b ? b->rows : b->cols, inner = desc->trans_b ? b->cols : b->rows;
    if (k != inner || d->rows != m || d->cols != n || p->c_layout.rows != m ||
        p->c_layout.cols != n)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != b->type || p->c_layout.type != d->type ||
        (a->type == CUDA_R_32F && d->type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((desc->epilogue & 128) && (desc->aux_ld % 8 || desc->aux_ld < (int64_t)d->rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

static void get_kind(const product *p, int32_t kind[5])
{
    kind[0] = p->desc.trans_a, kind[1] = p->desc.trans_b, kind[2] = p->desc.epilogue;
    kind[3] = p->a_layout.type, kind[4] = p->d_layout.type;
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                               cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                               cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                               cublasLtMatmulPreference_t preference, int n_requested,
                               cublasLtMatmulHeuristicResult_t results[], int *n_returned)
{
    *n_returned = 0;
    if (!handle || n_requested < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    product p = {};
    p.desc = *desc;
    p.a_layout = *a_layout, p.b_layout = *b_layout;
    p.c_layout = *c_layout, p.d_layout = *d_layout;
    cublasStatus_t status = check(&p);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    promise promised = {std::min(preference->workspace_bytes, (uint64_t)WORKSPACE_BYTES), {}, {}};
    memcpy(promised.alignment, preference->alignment, sizeof promised.alignment);
    get_kind(&p, promised.kind);
    memset(&results[0], 0, sizeof results[0]);
    static_assert(sizeof promised <= sizeof results[0].algo, "an algo holds a promise");
    memcpy(&results[0].algo, &promised, sizeof promised);
    results[0].workspaceSize = promised.workspace_bytes;
    results[0].wavesCount = 1;
    *n_returned = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* The product itself. */

static float load(const void *x, int32_t type, size_t i)
{
    return type == CUDA_R_32F ? ((const float *)x)[i] : bf16_to_f32(((const uint16_t *)x)[i]);
}

static void store(void *x, int32_t type, size_t i, float value)
{
    if (type == CUDA_R_32F)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = bf16_from_f32(value);
}

static std::vector<float> load_matrix(const void *x, const cublasLtMatrixLayoutOpaque &layout)
{
    std::vector<float> packed(layout.rows * layout.cols);
    for (size_t j = 0; j < layout.cols; j++)
        for (size_t i = 0; i < layout.rows; i++)
            packed[j * layout.rows + i] = load(x, layout.type, j * (size_t)layout.ld + i);
    return packed;
}

/* The tanh form (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016), and its slope. */
static float gelu(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

static void apply_epilogue(const product &p, std::vector<float> &d, size_t m, size_t n)
{
    const int e = p.desc.epilogue, d_type = p.d_layout.type;
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < m; i++) {
            float x = d[j * m + i];
            size_t aux_at = j * (size_t)p.desc.aux_ld + i;
            if (p.beta != 0)
                x += p.beta * load(p.c, p.c_layout.type, j * (size_t)p.c_layout.ld + i);
            if (e & CUBLASLT_EPILOGUE_BIAS)
                x += load(p.desc.bias, d_type, i);
            if ((e & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX)
                store(p.desc.aux, d_type, aux_at, x);
            if (e & CUBLASLT_EPILOGUE_GELU)
                x = gelu(x);
            if (e & 64)
                x *= gelu_slope(load(p.desc.aux, d_type, aux_at));
            store(p.d, d_type, j * (size_t)p.d_layout.ld + i, x);
        }
}

static void run(const product &p)
{
    const bool trans_a = p.desc.trans_a, trans_b = p.desc.trans_b;
    const size_t m = p.d_layout.rows, n = p.d_layout.cols;
    const size_t k = trans_a ? p.a_layout.rows : p.a_layout.cols;
    std::vector<float> a = load_matrix(p.a, p.a_layout), b = load_matrix(p.b, p.b_layout);
    std::vector<float> d(m * n);
    if (p.workspace_bytes)
        memset(p.workspace, POISON, p.workspace_bytes); /* nobody may count on what was there */
    /* Its matrices are row-major: of the transposed ones, d' = b' a'. */
    dnnl_sgemm(trans_b ? 'T' : 'N', trans_a ? 'T' : 'N', (dnnl_dim_t)n, (dnnl_dim_t)m,
               (dnnl_dim_t)k, p.alpha, b.data(), (dnnl_dim_t)p.b_layout.rows, a.data(),
               (dnnl_dim_t)p.a_layout.rows, 0, d.data(), (dnnl_dim_t)m);
    apply_epilogue(p, d, m, n);
}

/* A fault unless a matrix lies in device memory, aligned as was promised. */
static void check_matrix(const char *what, const void *x, const cublasLtMatrixLayoutOpaque &layout,
                         uint32_t alignment)
{
    size_t element = layout.type == CUDA_R_32F ? 4 : 2;
    size_t n = (layout.cols - 1) * (size_t)layout.ld + layout.rows;
    emulator_check_range(what, x, n * element);
    if ((uintptr_t)x % alignment)
        emulator_fault("%s: %p is not aligned to %u bytes, as its plan promised", what, x,
                       alignment);
}

static void check_operands(const product &p, const promise &promised)
{
    check_matrix("cublasLtMatmul's A", p.a, p.a_layout, promised.alignment[0]);
    check_matrix("cublasLtMatmul's B", p.b, p.b_layout, promised.alignment[1]);
    if (p.beta != 0)
        check_matrix("cublasLtMatmul's C", p.c, p.c_layout, promised.alignment[2]);
    check_matrix("cublasLtMatmul's D", p.d, p.d_layout, promised.alignment[3]);
    if (p.c == p.d && p.c_layout.ld != p.d_layout.ld)
        emulator_fault("cublasLtMatmul in place, but with another leading dimension");
    if (p.desc.epilogue & 128) {
        cublasLtMatrixLayoutOpaque aux = p.d_layout;
        aux.ld = p.desc.aux_ld;
        check_matrix("cublasLtMatmul's auxiliary matrix", p.desc.aux, aux, 16);
    }
    if (p.desc.epilogue & CUBLASLT_EPILOGUE_BIAS) {
        const uint64_t n = p.d_layout.rows;
        check_matrix("cublasLtMatmul's bias", p.desc.bias, {p.d_layout.type, n, 1, (int64_t)n}, 16);
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    emulator_enter("cublasLtMatmul");
    if (!handle || !algo)
        return CUBLAS_STATUS_INVALID_VALUE;
    promise promised;
    memcpy(&promised, algo, sizeof promised);
    product p = {*desc,
                 *a_layout,
                 *b_layout,
                 *c_layout,
                 *d_layout,
                 a,
                 b,
                 c,
                 d,
                 workspace,
                 *(const float *)alpha,
                 *(const float *)beta,
                 (size_t)promised.workspace_bytes};
    cublasStatus_t status = check(&p);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    int32_t kind[5];
    get_kind(&p, kind);
    if (memcmp(kind, promised.kind, sizeof kind) != 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    check_operands(p, promised);
    if (workspace_bytes < p.workspace_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p.workspace_bytes)
        emulator_check_range("cublasLtMatmul's workspace", workspace, p.workspace_bytes);
    if ((uintptr_t)workspace % 16)
        emulator_fault("cublasLtMatmul's workspace is not aligned to 16 bytes");
    emulator_enqueue(stream, "a matrix product", [p] {
        run(p);
        return EMULATOR_DONE;
    });
    return CUBLAS_STATUS_SUCCESS;
}
