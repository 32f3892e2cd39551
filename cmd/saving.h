/* A checkpoint on its way to the disk, and older ones on theirs from it, beside training.
 *
 * Training stands still while its files are written, which copies them into the system's memory, as
 * far as there is room: what is written there belongs to nobody's plan, and the system takes it
 * back. Where there is no room, the system lets who writes wait for the disk, and training with it.
 *
 * From then on a thread of each rank flushes the rank's files and reads their checksums. When all
 * ranks' have, rank 0's writes the manifest and gives the folder its name. In between the ranks
 * have to hear of each other, which their main threads see to, between steps: collectives are
 * theirs alone. */
#ifndef ZF_CMD_SAVING_H
#define ZF_CMD_SAVING_H

#include "cmd/run.h"
#include "data/file.h"

struct saving;

/* Begins with the files of checkpoint-<step>, which lie under its temporary name, this rank's among
 * them in the batch. The run is borrowed. */
struct saving *saving_begin(const struct run *run, int step, struct file_batch files);
/* Begins to remove what checkpoint_remove_oldest removes. */
struct saving *saving_remove_oldest(const struct run *run, int newest, int best_step);
/* How far it has come; wait: until it is over. *done: the checkpoint is there, and on the disk; or
 * the others are gone. A fault on any rank is a fault on all, once, and then there is none.
 * Collective. */
bool saving_go_on(struct saving *s, bool wait, bool *done, struct zf_error *err);
/* Once it is over. */
void saving_free(struct saving *s);

#endif
