/* What a language model learns from: files of text, or of conversations and instructions with their
 * answers.
 *
 * `files` names them: one file; a folder, with all .txt, .text, .md, .json, .jsonl and .ndjson
 * files in it and below, in the order of their names; a pattern of glob(7); or several of these
 * with commas between.
 *
 * A file that is no table (table.h) is one text. A row of a table is
 *   a text         "text"
 *   a conversation "messages", a list of {"role", "content"}
 *   an instruction "prompt" and "completion", both texts, which are joined as they are, or both
 *                  lists of messages; or "instruction", "output" and perhaps "input"
 * and all rows are either texts or have answers.
 *
 * Texts are put one behind the other, each with its tokenizer's template and, if there are several,
 * with the end-of-text token behind it, and cut to sequences of max_length. What has answers is a
 * sequence of its own, cut at its end, in which the answers alone, with the token that ends them,
 * are learned: of a conversation all that the assistant says, of prompt and completion the
 * completion. It is written in the form of the model's chat template (chat.h); prompt and
 * completion as they are, with the end-of-text token; and an instruction, where the model has no
 * chat template, in Alpaca's form. */
#ifndef ZF_DATA_CORPUS_H
#define ZF_DATA_CORPUS_H

#include "data/batch.h"

/* What has become of the files. */
struct corpus_report {
    int n_files, n_rows; /* a text file counts as one */
    int n_passed_over;   /* files of folders that have other names */
    bool has_answers;
    const char *form; /* of answers: "ChatML", ... or "plain" */
    int n_cut;        /* rows with answers that were too long, */
    int n_dropped;    /* and of these, how many have no answer left and are no sequence */
    long n_learned;   /* tokens of answers */
};

/* name: of the tokenizer's folder, for messages. Rows with answers come in the order that seed
 * shuffles them in, texts in their own. Fails on a file that cannot be read, a row that is none of
 * these, and where there are fewer than two tokens to learn from. */
bool dataset_from_corpus(struct dataset *d, const char *files, const struct tokenizer *t,
                         const char *name, int max_length, uint64_t seed,
                         struct corpus_report *report, struct zf_error *err);

#endif
