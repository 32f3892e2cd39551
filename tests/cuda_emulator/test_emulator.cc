/* Kernels under the emulator: agree with plain references, and planted faults are caught. */
#include "test_emulator.h"

#define N_THREADS 200

/* ---- launches ---- */

__global__ static void count_visits(int *visits)
{
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    visits[block * blockDim.x * blockDim.y * blockDim.z + thread]++;
}

static void every_thread_runs_once(void **)
{
    struct stream *s = new_stream();
    int visits[3 * 2 * 2 * 7 * 3 * 2];
    const size_t n = sizeof visits / sizeof *visits;
    int *device = device_array<int>(n);
    check_cuda(cudaMemsetAsync(device, 0, sizeof visits, s->cuda));
    LAUNCH(count_visits, dim3(3, 2, 2), dim3(7, 3, 2), 0, s, device);
    read_back(visits, device, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(visits[i], 1);
    check_cuda(cudaFree(device));
    destroy_stream(s);
}

__global__ static void note_order(unsigned *order, unsigned *next)
{
    order[atomicAdd(next, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}

/* The test's own seed, and that of the run. */
static void seeds_decide_the_order(void **)
{
    static const uint32_t seeds[4][2] = {{1, 5}, {2, 5}, {1, 6}, {1, 5}};
    const uint32_t of_run = test_seed();
    struct stream *s = new_stream();
    unsigned *order = device_array<unsigned>(256), *next = device_array<unsigned>(1);
    unsigned seen[4][256];
    for (int i = 0; i < 4; i++) {
        test_set_seed(seeds[i][1]);
        emulator_seed(seeds[i][0]);
        check_cuda(cudaMemsetAsync(next, 0, sizeof *next, s->cuda));
        LAUNCH(note_order, 4, 64, 0, s, order, next);
        read_back(seen[i], order, 256);
    }
    assert_memory_not_equal(seen[0], seen[1], sizeof seen[0]);
    assert_memory_not_equal(seen[0], seen[2], sizeof seen[0]);
    assert_memory_equal(seen[0], seen[3], sizeof seen[0]);
    test_set_seed(of_run);
    check_cuda(cudaFree(order));
    check_cuda(cudaFree(next));
    destroy_stream(s);
}

/* ---- barriers and shared memory ---- */

/* y[i] = the sum of x[0..i]; without its barriers, if `careless`. */
__global__ static void prefix_sums(float *y, const float *x, bool careless)
{
    SHARED(float, sums, [2][N_THREADS]);
    const int i = threadIdx.x;
    int from = 0;
    sums[0][i] = x[i];
    for (int step = 1; step < N_THREADS; step *= 2) {
        if (!careless)
            __syncthreads();
        sums[!from][i] = sums[from][i] + (i >= step ? sums[from][i - step] : 0);
        from = !from;
    }
    y[i] = sums[from][i];
}

/* How many of the seeds give wrong sums. */
static int wrong_prefix_sums(bool careless)
{
    struct stream *s = new_stream();
    float x[N_THREADS], y[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        x[i] = (float)(i * 7 % 31);
    float *device_x = device_copy(x, N_THREADS), *device_y = device_array<float>(N_THREADS);
    int n_wrong = 0;
    for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
        emulator_seed(seed);
        LAUNCH(prefix_sums, 1, N_THREADS, 0, s, device_y, device_x, careless);
        read_back(y, device_y, N_THREADS);
        bool wrong = false;
        float sum = 0;
        for (int i = 0; i < N_THREADS; i++) {
            sum += x[i];
            wrong |= !(y[i] == sum); /* a NaN is wrong too */
        }
        n_wrong += wrong;
    }
    check_cuda(cudaFree(device_x));
    check_cuda(cudaFree(device_y));
    destroy_stream(s);
    return n_wrong;
}

static void barriers_hold(void **)
{
    assert_int_equal(wrong_prefix_sums(false), 0);
}

static void a_missing_barrier_is_a_wrong_result(void **)
{
    assert_int_equal(wrong_prefix_sums(true), N_SEEDS);
}

__global__ static void read_unwritten(float *y)
{
    SHARED(float, array, [32]);
    DYNAMIC_SHARED(dynamic);
    y[0] = array[threadIdx.x];
    y[1] = ((const float *)dynamic)[threadIdx.x];
    array[threadIdx.x] = 0; /* which the next block does not get */
}

static void memory_begins_as_nan(void **)
{
    struct stream *s = new_stream();
    const size_t n = 1 << 20;
    float *device = device_array<float>(n), values[3];
    LAUNCH(read_unwritten, 2, 1, 64, s, device);
    read_back(values, device, 2);
    read_back(values + 2, device + n - 1, 1);
    for (int i = 0; i < 3; i++)
        assert_true(isnan(values[i]));
    check_cuda(cudaFree(device));
    destroy_stream(s);
}

/* ---- warps ---- */

/* Odd and even lanes in turn, each with its own mask; then a vote of the whole warp. */
__global__ static void shuffle_halves(int *sums, unsigned *votes, const int *x)
{
    const int i = threadIdx.x, lane = i % WARP;
    const unsigned mask = lane % 2 ? 0xaaaaaaaau : 0x55555555u;
    int sum = x[i];
    if (lane % 2)
        sum += 1000;
    for (int step = 2; step < WARP; step *= 2)
        sum += shuffle_xor(mask, sum, step);
    sums[i] = sum + shuffle(FULL_MASK, x[i], 5);
    unsigned all = ballot(FULL_MASK, x[i] % 3 == 0);
    if (lane == 0)
        votes[i / WARP] = all;
}

static void shuffles_agree(void **)
{
    struct stream *s = new_stream();
    int x[96], sums[96];
    unsigned votes[3];
    for (int i = 0; i < 96; i++)
        x[i] = i * i % 101;
    int *device_x = device_copy(x, 96), *device_sums = device_array<int>(96);
    unsigned *device_votes = device_array<unsigned>(3);
    LAUNCH(shuffle_halves, 1, 96, 0, s, device_sums, device_votes, device_x);
    read_back(sums, device_sums, 96);
    read_back(votes, device_votes, 3);
    for (int i = 0; i < 96; i++) {
        int sum = i % 2 ? 16000 : 0, warp = i / WARP * WARP;
        for (int j = i % 2; j < WARP; j += 2)
            sum += x[warp + j];
        assert_int_equal(sums[i], sum + x[warp + 5]);
        assert_int_equal(votes[i / WARP] >> i % WARP & 1, x[i] % 3 == 0);
    }
    check_cuda(cudaFree(device_x));
    check_cuda(cudaFree(device_sums));
    check_cuda(cudaFree(device_votes));
    destroy_stream(s);
}

/* ---- tensor cores ---- */

/* c = a b for one tile. a: (16, 16) by rows, b: (16, 8) by rows, through shared memory. */
__global__ static void multiply_tile(float *c, const bf16 *a, const bf16 *b)
{
    SHARED(bf16, tile_a, [16][24]);
    SHARED(bf16, tile_b, [16][8]);
    const int lane = threadIdx.x;
    for (int i = lane; i < 256; i += WARP)
        tile_a[i / 16][i % 16] = a[i];
    for (int i = lane; i < 128; i += WARP)
        tile_b[i / 8][i % 8] = b[i];
    __syncwarp();
    uint32_t fragment_a[4], both_b[4];
    ldmatrix_x4(fragment_a, &tile_a[lane % 16][lane / 16 * 8]);
    ldmatrix_x4_trans(both_b, &tile_b[lane % 16][0]);
    const uint32_t fragment_b[2] = {both_b[0], both_b[1]};
    float d[4] = {};
    mma_16x8x16(d, fragment_a, fragment_b);
    for (int i = 0; i < 4; i++)
        c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

static void tensor_cores_agree(void **)
{
    struct stream *s = new_stream();
    bf16 a[256], b[128];
    float c[128];
    for (int i = 0; i < 256; i++)
        a[i] = bf16_from_f32((float)(i * 37 % 41 - 20) / 8);
    for (int i = 0; i < 128; i++)
        b[i] = bf16_from_f32((float)(i * 29 % 43 - 21) / 16);
    bf16 *device_a = device_copy(a, 256), *device_b = device_copy(b, 128);
    float *device_c = device_array<float>(128);
    LAUNCH(multiply_tile, 1, WARP, 0, s, device_c, device_a, device_b);
    read_back(c, device_c, 128);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            double sum = 0;
            for (int k = 0; k < 16; k++)
                sum += (double)bf16_to_f32(a[i * 16 + k]) * bf16_to_f32(b[k * 8 + j]);
            assert_true(c[i * 8 + j] == (float)sum); /* all products and sums are exact */
        }
    check_cuda(cudaFree(device_a));
    check_cuda(cudaFree(device_b));
    check_cuda(cudaFree(device_c));
    destroy_stream(s);
}

/* ---- asynchronous copies ---- */

/* y[0..2]: thread 0's word of a group that it has waited for, of one that it has not, and of an
 * invalid copy. */
__global__ static void copy_in_groups(float *y, const float *x)
{
    SHARED(float, tile, [3][32][4]);
    const int i = threadIdx.x;
    tile[1][i][1] = 7; /* which is gone as soon as a copy may write there */
    copy_async_16(tile[0][i], x + 4 * i, true);
    copy_async_16(tile[2][i], NULL, false);
    copy_async_commit();
    copy_async_16(tile[1][i], x + 4 * i, true);
    copy_async_commit();
    copy_async_wait<1>();
    y[3 * i + 0] = tile[0][i][1];
    y[3 * i + 1] = tile[1][i][1];
    y[3 * i + 2] = tile[2][i][1];
    copy_async_wait<0>();
    if (tile[1][i][1] != x[4 * i + 1])
        y[3 * i] = -1;
}

static void copies_land_when_waited_for(void **)
{
    struct stream *s = new_stream();
    float x[128], y[96];
    for (int i = 0; i < 128; i++)
        x[i] = (float)i;
    float *device_x = device_copy(x, 128), *device_y = device_array<float>(96);
    LAUNCH(copy_in_groups, 1, 32, 0, s, device_y, device_x);
    read_back(y, device_y, 96);
    for (int i = 0; i < 32; i++) {
        assert_true(y[3 * i] == x[4 * i + 1]);
        assert_true(isnan(y[3 * i + 1]));
        assert_true(y[3 * i + 2] == 0);
    }
    check_cuda(cudaFree(device_x));
    check_cuda(cudaFree(device_y));
    destroy_stream(s);
}

/* ---- planted faults ---- */

__global__ static void write_behind(float *x, int n)
{
    x[n] = 0;
}

static void plant_write_behind()
{
    struct stream *s = new_stream();
    LAUNCH(write_behind, 1, 1, 0, s, device_array<float>(100), 100);
    check_cuda(cudaStreamSynchronize(s->cuda));
}

static void a_write_out_of_bounds_is_caught(void **)
{
#ifdef __SANITIZE_ADDRESS__
    assert_fault(plant_write_behind, "AddressSanitizer");
#else
    assert_fault(plant_write_behind, "a write out of bounds: byte 400 of an allocation of 400");
#endif
}

__global__ static void overrun_shared(float *x)
{
    SHARED(float, first, [10]);
    SHARED(float, second, [10]);
    float *at = x ? &first[9] : NULL;
    second[0] = 0;
    at[1 + threadIdx.x] = 0;
}

static void plant_shared_overrun()
{
    struct stream *s = new_stream();
    LAUNCH(overrun_shared, 1, 1, 0, s, device_array<float>(1));
    check_cuda(cudaStreamSynchronize(s->cuda));
}

static void a_write_beside_shared_memory_is_caught(void **)
{
#ifdef __SANITIZE_ADDRESS__
    assert_fault(plant_shared_overrun, "AddressSanitizer");
#else
    (void)plant_shared_overrun;
    print_message("skipped: only AddressSanitizer sees it, and this build is without\n");
    skip();
#endif
}

__global__ static void misuse_warp(int how)
{
    const int lane = threadIdx.x;
    if (how == 0 && lane < 16) /* the whole warp is named, half of it comes */
        shuffle_xor(FULL_MASK, 1.0f, 1);
    if (how == 1) /* lane 31 is not named, and comes all the same */
        shuffle(0x7fffffffu, 1.0f, 0);
    if (how == 2) /* two masks that overlap */
        shuffle(lane < 16 ? 0x0001ffffu : 0xffff0000u, 1.0f, 16);
    if (how == 3) { /* one half shuffles, the other votes */
        if (lane < 16)
            shuffle(FULL_MASK, 1.0f, 0);
        else
            ballot(FULL_MASK, true);
    }
    if (how == 4 && lane < 16) /* a lane outside the mask is asked for its value */
        shuffle_xor(0x0000ffffu, 1.0f, 16);
    if (how == 5 && lane == 0) /* one lane waits for the rest, who wait in a barrier */
        __syncwarp();
    if (how == 5)
        __syncthreads();
    if (how == 6 && lane == 0) /* two barriers for one */
        __syncthreads();
    else if (how == 6)
        __syncthreads();
}

template <int how> static void plant_misuse()
{
    struct stream *s = new_stream();
    emulator_seed(7);
    LAUNCH(misuse_warp, 1, WARP, 0, s, how);
    check_cuda(cudaStreamSynchronize(s->cuda));
}

static void a_wrong_shuffle_mask_is_caught(void **)
{
    assert_fault(plant_misuse<0>, "lane");
    assert_fault(plant_misuse<0>, "ended");
    assert_fault(plant_misuse<1>, "which does not name it, kernel misuse_warp, block (0, 0, 0)");
    assert_fault(plant_misuse<2>, "with mask 0001ffff");
    assert_fault(plant_misuse<3>, "a ballot");
    assert_fault(plant_misuse<4>, "which is not named in it");
    assert_fault(plant_misuse<5>, "waits in __syncthreads");
}

static void barriers_of_different_lines_are_caught(void **)
{
    assert_fault(plant_misuse<6>, "waits in __syncthreads at");
}

__global__ static void read_row(float *y)
{
    SHARED(float, tile, [8]);
    uint32_t r[4];
    ldmatrix_x4(r, y ? (const void *)&tile[1] : y);
}

static void plant_crooked_row()
{
    struct stream *s = new_stream();
    LAUNCH(read_row, 1, WARP, 0, s, device_array<float>(1));
    check_cuda(cudaStreamSynchronize(s->cuda));
}

static void a_crooked_address_is_caught(void **)
{
    assert_fault(plant_crooked_row, "ldmatrix: ");
    assert_fault(plant_crooked_row, "not aligned to 16 bytes");
}

__global__ static void use_shared(float *x)
{
    DYNAMIC_SHARED(memory);
    x[0] = memory[0];
}

static void plant_too_much_shared()
{
    struct stream *s = new_stream();
    LAUNCH(use_shared, 1, 1, (48 << 10) + 16, s, device_array<float>(1));
}

static void too_much_shared_memory_is_caught(void **)
{
    assert_fault(plant_too_much_shared, "only 49152 are allowed");
    assert_int_equal(
        cudaFuncSetAttribute(use_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
        cudaErrorInvalidValue);
    struct stream *s = new_stream();
    float *x = device_array<float>(1);
    check_cuda(
        cudaFuncSetAttribute(use_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
    LAUNCH(use_shared, 1, 1, 227 << 10, s, x);
    check_cuda(cudaFree(x));
    destroy_stream(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once),
        cmocka_unit_test(seeds_decide_the_order),
        cmocka_unit_test(barriers_hold),
        cmocka_unit_test(a_missing_barrier_is_a_wrong_result),
        cmocka_unit_test(memory_begins_as_nan),
        cmocka_unit_test(shuffles_agree),
        cmocka_unit_test(tensor_cores_agree),
        cmocka_unit_test(copies_land_when_waited_for),
        cmocka_unit_test(a_write_out_of_bounds_is_caught),
        cmocka_unit_test(a_write_beside_shared_memory_is_caught),
        cmocka_unit_test(a_wrong_shuffle_mask_is_caught),
        cmocka_unit_test(barriers_of_different_lines_are_caught),
        cmocka_unit_test(a_crooked_address_is_caught),
        cmocka_unit_test(too_much_shared_memory_is_caught),
    };
    test_print_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
