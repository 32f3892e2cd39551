/* One measured run of zf-bench train: its data, its steps, its arithmetic. */
#ifndef ZF_CMD_BENCH_TRAIN_RUN_H
#define ZF_CMD_BENCH_TRAIN_RUN_H

#include "cmd/config/config.h"
#include "cmd/plan_report.h"
#include "data/batch.h"
#include "model/gpt.h"
#include "offload/engine/engine.h"

/* What all runs of a comparison share. */
struct train_job {
    struct device *device;
    struct comm *comm;   /* borrowed; each rank trains on as much */
    struct trace *trace; /* borrowed, or NULL */
    struct gpt_config config;
    int n_seqs, micro_batches; /* sequences of a micro-batch, a rank's micro-batches of a step */
    int warm_up, steps;        /* the first steps are not counted */
    int apply_lag;             /* of methods that have one: "keep_up" chooses no earlier */
    bool recompute;            /* activations are computed again for backward */
    float lr;
    struct dataset data; /* the sequences of all steps, and of one more micro-batch behind them */
};

/* The ways of keeping the optimizer's state that are compared. */
enum train_kind {
    TRAIN_RESIDENT,
    TRAIN_OFFLOAD,
    TRAIN_BURST,
    TRAIN_STAGGERED,
    TRAIN_AUTO,
    TRAIN_KEEP_UP,
    TRAIN_N_KINDS
};

struct train_method {
    const char *name;
    struct engine_config engine;
    int value_slots; /* that blocks share for parameters; 0: each has its own place */
};

struct train_result {
    const char *name;
    bool fits;
    size_t needed, free;    /* bytes of device memory, as zf-train plans it */
    double *seconds;        /* (steps) of each counted step */
    double median, worst;   /* of them */
    double mean;            /* of all, the wait for the last one's end included */
    double stall;           /* share of the counted time that the device waited for the host */
    double down, up, moved; /* bytes a step between device and host; moved: of channels that changed
                               sides, both ways */
    double gathered;        /* bytes a step of other ranks' parameters */
    double tokens, flops;   /* of a step, the mean */
    double created, filled, first; /* seconds of the start: until model and engine are there; until
                                      all weights are; and of the first step */
    struct plan_report *planned;   /* of a device that only counts; else NULL */
    struct memory_use use;         /* of device memory */
    struct engine_memory memory;
    int interval;                   /* windows' length, at the end */
    double loss_before, loss_after; /* means over the items of a micro-batch that is never trained
                                       on, without dropout */
};

/* As an option spells it. */
const char *train_kind_name(enum train_kind kind);
/* A configuration of that kind which otherwise says the same; and what zf-train makes of it. */
struct config train_config(enum train_kind kind, const struct config *c);
struct train_method train_method_make(enum train_kind kind, const struct config *c);

/* Steps behind which "keep_up" has chosen its windows, and they have begun: it is warmed up by no
 * fewer, with a long lag by its steps and five. */
#define TRAIN_CHOICE_STEPS 10

/* Sequences whose lengths are length[i % n_lengths], enough for all steps of the job and one
 * micro-batch more. Ids are as unequally frequent as words, and labels follow from them, so that
 * there is something to learn. job's sizes are set. */
void train_data_make(struct train_job *job, const int *length, int n_lengths, uint64_t seed);

/* FLOPs of a step's matrix products, forward and backward, over sequences of these lengths:
 * 6 for each weight of a matrix and token that passes it (2 forward, 4 backward), and 12 for each
 * pair of tokens that attention relates, each element of the width and each block (2 products
 * forward, 4 backward). What backward computes again is not counted. */
double train_flops(const struct gpt_config *config, const int *length, int n);

/* Runs the job on a fresh model and engine. Fails where a gradient stays not finite; a run that the
 * device's memory cannot hold is no failure: result->fits says so,
 * and a plan is made all the same. */
bool train_measure(const struct train_job *job, const struct train_method *method,
                   struct train_result *result, struct zf_error *err);
void train_result_free(struct train_result *result);

#endif
