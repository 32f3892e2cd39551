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

/* Writes that of a directory in which all ranks' files are. Collective. */
bool manifest_write(const struct run *run, const char *directory, int step, struct zf_error *err);

/* Whether a directory has one, be it whole or not. */
bool manifest_is_there(const char *directory);

/* Fails where the checkpoint is not as it was written, naming the file. Ranks share the files among
 * them: collective. */
bool manifest_check(struct comm *comm, const char *directory, struct zf_error *err);

/* Fails where a checked checkpoint is of another run: another model, other data, another seed or
 * batch size, another step; warns of what else is configured otherwise. */
bool manifest_matches(const struct run *run, const char *directory, int step, struct zf_error *err);

#endif
