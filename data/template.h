/* The tokens that Transformers puts around one text, or around and between two: such as bos in
 * front, where the tokenizer has them ("TemplateProcessing" of tokenizer.json). */
#ifndef ZF_DATA_TEMPLATE_H
#define ZF_DATA_TEMPLATE_H

#include <stddef.h>

#define TEMPLATE_MAX_IDS 16

/* ids[0..before) come in front of the first text, ids[before..between) in front of the second,
 * ids[between..n) at the end. With one text, before == between. */
struct token_template {
    int ids[TEMPLATE_MAX_IDS];
    int before, between, n;
};

#endif
