/* The engine's insides, shared by the files that implement offload/engine.h:
 *   engine.c             creation, the order of a step
 *   engine_channels.c    state of channels: where it lives, how it moves
 *   engine_windows.c     windows: gathering gradients, closing, host updates, arrivals
 *   engine_checkpoint.c  save and load */
#ifndef ZF_OFFLOAD_ENGINE_INTERNAL_H
#define ZF_OFFLOAD_ENGINE_INTERNAL_H

#include "offload/engine.h"
#include "offload/host_adam.h"
#include "offload/schedule.h"
#include "offload/worker.h"

/* fp32 state in device memory. */
struct state_arrays {
    float *master; /* NULL where the parameter itself is the fp32 master */
    float *m, *v;
    size_t n_elements; /* of each */
};

/* State of this rank's important channels of one matrix, in device memory. A slot is one channel's
 * place; the channel may be any, row[slot] says which. */
struct slots {
    int n, capacity;
    int lowest_free; /* no slot below it is free */
    int *row_host;   /* (capacity) index among the owned channels, -1: free */
    int *row;        /* the same in device memory */
    float *corrections_host,
        *corrections;          /* (capacity, 2) bias corrections of this step's update */
    struct state_arrays state; /* (capacity, cols) each */
};

/* A parameter as the engine sees it: a matrix of channels, of which this rank owns a range. A
 * vector is one channel, always important. */
struct matrix {
    const struct param *param;
    int index;       /* in the table */
    bool selectable; /* channels may be deferred: not a vector, and topk_ratio < 1 */
    struct range owned;
    int n_owned, cols;
    size_t first_channel; /* of channel 0, in arrays over all channels of the model */
    void *values;         /* (n_owned, cols) owned parameters, device */
    float *grad;          /* (n_owned, cols) their averaged gradient, device */
    float *window;        /* (n_owned, cols) open windows, in device or host memory; NULL if none */
    void *staged; /* (n_owned, cols) this step's deferred gradient, where the host accumulates */
    struct host_adam_matrix host; /* (n_owned, cols) host state;  */
    struct slots slots;
    int *slot_of; /* (n_owned) slot of an important channel, else -1 */
};

/* A contiguous range of one matrix's owned channels: what one chunk of host work covers. */
struct task {
    int matrix, first, last;
};

/* A group's window and the host update that its last closing started. */
struct group {
    struct engine *engine;
    int index;
    int open_steps; /* gradients in the window */
    int oldest;     /* step of the first of them */
    bool in_flight; /* an update has been handed to the host and is not visible yet */
    int due;        /* the step at whose end it becomes visible */
    int oldest_in_flight;
    uint64_t ticket;
    float lr;          /* of the update in flight */
    int closing_steps; /* gradients in the window that it closed */
    bool has_leaving;  /* channels left with that closing */
};

struct engine {
    struct engine_config config;
    struct device *device;
    struct comm *comm;
    const struct param_table *table;
    void *params;
    float *grads;
    float *owned_grads;      /* ranks > 1: reduced gradients of owned channels, device */
    struct matrix *matrices; /* (n_params) */
    int n_matrices;
    size_t n_channels;
    char *shared;          /* ranks > 1: parameters that changed in this step, rank by rank */
    size_t *shared_offset; /* (size + 1) where each rank's begin, in bytes */
    size_t shared_bytes;

    unsigned char *place;        /* (n_channels) enum channel_place: what is in force */
    unsigned char *place_device; /* (n_channels) the same in device memory */
    unsigned char *target;  /* (n_channels) 1: in the newest choice, adopted as windows close */
    unsigned char *updated; /* (n_channels) parameters that changed in this step, on any rank */
    float *norms;           /* (n_channels) squared, of all ranks' channels */
    float *norms_device;    /* (channels owned) */
    float *scale;           /* one float in device memory: a factor on gradients */

    struct state_arrays visiting; /* offload_important: one matrix's slots at a time */
    struct group groups[ENGINE_MAX_INTERVAL];
    int interval, lag; /* in force */
    int step;          /* steps done, skipped ones not counted */
    int windows_began; /* the step in which the present schedule of windows started */
    bool selected;     /* the first choice has been made */
    float lr;
    int skipped_in_a_row;

    /* update_interval 0: what the rule has seen since it last chose */
    double *important_norm, *deferred_norm; /* (n_matrices) sums over steps */
    int observed_steps;
    double observed_since, observed_stall, observed_busy; /* seconds */
    int least_interval; /* with which the host keeps up; 0: not measured yet */

    bool defers;                 /* any matrix is selectable, on whatever rank its channels are */
    struct worker_pool *workers; /* NULL where nothing is ever deferred */
    struct task *tasks;          /* all jobs have these chunks */
    int n_tasks;
    float *host_state; /* master, m, v, and windows where they are on the host */
    void *exchange;    /* gradients down, parameters up; then staged gradients */
    float *windows;    /* in device memory, or NULL */
    size_t host_state_bytes, exchange_bytes;
    uint64_t accumulate_ticket; /* the host's last addition to its windows */
    uint64_t staged_fresh;      /* groups whose windows it begins */
    uint32_t *updates;          /* (channels owned) AdamW updates that each has had */
    size_t host_elements;       /* parameters whose state may live on the host */
    size_t device_bytes, host_bytes;
    double host_seconds_before;
};

/* Elements of the exchange buffer: bf16 or fp32. */
static inline enum dtype exchange_dtype(const struct engine *e)
{
    return e->config.bf16 ? DTYPE_BF16 : DTYPE_F32;
}

/* The group of an owned channel. */
static inline int group_of(const struct engine *e, const struct matrix *m, int row)
{
    return (int)(((long)m->owned.first + row + m->index) % e->interval);
}

/* Where an owned channel stands. */
static inline enum channel_place place_of(const struct engine *e, const struct matrix *m, int row)
{
    return e->place[m->first_channel + (size_t)(m->owned.first + row)];
}

/* The AdamW rule of a matrix, but for bias corrections. */
struct adamw engine_rule(const struct engine *e, const struct matrix *m, float lr);

/* engine_channels.c */

/* All channels of a matrix become important, with fresh state. */
void channels_initialise(struct engine *e, struct matrix *m);
/* Moves an owned channel's state; the caller sets `place`. */
void channels_to_device(struct engine *e, struct matrix *m, int row, struct step_report *report);
void channels_to_host(struct engine *e, struct matrix *m, int row, struct step_report *report);
/* Where an owned channel's state lies now, on either side: part 0 master, 1 m, 2 v. (cols) fp32 */
float *channels_state(struct engine *e, struct matrix *m, int row, int part);
/* Gives slots to the channels that are important, after a load. */
void channels_adopt(struct engine *e, struct matrix *m);
/* One AdamW update on the device of the slots whose channel is in row_host, from gradients
 * (n_owned, cols) in device memory times `factor`. */
void channels_update(struct engine *e, struct matrix *m, const int *rows, const float *gradient,
                     float lr, float factor, struct step_report *report);
/* AdamW on all important channels with this step's gradient. */
void channels_update_important(struct engine *e, float factor, struct step_report *report);
/* Chooses important channels where a choice is due. */
void channels_select(struct engine *e, struct step_report *report);
void channels_release(struct engine *e);

/* engine_windows.c */

/* Adds this step's deferred gradients, times `factor`, to the open windows. */
void windows_accumulate(struct engine *e, float factor, struct step_report *report);
/* Closes a group's window: lets channels change sides, and hands the mean to the host. */
void windows_close(struct engine *e, struct group *g, struct step_report *report);
/* Makes the host updates visible that are due at the end of this step (all: whatever is in flight).
 */
void windows_arrive(struct engine *e, bool all, struct step_report *report);
/* Starts a new schedule of windows with this step; none may be open or in flight. */
void windows_begin(struct engine *e, int interval, int lag, int first_step);
/* Closes and applies everything that is open. */
void windows_flush(struct engine *e, struct step_report *report);
/* update_interval 0: notes this step's norms and begins windows of another length where the rule
 * asks for it. */
void windows_choose_interval(struct engine *e, struct step_report *report);
/* Fills the exchange buffer of groups in flight from the host's masters, after a load. */
void windows_restore_exchange(struct engine *e);

#endif
