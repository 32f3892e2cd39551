/* The operators on rows of matrices that the engine (offload/engine/) needs of a device, declared
 * once, as function types. The notation and the promises are those of ops.h. */
#ifndef ZF_MODEL_DEVICE_ROW_OPS_H
#define ZF_MODEL_DEVICE_ROW_OPS_H

#include "model/device/device.h"
#include "model/device/matrix_batch.h"

#include <stdint.h>

/* AdamW as torch.optim.AdamW (Loshchilov and Hutter, "Decoupled weight decay", ICLR 2019):
 *   g = gradient_scale * gradient;  p -= lr * weight_decay * p
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
 *   p -= lr * (m / correction1) / (sqrt(v / correction2) + eps),  correction_i = 1 - beta_i^t
 * With l2 (torch.optim.Adam): weight_decay * p is added to g instead. */
struct adamw {
    float lr, beta1, beta2, eps, weight_decay;
    float correction1, correction2;
    bool l2;
};

/* Where a channel stands. One that leaves the important channels does so when its group's window
 * closes: it gathers gradients from then on, but is no part of the update that this closing starts.
 * One that enters has its slot from then on, where its gradient goes, but is still part of that
 * update; its state comes behind it. One that is resident is on the device for good, unchosen. */
enum channel_place {
    CHANNEL_DEFERRED,
    CHANNEL_IMPORTANT,
    CHANNEL_LEAVING,
    CHANNEL_RESIDENT,
    CHANNEL_ENTERING,
    CHANNEL_PLACES
};

/* Whether a channel there has its state on the device, in a slot. */
static inline bool channel_has_state(unsigned char place)
{
    return place == CHANNEL_IMPORTANT || place == CHANNEL_RESIDENT;
}

/* Whether it has a slot, in which its gradient waits. */
static inline bool channel_has_slot(unsigned char place)
{
    return channel_has_state(place) || place == CHANNEL_ENTERING;
}

/* Whether it is one of those that are chosen. */
static inline bool channel_is_important(unsigned char place)
{
    return place == CHANNEL_IMPORTANT || place == CHANNEL_ENTERING;
}

/* Whether the closing of a window gives it an update on the host. */
static inline bool channel_closes(unsigned char place)
{
    return place == CHANNEL_DEFERRED || place == CHANNEL_ENTERING;
}

/* A channel's new place; and its slot, if it has one there. */
struct channel_change {
    int channel; /* of all */
    int place, slot;
};

/* A channel whose state is carried: master, m and v, one behind the other, from `at` on in packed
 * memory. */
struct carried_row {
    int matrix; /* in the batch */
    int slot;   /* where it is on the device */
    int row;    /* of the host's arrays */
    int at;     /* in floats, a multiple of 4 */
};

/* Some of them. */
struct carried_rows {
    const struct carried_row *rows; /* (n) device memory */
    int n;
    float *state;
    size_t n_elements; /* of `state`, for costs */
    bool on_device;    /* `state` is device memory; else memory of allocate_host */
};

/* Some channels (rows) of every matrix: the deferred ones whose group is in `groups`, with those
 * that are leaving or without. */
struct channel_set {
    int n_groups;
    bool with_leaving;
    uint64_t groups; /* bit j: group j is meant */
};

/* One group's rows of a layer as they lie packed: matrix after matrix, in each the group's rows in
 * their order, wherever they stand (row_groups_count), from matrix_rows.packed on. Meant are
 * the deferred ones, on the way down also those that enter, that begin within elements [first,
 * first + n) of the layer's, all of which have room there. */
struct packed_rows {
    void *memory; /* of element `first` */
    size_t first, n;
    int group, n_groups;
    bool on_device; /* device memory; else memory of allocate_host */
};

/* Positions [*low, *high) of a matrix's that begin in there. */
static inline void packed_positions(const struct packed_rows *p, const struct matrix_rows *m,
                                    int *low, int *high)
{
    const size_t cols = (size_t)m->cols, end = p->first + p->n;
    *low = p->first > m->packed ? (int)((p->first - m->packed + cols - 1) / cols) : 0;
    *high = end > m->packed ? (int)((end - m->packed + cols - 1) / cols) : 0;
}

/* Rows of one matrix that changed on one rank, as they lie packed one behind the other. */
struct shared_run {
    int matrix;      /* in the batch */
    int first, n;    /* of shared_rows.rows */
    int first_piece; /* how many (ROW_PIECE columns) the runs before this one have */
    size_t at;       /* where it begins in packed memory, in elements */
};

/* Some runs, with at least one row each. */
struct shared_rows {
    const struct shared_run *runs; /* (n_runs) device memory */
    int n_runs;
    const int *rows;           /* device memory: rows, counted from the first of all ranks' */
    int first_piece, n_pieces; /* of these runs */
    void *memory;              /* device memory */
};

/* Blocks, and so multiprocessors at most, of a GPU's operators that read or write the host's memory
 * beside the model's. */
#define ROW_SIDE_BLOCKS 32

/* Which rows an operator reads: this step's gradient, as take_rows left it; or gathered ones, which
 * lie there too where the device has no window. */
enum row_source { ROWS_GRADIENT, ROWS_WINDOW };

/* What the norms of all channels say about a step; in device memory. */
struct norm_summary {
    float norm;   /* global L2 norm, summed in double in an order that n alone decides */
    float factor; /* of clipping, as torch.nn.utils.clip_grad_norm_; 0 where the norm is not
                     finite: then nothing may change in this step */
    double important, selectable; /* sums of squares of the important channels, and of all channels
                               that are not resident */
};

/* Takes the gradient's rows out of its array, for every matrix of the batch: to `deferred`, as
 * dtype (F32 or BF16), those of channels that are deferred or leaving, to `waiting` the others. And
 * norms[i] = sum of squares of row i, in an order that the row's length alone decides. */
typedef void op_take_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype);
/* out: device memory. sums: (n) squared norms of all channels;  place: (n) enum channel_place,
 * or such a choice as select_rows makes;  limit: greatest global norm, 0: none. */
typedef void op_summarise_norms(struct stream *s, struct norm_summary *out, const float *sums,
                                const unsigned char *place, int n, float limit);
/* chosen[i] = 1 (CHANNEL_IMPORTANT) for the k greatest of sums[0..n), ties to the lower index;
 * 0 for the others. sums are finite and not negative. */
typedef void op_select_rows(struct stream *s, unsigned char *chosen, const float *sums, int n,
                            int k);

/* The operators below take factors on gradients from device memory, one float each: 0 says that
 * the step is skipped, and then they change nothing. */

/* One AdamW update of n channels, no two the same. updates: (n) device memory; the counts in it
 * go up by one, and bias corrections are 1 - beta^updates, taken in double (the rule's own are
 * not used). The gradient is a row of `waiting` (by the slot) or `window`, times a factor,
 * gradient_scale. Values get the master, rounded as parameters are (data/bf16.h) if `bf16`, unless
 * the matrix streams. */
typedef void op_adamw_rows(struct stream *s, const struct matrix_batch *batch,
                           struct channel_update *updates, int n, enum row_source source,
                           const struct adamw *rule, const float *gradient_scale, bool bf16);
/* For each row of the set: window = (its group in `fresh` ? 0 : window) + scale * deferred, rounded
 * once, so that all who gather have the same bits.
 * dtype: deferred's, F32 or BF16;  scale: the factor */
typedef void op_accumulate_rows(struct stream *s, const struct matrix_batch *batch,
                                enum dtype dtype, const struct channel_set *set, uint64_t fresh,
                                const float *scale);
/* Taken gradients leave. For each row of the set: staged = deferred, both of `dtype`. */
typedef void op_stage_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                           const struct channel_set *set);
/* Windows leave, packed. For each row that is meant: its place in memory =
 * window / divisor, as `dtype` (F32 or BF16). */
typedef void op_send_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                          const struct packed_rows *to, float divisor);
/* And come back as parameters. For each deferred row that is meant: values = its place in memory,
 * which holds `dtype`. */
typedef void op_receive_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype,
                             const struct packed_rows *from);
/* Fills slots, of matrices that stream: values = master of channels whose state is on the device,
 * rounded to bf16 if `dtype` is BF16. */
typedef void op_show_rows(struct stream *s, const struct matrix_batch *batch, enum dtype dtype);
/* values[i] = parameters[i] for i < n, bf16 in memory of allocate_host. */
typedef void op_widen(struct stream *s, float *values, const uint16_t *parameters, size_t n);
/* dst[dst_row[i]] = src[src_row[i]] for i < n: rows of row_bytes bytes each, a multiple of 2.
 * dst_row, src_row: (n) in device memory, NULL: i itself. dst, src: device memory, or memory of
 * allocate_host. The rows of dst differ. */
typedef void op_copy_rows(struct stream *s, void *dst, const int *dst_row, const void *src,
                          const int *src_row, int n, size_t row_bytes);

/* The state of n channels of matrices that have masters leaves their slots for packed memory, or
 * comes from there. */
typedef void op_carry_rows(struct stream *s, const struct matrix_batch *batch,
                           const struct carried_rows *carried, bool to_slots);
/* n channels change places; what is said of one twice is the same. place, slot: of all channels;
 * changes: (n); all in device memory. */
typedef void op_change_places(struct stream *s, unsigned char *place, int *slot,
                              const struct channel_change *changes, int n);

/* Changed rows of `values`, whichever rank owns them, into packed memory, or out of it. Matrices
 * hold all ranks' rows. */
typedef void op_share_rows(struct stream *s, const struct matrix_batch *batch,
                           const struct shared_rows *shared, bool pack);

/* All of them, as MODEL_OPERATORS. */
#define ROW_OPERATORS(X)                                                                           \
    X(take_rows)                                                                                   \
    X(summarise_norms)                                                                             \
    X(select_rows)                                                                                 \
    X(adamw_rows)                                                                                  \
    X(accumulate_rows)                                                                             \
    X(stage_rows)                                                                                  \
    X(send_rows)                                                                                   \
    X(receive_rows)                                                                                \
    X(show_rows)                                                                                   \
    X(widen)                                                                                       \
    X(copy_rows)                                                                                   \
    X(carry_rows)                                                                                  \
    X(change_places)                                                                               \
    X(share_rows)

/* A device's. */
struct row_ops {
#define X(name) op_##name *name;
    ROW_OPERATORS(X)
#undef X
};

#endif
