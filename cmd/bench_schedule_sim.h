/* A simulation of a training step under offloading: the engine's own schedule functions say which
 * channels close when, and servers with given rates (the device, the link each way, the host's
 * workers, the ranks' exchange) serve the work that follows. Nothing is measured.
 *
 * All ranks do the same at the same time, so one is simulated, the one that owns the most, with its
 * share of what ranks have in common: a link, a node's host memory. The unit of work is a layer on
 * the device, the link and the exchange, and a group on the host, whose job ends as a whole. */
#ifndef ZF_CMD_BENCH_SCHEDULE_SIM_H
#define ZF_CMD_BENCH_SCHEDULE_SIM_H

#include "model/params.h"
#include "offload/engine.h"

#include <stdbool.h>

/* The shape of a transformer that only generates text. */
struct sim_model {
    const char *name;
    int n_layers, width;
    int kv_width;  /* of keys and values each */
    int inner;     /* of the feed-forward block */
    bool gated;    /* three matrices in it, not two */
    int vocab;     /* 0: neither embeddings nor head */
    int positions; /* learned position embeddings; 0: none */
    bool tied;     /* the head is the embedding */
};

/* Rates; INFINITY is one that costs no time. GB are 1e9 bytes. */
struct sim_machine {
    const char *name;
    double device_step;      /* seconds of a forward and a backward pass on one device */
    double backward_share;   /* of it */
    double device_gbs;       /* device memory, as the optimizer's passes over it see it */
    double device_gigabytes; /* what the device has */
    double link_gbs;         /* each way */
    int ranks_per_link;      /* devices behind one link to the host */
    double host_gbs;         /* host AdamW on a whole node */
    int ranks, ranks_per_node;
    double exchange_gbs; /* collectives' bandwidth per rank within a node */
    double network_gbs;  /* and into and out of a node, where there are several */
};

/* How gradients and parameters travel. */
struct sim_policy {
    const char *name;
    double topk_ratio; /* 1: nothing is offloaded */
    int interval, lag; /* S and apply_lag */
    bool stagger;
    enum engine_accumulate accumulate;
    bool down_in_backward; /* gradients leave as backward makes them, not when a window closes */
    bool inline_copies;    /* the device waits for its copies; else they have streams of their own
                              and a layer's forward pass waits for what arrives for it */
};

struct sim_result {
    double median, worst, mean; /* seconds of a step */
    double stall_share;         /* of the time: the device waited for the link or the host */
    double exchange_share;      /* the device waited for other ranks */
    double host_share;          /* of the time: host workers were busy */
    double down, up;            /* link bytes a step in sizes of the model in bf16, all ranks */
    double host_bytes;          /* held by all ranks together, per parameter of the model */
    double device_bytes;        /* held by each rank, per parameter of the model, but for
                                   activations */
    int closings[ENGINE_MAX_INTERVAL]; /* of each group's window */
    int steps;                         /* observed: the number asked for, made a multiple of S */
};

/* The engine's parameter table for a model of this shape; release with params_free. */
struct param_table sim_describe_model(const struct sim_model *model);

/* Its parameters, vectors included. */
double sim_count_parameters(const struct sim_model *model);

/* Runs until the pipeline has settled, then observes at least `steps` steps. */
struct sim_result sim_run(const struct sim_model *model, const struct sim_machine *machine,
                          const struct sim_policy *policy, int steps);

/* The rate of host AdamW, on a node, at which the longest step takes `seconds`; 0 where none
 * does. */
double sim_find_host_rate(const struct sim_model *model, const struct sim_machine *machine,
                          const struct sim_policy *policy, double seconds);

#endif
