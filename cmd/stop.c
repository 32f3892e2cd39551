#include "cmd/stop.h"

#include "data/log.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* What can stop a run; the later, the more it counts where ranks were told different things. */
static const struct {
    int signal;
    const char *name;
} reasons[] = {{0, "max_runtime"},
               {SIGHUP, "SIGHUP"},
               {SIGUSR1, "SIGUSR1"},
               {SIGTERM, "SIGTERM"},
               {SIGINT, "SIGINT"}};
#define N_REASONS ((int)(sizeof reasons / sizeof *reasons))

static atomic_int first_signal; /* 0: none came */
static long long first_time;    /* when it did */
static _Atomic enum { AT_ONCE, DEFERRED, FINISHED } manner;
static bool held; /* AT_ONCE is DEFERRED for a while */
/* To be had by who ends the program at once, and by who keeps it from that. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static atomic_int last_status;
static long long began; /* in nanoseconds, as are these */
static double allowed;  /* in seconds; 0: for ever */

/* In nanoseconds; clock_seconds() may be a plan's. */
static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static const char *name_of(int signal)
{
    for (int i = 0; i < N_REASONS; i++)
        if (reasons[i].signal == signal)
            return reasons[i].name;
    return "";
}

static void take_in_turn(int signal)
{
    if (manner == FINISHED)
        _exit(last_status);
    if (manner == AT_ONCE) {
        log_info("stopped by %s, with nothing to save yet", name_of(signal));
        _exit(STOP_STATUS);
    }
    if (first_signal != 0 && now() - first_time >= 1000000000ll)
        _exit(128 + signal);
    if (first_signal == 0) {
        first_time = now();
        first_signal = signal;
        log_hurry(); /* a launcher that is ending its job may read nothing any more */
    }
}

static void take(int signal)
{
    pthread_mutex_lock(&turn);
    take_in_turn(signal);
    pthread_mutex_unlock(&turn);
}

static void *listen_to_signals(void *argument)
{
    const sigset_t *signals = argument;
    for (int signal;;)
        if (sigwait(signals, &signal) == 0)
            take(signal);
    return NULL;
}

/* nohup and shells, which do so for what they start in the background, had it ignored: blocked, it
 * would be kept for who waits for it. */
static bool is_ignored(int signal)
{
    struct sigaction action;
    return sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* No thread that computes may be interrupted by a handler: oneDNN's products keep other things than
 * the stack in the stack's register, and what a handler is called with would be written there. */
void stop_listen(void)
{
    static sigset_t signals;
    pthread_t thread;
    began = now();
    sigemptyset(&signals);
    for (int i = 0; i < N_REASONS; i++)
        if (reasons[i].signal && !is_ignored(reasons[i].signal))
            sigaddset(&signals, reasons[i].signal);
    signal(SIGPIPE, SIG_IGN);
    if (pthread_sigmask(SIG_BLOCK, &signals, NULL) == 0 &&
        pthread_create(&thread, NULL, listen_to_signals, &signals) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &signals, NULL); /* they end the program, as they do */
}

void stop_defer(void)
{
    manner = DEFERRED;
}

void stop_hold(void)
{
    pthread_mutex_lock(&turn);
    if (manner == AT_ONCE) {
        held = true;
        manner = DEFERRED;
    }
    pthread_mutex_unlock(&turn);
}

void stop_release(void)
{
    pthread_mutex_lock(&turn);
    if (held && first_signal != 0) {
        log_info("stopped by %s; what was being written is whole", name_of(first_signal));
        _exit(STOP_STATUS);
    }
    if (held)
        manner = AT_ONCE;
    held = false;
    pthread_mutex_unlock(&turn);
}

void stop_finish(int status)
{
    last_status = status;
    manner = FINISHED;
}

void stop_after(double seconds)
{
    allowed = seconds;
}

static bool time_is_over(void)
{
    return allowed > 0 && 1e-9 * (double)(now() - began) >= allowed;
}

bool stop_asked(void)
{
    return first_signal != 0 || time_is_over();
}

const char *stop_reason(struct comm *comm)
{
    int mine = 0;
    for (int i = 1; i < N_REASONS; i++)
        if (reasons[i].signal == first_signal)
            mine = i;
    return reasons[(int)comm_max(comm, mine)].name;
}
