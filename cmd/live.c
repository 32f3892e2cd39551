#include "cmd/live.h"

#include "data/figures.h"
#include "data/log.h"
#include "data/terminal.h"
#include "offload/comm/place.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TICK     0.1  /* seconds from one look at the width and the clock to the next */
#define MOMENT   1.0  /* that a stage takes before the line tells of it */
#define PATIENCE 10.0 /* and before a plain line does, */
#define REPEATED 60.0 /* which is followed by others so far apart */
#define HELD     0.25 /* that the line waits for what others print */

#define NO_WRAP "\033[?7l"
#define WRAP    "\033[?7h"

static struct {
    pthread_mutex_t lock; /* of all that follows, and of what is printed */
    pthread_cond_t ended;
    pthread_t ticker;
    bool on, ticks, terminal, colour;
    struct line step; /* the last one's, empty: none yet */
    struct {
        const char *name;   /* NULL: no stage */
        double begin, said; /* when it began, and a plain line last told of it, 0: none has */
        long parts, of;
    } stage;
    char shown[LINE_BYTES]; /* what stands on the terminal, */
    int columns;            /* and for which width it was made */
    double held;            /* until then the line is not drawn */
} live = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

/* Of the system's clock: clock_seconds() may be a plan's. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- drawing; the lock is held ---- */

/* The cursor waits at the line's beginning: there a terminal that breaks lines anew when it becomes
 * narrower leaves it, above all that the line has become. */
static void clear(void)
{
    if (*live.shown)
        fputs("\r\033[J", stderr);
    *live.shown = 0;
}

/* For a width that is not known yet it may be too long: it does not go on below, then. */
static void draw(const char *text)
{
    fprintf(stderr, "\r" NO_WRAP "%s%s%s\033[J" WRAP "\r", live.colour ? TERMINAL_DIM : "", text,
            live.colour ? TERMINAL_PLAIN : "");
    fflush(stderr);
    snprintf(live.shown, sizeof live.shown, "%s", text);
}

/* What is to be told of the stage, after the step that it follows. */
static void describe_stage(struct line *line, double seconds)
{
    const long parts = live.stage.parts, of = live.stage.of;
    line->n = 0;
    if (live.step.n > 0)
        line_add(line, 0, "%s", live.step.parts[0].text);
    line_add(line, 0, "%s", live.stage.name);
    if (of > 0) {
        line_add(line, 2, "%s of %s", figure_count((double)parts).text,
                 figure_count((double)of).text);
        line_add(line, 1, "%s", figure_share((double)parts / (double)of).text);
    }
    if (parts > 0 && parts <= of)
        line_add(line, 1, "%s left",
                 figure_time(seconds * (double)(of - parts) / (double)parts).text);
    else
        line_add(line, 1, "%s", figure_time(seconds).text);
}

static void redraw(void)
{
    if (!live.on || !live.terminal)
        return;
    const double seconds = now() - live.stage.begin;
    const int columns = terminal_columns(STDERR_FILENO);
    char text[LINE_BYTES];
    struct line line = live.step;
    if (live.stage.name && seconds >= MOMENT)
        describe_stage(&line, seconds);
    line_write(&line, columns > 1 ? columns - 1 : 1, text);
    if (strcmp(text, live.shown) != 0 || columns != live.columns)
        draw(text);
    live.columns = columns;
}

/* Where there is no terminal. */
static void say_stage(void)
{
    const double t = now();
    char text[LINE_BYTES];
    struct line line;
    if (!live.on || !live.stage.name || t - live.stage.begin < PATIENCE ||
        (live.stage.said > 0 && t - live.stage.said < REPEATED))
        return;
    live.stage.said = t;
    describe_stage(&line, t - live.stage.begin);
    line_write(&line, 0, text);
    fprintf(stderr, "%s\n", text);
}

/* ---- the thread ---- */

/* No signal tells it of another width: threads that compute may not be interrupted (stop.c). */
static void *tick(void *unused)
{
    pthread_mutex_lock(&live.lock);
    while (live.on) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(TICK * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_clockwait(&live.ended, &live.lock, CLOCK_MONOTONIC, &until);
        if (!live.terminal)
            say_stage();
        else if (now() >= live.held)
            redraw();
    }
    pthread_mutex_unlock(&live.lock);
    return unused;
}

void live_begin(bool terminal)
{
    live.on = true;
    live.terminal = terminal;
    live.colour = terminal && terminal_has_colour(STDERR_FILENO);
    live.step.n = 0;
    live.stage.name = NULL;
    live.columns = terminal_columns(STDERR_FILENO);
    log_set_around(live_give_way, live_come_back);
    live.ticks = pthread_create(&live.ticker, NULL, tick, NULL) == 0;
}

void live_end(void)
{
    if (!live.on)
        return;
    pthread_mutex_lock(&live.lock);
    clear();
    live.on = false;
    pthread_cond_signal(&live.ended);
    pthread_mutex_unlock(&live.lock);
    if (live.ticks)
        pthread_join(live.ticker, NULL);
    log_set_around(NULL, NULL);
}

bool live_is_drawn(void)
{
    return live.on && live.terminal;
}

bool live_has_colour(void)
{
    return live.on && live.colour;
}

/* ---- what the run tells ---- */

static void set_stage(const char *name, long of)
{
    pthread_mutex_lock(&live.lock);
    live.stage.name = name;
    live.stage.begin = now();
    live.stage.said = 0;
    live.stage.parts = 0;
    live.stage.of = of;
    pthread_mutex_unlock(&live.lock);
}

void live_stage(const char *name, long of)
{
    place_at(name);
    if (live.on)
        set_stage(name, of);
}

void live_stage_done(long parts)
{
    if (!live.on)
        return;
    pthread_mutex_lock(&live.lock);
    live.stage.parts = parts;
    pthread_mutex_unlock(&live.lock);
}

void live_stage_end(void)
{
    if (live.on)
        set_stage(NULL, 0);
}

void live_step(const struct line *line)
{
    if (!live.on)
        return;
    pthread_mutex_lock(&live.lock);
    live.step = *line;
    pthread_mutex_unlock(&live.lock);
}

void live_give_way(void)
{
    pthread_mutex_lock(&live.lock);
    clear();
}

void live_come_back(void)
{
    struct stat out;
    fflush(stdout); /* before what comes on standard error */
    if (fstat(STDOUT_FILENO, &out) == 0 && S_ISFIFO(out.st_mode))
        live.held = now() + HELD; /* by way of tee it may be on its way to the same terminal */
    else
        redraw();
    pthread_mutex_unlock(&live.lock);
}
