/* A clock that is reckoned, not read: operations queue on lanes (a device's streams, a host's
 * workers), wait for each other, share resources and take time, and one host thread gives them out
 * and waits for them. Nothing is computed.
 *
 * An operation begins when the one before it on its lane has ended, all that it was ordered behind
 * has ended, and the host has given it out. It then takes its latency, in which it uses nothing,
 * and its work, in which it uses shares of resources. Where the shares of all that run add up to
 * more than a resource has, all slow down alike, to max-min fair speeds, which change whenever an
 * operation begins or ends.
 *
 * What has been queued is worked through only when the host has to know: until then the host's own
 * clock runs ahead. Whatever is queued later is given out later, so that this is exact. */
#ifndef ZF_MODEL_PLAN_SIM_H
#define ZF_MODEL_PLAN_SIM_H

#include <stdbool.h>
#include <stdint.h>

struct sim;

#define SIM_USES 8 /* resources that an operation uses at most */

struct sim_use {
    int resource;
    double share; /* of the whole resource while the operation runs at full speed, above 0 to 1 */
};

struct sim_work {
    const char *what; /* for reports; a string that outlives the clock */
    double latency;   /* seconds before it uses anything */
    double seconds;   /* of its work, were it alone */
    struct sim_use uses[SIM_USES];
    int n_uses;
    bool first; /* takes what it can use before operations without this share what is left: a kernel
                   that holds its multiprocessors or is of a stream of higher priority, a copy
                   engine */
};

/* An operation by its number, in the order in which they were queued; 0: none, which has ended. */
typedef uint64_t sim_op;

struct sim *sim_create(void);
void sim_destroy(struct sim *s);

/* A new resource, a new lane: their numbers. */
int sim_resource(struct sim *s);
int sim_lane(struct sim *s);

/* Gives out an operation, now. call: what the host is to be called with when it ends, in the order
 * in which operations end, or NULL; the call may queue further operations, which are given out at
 * that time, and wait for some, and nothing else. */
sim_op sim_queue(struct sim *s, int lane, const struct sim_work *work, void (*call)(void *),
                 void *argument);
/* What is queued on a lane from now on begins after an operation of another lane has ended. */
void sim_order(struct sim *s, int lane, sim_op op);
/* An operation that ends when all that was queued on, or ordered before, this lane so far has. */
sim_op sim_mark(struct sim *s, int lane);

/* The time: of the host, or within a call of the operation that has ended. From 0, in seconds. */
double sim_now(const struct sim *s);
/* The host is busy by itself. what: as in sim_work. */
void sim_host(struct sim *s, double seconds, const char *what);
/* The host waits for the end of an operation. Within a call it is the call's own operation that
 * does not end before that: at most one waits for the same. */
void sim_wait(struct sim *s, sim_op op);
/* Whether it has ended by now. */
bool sim_done(struct sim *s, sim_op op);
/* When an operation began (was no longer waiting for others) and ended. It has ended, and
 * sim_forget has not been called since. */
double sim_began(const struct sim *s, sim_op op);
double sim_ended(const struct sim *s, sim_op op);

/* A stretch of the chain of operations that a point in time waited for:
 * what, from when, to when. */
struct sim_stretch {
    const char *what;
    double begin, end;
};
/* The critical path of the host's present: walks back from now to `since` through what each
 * operation waited for, the host's own time included. Stretches from the last to the first, without
 * gaps; adjacent ones of the same `what` are one. Returns how many;
 * *path is the caller's to free. */
int sim_critical_path(struct sim *s, double since, struct sim_stretch **path);
/* Operations that have ended by now need not be told about any more, and the path of a later
 * present does not go back behind it. */
void sim_forget(struct sim *s);

#endif
