/* The optimizer as the training loop sees it: who averages gradients over ranks, clips them, and
 * applies AdamW, and where the optimizer's state lives. */
#ifndef ZF_OFFLOAD_ENGINE_H
#define ZF_OFFLOAD_ENGINE_H

#include "data/error.h"
#include "model/device.h"
#include "model/ops.h"
#include "model/params.h"
#include "offload/comm.h"

#include <stdbool.h>
#include <stdint.h>

struct engine_config {
    float beta1, beta2, eps, weight_decay;
    bool adam_w_mode;        /* false: L2 regularisation, as torch.optim.Adam */
    float gradient_clipping; /* greatest global norm; 0: none */
};

struct engine;

/* params, grads: the model's arrays, laid out by `table`; all are borrowed. */
struct engine *engine_create(const struct engine_config *config, struct device *device,
                             struct comm *comm, const struct param_table *table, void *params,
                             float *grads);
void engine_destroy(struct engine *e);

/* A step: begin; backward, calling engine_layer_gradients_ready as each layer's gradient is
 * complete (they are sums over this rank's part of the step, already divided by the whole step's
 * items); end, which updates the parameters and clears the gradients. */
struct step_report {
    float grad_norm; /* global L2 norm before clipping */
    bool skipped;    /* the gradient was not finite: nothing was changed */
};
void engine_begin_step(struct engine *e, float lr);
void engine_layer_gradients_ready(struct engine *e, int layer);
/* Fails after ten steps in a row whose gradient was not finite. */
bool engine_end_step(struct engine *e, struct step_report *report, struct zf_error *err);

/* State for an exact resume, in DIR/optimizer.safetensors. Collective. */
bool engine_save(struct engine *e, const char *directory, struct zf_error *err);
bool engine_load(struct engine *e, const char *directory, struct zf_error *err);

#endif
