/* The model card, OUTPUT_DIR/README.md: what Hugging Face's hub and a person read first. It has the
 * metadata that Transformers' Trainer writes, the results, and how the model was trained; nothing
 * in it depends on the clock. */
#ifndef ZF_CMD_MODEL_CARD_H
#define ZF_CMD_MODEL_CARD_H

#include "cmd/run.h"

#include <jansson.h>

/* history: log_history of trainer_state.json. results: of the model that the run leaves. A
 * README.md that no run has written, or from which its mark was taken, stays as it is. For one
 * rank. */
bool model_card_write(const struct run *run, const json_t *history, const json_t *results,
                      struct zf_error *err);

#endif
