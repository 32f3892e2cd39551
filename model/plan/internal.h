/* What the files of the device that only counts share. */
#ifndef ZF_MODEL_PLAN_INTERNAL_H
#define ZF_MODEL_PLAN_INTERNAL_H

#include "model/device/op_cost.h"
#include "model/device/row_ops.h"
#include "model/plan/plan.h"

/* Resources of the clock. */
enum plan_resource {
    PLAN_MULTIPROCESSORS, /* of a CPU device: the cores */
    PLAN_DEVICE_MEMORY,
    PLAN_DOWN, /* the link */
    PLAN_UP,
    PLAN_HOST_MEMORY,
    PLAN_NETWORK,
    PLAN_RESOURCES
};

struct stream {
    struct plan *plan;
    int lane;
    bool ahead; /* of the compute stream */
};

struct event {
    sim_op op;
    bool timed;
    double passed; /* when, of one that is timed */
};

struct allocation {
    char *memory;
    size_t bytes;
    bool on_device;
    bool of_model; /* copies to and from it are counted alone */
    bool mapped;
};

struct plan {
    struct device device;
    struct machine machine;
    struct plan_gradients gradients;
    int ranks, local_ranks;
    double host_rate, link_rate; /* this rank's share */
    struct sim *sim;
    struct stream compute;
    int host_lane;
    struct plan_host host;
    struct allocation *allocations;
    size_t n_allocations, allocations_capacity;
    size_t device_bytes, host_bytes;

    /* norms */
    float *lasting; /* (n_lasting) of each channel */
    int n_lasting;
    uint32_t draws;   /* steps whose norms have been made */
    bool norms_stale; /* those of the present step have not */
};

extern const struct ops plan_ops;
extern const struct row_ops plan_row_ops;

/* Larger arrays are reserved, not allocated. */
#define PLAN_MAP_LIMIT ((size_t)1 << 20)
void *plan_take(struct plan *p, size_t bytes, bool on_device, bool of_model);
void plan_give_back(struct plan *p, void *memory);
/* What lies at this address; NULL: none of the plan's. */
const struct allocation *plan_find(const struct plan *p, const void *memory);
bool plan_on_device(const struct plan *p, const void *memory);

/* The host is busy by itself. what: as in sim_work. */
void plan_busy(struct plan *p, double seconds, const char *what);
/* It launches n pieces of work. */
void plan_launch(struct plan *p, int n);

/* These put work on a stream; on a CPU device the host waits for it. */

/* An operator with this cost. name: as in machine_operator. what: as in sim_work. */
void plan_operate(struct stream *s, const char *name, const char *what, struct op_cost cost,
                  bool drops);
void plan_product(struct stream *s, const struct matmul *product);
/* What crosses the link by an operator (a kernel that reads or writes the host's memory) or by a
 * copy engine. */
void plan_transfer(struct stream *s, const char *name, struct op_cost cost, bool down,
                   bool by_kernel);

/* sums: (n) the squared norms of the present step. */
void plan_make_norms(struct plan *p, float *sums, int n);

#endif
