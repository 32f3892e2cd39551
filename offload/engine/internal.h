/* The engine's insides, shared by the files that implement offload/engine/engine.h:
 *   engine.c      creation, the order of a step
 *   table.c       the matrices in the device's memory, for its operators
 *   selection.c   channels: their updates on the device, who is important
 *   state.c       where their state lives, how it moves
 *   ranks.c       changed parameters on their way between ranks
 *   windows.c     windows: gathering gradients, closing, host updates, arrivals
 *   checkpoint.c  save and load */
#ifndef ZF_OFFLOAD_ENGINE_INTERNAL_H
#define ZF_OFFLOAD_ENGINE_INTERNAL_H

#include "offload/engine/engine.h"
#include "offload/engine/schedule.h"
#include "offload/host/adam.h"
#include "offload/host/workers.h"
#include "offload/trace.h"

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
    int lowest_free;           /* no slot below it is free */
    int *row;                  /* (capacity) index among the owned channels, -1: free */
    struct state_arrays state; /* (capacity, cols) each */
};

/* Channels that AdamW is about to update on the device, matrix by matrix. */
struct update_list {
    struct channel_update *host, *device; /* (slots of all matrices) */
    int n;
    int *first;     /* (n_matrices + 1) where each matrix's begin */
    int n_matrices; /* that have begun */
    bool important; /* the device has the important channels, as they are now, and their counts */
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
    int deferred[ENGINE_MAX_INTERVAL], leaving[ENGINE_MAX_INTERVAL]; /* owned channels by group */
};

/* A job for the workers that begins when a stream has got to it. */
struct host_work {
    struct worker_pool *workers;
    struct worker_job job;
    struct event *handed_over; /* the stream has got there: ticket holds */
    uint64_t ticket;
    bool begun; /* since the engine was created or loaded */
    int step;   /* for the timeline: of the job that it has not got yet, else 0 */
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
    struct host_work update;
    struct host_adam_job job; /* the update in flight */
    int closing_steps;        /* gradients in the window that it closed */
    bool has_leaving;         /* channels left with that closing */
};

/* Steps by the clock. */
struct timing {
    double since; /* seconds on data/clock.h's clock; 0: it has not begun */
    int steps;    /* since then */
    double stall; /* seconds of them that waited for the host */
    double busy;  /* seconds that workers had worked before */
};

/* Pinned memory through which state of channels moves. */
struct staging {
    char *memory;
    size_t capacity, used;
    int *rows;                /* (most channels of a matrix) device memory */
    struct landing *landings; /* what goes on to the host's arrays once the device has written it */
    int n_landings, landings_capacity;
};

struct engine {
    struct engine_config config;
    struct device *device;
    struct comm *comm;
    int rank, ranks;
    enum dtype dtype; /* of the device's parameters */
    bool measuring;   /* nothing is allocated: engine_measure */
    struct memory_use use;
    const struct param_table *table;
    void *params;
    float *grads;
    float *owned_grads;      /* ranks > 1: reduced gradients of owned channels, device */
    struct matrix *matrices; /* (n_params) */
    int n_matrices;
    size_t n_channels;
    struct matrix_rows *rows;    /* (n_matrices) the device's view of them, in device memory; it
                                    never changes */
    struct matrix_batch all;     /* of them */
    struct matrix_batch *layers; /* (n_layers) of each layer's */
    int *first_of_layer;         /* (n_layers + 1) index of its first matrix */
    struct update_list list;

    /* Beside device->compute; `mark` orders one stream behind what is on another so far. */
    struct stream *reducing;  /* gradients to their owners, norms */
    struct stream *down, *up; /* the link, one each way */
    struct event *mark;
    struct event *norm_known; /* summary_host holds this step's */
    struct event **arrived;   /* (n_layers) parameters on their way to a layer are there */
    bool *arriving;           /* (n_layers) and the compute stream does not wait for it yet */

    /* ranks > 1: parameters that changed go to the other ranks through this. Device memory: */
    char *shared;
    size_t shared_bytes;
    int *shared_rows; /* (n_channels) which rows they are */
    int *shared_rows_host;
    size_t *shared_offset; /* (ranks + 1) where each rank's begin, in bytes */

    unsigned char *place;        /* (n_channels) enum channel_place: what is in force */
    unsigned char *place_device; /* (n_channels) the same in device memory */
    unsigned char *target;  /* (n_channels) 1: in the newest choice, adopted as windows close */
    unsigned char *choice;  /* (n_channels) a choice that is looked at, device memory */
    uint64_t to_adopt;      /* groups that have not looked at the newest choice */
    unsigned char *updated; /* ranks > 1: (n_channels) parameters that changed in this step */
    float *norms;           /* (n_channels) squared, of all ranks' channels, device */
    float *norms_host;      /* update_interval 0: the same, in memory of allocate_host */
    struct norm_summary *summary, *summary_host; /* of this step; of a choice: the second */
    float *scale;                                /* a factor on gradients, device */

    struct state_arrays visiting; /* offload_important: one matrix's slots at a time */
    struct staging staging;
    struct group groups[ENGINE_MAX_INTERVAL];
    int interval, lag; /* in force */
    int step;          /* steps done, skipped ones not counted */
    int windows_began; /* the step in which the present schedule of windows started */
    bool selected;     /* the first choice has been made */
    int chosen_in;     /* the step of the newest choice */
    float lr;          /* of this step, or of the last one */
    int skipped_in_a_row;

    /* update_interval 0: what the rule has seen since it last chose */
    double *important_norm, *deferred_norm; /* (n_matrices) sums over steps */
    int observed_steps;
    struct timing timing;
    int least_interval; /* with which the host keeps up; 0: not measured yet */

    bool defers;                  /* any matrix is selectable, on whatever rank its channels are */
    struct worker_pool *workers;  /* NULL where nothing is ever deferred */
    struct host_adam_task *tasks; /* all jobs have these chunks */
    int n_tasks;
    float *host_state; /* master, m, v, and windows where they are on the host */
    void *exchange;    /* gradients down, parameters up; then staged gradients */
    float *windows;    /* in device memory, or NULL */
    size_t host_state_bytes, exchange_bytes;
    struct host_work accumulation; /* the host's addition of staged gradients to its windows */
    bool staging_gradients;        /* this step's have begun to go down */
    double stall_seconds;          /* of this step, so far */
    size_t staged_bytes;
    uint64_t staged_fresh; /* groups whose windows it begins */
    float staged_factor;   /* of clipping */
    uint32_t *updates;     /* (channels owned) AdamW updates that each has had */
    size_t host_elements;  /* parameters whose state may live on the host */
    double host_seconds_before;
};

/* Elements of the exchange buffer: bf16 or fp32. */
static inline enum dtype exchange_dtype(const struct engine *e)
{
    return e->config.bf16 ? DTYPE_BF16 : DTYPE_F32;
}

/* The groups of a matrix's owned channels; and of all its channels. */
static inline struct row_groups owned_groups(const struct engine *e, const struct matrix *m)
{
    return row_groups_of(&m->host.part, e->interval);
}

static inline struct row_groups all_groups(const struct engine *e, const struct matrix *m)
{
    const struct matrix_part part = {m->index, 0, m->param->rows, m->cols};
    return row_groups_of(&part, e->interval);
}

/* Where an owned channel stands. */
static inline enum channel_place place_of(const struct engine *e, const struct matrix *m, int row)
{
    return e->place[m->first_channel + (size_t)(m->owned.first + row)];
}

/* Device memory, noted under a use; NULL while measuring. */
void *engine_device_memory(struct engine *e, size_t *use, size_t bytes);
/* The streams. What is put on `stream` from now on runs after all that is on `other` so far. */
void engine_follow(struct engine *e, struct stream *stream, struct stream *other);

/* Makes everything that a checkpoint does not hold as it is in a new engine. No host work is under
 * way. */
void engine_forget(struct engine *e);

/* The AdamW rule of matrices that decay, but for bias corrections. */
struct adamw engine_rule(const struct engine *e, float lr);

/* table.c */

/* Device memory for the table, and for updates' list; after state_place. */
void table_place(struct engine *e);
/* What it holds, once all memory is there. */
void table_fill(struct engine *e);
void table_release(struct engine *e);
/* A new list: empties it, appends a channel that has a slot (matrix by matrix, in their order), and
 * puts all of it on the device. */
void table_list_begin(struct engine *e);
void table_list_add(struct engine *e, const struct matrix *m, int row);
void table_list_end(struct engine *e);

/* state.c */

/* Memory for the state of channels: as many slots as can ever be taken. */
void state_place(struct engine *e);
void state_release(struct engine *e);
/* All slots are free. */
void state_forget(struct engine *e);
/* All channels of a matrix become important, with fresh state. */
void state_initialise(struct engine *e, struct matrix *m);
/* Gives slots to the channels that are important, after a load. */
void state_adopt(struct engine *e, struct matrix *m);
/* Moves owned channels' state; the caller sets `place`. rows: (n) */
void state_to_device(struct engine *e, struct matrix *m, const int *rows, int n,
                     struct step_report *report);
/* The host's arrays hold it once state_land has been called. */
void state_to_host(struct engine *e, struct matrix *m, const int *rows, int n,
                   struct step_report *report);
void state_land(struct engine *e);
/* dst[rows[i]] = src[rows[i]], rows of m->cols floats, to device memory from the host's. */
void state_upload_rows(struct engine *e, const struct matrix *m, float *dst, const float *src,
                       const int *rows, int n);
/* With offload_important: brings the state of n channels of a matrix to the device for their
 * updates, or takes it back. */
void state_visit(struct engine *e, struct matrix *m, const struct channel_update *updates, int n,
                 bool arrive, struct step_report *report);
/* Where the device has it. */
const struct state_arrays *state_arrays(const struct engine *e, const struct matrix *m);
/* All owned channels' state, part 0 master, 1 m, 2 v, wherever it lies, to or from an array of
 * (n_owned, cols) in host memory. */
void state_read(struct engine *e, struct matrix *m, int part, float *values);
void state_write(struct engine *e, struct matrix *m, int part, float *values);

/* ranks.c */

/* Memory for what ranks share. */
void ranks_place(struct engine *e);
/* Owned channels whose parameters changed go to the other ranks, theirs come here. */
void ranks_share_parameters(struct engine *e);

/* selection.c */

/* Puts `place` on the device, behind all that reads it there, and counts it. */
void channels_publish(struct engine *e);
/* Counts each matrix's channels by group and place. */
void channels_count(struct engine *e);
/* One AdamW update on the device of the list's channels, with a factor in device memory. */
void channels_update(struct engine *e, enum row_source source, float lr, const float *factor,
                     struct step_report *report);
/* Counts an update of the list's channels on the host's side. */
void channels_count_updates(struct engine *e);
/* AdamW on all important channels with this step's gradient; they are the list's from then on. */
void channels_update_important(struct engine *e, struct step_report *report);
/* Whether this step makes the first choice of important channels, which counts at once. */
bool channels_choose_first(const struct engine *e);
/* Chooses important channels where a choice is due. */
void channels_select(struct engine *e, struct step_report *report);

/* windows.c */

/* Sends one layer's deferred gradients of this step to the host's staging memory. */
void windows_stage(struct engine *e, int layer);
/* Adds this step's deferred gradients to the open windows, on the device. */
void windows_accumulate_on_device(struct engine *e);
/* This step's gradients have been added to the open windows; or the host is to do it now. */
void windows_count_step(struct engine *e, float factor, struct step_report *report);
/* Closes a group's window: lets channels change sides, and hands the mean to the host. */
void windows_close(struct engine *e, struct group *g, struct step_report *report);
/* Makes the host updates visible that are due at the end of this step
 * (all: whatever is in flight). */
void windows_arrive(struct engine *e, bool all, struct step_report *report);
/* Starts a new schedule of windows with this step; none may be open or in flight. */
void windows_begin(struct engine *e, int interval, int lag, int first_step);
/* Closes and applies everything that is open. */
void windows_flush(struct engine *e, struct step_report *report);
/* update_interval 0: notes this step's norms and begins windows of another length where the rule
 * asks for it. */
void windows_choose_interval(struct engine *e, struct step_report *report);
/* Waits for the workers, counting the wait as a stall. */
void windows_wait(struct engine *e, const struct host_work *work, struct step_report *report);
/* After a load: the exchange buffer as host updates in flight have left it. */
void windows_restore_exchange(struct engine *e);

#endif
