/* The engine's insides, shared by the files that implement offload/engine/engine.h. Each file owns
 * a struct of the engine's, and changes what is in it; others do so by its functions, but for a
 * group's `region` and `has_leaving`, what the pool was busy before a step, and checkpoint.c, which
 * brings all of it back. The rest is set when the engine is made. A file calls those above it.
 *
 *   streams.c     struct streams        streams and events; what is on its way to a layer
 *   stall.c       struct stalls         how long the device waits for the host
 *   host.c        struct host           host memory, the workers and what they are given
 *   exchange.c    struct exchange       what crosses the link for host updates, and where it waits
 *   state.c       struct moves, slots   where channels' state lies
 *   carry.c       struct carry          how it changes sides
 *   visits.c      struct visits         how it visits the device
 *   table.c       struct batches        the matrices in device memory, for the device's operators
 *   channels.c    struct update_list    AdamW on the device
 *   sharing.c     struct sharing        changed parameters on their way between ranks
 *   selection.c   struct selection      who is important, and how that changes
 *   windows.c     struct windows        gathering gradients, closing, host updates, arrivals
 *   parameters.c  struct parameters     parameters on their way from the host and from other ranks
 *   pace.c        struct timing         how long steps and updates take
 *   interval.c    struct observed       update_interval "auto" and "keep_up"
 *   step.c        struct norms          the order of a step
 *   engine.c                            making and ending an engine
 *   restore.c     (restore.h)           what a checkpoint may say
 *   checkpoint.c                        save and load */
#ifndef ZF_OFFLOAD_ENGINE_INTERNAL_H
#define ZF_OFFLOAD_ENGINE_INTERNAL_H

#include "model/device/arena.h"
#include "model/device/row_ops.h"
#include "model/plan/plan.h"
#include "offload/engine/engine.h"
#include "offload/engine/schedule.h"
#include "offload/host/adam.h"
#include "offload/host/workers.h"
#include "offload/trace.h"

/* What one thread does at a time of values that come at the start, in elements. */
#define ENGINE_PIECE ((size_t)1 << 15)

/* fp32 state in device memory. */
struct state_arrays {
    float *master; /* NULL where the parameter itself is the fp32 master */
    float *m, *v;
};

/* State of this rank's important channels, in device memory. A slot is one channel's place.
 * Matrices of one width whose channels are chosen share their slots: as many, over all ranks, as
 * are chosen. A resident matrix has its own, a slot for each row in their order. */
struct slots {
    int cols;
    bool shared, masters; /* `state` has them */
    int capacity;
    int lowest_free;           /* no slot below it is free */
    bool *taken;               /* (capacity) */
    float *waiting;            /* (capacity, cols) this step's gradients */
    struct state_arrays state; /* (capacity, cols) each */
    /* over all ranks, of shared ones: channels chosen, and important ones */
    int n_chosen, n_important;
    int *capacity_of, *important_of; /* (ranks) of each */
};

/* Parameters that do not live where the model reads them, but come into slots. */
struct parameters {
    int *holds;            /* (n_slots) the layer whose parameters a slot has, or -1 */
    struct event **left;   /* (n_slots) the compute stream reads it no more */
    struct event *changed; /* what is on the device is what the last step has made it */
    int n_slots;
    int last, direction; /* the layer that a pass came to last; and whether it goes up or down */
    size_t bytes_up, bytes_gathered; /* that have come since they were asked for */
    struct comm_shares *slots;       /* (n_matrices) what slots hold; NULL: nothing is divided */
};

/* Channels that AdamW is about to update on the device, matrix by matrix. */
struct update_list {
    struct channel_update *host, *device; /* (slots of all matrices) host: of allocate_host */
    struct event *read;                   /* what was there is on the device */
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
    bool selectable; /* channels may be deferred: not a vector, and topk_ratio < 1; where nothing is
                        trained: it streams */
    bool streams;    /* `values` is a slot, which other layers use too: streams_layer */
    struct range owned;
    int n_owned, cols;
    size_t first_channel; /* of channel 0, in arrays over all channels of the model */
    void *values;   /* (n_owned, cols) owned parameters, device: where they live, or in a slot */
    float *grad;    /* (n_owned, cols) their averaged gradient, in its layer's slot */
    void *deferred; /* (n_owned, cols) that of deferred channels, once taken, device */
    float *window;  /* (n_owned, cols) open windows, in device or host memory; NULL if none */
    float *window_norms;  /* (n_owned) sums of the squared norms of the gradients in open windows,
                             where windows note them; else NULL */
    float *closing_norms; /* (n_owned) their means in those that close, which the host reads */
    void *staged; /* (n_owned, cols) `deferred` on the host, where that accumulates; a layer's lie
                     there as they do on the device */
    struct host_adam_matrix host; /* (n_owned, cols) host state */
    size_t packed_end;            /* where a group's packed rows end that begin at host.packed */
    struct slots *slots;
    int *slot_of; /* (n_owned) slot of an important channel, else -1 */
    int n_deferred[ENGINE_MAX_INTERVAL], n_leaving[ENGINE_MAX_INTERVAL],
        n_entering[ENGINE_MAX_INTERVAL]; /* owned channels by group */
};

/* A layer's part of what the workers are to do: a job that begins when a stream has got to it. */
struct layer_work {
    struct engine *engine;
    int layer;
    struct worker_job job;
    struct host_adam_job update; /* where that is what is to be done */
    struct event *handed_over;   /* the stream, if there is one, has got there: ticket holds */
    uint64_t ticket;
};

/* What the workers are to do, layer by layer. */
struct host_work {
    struct layer_work *layers;    /* (n_layers) */
    bool begun;                   /* since the engine was created or loaded */
    _Atomic uint64_t nanoseconds; /* workers' time that it took, summed over them */
    int step;                     /* for the timeline: of jobs that it has not got yet, else 0 */
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
    struct host_work update; /* in flight */
    struct host_work commit; /* of what streams: the host's parameters become the updated ones */
    int region;              /* of the exchange, which the update has, and after it the commit */
    int closing_steps;       /* gradients in the window that it closed */
    bool has_leaving;        /* channels left with that closing, or an earlier one */
    int arrived;             /* the step in which its last update did, or -1 */
};

/* In a step, by the device's clock: its first forward pass begins, its last backward pass does, and
 * that ends; the end of the step before stays. */
enum { FORWARD_BEGINS, BACKWARD_BEGINS, BACKWARD_ENDS, BACKWARD_ENDS_TOO, N_MARKS };

/* Steps and updates by the clock, until what keeps up is known. */
#define TIMED_STEPS 9
struct timing {
    double last;  /* end of the step before, on data/clock.h's clock; 0: what came since is no
                     step's */
    double began; /* this step */
    int passes;   /* forward passes in it */
    int steps;
    double seconds[TIMED_STEPS]; /* of the last ones, without what waited for the host, */
    double rooms[TIMED_STEPS];   /* and of what engine_pace.room is in them */
    int ends;                    /* which mark this step's end is */
    int arrivals;                /* of groups */
    int updates;                 /* of those whose update was this engine's, */
    double update_seconds;       /* and workers' time for them, summed over workers */
    double commit_seconds;       /* the same for commits, and */
    double each_seconds;         /* of what engine_pace.host_each is: before the first timed step */
};

/* Channels of the whole model. */
struct channel_list {
    struct channel {
        int matrix, row; /* of all its rows */
    } * channels;
    int n, capacity;
};

/* State that is carried together. */
struct carried_piece {
    struct carried_row *rows; /* memory of allocate_host */
    float *state;             /* the same; packed */
    int n;                    /* rows; 0: it is free */
    size_t n_elements;
    struct event *passed; /* it is where it was sent */
};

/* One way between the slots and the host. */
struct carried_side {
    struct carried_piece pieces[2]; /* in turns */
    int turn;
    float *device; /* device memory that copies take pieces from, or to; NULL: none are made */
    struct carried_row *rows; /* (capacity) all that are to go */
    int n, capacity;
    int begun; /* of them: they are in pieces */
};

/* State of channels that change sides. */
struct carry {
    size_t piece_elements;
    struct carried_row *rows; /* device memory: of a piece */
    struct carried_side down, up;
};

/* Pinned memory that state passes through for checkpoints, and windows for the first choice. */
struct staging {
    char *memory;
    size_t capacity, used;
    int *rows; /* (most channels of a matrix) device memory */
};

/* Channels whose state is on the device at the same time. */
struct visit {
    int first;       /* of its updates in the list; those of resident channels are among them */
    size_t used;     /* elements of its berth, in each array */
    size_t elements; /* the same without gaps */
};

#define VISIT_BERTHS 4

/* State that visits the device for its update. */
struct visits {
    size_t berth;                     /* elements of a berth, in each of its three arrays */
    struct state_arrays arrays;       /* of the first berth; the next one's lie behind them */
    float *pinned;                    /* (VISIT_BERTHS, 3, berth) memory of allocate_host */
    struct event *left[VISIT_BERTHS]; /* what was in a berth is in pinned memory again */
    struct visit *list;               /* (n) of all channels of the update list, in its order */
    int n, capacity;
    double copying_seconds; /* of the host's threads, since the engine was created */
};

/* Beside device->compute. */
struct streams {
    struct stream *summing;   /* over ranks: gradients to their owners, norms to all */
    struct stream *reducing;  /* out of their slots; norms */
    struct stream *gathering; /* parameters from all ranks */
    struct stream *down, *up; /* the link, one each way */
    struct stream *carrying;  /* state, both ways */
    struct event *mark;       /* orders one stream behind what is on another so far */
    struct event *read;       /* this step's passes have read the parameters */
    struct event *norm_known; /* norms.summary_host holds this step's */
    struct event **arrived;   /* (n_layers) parameters on their way to a layer are there */
    bool *arriving;           /* (n_layers) and the compute stream does not wait for it yet */
    struct event **taken;     /* (slots) the gradient in a slot has been taken */
    struct event **sent;      /* (slots) what was taken from it has gone to the host */
    int n_slots;              /* of gradients */
};

/* A stretch between two timed events on the compute stream, in which that may have waited. */
struct idle {
    struct event *begin, *end;
    bool held;   /* it counts as far as stream `down` waited for the workers meanwhile */
    double seen; /* otherwise: its end, on data/clock.h's clock */
};

/* Of this step. */
struct stalls {
    struct idle *idle; /* (n) that are not reckoned yet */
    int n, capacity;
    bool holds;                    /* stream `down` is to wait for the workers: */
    struct event *held, *released; /* from when to when, timed; */
    double released_at;            /* the end on data/clock.h's clock, for the timeline */
    double seconds;                /* in all, as far as it is reckoned */
    double told;                   /* the timeline has them up to here */
};

/* The matrices as the device has them. */
struct batches {
    struct matrix_rows *rows; /* (n_matrices) in device memory; it never changes */
    struct matrix_batch all;
    struct matrix_batch gathering; /* of those whose windows are on the device */
    struct matrix_batch *layers;   /* (n_layers) of each layer's */
    int *first_of_layer;           /* (n_layers + 1) index of its first matrix */
};

/* Of this step's gradient, over all ranks' channels. */
struct norms {
    float *squared;                    /* (n_channels) device */
    float *squared_host;               /* the same, of allocate_host, in steps that need it: where
                                           channels are chosen, or windows note norms, or
                                           DeepSpeed's interval */
    struct norm_summary *summary;      /* (2) device: of this step; of a choice that is looked at */
    struct norm_summary *summary_host; /* (2) the same, in memory of allocate_host */
    struct comm_shares *gradients;     /* (n_matrices) in their slots */
    int reducing;                      /* the layer that is on its way to its owners, or -1 */
    struct comm_sums before;           /* what ranks had summed before this step */
};

struct selection {
    unsigned char *place;        /* (n_channels) enum channel_place: what is in force */
    unsigned char *place_device; /* (n_channels) the same in device memory */
    int *slot, *slot_device;     /* (n_channels) slots of owned channels that have one */
    unsigned char *target;      /* (n_channels) 1: in the newest choice, adopted as windows close */
    unsigned char *choice;      /* (n_channels) a choice that is looked at, device memory */
    unsigned char *choice_host; /* the same in memory of allocate_host */
    bool looks;                 /* this step's gradient has been asked for a choice */
    bool selected;              /* the first choice has been made */
    int chosen_in;              /* the step of the newest choice, */
    struct engine_choice newest; /* and what is told of it */
    struct channel_list
        news[ENGINE_MAX_INTERVAL]; /* by group: channels that the newest choice may bring to the
                                      other side, in their order */
    struct channel_list leaving[ENGINE_MAX_INTERVAL]; /* by group: they are in that place */
    struct channel_list entering; /* they have slots, and their state is to come */
    bool entering_waits; /* for the closing's update; the workers leave that to selection_update */

    struct channel_list changed;    /* since the device was told; some more than once */
    struct channel_change *changes; /* (changes_capacity) memory of allocate_host */
    struct channel_change *changes_device;
    int changes_capacity;
    bool behind_arrivals;       /* what arrives in this step reads what they change */
    struct event *changes_read; /* what was there is on the device */
};

/* Where channels' state lies. */
struct moves {
    struct slots *slots; /* (n_slots) */
    int n_slots;
    struct staging staging;
};

struct windows {
    struct group groups[ENGINE_MAX_INTERVAL];
    int interval, lag; /* in force */
    int began;         /* the step in which the present schedule of windows started */
    float *memory;     /* in device memory, or NULL */
    float *scale;      /* a factor on gradients, device */

    /* accumulate on the host */
    struct host_work accumulation; /* the host's addition of staged gradients to its windows */
    bool staging_gradients;        /* this step's have begun to go down */
    size_t staged_bytes;
    uint64_t staged_fresh;       /* groups whose windows it begins */
    float staged_factor;         /* of clipping */
    unsigned char *staged_place; /* (n_channels) where channels stood when they were staged */
};

/* update_interval 0: what the rule has seen since it last chose. */
struct observed {
    double *important_norm, *deferred_norm; /* (n_matrices) sums over steps */
    int steps;
    struct timing timing;
    struct event *marks[N_MARKS];
    int least_interval; /* with which host and link keep up; 0: not measured yet */
};

struct host {
    struct worker_pool *workers;    /* NULL where nothing is ever deferred */
    struct host_adam_chunk *chunks; /* of all layers */
    int *first_chunk;               /* (n_layers + 1) where each layer's begin */
    char *state;  /* m, v, windows where they are on the host, parameters, remainders */
    void *staged; /* gradients that the host gathers */
    void *pinned; /* parameters, where layers come from the host; else they are in `state` */
    size_t state_bytes;
    uint32_t *updates;        /* (channels owned) AdamW updates that each has had */
    float *norms;             /* (2, channels owned) of open windows, and of those that close */
    size_t elements;          /* parameters whose state may live on the host */
    double seconds_before;    /* that workers had worked before this step */
    struct layer_work *start; /* (n_layers) jobs that touch what is new; NULL: there were none, or
                                 they are known to be over */
};

/* A part of the exchange that one group in flight has. */
struct region {
    struct group *group; /* that has it, or had it last; or NULL */
    struct event **left; /* (n_layers) the parameters that were there have gone up */
};

/* A part of a layer's packed rows that goes at once, in elements from the layer's first. */
struct packed_piece {
    size_t first, n;
};

struct exchange {
    char *memory; /* of allocate_host: regions, taken in turns; as many as the windows in force
                     need */
    size_t bytes;
    size_t region_elements;
    struct region *regions; /* (n_regions) */
    int n_regions, next;
    size_t *layer;               /* (n_layers) where each begins in a region, in elements */
    struct packed_piece *pieces; /* of all layers */
    int *first_piece;            /* (n_layers + 1) where each layer's begin */
    void *down, *up;             /* (pack_elements) device memory that copies take pieces from, and
                                    to; NULL: there are no copies */
    size_t pack_elements;
};

/* ranks > 1: parameters that changed go to the other ranks through this. */
struct sharing {
    unsigned char *updated; /* (n_channels) parameters that changed in this step */
    char *memory;           /* device */
    size_t most;            /* bytes that are exchanged at a time, but for what parts lack */
    int *rows;              /* (n_channels) which rows they are, device */
    int *rows_host;         /* pinned */
    int n_rows;
    struct shared_run *runs;      /* (n_matrices, ranks) where they lie, device */
    struct shared_run *runs_host; /* pinned, and one more */
    int n_runs;
    int *first_run;        /* (ranks + 1) of those that are exchanged now, each rank's */
    struct event *read;    /* both have been copied to the device */
    size_t bytes_gathered; /* other ranks' that have come since they were asked for */
};

struct engine {
    struct engine_config config;
    struct device *device;
    struct comm *comm;
    int rank, ranks;
    enum dtype dtype;   /* of the device's parameters */
    struct arena arena; /* holds all device memory of the engine; only measures in engine_measure */
    const struct param_table *table;
    void *params;
    float *grads;
    struct matrix *matrices; /* (n_params) */
    int n_matrices;
    size_t n_channels;
    bool defers; /* any matrix is selectable, on whatever rank its channels are */

    int step; /* steps done, skipped ones not counted */
    float lr; /* of this step, or of the last one */
    int skipped_in_a_row;

    struct streams streams;
    struct stalls stalls;
    struct host host;
    struct exchange exchange;
    struct moves moves;
    struct carry carry;
    struct visits visits;
    struct batches batches;
    struct update_list list;
    struct norms norms;
    struct parameters parameters;
    struct selection selection;
    struct sharing sharing;
    struct windows windows;
    struct observed observed;
};

/* Whether it only measures its device memory. */
static inline bool is_measuring(const struct engine *e)
{
    return !e->arena.device;
}

/* Whether parameters are divided over ranks. */
static inline bool divides(const struct engine *e)
{
    return e->config.params_divided && e->ranks > 1;
}

/* Whether a layer's parameters live on the host: blocks', where they do. */
static inline bool streams_layer(const struct engine *e, int layer)
{
    return e->config.params_on_host && layer > 0 && layer < e->table->n_layers - 1;
}

/* Whether they come into their slot when a pass needs them: from the host, other ranks, or both. */
static inline bool fills_layer(const struct engine *e, int layer)
{
    return divides(e) || streams_layer(e, layer);
}

/* Elements of the exchange and of the host's parameters: bf16 or fp32. */
static inline enum dtype exchange_dtype(const struct engine *e)
{
    if (e->config.evaluates) /* no master is to be made of them */
        return e->dtype;
    return e->config.bf16 ? DTYPE_BF16 : DTYPE_F32;
}

/* Whether copy engines cross the link, and not operators. */
static inline bool exchange_copies(const struct engine *e)
{
    return !e->config.zero_copy && !e->device->unified;
}

/* Pinned memory that is crossed alone, and read and written by operators only without copies. */
static inline void *allocate_crossed(const struct engine *e, size_t bytes)
{
    return exchange_copies(e) ? e->device->allocate_host_later(bytes)
                              : e->device->allocate_host(bytes);
}

/* Whether a staged gradient is all that a host update gets, so that there is no window: where every
 * channel is updated by the host in every step, and the step waits for it. */
static inline bool updates_from_staged(const struct engine *e)
{
    return e->config.accumulate == ENGINE_ACCUMULATE_HOST && e->config.topk_ratio <= 0 &&
           e->config.update_interval == 1 && e->config.apply_lag == 0;
}

/* Whether a layer's gradients gather on the host. */
static inline bool gathers_on_host(const struct engine *e, int layer)
{
    const bool is_block = layer > 0 && layer < e->table->n_layers - 1;
    return e->config.accumulate == ENGINE_ACCUMULATE_HOST &&
           (updates_from_staged(e) || !is_block || layer > e->config.device_windows);
}

/* Whether windows note how large the gradients in them are, which their sums do not tell. */
static inline bool notes_norms(const struct engine *e)
{
    return e->config.all_steps && e->defers && e->config.update_interval != 1;
}

/* The groups of a matrix's owned channels; and of all its channels. */
static inline struct row_groups owned_groups(const struct engine *e, const struct matrix *m)
{
    return row_groups_of(&m->host.part, e->windows.interval);
}

static inline struct row_groups all_groups(const struct engine *e, const struct matrix *m)
{
    const struct matrix_part part = {m->index, 0, m->param->rows, m->cols};
    return row_groups_of(&part, e->windows.interval);
}

/* Rows of one group, of the first n. */
#define for_each_in_group(row, groups, group, n)                                                   \
    for (int row = row_groups_next(groups, group, 0); row < (n);                                   \
         row = row_groups_next(groups, group, row + 1))

/* Where an owned channel stands. */
static inline enum channel_place place_of(const struct engine *e, const struct matrix *m, int row)
{
    return e->selection.place[m->first_channel + (size_t)(m->owned.first + row)];
}

/* Elements of a matrix that this rank owns. */
static inline size_t owned_elements(const struct matrix *m)
{
    return (size_t)m->n_owned * (size_t)m->cols;
}

/* The same as its deferred gradients take: each matrix's begin at a multiple of 16 bytes. */
static inline size_t deferred_elements(const struct matrix *m)
{
    return m->selectable ? (owned_elements(m) + 7) / 8 * 8 : 0;
}

/* X_place: device memory, taken from the arena; X_create: all else, and what memory holds at first;
 * X_release: all but device memory. */

/* streams.c */

void streams_create(struct engine *e);
void streams_release(struct engine *e); /* after streams_wait */
/* The host waits for all of them, and for device->compute. */
void streams_wait(struct engine *e);
/* The slot that a layer's gradients lie in. */
int streams_slot(const struct engine *e, int layer);
/* What is put on `stream` from now on runs after all that is on `other` so far. */
void streams_follow(struct engine *e, struct stream *stream, struct stream *other);
/* What is on `stream` so far brings a layer's parameters: its next forward pass is behind it. */
void streams_bring(struct engine *e, int layer, struct stream *stream);

/* stall.c */

void stall_create(struct engine *e);
void stall_release(struct engine *e);
/* Around the main thread's wait for the workers: a stall, as far as the device has nothing to
 * do. */
void stall_begin(struct engine *e);
void stall_end(struct engine *e);
/* What comes on stream `down` from now on is behind a job, which that has handed over; the main
 * thread goes on. */
void stall_hold(struct engine *e, struct layer_work *work);
/* The compute stream waits for an event that may be behind such a hold. */
void stall_order(struct engine *e, struct event *event);
/* Seconds of this step so far in which the device waited; not before its passes are done. And the
 * same, from which on counting begins anew. */
double stall_seconds(struct engine *e);
double stall_take(struct engine *e);

/* host.c */

/* Bytes of host memory that it will hold, or holds, by use; without `exchange`. */
struct engine_host_use host_held(const struct engine *e);
/* Elements of this rank's windows in host memory, or in the device's. */
size_t host_window_elements(const struct engine *e, bool on_host);
/* Host state, as far as channels may be deferred. Fails where there is not so much memory. */
bool host_create(struct engine *e, struct zf_error *err);
/* Starts the workers, who touch the state's pages, and make masters of parameters that are there
 * already; once the table of matrices is there. They may not be done when it returns. */
void host_start(struct engine *e);
/* The main thread waits until they are, with one layer or all: before anything uses the state. */
void host_await_start_of(struct engine *e, int layer);
void host_await_start(struct engine *e);
void host_release(struct engine *e);
void host_work_create(struct engine *e, struct host_work *work);
void host_work_release(struct engine *e, struct host_work *work);
/* The chunks of a layer, which its jobs have. */
const struct host_adam_chunk *host_chunks(const struct engine *e, int layer);
/* The workers get a layer's job, when stream `behind` has got to here; NULL: at once. bytes: as in
 * struct worker_job. */
void host_submit(struct engine *e, struct host_work *work, int layer, struct stream *behind,
                 void (*run)(void *, int), size_t (*bytes)(void *, int), void *argument);
/* The main thread waits for the workers, for one layer or all. */
void host_wait_layer(struct engine *e, const struct host_work *work, int layer);
void host_wait(struct engine *e, const struct host_work *work);
/* It is stream `down` that waits for all. */
void host_hold(struct engine *e, const struct host_work *work);
/* For the timeline: what each worker did for a job that is done. */
void host_trace(const struct engine *e, struct host_work *work, const char *name);

/* exchange.c */

void exchange_place(struct engine *e);
void exchange_create(struct engine *e);
void exchange_release(struct engine *e);
/* Bytes of host memory that it takes with the windows that take most, of those that may come. */
size_t exchange_most_bytes(const struct engine *e);
/* Regions for the windows in force, all free, and as much memory as they need; nothing is on its
 * way. Where rows are packed has changed. */
void exchange_lay_out(struct engine *e);
/* The same after a load: with those that groups in flight have. */
void exchange_resume(struct engine *e);
/* The group that has, or had last, the region that is taken next; or NULL. */
struct group *exchange_next_holder(const struct engine *e);
/* A group takes a region, whose holder's update has arrived. */
void exchange_take_region(struct engine *e, struct group *g);
/* What comes on stream `down` is behind the parameters that a layer's part of the region had. */
void exchange_reuse(struct engine *e, const struct group *g, int layer);
/* Seconds in which the parameters of all deferred channels come up the link, by a timed copy; 0
 * where no copies cross one. */
double exchange_seconds(struct engine *e);
/* What crosses of a layer, down or up: all of a group's channels, packed, or without copies those
 * that are meant. */
size_t exchange_bytes(const struct engine *e, const struct group *g, int layer, bool down);
/* A layer's means go down; what the host has made of them comes up. There are such. */
void exchange_send(struct engine *e, const struct group *g, int layer);
void exchange_receive(struct engine *e, const struct group *g, int layer);
/* A group's packed rows of a layer, for the host; and a row's whose update is in flight. */
void *exchange_layer(const struct engine *e, const struct group *g, int layer);
void *exchange_row(const struct engine *e, const struct matrix *m, int row);

/* state.c */

/* Memory for the state of channels: as many slots as channels are chosen. */
void state_place(struct engine *e);
void state_free_slots(struct engine *e); /* all but device memory */
void state_release(struct engine *e);
/* All slots are free. */
void state_forget(struct engine *e);
/* All channels of a matrix become important, with fresh state. */
void state_initialise(struct engine *e, struct matrix *m);
/* Elements [first, first + n) of the owned masters, before any channel has changed sides. values:
 * host memory that stays until the compute stream has been waited for. */
void state_take_masters(struct engine *e, struct matrix *m, size_t first, size_t n,
                        const float *values);
/* Gives slots to the channels that are important, after a load. */
void state_adopt(struct engine *e, struct matrix *m);
/* An owned channel gets a slot, or leaves the one that it has. */
void state_take_slot(struct engine *e, struct matrix *m, int row);
void state_free_slot(struct engine *e, struct matrix *m, int row);
/* With offload_important the state of important channels stays on the host and visits the device
 * for its update alone (visits.c). */
bool state_visits(const struct engine *e, const struct matrix *m);
/* A row of the host's state as its newest update has it, be that visible or not: master, m and v,
 * each `stride` elements behind the one before. */
void state_read_row(const struct engine *e, const struct matrix *m, int row, float *packed,
                    size_t stride);
void state_write_row(const struct engine *e, const struct matrix *m, int row, float *packed,
                     size_t stride);
/* The newest update of a row, if it streams, becomes the host's parameter. */
void state_commit_row(const struct engine *e, const struct matrix *m, int row);
/* Gradients of channels that have slots, from their windows in the host's memory. */
void state_upload_windows(struct engine *e, const struct matrix *m, const int *rows, int n);
/* Where the device has it. */
const struct state_arrays *state_arrays(const struct engine *e, const struct matrix *m);
/* All owned channels' state, part 0 master, 1 m, 2 v, wherever it lies, to or from an array of
 * (n_owned, cols) in host memory. */
void state_read(struct engine *e, struct matrix *m, int part, float *values);
void state_write(struct engine *e, struct matrix *m, int part, float *values);

/* carry.c */

void carry_place(struct engine *e);
void carry_create(struct engine *e);
void carry_release(struct engine *e);
void carry_forget(struct engine *e);
/* An owned channel's state is to leave its slot, which is then free; or is to come to it. */
void carry_down(struct engine *e, const struct matrix *m, int row, struct step_report *report);
void carry_up(struct engine *e, const struct matrix *m, int row, struct step_report *report);
/* What is to leave begins to, behind the compute stream. */
void carry_start(struct engine *e);
/* The host has all that is to leave. */
void carry_land(struct engine *e);
/* What is to come does, once the host has it: the compute stream is behind it. */
void carry_bring(struct engine *e);

/* visits.c */

void visits_place(struct engine *e);
void visits_release(struct engine *e);
/* A new list of visits, for a new list of updates; then each update, which is number `update` of
 * it: where its state will be. */
void visits_begin(struct engine *e);
uint32_t visits_add(struct engine *e, const struct matrix *m, int update);
/* The number of the update behind a visit's last. */
int visits_end(const struct engine *e, int visit);
/* A visit's state comes: the compute stream is behind it. And leaves, behind that; when all have
 * landed, the host's arrays have it. In their order. */
void visits_come(struct engine *e, int visit, struct step_report *report);
void visits_leave(struct engine *e, int visit, struct step_report *report);
void visits_land(struct engine *e);

/* table.c */

/* Device memory for the table, and for updates' list; after state_place. */
void table_place(struct engine *e);
/* Which matrices are each layer's. */
void table_number(struct engine *e);
/* What it holds, once all memory is there. */
void table_fill(struct engine *e);
/* The same, where rows are packed elsewhere. It comes behind all that is on its way on any stream;
 * whatever packs rows comes behind the compute stream. */
void table_update(struct engine *e);
void table_release(struct engine *e);
/* A new list: empties it, appends a channel that has a slot (matrix by matrix, in their order), and
 * puts all of it on the device. */
void table_list_begin(struct engine *e);
void table_list_add(struct engine *e, const struct matrix *m, int row);
void table_list_end(struct engine *e);

/* channels.c */

/* The AdamW rule of matrices that decay, but for bias corrections. */
struct adamw channels_rule(const struct engine *e, float lr);
/* One AdamW update on the device of the list's channels, with a factor in device memory. */
void channels_update(struct engine *e, enum row_source source, float lr, const float *factor,
                     struct step_report *report);
/* Counts an update of the list's channels on the host's side. */
void channels_count_updates(struct engine *e);
/* AdamW on all important channels with this step's gradient; they are the list's from then on. */
void channels_update_important(struct engine *e, struct step_report *report);

/* sharing.c */

/* An array of a matrix's shape, whose elements have so many bytes: each rank has the rows of its
 * own channels. */
struct comm_shares sharing_divide(const struct engine *e, const struct matrix *m, void *data,
                                  size_t bytes);

/* Whether each rank has all parameters: then those that change are sent. */
static inline bool sharing_is_needed(const struct engine *e)
{
    return e->ranks > 1 && !divides(e);
}

void sharing_place(struct engine *e);
void sharing_create(struct engine *e);
void sharing_release(struct engine *e);
/* A channel's parameter changes in this step. */
static inline void sharing_note(struct engine *e, size_t channel)
{
    e->sharing.updated[channel] = 1;
}

/* Owned channels whose parameters changed go to the other ranks, theirs come here. */
void sharing_exchange(struct engine *e);
/* Adds what has come since the last call. */
void sharing_report(struct engine *e, struct step_report *report);

/* selection.c */

void selection_place(struct engine *e);
void selection_create(struct engine *e);
void selection_release(struct engine *e);
/* Nothing has been chosen: vectors, and every channel where topk_ratio is 1, are resident with
 * fresh state, all others deferred. */
void selection_forget(struct engine *e);
/* Puts `place` on the device, behind all that reads it there, and counts it. */
void selection_publish(struct engine *e);
/* After a load: important channels that find no slot on these ranks are so no more. */
void selection_fit(struct engine *e);
/* Counts each matrix's channels by group and place. */
void selection_count(struct engine *e);
/* Makes a choice where one is due, on the stream that has the norms; the host has it when that has
 * passed. */
void selection_look(struct engine *e);
/* Takes it. Whether it is the first. */
bool selection_choose(struct engine *e, struct step_report *report);
/* All groups take over the first choice, at once: their windows have just begun, with this step's
 * gradient, which is the one update that channels get as they enter. */
void selection_adopt_first(struct engine *e, struct step_report *report);
/* A group whose window is about to close takes over the newest choice: those that leave gather
 * gradients from now on, those that enter have slots. Its previous update has arrived; channels
 * that left before are now like all others. at_once: those that enter do so when this closing's
 * update has arrived, without a step in between. */
void selection_adopt(struct engine *e, struct group *g, bool at_once, struct step_report *report);
/* Channels that enter are important. Their state is on the device. */
void selection_enter(struct engine *e);
/* Channels that enter have the update of the closing with which they do. */
void selection_update(struct engine *e);
/* Channels that enter show their update as deferred ones do, and are important behind it. */
void selection_hold(struct engine *e);
/* Channels that left are like all others, in every group. */
void selection_settle(struct engine *e);
/* State of channels that change sides goes on: what leaves is there, what enters is on its way. */
void selection_carry(struct engine *e);
/* The device knows of all changes, behind its compute stream. */
void selection_tell(struct engine *e);
/* After a load: what is left to be done of the newest choice. */
void selection_resume(struct engine *e);
/* The same where groups are others. */
void selection_list(struct engine *e);

/* windows.c */

void windows_place(struct engine *e);
void windows_create(struct engine *e);
void windows_release(struct engine *e);
/* A layer's gradients are about to be taken: what its slot held before is gone. */
void windows_make_room(struct engine *e, int layer);
/* Sends one layer's deferred gradients of this step to the host's staging memory. */
void windows_stage(struct engine *e, int layer);
/* Adds this step's deferred gradients to the open windows, on the device. */
void windows_accumulate_on_device(struct engine *e);
/* This step's gradients have been added to the open windows; or the host is to do it now. */
void windows_count_step(struct engine *e, float factor, struct step_report *report);
/* At a step's end: what was staged has gone where it is to go. */
void windows_end_staging(struct engine *e);
/* Closes a group's window: hands the mean to the host. */
void windows_close(struct engine *e, struct group *g, struct step_report *report);
/* Makes the host updates visible that are due at the end of this step
 * (all: whatever is in flight). */
void windows_arrive(struct engine *e, bool all, struct step_report *report);
/* The host's parameters of a layer are those that are visible. */
void windows_wait_commits(struct engine *e, int layer);
/* Host work that is under way gets done; what it has changed arrives when it is due. The wait is
 * no step's. */
void windows_wait(struct engine *e);
/* Starts a new schedule of windows with this step; none may be open or in flight. */
void windows_begin(struct engine *e, int interval, int lag, int first_step);
/* The configured one, or that which "auto" and "keep_up" begin with. */
void windows_begin_configured(struct engine *e);
/* A group as it was made: no window is open, no host work under way. */
struct group windows_anew(const struct group *g);
/* All groups are like that, in the schedule that step 0 has. */
void windows_forget(struct engine *e);
/* Closes and applies everything that is open. */
void windows_flush(struct engine *e, struct step_report *report);
/* After a load: the exchange as host updates in flight have left it. */
void windows_restore_exchange(struct engine *e);

/* parameters.c */

/* Device memory where this rank's share lives, if parameters are divided and do not live on the
 * host. */
void parameters_place(struct engine *e);
void parameters_create(struct engine *e);
void parameters_release(struct engine *e);
/* n values as parameters are rounded, in the device's type, by all threads. to: may be `values`,
 * where that is fp32 */
void parameters_round(const struct engine *e, void *to, const float *values, size_t n);
/* Owned parameters where they live, if that is neither a slot nor the host's state: elements
 * [first, first + n) of a matrix's are these, rounded as parameters are. values: host memory */
void parameters_take(struct engine *e, const struct matrix *m, size_t first, size_t n,
                     const float *values);
/* What slots hold is old; what changed it is on the compute stream, or brought by `arrived`. */
void parameters_forget(struct engine *e);
/* Adds what has come since the last call. */
void parameters_report(struct engine *e, struct step_report *report);

/* pace.c */

void pace_create(struct engine *e);
void pace_release(struct engine *e);
void pace_forget(struct engine *e);
/* For its clock: a step begins; another forward pass of it is over, and its backward pass begins;
 * the last of them is over; a group's update has arrived; the step is over, its norm known. What
 * comes before the next one, where that is interrupted, is no step's. */
void pace_begin_step(struct engine *e);
void pace_begin_backward(struct engine *e);
void pace_end_backward(struct engine *e);
void pace_note_arrival(struct engine *e, const struct group *g);
void pace_end_step(struct engine *e);
void pace_interrupt(struct engine *e);
/* Whether it has seen enough; then what it has seen. */
bool pace_is_known(const struct engine *e);
struct engine_pace pace_measure(struct engine *e);

/* interval.c */

void interval_create(struct engine *e);
void interval_release(struct engine *e);
/* update_interval 0: times this step, notes its norms, and begins windows of another length where
 * the rule asks for it. */
void interval_choose(struct engine *e, struct step_report *report);

/* step.c */

/* So many skipped steps in a row end a run. */
#define ENGINE_SKIPPED_LIMIT 10

void norms_place(struct engine *e);
void norms_create(struct engine *e);
void norms_release(struct engine *e);

/* engine.c */

/* Makes everything that a checkpoint does not hold as it is in a new engine. */
void engine_forget(struct engine *e);

#endif
