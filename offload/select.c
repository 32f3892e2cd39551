#include "offload/select.h"

#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

/* Products such as 0.29 * 100 fall just below the whole number that is meant. */
#define RATIO_SLACK 1e-9

int select_count(double ratio, int channels)
{
    int k = (int)(ratio * channels + RATIO_SLACK);
    return ratio > 0 && k < 1 ? 1 : k;
}

struct ranked {
    float norm;
    int index;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->norm != y->norm)
        return x->norm > y->norm ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

void select_top(const float *squared_norms, int n, int k, unsigned char *important)
{
    memset(important, k >= n, (size_t)n);
    if (k <= 0 || k >= n)
        return;
    struct ranked *ranked = zf_malloc(sizeof *ranked * (size_t)n);
    for (int i = 0; i < n; i++)
        ranked[i] = (struct ranked){squared_norms[i], i};
    qsort(ranked, (size_t)n, sizeof *ranked, by_rank);
    for (int i = 0; i < k; i++)
        important[ranked[i].index] = 1;
    free(ranked);
}
