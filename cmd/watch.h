/* Watches metric_for_best_model: which evaluation is the best so far, and for how many there has
 * been no better one. The rules are Transformers' (Trainer._determine_best_metric and
 * EarlyStoppingCallback.check_metric_value). */
#ifndef ZF_CMD_WATCH_H
#define ZF_CMD_WATCH_H

#include <stdbool.h>

struct watch {
    bool any;    /* there has been an evaluation */
    double best; /* of all */
    int waited;  /* evaluations since one was better by more than the threshold */
};

/* Whether a is the better one. */
bool watch_is_better(double a, double b, bool greater_is_better);

/* Takes the next evaluation. */
void watch_take(struct watch *w, double value, bool greater_is_better, double threshold);

#endif
