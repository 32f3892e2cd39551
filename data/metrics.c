#include "data/metrics.h"

#include "data/alloc.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

const char *metric_name(enum metric metric)
{
    static const char *const names[] = {
        [METRIC_NONE] = "",           [METRIC_ACCURACY] = "accuracy",
        [METRIC_F1] = "f1",           [METRIC_MATTHEWS] = "matthews_correlation",
        [METRIC_PEARSON] = "pearson", [METRIC_SPEARMAN] = "spearmanr",
        [METRIC_MSE] = "mse",
    };
    return names[metric];
}

/* Counts over two classes: label 1 is positive. */
struct confusion {
    double true_positive, false_positive, false_negative, true_negative;
};

static struct confusion count_confusion(const float *prediction, const float *truth, int n)
{
    struct confusion c = {0};
    for (int i = 0; i < n; i++) {
        bool positive = prediction[i] == 1, is_true = truth[i] == 1;
        c.true_positive += positive && is_true;
        c.false_positive += positive && !is_true;
        c.false_negative += !positive && is_true;
        c.true_negative += !positive && !is_true;
    }
    return c;
}

static double accuracy(const float *prediction, const float *truth, int n)
{
    int equal = 0;
    for (int i = 0; i < n; i++)
        equal += prediction[i] == truth[i];
    return n > 0 ? (double)equal / n : 0;
}

/* The harmonic mean of precision and recall. */
static double f1(const float *prediction, const float *truth, int n)
{
    struct confusion c = count_confusion(prediction, truth, n);
    double sum = 2 * c.true_positive + c.false_positive + c.false_negative;
    return sum > 0 ? 2 * c.true_positive / sum : 0;
}

static double matthews(const float *prediction, const float *truth, int n)
{
    struct confusion c = count_confusion(prediction, truth, n);
    double product = (c.true_positive + c.false_positive) * (c.true_positive + c.false_negative) *
                     (c.true_negative + c.false_positive) * (c.true_negative + c.false_negative);
    double covariance = c.true_positive * c.true_negative - c.false_positive * c.false_negative;
    return product > 0 ? covariance / sqrt(product) : 0;
}

static double mean(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

/* Equal values have no variance; their computed mean may still differ from them in its last bit. */
static bool is_constant(const double *x, int n)
{
    for (int i = 1; i < n; i++) {
        if (x[i] != x[0])
            return false;
    }
    return true;
}

static double pearson(const double *x, const double *y, int n)
{
    if (is_constant(x, n) || is_constant(y, n))
        return 0;
    double mean_x = mean(x, n), mean_y = mean(y, n);
    double xx = 0, yy = 0, xy = 0;
    for (int i = 0; i < n; i++) {
        double dx = x[i] - mean_x, dy = y[i] - mean_y;
        xx += dx * dx;
        yy += dy * dy;
        xy += dx * dy;
    }
    return fmax(-1, fmin(1, xy / (sqrt(xx) * sqrt(yy))));
}

struct ranked {
    double value;
    int place; /* in the unsorted array */
};

static int compare_ranked(const void *a, const void *b)
{
    double x = ((const struct ranked *)a)->value, y = ((const struct ranked *)b)->value;
    return (x > y) - (x < y);
}

/* Replaces values by their ranks; equal values share the mean of theirs. */
static void rank(double *x, int n)
{
    struct ranked *sorted = zf_malloc((size_t)n * sizeof *sorted);
    for (int i = 0; i < n; i++)
        sorted[i] = (struct ranked){x[i], i};
    qsort(sorted, (size_t)n, sizeof *sorted, compare_ranked);
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && sorted[end].value == sorted[first].value;)
            end++;
        for (int i = first; i < end; i++)
            x[sorted[i].place] = 0.5 * (first + end - 1);
    }
    free(sorted);
}

static double correlation(const float *prediction, const float *truth, int n, bool of_ranks)
{
    if (n == 0)
        return 0;
    double *x = zf_malloc(2 * (size_t)n * sizeof *x), *y = x + n;
    for (int i = 0; i < n; i++) {
        x[i] = prediction[i];
        y[i] = truth[i];
    }
    if (of_ranks) {
        rank(x, n);
        rank(y, n);
    }
    double result = pearson(x, y, n);
    free(x);
    return result;
}

static double mse(const float *prediction, const float *truth, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += ((double)prediction[i] - truth[i]) * ((double)prediction[i] - truth[i]);
    return n > 0 ? sum / n : 0;
}

double metric_compute(enum metric metric, const float *prediction, const float *truth, int n)
{
    switch (metric) {
    case METRIC_NONE:
        break;
    case METRIC_ACCURACY:
        return accuracy(prediction, truth, n);
    case METRIC_F1:
        return f1(prediction, truth, n);
    case METRIC_MATTHEWS:
        return matthews(prediction, truth, n);
    case METRIC_PEARSON:
        return correlation(prediction, truth, n, false);
    case METRIC_SPEARMAN:
        return correlation(prediction, truth, n, true);
    case METRIC_MSE:
        return mse(prediction, truth, n);
    }
    return 0;
}
