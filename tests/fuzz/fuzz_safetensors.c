/* safetensors_open on any bytes: it refuses them, or every tensor that it finds can be read. */
#include "data/alloc.h"
#include "data/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void read_all(const struct tensor *t)
{
    struct zf_error err;
    uint8_t sum = 0;
    for (size_t i = 0; i < t->n_elements * dtype_size(t->dtype); i++)
        sum ^= ((const uint8_t *)t->data)[i];
    float *values = zf_malloc(t->n_elements * sizeof *values + (sum & 1));
    tensor_read_f32(t, values, 0, t->n_elements, &err);
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct zf_error err;
    char path[64];
    int fd = memfd_create("safetensors", 0);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct safetensors *s = safetensors_open(path, &err);
    if (s)
        for (int i = 0; i < safetensors_count(s); i++) {
            read_all(safetensors_at(s, i));
            if (safetensors_find(s, safetensors_at(s, i)->name) != safetensors_at(s, i))
                abort();
        }
    safetensors_close(s);
    close(fd);
    return 0;
}
