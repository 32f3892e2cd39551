/* Ending a run before its end without losing it: by SIGTERM, SIGINT, SIGHUP or SIGUSR1, and after
 * max_runtime. A training run finishes its step, writes a checkpoint, says so, and exits with
 * STOP_STATUS; the same command with resume_from_checkpoint "latest" goes on from there.
 *
 * Which signal came to which rank is this process's own knowledge; ranks agree on the step in
 * step_run. */
#ifndef ZF_CMD_STOP_H
#define ZF_CMD_STOP_H

#include "offload/comm/comm.h"

#include <stdbool.h>

/* The exit status of a run that was stopped: EX_TEMPFAIL of sysexits.h, start it again. */
#define STOP_STATUS 75

/* From now on the signals above are taken, by a thread of their own. There is nothing to save yet:
 * they end the program at once, with STOP_STATUS. Those that were ignored when the program began,
 * as nohup has SIGHUP, stay so. A broken pipe is no signal from now on, but a fault of who writes.
 * To be called before any other thread is started. */
void stop_listen(void);
/* From now on the first signal is for stop_asked to tell. One that comes a second or more later
 * ends the program at once, with 128 and its number; what comes earlier is the same wish on another
 * way, as where a launcher passes on what its ranks got too. */
void stop_defer(void);
/* Where signals end the program at once, from now on the first waits for stop_release, or for the
 * program's end: what is written until then is whole. Elsewhere neither does anything. */
void stop_hold(void);
/* Ends the program if a signal came meanwhile. */
void stop_release(void);
/* From now on nothing is left to save, or to be done: signals end the program with this status. */
void stop_finish(int status);
/* Asks so many seconds after stop_listen; 0: never. */
void stop_after(double seconds);

/* Whether this rank was asked. Costs nothing. */
bool stop_asked(void);
/* "SIGTERM", "max_runtime", ...: what stopped the run, on all ranks. Collective. */
const char *stop_reason(struct comm *comm);

#endif
