/* The runtime under the emulator: memory, copies, the order of streams, and matrix products. */
#include "test_emulator.h"

#include <cublasLt.h>

#define N 64

__global__ static void add(float *y, const float *x, float addend)
{
    y[threadIdx.x] = x[threadIdx.x] + addend;
}

/* ---- the order of streams ---- */

/* Three streams hand an array on, each by an event: x + 1 + 2 + 3. Without the second wait, if
 * `careless`. Returns for how many seeds the result is wrong. */
static int wrong_relays(bool careless)
{
    struct stream *s[3] = {new_stream(), new_stream(), new_stream()};
    float *x = device_array<float>(N), values[N];
    int n_wrong = 0;
    cudaEvent_t handed[2];
    for (int i = 0; i < 2; i++)
        check_cuda(cudaEventCreateWithFlags(&handed[i], cudaEventDisableTiming));
    for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
        emulator_seed(seed);
        check_cuda(cudaMemset(x, 0, N * sizeof *x));
        check_cuda(cudaDeviceSynchronize());
        LAUNCH(add, 1, N, 0, s[0], x, x, 1.0f);
        check_cuda(cudaEventRecord(handed[0], s[0]->cuda));
        check_cuda(cudaStreamWaitEvent(s[1]->cuda, handed[0], 0));
        LAUNCH(add, 1, N, 0, s[1], x, x, 2.0f);
        check_cuda(cudaEventRecord(handed[1], s[1]->cuda));
        if (!careless)
            check_cuda(cudaStreamWaitEvent(s[2]->cuda, handed[1], 0));
        LAUNCH(add, 1, N, 0, s[2], x, x, 3.0f);
        check_cuda(cudaMemsetAsync(x + 1, 0, sizeof *x, s[2]->cuda));
        read_back(values, x, N);
        n_wrong += values[0] != 6 || values[1] != 0;
    }
    for (int i = 0; i < 2; i++)
        check_cuda(cudaEventDestroy(handed[i]));
    for (int i = 0; i < 3; i++)
        destroy_stream(s[i]);
    check_cuda(cudaFree(x));
    return n_wrong;
}

static void events_order_streams(void **)
{
    assert_int_equal(wrong_relays(false), 0);
}

static void a_missing_event_is_a_wrong_result(void **)
{
    assert_true(wrong_relays(true) > 0);
}

static int priority_of(struct stream *s)
{
    int priority;
    check_cuda(cudaStreamGetPriority((cudaStream_t)device_cuda_stream(s), &priority));
    return priority;
}

/* Lower numbers go first. */
static void streams_of_the_device_have_priorities(void **)
{
    struct zf_error err;
    struct device *d = device_cuda(0, &err);
    assert_works(d != NULL, err);
    struct stream *first = d->stream_create(STREAM_FIRST),
                  *behind = d->stream_create(STREAM_BEHIND);
    assert_true(priority_of(first) < priority_of(d->compute));
    assert_true(priority_of(d->compute) < priority_of(behind));
    d->stream_destroy(first);
    d->stream_destroy(behind);
}

/* A wait means the newest record as of the call: not one that follows, and nothing if there is
 * none. */
static void waits_mean_the_newest_record(void **)
{
    struct stream *s = new_stream(), *other = new_stream();
    float *x = device_array<float>(N), values[N];
    cudaEvent_t event;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDefault));
    for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
        emulator_seed(seed);
        check_cuda(cudaMemset(x, 0, N * sizeof *x));
        check_cuda(cudaDeviceSynchronize());
        check_cuda(cudaStreamWaitEvent(other->cuda, event, 0));
        LAUNCH(add, 1, N, 0, s, x, x, 1.0f);
        check_cuda(cudaEventRecord(event, s->cuda));
        check_cuda(cudaStreamWaitEvent(other->cuda, event, 0));
        LAUNCH(add, 1, N, 0, other, x, x, 2.0f);
        check_cuda(cudaEventRecord(event, other->cuda));
        check_cuda(cudaStreamWaitEvent(s->cuda, event, 0));
        LAUNCH(add, 1, N, 0, s, x, x, 4.0f);
        check_cuda(cudaEventRecord(event, s->cuda));
        while (cudaEventQuery(event) == cudaErrorNotReady)
            ;
        read_back(values, x, N);
        assert_true(values[0] == 7);
    }
    check_cuda(cudaEventDestroy(event));
    destroy_stream(s);
    destroy_stream(other);
    check_cuda(cudaFree(x));
}

/* An event's time is when its stream gets there, not when the host records it: between two records
 * the host sleeps, and nothing runs in the meantime but now and then. */
static void events_have_the_time_of_the_stream(void **)
{
    struct stream *s = new_stream();
    cudaEvent_t first, second, untimed;
    check_cuda(cudaEventCreateWithFlags(&first, cudaEventDefault));
    check_cuda(cudaEventCreateWithFlags(&second, cudaEventDefault));
    check_cuda(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    float milliseconds;
    int n_late = 0, n_not_ready = 0;
    for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
        emulator_seed(seed);
        check_cuda(cudaEventRecord(first, s->cuda));
        usleep(20000);
        check_cuda(cudaEventRecord(second, s->cuda));
        n_not_ready += cudaEventElapsedTime(&milliseconds, first, second) == cudaErrorNotReady;
        check_cuda(cudaStreamSynchronize(s->cuda));
        check_cuda(cudaEventElapsedTime(&milliseconds, first, second));
        n_late += milliseconds < 10;
    }
    assert_in_range(n_late, N_SEEDS / 2, N_SEEDS);
    assert_in_range(n_not_ready, N_SEEDS / 2, N_SEEDS);
    check_cuda(cudaEventRecord(untimed, s->cuda));
    assert_int_equal(cudaEventElapsedTime(&milliseconds, first, untimed),
                     cudaErrorInvalidResourceHandle);
    check_cuda(cudaEventDestroy(first));
    check_cuda(cudaEventDestroy(second));
    check_cuda(cudaEventDestroy(untimed));
    destroy_stream(s);
}

static void nothing_runs_before_somebody_waits(void **)
{
    struct stream *s = new_stream();
    int n_lazy = 0;
    float *x = device_array<float>(N);
    for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
        emulator_seed(seed);
        unsigned long launches = emulator_counts().launches;
        LAUNCH(add, 1, N, 0, s, x, x, 1.0f);
        n_lazy += emulator_counts().launches == launches;
        check_cuda(cudaStreamSynchronize(s->cuda));
        assert_true(emulator_counts().launches == launches + 1);
    }
    assert_in_range(n_lazy, N_SEEDS / 2, N_SEEDS);
    check_cuda(cudaFree(x));
    destroy_stream(s);
}

/* Each call of the host sees what came before it on its stream, and nothing of what follows. */
static void look(void *argument)
{
    float *seen = (float *)argument;
    seen[1] = seen[0];
}

static void host_functions_run_in_their_turn(void **)
{
    struct stream *s = new_stream();
    float *seen, *x = device_array<float>(N);
    check_cuda(cudaMallocHost(&seen, 2 * sizeof *seen));
    for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
        emulator_seed(seed);
        seen[0] = seen[1] = -1;
        check_cuda(cudaMemsetAsync(x, 0, N * sizeof *x, s->cuda));
        LAUNCH(add, 1, N, 0, s, x, x, 5.0f);
        check_cuda(cudaMemcpyAsync(seen, x, sizeof *x, cudaMemcpyDeviceToHost, s->cuda));
        check_cuda(cudaLaunchHostFunc(s->cuda, look, seen));
        LAUNCH(add, 1, 1, 0, s, seen, seen, 1.0f);
        check_cuda(cudaStreamSynchronize(s->cuda));
        assert_true(seen[0] == 6 && seen[1] == 5);
    }
    check_cuda(cudaFreeHost(seen));
    check_cuda(cudaFree(x));
    destroy_stream(s);
}

/* ---- memory and copies ---- */

static void copies_keep_their_promises(void **)
{
    struct stream *s = new_stream();
    float *x = device_array<float>(N), ordinary[N], *pinned;
    check_cuda(cudaMallocHost(&pinned, N * sizeof *pinned));
    for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
        emulator_seed(seed);
        for (int i = 0; i < N; i++)
            ordinary[i] = pinned[i] = (float)i;
        check_cuda(cudaMemcpyAsync(x, ordinary, sizeof ordinary, cudaMemcpyDefault, s->cuda));
        memset(ordinary, 0, sizeof ordinary); /* it has been read */
        check_cuda(cudaMemcpyAsync(ordinary, x, sizeof ordinary, cudaMemcpyDefault, s->cuda));
        assert_true(ordinary[9] == 9); /* it has been written */
        check_cuda(cudaMemcpyAsync(x, pinned, sizeof ordinary, cudaMemcpyDefault, s->cuda));
        check_cuda(cudaStreamSynchronize(s->cuda));
        pinned[9] = 0;
        check_cuda(cudaMemcpyAsync(pinned, x, sizeof ordinary, cudaMemcpyDefault, s->cuda));
        check_cuda(cudaStreamSynchronize(s->cuda));
        assert_true(pinned[9] == 9);
    }
    check_cuda(cudaFreeHost(pinned));
    check_cuda(cudaFree(x));
    destroy_stream(s);
}

/* A copy from pinned memory reads it when it runs: one who changes it earlier changes the copy. */
static void pinned_memory_is_read_late(void **)
{
    struct stream *s = new_stream();
    float *x = device_array<float>(1), *pinned, value;
    int n_late = 0;
    check_cuda(cudaMallocHost(&pinned, sizeof *pinned));
    for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
        emulator_seed(seed);
        *pinned = 1;
        check_cuda(cudaMemcpyAsync(x, pinned, sizeof *x, cudaMemcpyHostToDevice, s->cuda));
        *pinned = 2;
        read_back(&value, x, 1);
        n_late += value == 2;
    }
    assert_in_range(n_late, N_SEEDS / 2, N_SEEDS);
    check_cuda(cudaFreeHost(pinned));
    check_cuda(cudaFree(x));
    destroy_stream(s);
}

/* Copies wait until it is pinned, or else they would read it at once. */
static void what_is_pinned_later_is_read_late(void **)
{
    enum { LAST = 1 << 14 };
    struct zf_error err;
    struct device *d = device_cuda(0, &err);
    assert_works(d != NULL, err);
    float *x = (float *)d->allocate(sizeof *x), value;
    int n_late = 0;
    for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
        float *later = (float *)d->allocate_host_later((LAST + 1) * sizeof *later);
        emulator_seed(seed);
        later[LAST] = 1;
        d->copy(d->compute, x, later + LAST, sizeof *x);
        later[LAST] = 2;
        read_back(&value, x, 1);
        n_late += value == 2;
        d->release_host(later);
    }
    assert_in_range(n_late, N_SEEDS / 2, N_SEEDS);
    d->release(x);
}

static void memory_is_finite(void **)
{
    size_t free_bytes, total, left;
    check_cuda(cudaMemGetInfo(&free_bytes, &total));
    char *first = device_array<char>(1000), *second = device_array<char>(1), *third;
    assert_int_equal((uintptr_t)first % 256, 0);
    assert_int_equal((uintptr_t)second % 256, 0);
    check_cuda(cudaMemGetInfo(&left, &total));
    assert_int_equal(left, free_bytes - 1001);
    assert_int_equal(cudaMalloc(&third, left + 1), cudaErrorMemoryAllocation);
    assert_null(third);
    check_cuda(cudaFree(first));
    check_cuda(cudaMalloc(&third, 500));
    assert_ptr_equal(third, first);
    check_cuda(cudaFree(second));
    check_cuda(cudaFree(third));
    check_cuda(cudaMemGetInfo(&left, &total));
    assert_int_equal(left, free_bytes);
}

/* ---- planted faults ---- */

static void plant_host_access()
{
    *(volatile float *)device_array<float>(1) = 1;
}

static void plant_host_access_in_host_function()
{
    struct stream *s = new_stream();
    float *x = device_array<float>(2);
    check_cuda(cudaLaunchHostFunc(s->cuda, look, x));
    check_cuda(cudaStreamSynchronize(s->cuda));
}

static void plant_host_pointer()
{
    struct stream *s = new_stream();
    float ordinary[N];
    LAUNCH(add, 1, N, 0, s, ordinary, device_array<float>(N), 1.0f);
}

static void plant_pointer_behind()
{
    struct stream *s = new_stream();
    float *x = device_array<float>(N);
    LAUNCH(add, 1, N, 0, s, x + N + 1, x, 1.0f);
}

struct with_pointer {
    int n;
    const float *x;
};

__global__ static void read_struct(float *y, struct with_pointer from)
{
    y[0] = from.x[from.n];
}

static void plant_host_pointer_in_struct()
{
    struct stream *s = new_stream();
    float ordinary[N] = {};
    LAUNCH(read_struct, 1, 1, 0, s, device_array<float>(1), with_pointer{3, ordinary});
}

/* Two words of padding, one of them whole; a number as wide as a pointer; pointers in an array of
 * structs. */
struct with_padding {
    const float *x;
    int n;
    alignas(16) uint64_t number;
    alignas(16) struct with_pointer inner[2];
    bool flag;
};

__global__ static void read_all(float *y, struct with_padding from)
{
    y[0] = from.x[from.n] + from.inner[1].x[from.inner[1].n];
}

/* With the bits of a host pointer wherever there is no pointer, and in `wrong`: 0: nowhere else, 1:
 * in the last of the pointers; 2: there those of memory that was freed. */
static void launch_with_padding(int wrong)
{
    struct stream *s = new_stream();
    float ordinary[N], values[N] = {1, 2, 3};
    const float *x = device_copy(values, N), *host = ordinary;
    float *y = device_array<float>(1);
    union {
        struct with_padding value;
        const float *words[sizeof(struct with_padding) / sizeof host];
    } from;
    for (const float *&word : from.words)
        word = host;
    from.value.x = from.value.inner[0].x = from.value.inner[1].x = x;
    from.value.n = from.value.inner[0].n = from.value.inner[1].n = 1;
    if (wrong)
        from.value.inner[1].x = host;
    if (wrong == 2) {
        from.value.inner[1].x = device_array<float>(N);
        check_cuda(cudaFree((void *)from.value.inner[1].x));
    }
    float sum;
    LAUNCH(read_all, 1, 1, 0, s, y, from.value);
    read_back(&sum, y, 1);
    assert_true(sum == 4);
    check_cuda(cudaFree((void *)x));
    check_cuda(cudaFree(y));
    destroy_stream(s);
}

template <int wrong> static void plant_with_padding()
{
    launch_with_padding(wrong);
}

static void pointers_in_structs_are_told_from_the_rest(void **)
{
    launch_with_padding(0);
    assert_fault(plant_with_padding<1>, "argument 2 of kernel read_all is or holds");
    assert_fault(plant_with_padding<2>, "not allocated");
}

static void plant_long_copy()
{
    float values[N + 1] = {};
    check_cuda(cudaMemcpy(device_array<float>(N), values, sizeof values, cudaMemcpyHostToDevice));
}

static void plant_empty_grid()
{
    struct stream *s = new_stream();
    LAUNCH(add, 0, N, 0, s, NULL, NULL, 1.0f);
}

static void call_the_runtime(void *)
{
    check_cuda(cudaDeviceSynchronize());
}

static void plant_call_in_host_function()
{
    struct stream *s = new_stream();
    check_cuda(cudaLaunchHostFunc(s->cuda, call_the_runtime, NULL));
    check_cuda(cudaStreamSynchronize(s->cuda));
}

static void wrong_pointers_are_caught(void **)
{
    assert_fault(plant_host_access, "host code touches device memory");
    assert_fault(plant_host_access_in_host_function, "host code touches device memory");
    assert_fault(plant_host_pointer, "argument 1 of kernel add is or holds");
    assert_fault(plant_pointer_behind, "not allocated");
    assert_fault(plant_host_pointer_in_struct, "argument 2 of kernel read_struct is or holds");
    assert_fault(plant_long_copy, "a copy's destination: 260 bytes from byte 0 on");
    assert_fault(plant_empty_grid, "kernel add is launched with a grid of (0, 1, 1)");
    assert_fault(plant_call_in_host_function, "is called by a host function");
}

/* ---- matrix products ---- */

enum { M = 24, COLUMNS = 13, K = 40 }; /* D: (M, COLUMNS), column-major */

static struct {
    bf16 a[M * K], b[K * COLUMNS], bias[M], aux[M * COLUMNS];
    bf16 *device_a, *device_b, *device_bias, *device_aux;
    cublasLtHandle_t handle;
    void *workspace;
} lt;

template <typename T>
static void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, T value)
{
    assert_int_equal(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value),
                     CUBLAS_STATUS_SUCCESS);
}

/* D = epilogue(A B + beta D). A: (M, K), or (K, M) if trans_a; the values are those of A (M, K). */
static void multiply(void *d, cudaDataType d_type, bool trans_a, int32_t epilogue, float beta)
{
    const float alpha = 1;
    const size_t workspace_bytes = 4096;
    const uint32_t alignment = 16;
    int n;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(desc, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)(trans_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)lt.device_bias);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (void *)lt.device_aux);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)M);
    cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, trans_a ? K : M, trans_a ? M : K, trans_a ? K : M);
    cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, K, COLUMNS, K);
    cublasLtMatrixLayoutCreate(&c, d_type, M, COLUMNS, M);
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace_bytes, sizeof workspace_bytes);
    for (int i = 0; i < 4; i++)
        cublasLtMatmulPreferenceSetAttribute(
            preference,
            (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
            &alignment, sizeof alignment);
    assert_int_equal(
        cublasLtMatmulAlgoGetHeuristic(lt.handle, desc, a, b, c, c, preference, 1, &result, &n),
        CUBLAS_STATUS_SUCCESS);
    assert_int_equal(cublasLtMatmul(lt.handle, desc, &alpha, lt.device_a, a, lt.device_b, b, &beta,
                                    d, c, d, c, &result.algo, lt.workspace, workspace_bytes, NULL),
                     CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatmulDescDestroy(desc);
}

static double dot(int i, int j, bool trans_a)
{
    double sum = 0;
    for (int k = 0; k < K; k++)
        sum += (double)bf16_to_f32(lt.a[trans_a ? i * K + k : k * M + i]) *
               bf16_to_f32(lt.b[j * K + k]);
    return sum;
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static int set_up_products(void **)
{
    for (int i = 0; i < M * K; i++)
        lt.a[i] = bf16_from_f32((float)(i * 37 % 41 - 20) / 64);
    for (int i = 0; i < K * COLUMNS; i++)
        lt.b[i] = bf16_from_f32((float)(i * 29 % 43 - 21) / 64);
    for (int i = 0; i < M; i++)
        lt.bias[i] = bf16_from_f32((float)(i - 12) / 16);
    for (int i = 0; i < M * COLUMNS; i++)
        lt.aux[i] = bf16_from_f32((float)(i * 31 % 47 - 23) / 8);
    lt.device_a = device_copy(lt.a, M * K);
    lt.device_b = device_copy(lt.b, K * COLUMNS);
    lt.device_bias = device_copy(lt.bias, M);
    lt.device_aux = device_copy(lt.aux, M * COLUMNS);
    lt.workspace = device_array<char>(4096);
    return cublasLtCreate(&lt.handle);
}

static int tear_down_products(void **)
{
    check_cuda(cudaFree(lt.device_a));
    check_cuda(cudaFree(lt.device_b));
    check_cuda(cudaFree(lt.device_bias));
    check_cuda(cudaFree(lt.device_aux));
    check_cuda(cudaFree(lt.workspace));
    return cublasLtDestroy(lt.handle);
}

static void products_accumulate_in_fp32(void **)
{
    float old[M * COLUMNS], d[M * COLUMNS];
    for (int i = 0; i < M * COLUMNS; i++)
        old[i] = (float)i;
    for (int trans_a = 0; trans_a < 2; trans_a++) {
        float *device_d = device_copy(old, M * COLUMNS);
        multiply(device_d, CUDA_R_32F, trans_a, CUBLASLT_EPILOGUE_DEFAULT, 1);
        read_back(d, device_d, M * COLUMNS);
        for (int j = 0; j < COLUMNS; j++)
            for (int i = 0; i < M; i++)
                assert_true(fabs(d[j * M + i] - (dot(i, j, trans_a) + j * M + i)) < 1e-4);
        check_cuda(cudaFree(device_d));
    }
}

static void epilogues_agree(void **)
{
    bf16 d[M * COLUMNS], aux[M * COLUMNS];
    bf16 *device_d = device_array<bf16>(M * COLUMNS);
    multiply(device_d, CUDA_R_16BF, false, CUBLASLT_EPILOGUE_DGELU, 0);
    read_back(d, device_d, M * COLUMNS);
    for (int at = 0; at < M * COLUMNS; at++) {
        double x = bf16_to_f32(lt.aux[at]);
        double slope = (gelu_tanh(x + 1e-5) - gelu_tanh(x - 1e-5)) / 2e-5;
        double expected = slope * dot(at % M, at / M, false);
        assert_true(fabs(bf16_to_f32(d[at]) - expected) < 0.004 * fabs(expected) + 1e-6);
    }
    multiply(device_d, CUDA_R_16BF, false, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 0);
    read_back(d, device_d, M * COLUMNS);
    read_back(aux, lt.device_aux, M * COLUMNS);
    for (int at = 0; at < M * COLUMNS; at++) {
        double x = dot(at % M, at / M, false) + bf16_to_f32(lt.bias[at % M]);
        assert_true(fabs(bf16_to_f32(aux[at]) - x) <= 0.004 * fabs(x) + 1e-6);
        assert_true(fabs(bf16_to_f32(d[at]) - gelu_tanh(x)) <= 0.004 * fabs(gelu_tanh(x)) + 1e-6);
    }
    check_cuda(cudaFree(device_d));
}

static void plant_crooked_matrix()
{
    multiply(device_array<bf16>(M * COLUMNS + 1) + 1, CUDA_R_16BF, false, 1, 0);
}

static void crooked_matrices_are_caught(void **)
{
    assert_fault(plant_crooked_matrix, "not aligned to 16 bytes, as its plan promised");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(a_missing_event_is_a_wrong_result),
        cmocka_unit_test(waits_mean_the_newest_record),
        cmocka_unit_test(streams_of_the_device_have_priorities),
        cmocka_unit_test(events_have_the_time_of_the_stream),
        cmocka_unit_test(nothing_runs_before_somebody_waits),
        cmocka_unit_test(host_functions_run_in_their_turn),
        cmocka_unit_test(copies_keep_their_promises),
        cmocka_unit_test(pinned_memory_is_read_late),
        cmocka_unit_test(what_is_pinned_later_is_read_late),
        cmocka_unit_test(memory_is_finite),
        cmocka_unit_test(wrong_pointers_are_caught),
        cmocka_unit_test(pointers_in_structs_are_told_from_the_rest),
        cmocka_unit_test(products_accumulate_in_fp32),
        cmocka_unit_test(epilogues_agree),
        cmocka_unit_test(crooked_matrices_are_caught),
    };
    test_print_seed();
    return cmocka_run_group_tests(tests, set_up_products, tear_down_products);
}
