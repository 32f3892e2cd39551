/* Curves of a run's log for a page: however long the run is, each has a bounded number of points,
 * which are means over the same number of entries one behind the other, with the least and the
 * greatest of them. The same entries give the same points, whenever they are added. */
#ifndef ZF_CMD_REPORT_CURVES_H
#define ZF_CMD_REPORT_CURVES_H

#include <jansson.h>

#define CURVE_POINTS 1024 /* at most; even */

struct curve;

struct curves {
    int n;
    struct curve *list; /* one for each key of the log that has been a number, or numbers */
};

/* Adds each number of a log entry, but its step and epoch; of an array, such as one over layers,
 * number i as "KEY.i". Steps do not go back. */
void curves_add(struct curves *curves, const json_t *entry);
void curves_free(struct curves *curves);

/* {KEY: {"step": [the last of each point], "value": [...]}}, and where points have several entries
 * "least" and "greatest". */
json_t *curves_json(const struct curves *curves);

#endif
