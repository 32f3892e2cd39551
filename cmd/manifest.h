/* CHECKPOINT/manifest.json: written last, so that a checkpoint without one is not finished. It has
 * the checksums of all other files, and what the checkpoint is of:
 *
 *   {"format": 1, "program": "0.1.0", "global_step": 6, "ranks": 2,
 *    "identity": {...}, "configuration": {...},
 *    "files": {"config.json": {"bytes": 812, "xxh3_128": "..."}, ...}, "xxh3_128": "..."}
 *
 * "identity" must be the same for a run to go on exactly; where "configuration" differs, a run says
 * so. Checksums are data/checksum.h's; the last one is of the manifest without it, compact and with
 * sorted keys. */
#ifndef ZF_CMD_MANIFEST_H
#define ZF_CMD_MANIFEST_H

#include "cmd/run.h"

#include <jansson.h>

/* A file's checksum and size. */
struct manifest_entry {
    struct checksum sum;
    size_t bytes;
};

/* One rank's part of a manifest. */
struct manifest_part {
    struct manifest_entry shard; /* its optimizer file */
    json_t *files;               /* rank 0: entries of all that are no rank's own; else NULL */
};

/* Reads the checksums of this rank's files; for rank 0 they are those that all share, too. Any
 * thread may; the caller frees part->files by json_decref, whatever came of it. */
bool manifest_sum(const struct comm *comm, const char *directory, struct manifest_part *part,
                  struct zf_error *err);
/* The manifest, on rank 0, for json_decref; else NULL. Collective. */
json_t *manifest_make(const struct run *run, const struct manifest_part *part, int step);
/* Makes the checkpoint whole. For one rank, in any thread. */
bool manifest_write(const json_t *manifest, const char *directory, struct zf_error *err);

/* Whether a directory has one, be it whole or not. */
bool manifest_is_there(const char *directory);

/* Fails where the checkpoint is not as it was written, naming the file. Ranks share the files among
 * them: collective. */
bool manifest_check(struct comm *comm, const char *directory, struct zf_error *err);

/* Fails where a checked checkpoint is of another run: another model, other data, another seed or
 * batch size, another step; warns of what else is configured otherwise. */
bool manifest_matches(const struct run *run, const char *directory, int step, struct zf_error *err);

#endif
