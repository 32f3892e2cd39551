/* cmd/stop: what a signal does before, while and after there is something to save. Each case is a
 * process of its own. */
#include "tests/testing.h"

#include "cmd/stop.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

/* The status with which a child ends that does this; what it prints goes to `said`. */
static int status_of(void (*child)(int), int signal, char *said, size_t size)
{
    int pipes[2], status;
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[1], STDERR_FILENO);
        stop_listen();
        child(signal);
        _exit(0);
    }
    close(pipes[1]);
    size_t got = 0;
    for (ssize_t n; got < size - 1 && (n = read(pipes[0], said + got, size - 1 - got)) > 0;)
        got += (size_t)n;
    said[got] = 0;
    close(pipes[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void nap(long milliseconds)
{
    struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* To the process, and until it has been taken. */
static void send(int signal)
{
    kill(getpid(), signal);
    nap(50);
}

static void early(int signal)
{
    send(signal);
}

static void ends_at_once_where_nothing_is_saved_yet(void **state)
{
    (void)state;
    char said[256];
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(status_of(early, signals[i], said, sizeof said), STOP_STATUS);
    assert_string_equal(said, "stopped by SIGUSR1, with nothing to save yet\n");
}

static void goes_on(int signal)
{
    struct comm *alone = comm_create_alone();
    stop_defer();
    send(signal);
    if (stop_asked())
        _exit(1);
    send(signal == SIGUSR1 ? SIGTERM : SIGUSR1); /* the others are taken */
    if (!stop_asked() || strcmp(stop_reason(alone), signal == SIGUSR1 ? "SIGTERM" : "SIGUSR1") != 0)
        _exit(2);
    comm_destroy(alone);
    _exit(3);
}

/* As nohup starts a program, and a script what is to run in the background. */
static void leaves_ignored_what_was(void **state)
{
    (void)state;
    char said[256];
    for (size_t i = 0; i < 4; i++) {
        signal(signals[i], SIG_IGN);
        assert_int_equal(status_of(goes_on, signals[i], said, sizeof said), 3);
        signal(signals[i], SIG_DFL);
        assert_string_equal(said, "");
    }
}

static void deferred(int signal)
{
    struct comm *alone = comm_create_alone();
    stop_defer();
    if (stop_asked())
        _exit(1);
    send(signal);
    send(signal); /* the same wish on another way */
    if (!stop_asked() || strcmp(stop_reason(alone), "SIGHUP") != 0)
        _exit(2);
    comm_destroy(alone);
    send(SIGPIPE); /* is none of them */
    _exit(3);
}

static void waits_for_who_asks(void **state)
{
    (void)state;
    char said[256];
    assert_int_equal(status_of(deferred, SIGHUP, said, sizeof said), 3);
    assert_string_equal(said, "");
}

static void twice(int signal)
{
    stop_defer();
    send(SIGUSR1);
    nap(1100);
    send(signal);
}

static void the_second_one_ends_at_once(void **state)
{
    (void)state;
    char said[256];
    assert_int_equal(status_of(twice, SIGTERM, said, sizeof said), 128 + SIGTERM);
    assert_int_equal(status_of(twice, SIGINT, said, sizeof said), 128 + SIGINT);
}

static void finished(int signal)
{
    stop_defer();
    send(SIGUSR1);
    stop_finish(7);
    send(signal);
}

static void ends_as_it_would_have(void **state)
{
    (void)state;
    char said[256];
    assert_int_equal(status_of(finished, SIGTERM, said, sizeof said), 7);
    assert_string_equal(said, "");
}

static void timed(int signal)
{
    (void)signal;
    struct comm *alone = comm_create_alone();
    stop_defer();
    stop_after(0.2);
    if (stop_asked())
        _exit(1);
    nap(250);
    if (!stop_asked() || strcmp(stop_reason(alone), "max_runtime") != 0)
        _exit(2);
    comm_destroy(alone);
    _exit(3);
}

static void asks_when_the_time_is_over(void **state)
{
    (void)state;
    char said[256];
    assert_int_equal(status_of(timed, 0, said, sizeof said), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_at_once_where_nothing_is_saved_yet),
        cmocka_unit_test(leaves_ignored_what_was),
        cmocka_unit_test(waits_for_who_asks),
        cmocka_unit_test(the_second_one_ends_at_once),
        cmocka_unit_test(ends_as_it_would_have),
        cmocka_unit_test(asks_when_the_time_is_over),
    };
    for (size_t i = 0; i < 4; i++)
        signal(signals[i], SIG_DFL); /* whatever started this */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
