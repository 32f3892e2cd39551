#include "cmd/checkpoint_folders.h"

#include "cmd/manifest.h"
#include "data/alloc.h"
#include "data/file.h"
#include "data/log.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char PREFIX[] = "checkpoint-";
static const char UNFINISHED[] = "tmp-";    /* before the name of one that is being written */
static const char REPLACED[] = ".replaced"; /* behind that of one while another takes its name */

char *checkpoint_path(const char *output_dir, int step)
{
    return zf_format("%s/%s%d", output_dir, PREFIX, step);
}

char *checkpoint_temporary_path(const char *output_dir, int step)
{
    return zf_format("%s/%s%s%d", output_dir, UNFINISHED, PREFIX, step);
}

/* The step of a folder named checkpoint-<step>, as checkpoint_path writes it, or -1. */
static int checkpoint_step(const char *name)
{
    const char *digits = name + sizeof PREFIX - 1;
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0 || !*digits ||
        digits[strspn(digits, "0123456789")] || (digits[0] == '0' && digits[1]))
        return -1;
    errno = 0;
    long step = strtol(digits, NULL, 10);
    return errno || step > INT_MAX ? -1 : (int)step;
}

/* What there is of steps from `first` to `last`, in ascending order. */
struct steps {
    int *list, n;
};

static int compare_steps(const void *a, const void *b)
{
    const int *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The steps of folders that are called like checkpoints; of those with a manifest if `finished`. */
static bool list_steps(const char *output_dir, bool finished, struct steps *steps,
                       struct zf_error *err)
{
    struct file_names names;
    *steps = (struct steps){0};
    if (!file_exists(output_dir))
        return true;
    if (!file_list(output_dir, &names, err))
        return false;
    steps->list = zf_malloc(sizeof(int) * (size_t)(names.n + 1));
    for (int i = 0; i < names.n; i++) {
        const int step = checkpoint_step(names.list[i]);
        char *path = zf_format("%s/%s", output_dir, names.list[i]);
        if (step >= 0 && (finished ? manifest_is_there(path) : file_is_directory(path)))
            steps->list[steps->n++] = step;
        free(path);
    }
    file_names_free(&names);
    qsort(steps->list, (size_t)steps->n, sizeof *steps->list, compare_steps);
    return true;
}

/* Does this for every name in output_dir, until one fails. */
static bool for_all_names(const char *output_dir,
                          bool (*act)(const char *output_dir, const char *name,
                                      struct zf_error *err),
                          struct zf_error *err)
{
    struct file_names names;
    bool ok = true;
    if (!file_list(output_dir, &names, err))
        return false;
    for (int i = 0; ok && i < names.n; i++)
        ok = act(output_dir, names.list[i], err);
    file_names_free(&names);
    return ok;
}

bool checkpoint_check_name(const char *output_dir, int step, struct zf_error *err)
{
    struct stat info;
    char *path = checkpoint_path(output_dir, step);
    bool ok = lstat(path, &info) != 0 || file_is_directory(path) ||
              zf_fail(err,
                      "%s: it is no folder, but the checkpoint of step %d would have this name: "
                      "move it away, or choose another output_dir",
                      path, step);
    free(path);
    return ok;
}

bool checkpoint_check_names(const char *output_dir, int after, int last, struct zf_error *err)
{
    struct file_names names;
    bool ok = true;
    if (!file_list(output_dir, &names, err))
        return false;
    for (int i = 0; ok && i < names.n; i++) {
        const int step = checkpoint_step(names.list[i]);
        ok = step <= after || step > last || checkpoint_check_name(output_dir, step, err);
    }
    file_names_free(&names);
    return ok;
}

/* ---- which one ---- */

bool checkpoint_is_any(const char *output_dir, bool *any, struct zf_error *err)
{
    struct steps steps;
    if (!list_steps(output_dir, true, &steps, err))
        return false;
    *any = steps.n > 0;
    free(steps.list);
    return true;
}

/* Where a run was killed while two names were exchanged: some file systems do it in two steps. */
static bool put_back(const char *output_dir, const char *name, struct zf_error *err)
{
    const size_t n = strlen(name), end = sizeof REPLACED - 1;
    bool ok = true;
    if (n <= end || strcmp(name + n - end, REPLACED) != 0)
        return true;
    char *original = zf_format("%.*s", (int)(n - end), name);
    char *path = zf_format("%s/%s", output_dir, original);
    char *aside = zf_format("%s/%s", output_dir, name);
    if (checkpoint_step(original) >= 0 && file_exists(path))
        ok = file_remove_directory(aside, err);
    else if (checkpoint_step(original) >= 0)
        ok = rename(aside, path) == 0 ||
             zf_fail(err, "%s: cannot be written: %s", path, strerror(errno));
    free(original);
    free(path);
    free(aside);
    return ok;
}

static bool put_all_back(const char *output_dir, struct zf_error *err)
{
    return !file_exists(output_dir) || for_all_names(output_dir, put_back, err);
}

/* Rank 0's list is everybody's. */
static bool share_steps(struct comm *comm, const char *output_dir, struct steps *steps,
                        struct zf_error *err)
{
    bool ok = true;
    *steps = (struct steps){0};
    if (comm_rank(comm) == 0)
        ok = put_all_back(output_dir, err) && list_steps(output_dir, true, steps, err);
    if (!comm_all_ok(comm, ok, err))
        return false;
    comm_broadcast(comm, &steps->n, sizeof steps->n, 0);
    if (comm_rank(comm) != 0)
        steps->list = zf_malloc(sizeof(int) * (size_t)(steps->n + 1));
    comm_broadcast(comm, steps->list, sizeof(int) * (size_t)steps->n, 0);
    return true;
}

/* Folders that are called like newer checkpoints than the last one. */
static void tell_of_unfinished(const char *output_dir, int last)
{
    struct zf_error ignored;
    struct steps steps;
    if (!list_steps(output_dir, false, &steps, &ignored))
        return;
    for (int i = 0; i < steps.n; i++)
        if (steps.list[i] > last)
            log_warn("%s/checkpoint-%d: it has no manifest, with which a checkpoint ends, and is "
                     "passed over",
                     output_dir, steps.list[i]);
    free(steps.list);
}

bool checkpoint_find_last(struct comm *comm, const char *output_dir, char **found,
                          struct zf_error *err)
{
    struct steps steps;
    struct zf_error why, newest = {0};
    *found = NULL;
    if (!share_steps(comm, output_dir, &steps, err))
        return false;
    if (comm_rank(comm) == 0)
        tell_of_unfinished(output_dir, steps.n > 0 ? steps.list[steps.n - 1] : -1);
    for (int i = steps.n - 1; i >= 0 && !*found; i--) {
        *found = checkpoint_path(output_dir, steps.list[i]);
        if (manifest_check(comm, *found, &why))
            continue;
        log_warn("%s; this checkpoint is passed over", why.text);
        newest = i == steps.n - 1 ? why : newest;
        free(*found);
        *found = NULL;
    }
    const bool broken = steps.n > 0 && !*found;
    free(steps.list);
    return !broken || zf_fail(err, "%s: none of its %d checkpoint(s) is whole: %.800s", output_dir,
                              steps.n, newest.text);
}

char *checkpoint_home(const char *directory)
{
    char *path = realpath(directory, NULL);
    char *slash = path ? strrchr(path, '/') : NULL;
    if (slash)
        slash[slash == path] = 0;
    return path;
}

bool checkpoint_is_in(const char *directory, const char *output_dir)
{
    char *home = checkpoint_home(directory);
    bool same = home && file_is_same(home, output_dir);
    free(home);
    return same;
}

/* ---- which ones go ---- */

/* Under another name first, so that a half of one is never taken for a checkpoint. */
static bool remove_step(const char *output_dir, int step, struct zf_error *err)
{
    char *path = checkpoint_path(output_dir, step);
    char *temporary = checkpoint_temporary_path(output_dir, step);
    bool ok = (!file_exists(temporary) || file_remove_directory(temporary, err)) &&
              (rename(path, temporary) == 0 ||
               zf_fail(err, "%s: cannot be removed: %s", path, strerror(errno))) &&
              file_remove_directory(temporary, err);
    free(path);
    free(temporary);
    return ok;
}

bool checkpoint_remove_after(const char *output_dir, int last, struct zf_error *err)
{
    struct steps steps;
    if (!list_steps(output_dir, false, &steps, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < steps.n; i++)
        ok = steps.list[i] <= last || remove_step(output_dir, steps.list[i], err);
    free(steps.list);
    return ok;
}

/* Of a checkpoint that was being written or removed. */
static bool is_left_over(const char *name)
{
    const size_t n = sizeof UNFINISHED - 1;
    return strncmp(name, UNFINISHED, n) == 0 && checkpoint_step(name + n) >= 0;
}

/* NAME.PID.tmp: a file that was being written. */
static bool is_temporary_file(const char *name)
{
    static const char end[] = ".tmp";
    const size_t n = strlen(name), m = sizeof end - 1;
    size_t digits = 0;
    if (n <= m || strcmp(name + n - m, end) != 0)
        return false;
    while (digits < n - m && strchr("0123456789", name[n - m - 1 - digits]))
        digits++;
    return digits > 0 && digits + 1 < n - m && name[n - m - 1 - digits] == '.';
}

static bool clean_file(const char *output_dir, const char *name, struct zf_error *err)
{
    (void)err;
    char *path = zf_format("%s/%s", output_dir, name);
    if (is_temporary_file(name))
        unlink(path);
    free(path);
    return true;
}

static bool clean_folder(const char *output_dir, const char *name, struct zf_error *err)
{
    char *path = zf_format("%s/%s", output_dir, name);
    bool ok = true;
    if (is_left_over(name))
        ok = file_remove_directory(path, err);
    else if (checkpoint_step(name) >= 0 && file_is_directory(path))
        rmdir(path); /* only if it is empty */
    free(path);
    return ok;
}

bool checkpoint_clean_files(const char *output_dir, struct zf_error *err)
{
    return for_all_names(output_dir, clean_file, err);
}

bool checkpoint_clean(const char *output_dir, struct zf_error *err)
{
    return put_all_back(output_dir, err) && for_all_names(output_dir, clean_folder, err) &&
           checkpoint_clean_files(output_dir, err);
}

bool checkpoint_remove_oldest(const char *output_dir, int limit, int step, int best_step,
                              struct zf_error *err)
{
    struct steps steps;
    const int others = best_step > 0 && limit > 1 ? limit - 1 : limit;
    int count = 0;
    bool ok = true;
    if (limit < 1)
        return true;
    if (!list_steps(output_dir, true, &steps, err))
        return false;
    for (int i = steps.n - 1; ok && i >= 0; i--)
        if (steps.list[i] <= step && steps.list[i] != best_step && ++count > others)
            ok = remove_step(output_dir, steps.list[i], err);
    free(steps.list);
    return ok;
}
