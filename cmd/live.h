/* The line at the bottom of a terminal that says how far a run is: its last step, or, where a stage
 * between steps takes longer than a moment, the stage. It is redrawn in place, fits the terminal's
 * width whenever that changes, and makes way for what is printed and stays: messages of log.h, and
 * what is printed between live_give_way and live_come_back.
 *
 * Where there is no terminal, a stage that takes its time is said in plain lines, now and then, so
 * that a long start is no silence.
 *
 * For the one process that tells how the run goes: elsewhere, and before live_begin and after
 * live_end, nothing is told. The functions are for the main thread, but for the last two,
 * which any may call; a thread of their own redraws the line. */
#ifndef ZF_CMD_LIVE_H
#define ZF_CMD_LIVE_H

#include "cmd/line.h"

#include <stdbool.h>

/* terminal: whether the line is drawn, on standard error. */
void live_begin(bool terminal);
/* Clears the line. */
void live_end(void);
/* Whether it is drawn; whether in colour. */
bool live_is_drawn(void);
bool live_has_colour(void);

/* From now on the run is at this stage, until the next one or live_stage_end, and so is this rank
 * for who watches it (place_at). The name is not copied. of: how many parts the stage has, such as
 * examples, 0 being an unknown number. */
void live_stage(const char *name, long of);
/* How many parts are done. */
void live_stage_done(long parts);
void live_stage_end(void);

/* A step has been done: what is told of it at the next tick. The first part, as "step 4/10", stands
 * before stages too. */
void live_step(const struct line *line);

/* What is printed between the two, on standard output or error, stays above the line. */
void live_give_way(void);
void live_come_back(void);

#endif
