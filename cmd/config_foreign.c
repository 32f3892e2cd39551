/* Keys of DeepSpeed's and Transformers' that have no field here. */
#include "cmd/config_table.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#define ZERO     "zero_optimization."
#define NO_FP16  "half precision here is bf16: use bf16"
#define NOT_HERE "that is not available here"

#define REFUSED(path, why)       .name = path, .refused = why
#define ONLY(path, pattern, why) .name = path, .harmless = pattern, .refused = why
#define NOTED(path, why)         .name = path, .note = why

static const struct config_foreign special[] = {
    /* training_arguments that would change the result */
    {REFUSED(CONFIG_ARGUMENTS "fp16", NO_FP16)},
    {ONLY(CONFIG_ARGUMENTS "optim", "adamw*", "the optimizer is AdamW")},
    {REFUSED(CONFIG_ARGUMENTS "label_smoothing_factor", NOT_HERE)},
    {REFUSED(CONFIG_ARGUMENTS "neftune_noise_alpha", NOT_HERE)},
    {REFUSED(CONFIG_ARGUMENTS "auto_find_batch_size", NOT_HERE)},
    {REFUSED(CONFIG_ARGUMENTS "fsdp", "use zero_optimization")},
    {REFUSED(CONFIG_ARGUMENTS "dataset_name", "data are read from data_dir or files")},
    {ONLY(CONFIG_ARGUMENTS "logging_strategy", "steps", "the log is written every logging_steps")},

    /* and those that would not */
    {NOTED(CONFIG_ARGUMENTS "pad_to_max_length", "there is no padding here")},
    {NOTED(CONFIG_ARGUMENTS "report_to", "use csv_monitor or trainer_log.jsonl")},
    {NOTED(CONFIG_ARGUMENTS "use_cpu", "use device")},
    {NOTED(CONFIG_ARGUMENTS "no_cuda", "use device")},
    {NOTED(CONFIG_ARGUMENTS "deepspeed", "this file is the configuration")},
    {NOTED(CONFIG_ARGUMENTS "dataloader_drop_last", "every example is used")},
    {NOTED(CONFIG_ARGUMENTS "group_by_length", "there is no padding here")},
    {NOTED(CONFIG_ARGUMENTS "length_column_name", "there is no padding here")},
    {NOTED(CONFIG_ARGUMENTS "data_seed", "use seed")},
    {ONLY(CONFIG_ARGUMENTS "train_sampling_strategy", "random", "every epoch is shuffled")},

    /* DeepSpeed's keys that would change the result */
    {REFUSED("fp16", NO_FP16)},
    {REFUSED("amp", NO_FP16)},
    {REFUSED("torch_autocast", NO_FP16)},
    {ONLY("optimizer.params.bias_correction", "true", "AdamW here corrects its moments' bias")},
    {REFUSED("optimizer.params.amsgrad", NOT_HERE)},
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
    {REFUSED(ZERO "offload_param", "parameters stay on the device")},
    {REFUSED(ZERO "cpu_offload_param", "parameters stay on the device")},
    {REFUSED(ZERO "cpu_offload", "use zero_optimization.offload_optimizer.device")},
    {REFUSED(ZERO "zero_quantized_weights", NOT_HERE)},
    {REFUSED(ZERO "zero_quantized_gradients", NOT_HERE)},
    {REFUSED(ZERO "zenflow.steps_per_epoch", "the run counts them itself")},

    /* and those that would not */
    {NOTED("tensorboard", "use csv_monitor")},
    {NOTED("wandb", "use csv_monitor")},
    {NOTED("comet", "use csv_monitor")},
    {NOTED("optimizer.params.max_grad_norm", "use gradient_clipping")},
};

/* What has no bearing on a run here, names with a space behind each: Transformers' ... */
static const char ignored_arguments[] =
    "optim_args optim_target_modules lr_scheduler_kwargs average_tokens_across_devices "
    "bf16_full_eval fp16_full_eval fp16_opt_level half_precision_backend tf32 "
    "gradient_checkpointing_kwargs activation_checkpointing "
    "activation_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode "
    "torch_empty_cache_steps use_liger_kernel liger_kernel_config use_cache logging_dir "
    "logging_nan_inf_filter log_on_each_node log_level log_level_replica "
    "include_num_input_tokens_seen include_tokens_per_second include_for_metrics run_name "
    "project eval_delay eval_on_start eval_accumulation_steps eval_do_concat_batches "
    "eval_use_gather_object batch_eval_metrics prediction_loss_only save_only_model "
    "save_on_each_node save_safetensors push_to_hub hub_model_id hub_strategy hub_token "
    "hub_private_repo hub_always_push hub_revision ignore_data_skip full_determinism "
    "accelerator_config parallelism_config fsdp_config dataloader_num_workers "
    "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
    "remove_unused_columns label_names ddp_find_unused_parameters ddp_bucket_cap_mb "
    "ddp_broadcast_buffers ddp_backend ddp_timeout debug skip_memory_metrics local_rank "
    "dataset_config_name cache_dir overwrite_cache use_fast_tokenizer model_revision token "
    "trust_remote_code ignore_mismatched_sizes ";

/* ... and DeepSpeed's */
static const char ignored_deepspeed[] =
    "optimizer.params.torch_adam optimizer.params.fused optimizer.params.foreach "
    "optimizer.params.fp32_optimizer_states optimizer.legacy_fusion "
    "scheduler.params.last_batch_iteration bf16.check_grad_overflow bf16.check_overflow "
    "bf16.immediate_grad_update bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer prescale_gradients "
    "gradient_predivide_factor communication_data_type seq_parallel_communication_data_type "
    "managed_gradient_accumulation sparse_gradients disable_allgather disable_python_gc "
    "dump_state memory_breakdown vocabulary_size dataloader_drop_last "
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
    "zero_optimization.stage3_prefetch_bucket_size "
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
    "zero_optimization.leaf_module zero_optimization.offload_optimizer.nvme_path "
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

static bool is_idle_text(const struct config_foreign *foreign, const char *text)
{
    static const char *const idle[] = {"", "none", "no", "false", "0", "auto"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (strcasecmp(text, idle[i]) == 0)
            return true;
    return foreign->harmless && fnmatch(foreign->harmless, text, 0) == 0;
}

bool config_is_harmless(const struct config_foreign *foreign, const json_t *value)
{
    const char *member;
    json_t *item;
    size_t i;
    if (json_is_string(value))
        return is_idle_text(foreign, json_string_value(value));
    if (json_is_boolean(value))
        return json_is_true(value) == (foreign->harmless && strcmp(foreign->harmless, "true") == 0);
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
