/* A made-up optimisation problem with the shape of a model's parameters, small enough that many
 * configurations of the engine run over it in seconds. Gradients depend on the parameters, so a
 * wrong or late update shows in everything that follows. */
#ifndef ZF_TESTS_ZENFLOW_PROBLEM_H
#define ZF_TESTS_ZENFLOW_PROBLEM_H

#include "offload/engine/engine.h"

#define PROBLEM_SAMPLES 4 /* what a step's gradient is summed over; ranks share them */

struct problem {
    struct param_table table;
    struct device *device;
    struct comm *comm;
    float *params;       /* (n_elements) as they are visible on the device after each step */
    float *grads;        /* (n_elements) this rank's gradient, before it goes to the device */
    void *device_params; /* (n_values) of the device's dtype */
    float *device_grads; /* (n_gradients) */
    char *seen; /* device memory: each forward and each backward pass leaves its parameters here as
                   it saw them, one pass behind the other; or NULL */
    bool takes_values; /* the engine was given fp32 values */
    struct engine *engine;
};

/* A few matrices and vectors of random odd shapes, for one seed in four those of a small Llama,
 * with random values: a function of the seed. */
void problem_create(struct problem *p, unsigned seed, struct comm *comm,
                    const struct engine_config *config);
/* So many layers of so many matrices, every second of them a vector. */
void problem_create_layers(struct problem *p, int layers, int matrices, struct comm *comm,
                           const struct engine_config *config);
/* One block of one matrix with so many rows, between two vectors. */
void problem_create_tall(struct problem *p, int rows, struct comm *comm,
                         const struct engine_config *config);
void problem_destroy(struct problem *p);

/* Sample s's part of step's gradient, added to grads. Channels differ in size by orders, and which
 * are large changes with time. */
void problem_add_gradient(const struct problem *p, int step, int sample, const float *params,
                          float *grads);

/* All samples' gradient of a step, at `params`, (n_elements), overwritten. */
void problem_gradient(const struct problem *p, int step, float *grads);

/* One optimizer step: this rank's samples, the layers in backward's order, and the update. */
struct step_report problem_step(struct problem *p, int step);
/* The same, but nobody looks at the parameters: `params` are those of the step before. */
struct step_report problem_step_unseen(struct problem *p, int step);
/* Its pieces: its begin, with this rank's samples in `grads`; what backward does with these; and a
 * look at the parameters. */
void problem_begin_step(struct problem *p, int step);
void problem_give_gradient(struct problem *p);
void problem_read_params(struct problem *p);
/* What a restart does: the parameters of another run. */
void problem_copy_params(struct problem *to, const struct problem *from);
/* Closes all windows. */
void problem_finish(struct problem *p);

/* The device that problems are made on: the CPU device, unless a test program sets another. */
extern struct device *problem_device;

/* All ranks, and this one by itself; attached to problem_device. */
extern struct comm *world, *alone;
/* Blocks' slots for parameters, of problems whose configuration has them on the host, or divides
 * them over several ranks. */
extern int problem_value_slots;

/* The learning rate of a step. */
float problem_lr(int step);

/* AdamW with clipping and weight decay; everything else as of ZenFlow's resident point. */
struct engine_config problem_config(void);
/* The same with a tenth of the channels important, windows of 4 steps and an overlap of one. */
struct engine_config problem_zenflow_config(void);
/* A random point of the configuration's space, valid by construction. */
struct engine_config problem_random_config(unsigned seed);
/* What random_config chose, for messages. */
const char *problem_describe(const struct engine_config *c);

#endif
