#include "data/corpus_files.h"

#include "data/alloc.h"
#include "data/file.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void file_list_free(struct file_list *list)
{
    for (int i = 0; i < list->n; i++)
        free(list->paths[i]);
    free(list->paths);
    *list = (struct file_list){0};
}

static void add(struct file_list *list, const char *path)
{
    list->paths = zf_realloc(list->paths, ((size_t)list->n + 1) * sizeof *list->paths);
    list->paths[list->n++] = zf_strdup(path);
}

static bool is_text(const char *name)
{
    static const char *const endings[] = {".txt", ".text", ".md", ".json", ".jsonl", ".ndjson"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (dot && strcasecmp(dot, endings[i]) == 0)
            return true;
    return false;
}

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool add_folder(struct file_list *list, const char *folder, struct zf_error *err)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, is_shown, compare_names);
    if (n < 0)
        return zf_fail(err, "%s: cannot be read: %s", folder, strerror(errno));
    bool ok = true;
    for (int i = 0; i < n; i++) {
        char *path = zf_format("%s/%s", folder, entries[i]->d_name);
        if (ok && file_is_directory(path))
            ok = add_folder(list, path, err);
        else if (is_text(path))
            add(list, path);
        else
            list->n_passed_over++;
        free(path);
        free(entries[i]);
    }
    free(entries);
    return ok;
}

static bool add_path(struct file_list *list, const char *path, struct zf_error *err)
{
    const int before = list->n;
    if (!file_is_directory(path)) {
        add(list, path);
        return true;
    }
    return add_folder(list, path, err) &&
           (list->n > before ||
            zf_fail(err,
                    "%s: no file in this folder is a text: .txt, .text, .md, .json, .jsonl or "
                    ".ndjson",
                    path));
}

/* A pattern's matches come in the order of their names. */
static bool add_pattern(struct file_list *list, const char *pattern, struct zf_error *err)
{
    glob_t found;
    if (glob(pattern, 0, NULL, &found) != 0)
        return zf_fail(err, "%s: there is no such file or folder, and no file of such a pattern",
                       pattern);
    bool ok = true;
    for (size_t i = 0; ok && i < found.gl_pathc; i++)
        ok = add_path(list, found.gl_pathv[i], err);
    globfree(&found);
    return ok;
}

static bool add_any(struct file_list *list, const char *name, struct zf_error *err)
{
    return file_exists(name) || file_is_directory(name) ? add_path(list, name, err)
                                                        : add_pattern(list, name, err);
}

/* Of names between commas. */
static bool add_each(struct file_list *list, const char *names, struct zf_error *err)
{
    bool ok = true;
    char *copy = zf_strdup(names), *rest = copy;
    for (char *name; ok && (name = strsep(&rest, ","));)
        ok = !*name || add_any(list, name, err);
    free(copy);
    return ok;
}

bool corpus_find_files(struct file_list *list, const char *files, struct zf_error *err)
{
    const bool one = !strchr(files, ',') || file_exists(files) || file_is_directory(files);
    *list = (struct file_list){0};
    bool ok = one ? add_any(list, files, err) : add_each(list, files, err);
    if (!ok)
        file_list_free(list);
    return ok;
}
