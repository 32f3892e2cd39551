/* A timeline in Chrome's trace format (https://ui.perfetto.dev opens it): what the main thread, the
 * device, the link each way and each host worker did, and when they did it.
 *
 * A rank is a process of the timeline. While the run goes on each rank writes its spans as they
 * become known, rank 0 to the file and rank r > 0 beside it, to FILE.rank<r>.<process>.tmp; at the
 * end rank 0's gets them all. A file that is left when a run dies can be viewed too: the
 * format asks for no closing bracket. */
#ifndef ZF_OFFLOAD_TRACE_H
#define ZF_OFFLOAD_TRACE_H

#include "data/error.h"

#include <stddef.h>

/* Lanes of a rank. Spans of one lane lie one within another, or one after another. */
enum trace_lane {
    TRACE_HOST,      /* the main thread: steps, evaluation, saving; and stalls of the device */
    TRACE_DEVICE,    /* the compute stream: steps, forward, backward, updates, evaluation */
    TRACE_LINK_DOWN, /* gradients, to the host */
    TRACE_LINK_UP,   /* parameters, to the device */
    TRACE_STATE,     /* state of channels that change sides, or visit the device */
    TRACE_WORKERS,   /* the host's workers: a lane for each, from this number on */
};

struct comm;
struct device;
struct stream;
struct trace;

/* Collective; fails on all ranks or on none. comm and device are borrowed. */
struct trace *trace_create(const char *path, struct comm *comm, struct device *device,
                           struct zf_error *err);
/* Waits for the device and brings all ranks' spans together. Fails where the files could not be
 * written whole. Collective; t may be NULL. */
bool trace_destroy(struct trace *t, struct zf_error *err);

/* Below, t may be NULL: nothing happens. Names are not copied. */

/* The streams of these lanes, borrowed until their last span has ended, and how many workers there
 * are. */
void trace_set_lanes(struct trace *t, struct stream *down, struct stream *up, struct stream *state,
                     int workers);
/* A span for a step, from 1, on the lanes of host and device. All spans belong to it that begin
 * before the next one does. */
void trace_begin_step(struct trace *t, int step);
void trace_end_step(struct trace *t);
int trace_step(const struct trace *t); /* the last one that began */

/* A span of a lane. On a stream's lane it lasts from when the stream gets to its beginning until
 * the stream gets to its end: events tell when, and are asked when they have passed. On TRACE_HOST
 * it lasts from the one call to the other. bytes: how many crossed the link; 0: it says none. */
void trace_begin(struct trace *t, enum trace_lane lane, const char *name);
void trace_end(struct trace *t, enum trace_lane lane, size_t bytes);
/* A span of TRACE_HOST or, with a worker's number, of TRACE_WORKERS whose times are known, in
 * seconds of data/clock.h's clock. */
void trace_span(struct trace *t, enum trace_lane lane, int worker, const char *name, int step,
                double begin, double end);

#endif
