#!/usr/bin/env bash
# Blocks' parameters on the host, in fewer slots than there are blocks: a run, its checkpoints and what
# it evaluates are, to the bit, those of a run that has all of them on the device.

. tests/e2e/lib/common.sh "$@"
. tests/e2e/lib/deep_models.sh 6
need python3

deep=("${tiny[@]}" --config_name "$scratch/gpt2" --max_steps 8 --eval_strategy steps --eval_steps 3)
there=(--zero_optimization.stage 3 --zero_optimization.offload_param.device cpu
    --zero_optimization.offload_param.buffer_count 2)
zenflow=("$train" --config "$steady/zenflow.json" "${deep[@]}")

same() { # same WHAT FOLDER FOLDER: models, and what was logged on the way
    check "$1: the same model" cmp "$2/model.safetensors" "$3/model.safetensors"
    check "$1: the same losses, training and evaluating" compare "$2/trainer_log.jsonl" \
        "$3/trainer_log.jsonl" 0
}

small="--per_device_train_batch_size 5 --gradient_accumulation_steps 3 --train_batch_size 15"
saving="--save_strategy steps --save_steps 3"
n=0
for options in "gpt2 sst2 $saving" "llama texts $saving" "gpt2 sst2 --zero_optimization.zenflow.accumulate host" \
    "gpt2 sst2 --zero_optimization.zenflow.offload" "gpt2 sst2 --bf16.enabled" "gpt2 sst2 $small" \
    "gpt2 sst2 $small --gradient_checkpointing --zero_optimization.zenflow.accumulate host" \
    "qwen3 sst2 $small --bf16.enabled" \
    "qwen3 texts $small --gradient_checkpointing --zero_optimization.zenflow.offload"; do
    here=$scratch/here-$n away=$scratch/away-$n
    # shellcheck disable=SC2206
    set=($options)
    learns "${set[@]:0:2}"
    check "$options: on the device" "${zenflow[@]}" "${learns[@]}" "${set[@]:2}" --output_dir "$here"
    check "$options: on the host" "${zenflow[@]}" "${learns[@]}" "${set[@]:2}" "${there[@]}" --output_dir "$away"
    same "$options" "$here" "$away"
    n=$((n + 1))
done
offload=("$train" --config configs/zero_offload.json "${deep[@]}")
check "ZeRO-Offload: on the device" "${offload[@]}" --output_dir "$scratch/offload"
check "ZeRO-Offload: on the host" "${offload[@]}" "${there[@]}" --output_dir "$scratch/offload-away"
same "ZeRO-Offload" "$scratch/offload" "$scratch/offload-away"

# A checkpoint says nothing of places.
moves() { # moves N STEP MODEL WHAT: from the checkpoint of the N-th of these runs
    local n=$1 step=$2 file to
    learns "$3" "$4"
    for file in model optimizer-00001-of-00001; do
        check "$3, checkpoint-$step: the same $file" cmp "$scratch/here-$n/checkpoint-$step/$file.safetensors" \
            "$scratch/away-$n/checkpoint-$step/$file.safetensors"
    done
    check "from the device to the host" "${zenflow[@]}" "${learns[@]}" "${there[@]}" \
        --output_dir "$scratch/to-away-$n-$step" --resume_from_checkpoint "$scratch/here-$n/checkpoint-$step"
    check "from the host to the device" "${zenflow[@]}" "${learns[@]}" \
        --output_dir "$scratch/to-here-$n-$step" --resume_from_checkpoint "$scratch/away-$n/checkpoint-$step"
    for to in away here; do
        check "$to: the same model" cmp "$scratch/here-$n/model.safetensors" "$scratch/to-$to-$n-$step/model.safetensors"
    done
}
moves 0 3 gpt2 sst2
moves 0 6 gpt2 sst2
moves 1 3 llama texts

# Evaluation and prediction alone; bf16 is a choice on the CPU device alone.
alone=(--task_name sst2 --data_dir data/sample --max_seq_length 32 --do_eval --do_predict
    --max_eval_samples 64 --max_predict_samples 16 --per_device_eval_batch_size 10)
whole=$scratch/here-0 qwen3=$scratch/here-7
judge() { # judge MODEL WHAT OPTION...: judged-here-WHAT and judged-away-WHAT
    local model=$1 what=$2
    shift 2
    check "evaluation alone, $what: on the device" "$train" "${alone[@]}" --model_name_or_path "$model" "$@" \
        --output_dir "$scratch/judged-here-$what"
    check "evaluation alone, $what: on the host" "$train" "${alone[@]}" --model_name_or_path "$model" "$@" "${there[@]}" \
        --output_dir "$scratch/judged-away-$what"
    check "evaluation alone, $what: alike" judged_alike "$scratch/judged-here-$what" "$scratch/judged-away-$what"
}
judge "$whole" fp32 --device cpu
judge "$whole" bf16 --device cpu --bf16.enabled
check "evaluation alone: bf16 is not passed over" not judged_alike "$scratch/judged-here-fp32" "$scratch/judged-here-bf16"
judge "$qwen3" qwen3

# Killed at some moment behind its first checkpoint, and run again until it has ended.
killed=$scratch/killed
slow=(--max_steps 40 --save_strategy steps --save_steps 2 --save_total_limit 2)
check "40 steps on the device" "${zenflow[@]}" --max_steps 40 --output_dir "$scratch/long"
for i in 1 2 3; do
    "${zenflow[@]}" "${there[@]}" "${slow[@]}" --output_dir "$killed" >"$scratch/killed.log" 2>&1 &
    run=$!
    for ((wait = 0; wait < 500; wait++)); do
        [ -e "$killed/checkpoint-$((10 * i))" ] && break
        sleep 0.01
    done
    kill -9 $run 2>/dev/null || true
    wait $run 2>/dev/null || true
done
check "killed, goes on to the end" "${zenflow[@]}" "${there[@]}" "${slow[@]}" --output_dir "$killed"
check "killed: the same model" cmp "$scratch/long/model.safetensors" "$killed/model.safetensors"

# The best model is loaded back into where parameters live.
best=(--save_strategy steps --save_steps 2 --eval_strategy steps --eval_steps 2 --save_total_limit 1
    --greater_is_better --load_best_model_at_end)
check "best model, on the device" "${zenflow[@]}" "${best[@]}" --output_dir "$scratch/best-here"
check "best model, on the host" "${zenflow[@]}" "${best[@]}" "${there[@]}" --output_dir "$scratch/best-away"
same "best model" "$scratch/best-here" "$scratch/best-away"
check "best model: it is not the last" not cmp "$whole/model.safetensors" "$scratch/best-away/model.safetensors"

if [ -x "$build/zf-train-emulated" ]; then # not with ThreadSanitizer
    emulated=("$build/zf-train-emulated" --device cuda "${zenflow[@]:1}" --max_steps 5 --max_train_samples 10
        --max_eval_samples 2 --train_batch_size 2 --per_device_train_batch_size 1
        --per_device_eval_batch_size 2 --max_seq_length 8)
    for what in "gpt2 sst2" "llama texts" "qwen3 sst2"; do
        here=$scratch/cuda-here-${what% *} away=$scratch/cuda-away-${what% *}
        # shellcheck disable=SC2086
        learns $what
        check "emulated, $what: on the device" "${emulated[@]}" "${learns[@]}" --output_dir "$here"
        check "emulated, $what: on the host" "${emulated[@]}" "${learns[@]}" "${there[@]}" --output_dir "$away"
        same "emulated, $what" "$here" "$away"
    done
    train=$build/zf-train-emulated
    alone+=(--device cuda --max_eval_samples 12 --max_predict_samples 4)
    judge "$whole" emulated
fi
finish
