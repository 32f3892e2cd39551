/* Conversations as the text that a chat model was trained on: what Transformers'
 * apply_chat_template makes of messages, for four families of templates, and which of it are
 * answers.
 *
 *   ChatML     Qwen 2 and 2.5, SmolLM2: "<|im_start|>user\nHi<|im_end|>\n...", with the template's
 *              own system message where a conversation has none
 *   Llama 3    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>..."; from 3.1 on with
 *              dates in the system message, which are those that stand in the template
 *   Mistral    "[INST] Hi [/INST] ...</s>", with its versions' ways of writing spaces
 *
 * Which one it is, with what details, is read from the template's text, chat_template.jinja or
 * tokenizer_config.json's chat_template. One of another family, or with reasoning (Qwen 3), is
 * refused; of one with tools, what it writes without any is written. */
#ifndef ZF_DATA_CHAT_H
#define ZF_DATA_CHAT_H

#include "data/tokenizer.h"

enum chat_family { CHAT_NONE, CHAT_CHATML, CHAT_LLAMA3, CHAT_MISTRAL };

struct chat_template {
    enum chat_family family; /* CHAT_NONE: the model has no template */
    bool trims;              /* white space around what is said is left out */
    char *bos, *eos;         /* texts of these tokens, or "" */
    char *system;            /* ChatML: where there is none, or NULL */
    char *dates;             /* Llama 3.1: in front of the system message, or NULL */
    /* Mistral: around what the user says, before and behind an answer; whether the system message
     * stands in the last user's turn and not in the first, and may be there at all. */
    char *before_user, *after_user;
    const char *before_answer, *after_answer;
    bool system_last, takes_system;
};

/* Fails where the tokenizer's folder, which is `where` in messages, has a template of no such
 * family. */
bool chat_template_read(struct chat_template *c, const struct tokenizer *t, const char *where,
                        struct zf_error *err);
void chat_template_free(struct chat_template *c);
/* "ChatML", "Llama 3" or "Mistral". */
const char *chat_family_name(enum chat_family family);

struct chat_turn {
    const char *role; /* "system", "user" or "assistant" */
    const char *content;
    bool learned; /* an answer that is to be learned */
};

/* Bytes of a text: an answer, with the token that ends it. */
struct chat_span {
    size_t begin, end;
};

struct chat_text {
    char *text;
    size_t n, capacity;
    struct chat_span *answers; /* those that are to be learned, in order */
    int n_answers;
};

/* Appends to a text that is empty at first ({0}). to_answer: the last turn is the user's, and an
 * assistant's begins ("add_generation_prompt"). Fails on another role, or an order that the
 * template does not have. */
bool chat_render(struct chat_text *out, const struct chat_template *c,
                 const struct chat_turn *turns, int n, bool to_answer, struct zf_error *err);
void chat_append(struct chat_text *out, const char *text);
/* What has been appended since out->n was `begin` is an answer that is to be learned. */
void chat_mark_answer(struct chat_text *out, size_t begin);
void chat_text_free(struct chat_text *text);

#endif
