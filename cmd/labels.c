#include "cmd/labels.h"

#include "data/alloc.h"
#include "data/json.h"
#include "data/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLACE "--ignore_mismatched_sizes gives the model a new score head"

static bool has_score_head(const struct json_file *f)
{
    const char *name = json_string_value(json_array_get(json_find(f, "architectures"), 0));
    static const char ending[] = "ForSequenceClassification";
    size_t n = name ? strlen(name) : 0, m = sizeof ending - 1;
    return n > m && strcmp(name + n - m, ending) == 0;
}

/* Transformers' rule: as many as id2label has, else num_labels, else 2. *key: what says so. */
static int count_labels(const struct json_file *f, const char **key)
{
    size_t n = json_object_size(json_find(f, "id2label"));
    *key = n > 0 ? "id2label" : "num_labels";
    json_int_t labels = n > 0 ? (json_int_t)n : json_integer_value(json_find(f, *key));
    return labels > 0 && labels <= 1 << 16 ? (int)labels : 2;
}

static bool check_count(const struct json_file *f, const struct glue_task *task,
                        struct zf_error *err)
{
    const char *key;
    int labels = count_labels(f, &key);
    return labels == task->n_labels ||
           zf_fail(err, "%s:%d: the model answers with %d labels (%s), but %s has %d: %s", f->path,
                   json_line(f, key), labels, key, task->name, task->n_labels, REPLACE);
}

/* As config.json names label i, or NULL. */
static const char *name_of(const struct json_file *f, int i)
{
    char id[16];
    snprintf(id, sizeof id, "%d", i);
    return json_string_value(json_object_get(json_find(f, "id2label"), id));
}

/* The task's number of a label, or -1. */
static int number_of(const struct glue_task *task, const char *label)
{
    for (int i = 0; i < task->n_labels; i++)
        if (strcasecmp(task->labels[i], label) == 0 || strcasecmp(task->names[i], label) == 0)
            return i;
    return -1;
}

static bool check_names(const struct json_file *f, const struct glue_task *task,
                        struct zf_error *err)
{
    int line = json_line(f, "id2label");
    for (int i = 0; i < task->n_labels; i++) {
        const char *label = name_of(f, i);
        int number = label ? number_of(task, label) : i;
        if (number >= 0 && number != i)
            return zf_fail(err,
                           "%s:%d: id2label has \"%s\" as label %d, but %s has it as label %d: %s",
                           f->path, line, label, i, task->name, number, REPLACE);
        if (number >= 0 || strncmp(label, "LABEL_", 6) == 0)
            continue;
        if (!task->directory)
            return zf_fail(err, "%s:%d: id2label has \"%s\", which is no label of %s: %s", f->path,
                           line, label, task->name, REPLACE);
        log_warn("%s:%d: id2label has \"%s\" as label %d, which is taken for \"%s\" of task %s",
                 f->path, line, label, i, task->names[i], task->name);
        return true;
    }
    return true;
}

bool labels_read(struct own_labels *labels, const char *directory, struct zf_error *err)
{
    struct json_file f;
    char *path = zf_format("%s/config.json", directory);
    bool ok = json_load(&f, path, err);
    const char *key;
    *labels = (struct own_labels){0};
    if (ok && has_score_head(&f)) {
        labels->n = count_labels(&f, &key);
        labels->names = zf_malloc((size_t)labels->n * sizeof *labels->names);
        for (int i = 0; i < labels->n; i++) {
            const char *name = name_of(&f, i);
            labels->names[i] = name ? zf_strdup(name) : zf_format("LABEL_%d", i);
        }
    }
    if (ok)
        json_free(&f);
    free(path);
    return ok;
}

bool labels_check(const char *directory, const struct glue_task *task, bool replace, bool *fits,
                  struct zf_error *err)
{
    struct json_file f;
    struct zf_error why;
    char *path = zf_format("%s/config.json", directory);
    bool ok = json_load(&f, path, err);
    *fits = true;
    if (ok && task->n_labels > 0 && has_score_head(&f))
        *fits = check_count(&f, task, &why) && (task->n_labels == 1 || check_names(&f, task, &why));
    if (ok)
        json_free(&f);
    free(path);
    if (!*fits && replace)
        log_info("%s: its score head is for other labels than the task's", directory);
    return ok && (*fits || replace || zf_fail(err, "%s", why.text));
}
