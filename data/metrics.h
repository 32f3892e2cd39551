/* GLUE's official metrics, and those of own data, as scikit-learn and SciPy compute them. */
#ifndef ZF_DATA_METRICS_H
#define ZF_DATA_METRICS_H

enum metric {
    METRIC_NONE,
    METRIC_ACCURACY,
    METRIC_F1, /* of label 1 */
    METRIC_MATTHEWS,
    METRIC_PEARSON,
    METRIC_SPEARMAN, /* ties share their mean rank */
    METRIC_MSE,
};

/* As run_glue.py names it in all_results.json: "accuracy", "f1", "matthews_correlation", "pearson",
 * "spearmanr", "mse". */
const char *metric_name(enum metric metric);

/* prediction, truth: (n), label ids or scores. 0 where the metric is undefined (one class only, no
 * variance, n = 0), as scikit-learn does. */
double metric_compute(enum metric metric, const float *prediction, const float *truth, int n);

#endif
