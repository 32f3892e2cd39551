/* Whether all ranks were started on the same: another program, rate or data on one of them would
 * mix into the result, or make the others wait for ever. Each check gathers digests, once; where
 * two differ, the sentence names what, both ranks and what each of them has. With one rank nothing
 * is compared. */
#ifndef ZF_CMD_AGREE_H
#define ZF_CMD_AGREE_H

#include "cmd/run.h"
#include "data/checksum.h"

/* One thing that is to be the same. */
struct agree_item {
    char name[64];   /* "learning_rate", "training data" */
    char value[200]; /* what this rank has, for people */
    struct checksum sum;
};

/* n is the same on all ranks. Collective, as are those below. */
bool agree(struct comm *comm, const struct agree_item *items, int n, struct zf_error *err);

/* The program itself, the action, and every key of the configuration, but for the names of files
 * and folders that are only read: what they hold is compared instead, and they may lie elsewhere on
 * another machine. */
bool agree_on_start(struct comm *comm, const struct config *c, struct zf_error *err);
/* The data, as tokens, and the model's shape. */
bool agree_on_input(const struct run *run, struct zf_error *err);
/* What has been told to run->weights since its last call. */
bool agree_on_weights(struct run *run, const char *from, struct zf_error *err);
/* More weights, in fp32, as they are loaded or drawn; in the same pieces on all ranks. */
void agree_take_weights(struct run *run, const float *values, size_t n);

#endif
