#include "cmd/run_data.h"

#include "cmd/config/table.h"
#include "cmd/labels.h"
#include "data/alloc.h"
#include "data/corpus.h"
#include "data/figures.h"
#include "data/log.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LABELS (1 << 16) /* that a model may have */

/* How many of n examples are held out for evaluation where there is no validation_file. */
static int held_out(const struct config *c, int n)
{
    return (int)(((long long)n * c->validation_split_percentage + 99) / 100);
}

/* Examples of a person's own. */

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool read_tables(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    struct own_data *own = &run->own;
    return (!c->do_train || table_read(&own->train, c->train_file, err)) &&
           (!c->do_eval || !c->validation_file || table_read(&own->dev, c->validation_file, err)) &&
           (!c->do_predict || table_read(&own->test, c->test_file, err));
}

/* The file that says what the others are. */
static const struct table *first_table(const struct own_data *own)
{
    return own->train.n_rows ? &own->train : own->dev.n_rows ? &own->dev : &own->test;
}

/* A column that was found becomes a part of the configuration, which lives as long as the run. */
static const char *settle_column(struct config *c, const char *key, char **column, const char *name)
{
    if (!*column && name) {
        *column = zf_strdup(name);
        config_mark_auto(c, key);
    }
    return *column;
}

static bool find_columns(struct run *run, struct zf_error *err)
{
    struct config *c = run->config;
    struct own_data *own = &run->own;
    struct own_columns found = {c->text_column, c->text_pair_column, c->label_column};
    if (!own_find_columns(&found, first_table(own), c->do_train || c->do_eval, err))
        return false;
    own->columns = (struct own_columns){
        .text = settle_column(c, "text_column", &c->text_column, found.text),
        .pair = settle_column(c, "text_pair_column", &c->text_pair_column, found.pair),
        .label = settle_column(c, "label_column", &c->label_column, found.label),
    };
    struct own_columns same = own->columns;
    return (own->dev.n_rows == 0 || own_find_columns(&same, &own->dev, true, err)) &&
           (own->test.n_rows == 0 || own_find_columns(&same, &own->test, false, err));
}

/* The labels that the files have; those of evaluation too, which are then never right. */
static bool collect_labels(struct own_data *own, struct zf_error *err)
{
    int row;
    const char *column = own->columns.label;
    if (own->train.n_rows && !own_labels_add(&own->labels, &own->train, column, &row, err))
        return false;
    const int trained = own->labels.n;
    if (own->dev.n_rows && !own_labels_add(&own->labels, &own->dev, column, &row, err))
        return false;
    if (trained && own->labels.n > trained)
        log_warn("%s:%d: the label \"%.60s\", one of %d that the training examples do not have: it "
                 "cannot be learned",
                 own->dev.path, own->dev.line[row],
                 table_cell(&own->dev, row, table_find(&own->dev, column)),
                 own->labels.n - trained);
    const struct table *first = first_table(own);
    if (own->labels.n == 1)
        return zf_fail(err,
                       "%s: all examples have the label \"%.60s\", but it takes two to tell "
                       "apart",
                       first->path, own->labels.names[0]);
    return own->labels.n <= MAX_LABELS ||
           zf_fail(err,
                   "%s: column \"%.60s\" has %d different labels, but at most %d are possible: "
                   "label_column names another one, do_regression makes them scores",
                   first->path, column, own->labels.n, MAX_LABELS);
}

/* Whether labels are scores: as it is asked for, or as the model has it that is not trained, or as
 * the training examples look. model: its labels */
static bool settle_regression(struct run *run, const struct own_labels *model, struct zf_error *err)
{
    struct config *c = run->config;
    const bool given = config_is_given(c, "do_regression");
    if (!c->do_train && model->n > 0) {
        if (given && c->do_regression != (model->n == 1))
            return config_clash(c, "do_regression", err, "%s answers with %s",
                                c->model_name_or_path, model->n == 1 ? "a score" : "labels");
        c->do_regression = model->n == 1;
    } else if (!given && !own_tell_scores(first_table(&run->own), run->own.columns.label,
                                          &c->do_regression, err)) {
        return false;
    }
    if (!given)
        config_mark_auto(c, "do_regression");
    return true;
}

/* Without training it is the model that knows the labels. */
static bool check_head(const struct config *c, const struct own_labels *model, struct zf_error *err)
{
    return c->do_train || model->n > 0 ||
           zf_fail(err,
                   "%s has no score head, so that it has no labels to answer with: train it first",
                   c->model_name_or_path ? c->model_name_or_path : c->config_name);
}

/* Sets own.labels: the model's own, in its order, where it is not trained or they are the same.
 * Takes the model's. */
static bool settle_labels(struct run *run, struct own_labels *model, struct zf_error *err)
{
    struct own_data *own = &run->own;
    bool takes = !run->config->do_train && model->n > 0;
    if (!takes && !collect_labels(own, err))
        return false;
    if (takes || own_labels_same(&own->labels, model)) {
        own_labels_free(&own->labels);
        own->labels = *model;
        *model = (struct own_labels){0};
    }
    return true;
}

static void describe_own(struct run *run)
{
    struct own_data *own = &run->own;
    const struct own_columns *columns = &own->columns;
    const bool scores = run->config->do_regression;
    const char *name = file_name(first_table(own)->path);
    own->task = (struct glue_task){
        .name = name,
        .title = name,
        .n_labels = scores ? 1 : own->labels.n,
        .labels = (const char *const *)own->labels.names,
        .names = (const char *const *)own->labels.names,
        .pair = columns->pair != NULL,
        .metrics = {scores ? METRIC_MSE : METRIC_ACCURACY, scores ? METRIC_PEARSON : METRIC_NONE,
                    scores ? METRIC_SPEARMAN : METRIC_NONE},
    };
    run->task = &own->task;
    char what[300];
    if (scores)
        snprintf(what, sizeof what, "scores");
    else
        snprintf(what, sizeof what, "one of %d labels, %.60s to %.60s", own->labels.n,
                 own->labels.names[0], own->labels.names[own->labels.n - 1]);
    log_info("%s: the text is column %s%s%s, the label column %s: %s", name, columns->text,
             columns->pair ? " with " : "", columns->pair ? columns->pair : "", columns->label,
             what);
}

bool run_open_data(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    struct own_labels model = {0};
    if (c->task)
        return true;
    bool ok = (!c->model_name_or_path || labels_read(&model, c->model_name_or_path, err)) &&
              check_head(c, &model, err) && read_tables(run, err) && find_columns(run, err) &&
              settle_regression(run, &model, err) &&
              (c->do_regression || settle_labels(run, &model, err));
    own_labels_free(&model);
    if (ok)
        describe_own(run);
    return ok;
}

/* A table's examples; the table is gone. */
static bool take_examples(struct run *run, struct table *t, bool labelled, struct glue_data *data,
                          struct zf_error *err)
{
    struct own_columns columns = run->own.columns;
    columns.label = labelled ? columns.label : NULL;
    bool ok =
        own_examples(data, t, &columns, run->task->n_labels > 1 ? &run->own.labels : NULL, err);
    table_free(t);
    return ok;
}

static void tokenize(const struct run *run, struct dataset *set, struct glue_data *data, int limit)
{
    if (limit > 0 && limit < data->n_examples)
        data->n_examples = limit;
    dataset_from_glue(set, data, run->tokenizer, run->config->max_seq_length);
}

static bool load_own_train(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    struct glue_data train = {0};
    if (!take_examples(run, &run->own.train, true, &train, err))
        return false;
    const int n = train.n_examples;
    bool ok = true;
    if (c->do_eval && !c->validation_file) {
        struct glue_data *dev = &run->dev[0].data;
        ok = n > 1 || zf_fail(err,
                              "%s: there is one example, but evaluation needs another: give "
                              "validation_file, or --do_eval false",
                              c->train_file);
        if (ok) {
            own_hold_out(&train, dev, held_out(c, n), (uint64_t)c->seed);
            log_info("validation_file is not given: %s of the %s examples, drawn by seed, are held "
                     "out for evaluation (validation_split_percentage)",
                     figure_count(dev->n_examples).text, figure_count(n).text);
            tokenize(run, &run->dev[0].set, dev, c->max_eval_samples);
            glue_free(dev); /* its texts are the training examples' */
        }
    }
    if (ok)
        tokenize(run, &run->train, &train, c->max_train_samples);
    glue_free(&train);
    return ok;
}

static bool load_own(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    run->n_dev = c->do_eval;
    run->n_test = c->do_predict;
    run->dev[0].split = GLUE_DEV;
    run->test[0].split = GLUE_TEST;
    if (c->do_train && !load_own_train(run, err))
        return false;
    if (c->do_eval && c->validation_file) {
        if (!take_examples(run, &run->own.dev, true, &run->dev[0].data, err))
            return false;
        tokenize(run, &run->dev[0].set, &run->dev[0].data, c->max_eval_samples);
    }
    if (c->do_predict) {
        if (!take_examples(run, &run->own.test, false, &run->test[0].data, err))
            return false;
        tokenize(run, &run->test[0].set, &run->test[0].data, c->max_predict_samples);
    }
    return true;
}

/* GLUE's. */

static int limited(int n, int limit)
{
    return limit > 0 && limit < n ? limit : n;
}

static bool read_split(const struct run *run, struct glue_data *data, enum glue_split split,
                       const char *file, int limit, struct zf_error *err)
{
    bool ok = file ? glue_read_file(data, run->task, file, split, err)
                   : glue_read_split(data, run->task, run->config->data_dir, split, err);
    if (ok && data->n_skipped > 0)
        log_warn("%s: %d row(s) of %s have another number of columns or no label, and are left out",
                 run->task->title, data->n_skipped,
                 file ? file : glue_split_name(run->task, split));
    if (ok)
        data->n_examples = limited(data->n_examples, limit);
    return ok;
}

static bool load_train_split(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    struct glue_data data = {0};
    if (!c->do_train)
        return true;
    if (!read_split(run, &data, GLUE_TRAIN, c->train_file, c->max_train_samples, err))
        return false;
    dataset_from_glue(&run->train, &data, run->tokenizer, c->max_seq_length);
    glue_free(&data);
    return true;
}

static bool load_eval_split(struct run *run, struct eval_split *s, enum glue_split split,
                            const char *file, int limit, struct zf_error *err)
{
    s->split = split;
    if (!read_split(run, &s->data, split, file, limit, err))
        return false;
    dataset_from_glue(&s->set, &s->data, run->tokenizer, run->config->max_seq_length);
    return true;
}

static bool load_glue(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    bool mismatched = run->task->has_mismatched;
    if (!load_train_split(run, err))
        return false;
    if (c->do_eval) {
        run->n_dev = mismatched && !c->validation_file ? 2 : 1;
        for (int i = 0; i < run->n_dev; i++)
            if (!load_eval_split(run, &run->dev[i], i ? GLUE_DEV_MISMATCHED : GLUE_DEV,
                                 c->validation_file, c->max_eval_samples, err))
                return false;
    }
    if (c->do_predict) {
        run->n_test = mismatched && !c->test_file ? 2 : 1;
        for (int i = 0; i < run->n_test; i++)
            if (!load_eval_split(run, &run->test[i], i ? GLUE_TEST_MISMATCHED : GLUE_TEST,
                                 c->test_file, c->max_predict_samples, err))
                return false;
    }
    return true;
}

/* Text. */

/* The last sequences of `from`, as a view that shares its tokens. */
static struct dataset split_off(struct dataset *from, int n)
{
    struct dataset view = *from;
    from->n_sequences -= n;
    view.start += from->n_sequences;
    view.n_sequences = n;
    return view;
}

static void tell_corpus(const char *files, const struct dataset *set,
                        const struct corpus_report *report)
{
    const struct figure tokens = figure_count((double)set->start[set->n_sequences]);
    const struct figure rows = figure_count(report->n_rows);
    if (report->n_passed_over)
        log_info("%s: %d files are passed over, which are no texts by their names", files,
                 report->n_passed_over);
    if (!report->has_answers) {
        log_info("%s: %s text(s) in %d file(s), %s tokens in sequences of %d", files, rows.text,
                 report->n_files, tokens.text, set->max_length);
        return;
    }
    log_info("%s: %s rows with answers in %d file(s), form: %s; the loss is of the answers alone, "
             "%s of %s tokens",
             files, rows.text, report->n_files, report->form,
             figure_count((double)report->n_learned).text, tokens.text);
    if (report->n_cut)
        log_warn(
            "%s: %s of the %s rows are longer than max_seq_length and are cut; %s have no answer "
            "left and are dropped",
            files, figure_count(report->n_cut).text, rows.text,
            figure_count(report->n_dropped).text);
}

static bool load_corpus(const struct run *run, struct dataset *set, const char *files,
                        struct zf_error *err)
{
    const struct config *c = run->config;
    struct corpus_report report;
    if (!dataset_from_corpus(set, files, run->tokenizer, c->tokenizer_name, c->max_seq_length,
                             (uint64_t)c->seed, &report, err))
        return false;
    tell_corpus(files, set, &report);
    return true;
}

static bool load_text(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    struct dataset *dev = &run->dev[0].set;
    if (c->do_train && !load_corpus(run, &run->train, c->train_file, err))
        return false;
    if (c->do_eval) {
        run->n_dev = 1;
        run->dev[0].split = GLUE_DEV;
        if (c->validation_file && !load_corpus(run, dev, c->validation_file, err))
            return false;
        if (!c->validation_file) {
            if (run->train.n_sequences == 1)
                return zf_fail(err,
                               "%s: it makes one sequence of at most %d tokens, but evaluation "
                               "needs another: give validation_file, or --do_eval false",
                               c->train_file, c->max_seq_length);
            *dev = split_off(&run->train, held_out(c, run->train.n_sequences));
            log_info("validation_file is not given: %s sequences of train_file are held out for "
                     "evaluation (validation_split_percentage)",
                     figure_count(dev->n_sequences).text);
        }
        dev->n_sequences = limited(dev->n_sequences, c->max_eval_samples);
    }
    run->train.n_sequences = limited(run->train.n_sequences, c->max_train_samples);
    return true;
}

/* Files that are named, but not asked for. */
static void tell_of_unused(const struct config *c)
{
    if (c->test_file && !c->do_predict)
        log_warn("test_file %s is not read: --do_predict asks for it", c->test_file);
    if (c->validation_file && !c->do_eval)
        log_warn("validation_file %s is not read: do_eval is false", c->validation_file);
    if (c->train_file && !c->do_train)
        log_warn("train_file %s is not read: do_train is false", c->train_file);
    if (c->resume_from_checkpoint && (c->plan || !c->do_train))
        log_warn("resume_from_checkpoint %s is not read: %s", c->resume_from_checkpoint,
                 c->plan ? "a plan is of a run from its start" : "do_train is false");
}

bool run_load_data(struct run *run, struct zf_error *err)
{
    tell_of_unused(run->config);
    bool text = run->task->n_labels == 0;
    if (run_has_own_data(run) ? !load_own(run, err)
        : text                ? !load_text(run, err)
                              : !load_glue(run, err))
        return false;
    if (run->config->do_train && run->train.n_sequences == 0)
        return zf_fail(err, "%s: the training split has no examples", run->task->name);
    if (run->config->do_train && run->train.n_sequences < comm_size(run->comm))
        return zf_fail(err, "%s: there are %d training examples for %d ranks: start at most %d",
                       run->task->name, run->train.n_sequences, comm_size(run->comm),
                       run->train.n_sequences);
    run->train_sum = dataset_checksum(&run->train);
    for (int i = 0; i < run->n_dev; i++)
        run->dev_sum = checksum_join(run->dev_sum, dataset_checksum(&run->dev[i].set));
    return true;
}

void run_free_data(struct run *run)
{
    bool view = run->train.tokens && run->dev[0].set.tokens == run->train.tokens;
    for (int i = 0; i < RUN_MAX_SPLITS; i++) {
        glue_free(&run->dev[i].data);
        free(run->dev[i].answers);
        free(run->dev[i].losses);
        glue_free(&run->test[i].data);
        if (!view)
            dataset_free(&run->dev[i].set);
        dataset_free(&run->test[i].set);
    }
    dataset_free(&run->train);
    table_free(&run->own.train);
    table_free(&run->own.dev);
    table_free(&run->own.test);
    own_labels_free(&run->own.labels);
}
