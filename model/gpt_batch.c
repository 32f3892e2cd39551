/* The way of a batch to the device: everything in one copy, on a stream of its own. */
#include "model/gpt_state.h"

#include <assert.h>
#include <string.h>

/* order: the indices of ids[0..n), sorted by id, equal ids by index: a radix sort of eight bits at
 * a time. scratch: (n) */
static void sort_by_id(int *order, int *scratch, const int *ids, int n, int n_ids)
{
    int *from = scratch, *to = order;
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int shift = 0; shift < 32 && (n_ids - 1) >> shift > 0; shift += 8) {
        int start[256] = {0};
        int *swap = from;
        from = to;
        to = swap;
        for (int i = 0; i < n; i++)
            start[(ids[i] >> shift) & 255]++;
        for (int digit = 0, sum = 0; digit < 256; digit++) {
            int count = start[digit];
            start[digit] = sum;
            sum += count;
        }
        for (int i = 0; i < n; i++)
            to[start[(ids[from[i]] >> shift) & 255]++] = from[i];
    }
    if (to != order)
        memcpy(order, to, (size_t)n * sizeof *order);
}

/* Inputs while a batch is put into them. */
struct staged {
    const struct gpt_inputs *inputs;
    size_t used; /* ints */
};

/* Puts n values behind the staged ones, src's if there is one, and returns where they begin. */
static size_t stage(struct staged *s, const void *src, int n)
{
    size_t at = s->used;
    if (src && n > 0)
        memcpy(s->inputs->host + at, src, (size_t)n * sizeof(int));
    s->used += (size_t)n;
    return at;
}

static void stage_last_tokens(struct gpt_batch *to, struct staged *s, const struct batch *b)
{
    size_t position = stage(s, NULL, b->n_seqs);
    size_t token_seq = stage(s, NULL, b->n_seqs);
    for (int i = 0; i < b->n_seqs; i++) {
        int t = b->seq_start[i + 1] - 1;
        s->inputs->host[position + (size_t)i] = b->position[t];
        s->inputs->host[token_seq + (size_t)i] = (int)b->token_seq[t];
    }
    to->last = (struct token_rows){
        .n_tokens = b->n_seqs,
        .n_seqs = b->n_seqs,
        .position = s->inputs->device + position,
        .token_seq = (const uint32_t *)(s->inputs->device + token_seq),
    };
}

static void stage_tokens(struct gpt *m, struct gpt_batch *to, struct staged *s,
                         const struct batch *b)
{
    size_t tokens = stage(s, b->tokens, b->n_tokens);
    size_t position = stage(s, b->position, b->n_tokens);
    size_t token_seq = stage(s, b->token_seq, b->n_tokens);
    size_t seq_start = stage(s, b->seq_start, b->n_seqs + 1);
    size_t order = stage(s, NULL, b->n_tokens);
    sort_by_id(s->inputs->host + order, m->sort_scratch, b->tokens, b->n_tokens,
               m->config.vocab_size);
    to->order = s->inputs->device + order;
    to->rows = (struct token_rows){
        .n_tokens = b->n_tokens,
        .n_seqs = b->n_seqs,
        .tokens = s->inputs->device + tokens,
        .position = s->inputs->device + position,
        .seq_start = s->inputs->device + seq_start,
        .token_seq = (const uint32_t *)(s->inputs->device + token_seq),
    };
}

static void stage_targets(enum gpt_head head, struct gpt_batch *to, struct staged *s,
                          const struct batch *b)
{
    const void *targets =
        head == GPT_HEAD_REGRESS ? (const void *)b->scores : (const void *)b->targets;
    int n = head == GPT_HEAD_LM ? b->n_tokens : b->n_seqs;
    to->targets = targets ? s->inputs->device + stage(s, targets, n) : NULL;
}

size_t gpt_input_ints(const struct gpt *m)
{
    return 5 * (size_t)m->size.max_tokens + 3 * (size_t)m->size.max_seqs + 1;
}

void gpt_upload_batch(struct gpt *m, int i, const struct batch *b)
{
    assert(b->n_tokens <= m->size.max_tokens && b->n_seqs <= m->size.max_seqs);
    struct device *d = m->device;
    struct gpt_micro_batch *micro = &m->micro_batches[i];
    m->turn = (m->turn + 1) % (m->size.micro_batches + 1);
    struct gpt_inputs *inputs = micro->inputs = &m->inputs[m->turn];
    struct staged s = {.inputs = inputs};
    if (inputs->in_use)
        d->event_wait(inputs->done);
    stage_tokens(m, &micro->batch, &s, b);
    stage_last_tokens(&micro->batch, &s, b);
    stage_targets(m->config.head, &micro->batch, &s, b);
    d->copy(m->upload, inputs->device, inputs->host, s.used * sizeof(int));
    d->event_record(inputs->filled, m->upload);
    d->event_order(d->compute, inputs->filled);
}

void gpt_release_batch(struct gpt *m, int i)
{
    struct gpt_inputs *inputs = m->micro_batches[i].inputs;
    m->device->event_record(inputs->done, m->device->compute);
    inputs->in_use = true;
}
