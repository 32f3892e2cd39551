#include "data/median.h"

#include "data/alloc.h"

#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

double median_of(const double *values, int n)
{
    size_t bytes = (size_t)n * sizeof *values;
    double *sorted = memcpy(zf_malloc(bytes), values, bytes);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    double middle = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
    free(sorted);
    return middle;
}
