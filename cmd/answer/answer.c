#include "cmd/answer/answer.h"

#include "cmd/labels.h"
#include "data/file.h"
#include "data/log.h"

#include <string.h>

#define CLASSIFIED_LENGTH 512 /* tokens, where max_seq_length is not given */
#define GENERATED_LENGTH  4096
#define PROMPT_PIECE      512 /* tokens of a prompt that go through the model at a time */

/* The CUDA device does not generate. */
static bool choose_device(struct answerer *a, const char *name, struct zf_error *err)
{
    const bool may = a->config.head != GPT_HEAD_LM && device_cuda_count() > 0;
    const bool gpu = strcmp(name, "cuda") == 0 || (strcmp(name, "auto") == 0 && may);
    a->device = gpu ? device_cuda(0, err) : device_cpu(0);
    return a->device != NULL;
}

static bool load_weights(struct answerer *a, const char *directory, struct zf_error *err)
{
    bool head_is_new = false;
    return gpt_load_weights(a->model, directory, 0, &head_is_new, err) &&
           (!head_is_new ||
            zf_fail(err,
                    "%s: config.json says that it is a classifier, but the weights have no "
                    "score head: train it first",
                    directory));
}

/* A batch of texts, or a piece of a prompt. Sets a->max_length and a->piece. */
static struct gpt_size size_of(struct answerer *a, const struct answer_options *options)
{
    const bool lm = a->config.head == GPT_HEAD_LM;
    int length = options->max_seq_length ? options->max_seq_length
                 : lm                    ? GENERATED_LENGTH
                                         : CLASSIFIED_LENGTH;
    a->max_length = length < a->config.n_positions ? length : a->config.n_positions;
    a->piece = a->max_length < PROMPT_PIECE ? a->max_length : PROMPT_PIECE;
    return (struct gpt_size){.max_tokens = lm ? a->piece : a->max_length * options->batch_size,
                             .max_seqs = lm ? 1 : options->batch_size,
                             .micro_batches = 1,
                             .mode = GPT_EVALUATE};
}

bool answerer_open(struct answerer *a, const struct answer_options *options, struct zf_error *err)
{
    const char *folder = options->model;
    *a = (struct answerer){0};
    if (!file_is_directory(folder))
        return zf_fail(err, "%s: there is no such folder with a model", folder);
    if (!gpt_config_load(&a->config, folder, err) || !labels_read(&a->labels, folder, err))
        return false;
    a->tokenizer = tokenizer_load(folder, err);
    if (!a->tokenizer || !choose_device(a, options->device, err))
        return false;
    if (tokenizer_vocab_size(a->tokenizer) > a->config.vocab_size)
        return zf_fail(err, "%s: the tokenizer has %d entries, but the model %d (vocab_size)",
                       folder, tokenizer_vocab_size(a->tokenizer), a->config.vocab_size);
    if (!gpt_fits_device(&a->config, a->device, err))
        return false;
    const struct gpt_size size = size_of(a, options);
    a->model = gpt_create(a->device, &a->config, &size);
    return load_weights(a, folder, err);
}

void answerer_close(struct answerer *a)
{
    if (a->model)
        gpt_destroy(a->model);
    tokenizer_free(a->tokenizer);
    own_labels_free(&a->labels);
}
