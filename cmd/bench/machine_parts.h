/* What zf-bench machine is put together from: what each part of a machine takes, into its file's
 * figures. All ranks call these alike. */
#ifndef ZF_CMD_BENCH_MACHINE_PARTS_H
#define ZF_CMD_BENCH_MACHINE_PARTS_H

#include "data/error.h"
#include "model/device/device.h"
#include "model/plan/machine.h"
#include "offload/comm/comm.h"

struct measuring {
    struct machine *machine;
    struct device *device; /* on which nothing else runs */
    struct comm *comm;     /* attached to the device */
    int rounds;            /* the fastest counts */
    const double *sides;   /* (n_sides) of products, rising */
    int n_sides;
};

/* All ranks are here. */
void machine_together(const struct measuring *m);
/* Seconds of one run on the compute stream: the least of the rounds, each of so many runs that a
 * millisecond or more passes. All ranks measure the same at the same time. */
double machine_seconds(const struct measuring *m, void (*run)(void *), void *argument);

/* A copy between any two places. */
struct machine_copy {
    struct device *device;
    char *to, *from;
    size_t bytes;
};
void machine_run_copy(void *copy);

/* machine->products: every operation's rate at every combination of sides. latency: what a product
 * takes besides, machine->latency of a GPU. */
void machine_measure_products(const struct measuring *m);
/* The rates of host AdamW's workers, and the host's own loops. Fails where there is no memory. */
bool machine_measure_host(const struct measuring *m, struct zf_error *err);
/* What a device of its kind has besides: the CPU device's operators; a GPU's memory, link, launches
 * and attention. */
void machine_measure_cpu(const struct measuring *m);
void machine_measure_gpu(const struct measuring *m);

#endif
