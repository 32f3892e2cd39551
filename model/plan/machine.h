/* What a machine can do, for plans: rates of a device, its link, its host and between ranks, from a
 * small JSON file (configs/machines/).
 *
 * Every figure there is an object: "value", the share of it that is reached ("efficiency", 1 where
 * it is left out), and its "source". What is here is their product. "gradients" alone is no figure
 * of a machine, but an assumption that a plan makes there: it has no efficiency. */
#ifndef ZF_MODEL_PLAN_MACHINE_H
#define ZF_MODEL_PLAN_MACHINE_H

#include "data/error.h"

#include <jansson.h>
#include <stdbool.h>

/* An operator as it was measured: seconds by the bytes of its cost (model/device/op_cost.h), in
 * between by logarithms; and beside that its FLOPs, 0: none. */
#define MACHINE_POINTS 4
struct machine_operator {
    char name[40]; /* as zf-bench kernels has it, ", dropout" behind it where it drops */
    int n_points;  /* of rising bytes */
    double bytes[MACHINE_POINTS], seconds[MACHINE_POINTS];
    double flops_per_second;
};

/* Products as they were measured: FLOPs a second by the sides m, n, k, in between by logarithms; of
 * a CPU device, were all its threads busy (device_cpu_product_share). */
#define MACHINE_SIDES    6
#define MACHINE_PRODUCTS 3 /* a b;  a^T b, added to what is there;  a b^T */
struct machine_products {
    int n_sides; /* 0: there is no table */
    double sides[MACHINE_SIDES];
    double rates[MACHINE_PRODUCTS][MACHINE_SIDES][MACHINE_SIDES][MACHINE_SIDES];
};

#define MACHINE_OPERATORS 64

struct machine {
    char name[80];
    bool is_cpu;     /* the CPU device: operators run one by one, on the host's cores and memory */
    double measured; /* ranks that ran at the same time when it was measured; 0: it was not */

    /* the device of one rank */
    double memory_bytes;
    double threads; /* of a CPU device */
    double multiprocessors;
    double product_rate;           /* FLOPs a second of large products */
    double half_m, half_n, half_k; /* a product's rate is product_rate times m / (m + half_m), and
                                      so on for n and k */
    double attention_rate;         /* FLOPs a second of attention */
    double memory_rate;            /* bytes a second */
    double latency;                /* seconds between an operator and the next on its stream */

    /* between device and host, each way; shared by so many ranks */
    double link_rate, link_latency, ranks_per_link;
    double transfer_multiprocessors; /* that a kernel which reads or writes host memory sits on */

    /* the host, shared by the ranks on it */
    double ranks_per_host;
    double cores, host_memory_bytes;
    double host_rate;    /* bytes a second of AdamW on all cores */
    double core_rate;    /* and on one */
    double wake;         /* seconds until a worker has begun a job, where it sleeps */
    double channel;      /* seconds of the host for a channel that its own loops look at */
    double launch, wait; /* seconds of the host for giving out an operator; for learning that one is
                            over */

    /* between ranks: bytes a second into and out of each, on one host and between hosts */
    double exchange_rate, network_rate, exchange_latency;

    /* what gradients are taken to be like, since a plan computes none: row norms are log-normal, by
       a part that stays with the channel and one that changes with each step. Standard deviations
       of their logarithms, and a seed, which a file may leave out:
       "gradients.lasting_deviation" (1), "gradients.passing_deviation" (0.5), "gradients.seed" (1)
     */
    double lasting, passing, seed;

    struct machine_operator operators[MACHINE_OPERATORS];
    int n_operators;
    struct machine_products products;
};

/* name: a file, or the name of one in a folder "configs/machines", here or beside the program's
 * folder. Fails, with a sentence that names file and key, where a figure is missing, unknown, not a
 * number or out of range, or has no source. */
bool machine_load(struct machine *m, const char *name, struct zf_error *err);

/* What machine_load reads, without "gradients". source: of all figures */
json_t *machine_describe(const struct machine *m, const char *source);

/* By its name, or NULL. */
const struct machine_operator *machine_find(const struct machine *m, const char *name);
/* Seconds that it takes. */
double machine_operator_seconds(const struct machine_operator *o, double bytes, double flops);
/* FLOPs a second of a product, kind as in MACHINE_PRODUCTS; there is a table. */
double machine_product_rate(const struct machine_products *t, int kind, double m, double n,
                            double k);

#endif
