#include "cmd/model_card.h"

#include "cmd/run_data.h"
#include "data/alloc.h"
#include "data/file.h"
#include "data/log.h"

#include <stdlib.h>
#include <string.h>

static const char MARK[] = "<!-- zf-train writes this card anew after each training; without this "
                           "line it stays as it is. -->";

/* ---- words ---- */

/* A quoted string is the same in JSON and in YAML, whatever is in it. */
static void put_quoted(FILE *out, const char *text)
{
    json_t *value = json_string(text);
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    fputs(quoted ? quoted : "\"\"", out); /* a path that is not UTF-8 */
    free(quoted);
    json_decref(value);
}

static bool is_language_model(const struct run *run)
{
    return run->task->n_labels == 0;
}

static bool is_glue(const struct run *run)
{
    return !run_has_own_data(run) && !is_language_model(run);
}

/* "eval_matthews_correlation" as people read it: "Matthews Correlation"; the loss of an evaluation
 * is called so beside that of training. As a new string. */
static char *title_of(const char *key)
{
    char *title = zf_strdup(key + strlen("eval_"));
    bool begins = true;
    for (char *p = title; *p; p++) {
        if (begins && *p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
        *p = *p == '_' ? ' ' : *p;
        begins = *p == ' ';
    }
    return title;
}

/* Whether a key says how good the model is. */
static bool is_measure(const char *key)
{
    return strncmp(key, "eval_", 5) == 0 && strncmp(key, "eval_samples", 12) != 0 &&
           !strstr(key, "_runtime") && !strstr(key, "_per_second");
}

static bool is_metric(const char *key)
{
    return is_measure(key) && strncmp(key, "eval_loss", 9) != 0;
}

/* ---- metadata ---- */

static void put_metrics(FILE *out, const json_t *results)
{
    const char *key, *head = "metrics:\n";
    json_t *value;
    json_object_foreach((json_t *)results, key, value)
    {
        if (is_metric(key)) {
            fprintf(out, "%s- %s\n", head, key + 5);
            head = "";
        }
    }
}

static void put_dataset(FILE *out, const struct run *run)
{
    char *file = file_name(run->config->train_file ? run->config->train_file : run->task->name);
    fprintf(out, "    dataset:\n      name: ");
    if (is_glue(run)) {
        fprintf(out,
                "GLUE %s\n      type: glue\n      config: %s\n      split: %s\n      args: %s\n",
                run->task->title, run->task->name,
                run->task->has_mismatched ? "validation_matched" : "validation", run->task->name);
    } else {
        put_quoted(out, file);
        fprintf(out, "\n      type: ");
        put_quoted(out, file);
        fputc('\n', out);
    }
    free(file);
}

static void put_model_index(FILE *out, const struct run *run, const json_t *results,
                            const char *name)
{
    const char *key, *head = "    metrics:\n";
    json_t *value;
    const bool lm = is_language_model(run);
    fprintf(out, "model-index:\n- name: ");
    put_quoted(out, name);
    fprintf(out, "\n  results:\n  - task:\n      name: %s\n      type: %s\n",
            lm ? "Text Generation" : "Text Classification",
            lm ? "text-generation" : "text-classification");
    put_dataset(out, run);
    json_object_foreach((json_t *)results, key, value)
    {
        if (!is_metric(key))
            continue;
        char *title = title_of(key);
        fprintf(out, "%s    - name: %s\n      type: %s\n      value: %.9g\n", head, title, key + 5,
                json_number_value(value));
        free(title);
        head = "";
    }
}

static void put_metadata(FILE *out, const struct run *run, const json_t *results, const char *name)
{
    fprintf(out, "---\nlibrary_name: transformers\npipeline_tag: %s\n",
            is_language_model(run) ? "text-generation" : "text-classification");
    if (is_glue(run))
        fprintf(out, "language:\n- en\ndatasets:\n- glue\n");
    fprintf(out, "tags:\n- generated_from_trainer\n- zf-train\n");
    put_metrics(out, results);
    if (run->n_dev > 0)
        put_model_index(out, run, results, name);
    fprintf(out, "---\n\n%s\n\n", MARK);
}

/* ---- text ---- */

static void put_summary(FILE *out, const struct run *run, const json_t *results, const char *name)
{
    const struct config *c = run->config;
    const char *key;
    json_t *value;
    char *from = file_name(c->model_name_or_path ? c->model_name_or_path : c->config_name);
    char *data = file_name(c->train_file ? c->train_file : run->task->title);
    fprintf(out, "# %s\n\n", name);
    if (c->model_name_or_path)
        fprintf(out, "`%s`, fine-tuned on %s%s (%d examples).\n", from,
                is_glue(run) ? "GLUE's " : "", data, run->train.n_sequences);
    else
        fprintf(out,
                "A model of the shape `%s`, trained from random initialisation on %s%s (%d "
                "examples).\n",
                from, is_glue(run) ? "GLUE's " : "", data, run->train.n_sequences);
    free(from);
    free(data);
    if (run->n_dev == 0)
        return;
    fprintf(out, "\nOn the evaluation set (%d examples) it has:\n\n", run->dev[0].set.n_sequences);
    json_object_foreach((json_t *)results, key, value)
    {
        if (!is_measure(key))
            continue;
        char *title = title_of(key);
        fprintf(out, "- %s: %.4f\n", title, json_number_value(value));
        free(title);
    }
}

static void put_optimizer(FILE *out, const struct run *run)
{
    const struct config *c = run->config;
    const struct zenflow_config *z = &c->zenflow;
    fprintf(out, "- optimizer: %s with betas=(%g,%g), epsilon=%g and weight_decay=%g",
            c->adam_w_mode ? "AdamW" : "Adam", c->adam_beta1, c->adam_beta2, c->adam_epsilon,
            c->weight_decay);
    if (z->enabled)
        fprintf(out, ", by ZenFlow with topk_ratio=%g", z->topk_ratio);
    if (z->enabled && z->update_interval > 0)
        fprintf(out, " and update_interval=%d", z->update_interval);
    else if (z->enabled) /* chosen while training */
        fprintf(out, " and update_interval=%s, at the end %d",
                z->update_interval == CONFIG_KEEP_UP ? "keep_up" : "auto",
                engine_update_interval(run->engine));
    fputc('\n', out);
}

static void put_schedule(FILE *out, const struct config *c)
{
    static const char *const schedulers[] = {"linear", "cosine", "constant",
                                             "constant_with_warmup"};
    fprintf(out, "- lr_scheduler_type: %s\n", schedulers[c->lr_scheduler_type]);
    if (c->warmup_steps > 0)
        fprintf(out, "- lr_scheduler_warmup_steps: %.0f\n", c->warmup_steps);
    if (c->max_steps > 0)
        fprintf(out, "- training_steps: %d\n", c->max_steps);
    else
        fprintf(out, "- num_epochs: %g\n", c->num_train_epochs);
}

static void put_hyperparameters(FILE *out, const struct run *run)
{
    const struct config *c = run->config;
    const int ranks = comm_size(run->comm);
    fprintf(out, "\n## Training procedure\n\n### Training hyperparameters\n\n");
    fprintf(out, "- learning_rate: %g\n- train_batch_size: %d\n- eval_batch_size: %d\n- seed: %d\n",
            c->learning_rate, c->per_device_train_batch_size, c->per_device_eval_batch_size,
            c->seed);
    if (ranks > 1)
        fprintf(out, "- num_devices: %d\n", ranks);
    if (c->gradient_accumulation_steps > 1)
        fprintf(out, "- gradient_accumulation_steps: %d\n", c->gradient_accumulation_steps);
    if (c->train_batch_size != c->per_device_train_batch_size)
        fprintf(out, "- total_train_batch_size: %d\n", c->train_batch_size);
    if (ranks > 1)
        fprintf(out, "- total_eval_batch_size: %d\n", ranks * c->per_device_eval_batch_size);
    put_optimizer(out, run);
    put_schedule(out, c);
    if (c->bf16)
        fprintf(out, "- parameters: bf16, with fp32 masters\n");
}

/* A row for each evaluation, the columns those of the results. */
static void put_row(FILE *out, const json_t *entry, const json_t *results, double loss)
{
    const char *key;
    json_t *value;
    if (loss >= 0)
        fprintf(out, "| %.4f", loss);
    else
        fprintf(out, "| No log");
    fprintf(out, " | %.4g | %lld |", json_number_value(json_object_get(entry, "epoch")),
            (long long)json_integer_value(json_object_get(entry, "step")));
    json_object_foreach((json_t *)results, key, value)
    {
        if (is_measure(key))
            fprintf(out, " %.4f |", json_number_value(json_object_get(entry, key)));
    }
    fputc('\n', out);
}

static void put_table_head(FILE *out, const json_t *results)
{
    const char *key;
    json_t *value;
    int columns = 3;
    fprintf(out, "\n### Training results\n\n| Training Loss | Epoch | Step |");
    json_object_foreach((json_t *)results, key, value)
    {
        if (!is_measure(key))
            continue;
        char *title = title_of(key);
        fprintf(out, " %s%s |", strncmp(key, "eval_loss", 9) ? "" : "Validation ", title);
        free(title);
        columns++;
    }
    fprintf(out, "\n|");
    while (columns-- > 0)
        fprintf(out, ":---:|");
    fputc('\n', out);
}

/* The best model's evaluation at the end is one of those before. */
static void put_history(FILE *out, const json_t *history, const json_t *results)
{
    const bool is_best = json_object_get(results, "best_global_step");
    const json_t *entry;
    size_t i;
    double loss = -1; /* none yet */
    put_table_head(out, results);
    json_array_foreach(history, i, entry)
    {
        if (is_best && json_object_get(entry, "train_loss"))
            break;
        if (json_object_get(entry, "loss"))
            loss = json_number_value(json_object_get(entry, "loss"));
        if (json_object_get(entry, "eval_loss"))
            put_row(out, entry, results, loss);
    }
}

static void put_card(FILE *out, const struct run *run, const json_t *history, const json_t *results,
                     const char *name)
{
    put_metadata(out, run, results, name);
    put_summary(out, run, results, name);
    put_hyperparameters(out, run);
    if (run->n_dev > 0)
        put_history(out, history, results);
    fprintf(out, "\n### Framework versions\n\n- zf-train %s\n", ZF_VERSION);
}

/* ---- the file ---- */

/* Whether a card may be written: there is none, or one of a run's. */
static bool is_ours(const char *path, bool *ours, struct zf_error *err)
{
    char *text;
    size_t n;
    if (!file_read_if_any(path, &text, &n, err))
        return false;
    *ours = !text || strstr(text, MARK);
    free(text);
    return true;
}

bool model_card_write(const struct run *run, const json_t *history, const json_t *results,
                      struct zf_error *err)
{
    const char *directory = run->config->output_dir;
    char *path = zf_format("%s/README.md", directory), *name = file_name(directory);
    struct file_replace f;
    bool ours, ok = is_ours(path, &ours, err);
    if (ok && !ours)
        log_info("%s stays as it is: no run has written it", path);
    if (ok && ours) {
        ok = file_replace_begin(&f, path, err);
        if (ok)
            put_card(f.stream, run, history, results, name);
        ok = ok && file_replace_end(&f, true, err);
    }
    free(name);
    free(path);
    return ok;
}
