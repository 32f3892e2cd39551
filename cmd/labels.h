/* Whether a trained model's answers are those that a task asks for. */
#ifndef ZF_CMD_LABELS_H
#define ZF_CMD_LABELS_H

#include "data/error.h"
#include "data/own.h"

#include <stdbool.h>

/* Reads the labels of DIR/config.json. *fits is false where its score head is for another number of
 * labels than the task's, or numbers the task's labels otherwise, or, of own examples, has others;
 * without `replace` that is a fault. A GLUE task's labels under other names are warned of. A model
 * without a score head fits every task. */
bool labels_check(const char *directory, const struct glue_task *task, bool replace, bool *fits,
                  struct zf_error *err);

/* The labels that a model answers with, of DIR/config.json; *n: their number, 0 where it has no
 * score head. Of regression, n is 1. own_labels_free releases them. */
bool labels_read(struct own_labels *labels, const char *directory, struct zf_error *err);

#endif
