/* What the emulator's own tests share: a stream as the product's launchers know it, device memory
 * filled from the host, and child processes that are expected to end with a fault. */
#ifndef ZF_CUDA_EMULATOR_TEST_EMULATOR_H
#define ZF_CUDA_EMULATOR_TEST_EMULATOR_H

extern "C" {
#include "tests/testing.h"
}
#include "tests/seed.h"

#include "emulator.h"
#include "model/cuda/intrinsics.cuh"

#include <sys/wait.h>

#define N_SEEDS 20

static inline struct stream *new_stream()
{
    struct stream *s = new struct stream();
    check_cuda(cudaStreamCreateWithFlags(&s->cuda, cudaStreamNonBlocking));
    return s;
}

static inline void destroy_stream(struct stream *s)
{
    check_cuda(cudaStreamDestroy(s->cuda));
    delete s;
}

template <typename T> static inline T *device_array(size_t n)
{
    T *x;
    check_cuda(cudaMalloc(&x, n * sizeof(T)));
    return x;
}

template <typename T> static inline T *device_copy(const T *values, size_t n)
{
    T *x = device_array<T>(n);
    check_cuda(cudaMemcpy(x, values, n * sizeof(T), cudaMemcpyHostToDevice));
    return x;
}

/* Waits for the whole device. */
template <typename T> static inline void read_back(T *values, const T *x, size_t n)
{
    check_cuda(cudaDeviceSynchronize());
    check_cuda(cudaMemcpy(values, x, n * sizeof(T), cudaMemcpyDeviceToHost));
}

/* Asserts that function, in a process of its own, ends with a failure and says so. */
static inline void assert_fault(void (*function)(), const char *sentence)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        function();
        _exit(0);
    }
    close(ends[1]);
    char text[8192];
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = 0;
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || !strstr(text, sentence))
        fail_msg("status %d, without \"%s\": %s", status, sentence, text);
}

#endif
