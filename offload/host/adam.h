/* AdamW over host memory, in one pass, with the gradient and the new parameter in the same place.
 *
 * The state of a matrix is its fp32 master values and two moments, 12 bytes an element. Masters lie
 * in two arrays: the parameter, as the device computes with it, and the remainder, the 16 bits that
 * a bf16 parameter lacks (data/bf16.h); an fp32 parameter is the master. What is exchanged with the
 * device holds, on entry, each channel's mean gradient and, on exit, its new parameter, in the same
 * bytes. An update leaves the parameters as they are; they change when it is committed.
 * A channel (row) whose state is elsewhere is left alone: nothing of it is read or written here,
 * its exchanged bytes included. Each channel counts its own updates, since channels move between
 * device and host, and its count drives its bias correction.
 *
 * Bytes moved per parameter, where the commit follows while they are in the cache: 12 read and 12
 * written of state, 2 + 2 (bf16) or 4 + 4 (fp32) of exchange: 28 or 32. The arithmetic hides behind
 * them; the limit is the memory's bandwidth.
 *
 * There is one result: whichever instruction set computes it, however rows are cut into ranges and
 * given to threads, the bits are the same. Every product that is added to something is a fused
 * multiply-add, square roots and quotients are IEEE's, so no compiler is free to differ. */
#ifndef ZF_OFFLOAD_HOST_ADAM_H
#define ZF_OFFLOAD_HOST_ADAM_H

#include "data/dtype.h"
#include "model/device/row_groups.h"
#include "model/device/row_ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The instruction sets, worst first. */
enum host_adam_path { HOST_ADAM_PORTABLE, HOST_ADAM_AVX2, HOST_ADAM_AVX512, HOST_ADAM_N_PATHS };

bool host_adam_path_runs(enum host_adam_path path); /* on this machine */
const char *host_adam_path_name(enum host_adam_path path);
enum host_adam_path host_adam_best_path(void);

/* The channels of one matrix. All arrays are borrowed and do not overlap. Where an element lies in
 * parameters, remainders, m and v is for host_adam_state alone to say. */
struct host_adam_matrix {
    size_t rows, cols;
    enum dtype dtype;           /* of parameters and exchange: DTYPE_BF16 or DTYPE_F32 */
    void *parameters;           /* (rows * cols) */
    int16_t *remainders;        /* (rows * cols) masters = parameters and these; NULL: with fp32 */
    float *m, *v;               /* (rows * cols) NULL: nothing is trained */
    uint32_t *updates;          /* (rows) AdamW updates that each row has had */
    const unsigned char *place; /* (rows) enum channel_place: all but deferred ones are left alone;
                                   NULL: all are deferred */
    const float *window;        /* (rows, cols) sums of gradients, whose mean jobs take; or NULL: it
                                   has been exchanged */
    const void *staged;         /* (rows, cols) of dtype: a gradient, which is all that jobs take,
                                   times their factor; or NULL */
    struct matrix_part part;    /* which rows they are, for their groups */
    const float *norms;         /* (rows) mean squared norms of the gradients that a closing window
                                   has gathered; for jobs of all_steps alone */
    size_t packed;              /* where its rows begin among a job's exchanged ones, in elements */
    bool decays;                /* the rule's weight decay applies in jobs */
};

/* A run: state of adjacent elements of a matrix, which lies together. */
struct host_adam_state {
    void *parameters;    /* (n) of the matrix's dtype */
    int16_t *remainders; /* (n) or NULL */
    float *m, *v;        /* (n) or NULL */
    size_t n;
};

/* Where the state of elements from `first` on is to be read and written, of `most` at most (1 or
 * more): the run may be shorter, and what follows may lie anywhere. All who work on parameters,
 * remainders and moments ask here, run by run, those who send them to the device too; so this is
 * where a tier behind the host's memory, such as disk, begins (state.c). It would need besides
 *   - to be told before: a layer's chunks, by host_submit, which knows the group whose update comes
 *     next (nothing of its state depends on gradients); rows, by carry_bring and visits_come;
 *   - to be told behind: host_adam_run and host_adam_run_commit at a chunk's end, state_write_row,
 *     and for parameters that stream `up` reads (parameters.c) a call on it behind the copy. Until
 *     then a run's addresses hold.
 * Where memory is all there is, addresses always hold, and such calls would do nothing. */
struct host_adam_state host_adam_state(const struct host_adam_matrix *matrix, size_t first,
                                       size_t most);

/* Elements [first, first + n) of the masters, to or from an array of n. newer: (n) what stands for
 * their parameters, which are left alone; or NULL. */
void host_adam_read_masters(const struct host_adam_matrix *matrix, size_t first, size_t n,
                            const void *newer, float *masters);
void host_adam_write_masters(const struct host_adam_matrix *matrix, size_t first, size_t n,
                             void *newer, const float *masters);
/* The same of the parameters, in an array of the matrix's dtype. */
void host_adam_read_parameters(const struct host_adam_matrix *matrix, size_t first, size_t n,
                               void *parameters);
void host_adam_write_parameters(const struct host_adam_matrix *matrix, size_t first, size_t n,
                                const void *parameters);

/* exchange, below: (row1 - row0, cols) of the matrix's dtype, gradient in, parameter out. */

/* One AdamW update (formula: model/device/row_ops.h) of the deferred ones of rows [row0, row1),
 * and `steps` more in their counts. The rule's own corrections are not used. With `commit` it
 * commits as it goes; else host_adam_run_commit is to come before any other use of the rows'
 * masters. A NaN stays one.
 *
 * An update with steps > 1 stands for so many, whose mean gradient x it has: moments decay by
 * beta^steps, and what enters the second one is x^2 times the row's norms / |x|^2, so that, over
 * the row, it is the mean of squares that as many updates would have seen and not the square of
 * the mean. The learning rate is for all of them together: the caller's to multiply. */
void host_adam_update(enum host_adam_path path, const struct host_adam_matrix *matrix, size_t row0,
                      size_t row1, void *exchange, const struct adamw *rule, float gradient_scale,
                      int steps, bool commit);

/* Adjacent rows of a matrix: what one chunk of a job covers (offload/host/workers.h), in all jobs.
 * The matrix is borrowed. */
struct host_adam_chunk {
    const struct host_adam_matrix *matrix;
    int first, last;
};

/* Cuts a matrix into chunks of about 256 KiB of fp32: a function of its shape alone. Returns how
 * many; chunks: room for them, or NULL. */
int host_adam_cut(const struct host_adam_matrix *matrix, struct host_adam_chunk *chunks);

/* The host's work when a group's windows have closed, as a job: one update of the group's deferred
 * rows, and its commit. */
struct host_adam_job {
    const struct host_adam_chunk *chunks; /* borrowed */
    int group, n_groups;
    void *exchange; /* the group's rows, packed: matrix after matrix, in each in their order,
                       wherever they stand (row_groups_count) */
    struct adamw rule;
    float window_steps; /* gradients in the windows */
    bool all_steps;     /* the update stands for as many steps, not for one */
    float factor;       /* on staged gradients */
    bool commits_later; /* the commit is a job of its own: host_adam_run_commit */
    enum host_adam_path path;
};
void host_adam_run(void *job, int chunk);
/* The same for a row of the group that is not deferred: any thread may do so while the job runs. */
void host_adam_run_row(const struct host_adam_job *job, const struct host_adam_matrix *matrix,
                       int row);
void host_adam_run_commit(void *job, int chunk);
/* What host_adam_run reads and writes: state and exchange, and where windows are in host memory the
 * window, whose mean goes through what is exchanged, or the staged gradient, which does so too. */
size_t host_adam_bytes(void *job, int chunk);
size_t host_adam_commit_bytes(void *job, int chunk);

#endif
