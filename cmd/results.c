#include "cmd/results.h"

#include "cmd/progress.h"
#include "cmd/stop.h"
#include "data/alloc.h"
#include "data/file.h"
#include "data/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIGITS 9 /* of a float */

/* What results say of training, or of evaluation; the epoch belongs to both. */
static json_t *part_of(const json_t *results, bool evaluation)
{
    json_t *part = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)results, key, value)
    {
        const bool is_eval = strncmp(key, "eval_", 5) == 0;
        if (is_eval == evaluation || strcmp(key, "epoch") == 0)
            json_object_set(part, key, value);
    }
    return part;
}

/* The file of a part; where there is nothing to say, none is left of another run. */
static bool write_part(const json_t *results, bool evaluation, const char *path,
                       struct zf_error *err)
{
    json_t *part = part_of(results, evaluation);
    bool ok = true;
    if (json_object_size(part) > (json_object_get(part, "epoch") != NULL))
        ok = json_write(path, part, DIGITS, err);
    else if (unlink(path) != 0 && errno != ENOENT)
        ok = zf_fail(err, "%s: another run's results cannot be removed: %s", path, strerror(errno));
    json_decref(part);
    return ok;
}

/* Evaluation alone leaves in all_results.json what it does not replace, as run_glue.py does. */
static bool add_earlier(json_t *all, const char *path, struct zf_error *err)
{
    struct json_file f;
    if (!file_exists(path))
        return true;
    if (!json_load(&f, path, err))
        return false;
    json_object_update(all, f.root);
    json_free(&f);
    return true;
}

static bool write_files(const struct run *run, const json_t *results, struct zf_error *err)
{
    const struct config *c = run->config;
    char *all_path = zf_format("%s/all_results.json", c->output_dir);
    char *train_path = zf_format("%s/train_results.json", c->output_dir);
    char *eval_path = zf_format("%s/eval_results.json", c->output_dir);
    json_t *all = json_object();
    bool ok = (c->do_train || add_earlier(all, all_path, err)) &&
              json_object_update(all, (json_t *)results) == 0 &&
              json_write(all_path, all, DIGITS, err) &&
              (!c->do_train || write_part(results, false, train_path, err)) &&
              write_part(results, true, eval_path, err);
    json_decref(all);
    free(all_path);
    free(train_path);
    free(eval_path);
    return ok;
}

bool results_write(const struct run *run, const json_t *results, struct zf_error *err)
{
    if (json_object_size(results) == 0) /* predictions alone */
        return true;
    stop_hold();
    bool ok = !run->config->output_dir || write_files(run, results, err);
    progress_results_table(run->task->title, results);
    return ok;
}
