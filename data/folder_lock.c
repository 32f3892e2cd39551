#include "data/folder_lock.h"

#include "data/alloc.h"
#include "data/log.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char NAME[] = ".zf_train.lock";

struct folder_lock {
    int file;
    char *path;
};

enum outcome { TAKEN, HELD, NO_LOCKS, FAULT };

static char *path_of(const char *folder)
{
    return zf_format("%s/%s", folder, NAME);
}

/* "process 4711 on node3 since 2026-01-31 12:00:00 UTC" */
static void write_holder(int file)
{
    char host[256] = "", since[64];
    struct tm utc;
    time_t now = time(NULL);
    gethostname(host, sizeof host - 1);
    strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
    char *text = zf_format("process %ld on %s since %s\n", (long)getpid(), host, since);
    if (ftruncate(file, 0) != 0 || pwrite(file, text, strlen(text), 0) != (ssize_t)strlen(text))
        log_warn("the lock does not say who has it: %s", strerror(errno));
    free(text);
}

static void read_holder(int file, char *out, size_t size)
{
    ssize_t n = pread(file, out, size - 1, 0);
    n = n < 0 ? 0 : n;
    out[n] = 0;
    out[strcspn(out, "\n")] = 0;
    for (char *c = out; *c; c++)
        if (!isprint((unsigned char)*c))
            *c = '?';
    if (!*out)
        snprintf(out, size, "another process");
}

/* Whether the file is still the one of this name: a holder removes it. */
static bool is_current(int file, const char *path)
{
    struct stat ours, there;
    return fstat(file, &ours) == 0 && lstat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

/* Opens and locks the file; *file is open where it is TAKEN or there are NO_LOCKS. */
static enum outcome take(const char *path, int flags, int *file, char *holder, size_t size)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (;;) {
        *file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0666);
        if (*file < 0)
            return FAULT;
        if (fcntl(*file, F_SETLK, &whole) != 0) {
            int reason = errno;
            if (reason != EACCES && reason != EAGAIN)
                return NO_LOCKS;
            read_holder(*file, holder, size);
            close(*file);
            return HELD;
        }
        if (is_current(*file, path))
            return TAKEN;
        close(*file);
    }
}

static bool fail_held(const char *key, const char *folder, const char *holder, struct zf_error *err)
{
    return zf_fail(err, "%s %s is in use: %s writes into it", key, folder, holder);
}

struct folder_lock *folder_lock_take(const char *key, const char *folder, struct zf_error *err)
{
    char holder[512], *path = path_of(folder);
    int file;
    enum outcome outcome = take(path, O_CREAT, &file, holder, sizeof holder);
    if (outcome == HELD)
        fail_held(key, folder, holder, err);
    else if (outcome == FAULT)
        zf_fail(err, "%s: cannot be written: %s", path, strerror(errno));
    else if (outcome == NO_LOCKS)
        log_warn("%s %s: its file system keeps no locks (%s), so nothing stops another run that "
                 "writes into it",
                 key, folder, strerror(errno));
    if (outcome == HELD || outcome == FAULT) {
        free(path);
        return NULL;
    }
    write_holder(file);
    struct folder_lock *lock = zf_malloc(sizeof *lock);
    *lock = (struct folder_lock){file, path};
    return lock;
}

void folder_lock_release(struct folder_lock *lock)
{
    if (!lock)
        return;
    unlink(lock->path); /* while nobody else can take it */
    close(lock->file);
    free(lock->path);
    free(lock);
}

bool folder_lock_check(const char *key, const char *folder, struct zf_error *err)
{
    char holder[512], *path = path_of(folder);
    int file;
    enum outcome outcome = take(path, 0, &file, holder, sizeof holder);
    if (outcome == TAKEN)
        unlink(path);
    if (outcome == TAKEN || outcome == NO_LOCKS)
        close(file);
    free(path);
    return outcome != HELD || fail_held(key, folder, holder, err);
}
