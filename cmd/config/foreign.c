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
    {REFUSED(ARG("fsdp"), "use zero_optimization")},
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

    /* or what a run reports and leaves behind, and when */
    {ONLY(ARG("logging_strategy"), "steps", "the log is written every logging_steps")},
    {REFUSED(ARG("eval_on_start"),
             "nothing is evaluated before the first step: a run with do_eval alone does that")},
    {REFUSED(ARG("eval_delay"), "eval_strategy evaluates from the beginning")},
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

    /* and those that would not */
    {NOTED(ARG("pad_to_max_length"), "there is no padding here")},
    {NOTED(ARG("length_column_name"), "there is no padding here")},
    {NOTED(ARG("tf32"), "products are of bf16 on a GPU, and of fp32 elsewhere")},
    {NOTED(ARG("full_determinism"), "every run is deterministic")},
    {.name = "wall_clock_breakdown",
     .note = "trainer_log.jsonl has the time of a step, and trace that of its parts"},
    {.name = ZERO "offload_optimizer.pin_memory",
     .harmless = "true",
     .note = "with a GPU the host's memory is always pinned"},
    {.name = ZERO "offload_param.pin_memory",
     .harmless = "true",
     .note = "with a GPU the host's memory is always pinned"},

    /* DeepSpeed's keys that would change the result */
    {REFUSED("fp16", NO_FP16)},
    {REFUSED("amp", NO_FP16)},
    {REFUSED("torch_autocast", NO_FP16)},
    {ONLY("optimizer.params.bias_correction", "true", "AdamW here corrects its moments' bias")},
    {REFUSED("optimizer.params.amsgrad", NOT_HERE)},
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
    {REFUSED(ZERO "zenflow.steps_per_epoch", "the run counts them itself")},
    {REFUSED("wandb", CONFIG_NO_WANDB)},
    {REFUSED("comet", CONFIG_REPORTS)},
    {REFUSED("trackio", CONFIG_REPORTS)},

    /* and those that would not */
    {NOTED("optimizer.params.max_grad_norm", "use gradient_clipping")},
};

/* What has no bearing on a run here, names with a space behind each: Transformers' ... */
static const char ignored_arguments[] =
    "fp16_opt_level half_precision_backend gradient_checkpointing_kwargs "
    "activation_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode "
    "torch_empty_cache_steps use_liger_kernel liger_kernel_config use_cache "
    "logging_nan_inf_filter log_on_each_node log_level log_level_replica "
    "include_num_input_tokens_seen include_tokens_per_second include_for_metrics run_name "
    "project eval_accumulation_steps eval_do_concat_batches eval_use_gather_object hub_model_id "
    "hub_strategy hub_token hub_private_repo hub_always_push hub_revision fsdp_config "
    "dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
    "dataloader_prefetch_factor remove_unused_columns ddp_find_unused_parameters "
    "ddp_bucket_cap_mb ddp_broadcast_buffers ddp_backend skip_memory_metrics "
    "local_rank cache_dir overwrite_cache use_fast_tokenizer token trust_remote_code "
    "dataloader_multiprocessing_context dataloader_in_order ddp_static_graph trackio_space_id "
    "trackio_bucket_id trackio_static_space_id restore_callback_states_from_checkpoint "
    "use_auth_token jit_mode_eval tpu_num_cores tpu_metrics_debug fsdp_min_num_params "
    "fsdp_transformer_layer_cls_to_wrap use_legacy_prediction_loop include_inputs_for_metrics "
    "fp16_backend push_to_hub_model_id push_to_hub_organization push_to_hub_token mp_parameters "
    "torchdynamo ray_scope ";

/* ... and DeepSpeed's */
static const char ignored_deepspeed[] =
    "optimizer.params.torch_adam optimizer.params.fused optimizer.params.foreach "
    "optimizer.params.fp32_optimizer_states optimizer.legacy_fusion "
    "scheduler.params.last_batch_iteration bf16.check_grad_overflow bf16.check_overflow "
    "bf16.immediate_grad_update bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer prescale_gradients "
    "gradient_predivide_factor communication_data_type seq_parallel_communication_data_type "
    "managed_gradient_accumulation sparse_gradients disable_allgather disable_python_gc "
    "dump_state memory_breakdown vocabulary_size "
    "use_data_before_expert_parallelism log_level activation_checkpointing flops_profiler "
    "comms_logger comms_config timers autotuning aio checkpoint data_types datastates_ckpt "
    "compile nebula graph_harvesting zero_optimization.allgather_partitions "
    "zero_optimization.allgather_bucket_size zero_optimization.reduce_bucket_size "
    "zero_optimization.reduce_scatter zero_optimization.use_multi_rank_bucket_allreduce "
    "zero_optimization.overlap_comm zero_optimization.contiguous_gradients "
    "zero_optimization.compute_grad_norm zero_optimization.load_from_fp32_weights "
    "zero_optimization.elastic_checkpoint zero_optimization.ignore_unused_parameters "
    "zero_optimization.legacy_stage1 zero_optimization.round_robin_gradients "
    "zero_optimization.parameter_alignment zero_optimization.sub_group_size "
    "zero_optimization.cpu_offload_use_pin_memory "
    "zero_optimization.stage3_param_persistence_threshold "
    "zero_optimization.stage3_model_persistence_threshold "
    "zero_optimization.stage3_max_live_parameters zero_optimization.stage3_max_reuse_distance "
    "zero_optimization.stage3_gather_16bit_weights_on_model_save "
    "zero_optimization.stage3_gather_fp16_weights_on_model_save "
    "zero_optimization.stage3_module_granularity_threshold "
    "zero_optimization.stage3_use_all_reduce_for_fetch_params "
    "zero_optimization.stage3_allgather_sequential zero_optimization.zero_hpz_partition_size "
    "zero_optimization.memory_efficient_linear zero_optimization.override_module_apply "
    "zero_optimization.log_trace_cache_warnings zero_optimization.enable_sanity_checks "
    "zero_optimization.leaf_module zero_optimization.offload_param.nvme_path "
    "zero_optimization.offload_param.buffer_size zero_optimization.offload_param.max_in_cpu "
    "zero_optimization.offload_optimizer.nvme_path "
    "zero_optimization.offload_optimizer.buffer_count "
    "zero_optimization.offload_optimizer.pipeline "
    "zero_optimization.offload_optimizer.pipeline_read "
    "zero_optimization.offload_optimizer.pipeline_write "
    "zero_optimization.offload_optimizer.fast_init zero_optimization.offload_optimizer.ratio "
    "zero_optimization.offload_optimizer.super_offload "
    "zero_optimization.offload_optimizer.cpuadam_cores_perc ";

/* True where `path` is `name` or lies in the block of that name. */
static bool covers(const char *name, const char *path)
{
    size_t n = strlen(name);
    return strncmp(path, name, n) == 0 && (path[n] == 0 || path[n] == '.');
}

static bool is_listed(const char *names, const char *path)
{
    char name[128];
    for (size_t n; *names; names += n + 1) {
        n = strcspn(names, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, names);
        if (covers(name, path))
            return true;
    }
    return false;
}

bool config_find_foreign(const char *path, struct config_foreign *out)
{
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (covers(special[i].name, path)) {
            *out = special[i];
            return true;
        }
    *out = (struct config_foreign){.name = path};
    if (strncmp(path, CONFIG_ARGUMENTS, strlen(CONFIG_ARGUMENTS)) == 0)
        return is_listed(ignored_arguments, path + strlen(CONFIG_ARGUMENTS));
    return is_listed(ignored_deepspeed, path);
}

static bool is_idle_text(const char *text)
{
    static const char *const idle[] = {"", "none", "no", "false", "0", "auto"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (strcasecmp(text, idle[i]) == 0)
            return true;
    return false;
}

/* Whether the value's text, without a string's quotes, is like the pattern; or "auto". */
static bool is_like(const char *pattern, const json_t *value)
{
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
    if (foreign->harmless && !json_is_null(value))
        return is_like(foreign->harmless, value);
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
