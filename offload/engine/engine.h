/* ZenFlow (arXiv 2505.12242): who averages gradients over ranks, clips them and applies AdamW, and
 * where the optimizer's state lives. The one interface that the training loop sees.
 *
 * Each channel's fp32 master values, AdamW moments and update count live on the device while the
 * channel is important and on the host while it is not, and move when that changes. Important
 * channels are updated every step. The others gather their gradients in a window of update_interval
 * steps; its mean goes to host threads as one AdamW update, visible apply_lag steps later.
 *
 * Plain AdamW is this with every channel important (topk_ratio 1); ZeRO-Offload is this with none,
 * windows of one step and no lag. offload/README.md tells the algorithm on one page. */
#ifndef ZF_OFFLOAD_ENGINE_ENGINE_H
#define ZF_OFFLOAD_ENGINE_ENGINE_H

#include "data/error.h"
#include "model/device/arena.h"
#include "model/device/device.h"
#include "model/device/ops.h"
#include "model/device/params.h"
#include "offload/comm/comm.h"
#include "offload/telemetry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENGINE_MAX_INTERVAL 64 /* steps in a window at most */

enum engine_accumulate {
    ENGINE_ACCUMULATE_DEVICE, /* windows in device memory: only their means cross the link */
    ENGINE_ACCUMULATE_HOST,   /* each step's deferred gradient crosses and is added on the host */
};

/* How S is chosen where no update_interval is given. */
enum engine_interval_rule {
    ENGINE_INTERVAL_DEEPSPEED, /* as deferred gradients gather, again and again */
    ENGINE_INTERVAL_KEEP_UP,   /* the least with which host and link keep up, once, as measured in
                                  the first steps */
};

struct engine_config {
    float beta1, beta2, eps, weight_decay;
    bool adam_w_mode;        /* false: L2 regularisation, as torch.optim.Adam */
    float gradient_clipping; /* greatest global norm; 0: none */
    bool bf16;               /* parameters are rounded to bf16 and cross the link as bf16 */
    bool values_follow;      /* parameters are not there yet: engine_take_values gives masters */
    bool params_on_host; /* blocks' parameters live on the host and come when they are needed, into
                                the table's slots for values; with values_follow, some channels
                                deferred, and one rank or: */
    bool params_divided; /* of several ranks each keeps the parameters of its own channels alone,
                            and all of a layer's meet in its slot when they are needed; with
                            values_follow */

    bool params_come_late; /* no earlier than a layer is needed */

    bool recomputes; /* backward makes activations again: it takes three forward passes, not two */

    bool evaluates; /* nothing is trained: parameters come, and there is no other state. grads are
                       NULL, and no more is called than engine_take_values, engine_before_layer,
                       engine_after_layer and engine_memory; with values_follow */

    double topk_ratio;        /* share of each matrix's channels that are important */
    int select_every;         /* steps between selections; 0: the first one stays */
    bool reselect_when_stale; /* and whenever the chosen hold far less than a fresh choice would */
    int update_interval; /* S, steps in a window, 1 to ENGINE_MAX_INTERVAL; 0: chosen by rule */
    enum engine_interval_rule interval_rule; /* with topk_ratio 0, where there is nothing that the
                                                other one compares with, keep_up's */
    double auto_ratio;  /* DeepSpeed's rule: share of matrices that must be due */
    bool auto_keeps_up; /* it chooses no S with which host or link do not keep up, as measured in
                           the first windows: the choice then depends on timing */
    int apply_lag;      /* steps until a host update is visible, 0 to S; 0: the step waits */
    bool stagger;       /* one group's window closes each step, not all in every S-th */
    bool offload_important;  /* important channels' state stays on the host between steps */
    int full_warm_up_rounds; /* steps at the start that update every channel, without lag */
    enum engine_accumulate accumulate;
    int device_windows; /* with ENGINE_ACCUMULATE_HOST: of so many blocks, the first ones, windows
                           are in device memory all the same */
    bool zero_copy; /* operators cross the link, in place of copies; always where device memory is
                       the host's */
    bool all_steps; /* a host update stands for all steps of its window, as AdamW would have made
                       them; else for one. With adam_w_mode and a scale of 1 alone */
    double deferred_lr_scale; /* of host updates; ENGINE_LR_SQRT: square root of the window's
                                 length */

    double reserved_cores; /* share of this rank's cores kept from the host workers */
    struct trace *trace;   /* gets what the engine has done (offload/trace.h); borrowed, or NULL */
    double step_seconds, host_seconds; /* tests: what is taken for measured, if not 0: a step
                                          without waits; the host's work for all channels */
    double worker_delay_seconds; /* tests: workers pause at random before each chunk, up to this */
    uint32_t worker_delay_seed;
};

#define ENGINE_LR_SQRT (-1.0)

/* How local important channels are, by the newest choice of them: in one layer, or in all. Vectors
 * do not count. */
struct choice_part {
    int chosen;         /* channels */
    int kept;           /* of them the choice before had chosen, too */
    double norm_chosen; /* squared norm of this step's gradient, before clipping: of the chosen, */
    double norm;        /* and of all channels */
};
struct engine_choice {
    bool first;                 /* there was none before: nothing is kept */
    struct choice_part all;     /* the sums of: */
    struct choice_part *layers; /* (n_layers) */
    int n_layers;
};

/* What "keep_up" goes by, as the slowest rank has measured it: seconds. */
struct engine_pace {
    double step;      /* one that waits for nothing */
    double room;      /* of it, from the gradients' end to that of the next forward pass, which
                            needs the parameters that come up meanwhile */
    double host;      /* workers' updates of all channels, */
    double host_each; /* and in each step what else the host does: sums of gradients where windows
                            are its, copies of state that visits the device */
    double link;      /* those channels' parameters on their way up; 0 where nothing is copied */
};

/* What a step did and what it cost. Bytes count this rank's traffic between device and host. */
struct step_report {
    float grad_norm;             /* global L2 norm before clipping */
    bool skipped;                /* the gradient was not finite: nothing was changed */
    double stall_seconds;        /* the device had nothing to do, and waited for host workers */
    double host_seconds;         /* host workers were busy, summed over workers */
    size_t bytes_down, bytes_up; /* gradients to the host; parameters to the device */
    size_t bytes_moved;          /* state of channels that changed sides, both ways */
    size_t bytes_gathered;       /* other ranks' parameters that came to this one */
    size_t bytes_norms;          /* summed over ranks: norms, which is all that a choice takes, */
    size_t bytes_gradients;      /* and gradients; of the whole model, and 0 with one rank */
    int staleness;               /* steps from the oldest gradient to its becoming visible now */
    int update_interval;         /* S in force */
    bool chose_interval;         /* a rule has chosen it, be it the same */
    int least_interval;          /* the least with which all ranks keep up, */
    struct engine_pace pace;     /* by this, where that was measured in this step; else both 0 */
    bool selected;               /* a new choice of important channels was made: */
    const struct engine_choice *choice; /* the engine's, until the next one; else NULL. The same on
                                           all ranks, of the whole model */
    double important_share;             /* of the squared norm, held by the important channels */
};

struct engine;

/* params: (n_elements) of the device's dtype, initialised unless config->values_follow; grads:
 * (n_gradients) fp32; laid out by `table`, whose layers may share slots for gradients; all are
 * borrowed. comm is attached to the device. Every rank's parameters are the same; where they are
 * divided, all ranks call what follows in the same order. On a device that computes in bf16,
 * config->bf16 holds. Fails where apply_lag is more than update_interval. */
struct engine *engine_create(const struct engine_config *config, struct device *device,
                             struct comm *comm, const struct param_table *table, void *params,
                             float *grads, struct zf_error *err);
void engine_destroy(struct engine *e);
/* Before the first step, or before engine_load: the masters of elements [offset, offset + n) of the
 * parameters are these, exactly. The device has them already, rounded if it holds bf16; if it
 * computes in fp32 and config->bf16 holds, they are rounded here. values: host memory, which stays
 * as it is until the compute stream has been waited for. */
void engine_take_values(struct engine *e, size_t offset, const float *values, size_t n);

/* A step: begin; forward, calling engine_before_layer as each layer's parameters are needed, since
 * they may still be on their way; backward, from the last layer to the first, calling
 * engine_before_gradients before a layer's gradient is written, and engine_layer_gradients_ready
 * when it is complete (a sum over this rank's part of the step, already divided by the whole step's
 * items): the engine takes it from there, and its slot may be written again after the next call of
 * the first; end, which updates the parameters. All of it is put on the device's streams; the host
 * waits for the step's norm alone. */
void engine_begin_step(struct engine *e, float lr);
void engine_before_layer(struct engine *e, int layer);
void engine_after_layer(struct engine *e, int layer);
void engine_before_backward(struct engine *e); /* for clocks alone: the timeline, and "keep_up" */
void engine_before_gradients(struct engine *e, int layer);
void engine_layer_gradients_ready(struct engine *e, int layer);
/* Whoever else reads the parameters calls this first: what is put on the compute stream from now on
 * sees all that is due. */
void engine_settle(struct engine *e);
/* Fails after ten steps in a row whose gradient was not finite. */
bool engine_end_step(struct engine *e, struct step_report *report, struct zf_error *err);

/* Steps done so far, over resumes; skipped ones do not count. */
int engine_steps(const struct engine *e);

/* S in force: steps of a window. */
int engine_update_interval(const struct engine *e);

/* Closes every open window, with the learning rate of the last step, and waits until all host
 * updates are visible: after the last step, before the model is saved, so that no gradient is
 * dropped. */
void engine_finish(struct engine *e);

/* State for an exact resume in DIR/optimizer-RRRRR-of-RRRRR.safetensors, one file a rank, by
 * parameter and range of channels: any number of ranks can read it. Open windows and updates in
 * flight included. Parameters themselves are saved with the model, and loaded before engine_load,
 * after engine_settle. An engine that has done steps loads like a new one. Collective. */
bool engine_save(struct engine *e, const char *directory, struct zf_error *err);
/* The name of a rank's file, as a new string. */
char *engine_file_name(int rank, int ranks);
/* Fails, whatever the files hold, on all that no engine of this configuration has written; the
 * engine then can only be loaded again or destroyed. Numbers of the state itself, such as masters,
 * may be any. */
bool engine_load(struct engine *e, const char *directory, struct zf_error *err);

/* Adds the device memory that an engine will hold on one rank, by use; gradients are those that
 * wait for the clipping factor. */
void engine_measure(const struct engine_config *config, struct device *device,
                    const struct param_table *table, int rank, int ranks, struct memory_use *use);
/* The host memory that it will hold there in any step, at most: engine_memory's host_most. */
size_t engine_measure_host(const struct engine_config *config, struct device *device,
                           const struct param_table *table, int rank, int ranks);

/* Bytes of host memory, by use, without what grows with no model: buffers that rows pass through,
 * tens of MiB. */
struct engine_host_use {
    size_t optimizer;  /* m, v, and the masters but for what `parameters` has; counts of updates */
    size_t parameters; /* that layers come from to the device, pinned */
    size_t windows;    /* where they are on the host */
    size_t staged;     /* gradients that the host gathers there, pinned */
    size_t exchange;   /* gradients and parameters that are crossing, pinned */
};
size_t engine_host_total(const struct engine_host_use *use);

/* Bytes of host and device memory that the engine holds on this rank. */
struct engine_memory {
    size_t host, device; /* host: the total of host_use */
    size_t host_most;    /* in any step: warm-up rounds and short windows take more of it */
    struct engine_host_use host_use;
    size_t host_elements; /* parameters whose state lives on the host */
};
struct engine_memory engine_memory(const struct engine *e);

#endif
