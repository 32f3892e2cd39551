#include "cmd/labels.h"

#include "data/alloc.h"
#include "data/json.h"
#include "data/log.h"

#include <stdlib.h>
#include <string.h>

#define REPLACE "--ignore_mismatched_sizes gives the model a new score head"

static bool has_score_head(const struct json_file *f)
{
    const char *name = json_string_value(json_array_get(json_find(f, "architectures"), 0));
    return name && strcmp(name, "GPT2ForSequenceClassification") == 0;
}

/* Transformers' rule: as many as id2label has, else num_labels, else 2. */
static bool check_count(const struct json_file *f, const struct glue_task *task,
                        struct zf_error *err)
{
    size_t n = json_object_size(json_find(f, "id2label"));
    const char *key = n > 0 ? "id2label" : "num_labels";
    json_int_t labels = n > 0 ? (json_int_t)n : json_integer_value(json_find(f, key));
    labels = labels > 0 ? labels : 2;
    return labels == task->n_labels ||
           zf_fail(err, "%s:%d: the model answers with %lld labels (%s), but task %s has %d: %s",
                   f->path, json_line(f, key), (long long)labels, key, task->name, task->n_labels,
                   REPLACE);
}

/* The task's number of a label, or -1. */
static int number_of(const struct glue_task *task, const char *label)
{
    for (int i = 0; i < task->n_labels; i++)
        if (strcasecmp(task->labels[i], label) == 0)
            return i;
    return -1;
}

static bool check_names(const struct json_file *f, const struct glue_task *task,
                        struct zf_error *err)
{
    int line = json_line(f, "id2label");
    for (int i = 0; i < task->n_labels; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        const char *label = json_string_value(json_object_get(json_find(f, "id2label"), id));
        int number = label ? number_of(task, label) : i;
        if (number >= 0 && number != i)
            return zf_fail(err,
                           "%s:%d: id2label has \"%s\" as label %d, but task %s has it as label "
                           "%d: %s",
                           f->path, line, label, i, task->name, number, REPLACE);
        if (number < 0 && strncmp(label, "LABEL_", 6) != 0) {
            log_warn("%s:%d: id2label has \"%s\" as label %d, which is taken for \"%s\" of task %s",
                     f->path, line, label, i, task->labels[i], task->name);
            return true;
        }
    }
    return true;
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
