#include "cmd/answer/answer.h"

#include "data/alloc.h"
#include "data/log.h"
#include "data/show.h"
#include "data/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What it takes to classify, batch after batch. */
struct classifier {
    struct answerer *a;
    int batch_size, max_length, top_k;
    struct batch batch;
    int *index;    /* (batch_size) 0, 1, ... */
    float *logits; /* (batch_size, num_labels) */
    int n_texts, n_cut;
};

static struct classifier classifier_open(struct answerer *a, const struct answer_options *options)
{
    const int labels = a->config.num_labels, n = options->batch_size;
    struct classifier c = {.a = a, .batch_size = n, .max_length = a->max_length};
    c.top_k = !options->top_k ? 1 : options->top_k < labels ? options->top_k : labels;
    batch_init(&c.batch, n * c.max_length, n);
    c.logits = zf_malloc(sizeof(float) * (size_t)n * (size_t)labels);
    c.index = zf_malloc(sizeof(int) * (size_t)n);
    for (int i = 0; i < n; i++)
        c.index[i] = i;
    return c;
}

static void classifier_close(struct classifier *c)
{
    if (c->n_cut)
        log_warn("%d of the %d texts are longer than %d tokens, and were cut (--max_seq_length)",
                 c->n_cut, c->n_texts, c->max_length);
    batch_free(&c->batch);
    free(c->logits);
    free(c->index);
}

/* From logits to probabilities. */
static void softmax(float *x, int n)
{
    float most = x[0];
    double sum = 0;
    for (int i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++)
        sum += x[i] = expf(x[i] - most);
    for (int i = 0; i < n; i++)
        x[i] = (float)(x[i] / sum);
}

/* The most likely labels, in their order; of equal ones the first. */
static void print_labels(const struct classifier *c, float *logits)
{
    const int n = c->a->config.num_labels;
    softmax(logits, n);
    for (int k = 0; k < c->top_k; k++) {
        int best = 0;
        for (int i = 1; i < n; i++)
            best = logits[i] > logits[best] ? i : best;
        char *label = show_whole(c->a->labels.names[best]);
        printf("%s%s\t%.4f", k ? "\t" : "", label, (double)logits[best]);
        free(label);
        logits[best] = -1; /* told */
    }
    putchar('\n');
}

static bool is_cut(const struct classifier *c, const struct glue_example *e)
{
    const struct tokenizer *t = c->a->tokenizer;
    size_t n = (size_t)tokenizer_template(t, e->sentence[1]).n;
    for (int k = 0; k < 2 && e->sentence[k]; k++)
        n += tokenizer_encode(t, e->sentence[k], strlen(e->sentence[k]), NULL, 0);
    return n > (size_t)c->max_length;
}

/* Answers n <= batch_size examples. */
static bool answer_batch(struct classifier *c, struct glue_example *examples, int n,
                         struct zf_error *err)
{
    const int labels = c->a->config.num_labels;
    const struct glue_data data = {.examples = examples, .n_examples = n};
    struct dataset set;
    dataset_from_glue(&set, &data, c->a->tokenizer, c->max_length);
    batch_fill(&c->batch, &set, c->index, n, 0, labels);
    gpt_evaluate(c->a->model, &c->batch, c->logits);
    dataset_free(&set);
    for (int i = 0; i < n; i++) {
        float *logits = c->logits + (size_t)i * (size_t)labels;
        c->n_cut += is_cut(c, &examples[i]);
        c->n_texts++;
        for (int k = 0; k < labels; k++)
            if (!isfinite(logits[k]))
                return zf_fail(err, "what the model gives for text %d is not finite", c->n_texts);
        if (labels == 1)
            printf("%.4f\n", (double)logits[0]);
        else
            print_labels(c, logits);
    }
    return fflush(stdout) == 0 || zf_fail(err, "standard output cannot be written");
}

static bool answer_all(struct classifier *c, struct glue_data *data, struct zf_error *err)
{
    bool ok = true;
    for (int at = 0; ok && at < data->n_examples; at += c->batch_size) {
        int left = data->n_examples - at;
        ok = answer_batch(c, data->examples + at, left < c->batch_size ? left : c->batch_size, err);
    }
    return ok;
}

static bool answer_table(struct classifier *c, const char *path, struct own_columns columns,
                         struct zf_error *err)
{
    struct table t;
    struct glue_data data;
    if (!table_read(&t, path, err))
        return false;
    bool ok = own_find_columns(&columns, &t, false, err);
    columns.label = NULL;
    if (ok)
        log_info("%s: the text is column %s%s%s", path, columns.text, columns.pair ? " with " : "",
                 columns.pair ? columns.pair : "");
    ok = ok && own_examples(&data, &t, &columns, NULL, err);
    if (ok) {
        ok = answer_all(c, &data, err);
        glue_free(&data);
    }
    table_free(&t);
    return ok;
}

/* Each line of a plain text is one. */
static bool answer_lines(struct classifier *c, const char *path, struct zf_error *err)
{
    struct glue_data data = {0};
    size_t n;
    if (!text_read(path, &data.text, &n, err))
        return false;
    for (char *line = data.text, *end; line < data.text + n; line = end + 1) {
        end = line + strcspn(line, "\n");
        *end = 0;
        if (end > line && end[-1] == '\r')
            end[-1] = 0;
        data.examples =
            zf_realloc(data.examples, ((size_t)data.n_examples + 1) * sizeof *data.examples);
        data.examples[data.n_examples++] = (struct glue_example){.sentence = {line}, .label = -1};
    }
    bool ok = answer_all(c, &data, err);
    glue_free(&data);
    return ok;
}

/* A line at a time, each answered at once. */
static bool answer_input(struct classifier *c, struct zf_error *err)
{
    struct text_lines lines = {.name = "standard input"};
    bool there = true, ok = true;
    while (ok && there) {
        ok = text_next_line(&lines, stdin, &there, err);
        struct glue_example e = {.sentence = {lines.line}, .label = -1};
        ok = ok && (!there || answer_batch(c, &e, 1, err));
    }
    free(lines.line);
    return ok;
}

static bool answer_words(struct classifier *c, const struct answer_options *options,
                         struct zf_error *err)
{
    bool ok = true;
    for (int i = 0; ok && i < options->n_texts; i++) {
        struct glue_example e = {.sentence = {options->texts[i], options->pair}, .label = -1};
        ok = answer_batch(c, &e, 1, err);
    }
    return ok;
}

bool answer_classify(struct answerer *a, const struct answer_options *options, struct zf_error *err)
{
    struct classifier c = classifier_open(a, options);
    bool ok = options->n_texts ? answer_words(&c, options, err)
              : options->file && table_is(options->file)
                  ? answer_table(&c, options->file, options->columns, err)
              : options->file ? answer_lines(&c, options->file, err)
                              : answer_input(&c, err);
    if (ok && c.n_texts == 0)
        ok = options->file ? zf_fail(err, "%s: there are no texts in the file", options->file)
                           : zf_fail(err, "there is no text to answer: neither on the command line "
                                          "nor in standard input");
    classifier_close(&c);
    return ok;
}
