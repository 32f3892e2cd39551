/* A trained model that answers: what zf-run loads, and what it was asked for. */
#ifndef ZF_CMD_ANSWER_ANSWER_H
#define ZF_CMD_ANSWER_ANSWER_H

#include "data/own.h"
#include "data/tokenizer.h"
#include "model/gpt.h"

#include <stdint.h>

/* zf-run's options. Names that Transformers has mean what they mean there. */
struct answer_options {
    const char *model; /* its folder */
    char **texts;      /* (n_texts) of the command line */
    int n_texts;
    const char *file; /* or NULL */
    struct own_columns columns;
    const char *pair;               /* of the one text */
    int max_seq_length, batch_size; /* 0: the default */
    const char *device;             /* "auto", "cpu" or "cuda" */
    int top_k; /* labels told of each text; or tokens that are drawn from. 0: the default */

    /* of language models */
    bool chats;         /* texts are what a user says, in one conversation */
    const char *system; /* its system message, or NULL */
    int max_new_tokens;
    bool do_sample; /* else the most likely token is taken */
    double temperature, top_p;
    int seed;

    uint64_t given; /* which options there were: options.c's */
};

struct answerer {
    struct device *device;
    struct gpt_config config;
    struct tokenizer *tokenizer;
    struct own_labels labels; /* of a classifier */
    struct gpt *model;
    int max_length; /* tokens of a text, or of a prompt with its answer; */
    int piece;      /* and of a prompt, how many go through the model at a time */
};

/* Loads a folder that zf-train or Transformers wrote. */
bool answerer_open(struct answerer *a, const struct answer_options *options, struct zf_error *err);
void answerer_close(struct answerer *a);

/* Classifies what the options name, or standard input line by line: writes a line for each text,
 * its most likely labels with their probabilities, most likely first, with tabs between; of a
 * regression the score. */
bool answer_classify(struct answerer *a, const struct answer_options *options,
                     struct zf_error *err);

/* Goes on with each text, or all of standard input, or answers in a conversation, line by line
 * where there are no texts: writes what the model says as it comes. */
bool answer_generate(struct answerer *a, const struct answer_options *options,
                     struct zf_error *err);

#endif
