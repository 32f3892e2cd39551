/* kill_at NUMBER FOLDER CALLS COMMAND...: runs a command and kills it, as kill -9 does, when any of
 * its threads begins the NUMBERth system call that changes something in FOLDER or flushes it to the
 * disk (0: never). With ZF_KILL_SIGNAL, a number, it gets that signal, and the thread waits a
 * second before it makes its call, so that others may do what they do about it. The file CALLS gets
 * these calls, numbered from 1 in the order in which they came. Exit status 137 where the command
 * was killed, else its own; 77 where nothing can be traced. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a call names: a descriptor or a path, in its argument of this number. */
static const struct call {
    long number;
    const char *name;
    enum { DESCRIPTOR, PATH } kind;
    int argument;
} calls[] = {
    {SYS_write, "write", DESCRIPTOR, 0},   {SYS_pwrite64, "pwrite64", DESCRIPTOR, 0},
    {SYS_fsync, "fsync", DESCRIPTOR, 0},   {SYS_ftruncate, "ftruncate", DESCRIPTOR, 0},
    {SYS_openat, "openat", PATH, 1},       {SYS_rename, "rename", PATH, 0},
    {SYS_renameat2, "renameat2", PATH, 1}, {SYS_unlink, "unlink", PATH, 0},
    {SYS_unlinkat, "unlinkat", PATH, 1},   {SYS_rmdir, "rmdir", PATH, 0},
    {SYS_mkdir, "mkdir", PATH, 0},
};

static void read_path(pid_t pid, unsigned long long at, char *text, size_t size)
{
    size_t n = 0;
    memset(text, 0, size);
    while (n + 1 < size) { /* to a page's end at a time */
        size_t room = 4096 - (size_t)(at + n) % 4096;
        struct iovec to = {text + n, room < size - 1 - n ? room : size - 1 - n};
        struct iovec from = {(void *)(size_t)(at + n), to.iov_len};
        if (process_vm_readv(pid, &to, 1, &from, 1, 0) <= 0 || memchr(text + n, 0, to.iov_len))
            return;
        n += to.iov_len;
    }
}

static void what_it_names(pid_t pid, const struct call *call, const __uint64_t *arguments,
                          char *text, size_t size)
{
    char link[64];
    if (call->kind == PATH) {
        read_path(pid, arguments[call->argument], text, size);
        return;
    }
    snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)pid, (int)arguments[call->argument]);
    ssize_t n = readlink(link, text, size - 1);
    text[n > 0 ? n : 0] = 0;
}

/* Whether a thread that has stopped begins such a call. */
static const struct call *begins(pid_t pid, const char *folder, char *text, size_t size)
{
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY)
        return NULL;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if ((long)info.entry.nr == calls[i].number) {
            if (info.entry.nr == SYS_openat && (info.entry.args[2] & O_ACCMODE) == O_RDONLY)
                return NULL;
            what_it_names(pid, &calls[i], info.entry.args, text, size);
            return strncmp(text, folder, strlen(folder)) == 0 ? &calls[i] : NULL;
        }
    return NULL;
}

static int follow(pid_t child, long at, int with, const char *folder, FILE *list)
{
    char text[PATH_MAX];
    long n = 0;
    pid_t waits = 0;
    int left = 0; /* milliseconds */
    for (int status;;) {
        pid_t pid = waitpid(-1, &status, __WALL | (waits ? WNOHANG : 0));
        if (pid == 0) {
            usleep(1000);
            if (--left == 0) {
                ptrace(PTRACE_SYSCALL, waits, NULL, NULL);
                waits = 0;
            }
            continue;
        }
        if (pid < 0)
            return errno == ECHILD ? 1 : 2;
        if (!WIFSTOPPED(status)) {
            if (pid == child)
                return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        const int signal = WSTOPSIG(status);
        const struct call *call =
            signal == (SIGTRAP | 0x80) ? begins(pid, folder, text, sizeof text) : NULL;
        if (call) {
            fprintf(list, "%ld %s %s\n", ++n, call->name, text);
            if (n == at)
                kill(child, with);
            if (n == at && with != SIGKILL) {
                waits = pid;
                left = 1000;
                continue;
            }
        }
        const int event = status >> 16;
        const int pass = signal == (SIGTRAP | 0x80) || event ? 0 : signal;
        ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(long)pass);
    }
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        execvp(argv[4], argv + 4);
        _exit(127);
    }
    FILE *list = fopen(argv[3], "w");
    int status;
    if (child < 0 || !list || waitpid(child, &status, WUNTRACED) != child)
        return 2;
    if (ptrace(PTRACE_SEIZE, child, NULL,
               (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
                        PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL)) != 0) {
        kill(child, SIGKILL);
        return 77;
    }
    kill(child, SIGCONT);
    const char *with = getenv("ZF_KILL_SIGNAL");
    status = follow(child, strtol(argv[1], NULL, 10), with ? atoi(with) : SIGKILL, argv[2], list);
    return fclose(list) == 0 ? status : 2;
}
