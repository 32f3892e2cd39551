#include "offload/trace.h"

#include "data/alloc.h"
#include "data/clock.h"
#include "data/file.h"
#include "data/log.h"
#include "model/device/device.h"
#include "offload/comm/comm.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEPTH 4 /* of spans within spans */
#define UNKNOWN   (-1.0)

struct span {
    struct span *next;
    const char *name;
    int lane, step;
    size_t bytes;
    double begin, end; /* seconds of data/clock.h's clock */
};

/* Where a stream is to note the time. */
struct mark {
    struct mark *next;
    struct event *event;
    int lane;
    double recorded; /* when the host put it on the stream */
    double *seconds; /* of the span, UNKNOWN until the event has passed */
};

struct trace {
    FILE *stream;
    char *path;
    struct comm *comm;
    struct device *device;
    struct stream *streams[TRACE_WORKERS]; /* NULL: the host's own clock */
    double start;                          /* the timeline's zero */
    int step;
    struct span *first, **next;      /* not written yet, in the order in which they began: one that
                                        holds others comes before them */
    struct mark *marks, **next_mark; /* not passed yet, as they were recorded */
    struct mark *spare;              /* not in use */
    struct span *open[TRACE_WORKERS][MAX_DEPTH];
    int depth[TRACE_WORKERS];
    double latest[TRACE_WORKERS]; /* time of each lane's last mark */
    struct mark *known;           /* one that has passed, and its time: others' are told from it */
    double known_seconds;
};

/* ---- the file ---- */

/* A lane is a thread of a process, by Chrome's format. Viewers tell threads by their numbers, as an
 * operating system has them: each occurs once on all ranks, and 0 is none. */
static int thread_of(const struct trace *t, int lane)
{
    return 1000 * comm_rank(t->comm) + lane + 1;
}

static void name_lane(struct trace *t, int lane, const char *name)
{
    fprintf(t->stream,
            ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,"
            "\"args\":{\"name\":\"%s\"}}",
            comm_rank(t->comm), thread_of(t, lane), name);
}

static long long microseconds(const struct trace *t, double seconds)
{
    return llround(1e6 * (seconds - t->start));
}

/* Whole microseconds: viewers cut fractions, which would let spans overlap that meet. */
static void write_span(struct trace *t, const struct span *s)
{
    long long begin = microseconds(t, s->begin), end = microseconds(t, s->end);
    fprintf(t->stream,
            ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%lld,\"dur\":%lld,"
            "\"args\":{\"step\":%d",
            s->name, comm_rank(t->comm), thread_of(t, s->lane), begin, end - begin, s->step);
    if (s->bytes)
        fprintf(t->stream, ",\"bytes\":%zu", s->bytes);
    fputs("}}", t->stream);
    fflush(t->stream); /* a run that dies leaves whole spans */
}

static void write_what_is_known(struct trace *t)
{
    while (t->first && t->first->end != UNKNOWN && t->first->begin != UNKNOWN) {
        struct span *s = t->first;
        write_span(t, s);
        t->first = s->next;
        if (!t->first)
            t->next = &t->first;
        free(s);
    }
}

static struct span *add_span(struct trace *t, int lane, const char *name)
{
    struct span *s = zf_malloc(sizeof *s);
    *s = (struct span){
        .name = name, .lane = lane, .step = t->step, .begin = UNKNOWN, .end = UNKNOWN};
    *t->next = s;
    t->next = &s->next;
    return s;
}

/* ---- times of streams ---- */

static struct mark *take_mark(struct trace *t)
{
    struct mark *m = t->spare;
    if (m) {
        t->spare = m->next;
        return m;
    }
    m = zf_calloc(1, sizeof *m);
    m->event = t->device->event_create_timed();
    return m;
}

static void give_back(struct trace *t, struct mark *m)
{
    m->next = t->spare;
    t->spare = m;
}

/* The device's clock may go at another speed than the host's, which knows of a mark that it passed
 * neither before it was recorded nor after it was seen to have passed. Each mark's time is told
 * from the last one's, so what is mended once stays mended. */
static void tell_time(struct trace *t, struct mark *m)
{
    double now = clock_seconds();
    double seconds = t->known_seconds + t->device->event_elapsed(t->known->event, m->event);
    seconds = fmin(fmax(seconds, m->recorded), now);
    give_back(t, t->known);
    t->known = m;
    t->known_seconds = seconds;
    *m->seconds = t->latest[m->lane] = fmax(seconds, t->latest[m->lane]);
}

static void read_marks(struct trace *t, bool wait)
{
    while (t->marks && (wait || t->device->event_passed(t->marks->event))) {
        struct mark *m = t->marks;
        if (wait)
            t->device->event_wait(m->event);
        t->marks = m->next;
        if (!t->marks)
            t->next_mark = &t->marks;
        tell_time(t, m);
    }
    write_what_is_known(t);
}

static void note_time(struct trace *t, int lane, double *seconds)
{
    if (!t->streams[lane]) {
        *seconds = clock_seconds();
        return;
    }
    struct mark *m = take_mark(t);
    m->next = NULL;
    m->lane = lane;
    m->seconds = seconds;
    m->recorded = clock_seconds();
    t->device->event_record(m->event, t->streams[lane]);
    *t->next_mark = m;
    t->next_mark = &m->next;
}

/* ---- a run ---- */

/* Opens the file of rank 0, or a temporary one beside it, which nobody else's stands in for. */
static bool open_file(struct trace *t, const char *path, struct zf_error *err)
{
    const int rank = comm_rank(t->comm);
    if (rank == 0) {
        t->path = zf_strdup(path);
        t->stream = file_open_output(path, false, err);
        return t->stream != NULL;
    }
    t->path = zf_format("%s.rank%d.%ld.tmp", path, rank, (long)getpid());
    t->stream = file_create(t->path);
    return t->stream || zf_fail(err, "%s: cannot be written: %s", t->path, strerror(errno));
}

static void write_head(struct trace *t)
{
    static const char *const names[] = {"main thread", "device", "link: device to host",
                                        "link: host to device", "link: state of channels"};
    int rank = comm_rank(t->comm);
    fprintf(t->stream,
            "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,"
            "\"args\":{\"name\":\"rank %d\"}}",
            rank, rank);
    for (int lane = 0; lane < TRACE_WORKERS; lane++)
        name_lane(t, lane, names[lane]);
    fflush(t->stream);
}

/* One zero for all ranks: on one machine it is the same clock, else the end of a barrier. */
static void start_clock(struct trace *t)
{
    comm_barrier(t->comm);
    t->start = clock_seconds();
    if (comm_local_size(t->comm) == comm_size(t->comm))
        comm_broadcast(t->comm, &t->start, sizeof t->start, 0);
    t->known = take_mark(t);
    t->device->event_record(t->known->event, t->device->compute);
    t->device->event_wait(t->known->event);
    t->known_seconds = clock_seconds();
}

struct trace *trace_create(const char *path, struct comm *comm, struct device *device,
                           struct zf_error *err)
{
    struct trace *t = zf_calloc(1, sizeof *t);
    t->comm = comm;
    t->device = device;
    t->streams[TRACE_DEVICE] = t->streams[TRACE_STATE] = device->compute;
    t->next = &t->first;
    t->next_mark = &t->marks;
    if (!comm_all_ok(comm, open_file(t, path, err), err)) {
        if (t->stream)
            fclose(t->stream);
        if (t->stream && comm_rank(comm) > 0)
            unlink(t->path);
        free(t->path);
        free(t);
        return NULL;
    }
    start_clock(t);
    write_head(t);
    return t;
}

/* The spans of rank r > 0 go to rank 0's file. Whether what rank r has could be read. */
static bool gather(struct trace *t, int r)
{
    char piece[65536];
    bool whole = true;
    int rank = comm_rank(t->comm);
    long left = rank == r ? ftell(t->stream) - 2 : 0;
    if (rank == r)
        fseek(t->stream, 2, SEEK_SET); /* behind the bracket and the line's end */
    comm_broadcast(t->comm, &left, sizeof left, r);
    if (rank == 0)
        fputs(",\n", t->stream);
    for (size_t n; left > 0; left -= (long)n) {
        n = left < (long)sizeof piece ? (size_t)left : sizeof piece;
        if (rank == r && fread(piece, 1, n, t->stream) != n) {
            memset(piece, ' ', n);
            whole = false;
        }
        comm_broadcast(t->comm, piece, n, r);
        if (rank == 0)
            fwrite(piece, 1, n, t->stream);
    }
    return whole;
}

static void release_marks(struct trace *t)
{
    give_back(t, t->known);
    for (struct mark *m = t->spare, *next; m; m = next) {
        next = m->next;
        t->device->event_destroy(m->event);
        free(m);
    }
}

bool trace_destroy(struct trace *t, struct zf_error *err)
{
    bool whole = true;
    if (!t)
        return true;
    for (int lane = 0; lane < TRACE_WORKERS; lane++)
        while (t->depth[lane] > 0) /* of a step that failed */
            trace_end(t, lane, 0);
    read_marks(t, true);
    release_marks(t);
    if (!t->device->plan) /* whose other ranks are not there */
        for (int r = 1; r < comm_size(t->comm); r++)
            whole = gather(t, r) && whole;
    if (comm_rank(t->comm) == 0)
        fputs("\n]\n", t->stream);
    whole = whole && !ferror(t->stream);
    whole = fclose(t->stream) == 0 && whole;
    if (!whole)
        zf_fail(err, "%s: could not be written whole", t->path);
    if (comm_rank(t->comm) > 0)
        unlink(t->path);
    whole = t->device->plan ? whole : comm_all_ok(t->comm, whole, err);
    free(t->path);
    free(t);
    return whole;
}

void trace_set_lanes(struct trace *t, struct stream *down, struct stream *up, struct stream *state,
                     int workers)
{
    if (!t)
        return;
    t->streams[TRACE_LINK_DOWN] = down;
    t->streams[TRACE_LINK_UP] = up;
    t->streams[TRACE_STATE] = state;
    for (int w = 0; w < workers; w++) {
        char name[32];
        snprintf(name, sizeof name, "worker %d", w);
        name_lane(t, TRACE_WORKERS + w, name);
    }
}

int trace_step(const struct trace *t)
{
    return t ? t->step : 0;
}

void trace_begin(struct trace *t, enum trace_lane lane, const char *name)
{
    if (!t)
        return;
    assert(lane < TRACE_WORKERS && t->depth[lane] < MAX_DEPTH);
    struct span *s = add_span(t, lane, name);
    t->open[lane][t->depth[lane]++] = s;
    note_time(t, lane, &s->begin);
}

void trace_end(struct trace *t, enum trace_lane lane, size_t bytes)
{
    if (!t)
        return;
    assert(t->depth[lane] > 0);
    struct span *s = t->open[lane][--t->depth[lane]];
    s->bytes = bytes;
    note_time(t, lane, &s->end);
    read_marks(t, false);
}

void trace_span(struct trace *t, enum trace_lane lane, int worker, const char *name, int step,
                double begin, double end)
{
    if (!t)
        return;
    struct span *s = add_span(t, (int)lane + worker, name);
    s->step = step;
    s->begin = begin;
    s->end = end;
}

void trace_begin_step(struct trace *t, int step)
{
    if (t)
        t->step = step;
    trace_begin(t, TRACE_HOST, "step");
    trace_begin(t, TRACE_DEVICE, "step");
}

void trace_end_step(struct trace *t)
{
    trace_end(t, TRACE_DEVICE, 0);
    trace_end(t, TRACE_HOST, 0);
}
