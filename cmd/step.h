/* One optimizer step, as all who train do it: the micro-batches' forward and backward passes, the
 * engine's part, the loss. zf-train and zf-bench call it with the same settings, so what is
 * measured is what runs. */
#ifndef ZF_CMD_STEP_H
#define ZF_CMD_STEP_H

#include "data/batch.h"
#include "model/gpt.h"
#include "offload/comm/comm.h"
#include "offload/engine/engine.h"

/* What a run's steps share; all of it is borrowed. */
struct stepper {
    struct gpt *model;
    struct engine *engine;
    struct comm *comm;
    struct trace *trace;       /* or NULL */
    const struct dataset *set; /* the examples */
    struct batch *batches;     /* (together) room for micro-batches */
    int n_labels;              /* as for batch_fill */
    int micro_batch;           /* sequences of one rank's micro-batch */
    int micro_batches;         /* of a step: gradient_accumulation_steps */
    int together;              /* that go through the model's layers together */
    uint32_t seed;             /* of the dropouts */
};

struct step_result {
    struct step_report report;
    double loss; /* mean over the step's items, of all ranks */
    long tokens; /* of all ranks */
    bool stop;   /* some rank was asked to stop (stop.h) */
};

/* From now on the engine brings a model's parameters and takes its gradients, in every pass, and
 * gets weights as they are loaded or drawn, the device perhaps rounded to bf16. */
void step_connect(struct gpt *model, struct engine *engine);

/* Does step number `step` on examples index[0..n) of the set, at most micro_batch * micro_batches *
 * ranks, divided by sampler_slice. Returns once the host knows the gradient's norm and the loss;
 * the device may still be at work. Fails where the engine gives up (engine_end_step).
 * Collective. */
bool step_run(const struct stepper *s, const int *index, int n, int step, float lr,
              struct step_result *result, struct zf_error *err);

#endif
