#include "data/file.h"

#include "data/alloc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool file_is_fetched(const char *path, const char *bytes, size_t n, struct zf_error *err)
{
    static const char pointer[] = "version https://git-lfs.";
    return n < sizeof pointer - 1 || memcmp(bytes, pointer, sizeof pointer - 1) != 0 ||
           zf_fail(err,
                   "%s: this is a pointer of Git LFS, not the file itself: run \"git lfs pull\" in "
                   "its repository, or download it",
                   path);
}

int file_open(const char *path, size_t *bytes, struct zf_error *err)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        zf_fail(err, "%s: cannot be read: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        zf_fail(err, "%s: cannot be read: not a regular file", path);
    } else {
        *bytes = (size_t)info.st_size;
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Why this cannot be written to at once, or NULL. */
static const char *unfit_for_output(int fd)
{
    struct stat info;
    if (fd < 0)
        return errno == ENXIO ? "a pipe that nobody reads" : strerror(errno);
    if (fstat(fd, &info) != 0)
        return strerror(errno);
    /* Pipes are read by somebody, or they could not have been opened; to write may wait again. */
    const bool fits = S_ISREG(info.st_mode) || S_ISCHR(info.st_mode) || S_ISFIFO(info.st_mode);
    if (!fits)
        return "not a regular file";
    return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0 ? NULL : strerror(errno);
}

FILE *file_open_output(const char *path, bool append, struct zf_error *err)
{
    const int flags = O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int fd = open(path, flags | (append ? O_APPEND : O_TRUNC), 0666);
    const char *fault = unfit_for_output(fd);
    FILE *stream = fault ? NULL : fdopen(fd, append ? "a" : "w");
    if (!stream)
        zf_fail(err, "%s: cannot be written: %s", path, fault ? fault : strerror(errno));
    if (!stream && fd >= 0)
        close(fd);
    return stream;
}

/* Reads n bytes from where the file stands; returns how many came. */
static size_t read_all(int fd, char *to, size_t n)
{
    size_t done = 0;
    for (ssize_t got = 1; done < n && got != 0;) {
        got = read(fd, to + done, n - done);
        if (got < 0 && errno != EINTR)
            break;
        done += got > 0 ? (size_t)got : 0;
    }
    return done;
}

bool file_read(const char *path, char **text, size_t *bytes, struct zf_error *err)
{
    size_t size;
    int fd = file_open(path, &size, err);
    if (fd < 0)
        return false;
    char *content = zf_malloc(size + 1);
    size_t got = read_all(fd, content, size);
    close(fd);
    if (got != size) {
        free(content);
        return zf_fail(err, "%s: cannot be read: %zu of %zu bytes came", path, got, size);
    }
    if (!file_is_fetched(path, content, size, err)) {
        free(content);
        return false;
    }
    content[size] = 0;
    *text = content;
    *bytes = size;
    return true;
}

bool file_read_if_any(const char *path, char **text, size_t *bytes, struct zf_error *err)
{
    *text = NULL;
    *bytes = 0;
    return !file_exists(path) || file_read(path, text, bytes, err);
}

size_t file_drop_mark(char *text, size_t bytes)
{
    static const char mark[] = "\xEF\xBB\xBF";
    const size_t n = sizeof mark - 1;
    if (bytes < n || memcmp(text, mark, n) != 0)
        return bytes;
    memmove(text, text + n, bytes - n + 1);
    return bytes - n;
}

bool file_read_text(const char *path, char **text, size_t *bytes, struct zf_error *err)
{
    if (!file_read(path, text, bytes, err))
        return false;
    *bytes = file_drop_mark(*text, *bytes);
    return true;
}

/* The directory that a path lies in, as a new string. */
static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? zf_format("%.*s", slash == path ? 1 : (int)(slash - path), path)
                 : zf_strdup(".");
}

/* What has been made, renamed and removed in a directory is on the disk. */
static bool sync_directory(const char *directory, struct zf_error *err)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Where it may not be read, or the file system does not know of this, there is no way to. */
    bool ok = fd >= 0 ? fsync(fd) == 0 || errno == EINVAL : errno == EACCES;
    if (!ok)
        zf_fail(err, "%s: cannot be written: %s", directory, strerror(errno));
    if (fd >= 0)
        close(fd);
    return ok;
}

static bool sync_directory_of(const char *path, struct zf_error *err)
{
    char *directory = directory_of(path);
    bool ok = sync_directory(directory, err);
    free(directory);
    return ok;
}

/* What has the name is what a dead process of the same number has left. */
FILE *file_create(const char *path)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = open(path, flags, 0666);
    if (fd < 0 && errno == EEXIST && unlink(path) == 0)
        fd = open(path, flags, 0666);
    FILE *stream = fd >= 0 ? fdopen(fd, "w+b") : NULL;
    if (fd >= 0 && !stream)
        close(fd);
    return stream;
}

struct batched_file {
    FILE *stream;
    char *path;
};

/* What this thread's finished files go into, or NULL. */
static _Thread_local struct file_batch *batch;

void file_batch_begin(struct file_batch *b)
{
    *b = (struct file_batch){0};
    batch = b;
}

void file_batch_end(void)
{
    batch = NULL;
}

static void batch_file(FILE *stream, const char *path)
{
    batch->files = zf_realloc(batch->files, sizeof *batch->files * (size_t)(batch->n + 1));
    batch->files[batch->n++] = (struct batched_file){stream, zf_strdup(path)};
}

bool file_batch_sync(struct file_batch *b, bool keep, struct zf_error *err)
{
    bool ok = true;
    for (int i = 0; i < b->n; i++) {
        struct batched_file *f = &b->files[i];
        int reason = keep && ok && fsync(fileno(f->stream)) != 0 ? errno : 0;
        if (fclose(f->stream) != 0 && !reason)
            reason = errno;
        if (keep && ok && reason)
            ok = zf_fail(err, "%s: cannot be written: %s", f->path, strerror(reason));
        free(f->path);
    }
    free(b->files);
    *b = (struct file_batch){0};
    return ok;
}

bool file_replace_begin(struct file_replace *f, const char *path, struct zf_error *err)
{
    if (snprintf(f->path, sizeof f->path, "%s", path) >= (int)sizeof f->path)
        return zf_fail(err, "%.100s...: the path is too long", path);
    snprintf(f->temporary, sizeof f->temporary, "%s.%ld.tmp", path, (long)getpid());
    f->stream = file_create(f->temporary);
    if (!f->stream)
        return zf_fail(err, "%s: cannot be written: %s", path, strerror(errno));
    return true;
}

/* Why an earlier write has failed: trying once more tells. The file is not kept. */
static int reason_of_failure(FILE *stream)
{
    clearerr(stream);
    errno = 0;
    return (fputc(0, stream) == EOF || fflush(stream) != 0) && errno ? errno : EIO;
}

bool file_replace_end(struct file_replace *f, bool keep, struct zf_error *err)
{
    bool ok = !ferror(f->stream);
    int reason = ok ? 0 : reason_of_failure(f->stream);
    if (ok && (fflush(f->stream) != 0 || (keep && !batch && fsync(fileno(f->stream)) != 0))) {
        ok = false;
        reason = errno;
    }
    if (keep && ok && batch)
        batch_file(f->stream, f->path); /* which closes it */
    else
        ok = fclose(f->stream) == 0 && ok;
    if (keep && ok && rename(f->temporary, f->path) == 0)
        return batch || sync_directory_of(f->path, err);
    reason = reason ? reason : errno;
    unlink(f->temporary);
    return !keep ||
           zf_fail(err, "%s: cannot be written: %s", f->path, strerror(reason ? reason : EIO));
}

bool file_write(const char *path, const void *bytes, size_t n, struct zf_error *err)
{
    struct file_replace f;
    if (!file_replace_begin(&f, path, err))
        return false;
    fwrite(bytes, 1, n, f.stream);
    return file_replace_end(&f, true, err);
}

char *file_name(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    const char *begin = path;
    for (size_t i = 0; i + 1 < n; i++)
        if (path[i] == '/')
            begin = path + i + 1;
    return zf_format("%.*s", (int)(path + n - begin), begin);
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool file_is_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool file_is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void file_names_free(struct file_names *names)
{
    for (int i = 0; i < names->n; i++)
        free(names->list[i]);
    free(names->list);
    *names = (struct file_names){0};
}

bool file_list(const char *directory, struct file_names *names, struct zf_error *err)
{
    struct dirent *entry;
    DIR *d = opendir(directory);
    *names = (struct file_names){0};
    if (!d)
        return zf_fail(err, "%s: the directory cannot be read: %s", directory, strerror(errno));
    while ((errno = 0, entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        names->list = zf_realloc(names->list, sizeof *names->list * (size_t)(names->n + 1));
        names->list[names->n++] = zf_strdup(entry->d_name);
    }
    int fault = errno;
    closedir(d);
    if (fault) {
        file_names_free(names);
        return zf_fail(err, "%s: the directory cannot be read: %s", directory, strerror(fault));
    }
    if (names->n > 1)
        qsort(names->list, (size_t)names->n, sizeof *names->list, compare_names);
    return true;
}

bool file_make_directory(const char *path, struct zf_error *err)
{
    char part[4096];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return zf_fail(err, "%.100s...: the path is too long", path);
    for (char *p = part + 1;; p++) {
        if (*p != '/' && *p != 0)
            continue;
        char end = *p;
        *p = 0;
        int fault = mkdir(part, 0777) == 0 ? 0 : errno;
        if (!fault && !batch && !sync_directory_of(part, err))
            return false;
        if (fault && !file_is_directory(part))
            return zf_fail(err, "%s: the directory cannot be made: %s", part,
                           fault == EEXIST ? "a file stands in its place" : strerror(fault));
        *p = end;
        if (!end)
            return true;
    }
}

/* Exchanges two names; or, where the file system cannot, first puts aside what has the second. */
static bool exchange(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return true;
    if (errno != ENOSYS && errno != EINVAL)
        return false;
    struct zf_error ignored;
    char *aside = zf_format("%s.replaced", to);
    if (file_exists(aside))
        file_remove_directory(aside, &ignored);
    bool is_aside = rename(to, aside) == 0, ok = is_aside && rename(from, to) == 0;
    int fault = errno;
    if (ok)
        file_remove_directory(aside, &ignored);
    else if (is_aside)
        rename(aside, to);
    free(aside);
    errno = fault;
    return ok;
}

bool file_publish_directory(const char *from, const char *to, struct zf_error *err)
{
    if (!sync_directory(from, err))
        return false;
    if (file_exists(to) ? !exchange(from, to) : rename(from, to) != 0)
        return zf_fail(err, "%s: cannot be written: %s", to, strerror(errno));
    return sync_directory_of(to, err);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

bool file_remove_directory(const char *path, struct zf_error *err)
{
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0)
        return zf_fail(err, "%s: the directory cannot be removed: %s", path, strerror(errno));
    return true;
}
