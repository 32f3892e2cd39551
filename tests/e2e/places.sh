#!/usr/bin/env bash
# Blocks' parameters on the host, in fewer slots than there are blocks: a run, its checkpoints and what
# it evaluates are, to the bit, those of a run that has all of them on the device.

. tests/e2e/lib/common.sh "$@"
need python3

mkdir "$scratch/deep" # the preset gpt has two blocks, which are as many as slots
cat >"$scratch/deep/config.json" <<'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 8000, "n_positions": 64,
 "n_embd": 32, "n_layer": 6, "n_head": 2}
END
deep=("${tiny[@]}" --config_name "$scratch/deep" --max_steps 8 --eval_strategy steps --eval_steps 3)
there=(--zero_optimization.stage 3 --zero_optimization.offload_param.device cpu
    --zero_optimization.offload_param.buffer_count 2)
zenflow=("$train" --config "$steady/zenflow.json" "${deep[@]}")

same() { # same WHAT FOLDER FOLDER: models, and what was logged on the way
    check "$1: the same model" cmp "$2/model.safetensors" "$3/model.safetensors"
    check "$1: the same losses, training and evaluating" compare "$2/trainer_log.jsonl" \
        "$3/trainer_log.jsonl" 0
}

n=0
for options in "--save_strategy steps --save_steps 3" "--zero_optimization.zenflow.accumulate host" "--zero_optimization.zenflow.offload" \
    "--bf16.enabled" "--per_device_train_batch_size 5 --gradient_accumulation_steps 3 --train_batch_size 15" \
    "--per_device_train_batch_size 5 --gradient_accumulation_steps 3 --train_batch_size 15
     --gradient_checkpointing --zero_optimization.zenflow.accumulate host"; do
    here=$scratch/here-$n away=$scratch/away-$n
    # shellcheck disable=SC2206
    set=($options)
    check "$options: on the device" "${zenflow[@]}" "${set[@]}" --output_dir "$here"
    check "$options: on the host" "${zenflow[@]}" "${set[@]}" "${there[@]}" --output_dir "$away"
    same "$options" "$here" "$away"
    n=$((n + 1))
done
offload=("$train" --config configs/zero_offload.json "${deep[@]}")
check "ZeRO-Offload: on the device" "${offload[@]}" --output_dir "$scratch/offload"
check "ZeRO-Offload: on the host" "${offload[@]}" "${there[@]}" --output_dir "$scratch/offload-away"
same "ZeRO-Offload" "$scratch/offload" "$scratch/offload-away"

# A checkpoint says nothing of places.
whole=$scratch/here-0
for step in 3 6; do
    for file in model optimizer-00001-of-00001; do
        check "checkpoint-$step: the same $file" cmp "$whole/checkpoint-$step/$file.safetensors" \
            "$scratch/away-0/checkpoint-$step/$file.safetensors"
    done
    check "from the device to the host" "${zenflow[@]}" "${there[@]}" --output_dir "$scratch/to-away-$step" \
        --resume_from_checkpoint "$whole/checkpoint-$step"
    check "from the host to the device" "${zenflow[@]}" --output_dir "$scratch/to-here-$step" \
        --resume_from_checkpoint "$scratch/away-0/checkpoint-$step"
    check "to the host: the same model" cmp "$whole/model.safetensors" "$scratch/to-away-$step/model.safetensors"
    check "to the device: the same model" cmp "$whole/model.safetensors" "$scratch/to-here-$step/model.safetensors"
done

# Evaluation and prediction alone.
alone=(--model_name_or_path "$whole" --task_name sst2 --data_dir data/sample --max_seq_length 32 --do_eval --do_predict
    --max_eval_samples 64 --max_predict_samples 16 --per_device_eval_batch_size 10)
for options in "" --bf16.enabled; do
    here=$scratch/judged-here$options away=$scratch/judged-away$options
    # shellcheck disable=SC2086
    check "evaluation alone $options: on the device" "$train" "${alone[@]}" $options --output_dir "$here"
    # shellcheck disable=SC2086
    check "evaluation alone $options: on the host" "$train" "${alone[@]}" $options "${there[@]}" --output_dir "$away"
    check "evaluation alone $options: alike" judged_alike "$here" "$away"
done
check "evaluation alone: bf16 is not passed over" not judged_alike "$scratch/judged-here" "$scratch/judged-here--bf16.enabled"

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
    emulated=("$build/zf-train-emulated" --device cuda "${zenflow[@]:1}" --max_steps 5 --max_train_samples 16
        --max_eval_samples 4 --train_batch_size 4 --per_device_train_batch_size 2
        --per_device_eval_batch_size 4 --max_seq_length 12)
    check "emulated: on the device" "${emulated[@]}" --output_dir "$scratch/cuda-here"
    check "emulated: on the host" "${emulated[@]}" "${there[@]}" --output_dir "$scratch/cuda-away"
    same "emulated" "$scratch/cuda-here" "$scratch/cuda-away"
    emulated=("$build/zf-train-emulated" --device cuda "${alone[@]}" --max_eval_samples 12 --max_predict_samples 4)
    check "emulated: evaluation alone on the device" "${emulated[@]}" --output_dir "$scratch/cuda-judged-here"
    check "emulated: evaluation alone on the host" "${emulated[@]}" "${there[@]}" --output_dir "$scratch/cuda-judged-away"
    check "emulated: evaluation alone: alike" judged_alike "$scratch/cuda-judged-here" "$scratch/cuda-judged-away"
fi
finish
