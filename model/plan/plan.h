/* A device that only counts: the program runs as it is, on memory that has addresses and sizes but
 * no bytes, with operators that take time on a reckoned clock (sim.h) and compute nothing but what
 * the host reads. What a run would hold, move and take on a machine (machine.h) that is not here.
 *
 * What the host reads is made up: row norms that are log-normal, by a part that stays with the
 * channel and one that changes with each step (the machine's "gradients"), whence choices and
 * choices made anew; a loss of 1 for each row. Nothing is ever not finite.
 *
 * Arrays are reserved, not taken; no operator touches one of the model's size. Copies between
 * arrays of COPY_LIMIT bytes and less, none of them one that is pinned later, are made, as they are
 * asked for, so that what controls the run is real. While the device exists, data/clock.h tells its
 * time. Other ranks are as far as this one. */
#ifndef ZF_MODEL_PLAN_PLAN_H
#define ZF_MODEL_PLAN_PLAN_H

#include "model/device/device.h"
#include "model/plan/machine.h"
#include "model/plan/sim.h"

#include <stdint.h>

struct plan;

/* Standard deviations of the logarithms of row norms. */
struct plan_gradients {
    double lasting, passing;
    uint32_t seed;
};
#define PLAN_GRADIENTS ((struct plan_gradients){.lasting = 1, .passing = 0.5, .seed = 1})

/* machine is copied. ranks: of the whole run; this is one of them. gradients: NULL: the machine's.
 * One such device at a time. */
struct device *device_plan_create(const struct machine *machine, int ranks,
                                  const struct plan_gradients *gradients);
void device_plan_destroy(struct device *device);

/* device->plan's parts, for who gives it work that is not the device's. */
struct sim *plan_sim(const struct plan *p);
const struct machine *plan_machine(const struct plan *p);
/* Bytes that have been allocated and not released, as they were asked for: of device memory, and of
 * memory of allocate_host. */
size_t plan_device_bytes(const struct plan *p);
size_t plan_host_bytes(const struct plan *p);

/* The host itself copies so many bytes (read and written: twice as many are moved), and waits. */
void plan_host_copies(struct plan *p, size_t bytes);
/* The host's own loop looks at so many channels. p NULL: there is no plan, and it has done so. */
void plan_host_loop(struct plan *p, size_t channels);
/* The same for one of so many groups of them, which lie apart: each takes several times as long. */
void plan_host_group_loop(struct plan *p, size_t channels, int groups);
/* What the host itself has done so far, waits left out. */
struct plan_host {
    double launches; /* of operators, copies, calls and collectives */
    double seconds;  /* of these, copies and loops */
};
struct plan_host plan_host_work(const struct plan *p);
/* A part of a job that one of n_workers moves so many bytes of host memory for. */
struct sim_work plan_worker_work(const struct plan *p, int n_workers, double bytes);
/* On a stream: so many bytes pass into and out of each rank, in so many rounds. */
void plan_exchange(struct plan *p, struct stream *s, double bytes, int rounds);
/* The same on the host, which waits. */
void plan_host_exchange(struct plan *p, double bytes, int rounds);

#endif
