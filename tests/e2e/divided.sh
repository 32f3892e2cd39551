#!/usr/bin/env bash
# Stage 3: parameters divided over ranks, on their devices or on their hosts. A run, its checkpoints, what it
# evaluates, predicts and exports are, to the bit, those of as many ranks in stage 2; killed and resumed too.

. tests/e2e/lib/common.sh "$@"
. tests/e2e/lib/deep_models.sh 5
need python3 mpirun pgrep

deep=("${tiny[@]}" --config_name "$scratch/gpt2" --max_steps 8 --eval_strategy steps --eval_steps 3
    --train_batch_size 12 --per_device_eval_batch_size 10 --do_train --do_eval --do_predict)
divided=(--zero_optimization.stage 3 --zero_optimization.offload_param.buffer_count 2)
hosted=("${divided[@]}" --zero_optimization.offload_param.device cpu)

same() { # same WHAT FOLDER FOLDER [FIRST STEP]: models, predictions of what has them, and what was logged on the way
    check "$1: the same model" cmp "$2/model.safetensors" "$3/model.safetensors"
    [[ ${learns[*]} = *texts.txt* ]] || check "$1: the same predictions" cmp "$2/SST-2.tsv" "$3/SST-2.tsv"
    check "$1: the same losses, training and evaluating" compare "$2/trainer_log.jsonl" \
        "$3/trainer_log.jsonl" 0 "${4:-1}"
}

# on RANKS CONFIGURATION OPTION...: 12 examples a step of what `learns` was told
on() {
    local n=$1 config=$2
    shift 2
    ranks "$n" "$train" --config "$steady/$config.json" "${deep[@]}" "${learns[@]}" \
        --per_device_train_batch_size $((12 / n)) "$@"
}

# 7 batches to evaluate: in the last round some rank has none.
runs=("gpt2 sst2 2 zenflow --save_strategy steps --save_steps 3" "llama texts 2 zenflow --save_strategy steps --save_steps 3"
    "gpt2 sst2 3 zenflow --zero_optimization.zenflow.accumulate host"
    "qwen3 texts 3 zenflow --zero_optimization.zenflow.accumulate host")
kills=(1)
if [ "${ZF_LONG:-}" = 1 ]; then
    runs+=("gpt2 sst2 2 adamw" "gpt2 sst2 2 zero_offload" "qwen3 sst2 2 zero_offload"
        "gpt2 sst2 2 zenflow --bf16.enabled --per_device_train_batch_size 2 --gradient_accumulation_steps 3 --gradient_checkpointing")
    kills=(1 2)
fi
n=0
for options in "${runs[@]}"; do
    # shellcheck disable=SC2206
    set=($options)
    learns "${set[@]:0:2}"
    set=("${set[@]:2}")
    whole=$scratch/whole-$n
    check "$options: stage 2" on "${set[@]}" --zero_optimization.stage 2 --output_dir "$whole"
    check "$options: stage 3" on "${set[@]}" "${divided[@]}" --output_dir "$scratch/divided-$n"
    same "$options: stage 3" "$whole" "$scratch/divided-$n"
    if [ "${set[1]}" != adamw ]; then
        check "$options: on the hosts" on "${set[@]}" "${hosted[@]}" --output_dir "$scratch/hosted-$n"
        same "$options: on the hosts" "$whole" "$scratch/hosted-$n"
    fi
    n=$((n + 1))
done
learns gpt2 sst2

# Evaluation and prediction alone, with a last round in which a rank has no batch.
alone() { # alone FOLDER OPTION...
    ranks 2 "$train" --do_eval --do_predict --model_name_or_path "$scratch/whole-0" --task_name sst2 --data_dir data/sample \
        --max_seq_length 32 --max_eval_samples 64 --max_predict_samples 16 --per_device_eval_batch_size 10 --output_dir "$@"
}
check "evaluation alone: stage 2" alone "$scratch/judged" --zero_optimization.stage 2
check "evaluation alone: stage 3" alone "$scratch/judged-divided" "${divided[@]}"
check "evaluation alone: on the hosts" alone "$scratch/judged-hosted" "${hosted[@]}"
check "evaluation alone: stage 3: alike" judged_alike "$scratch/judged" "$scratch/judged-divided"
check "evaluation alone: on the hosts: alike" judged_alike "$scratch/judged" "$scratch/judged-hosted"

# A checkpoint says nothing of places: on, from each to each.
whole=$scratch/whole-0
for place in divided hosted; do
    for file in model optimizer-00001-of-00002 optimizer-00002-of-00002; do
        check "$place: the same $file in a checkpoint" cmp \
            "$whole/checkpoint-6/$file.safetensors" "$scratch/$place-0/checkpoint-6/$file.safetensors"
    done
    check "$place to stage 2" on 2 zenflow --zero_optimization.stage 2 --output_dir "$scratch/$place-to-whole" \
        --resume_from_checkpoint "$scratch/$place-0/checkpoint-3"
    same "$place to stage 2" "$whole" "$scratch/$place-to-whole" 4
done
check "stage 2 to stage 3" on 2 zenflow "${divided[@]}" --output_dir "$scratch/whole-to-divided" \
    --resume_from_checkpoint "$whole/checkpoint-3"
same "stage 2 to stage 3" "$whole" "$scratch/whole-to-divided" 4
cpu=("${divided[@]}" --device cpu) # whose sums are of fp32, so that others of them say the same to its rounding
check "stage 3 of two ranks" on 2 zenflow "${cpu[@]}" --save_strategy steps --save_steps 3 --output_dir "$scratch/cpu"
check "to the hosts of three" on 3 zenflow "${hosted[@]}" --device cpu --output_dir "$scratch/three" \
    --resume_from_checkpoint "$scratch/cpu/checkpoint-3"
check "three ranks go on alike" compare "$scratch/cpu/trainer_log.jsonl" \
    "$scratch/three/trainer_log.jsonl" 2e-5 4
learns llama texts
for file in model optimizer-00001-of-00002 optimizer-00002-of-00002; do
    check "llama: the same $file in a checkpoint" cmp \
        "$scratch/whole-1/checkpoint-3/$file.safetensors" "$scratch/hosted-1/checkpoint-3/$file.safetensors"
done
check "llama, hosted to stage 3" on 2 zenflow "${divided[@]}" --output_dir "$scratch/llama-to-divided" \
    --resume_from_checkpoint "$scratch/hosted-1/checkpoint-3"
same "llama, hosted to stage 3" "$scratch/whole-1" "$scratch/llama-to-divided" 4
learns gpt2 sst2

# Killed at some moment behind its first checkpoint, and run again until it has ended.
slow=(--max_steps 24 --save_strategy steps --save_steps 2 --save_total_limit 2)
check "24 steps in stage 2" on 2 zenflow --zero_optimization.stage 2 --max_steps 24 --output_dir "$scratch/long"
for place in divided hosted; do
    declare -n there=$place
    killed=$scratch/killed-$place
    for i in "${kills[@]}"; do
        mpirun -n 2 --oversubscribe --bind-to none "$train" --config "$steady/zenflow.json" "${deep[@]}" \
            --per_device_train_batch_size 6 "${there[@]}" "${slow[@]}" --output_dir "$killed" >"$scratch/killed.log" 2>&1 &
        job=$!
        for ((wait = 0; wait < 3000; wait++)); do
            [ -e "$killed/checkpoint-$((6 * i))" ] && break
            sleep 0.01
        done
        mapfile -t pids < <(pgrep -P "$job" || true)
        kill -9 "${pids[@]}" 2>/dev/null || true
        wait "$job" || true
    done
    check "$place: killed, goes on to the end" on 2 zenflow "${there[@]}" "${slow[@]}" --output_dir "$killed"
    check "$place: killed: the same model" cmp "$scratch/long/model.safetensors" "$killed/model.safetensors"
done

# The best model is loaded back to where parameters live.
best=(--save_strategy steps --save_steps 2 --eval_strategy steps --eval_steps 2 --save_total_limit 1
    --greater_is_better --load_best_model_at_end)
check "best model, stage 2" on 2 zenflow --zero_optimization.stage 2 "${best[@]}" --output_dir "$scratch/best-whole"
check "best model, stage 3" on 2 zenflow "${divided[@]}" "${best[@]}" --output_dir "$scratch/best-divided"
same "best model" "$scratch/best-whole" "$scratch/best-divided"
check "best model: it is not the last" not cmp "$whole/model.safetensors" "$scratch/best-divided/model.safetensors"

# Alone it means nothing, and that is said.
check "stage 3 with one rank" "$train" --config configs/adamw.json "${deep[@]}" --per_device_train_batch_size 12 \
    --max_steps 1 --zero_optimization.stage 3 --output_dir "$scratch/alone"
cp "$scratch/check.log" "$scratch/alone.log"
check "stage 3 with one rank says that it is stage 2" grep -q "with one rank, .*it is stage 2" "$scratch/alone.log"

if [ -x "$build/zf-train-emulated" ]; then # not with ThreadSanitizer
    emulated=(--device cuda --config "$steady/zenflow.json" "${deep[@]}" --max_steps 4 --max_train_samples 16
        --eval_strategy no --max_eval_samples 3 --max_predict_samples 3 --train_batch_size 4
        --per_device_train_batch_size 2 --per_device_eval_batch_size 2 --max_seq_length 12)
    # on_devices N FOLDER OPTION...: two ranks by NCCL, or by MPI, where they share a device
    on_devices() {
        ZF_EMULATOR_DEVICES=$1 ranks 2 "$build/zf-train-emulated" "${emulated[@]}" "${learns[@]}" --output_dir "$scratch/$2" "${@:3}"
    }
    check "emulated: stage 2" on_devices 2 cuda-whole --zero_optimization.stage 2
    for devices in 2 1; do
        for place in divided hosted; do
            declare -n there=$place
            check "emulated: $place, $devices device(s)" on_devices $devices "cuda-$place-$devices" "${there[@]}"
            same "emulated: $place, $devices device(s)" "$scratch/cuda-whole" "$scratch/cuda-$place-$devices"
        done
    done
    learns qwen3 texts
    check "emulated, qwen3: stage 2" on_devices 2 cuda-qwen3 --zero_optimization.stage 2
    check "emulated, qwen3: divided" on_devices 2 cuda-qwen3-divided "${divided[@]}"
    same "emulated, qwen3: divided" "$scratch/cuda-qwen3" "$scratch/cuda-qwen3-divided"
    learns llama sst2
    check "emulated, llama: stage 2" on_devices 1 cuda-llama --zero_optimization.stage 2
    check "emulated, llama: hosted" on_devices 1 cuda-llama-hosted "${hosted[@]}"
    same "emulated, llama: hosted" "$scratch/cuda-llama" "$scratch/cuda-llama-hosted"
fi
finish
