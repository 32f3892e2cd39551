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

bool file_read(const char *path, char **text, size_t *bytes, struct zf_error *err)
{
    struct stat info;
    FILE *f = fopen(path, "rb");
    if (!f)
        return zf_fail(err, "%s: cannot be read: %s", path, strerror(errno));
    if (fstat(fileno(f), &info) != 0 || !S_ISREG(info.st_mode)) {
        fclose(f);
        return zf_fail(err, "%s: cannot be read: not a regular file", path);
    }
    size_t size = (size_t)info.st_size;
    char *content = zf_malloc(size + 1);
    size_t got = fread(content, 1, size, f);
    fclose(f);
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

bool file_read_text(const char *path, char **text, size_t *bytes, struct zf_error *err)
{
    static const char mark[] = "\xEF\xBB\xBF";
    size_t n = sizeof mark - 1;
    if (!file_read(path, text, bytes, err))
        return false;
    if (*bytes >= n && memcmp(*text, mark, n) == 0) {
        *bytes -= n;
        memmove(*text, *text + n, *bytes + 1);
    }
    return true;
}

bool file_replace_begin(struct file_replace *f, const char *path, struct zf_error *err)
{
    int n = snprintf(f->path, sizeof f->path, "%s", path);
    int t = snprintf(f->temporary, sizeof f->temporary, "%s.%ld.tmp", path, (long)getpid());
    if (n >= (int)sizeof f->path || t >= (int)sizeof f->temporary)
        return zf_fail(err, "%.100s...: the path is too long", path);
    f->stream = fopen(f->temporary, "wb");
    if (!f->stream)
        return zf_fail(err, "%s: cannot be written: %s", path, strerror(errno));
    return true;
}

bool file_replace_end(struct file_replace *f, bool keep, struct zf_error *err)
{
    errno = 0;
    bool ok =
        !ferror(f->stream) && fflush(f->stream) == 0 && (!keep || fsync(fileno(f->stream)) == 0);
    ok = fclose(f->stream) == 0 && ok;
    if (keep && ok && rename(f->temporary, f->path) == 0)
        return true;
    int reason = errno;
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

bool file_is_empty(const char *directory)
{
    struct dirent *entry = NULL;
    DIR *d = opendir(directory);
    while (d && (entry = readdir(d)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            break;
    if (d)
        closedir(d);
    return !entry;
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
        if (fault && !file_is_directory(part))
            return zf_fail(err, "%s: the directory cannot be made: %s", part,
                           fault == EEXIST ? "a file stands in its place" : strerror(fault));
        *p = end;
        if (!end)
            return true;
    }
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
