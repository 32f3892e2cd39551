#include "cmd/saving.h"

#include "cmd/checkpoint_folders.h"
#include "cmd/manifest.h"
#include "data/alloc.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct saving {
    const struct run *run;
    int step, best_step;
    char *directory, *temporary;
    struct file_batch files;
    struct manifest_part part;
    json_t *manifest; /* once all ranks' files are on the disk; rank 0, else NULL */

    bool (*task)(struct saving *s, struct zf_error *err); /* what the thread does, or has done */
    pthread_t thread;
    bool joined;
    atomic_bool finished; /* then these tell what came of it */
    bool ok;
    struct zf_error err;
};

/* ---- what the thread does ---- */

static bool flush(struct saving *s, struct zf_error *err)
{
    return file_batch_sync(&s->files, true, err) &&
           manifest_sum(s->run->comm, s->temporary, &s->part, err);
}

static bool publish(struct saving *s, struct zf_error *err)
{
    struct zf_error ignored;
    if (!s->manifest) /* this is rank 0's */
        return true;
    if (checkpoint_check_name(s->run->config->output_dir, s->step, err) &&
        manifest_write(s->manifest, s->temporary, err))
        return file_publish_directory(s->temporary, s->directory, err) &&
               (!file_exists(s->temporary) || file_remove_directory(s->temporary, err));
    file_remove_directory(s->temporary, &ignored);
    return false;
}

static bool remove_oldest(struct saving *s, struct zf_error *err)
{
    const struct config *c = s->run->config;
    return comm_rank(s->run->comm) != 0 ||
           checkpoint_remove_oldest(c->output_dir, c->save_total_limit, s->step, s->best_step, err);
}

static void finish(struct saving *s)
{
    s->ok = s->task(s, &s->err);
    s->finished = true;
}

static void *work(void *argument)
{
    omp_set_num_threads(1); /* of this thread alone: the others are training's */
    finish(argument);
    return NULL;
}

/* Where there can be no thread, training waits. */
static void begin(struct saving *s, bool (*task)(struct saving *, struct zf_error *))
{
    s->task = task;
    s->finished = false;
    s->joined = pthread_create(&s->thread, NULL, work, s) != 0;
    if (s->joined)
        finish(s);
}

static void join(struct saving *s)
{
    if (!s->joined)
        pthread_join(s->thread, NULL);
    s->joined = true;
}

/* ---- what the main thread does ---- */

struct saving *saving_begin(const struct run *run, int step, struct file_batch files)
{
    struct saving *s = zf_calloc(1, sizeof *s);
    s->run = run;
    s->step = step;
    s->directory = checkpoint_path(run->config->output_dir, step);
    s->temporary = checkpoint_temporary_path(run->config->output_dir, step);
    s->files = files;
    begin(s, flush);
    return s;
}

struct saving *saving_remove_oldest(const struct run *run, int newest, int best_step)
{
    struct saving *s = zf_calloc(1, sizeof *s);
    s->run = run;
    s->step = newest;
    s->best_step = best_step;
    begin(s, remove_oldest);
    return s;
}

/* A task is over on all ranks. */
static bool end_task(struct saving *s, struct zf_error *err)
{
    struct zf_error ignored;
    join(s);
    if (!s->ok)
        *err = s->err;
    if (comm_all_ok(s->run->comm, s->ok, err))
        return true;
    if (s->task == flush && comm_rank(s->run->comm) == 0)
        file_remove_directory(s->temporary, &ignored);
    return false;
}

bool saving_go_on(struct saving *s, bool wait, bool *done, struct zf_error *err)
{
    *done = false;
    while (!*done) {
        if (wait)
            join(s);
        if (comm_max(s->run->comm, !s->finished) > 0)
            return true;
        if (!end_task(s, err))
            return false;
        *done = s->task != flush;
        if (!*done) {
            s->manifest = manifest_make(s->run, &s->part, s->step);
            begin(s, publish);
        }
    }
    return true;
}

void saving_free(struct saving *s)
{
    json_decref(s->part.files);
    json_decref(s->manifest);
    free(s->directory);
    free(s->temporary);
    free(s);
}
