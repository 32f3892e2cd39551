#include "cmd/checkpoint.h"

#include "cmd/checkpoint_folders.h"
#include "cmd/manifest.h"
#include "data/alloc.h"
#include "data/file.h"
#include "data/log.h"

#include <stdlib.h>

/* Somebody may have moved or removed it meanwhile. */
static bool make_sure_of(const char *directory, struct zf_error *err)
{
    if (file_is_directory(directory))
        return true;
    log_warn("%s is no longer there: it is made anew, without what it held", directory);
    return file_make_directory(directory, err);
}

bool checkpoint_export(struct run *run, const char *directory, struct zf_error *err)
{
    const int pad = run->model_config.pad_token_id;
    bool ok = true;
    if (comm_rank(run->comm) == 0)
        ok = make_sure_of(directory, err) &&
             gpt_save(run->model, directory, run->task->n_labels > 1 ? run->task->names : NULL,
                      err) &&
             tokenizer_save(run->tokenizer, directory,
                            tokenizer_is_special(run->tokenizer, pad) ? pad : -1, err);
    else
        gpt_pass_by(run->model);
    return comm_all_ok(run->comm, ok, err);
}

/* All files but the manifest. */
static bool write_all(struct run *run, const struct train_state *state, const char *directory,
                      struct zf_error *err)
{
    bool ok = true;
    if (comm_rank(run->comm) == 0)
        ok = (!file_exists(directory) || file_remove_directory(directory, err)) &&
             file_make_directory(directory, err) &&
             trainer_state_write(run, state, directory, true, err);
    return comm_all_ok(run->comm, ok, err) && checkpoint_export(run, directory, err) &&
           engine_save(run->engine, directory, err);
}

struct saving *checkpoint_save(struct run *run, const struct train_state *state,
                               struct zf_error *err)
{
    struct zf_error ignored;
    struct file_batch files;
    char *temporary = checkpoint_temporary_path(run->config->output_dir, state->step);
    file_batch_begin(&files);
    const bool ok = write_all(run, state, temporary, err);
    file_batch_end();
    if (!ok) {
        file_batch_sync(&files, false, &ignored);
        if (comm_rank(run->comm) == 0 && file_exists(temporary))
            file_remove_directory(temporary, &ignored);
    }
    free(temporary);
    return ok ? saving_begin(run, state->step, files) : NULL;
}

bool checkpoint_check(struct run *run, const char *directory, struct zf_error *err)
{
    bool ok = file_is_directory(directory) ||
              zf_fail(err, "resume_from_checkpoint: %s is not a folder", directory);
    return comm_all_ok(run->comm, ok, err) && manifest_check(run->comm, directory, err);
}

bool checkpoint_load(struct run *run, const char *directory, struct train_state *state,
                     struct zf_error *err)
{
    bool head_is_new;
    engine_settle(run->engine); /* parameters that are on their way come before the loaded ones */
    bool ok = trainer_state_read(run, state, directory, err) &&
              manifest_matches(run, directory, state->step, err) &&
              gpt_load_weights(run->model, directory, 0, &head_is_new, err);
    return comm_all_ok(run->comm, ok, err) && engine_load(run->engine, directory, err) &&
           (engine_steps(run->engine) + state->skipped_steps == state->step ||
            zf_fail(err, "%s/trainer_state.json: global_step is %d, but the optimizer has done %d",
                    directory, state->step, engine_steps(run->engine) + state->skipped_steps));
}
