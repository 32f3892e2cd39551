/* A real pretrained model, SmolLM2-135M-Instruct, beside Transformers in fp32: the logits behind
 * real sentences, and their losses. ZF_SMOLLM2 names its folder, which
 * ../shared/tools/make_smollm2.py makes; ZF_PRETRAINED one with all logits, where
 * make_pretrained.py has made them. */
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/batch.h"
#include "data/safetensors.h"
#include "model/gpt.h"

#include <math.h>

#define TOLERANCE 1e-4 /* norm(a - b) / norm(b) */
#define MOST_IDS  512

struct sentences {
    struct glue_data data;
    struct dataset set;
};

/* The first sentences of MRPC's pairs. */
static struct sentences read_sentences(const char *folder, int n)
{
    struct sentences s;
    struct zf_error err;
    const struct glue_task *mrpc = glue_find_task("mrpc", &err);
    struct tokenizer *t = tokenizer_load(folder, &err);
    if (!t)
        fail_msg("%s", err.text);
    assert_works(glue_read_split(&s.data, mrpc, ZF_SHARED_DIR "/glue", GLUE_DEV, &err), err);
    assert_true(s.data.n_examples >= n);
    s.data.n_examples = n;
    for (int i = 0; i < n; i++)
        s.data.examples[i].sentence[1] = NULL;
    dataset_from_glue(&s.set, &s.data, t, MOST_IDS);
    tokenizer_free(t);
    return s;
}

static void free_sentences(struct sentences *s)
{
    dataset_free(&s->set);
    glue_free(&s->data);
}

static const void *values_of(const struct safetensors *file, const char *name, size_t *n)
{
    const struct tensor *t = safetensors_find(file, name);
    if (!t)
        fail_msg("there is no %s", name);
    *n = t->n_elements;
    return t->data;
}

static int32_t hash_of(const int *ids, int n)
{
    uint32_t h = 0x811C9DC5;
    for (int i = 0; i < n; i++)
        h = (h ^ (uint32_t)ids[i]) * 0x01000193;
    return (int32_t)(h & 0x7FFFFFFF);
}

/* A classifier whose labels are the vocabulary: its score head is the embeddings. */
static void score_by_embeddings(struct gpt *model)
{
    const struct param *embeddings = params_find(gpt_params(model), "model.embed_tokens.weight");
    const struct param *score = params_find(gpt_params(model), "score.weight");
    float *values = gpt_param_data(model), *to = values + score->offset;
    const float *from = values + embeddings->offset;
    assert_true(score->rows == embeddings->cols && score->cols == embeddings->rows);
    for (int i = 0; i < score->rows; i++)
        for (int j = 0; j < score->cols; j++)
            to[(size_t)i * (size_t)score->cols + (size_t)j] =
                from[(size_t)j * (size_t)score->rows + (size_t)i];
}

static struct gpt *load_model(const char *folder, enum gpt_head head, int longest)
{
    struct gpt_config config;
    struct zf_error err;
    bool head_is_new;
    assert_works(gpt_config_load(&config, folder, &err), err);
    assert_int_equal(config.head, GPT_HEAD_LM);
    config.head = head;
    config.num_labels = config.vocab_size;
    struct gpt *model =
        gpt_create(device_cpu(0), &config,
                   &(struct gpt_size){.max_tokens = longest, .max_seqs = 1, .mode = GPT_EVALUATE});
    assert_works(gpt_load_weights(model, folder, 0, &head_is_new, &err), err);
    if (head == GPT_HEAD_CLASSIFY)
        score_by_embeddings(model);
    return model;
}

static void one_sentence(struct batch *batch, const struct sentences *s, int i, int n_labels)
{
    batch_fill(batch, &s->set, &i, 1, 0, n_labels);
}

/* Of the chosen outputs: norm(ours - theirs) / norm(theirs) */
static double logits_off(const float *logits, const float *theirs, const int32_t *outputs, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        const double off = (double)logits[outputs[i]] - (double)theirs[i];
        difference += off * off;
        size += (double)theirs[i] * (double)theirs[i];
    }
    return sqrt(difference / size);
}

static double check_logits(const char *folder, const struct safetensors *expected,
                           const struct sentences *s)
{
    size_t n_outputs, n;
    const int32_t *outputs = values_of(expected, "outputs", &n_outputs);
    const float *theirs = values_of(expected, "logits", &n);
    struct gpt *model = load_model(folder, GPT_HEAD_CLASSIFY, s->set.max_length);
    const int vocab = gpt_get_config(model)->vocab_size;
    float *logits = zf_malloc(sizeof *logits * (size_t)vocab);
    struct batch batch;
    double worst = 0;
    assert_int_equal(n, n_outputs * (size_t)s->set.n_sequences);
    batch_init(&batch, s->set.max_length, 1);
    for (int i = 0; i < s->set.n_sequences; i++) {
        one_sentence(&batch, s, i, vocab);
        gpt_evaluate(model, &batch, logits);
        const double off = logits_off(logits, theirs + (size_t)i * n_outputs, outputs, n_outputs);
        if (!(off < TOLERANCE))
            fail_msg("sentence %d: logits differ by %.3g", i, off);
        worst = fmax(worst, off);
    }
    batch_free(&batch);
    free(logits);
    gpt_destroy(model);
    return worst;
}

static double check_losses(const char *folder, const struct safetensors *expected,
                           const struct sentences *s)
{
    size_t n;
    const float *theirs = values_of(expected, "losses", &n);
    struct gpt *model = load_model(folder, GPT_HEAD_LM, s->set.max_length);
    struct batch batch;
    double worst = 0;
    batch_init(&batch, s->set.max_length, 1);
    for (int i = 0; i < s->set.n_sequences; i++) {
        one_sentence(&batch, s, i, 0);
        const double loss = gpt_evaluate(model, &batch, NULL) / batch.n_items;
        const double off = fabs(loss - (double)theirs[i]) / (double)theirs[i];
        if (!(off < TOLERANCE))
            fail_msg("sentence %d: the loss is %.7g, not %.7g", i, loss, (double)theirs[i]);
        worst = fmax(worst, off);
    }
    batch_free(&batch);
    gpt_destroy(model);
    return worst;
}

static void agrees_with_transformers(void **state)
{
    (void)state;
    const char *folder = getenv("ZF_SMOLLM2"), *all = getenv("ZF_PRETRAINED");
    struct zf_error err;
    if (!folder)
        need_shared("smollm2/model.safetensors");
    need_shared("glue/MRPC/dev.tsv");
    folder = folder ? folder : ZF_SHARED_DIR "/smollm2";
    char *path =
        zf_format("%s/logits.safetensors", all ? all : ZF_TESTS_DIR "/fixtures/pretrained");
    struct safetensors *expected = safetensors_open(path, &err);
    if (!expected)
        fail_msg("%s", err.text);
    size_t n, n_outputs;
    const int32_t *hashes = values_of(expected, "hashes", &n);
    values_of(expected, "outputs", &n_outputs);
    struct sentences s = read_sentences(folder, (int)n);
    for (int i = 0; i < (int)n; i++) {
        const size_t first = s.set.start[i];
        assert_int_equal(hash_of(s.set.tokens + first, (int)(s.set.start[i + 1] - first)),
                         hashes[i]);
    }
    const double d_logits = check_logits(folder, expected, &s);
    const double d_losses = check_losses(folder, expected, &s);
    print_message("%zu sentences: logits at %zu outputs differ by at most %.1e, losses by %.1e\n",
                  n, n_outputs, d_logits, d_losses);
    free_sentences(&s);
    safetensors_close(expected);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_with_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
