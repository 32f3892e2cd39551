/* What a run takes of its device's memory, before any of it is taken: counted by the code that
 * takes it later. */
#ifndef ZF_CMD_MEMORY_NEED_H
#define ZF_CMD_MEMORY_NEED_H

#include "cmd/config/config.h"
#include "model/device/arena.h"
#include "model/gpt.h"
#include "offload/comm/comm.h"
#include "offload/engine/engine.h"

struct memory_job {
    struct device *device;
    struct comm *comm; /* attached to it */
    const struct gpt_config *model;
    int longest; /* of all sequences that the run will meet, in tokens */
};

/* What gpt_create is asked for, but for how a step is held. */
struct gpt_size memory_model_size(const struct config *c, int longest);
/* All of it. Nothing is "auto" any more, but that of recomputation which is not given is none. */
struct gpt_size memory_step_size(const struct memory_job *job, const struct config *c);

/* On this rank, with this configuration. */
struct memory_use memory_need(const struct memory_job *job, const struct config *c);
/* The same of a model that is held so. */
struct memory_use memory_need_held(const struct memory_job *job, const struct gpt_size *size,
                                   const struct engine_config *engine);
/* The host memory of this rank that a device with memory of its own takes besides, at most: state
 * of the optimizer, and what crosses. 0 where the device's memory is the host's. */
size_t memory_need_host(const struct memory_job *job, const struct config *c);
/* Of the whole host of a device. */
size_t memory_of_host(const struct device *device);
/* The part of memory_need that is left free for what operators take when they first run. */
size_t memory_scratch(const struct memory_job *job, const struct gpt_size *size);

#endif
