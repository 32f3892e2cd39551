/* Language models: complete a text, or talk. A sequence's tokens go through the model once; what it
 * has of them is kept from one turn of a conversation to the next. */
#include "cmd/answer/answer.h"

#include "data/alloc.h"
#include "data/chat.h"
#include "data/file.h"
#include "data/json.h"
#include "data/log.h"
#include "data/rng.h"
#include "data/text.h"
#include "data/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sets the draws apart from others of the same seed. */
#define SAMPLE_STREAM 0x53414d50u
#define MAX_STOPS     16

struct candidate {
    float p;
    int id;
};

struct generator {
    struct answerer *a;
    const struct answer_options *options;
    struct gpt_cache *cache;
    int *ids;      /* (max_length) the sequence, of which the cache holds the first ones */
    int n;         /* how many */
    float *logits; /* (vocab_size) */
    struct candidate *candidates; /* (vocab_size) */
    int stops[MAX_STOPS], n_stops;
    uint32_t drawn; /* tokens so far */
};

/* Tokens that end an answer. */

static void add_stop(struct generator *g, json_int_t id)
{
    if (id >= 0 && id < g->a->config.vocab_size && g->n_stops < MAX_STOPS)
        g->stops[g->n_stops++] = (int)id;
}

/* What a file says of eos_token_id: an id or a list. False where it says nothing. */
static bool read_stops(struct generator *g, const char *name)
{
    struct json_file f;
    struct zf_error ignored;
    size_t i;
    json_t *id;
    char *path = zf_format("%s/%s", g->options->model, name);
    const int before = g->n_stops;
    if (file_exists(path) && json_load(&f, path, &ignored)) {
        json_t *value = json_find(&f, "eos_token_id");
        if (json_is_integer(value))
            add_stop(g, json_integer_value(value));
        json_array_foreach(value, i, id) if (json_is_integer(id))
            add_stop(g, json_integer_value(id));
        json_free(&f);
    }
    free(path);
    return g->n_stops > before;
}

/* A text that is one token. */
static void add_stop_text(struct generator *g, const char *text)
{
    int id;
    if (*text && tokenizer_encode(g->a->tokenizer, text, strlen(text), &id, 1) == 1)
        add_stop(g, id);
}

static bool is_stop(const struct generator *g, int id)
{
    for (int i = 0; i < g->n_stops; i++)
        if (g->stops[i] == id)
            return true;
    return false;
}

static bool generator_open(struct generator *g, struct answerer *a,
                           const struct answer_options *options, struct zf_error *err)
{
    const size_t vocab = (size_t)a->config.vocab_size;
    *g = (struct generator){.a = a, .options = options};
    g->cache = gpt_cache_create(a->model, a->max_length);
    if (!g->cache)
        return zf_fail(err, "the %s device does not generate: --device cpu does", a->device->name);
    g->ids = zf_malloc((size_t)a->max_length * sizeof *g->ids);
    g->logits = zf_malloc(vocab * sizeof *g->logits);
    g->candidates = zf_malloc(vocab * sizeof *g->candidates);
    if (!read_stops(g, "generation_config.json") && !read_stops(g, "config.json"))
        add_stop(g, tokenizer_eos(a->tokenizer));
    return true;
}

static void generator_close(struct generator *g)
{
    gpt_cache_destroy(g->cache);
    free(g->ids);
    free(g->logits);
    free(g->candidates);
}

/* Choosing a token. */

static int most_likely(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* The most likely first; of equal ones the first id. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->p != y->p ? (x->p < y->p) - (x->p > y->p) : x->id - y->id;
}

/* As Transformers: temperature, then the top_k most likely, then of these the fewest that together
 * have a share of top_p. Holtzman et al., "The curious case of neural text degeneration", ICLR
 * 2020. */
static int draw(struct generator *g)
{
    const struct answer_options *o = g->options;
    const int vocab = g->a->config.vocab_size;
    struct candidate *c = g->candidates;
    double sum = 0, kept = 0, at = 0;
    for (int i = 0; i < vocab; i++)
        c[i] = (struct candidate){g->logits[i] / (float)o->temperature, i};
    qsort(c, (size_t)vocab, sizeof *c, compare_candidates);
    int n = o->top_k > 0 && o->top_k < vocab ? o->top_k : vocab;
    const float greatest = c[0].p;
    for (int i = 0; i < n; i++)
        sum += c[i].p = expf(c[i].p - greatest);
    for (int i = 0; i < n; i++) {
        kept += c[i].p;
        if (kept >= o->top_p * sum)
            n = i + 1;
    }
    struct philox random =
        philox4x32((struct philox){{g->drawn++, 0, 0, SAMPLE_STREAM}}, (uint32_t)o->seed, 0);
    const double wanted = (double)philox_uniform(random.v[0]) * kept;
    for (int i = 0; i < n; i++) {
        at += c[i].p;
        if (at > wanted)
            return c[i].id;
    }
    return c[n - 1].id;
}

static bool choose(struct generator *g, int *id, struct zf_error *err)
{
    const int vocab = g->a->config.vocab_size;
    for (int i = 0; i < vocab; i++)
        if (!isfinite(g->logits[i]))
            return zf_fail(err, "what the model gives after %d tokens is not finite", g->n);
    *id = g->options->do_sample ? draw(g) : most_likely(g->logits, vocab);
    return true;
}

/* Text as it comes. */

/* What the ids say, from byte `told` on, as far as characters are whole; returns how far it has
 * got. all: even where they are not. */
static size_t tell(const struct generator *g, size_t told, bool all)
{
    size_t n, end = told;
    char *text = tokenizer_decode(g->a->tokenizer, g->ids, (size_t)g->n, &n);
    for (uint32_t code; end < n;) {
        size_t length = utf8_decode(text + end, n - end, &code);
        if (length == 0 && !all && n - end < 4)
            break; /* perhaps the rest of it is to come */
        end += length ? length : 1;
    }
    if (end > told)
        fwrite(text + told, 1, end - told, stdout);
    free(text);
    return end;
}

/* Makes the first n ids the sequence, and goes through those that the cache does not hold. */
static bool take_prompt(struct generator *g, const int *ids, int n, struct zf_error *err)
{
    int same = 0;
    if (n == 0)
        return zf_fail(err, "the prompt is empty, and the model has no token that begins a text");
    if (n >= g->a->max_length)
        return zf_fail(err,
                       "the prompt has %d tokens, but with its answer it may have %d "
                       "(--max_seq_length, or the model's positions)",
                       n, g->a->max_length);
    while (same < n - 1 && same < gpt_cache_length(g->cache) && ids[same] == g->ids[same])
        same++;
    gpt_cache_cut(g->cache, same);
    memcpy(g->ids, ids, (size_t)n * sizeof *ids);
    g->n = n;
    for (int at = same, piece; at < n; at += piece) {
        piece = n - at < g->a->piece ? n - at : g->a->piece;
        gpt_continue(g->a->model, g->cache, ids + at, piece, g->logits);
    }
    return true;
}

/* Goes on with the sequence and writes what comes, up to a token that ends it. */
static bool go_on(struct generator *g, struct zf_error *err)
{
    size_t told;
    free(tokenizer_decode(g->a->tokenizer, g->ids, (size_t)g->n, &told));
    for (int i = 0; i < g->options->max_new_tokens; i++) {
        int id;
        if (!choose(g, &id, err))
            return false;
        if (is_stop(g, id))
            break;
        if (g->n == g->a->max_length) {
            log_warn("the text has %d tokens, and no more are possible (--max_seq_length, or the "
                     "model's positions)",
                     g->n);
            break;
        }
        g->ids[g->n++] = id;
        told = tell(g, told, false);
        if (fflush(stdout) != 0)
            return zf_fail(err, "standard output cannot be written");
        if (g->n < g->a->max_length && i + 1 < g->options->max_new_tokens)
            gpt_continue(g->a->model, g->cache, &id, 1, g->logits);
    }
    tell(g, told, true);
    putchar('\n');
    return fflush(stdout) == 0 || zf_fail(err, "standard output cannot be written");
}

/* The ids of a text as a new array. */
static int *encode(const struct tokenizer *t, const char *text, size_t bytes,
                   const struct token_template *around, int *n)
{
    size_t before = (size_t)around->before, count = tokenizer_encode(t, text, bytes, NULL, 0);
    int *ids = zf_malloc((before + count + (size_t)around->n + 1) * sizeof *ids);
    memcpy(ids, around->ids, before * sizeof *ids);
    tokenizer_encode(t, text, bytes, ids + before, count);
    memcpy(ids + before + count, around->ids + before, ((size_t)around->n - before) * sizeof *ids);
    *n = (int)(count + (size_t)around->n);
    return ids;
}

static bool complete(struct generator *g, const char *text, struct zf_error *err)
{
    const struct token_template around = tokenizer_template(g->a->tokenizer, false);
    int n, *ids = encode(g->a->tokenizer, text, strlen(text), &around, &n);
    bool ok = take_prompt(g, ids, n, err) && go_on(g, err);
    free(ids);
    return ok;
}

/* All of standard input. */
static bool complete_input(struct generator *g, struct zf_error *err)
{
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n = getdelim(&text, &capacity, EOF, stdin);
    if (n < 0)
        return zf_fail(err, "there is no text to go on with: neither on the command line nor in "
                            "standard input");
    n = (ssize_t)file_drop_mark(text, (size_t)n);
    bool ok = text_check("standard input", 1, text, (size_t)n, err) && complete(g, text, err);
    free(text);
    return ok;
}

/* A conversation. */
struct talk {
    struct generator *g;
    struct chat_template template;
    struct chat_turn *turns;
    int n;
};

static void add_turn(struct talk *t, const char *role, const char *content)
{
    t->turns = zf_realloc(t->turns, ((size_t)t->n + 1) * sizeof *t->turns);
    t->turns[t->n++] = (struct chat_turn){role, zf_strdup(content), false};
}

/* What was said since the sequence had n tokens. */
static char *said_since(const struct generator *g, int n)
{
    size_t before, bytes;
    free(tokenizer_decode(g->a->tokenizer, g->ids, (size_t)n, &before));
    char *text = tokenizer_decode(g->a->tokenizer, g->ids, (size_t)g->n, &bytes);
    memmove(text, text + before, bytes - before + 1);
    return text;
}

static bool answer_turn(struct talk *t, const char *said, struct zf_error *err)
{
    struct generator *g = t->g;
    const struct token_template nothing = {.n = 0};
    struct chat_text text = {0};
    add_turn(t, "user", said);
    if (!chat_render(&text, &t->template, t->turns, t->n, true, err)) {
        chat_text_free(&text);
        return false;
    }
    int n, *ids = encode(g->a->tokenizer, text.text, text.n, &nothing, &n);
    bool ok = take_prompt(g, ids, n, err) && go_on(g, err);
    if (ok) {
        char *answer = said_since(g, n);
        add_turn(t, "assistant", answer);
        free(answer);
    }
    chat_text_free(&text);
    free(ids);
    return ok;
}

static bool talk_lines(struct talk *t, struct zf_error *err)
{
    struct text_lines lines = {.name = "standard input"};
    const bool person = isatty(STDIN_FILENO);
    bool there = true, ok = true;
    while (ok && there) {
        if (person)
            fputs("> ", stderr);
        ok = text_next_line(&lines, stdin, &there, err) &&
             (!there || answer_turn(t, lines.line, err));
    }
    free(lines.line);
    return ok;
}

static bool talk(struct generator *g, struct zf_error *err)
{
    const struct answer_options *o = g->options;
    struct talk t = {.g = g};
    if (!chat_template_read(&t.template, g->a->tokenizer, o->model, err))
        return false;
    bool ok = t.template.family != CHAT_NONE ||
              zf_fail(err, "%s has no chat template, so it can go on with a text but not --chat",
                      o->model);
    if (ok && o->system)
        add_turn(&t, "system", o->system);
    if (ok)
        add_stop_text(g, t.template.family == CHAT_CHATML   ? "<|im_end|>"
                         : t.template.family == CHAT_LLAMA3 ? "<|eot_id|>"
                                                            : t.template.eos);
    for (int i = 0; ok && i < o->n_texts; i++)
        ok = answer_turn(&t, o->texts[i], err);
    ok = ok && (o->n_texts > 0 || talk_lines(&t, err));
    for (int i = 0; i < t.n; i++)
        free((char *)t.turns[i].content);
    free(t.turns);
    chat_template_free(&t.template);
    return ok;
}

bool answer_generate(struct answerer *a, const struct answer_options *options, struct zf_error *err)
{
    struct generator g;
    bool ok = generator_open(&g, a, options, err);
    if (ok && options->chats)
        ok = talk(&g, err);
    else if (ok && options->n_texts == 0)
        ok = complete_input(&g, err);
    else
        for (int i = 0; ok && i < options->n_texts; i++)
            ok = complete(&g, options->texts[i], err);
    generator_close(&g);
    return ok;
}
