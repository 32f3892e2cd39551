/* Keys of DeepSpeed's and Transformers' that have no field here. */
#include "cmd/config/table.h"
#include "data/alloc.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZERO     "zero_optimization."
#define NO_FP16  "half precision here is bf16: use bf16"
#define NOT_HERE "that is not available here"
#define WHOLE_MODEL                                                                                \
    "all parameters are trained, as they are: where memory is short, offload_optimizer and "       \
    "offload_param find it"

#define REFUSED(path, why)        .name = path, .refused = why
#define ONLY(path, patterns, why) .name = path, .harmless = patterns, .refused = why
#define NOTED(path, why)          .name = path, .note = why
#define ARG(key)                  CONFIG_ARGUMENTS key
#define N_ROWS(table)             (sizeof table / sizeof *table)

static const struct config_foreign special[] = {
    /* training_arguments that would change the result */
    {REFUSED(ARG("fp16"), NO_FP16)},
    {REFUSED(ARG("fp16_full_eval"), NO_FP16)},
    {REFUSED(ARG("bf16_full_eval"), "evaluation computes as training does: use bf16")},
    {ONLY(ARG("optim"),
          "@(adamw_torch|adamw_torch_fused|adamw_torch_xla|adamw_torch_npu_fused|adamw_hf|"
          "adamw_apex_fused)",
          "the optimizer is AdamW, which is \"adamw_torch\"")},
    {REFUSED(ARG("optim_args"), "AdamW has adam_beta1, adam_beta2 and adam_epsilon")},
    {REFUSED(ARG("optim_target_modules"), "the optimizer is AdamW, on all parameters")},
    {REFUSED(ARG("adafactor"), "the optimizer is AdamW")},
    {REFUSED(ARG("lr_scheduler_kwargs"),
             "the schedules of lr_scheduler_type take no arguments here: use DeepSpeed's scheduler "
             "block")},
    {REFUSED(ARG("per_gpu_train_batch_size"), "use per_device_train_batch_size")},
    {REFUSED(ARG("per_gpu_eval_batch_size"), "use per_device_eval_batch_size")},
    {REFUSED(ARG("label_smoothing_factor"), NOT_HERE)},
    {REFUSED(ARG("neftune_noise_alpha"), NOT_HERE)},
    {REFUSED(ARG("auto_find_batch_size"), NOT_HERE)},
    {ONLY(ARG("past_index"), "-1", NOT_HERE)},
    {REFUSED(ARG("fsdp"), "there is no FSDP here: use zero_optimization")},
    {REFUSED(ARG("parallelism_config"), "there is data parallelism alone")},
    /* any block but one that splits batches; and no file */
    {ONLY(ARG("accelerator_config"), "!(*\"split_batches\":true*|*[!}])",
          "batches are per_device_train_batch_size for each rank: use train_batch_size")},
    {REFUSED(ARG("deepspeed"), "this file is the configuration: put its keys here")},
    {REFUSED(ARG("use_mps_device"), "devices are cuda and cpu")},
    {ONLY(ARG("average_tokens_across_devices"), "true",
          "the loss is the mean over the examples of all ranks")},
    {ONLY(ARG("data_seed"), "", "the order of the examples follows seed")},
    {REFUSED(ARG("dataloader_drop_last"), "every example is used")},
    {REFUSED(ARG("group_by_length"), "every epoch is shuffled; there is no padding to save")},
    {ONLY(ARG("train_sampling_strategy"), "random", "every epoch is shuffled")},
    {REFUSED(ARG("ignore_data_skip"), "a run goes on with the examples that it had not reached")},
    {REFUSED(ARG("dataset_name"), "data are read from data_dir or files")},
    {REFUSED(ARG("dataset_config_name"), "data are read from data_dir or files")},
    {ONLY(ARG("model_revision"), "main", "a folder has no revisions: download that one")},
    {REFUSED(ARG("label_names"), "the labels are the task's column")},
    {ONLY(ARG("finetuning_type"), "full", WHOLE_MODEL)},
    {REFUSED(ARG("adapter"), WHOLE_MODEL)},
    {REFUSED(ARG("use_peft"), WHOLE_MODEL)},
    {REFUSED(ARG("lora_r"), WHOLE_MODEL)},
    {REFUSED(ARG("lora_rank"), WHOLE_MODEL)},
    {REFUSED(ARG("lora_alpha"), WHOLE_MODEL)},
    {REFUSED(ARG("load_in_4bit"), WHOLE_MODEL)},
    {REFUSED(ARG("load_in_8bit"), WHOLE_MODEL)},

    /* the same by other names: of run_clm.py, TRL, LLaMA-Factory and Axolotl */
    {REFUSED(ARG("block_size"), "use max_seq_length")},
    {REFUSED(ARG("max_length"), "use max_seq_length")},
    {REFUSED(ARG("cutoff_len"), "use max_seq_length")},
    {REFUSED(ARG("sequence_len"), "use max_seq_length")},
    {REFUSED(ARG("dataset"), "data are read from files: use train_file")},
    {REFUSED(ARG("datasets"), "data are read from files: use train_file")},
    {REFUSED(ARG("dataset_text_field"), "use text_column")},
    {REFUSED(ARG("val_size"), "use validation_split_percentage")},
    {REFUSED(ARG("val_set_size"), "use validation_split_percentage")},
    {REFUSED(ARG("base_model"), "use model_name_or_path")},
    {REFUSED(ARG("micro_batch_size"), "use per_device_train_batch_size")},
    {REFUSED(ARG("num_epochs"), "use num_train_epochs")},
    {REFUSED(ARG("template"), "messages are written in the model's own chat format")},
    {REFUSED(ARG("chat_template"), "messages are written in the model's own chat format")},

    /* or what a run reports and leaves behind, and when */
    {REFUSED(ARG("eval_on_start"),
             "nothing is evaluated before the first step: a run with do_eval alone does that")},
    {REFUSED(ARG("prediction_loss_only"), "an evaluation has the task's metrics")},
    {REFUSED(ARG("batch_eval_metrics"), "metrics are over the whole split")},
    {REFUSED(ARG("save_only_model"), "a checkpoint has all that it takes to go on: for the model "
                                     "alone, at the end, use save_strategy \"no\"")},
    {REFUSED(ARG("save_on_each_node"), "rank 0 alone writes")},
    {ONLY(ARG("save_safetensors"), "true", "weights are written as safetensors")},
    {REFUSED(ARG("enable_jit_checkpoint"), NOT_HERE)},
    {REFUSED(ARG("push_to_hub"), "nothing is uploaded from here: output_dir is a model's folder, "
                                 "which \"hf upload\" takes")},
    {REFUSED(ARG("debug"), NOT_HERE)},

    /* and some which would not */
    {.name = ARG("local_rank"),
     .harmless = "@(-1|0)",
     .note = "mpirun or the queue says which rank this is"},
    {.name = "wall_clock_breakdown",
     .note = "trainer_log.jsonl has the time of a step, and trace that of its parts"},
    {.name = ZERO "offload_optimizer.pin_memory",
     .harmless = "true",
     .note = "with a GPU what copies cross is always pinned, and the state's arrays never"},
    {.name = ZERO "offload_param.pin_memory",
     .harmless = "true",
     .note = "with a GPU parameters on the host are always pinned"},

    /* DeepSpeed's keys that would change the result */
    {REFUSED("fp16", NO_FP16)},
    {REFUSED("amp", NO_FP16)},
    {REFUSED("torch_autocast", NO_FP16)},
    {ONLY("optimizer.params.bias_correction", "true", "AdamW here corrects its moments' bias")},
    {REFUSED("optimizer.params.amsgrad", NOT_HERE)},
    {ONLY("optimizer.params.fp32_optimizer_states", "true", "optimizer state is fp32")},
    {REFUSED("bf16.bf16_optimizer_states", "optimizer state is fp32")},
    {REFUSED("bf16.bf16_master_weights_and_grads", "parameters in bf16 have fp32 masters")},
    {ONLY("scheduler.params.last_batch_iteration", "-1", "a schedule begins with the run")},
    {REFUSED("dataloader_drop_last", "every example is used")},
    {ONLY("gradient_allreduce_op", "mean", "gradients are averaged over the ranks")},
    {REFUSED("data_efficiency", NOT_HERE)},
    {REFUSED("curriculum_learning", NOT_HERE)},
    {REFUSED("progressive_layer_drop", NOT_HERE)},
    {REFUSED("compression_training", NOT_HERE)},
    {REFUSED("quantize_training", NOT_HERE)},
    {REFUSED("weight_quantization", NOT_HERE)},
    {REFUSED("sparse_attention", NOT_HERE)},
    {REFUSED("elasticity", NOT_HERE)},
    {REFUSED("eigenvalue", NOT_HERE)},
    {REFUSED("tensor_parallel", NOT_HERE)},
    {REFUSED("expert_parallel", NOT_HERE)},
    {REFUSED("pipeline", NOT_HERE)},
    {REFUSED("hybrid_engine", NOT_HERE)},
    {REFUSED(ZERO "cpu_offload_param", "use zero_optimization.offload_param.device")},
    {REFUSED(ZERO "cpu_offload", "use zero_optimization.offload_optimizer.device")},
    {REFUSED(ZERO "zero_quantized_weights", NOT_HERE)},
    {REFUSED(ZERO "zero_quantized_gradients", NOT_HERE)},
    {REFUSED(ZERO "zero_quantized_nontrainable_weights", NOT_HERE)},
    {REFUSED(ZERO "zeropp_loco_param", NOT_HERE)},
    {REFUSED("autotuning",
             "nothing is tuned here: \"zf-bench train --compare\" sets ways of keeping "
             "the optimizer's state side by side")},
    {REFUSED("nebula", "checkpoints are folders in output_dir")},
    {ONLY(
        "checkpoint", "!(*\"load_universal\":true*|*\"use_node_local_storage\":true*)",
        "checkpoints are folders in output_dir, which all ranks read and any number of ranks goes "
        "on from")},
    {REFUSED("communication_data_type",
             "ranks exchange gradients in the type that they are computed in")},
    {REFUSED(ZERO "zenflow.steps_per_epoch", "the run counts them itself")},
    {REFUSED("wandb", CONFIG_NO_WANDB)},
    {REFUSED("comet", CONFIG_REPORTS)},
    {REFUSED("trackio", CONFIG_REPORTS)},

    /* and those that would not */
    {NOTED("optimizer.params.max_grad_norm", "use gradient_clipping")},
};

/* What has no bearing on a run here, and why: names with a space behind each, and those whose
 * default is not false, 0 or "none" with it. Transformers' ... */
static const struct idle {
    const char *why, *names;
} idle_arguments[] = {
    {"there is no padding here", "pad_to_max_length=true length_column_name=length "},
    {"products are of bf16 on a GPU, and of fp32 elsewhere", "tf32 "},
    {"every run is deterministic", "full_determinism "},
    {"it is one of PyTorch's ways to the same numbers",
     "torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps "
     "use_liger_kernel liger_kernel_config use_cache gradient_checkpointing_kwargs "
     "activation_checkpointing_kwargs jit_mode_eval torchdynamo mp_parameters "},
    {"it belongs to fp16, which is refused",
     "fp16_opt_level=O1 half_precision_backend fp16_backend "},
    {"all data are in memory before the first step",
     "dataloader_num_workers dataloader_pin_memory=true dataloader_persistent_workers "
     "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order=true "
     "remove_unused_columns=true overwrite_cache "},
    {"models and tokenizers are folders, and no code in them is run",
     "cache_dir use_fast_tokenizer=true token trust_remote_code use_auth_token "},
    {"ranks exchange by NCCL or MPI; there is no DDP or FSDP",
     "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph "
     "ddp_backend fsdp_config fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap "},
    {"predictions stay in memory until all metrics are computed, over all ranks",
     "eval_accumulation_steps eval_do_concat_batches=true eval_use_gather_object "
     "include_for_metrics include_inputs_for_metrics use_legacy_prediction_loop "},
    {"rank 0 alone speaks, and steps whose loss is not finite are said and skipped",
     "log_level=passive log_level_replica=warning log_on_each_node=true "
     "logging_nan_inf_filter=true "},
    {"trainer_state.json has num_input_tokens_seen, and trainer_log.jsonl tokens_per_second, in "
     "any case",
     "include_num_input_tokens_seen include_tokens_per_second "},
    {"memory is planned, and said, before the first step", "skip_memory_metrics=true "},
    {"a resumed run goes on with early stopping as it was in any case",
     "restore_callback_states_from_checkpoint "},
    {"it is a name for a tracker that is not available here",
     "run_name project=huggingface trackio_space_id trackio_bucket_id "
     "trackio_static_space_id "},
    {"nothing is uploaded from here",
     "hub_model_id hub_strategy=every_save hub_token hub_private_repo hub_always_push "
     "hub_revision push_to_hub_model_id push_to_hub_organization push_to_hub_token "},
    {"there are no TPUs here", "tpu_num_cores tpu_metrics_debug "},
    {"there is no search for hyperparameters here", "ray_scope=last "},
};

/* ... and DeepSpeed's */
static const struct idle idle_deepspeed[] = {
    {"AdamW is computed in one way",
     "optimizer.params.torch_adam optimizer.params.fused optimizer.params.foreach "
     "optimizer.legacy_fusion zero_force_ds_cpu_optimizer=true zero_allow_untested_optimizer "
     "zero_optimization.legacy_stage1 zero_optimization.ignore_unused_parameters=true "},
    {"the gradient's norm is computed, and a step whose gradient is not finite skipped, in any "
     "case",
     "bf16.check_grad_overflow=true bf16.check_overflow=true bf16.immediate_grad_update "
     "zero_optimization.compute_grad_norm=true "},
    {"ranks exchange what the engine needs, when it needs it",
     "prescale_gradients gradient_predivide_factor=1 "
     "seq_parallel_communication_data_type sparse_gradients disable_allgather comms_config "
     "zero_optimization.allgather_partitions=true "
     "zero_optimization.allgather_bucket_size=500000000 zero_optimization.reduce_scatter=true "
     "zero_optimization.reduce_bucket_size=500000000 "
     "zero_optimization.use_multi_rank_bucket_allreduce=true zero_optimization.overlap_comm "
     "zero_optimization.contiguous_gradients=true zero_optimization.round_robin_gradients "
     "zero_optimization.parameter_alignment zero_optimization.zero_hpz_partition_size=1 "
     "zero_optimization.mics_shard_size=-1 zero_optimization.mics_hierarchical_params_gather "},
    {"a step's micro-batches go through each layer together",
     "managed_gradient_accumulation=true data_types "},
    {"offload_param.buffer_count says how many blocks' parameters a device holds",
     "zero_optimization.sub_group_size=1000000000 "
     "zero_optimization.stage3_param_persistence_threshold=100000 "
     "zero_optimization.stage3_model_persistence_threshold=9223372036854775807 "
     "zero_optimization.stage3_max_live_parameters=1000000000 "
     "zero_optimization.stage3_max_reuse_distance=1000000000 "
     "zero_optimization.stage3_module_granularity_threshold "
     "zero_optimization.stage3_partition_stream_chunk_size "
     "zero_optimization.stage3_use_all_reduce_for_fetch_params "
     "zero_optimization.stage3_allgather_sequential "
     "zero_optimization.memory_efficient_linear=true "
     "zero_optimization.override_module_apply=true zero_optimization.leaf_module "
     "zero_optimization.offload_param.buffer_size=100000000 "
     "zero_optimization.offload_param.max_in_cpu=1000000000 "},
    {"host and device share no state: what is offloaded is updated on the host, in num_threads",
     "zero_optimization.offload_optimizer.ratio=1 "
     "zero_optimization.offload_optimizer.super_offload "
     "zero_optimization.offload_optimizer.cpuadam_cores_perc=0.8 "
     "zero_optimization.cpu_offload_use_pin_memory "},
    {"state is offloaded to the host, not to files",
     "aio zero_optimization.offload_param.nvme_path "
     "zero_optimization.offload_optimizer.nvme_path "
     "zero_optimization.offload_optimizer.buffer_count=4 "
     "zero_optimization.offload_optimizer.pipeline "
     "zero_optimization.offload_optimizer.pipeline_read "
     "zero_optimization.offload_optimizer.pipeline_write "
     "zero_optimization.offload_optimizer.fast_init "
     "zero_optimization.save_muon_momentum_buffer_in_memory "},
    {"every checkpoint has the whole model's weights, and the masters that go with them",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save "
     "zero_optimization.stage3_gather_fp16_weights_on_model_save "
     "zero_optimization.load_from_fp32_weights=true zero_optimization.elastic_checkpoint "
     "zero_optimization.pipeline_loading_checkpoint datastates_ckpt "},
    {"it is one of PyTorch's ways to the same numbers; see gradient_checkpointing",
     "compile graph_harvesting disable_python_gc activation_checkpointing "},
    {"trainer_log.jsonl has the time and traffic of steps, and trace a timeline of them",
     "dump_state memory_breakdown log_level flops_profiler comms_logger timers "
     "zero_optimization.log_trace_cache_warnings zero_optimization.enable_sanity_checks "},
    {"the model is what model_name_or_path or config_name says",
     "vocabulary_size use_data_before_expert_parallelism "},
};

/* True where `path` is `name` or lies in the block of that name. */
static bool covers(const char *name, const char *path)
{
    size_t n = strlen(name);
    return strncmp(path, name, n) == 0 && (path[n] == 0 || path[n] == '.');
}

/* Whether a list has this path, or a block that it lies in; with its default, where the list has
 * one. */
static bool is_listed(const char *names, const char *path, struct config_foreign *out)
{
    char name[128];
    for (size_t n; *names; names += n + 1) {
        n = strcspn(names, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, names);
        char *equals = strchr(name, '=');
        if (equals)
            *equals = 0;
        if (!covers(name, path))
            continue;
        snprintf(out->standard, sizeof out->standard, "%s", equals ? equals + 1 : "");
        return true;
    }
    return false;
}

static bool find_idle(const struct idle *rows, size_t n, const char *path,
                      struct config_foreign *out)
{
    for (size_t i = 0; i < n; i++)
        if (is_listed(rows[i].names, path, out)) {
            out->note = rows[i].why;
            return true;
        }
    return false;
}

bool config_find_foreign(const char *path, struct config_foreign *out)
{
    const bool is_argument = strncmp(path, CONFIG_ARGUMENTS, strlen(CONFIG_ARGUMENTS)) == 0;
    for (size_t i = 0; i < N_ROWS(special); i++)
        if (covers(special[i].name, path)) {
            *out = special[i];
            return true;
        }
    *out = (struct config_foreign){.name = path};
    return is_argument ? find_idle(idle_arguments, N_ROWS(idle_arguments),
                                   path + strlen(CONFIG_ARGUMENTS), out)
                       : find_idle(idle_deepspeed, N_ROWS(idle_deepspeed), path, out);
}

static bool is_idle_text(const char *text)
{
    static const char *const idle[] = {"", "none", "no", "false", "0", "auto"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (strcasecmp(text, idle[i]) == 0)
            return true;
    return false;
}

/* Whether the value's text, without a string's quotes, is like the pattern; or "auto". A number is
 * like another spelling of itself. */
static bool is_like(const char *pattern, const json_t *value)
{
    char *end;
    const double number = strtod(pattern, &end);
    if (json_is_number(value) && end != pattern && !*end && json_number_value(value) == number)
        return true;
    char *text = json_is_string(value) ? zf_strdup(json_string_value(value))
                                       : config_dump(value, JSON_COMPACT);
    bool like =
        strcmp(text, "auto") == 0 || fnmatch(pattern, text, FNM_EXTMATCH | FNM_CASEFOLD) == 0;
    free(text);
    return like;
}

bool config_is_harmless(const struct config_foreign *foreign, const json_t *value)
{
    const char *member;
    json_t *item;
    size_t i;
    const char *pattern = *foreign->standard ? foreign->standard : foreign->harmless;
    if (pattern && !json_is_null(value))
        return is_like(pattern, value);
    if (json_is_string(value))
        return is_idle_text(json_string_value(value));
    if (json_is_boolean(value))
        return !json_is_true(value);
    if (json_is_number(value))
        return json_number_value(value) == 0;
    if (json_object_get(value, "enabled"))
        return config_is_harmless(foreign, json_object_get(value, "enabled"));
    if (json_object_get(value, "device"))
        return config_is_harmless(foreign, json_object_get(value, "device"));
    json_object_foreach((json_t *)value, member, item)
    {
        if (!config_is_harmless(foreign, item))
            return false;
    }
    json_array_foreach(value, i, item)
    {
        if (!config_is_harmless(foreign, item))
            return false;
    }
    return true; /* null, or nothing in it */
}
