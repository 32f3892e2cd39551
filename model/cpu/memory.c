/* Memory, and what moves it. */
#include "data/alloc.h"
#include "model/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 256 /* of device memory, in bytes */

/* Arrays of this size and more lie on huge pages, where the kernel has them: a model's parameters
 * are read in full every step, and address translation would cost more than the reading. */
#define HUGE_PAGE ((size_t)2 << 20)

void *cpu_allocate(size_t bytes)
{
    if (bytes >= 2 * HUGE_PAGE)
        return zf_malloc_huge(bytes);
    const size_t rounded = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, rounded);
    return memory ? memory : zf_malloc_aligned(bytes); /* it has the sentence for this */
}

void cpu_copy_bytes(void *dst, const void *src, size_t bytes)
{
    const size_t piece = (size_t)1 << 20;
    size_t n_pieces = (bytes + piece - 1) / piece;
#pragma omp parallel for schedule(static) if (n_pieces > 1)
    for (size_t i = 0; i < n_pieces; i++) {
        size_t first = i * piece, n = bytes - first < piece ? bytes - first : piece;
        if (src)
            memcpy((char *)dst + first, (const char *)src + first, n);
        else
            memset((char *)dst + first, 0, n);
    }
}

float *cpu_scratch(struct stream *s, size_t n)
{
    if (n > s->scratch_length) {
        free(s->scratch);
        s->scratch_length = n + n / 4;
        s->scratch = cpu_allocate(sizeof(float) * s->scratch_length);
    }
    return s->scratch;
}
