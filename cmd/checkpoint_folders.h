/* OUTPUT_DIR/checkpoint-<step>: which ones there are, which is the newest whole one, which go.
 * Those being written are called tmp-checkpoint-<step>. */
#ifndef ZF_CMD_CHECKPOINT_FOLDERS_H
#define ZF_CMD_CHECKPOINT_FOLDERS_H

#include "data/error.h"
#include "offload/comm/comm.h"

/* The folder of a step's checkpoint, and that in which it is written, as a new string. */
char *checkpoint_path(const char *output_dir, int step);
char *checkpoint_temporary_path(const char *output_dir, int step);

/* Fails where what is no folder has the name of a checkpoint: of this step, or of any step behind
 * `after` up to `last`. It is somebody's own, and stays. */
bool checkpoint_check_name(const char *output_dir, int step, struct zf_error *err);
bool checkpoint_check_names(const char *output_dir, int after, int last, struct zf_error *err);

/* Whether output_dir holds any finished checkpoint, damaged or not. */
bool checkpoint_is_any(const char *output_dir, bool *any, struct zf_error *err);

/* The newest checkpoint in output_dir that is as it was written, as a new string; NULL: there is
 * none. Broken ones are passed over, and named in a warning; fails where all are broken. What is no
 * finished checkpoint, such as an empty folder or a file of such a name, does not count.
 * Collective. */
bool checkpoint_find_last(struct comm *comm, const char *output_dir, char **found,
                          struct zf_error *err);

/* The folder that a checkpoint lies in, as a new string (NULL: there is no such checkpoint); and
 * whether it is output_dir, whatever either is called. */
char *checkpoint_home(const char *directory);
bool checkpoint_is_in(const char *directory, const char *output_dir);

/* Removes the checkpoints of later steps than `last` (-1: all) from output_dir. For one rank. */
bool checkpoint_remove_after(const char *output_dir, int last, struct zf_error *err);
/* Removes what dead runs have left unfinished: folders for checkpoints that are empty or were being
 * written or removed, and temporary files. For one rank. */
bool checkpoint_clean(const char *output_dir, struct zf_error *err);
/* The temporary files alone. */
bool checkpoint_clean_files(const char *output_dir, struct zf_error *err);
/* Keeps `limit` of the finished checkpoints up to this step (below 1: all), the newest and the best
 * (best_step 0: none) among them. Others neither count nor go. For one rank. */
bool checkpoint_remove_oldest(const char *output_dir, int limit, int step, int best_step,
                              struct zf_error *err);

#endif
