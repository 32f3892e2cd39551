#include "cmd/manifest.h"

#include "data/alloc.h"
#include "data/checksum.h"
#include "data/file.h"
#include "data/json.h"
#include "data/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FORMAT 1
#define SUM    "xxh3_128"

static const char NAME[] = "manifest.json";

static char *path_in(const char *directory, const char *name)
{
    return zf_format("%s/%s", directory, name);
}

bool manifest_is_there(const char *directory)
{
    char *path = path_in(directory, NAME);
    bool there = file_exists(path);
    free(path);
    return there;
}

/* ---- what a checkpoint is of ---- */

static json_t *sum_json(struct checksum sum)
{
    char text[CHECKSUM_TEXT];
    checksum_text(sum, text);
    return json_string(text);
}

/* What must be the same for a run to go on exactly; the model's own config.json says the rest. */
static json_t *identity_of(const struct run *run)
{
    const struct config *c = run->config;
    json_t *o = json_object();
    json_object_set_new(o, "task_name", c->task ? json_string(c->task->name) : json_null());
    json_object_set_new(o, "seed", json_integer(c->seed));
    json_object_set_new(o, "train_batch_size", json_integer(c->train_batch_size));
    json_object_set_new(o, "train_samples", json_integer(run->train.n_sequences));
    json_object_set_new(o, "train_data",
                        sum_json(run->train_sum)); /* last: others may explain it */
    return o;
}

/* What a run may change on its way, if it is meant to: all that its numbers depend on, but for what
 * the identity has, and what the optimizer's files refuse to be loaded with. The test e2e_kept
 * knows of every key of the configuration which of these it is, or why none. */
static json_t *configuration_of(const struct run *run)
{
    const struct config *c = run->config;
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"learning_rate", c->learning_rate},
        {"weight_decay", c->weight_decay},
        {"adam_beta1", c->adam_beta1},
        {"adam_beta2", c->adam_beta2},
        {"adam_epsilon", c->adam_epsilon},
        {"max_grad_norm", c->max_grad_norm},
        {"warmup_steps", c->warmup_steps},
        {"max_steps", c->total_steps},
        {"embd_pdrop", (double)run->model_config.embd_pdrop},
        {"attn_pdrop", (double)run->model_config.attn_pdrop},
        {"resid_pdrop", (double)run->model_config.resid_pdrop},
    };
    static const char *const others[] = {
        "per_device_train_batch_size", /* the order of sums */
        "gradient_accumulation_steps",
        "optimizer.params.adam_w_mode",
        "lr_scheduler_type",
        "scheduler.type",
        "scheduler.params.warmup_type",
        "scheduler.params.warmup_num_steps",
        "scheduler.params.total_num_steps",
        "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_min_ratio",
        "scheduler.params.cos_min_ratio",
        "zero_optimization.zenflow.select_strategy",
        "zero_optimization.zenflow.select_interval",
        "zero_optimization.zenflow.update_interval",
        "zero_optimization.zenflow.auto_ratio",
        "zero_optimization.zenflow.deferred_lr_scale",
    };
    json_t *o = json_object();
    json_object_set_new(o, "device", json_string(run->device->name));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(o, numbers[i].key, json_real(numbers[i].value));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        json_t *value = config_option_value(c, others[i]);
        json_object_set_new(o, others[i], value ? value : json_null());
    }
    return o;
}

/* ---- writing ---- */

/* Of the manifest, but for this checksum itself. */
static struct checksum own_sum(json_t *root)
{
    json_t *rest = json_copy(root);
    json_object_del(rest, SUM);
    char *text = json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    struct checksum sum = checksum_of(text, strlen(text));
    free(text);
    json_decref(rest);
    return sum;
}

static bool sum_file(const char *directory, const char *name, struct manifest_entry *entry,
                     struct zf_error *err)
{
    char *path = path_in(directory, name);
    bool ok = checksum_file(path, &entry->sum, &entry->bytes, err);
    free(path);
    return ok;
}

static void add_entry(json_t *files, const char *name, const struct manifest_entry *entry)
{
    json_t *o = json_object();
    json_object_set_new(o, "bytes", json_integer((json_int_t)entry->bytes));
    json_object_set_new(o, SUM, sum_json(entry->sum));
    json_object_set_new(files, name, o);
}

/* All that is there, but for the optimizer's files, which their ranks know. */
static bool add_files(json_t *files, const char *directory, struct zf_error *err)
{
    struct file_names names;
    if (!file_list(directory, &names, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < names.n; i++) {
        struct manifest_entry entry;
        if (strncmp(names.list[i], "optimizer-", 10) == 0)
            continue;
        ok = sum_file(directory, names.list[i], &entry, err);
        if (ok)
            add_entry(files, names.list[i], &entry);
    }
    file_names_free(&names);
    return ok;
}

bool manifest_sum(const struct comm *comm, const char *directory, struct manifest_part *part,
                  struct zf_error *err)
{
    char *name = engine_file_name(comm_rank(comm), comm_size(comm));
    *part = (struct manifest_part){.files = comm_rank(comm) == 0 ? json_object() : NULL};
    bool ok = sum_file(directory, name, &part->shard, err) &&
              (!part->files || add_files(part->files, directory, err));
    free(name);
    return ok;
}

json_t *manifest_make(const struct run *run, const struct manifest_part *part, int step)
{
    const int ranks = comm_size(run->comm);
    struct manifest_entry *shards = zf_malloc(sizeof *shards * (size_t)ranks);
    comm_all_gather(run->comm, &part->shard, shards, sizeof *shards);
    if (!part->files) { /* rank 0 has them */
        free(shards);
        return NULL;
    }
    json_t *root = json_object(), *files = json_object();
    for (int r = 0; r < ranks; r++) {
        char *name = engine_file_name(r, ranks);
        add_entry(files, name, &shards[r]);
        free(name);
    }
    free(shards);
    json_object_update(files, part->files);
    json_object_set_new(root, "format", json_integer(FORMAT));
    json_object_set_new(root, "program", json_string(ZF_VERSION));
    json_object_set_new(root, "global_step", json_integer(step));
    json_object_set_new(root, "ranks", json_integer(ranks));
    json_object_set_new(root, "identity", identity_of(run));
    json_object_set_new(root, "configuration", configuration_of(run));
    json_object_set_new(root, "files", files);
    json_object_set_new(root, SUM, sum_json(own_sum(root)));
    return root;
}

bool manifest_write(const json_t *manifest, const char *directory, struct zf_error *err)
{
    char *path = path_in(directory, NAME);
    bool ok = json_write(path, manifest, 17, err);
    free(path);
    return ok;
}

/* ---- checking ---- */

static bool is_sum(json_t *value, struct checksum sum)
{
    char text[CHECKSUM_TEXT];
    checksum_text(sum, text);
    return json_is_string(value) && json_string_length(value) == sizeof text - 1 &&
           strcmp(json_string_value(value), text) == 0;
}

/* Reads it, and finds it as it was written. */
static bool load(struct json_file *f, const char *path, struct zf_error *err)
{
    if (!json_load(f, path, err))
        return false;
    int format = 0;
    bool ok = json_get_int(f, "format", &format, err);
    if (ok && format != FORMAT)
        ok = zf_fail(err, "%s: its format is %d, but this program reads format %d", path, format,
                     FORMAT);
    if (ok && !is_sum(json_find(f, SUM), own_sum(f->root)))
        ok = zf_fail(err, "%s: it is damaged: its checksum is another", path);
    if (!ok)
        json_free(f);
    return ok;
}

static bool check_file(const char *directory, const char *name, json_t *entry, struct zf_error *err)
{
    struct manifest_entry found;
    json_t *bytes = json_object_get(entry, "bytes");
    if (!*name || strchr(name, '/') || name[0] == '.')
        return zf_fail(err, "%s/%s: it names the file \"%.200s\", but files stand beside it",
                       directory, NAME, name);
    if (!sum_file(directory, name, &found, err))
        return false;
    if (!json_is_integer(bytes) || json_integer_value(bytes) != (json_int_t)found.bytes)
        return zf_fail(err, "%s/%s: it is damaged: it has %zu bytes, but %s gives it %lld",
                       directory, name, found.bytes, NAME, (long long)json_integer_value(bytes));
    return is_sum(json_object_get(entry, SUM), found.sum) ||
           zf_fail(err, "%s/%s: it is damaged: its checksum is not that of %s", directory, name,
                   NAME);
}

/* Whether nothing is missing that a checkpoint consists of. */
static bool check_names(const char *path, json_t *files, int ranks, struct zf_error *err)
{
    static const char *const needed[] = {"config.json", "model.safetensors", "trainer_state.json"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!json_object_get(files, needed[i]))
            return zf_fail(err, "%s: \"files\" has no %s", path, needed[i]);
    bool ok = (ranks >= 1 && (size_t)ranks <= json_object_size(files)) ||
              zf_fail(err, "%s: \"ranks\" is %d, but \"files\" has %zu", path, ranks,
                      json_object_size(files));
    for (int r = 0; ok && r < ranks; r++) {
        char *name = engine_file_name(r, ranks);
        ok = json_object_get(files, name) || zf_fail(err, "%s: \"files\" has no %s", path, name);
        free(name);
    }
    return ok;
}

/* This rank's share of the files. */
static bool check_files(const struct comm *comm, const char *directory, json_t *files,
                        struct zf_error *err)
{
    const char *name;
    json_t *entry;
    int i = 0;
    bool ok = true;
    json_object_foreach(files, name, entry)
    {
        if (ok && i++ % comm_size(comm) == comm_rank(comm))
            ok = check_file(directory, name, entry, err);
    }
    return ok;
}

bool manifest_check(struct comm *comm, const char *directory, struct zf_error *err)
{
    struct json_file f;
    int ranks = 0;
    char *path = path_in(directory, NAME);
    bool ok = file_exists(path) ||
              zf_fail(err, "%s: there is no %s, with which a checkpoint of this program ends",
                      directory, NAME);
    ok = ok && load(&f, path, err);
    if (ok) {
        json_t *files = json_find(&f, "files");
        ok = json_get_int(&f, "ranks", &ranks, err) && check_names(path, files, ranks, err) &&
             check_files(comm, directory, files, err);
        json_free(&f);
    }
    free(path);
    return comm_all_ok(comm, ok, err);
}

/* ---- another run's ---- */

static char *plainly(json_t *value)
{
    if (json_is_real(value))
        return zf_format("%.6g", json_real_value(value));
    char *text = json_is_string(value)
                     ? zf_strdup(json_string_value(value))
                     : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    return text ? text : zf_strdup("absent");
}

static bool same_identity(const struct run *run, const struct json_file *f, struct zf_error *err)
{
    json_t *ours = identity_of(run), *theirs = json_find(f, "identity"), *value;
    const char *key;
    bool ok = true;
    json_object_foreach(ours, key, value)
    {
        json_t *other = json_object_get(theirs, key);
        if (!ok || json_equal(value, other))
            continue;
        char *at = zf_format("identity.%s", key), *a = plainly(other), *b = plainly(value);
        const bool data = strcmp(key, "train_data") == 0;
        ok = zf_fail(err,
                     "%s:%d: this checkpoint was made with %s %.100s, but this run has %s, so it "
                     "could not go on exactly%s",
                     f->path, json_line(f, at), key, a, b,
                     data ? ": the examples or their tokens are others" : "");
        free(at);
        free(a);
        free(b);
    }
    json_decref(ours);
    return ok;
}

static void tell_differences(const struct run *run, const struct json_file *f)
{
    json_t *ours = configuration_of(run), *theirs = json_find(f, "configuration"), *value;
    const char *key;
    json_object_foreach(ours, key, value)
    {
        json_t *other = json_object_get(theirs, key);
        if (!other || json_equal(value, other)) /* an older program's may not have it */
            continue;
        char *a = plainly(other), *b = plainly(value);
        log_warn("%s was %.100s where the checkpoint was made, and is %s from here on", key, a, b);
        free(a);
        free(b);
    }
    json_decref(ours);
}

/* The model is the one that config.json describes, but for what a run may change. */
static bool same_model(const struct run *run, const char *directory, struct zf_error *err)
{
    char *path = path_in(directory, "config.json"), *key;
    struct json_file f;
    bool ok = json_load(&f, path, err);
    if (ok) {
        key = gpt_config_difference(&run->model_config, &f);
        if (key) {
            char *value = plainly(json_find(&f, key));
            ok = zf_fail(err,
                         "%s:%d: this checkpoint is of a model whose %s is %.100s, which this "
                         "run's is not",
                         path, json_line(&f, key), key, value);
            free(value);
        }
        free(key);
        json_free(&f);
    }
    free(path);
    return ok;
}

bool manifest_matches(const struct run *run, const char *directory, int step, struct zf_error *err)
{
    struct json_file f;
    int theirs = -1;
    char *path = path_in(directory, NAME);
    bool ok = load(&f, path, err);
    if (ok) {
        ok = json_get_int(&f, "global_step", &theirs, err) &&
             (theirs == step ||
              zf_fail(err, "%s: it is of step %d, but trainer_state.json of step %d", path, theirs,
                      step)) &&
             same_identity(run, &f, err) && same_model(run, directory, err);
        if (ok)
            tell_differences(run, &f);
        json_free(&f);
    }
    free(path);
    return ok;
}
