#include "data/corpus.h"

#include "data/alloc.h"
#include "data/chat.h"
#include "data/corpus_files.h"
#include "data/table.h"
#include "data/text.h"

#include <stdlib.h>
#include <string.h>

/* A text, or a row with answers as it is written. */
struct row {
    struct chat_text text;
    bool whole; /* the tokenizer's template, and the end-of-text token, belong to it */
    int *ids;
    unsigned char *learned; /* NULL: all */
    size_t n;
    bool cut;
};

struct corpus {
    const struct tokenizer *tokenizer;
    const char *name;
    struct chat_template template;
    const char *path; /* of the file in work */
    struct row *rows;
    int n_rows, capacity;
    bool has_answers;
};

static struct row *add_row(struct corpus *c)
{
    if (c->n_rows == c->capacity) {
        c->capacity = 2 * c->capacity + 64;
        c->rows = zf_realloc(c->rows, (size_t)c->capacity * sizeof *c->rows);
    }
    c->rows[c->n_rows] = (struct row){0};
    return &c->rows[c->n_rows++];
}

static void corpus_free(struct corpus *c)
{
    for (int i = 0; i < c->n_rows; i++) {
        chat_text_free(&c->rows[i].text);
        free(c->rows[i].ids);
        free(c->rows[i].learned);
    }
    free(c->rows);
    chat_template_free(&c->template);
}

/* Rows. */

/* What Transformers' templates write beside a message's text, or its trainers go by. */
static bool refuse_more(const json_t *object, const char *what, struct zf_error *err)
{
    static const char *const keys[] = {"tool_calls",        "function_call", "tools",
                                       "reasoning_content", "thinking",      "weight"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(object, keys[i]);
        const bool empty = json_is_array(value) && json_array_size(value) == 0;
        if (value && !json_is_null(value) && !empty)
            return zf_fail(err, "%s has \"%s\", which is not done: only texts by roles are", what,
                           keys[i]);
    }
    return true;
}

/* Messages become turns; those from `learned_from` on are learned where they are answers. */
static bool add_turns(struct chat_turn **turns, int *n, const json_t *messages, bool learned,
                      struct zf_error *err)
{
    size_t i;
    const json_t *message;
    if (!json_is_array(messages))
        return zf_fail(err, "its messages are no list");
    json_array_foreach(messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        const char *content = json_string_value(json_object_get(message, "content"));
        if (!role || !content)
            return zf_fail(
                err, "message %zu is not {\"role\": ..., \"content\": ...} with two texts", i + 1);
        char what[40];
        snprintf(what, sizeof what, "message %zu", i + 1);
        if (!refuse_more(message, what, err))
            return false;
        *turns = zf_realloc(*turns, ((size_t)*n + 1) * sizeof **turns);
        (*turns)[(*n)++] =
            (struct chat_turn){role, content, learned && strcmp(role, "assistant") == 0};
    }
    return true;
}

static bool render_turns(struct corpus *c, const struct chat_turn *turns, int n,
                         struct zf_error *err)
{
    struct row *row = add_row(c);
    if (c->template.family == CHAT_NONE)
        return zf_fail(err,
                       "it has messages, but %s has no chat template to write them in; prompt and "
                       "completion need none",
                       c->name);
    if (!chat_render(&row->text, &c->template, turns, n, false, err))
        return false;
    return row->text.n_answers > 0 || zf_fail(err, "no message is of role \"assistant\"");
}

static bool take_messages(struct corpus *c, const json_t *prompt, const json_t *messages,
                          struct zf_error *err)
{
    struct chat_turn *turns = NULL;
    int n = 0;
    bool ok = (!prompt || add_turns(&turns, &n, prompt, false, err)) &&
              add_turns(&turns, &n, messages, true, err) && render_turns(c, turns, n, err);
    free(turns);
    return ok;
}

/* A prompt and its answer, which the end-of-text token ends. */
static bool take_plain(struct corpus *c, const char *prompt, const char *completion)
{
    struct row *row = add_row(c);
    row->whole = true;
    chat_append(&row->text, prompt);
    size_t begin = row->text.n;
    chat_append(&row->text, completion);
    chat_mark_answer(&row->text, begin);
    return true;
}

static bool take_instruction(struct corpus *c, const char *instruction, const char *input,
                             const char *output, struct zf_error *err)
{
    bool has_input = input && *input;
    char *prompt;
    if (c->template.family != CHAT_NONE) {
        prompt = zf_format("%s%s%s", instruction, has_input ? "\n\n" : "", has_input ? input : "");
        const struct chat_turn turns[] = {{"user", prompt, false}, {"assistant", output, true}};
        bool ok = render_turns(c, turns, 2, err);
        free(prompt);
        return ok;
    }
    /* As https://github.com/tatsu-lab/stanford_alpaca has it. */
    prompt = zf_format("Below is an instruction that describes a task%s. Write a response that "
                       "appropriately completes the request.\n\n### Instruction:\n%s\n\n%s%s%s### "
                       "Response:\n",
                       has_input ? ", paired with an input that provides further context" : "",
                       instruction, has_input ? "### Input:\n" : "", has_input ? input : "",
                       has_input ? "\n\n" : "");
    take_plain(c, prompt, output);
    free(prompt);
    return true;
}

static bool take_text(struct corpus *c, const char *text)
{
    struct row *row = add_row(c);
    row->whole = true;
    chat_append(&row->text, text);
    return true;
}

static const char *get_text(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

static bool take_object(struct corpus *c, const json_t *row, struct zf_error *err)
{
    const json_t *messages = json_object_get(row, "messages");
    const json_t *prompt = json_object_get(row, "prompt"),
                 *completion = json_object_get(row, "completion");
    const char *instruction = get_text(row, "instruction"), *output = get_text(row, "output");
    if ((messages || json_is_array(prompt)) && !refuse_more(row, "the row", err))
        return false;
    if (messages)
        return take_messages(c, NULL, messages, err);
    if (json_is_array(prompt) && json_is_array(completion))
        return take_messages(c, prompt, completion, err);
    if (json_is_string(prompt) && json_is_string(completion))
        return take_plain(c, json_string_value(prompt), json_string_value(completion));
    if (instruction && output)
        return take_instruction(c, instruction, get_text(row, "input"), output, err);
    if (get_text(row, "text"))
        return take_text(c, get_text(row, "text"));
    return zf_fail(err, "the row has no \"text\"; \"messages\"; \"prompt\" and \"completion\"; or "
                        "\"instruction\" and \"output\"");
}

static bool visit_row(void *context, json_t *object, int line, struct zf_error *err)
{
    struct corpus *c = context;
    struct zf_error why;
    if (!take_object(c, object, &why))
        return zf_fail(err, "%s:%d: %.800s", c->path, line, why.text);
    bool answers = c->rows[c->n_rows - 1].text.n_answers > 0;
    if (c->n_rows > 1 && answers != c->has_answers)
        return zf_fail(err, "%s:%d: the row %s, but those before it %s", c->path, line,
                       answers ? "has an answer" : "is a text",
                       answers ? "are texts" : "have answers");
    c->has_answers = answers;
    return true;
}

/* Rows of CSV and TSV are objects too. */
static bool read_columns(struct corpus *c, struct zf_error *err)
{
    struct table t;
    if (!table_read(&t, c->path, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < t.n_rows; i++) {
        json_t *row = json_object();
        for (int k = 0; k < t.n_columns; k++)
            json_object_set_new(row, t.columns[k], json_string(table_cell(&t, i, k)));
        ok = visit_row(c, row, t.line[i], err);
        json_decref(row);
    }
    table_free(&t);
    return ok;
}

static bool read_whole(struct corpus *c, struct zf_error *err)
{
    char *text;
    size_t n;
    if (c->has_answers)
        return zf_fail(err, "%s: this is a text, but the files before it have answers", c->path);
    if (!text_read(c->path, &text, &n, err))
        return false;
    struct row *row = add_row(c);
    row->text = (struct chat_text){.text = text, .n = n};
    row->whole = true;
    return true;
}

static bool read_file(struct corpus *c, const char *path, struct zf_error *err)
{
    c->path = path;
    if (table_is_json(path))
        return table_each_object(path, visit_row, c, err);
    return table_is(path) ? read_columns(c, err) : read_whole(c, err);
}

/* Tokens. */

/* The ids of n bytes as a new array, with room for `around` more. */
static int *encode(const struct tokenizer *t, const char *text, size_t n, size_t around,
                   size_t *n_ids)
{
    size_t capacity = n + 1;
    int *ids = zf_malloc((capacity + around) * sizeof *ids);
    *n_ids = tokenizer_encode(t, text, n, ids, capacity);
    if (*n_ids > capacity) { /* rare: normalisation may lengthen a text */
        ids = zf_realloc(ids, (*n_ids + around) * sizeof *ids);
        *n_ids = tokenizer_encode(t, text, n, ids, *n_ids);
    }
    return ids;
}

/* How many of a text's ids come before byte `at`: those that its beginning alone has too. */
static size_t ids_before(const struct row *row, const int *ids, size_t n_ids,
                         const struct tokenizer *t, size_t at)
{
    size_t n, same = 0;
    if (at == row->text.n)
        return n_ids;
    int *beginning = encode(t, row->text.text, at, 0, &n);
    while (same < n && same < n_ids && beginning[same] == ids[same])
        same++;
    free(beginning);
    return same;
}

/* Marks the answers' ids. `before`: ids of the template in front of the text's */
static void mark_learned(struct row *row, size_t before, size_t n_ids, const struct tokenizer *t)
{
    row->learned = zf_calloc(row->n, 1);
    for (int i = 0; i < row->text.n_answers; i++) {
        const struct chat_span span = row->text.answers[i];
        size_t from = ids_before(row, row->ids + before, n_ids, t, span.begin);
        size_t to = ids_before(row, row->ids + before, n_ids, t, span.end);
        for (size_t k = from; k < to; k++)
            row->learned[before + k] = 1;
    }
    for (size_t k = before + n_ids; k < row->n; k++)
        row->learned[k] = 1; /* what ends it */
}

/* ends: with the end-of-text token */
static void tokenize_row(struct row *row, const struct tokenizer *t, bool ends, size_t max_length)
{
    const struct token_template around = tokenizer_template(t, false);
    const size_t before = row->whole ? (size_t)around.before : 0;
    const size_t behind = row->whole ? (size_t)(around.n - around.before) : 0;
    size_t n_ids;
    int *ids = encode(t, row->text.text, row->text.n, before + behind + 1, &n_ids);
    memmove(ids + before, ids, n_ids * sizeof *ids);
    memcpy(ids, around.ids, before * sizeof *ids);
    memcpy(ids + before + n_ids, around.ids + before, behind * sizeof *ids);
    row->ids = ids;
    row->n = before + n_ids + behind;
    if (ends && row->whole && tokenizer_eos(t) >= 0 &&
        (row->n == 0 || ids[row->n - 1] != tokenizer_eos(t)))
        ids[row->n++] = tokenizer_eos(t);
    if (row->text.n_answers > 0) {
        mark_learned(row, before, n_ids, t);
        row->cut = row->n > max_length;
        row->n = row->cut ? max_length : row->n;
    }
    chat_text_free(&row->text);
}

static void tokenize(struct corpus *c, int max_length)
{
    const bool ends = c->has_answers || c->n_rows > 1;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < c->n_rows; i++)
        tokenize_row(&c->rows[i], c->tokenizer, ends, (size_t)max_length);
}

/* Data sets. */

static size_t count_ids(const struct corpus *c)
{
    size_t n = 0;
    for (int i = 0; i < c->n_rows; i++)
        n += c->rows[i].n;
    return n;
}

/* All texts as one, in sequences of max_length; the last may be shorter, but one of a single token,
 * which has nothing to predict, is dropped. */
static void pack_texts(struct dataset *d, const struct corpus *c, size_t max_length)
{
    size_t n = 0, all = count_ids(c);
    d->tokens = zf_malloc((all + 1) * sizeof *d->tokens);
    for (int i = 0; i < c->n_rows; i++) {
        memcpy(d->tokens + n, c->rows[i].ids, c->rows[i].n * sizeof *d->tokens);
        n += c->rows[i].n;
    }
    n -= n % max_length == 1;
    d->n_sequences = (int)((n + max_length - 1) / max_length);
    d->start = zf_malloc(((size_t)d->n_sequences + 1) * sizeof *d->start);
    for (int i = 0; i < d->n_sequences; i++)
        d->start[i] = (size_t)i * max_length;
    d->start[d->n_sequences] = n;
    d->max_length = (int)(n < max_length ? n : max_length);
}

/* Tokens that a sequence is to predict: never its first. */
static long count_learned(const struct row *row)
{
    long n = 0;
    for (size_t k = 1; k < row->n; k++)
        n += row->learned[k];
    return n;
}

static void line_up_answers(struct dataset *d, const struct corpus *c, uint64_t seed,
                            struct corpus_report *report)
{
    size_t n = 0, all = count_ids(c);
    int *order = zf_malloc((size_t)c->n_rows * sizeof *order);
    d->tokens = zf_malloc((all + 1) * sizeof *d->tokens);
    d->learned = zf_malloc(all + 1);
    d->start = zf_malloc(((size_t)c->n_rows + 1) * sizeof *d->start);
    sampler_shuffle(order, c->n_rows, seed, 0);
    for (int i = 0; i < c->n_rows; i++) {
        const struct row *row = &c->rows[order[i]];
        const long learned = count_learned(row);
        report->n_cut += row->cut;
        report->n_dropped += learned == 0;
        report->n_learned += learned;
        if (learned == 0)
            continue;
        memcpy(d->tokens + n, row->ids, row->n * sizeof *d->tokens);
        memcpy(d->learned + n, row->learned, row->n);
        d->start[d->n_sequences++] = n;
        n += row->n;
        d->max_length = (int)row->n > d->max_length ? (int)row->n : d->max_length;
    }
    d->start[d->n_sequences] = n;
    free(order);
}

static bool read_files(struct corpus *c, const char *files, struct corpus_report *report,
                       struct zf_error *err)
{
    struct file_list list;
    if (!corpus_find_files(&list, files, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < list.n; i++)
        ok = read_file(c, list.paths[i], err);
    report->n_files = list.n;
    report->n_passed_over = list.n_passed_over;
    report->n_rows = c->n_rows;
    file_list_free(&list);
    return ok && (c->n_rows > 0 || zf_fail(err, "%s: there are no rows in the file", files));
}

bool dataset_from_corpus(struct dataset *d, const char *files, const struct tokenizer *t,
                         const char *name, int max_length, uint64_t seed,
                         struct corpus_report *report, struct zf_error *err)
{
    struct corpus c = {.tokenizer = t, .name = name};
    *d = (struct dataset){0};
    *report = (struct corpus_report){0};
    bool ok = chat_template_read(&c.template, t, name, err) && read_files(&c, files, report, err);
    if (ok) {
        tokenize(&c, max_length);
        report->has_answers = c.has_answers;
        report->form = c.rows[0].whole ? "plain" : chat_family_name(c.template.family);
        if (c.has_answers)
            line_up_answers(d, &c, seed, report);
        else
            pack_texts(d, &c, (size_t)max_length);
        ok = d->n_sequences > 0 ||
             (c.has_answers
                  ? zf_fail(err, "%s: no row has an answer within max_seq_length %d", files,
                            max_length)
                  : zf_fail(err,
                            "%s: the text has fewer than two tokens, but predicting the next one "
                            "takes two",
                            files));
    }
    corpus_free(&c);
    if (!ok)
        dataset_free(d);
    return ok;
}
