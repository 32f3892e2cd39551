/* Norms as gradients might have them. */
#include "data/alloc.h"
#include "data/rng.h"
#include "model/plan/internal.h"

#include <math.h>
#include <stdlib.h>

#define QUANTILES 1024 /* of the normal distribution */

/* A normal number from a uniform one: the distribution's inverse by bisection. */
static double normal_quantile(double u)
{
    double low = -8, high = 8;
    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2;
        if (erfc(-middle / sqrt(2)) / 2 < u)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* exp of a normal number with this deviation, twice: squared norms are made. */
static void fill_factors(float *factors, double deviation)
{
    for (int i = 0; i < QUANTILES; i++)
        factors[i] = (float)exp(2 * deviation * normal_quantile((i + 0.5) / QUANTILES));
}

static void fill_lasting(struct plan *p, int n)
{
    float factors[QUANTILES];
    fill_factors(factors, p->gradients.lasting);
    p->lasting = zf_realloc(p->lasting, sizeof *p->lasting * (size_t)n);
    for (int i = p->n_lasting; i < n; i++) {
        struct philox counter = {{(uint32_t)i, 0, 0, 0}};
        p->lasting[i] = factors[philox4x32(counter, p->gradients.seed, 0).v[0] % QUANTILES];
    }
    p->n_lasting = n;
}

void plan_make_norms(struct plan *p, float *sums, int n)
{
    float factors[QUANTILES];
    if (n > p->n_lasting)
        fill_lasting(p, n);
    fill_factors(factors, p->gradients.passing);
    p->draws++;
    for (int i = 0; i < n; i += 4) {
        struct philox counter = {{(uint32_t)i, p->draws, 0, 0}};
        counter = philox4x32(counter, p->gradients.seed, 1);
        for (int k = i; k < n && k < i + 4; k++)
            sums[k] = p->lasting[k] * factors[counter.v[k - i] % QUANTILES];
    }
}
