#include "cmd/run.h"

#include "cmd/agree.h"
#include "cmd/checkpoint_folders.h"
#include "cmd/config/engine_settings.h"
#include "cmd/config/table.h"
#include "cmd/evaluate.h"
#include "cmd/labels.h"
#include "cmd/live.h"
#include "cmd/memory_need.h"
#include "cmd/memory_plan.h"
#include "cmd/results.h"
#include "cmd/run_data.h"
#include "cmd/start.h"
#include "cmd/step.h"
#include "cmd/stop.h"
#include "cmd/summary.h"
#include "cmd/train.h"
#include "data/alloc.h"
#include "data/figures.h"
#include "data/file.h"
#include "data/log.h"
#include "model/plan/plan.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Without training: results go beside the model that they are of, or to where there is none. */
static bool check_results(const struct config *c, struct zf_error *err)
{
    char *model = zf_format("%s/model.safetensors", c->output_dir);
    bool fits = !file_exists(model) ||
                (c->model_name_or_path && file_is_same(c->model_name_or_path, c->output_dir));
    free(model);
    return fits || zf_fail(err,
                           "output_dir %s holds another model than the one to evaluate, whose "
                           "results would be taken for its own: choose another folder",
                           c->output_dir);
}

/* Whether output_dir holds what is not this run's own. To resume from the latest checkpoint where
 * there is none, the run may have died before its first one; a model it leaves in its end alone. */
static bool holds_others(const struct config *c, bool *others, struct zf_error *err)
{
    struct file_names names = {0};
    char *model = zf_format("%s/model.safetensors", c->output_dir);
    bool ok = !file_is_directory(c->output_dir) || file_list(c->output_dir, &names, err);
    *others = c->resume_from_checkpoint ? file_exists(model) : names.n > 0;
    file_names_free(&names);
    free(model);
    return ok;
}

/* output_dir must be one that this run may write into. It is made when nothing else can fail. */
static bool check_output(const struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    if (!c->output_dir || c->plan)
        return true;
    if (comm_rank(run->comm) == 0 && !folder_lock_check("output_dir", c->output_dir, err))
        return false;
    if (!c->do_train)
        return check_results(c, err);
    if (c->overwrite_output_dir && c->model_name_or_path &&
        checkpoint_is_in(c->model_name_or_path, c->output_dir))
        return zf_fail(err,
                       "model_name_or_path %s lies in output_dir, which --overwrite_output_dir "
                       "starts clean: choose another output_dir",
                       c->model_name_or_path);
    if (c->overwrite_output_dir ||
        (c->resume_from_checkpoint && strcmp(c->resume_from_checkpoint, "latest") != 0))
        return true;
    bool any, others;
    if (!checkpoint_is_any(c->output_dir, &any, err) || !holds_others(c, &others, err))
        return false;
    const bool taken = !any && others;
    return !taken || zf_fail(err,
                             "output_dir %s holds other files, and no checkpoint to go on from: "
                             "choose another folder or give --overwrite_output_dir",
                             c->output_dir);
}

/* The folder that a key names; where a model of the hub may be meant, how to get it. */
static bool need_folder(const char *key, const char *name, struct zf_error *err)
{
    const char *slash = strchr(name, '/');
    if (file_is_directory(name))
        return true;
    char *owner = zf_format("%.*s", slash ? (int)(slash - name) : 0, name);
    bool path = strchr("/.~", *name) || file_is_directory(owner) ||
                (slash && (!slash[1] || strchr(slash + 1, '/')));
    free(owner);
    if (path)
        return zf_fail(err, "%s is %s, but there is no such folder", key, name);
    return zf_fail(
        err,
        "%s is %s, but there is no such folder: \"scripts/download_gpt2.sh FOLDER %s\" "
        "fetches a GPT-2 of that name from the Hugging Face hub (config_name initialises "
        "one at random)",
        key, name, name);
}

/* config.json, or the preset: before the tokenizer, which other architectures have others of. */
static bool read_model_config(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    struct gpt_config *m = &run->model_config;
    const char *model = c->model_name_or_path;
    run->head_fits = true;
    if (!model)
        return file_is_directory(c->config_name) ? gpt_config_load(m, c->config_name, err)
                                                 : gpt_config_preset(m, c->config_name, err);
    return need_folder("model_name_or_path", model, err) && gpt_config_load(m, model, err);
}

/* Whether the model's answers are what the task asks for. */
static bool check_labels(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    return !c->model_name_or_path || labels_check(c->model_name_or_path, run->task,
                                                  c->ignore_mismatched_sizes, &run->head_fits, err);
}

static bool load_tokenizer(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    if (!need_folder("tokenizer_name", c->tokenizer_name, err))
        return false;
    run->tokenizer = tokenizer_load(c->tokenizer_name, err);
    return run->tokenizer != NULL;
}

/* What training writes must give the ids that were learned with; a plan is of a run that can be. */
static bool check_tokenizer(const struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    return !c->do_train || tokenizer_check_type(run->tokenizer, c->tokenizer_name,
                                                gpt_model_type(&run->model_config), err);
}

static void set_dropouts(struct gpt_config *m, const struct config *c)
{
    if (c->embd_pdrop >= 0)
        m->embd_pdrop = (float)c->embd_pdrop;
    if (c->attn_pdrop >= 0)
        m->attn_pdrop = (float)c->attn_pdrop;
    if (c->resid_pdrop >= 0)
        m->resid_pdrop = (float)c->resid_pdrop;
}

static void set_head(struct gpt_config *m, const struct glue_task *task)
{
    m->head = task->n_labels == 0   ? GPT_HEAD_LM
              : task->n_labels == 1 ? GPT_HEAD_REGRESS
                                    : GPT_HEAD_CLASSIFY;
    m->num_labels = task->n_labels;
}

/* What a preset has of the tokenizer. Where this puts nothing in front of a text, what ends one
 * also begins it, as with GPT-2, Qwen2.5 and SmolLM2. */
static void take_tokens(struct gpt_config *m, const struct tokenizer *t)
{
    const struct token_template around = tokenizer_template(t, false);
    const int eos = tokenizer_eos(t);
    m->vocab_size = tokenizer_vocab_size(t);
    m->bos_token_id = around.before > 0 ? around.ids[0] : eos;
    m->eos_token_id = m->pad_token_id = eos;
}

/* Where Transformers pads, model and tokenizer must mean the same token: the tokenizer's own, else
 * the model's, else what ends a text, to the model or, where that is no token to the tokenizer, to
 * this. */
static void align_padding(struct gpt_config *m, const struct tokenizer *t)
{
    const int own = tokenizer_pad(t), eos = tokenizer_eos(t);
    if (own >= 0)
        m->pad_token_id = own;
    else if (tokenizer_is_special(t, m->pad_token_id))
        return;
    else if (tokenizer_is_special(t, m->eos_token_id))
        m->pad_token_id = m->eos_token_id;
    else if (eos >= 0)
        m->pad_token_id = eos;
}

/* vocab_size is often rounded up, and by no more than this. */
#define MOST_UNUSED_ENTRIES 1024

static bool configure_model(struct run *run, struct zf_error *err)
{
    struct config *c = run->config;
    struct gpt_config *m = &run->model_config;
    const int vocab = tokenizer_vocab_size(run->tokenizer);
    const char *source = c->model_name_or_path ? c->model_name_or_path : c->config_name;
    if (!c->model_name_or_path && !file_is_directory(source)) /* a preset */
        take_tokens(m, run->tokenizer);
    if (vocab > m->vocab_size)
        return zf_fail(err, "the tokenizer has %d entries, but %s is a model of %d (vocab_size)",
                       vocab, source, m->vocab_size);
    if (m->vocab_size - vocab > MOST_UNUSED_ENTRIES)
        log_warn("the tokenizer has %d entries, but %s is a model of %d (vocab_size): is it this "
                 "model's?",
                 vocab, source, m->vocab_size);
    if (c->max_seq_length > m->n_positions) {
        log_warn("max_seq_length %d is more than the model's %s; %d is used", c->max_seq_length,
                 gpt_positions_key(m), m->n_positions);
        c->max_seq_length = m->n_positions;
    }
    if (c->model_name_or_path && run->task->n_labels == 0 && m->head != GPT_HEAD_LM)
        log_info("%s answers with labels; its score head is left out", source);
    align_padding(m, run->tokenizer);
    set_head(m, run->task);
    set_dropouts(m, c);
    return true;
}

/* What is best must be something that evaluation gives. */
static bool check_metric(const struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    struct zf_error why;
    return !c->do_train || !c->metric_for_best_model || c->eval_strategy == STRATEGY_NO ||
           evaluate_has_metric(run, c->metric_for_best_model, &why) ||
           config_clash(c, "metric_for_best_model", err, "%s", why.text);
}

/* Predictions alone overwrite nothing, unless they may. */
static bool check_predictions(const struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    bool ok = true;
    for (int i = 0; ok && !c->do_train && !c->overwrite_output_dir && i < run->n_test; i++)
        ok = predict_check_output(run, &run->test[i], err);
    return ok;
}

/* Threads of this rank. */
static int count_threads(const struct run *run)
{
    return run->config->num_threads > 0 ? run->config->num_threads : comm_core_threads(run->comm);
}

static int longest(const struct run *run)
{
    int n = run->train.max_length;
    for (int i = 0; i < run->n_dev; i++)
        n = run->dev[i].set.max_length > n ? run->dev[i].set.max_length : n;
    for (int i = 0; i < run->n_test; i++)
        n = run->test[i].set.max_length > n ? run->test[i].set.max_length : n;
    return n;
}

/* Whether every rank is to compute on a GPU, and can. */
static bool wants_cuda(const struct run *run)
{
    enum config_device device = run->config->device;
    bool here =
        device == CONFIG_DEVICE_CUDA || (device == CONFIG_DEVICE_AUTO && device_cuda_count() > 0);
    return comm_max(run->comm, !here) == 0;
}

/* The device and the ranks of a plan. */
static bool plan_device(struct run *run, struct zf_error *err)
{
    struct config *c = run->config;
    struct machine machine;
    if (comm_size(run->comm) > 1)
        return zf_fail(err, "a plan is one process: plan_ranks says how many ranks it has");
    if (!c->do_train)
        return zf_fail(err, "do_train is false, but plan is about training");
    if (!machine_load(&machine, c->plan, err))
        return false;
    run->comm = comm_create_planned(c->plan_ranks, (int)machine.ranks_per_host);
    run->device = device_plan_create(&machine, c->plan_ranks, NULL);
    c->bf16 |= run->device->dtype == DTYPE_BF16;
    return true;
}

/* One GPU for each rank of this machine, shared in turn where there are fewer. Collective. */
static bool choose_device(struct run *run, struct zf_error *err)
{
    struct config *c = run->config;
    live_stage("making the model", 0);
    if (c->plan)
        return plan_device(run, err);
    run->device =
        device_cpu(count_threads(run)); /* its threads serve the host's part in any case */
    if (!wants_cuda(run))
        return true;
    int devices = device_cuda_count();
    struct zf_error reason;
    run->device = device_cuda(devices > 0 ? comm_local_rank(run->comm) % devices : 0, &reason);
    bool ok =
        run->device || zf_fail(err, "device is \"%s\", but %.900s",
                               c->device == CONFIG_DEVICE_CUDA ? "cuda" : "auto", reason.text);
    if (!comm_all_ok(run->comm, ok, err))
        return false;
    if (memory_sharers(run->comm) > 1)
        log_warn("%d ranks of this machine share %d GPU(s)", comm_local_size(run->comm), devices);
    if (run->device->dtype == DTYPE_BF16 && !c->bf16) {
        if (config_is_given(c, "bf16"))
            log_info("bf16 is false, but parameters are bf16 on this device");
        c->bf16 = true;
    }
    return true;
}

/* Tokens of a micro-batch are counted in an int. */
static bool check_batches(const struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    int seqs = memory_model_size(c, 1).max_seqs;
    bool eval = !c->do_train || seqs > c->per_device_train_batch_size;
    int most = INT_MAX / (longest(run) > 0 ? longest(run) : 1);
    return seqs <= most ||
           zf_fail(err,
                   "per_device_%s_batch_size is %d, but with sequences of up to %d tokens it is at "
                   "most %d",
                   eval ? "eval" : "train", seqs, longest(run), most);
}

/* The weights come later, when there is an engine that wants them; whether they can is asked before
 * anything is made that takes time or writes a file. */
static bool create_model(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    const struct gpt_size *size = &run->size;
    run->model = gpt_create(run->device, &run->model_config, size);
    run->batches = batches_create(size->micro_batches, size->max_tokens, size->max_seqs);
    return c->plan || !c->model_name_or_path ||
           gpt_check_weights(run->model, c->model_name_or_path, run->head_fits, err);
}

static bool load_weights(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    bool head_is_new = false;
    if (!c->model_name_or_path) {
        gpt_init_weights(run->model, (uint64_t)c->seed);
        return true;
    }
    if (!run->head_fits)
        return gpt_load_weights_without_head(run->model, c->model_name_or_path, (uint64_t)c->seed,
                                             err);
    if (!gpt_load_weights(run->model, c->model_name_or_path, (uint64_t)c->seed, &head_is_new, err))
        return false;
    if (head_is_new)
        log_info("%s has no score head; a new one is initialised", c->model_name_or_path);
    return true;
}

static void take_values(void *context, size_t offset, const float *values, size_t n)
{
    struct run *run = context;
    agree_take_weights(run, values, n);
    engine_take_values(run->engine, offset, values, n);
}

static bool create_engine(struct run *run, struct zf_error *err)
{
    struct engine_config e = engine_settings(run->config, run->trace);
    e.values_follow = true;
    run->engine = engine_create(&e, run->device, run->comm, gpt_params(run->model),
                                gpt_param_data(run->model), gpt_grad_data(run->model), err);
    if (run->engine)
        step_connect(run->model, run->engine);
    return run->engine != NULL;
}

/* evaluate_split visits sequences in file order. */
static void fill_eval_order(struct run *run)
{
    int n = 0;
    for (int i = 0; i < RUN_MAX_SPLITS; i++) {
        n = run->dev[i].set.n_sequences > n ? run->dev[i].set.n_sequences : n;
        n = run->test[i].set.n_sequences > n ? run->test[i].set.n_sequences : n;
    }
    run->eval_order = zf_malloc(sizeof(int) * (size_t)n);
    for (int i = 0; i < n; i++)
        run->eval_order[i] = i;
}

/* Parts of a few, and many in whole ones. */
static struct figure epochs_text(double epochs)
{
    struct figure f = figure_count(epochs);
    if (epochs < 100)
        snprintf(f.text, sizeof f.text, "%.2f", epochs);
    return f;
}

static void announce(const struct run *run)
{
    const struct config *c = run->config;
    const struct param_table *p = gpt_params(run->model);
    log_info("%s: %s training, %s evaluation examples; GPT of %.2f M parameters (%d layers, width "
             "%d); %s tokenizer of %s; %d rank(s) on the %s device",
             run->task->title, figure_count(run->train.n_sequences).text,
             figure_count(run->dev[0].set.n_sequences).text, (double)p->n_parameters / 1e6,
             run->model_config.n_layer, run->model_config.n_embd, tokenizer_kind(run->tokenizer),
             figure_count(tokenizer_vocab_size(run->tokenizer)).text, comm_size(run->comm),
             run->device->name);
    if (comm_size(run->comm) > 1 && !c->plan && c->do_train)
        log_info("ranks exchange gradients by %s", comm_device_transport(run->comm));
    if (run->device->products)
        log_info("matrix products by %s, %d thread(s) a rank", run->device->products,
                 count_threads(run));
    const struct engine_memory memory = engine_memory(run->engine);
    if (memory.host_elements > 0)
        log_info("optimizer state of up to %.2f M parameters lives on the host, in %.2f bytes each",
                 (double)memory.host_elements / 1e6,
                 (double)memory.host / (double)memory.host_elements);
    if (c->do_train)
        log_info("%s steps of %d examples (%d a rank x %d accumulated), %s epochs",
                 figure_count(c->total_steps).text, c->train_batch_size,
                 c->per_device_train_batch_size, c->gradient_accumulation_steps,
                 epochs_text((double)c->total_steps / c->steps_per_epoch).text);
}

/* What a run is given: everything that can be wrong with it is found here. */
static bool read_input(struct run *run, struct zf_error *err)
{
    struct config *c = run->config;
    return check_output(run, err) && read_model_config(run, err) && run_open_data(run, err) &&
           check_labels(run, err) && load_tokenizer(run, err) && check_tokenizer(run, err) &&
           configure_model(run, err) && run_load_data(run, err) && check_metric(run, err) &&
           check_predictions(run, err) &&
           (!c->do_train || config_resolve_steps(c, run->train.n_sequences, err));
}

/* From now on this run alone writes into output_dir, where training cleans up when it begins. */
static bool take_output(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    if (c->plan || !c->output_dir || comm_rank(run->comm) != 0)
        return true;
    run->lock = file_make_directory(c->output_dir, err)
                    ? folder_lock_take("output_dir", c->output_dir, err)
                    : NULL;
    return run->lock && (c->do_train || checkpoint_clean_files(c->output_dir, err));
}

static bool create_parts(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    start_part("device and plan");
    if (!create_engine(run, err))
        return false;
    start_part("host memory");
    gpt_offer_values(run->model, take_values, run);
    live_stage(c->model_name_or_path ? "loading the weights" : "initialising the weights", 0);
    if (!c->plan && !load_weights(run, err))
        return false;
    fill_eval_order(run);
    return take_output(run, err);
}

static bool agree_on_first_weights(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    const char *from = c->model_name_or_path ? c->model_name_or_path : c->config_name;
    return c->plan || agree_on_weights(run, from, err);
}

bool run_create(struct run *run, struct config *config, struct comm *comm, struct zf_error *err)
{
    *run = (struct run){.config = config, .comm = comm, .task = config->task};
    start_part("program and MPI");
    live_stage("reading the data", 0);
    if (!comm_all_ok(comm, read_input(run, err) && check_batches(run, err), err) ||
        !agree_on_input(run, err))
        return false;
    start_part("data");
    if (!choose_device(run, err))
        return false;
    if (!gpt_fits_device(&run->model_config, run->device, err))
        return false;
    comm_attach(run->comm, run->device); /* before the plan: NCCL takes device memory of its own */
    if (!memory_plan(run, longest(run), err) || !comm_all_ok(comm, create_model(run, err), err))
        return false;
    if (config->trace && !(run->trace = trace_create(config->trace, comm, run->device, err)))
        return false;
    if (!comm_all_ok(comm, create_parts(run, err), err) || !agree_on_first_weights(run, err))
        return false;
    start_part("weights");
    live_stage_end();
    memory_tell(run);
    announce(run);
    return true;
}

bool run_destroy(struct run *run, struct zf_error *err)
{
    engine_destroy(run->engine);
    const bool whole = trace_destroy(run->trace, err);
    if (run->model) {
        gpt_destroy(run->model);
        batches_free(run->batches, run->size.micro_batches);
    }
    run_free_data(run);
    if (run->tokenizer)
        tokenizer_free(run->tokenizer);
    free(run->eval_order);
    folder_lock_release(run->lock);
    if (run->device && run->device->plan) {
        comm_destroy(run->comm);
        device_plan_destroy(run->device);
    }
    return whole;
}

/* What train() does for a run without training. */
static bool evaluate_only(struct run *run, json_t *results, struct zf_error *err)
{
    bool ok = true;
    for (int i = 0; ok && i < run->n_dev; i++)
        ok = evaluate_split(run, &run->dev[i], results, err);
    return ok;
}

/* After training a run that is asked to stop ends in them, where it has a checkpoint from which the
 * same command goes on; without one nothing could come of that command, and they come to their end.
 */
static bool predict_all(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    struct zf_error ignored;
    bool any = false, ok = true;
    if (c->do_train && run->n_test > 0 && comm_rank(run->comm) == 0)
        any = checkpoint_is_any(c->output_dir, &any, &ignored) && any;
    run->stoppable = comm_max(run->comm, any) > 0;
    for (int i = 0; ok && !run->stopped && i < run->n_test; i++) {
        stop_release();
        ok = predict_split(run, &run->test[i], err);
    }
    if (!ok || !run->stopped)
        return ok;
    const char *reason = stop_reason(run->comm);
    stop_finish(STOP_STATUS);
    log_info("stopped by %s; the model and its results are written, not all predictions: "
             "--resume_from_checkpoint latest makes them (exit status %d)",
             reason, STOP_STATUS);
    return true;
}

bool run_execute(struct run *run, struct zf_error *err)
{
    const struct config *c = run->config;
    json_t *results = json_object();
    bool ok = true;
    if (c->do_train)
        ok = train(run, results, err);
    else
        ok = evaluate_only(run, results, err);
    run->stoppable = false; /* the model and its results are there in a moment */
    ok = ok && (run->stopped ||
                comm_all_ok(run->comm,
                            comm_rank(run->comm) != 0 || results_write(run, results, err), err));
    ok = ok && (run->stopped || predict_all(run, err));
    if (ok && comm_rank(run->comm) == 0)
        summary_print(run);
    json_decref(results);
    return ok;
}
