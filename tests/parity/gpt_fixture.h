/* The GPT fixtures that tests/fixtures/make_gpt.py made with PyTorch and Transformers: models, a
 * batch for each, and what they give for it. */
#ifndef ZF_TESTS_PARITY_GPT_FIXTURE_H
#define ZF_TESTS_PARITY_GPT_FIXTURE_H

#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/safetensors.h"
#include "model/gpt.h"

#include <math.h>

#define GPT_FIXTURES ZF_TESTS_DIR "/fixtures/gpt/"

/* The cases of make_gpt.py: the folders that hold what is expected. The caller frees. */
static inline struct file_names fixture_names(void)
{
    struct file_names all;
    struct zf_error err;
    int n = 0;
    assert_works(file_list(GPT_FIXTURES, &all, &err), err);
    for (int i = 0; i < all.n; i++) {
        char *path = zf_format("%s%s/expected.safetensors", GPT_FIXTURES, all.list[i]);
        if (file_exists(path))
            all.list[n++] = all.list[i];
        else
            free(all.list[i]);
        free(path);
    }
    all.n = n;
    assert_true(n > 0);
    return all;
}

struct fixture {
    struct gpt *model;
    struct safetensors *expected;
    struct batch batch; /* all sequences; its arrays are owned */
};

static inline const struct tensor *find(const struct fixture *f, const char *name)
{
    const struct tensor *t = safetensors_find(f->expected, name);
    if (!t)
        fail_msg("expected.safetensors has no %s", name);
    return t;
}

static inline void *copy_tensor(const struct fixture *f, const char *name, size_t *n)
{
    const struct tensor *t = find(f, name);
    size_t bytes = t->n_elements * dtype_size(t->dtype);
    if (n)
        *n = t->n_elements;
    return memcpy(zf_malloc(bytes), t->data, bytes);
}

/* Sequences `chosen` of `all`, as a batch with memory of its own. */
static inline struct batch choose(const struct batch *all, const int *chosen, int count,
                                  enum gpt_head head)
{
    struct batch b = {.n_seqs = count};
    size_t n = (size_t)all->n_tokens;
    b.tokens = zf_malloc(n * sizeof *b.tokens);
    b.position = zf_malloc(n * sizeof *b.position);
    b.token_seq = zf_malloc(n * sizeof *b.token_seq);
    b.seq_start = zf_malloc((size_t)(count + 1) * sizeof *b.seq_start);
    b.targets = all->targets ? zf_malloc(n * sizeof *b.targets) : NULL;
    b.scores = all->scores ? zf_malloc(n * sizeof *b.scores) : NULL;
    b.seq_start[0] = 0;
    for (int i = 0; i < count; i++) {
        int first = all->seq_start[chosen[i]], last = all->seq_start[chosen[i] + 1];
        for (int t = first; t < last; t++, b.n_tokens++) {
            b.tokens[b.n_tokens] = all->tokens[t];
            b.position[b.n_tokens] = t - first;
            b.token_seq[b.n_tokens] = (uint32_t)i;
            if (head == GPT_HEAD_LM) {
                b.targets[b.n_tokens] = all->targets[t];
                b.n_items += all->targets[t] != TARGET_IGNORE;
            }
        }
        b.seq_start[i + 1] = b.n_tokens;
        if (head == GPT_HEAD_CLASSIFY)
            b.targets[i] = all->targets[chosen[i]];
        if (head == GPT_HEAD_REGRESS)
            b.scores[i] = all->scores[chosen[i]];
        b.n_items += head != GPT_HEAD_LM;
    }
    return b;
}

static inline void release(struct batch *b)
{
    free(b->tokens);
    free(b->position);
    free(b->token_seq);
    free(b->seq_start);
    free(b->targets);
    free(b->scores);
}

/* The model and batch of tests/fixtures/gpt/NAME, on a device. */
static inline struct fixture open_fixture(struct device *device, const char *name,
                                          enum gpt_mode mode)
{
    struct fixture f;
    struct zf_error err;
    struct gpt_config config;
    bool head_is_new;
    size_t n_tokens, n_starts;
    char *directory = zf_format("%s%s", GPT_FIXTURES, name);
    char *path = zf_format("%s/expected.safetensors", directory);
    f.expected = safetensors_open(path, &err);
    if (!f.expected)
        fail_msg("%s", err.text);
    assert_works(gpt_config_load(&config, directory, &err), err);
    struct batch all = {.tokens = copy_tensor(&f, "tokens", &n_tokens)};
    all.seq_start = copy_tensor(&f, "seq_start", &n_starts);
    all.n_tokens = (int)n_tokens;
    if (config.head == GPT_HEAD_REGRESS)
        all.scores = copy_tensor(&f, "scores", NULL);
    else
        all.targets = copy_tensor(&f, "targets", NULL);
    int every[16];
    for (int i = 0; i < 16; i++)
        every[i] = i;
    f.batch = choose(&all, every, (int)n_starts - 1, config.head);
    release(&all);
    f.model = gpt_create(
        device, &config,
        &(struct gpt_size){.max_tokens = (int)n_tokens, .max_seqs = (int)n_starts, .mode = mode});
    assert_works(gpt_load_weights(f.model, directory, 0, &head_is_new, &err), err);
    assert_false(head_is_new);
    free(directory);
    free(path);
    return f;
}

static inline void close_fixture(struct fixture *f)
{
    gpt_destroy(f->model);
    safetensors_close(f->expected);
    release(&f->batch);
}

/* The name of the parameter whose gradient, computed in this way, a tensor is; NULL: it is none. */
static inline const char *gradient_name(const struct tensor *t, const char *way)
{
    const size_t n = strlen(way);
    if (strncmp(t->name, way, n) != 0 || t->name[n] != '.')
        return NULL;
    const char *name = t->name + n + 1;
    return strcmp(name, "loss") == 0 || strcmp(name, "logits") == 0 ? NULL : name;
}

/* The parameter of which a tensor of the file is the columns from *first on. */
static inline const struct param *find_fused(struct gpt *model, const char *name, int *first)
{
    const struct heads h = gpt_heads(gpt_get_config(model));
    const int q = h.n_head * h.head_dim, k = h.n_kv_head * h.head_dim;
    const struct {
        const char *piece, *whole;
        int first;
    } fused[] = {{".q_proj.", ".qkv_proj.", 0},
                 {".k_proj.", ".qkv_proj.", q},
                 {".v_proj.", ".qkv_proj.", q + k},
                 {".gate_proj.", ".gate_up_proj.", 0},
                 {".up_proj.", ".gate_up_proj.", gpt_get_config(model)->n_inner}};
    *first = 0;
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) {
        const char *at = strstr(name, fused[i].piece);
        if (!at)
            continue;
        char *whole = zf_format("%.*s%s%s", (int)(at - name), name, fused[i].whole,
                                at + strlen(fused[i].piece));
        const struct param *p = params_find(gpt_params(model), whole);
        *first = fused[i].first;
        free(whole);
        return p;
    }
    return params_find(gpt_params(model), name);
}

/* The gradient of a tensor of the file, which is like t, in host memory, in the file's order. */
static inline float *read_gradient(struct gpt *model, const char *name, const struct tensor *t)
{
    int first;
    const struct param *p = find_fused(model, name, &first);
    if (!p)
        fail_msg("the model has no %s", name);
    struct device *device = gpt_device(model);
    float *straight = zf_malloc(p->n_elements * sizeof *straight);
    float *g = zf_malloc(t->n_elements * sizeof *g);
    const int cols = (int)(t->n_elements / (size_t)p->rows);
    device->copy(device->compute, straight, gpt_grad_data(model) + p->offset,
                 p->n_elements * sizeof *straight);
    device->stream_wait(device->compute);
    for (int i = 0; i < p->rows; i++)
        for (int j = 0; j < cols; j++)
            g[p->transposed ? j * p->rows + i : i * cols + j] = straight[i * p->cols + first + j];
    free(straight);
    return g;
}

/* norm(a - b) / norm(b) */
static inline double relative_difference(const float *a, const struct tensor *b)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < b->n_elements; i++) {
        float y;
        memcpy(&y, (const char *)b->data + i * sizeof y, sizeof y);
        difference += (double)(a[i] - y) * (double)(a[i] - y);
        size += (double)y * (double)y;
    }
    return sqrt(difference / size);
}

#endif
