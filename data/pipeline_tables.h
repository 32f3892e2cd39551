/* The two big tables of a BPE, its vocabulary and its merges, as files have them. All fail with a
 * sentence that names file and line; merges are read once the vocabulary is indexed. */
#ifndef ZF_DATA_PIPELINE_TABLES_H
#define ZF_DATA_PIPELINE_TABLES_H

#include "data/bpe.h"
#include "data/json_scan.h"

#include <stdbool.h>

/* {"token": id, ...} and ["left right", ...] or [["left", "right"], ...], in tokenizer.json. */
bool tables_scan_vocab(struct bpe *b, struct json_scan *s, struct zf_error *err);
bool tables_scan_merges(struct bpe *b, struct json_scan *s, struct zf_error *err);

/* vocab.json; and merges.txt: a version line, then a merge a line, the first to be applied
 * first. */
bool tables_read_vocab(struct bpe *b, const char *path, struct zf_error *err);
bool tables_read_merges(struct bpe *b, const char *path, struct zf_error *err);

#endif
