#!/usr/bin/env bash
# Every file in configs/ trains for five steps on the sample, and a DeepSpeed configuration that
# knows nothing of this program does too.

. tests/e2e/lib/common.sh "$@"
need python3

cut -f 1 data/sample/SST-2/dev.tsv | tail -n +2 >"$scratch/text.txt"
short=(--max_steps 5 --max_train_samples 64 --max_eval_samples 16 --max_predict_samples 8
    --max_seq_length 32 --per_device_train_batch_size 8 --per_device_eval_batch_size 8
    --logging_steps 1)
new_model=(--config_name gpt --tokenizer_name data/sample/tokenizer)

trained() { # trained FOLDER: five steps with finite losses, and a model
    test -s "$1/model.safetensors" && python3 - "$1/trainer_log.jsonl" <<'END'
import json, math, sys
losses = [e["loss"] for e in map(json.loads, open(sys.argv[1])) if "loss" in e]
assert len(losses) == 5 and all(map(math.isfinite, losses)), losses
END
}

for config in configs/*.json; do
    name=$(basename "$config" .json)
    data=(--data_dir data/sample)
    if [ "$name" = lm ]; then data=(--train_file "$scratch/text.txt"); fi
    check "$config runs" "$train" --config "$config" "${new_model[@]}" "${data[@]}" "${short[@]}" \
        --output_dir "$scratch/$name"
    check "$config trains" trained "$scratch/$name"
done

told_as_logged() { # told_as_logged RULE OUTPUT LOG: one line of the S that was chosen first, behind warm-up, or that none was
    python3 - "$@" <<'END'
import json, re, sys
rule, output, log = sys.argv[1:]
lines = [line.strip() for line in open(output)]
line, = (line for line in lines if line.startswith("update_interval "))
s = [e["update_interval"] for e in map(json.loads, open(log)) if "loss" in e]  # behind each step
first = next(i for i, of_step in enumerate(s) if of_step > 1)  # warm-up has windows of one step
told = re.match(f'update_interval "{rule}": windows are of (\\d+) step.s. from step (\\d+) on, and were of (\\d+)$', line)
if len(s) > first + 8:
    chosen, step, before = map(int, told.groups())
    assert step == first + 10 if rule == "keep_up" else step >= first + 10, (line, s)
    assert s[step - 2] == chosen and set(s[first:step - 2]) == {before}, (line, s)
    assert any(re.match(r"a step takes \d+\.\d\d ms, ", line) for line in lines)
else:
    expected = f"windows were of {s[-1]} step(s) throughout: the run was too short to choose"
    assert line == f'update_interval "{rule}": {expected}' and len(set(s[first:])) == 1, (line, s)
END
}

# The interval that host and link keep up with is chosen behind nine steps, and stays.
for name in sample zenflow zenflow_offload_param; do
    check "$name chooses its interval" "$train" --config "configs/$name.json" "${new_model[@]}" --data_dir data/sample "${short[@]}" \
        --max_steps 16 --eval_strategy no --do_predict false --output_dir "$scratch/chosen"
    cp "$scratch/check.log" "$scratch/told"
    check "$name: once" python3 - "$scratch/chosen" <<'END'
import json, sys
chosen = [e["update_interval"] for e in map(json.loads, open(sys.argv[1] + "/trainer_log.jsonl")) if "loss" in e]
assert len(chosen) == 16 and chosen[:8] == [4] * 8 and len(set(chosen[8:])) == 1 and 1 <= chosen[8] <= 64, chosen
config = json.load(open(sys.argv[1] + "/zf_train_config.json"))
assert config["zero_optimization"]["zenflow"]["update_interval"] == "keep_up", config
END
    check "$name: it is told" told_as_logged keep_up "$scratch/told" "$scratch/chosen/trainer_log.jsonl"
    rm -rf "$scratch/chosen"
done
check "zenflow_auto chooses, too" "$train" --config configs/zenflow_auto.json "${new_model[@]}" --data_dir data/sample "${short[@]}" \
    --max_steps 40 --eval_strategy no --do_predict false --zero_optimization.zenflow.full_warm_up_rounds 3 --output_dir "$scratch/chosen"
cp "$scratch/check.log" "$scratch/told"
check "zenflow_auto: its first choice is told" told_as_logged auto "$scratch/told" "$scratch/chosen/trainer_log.jsonl"
rm -rf "$scratch/chosen"
check "windows longer than select_interval" "$train" --config configs/zenflow_auto.json "${new_model[@]}" --data_dir data/sample "${short[@]}" \
    --max_steps 20 --eval_strategy no --do_predict false --zero_optimization.zenflow.select_strategy step \
    --zero_optimization.zenflow.select_interval 2 --output_dir "$scratch/chosen"
cp "$scratch/check.log" "$scratch/told"
check "choices are rarer than asked for, which is told" grep -E 'asks for a choice .* every 2 step.*stays .* ([3-9]|[1-6][0-9])$' "$scratch/told"
check "too few steps for a choice" "$train" --config configs/zenflow.json "${new_model[@]}" --data_dir data/sample "${short[@]}" \
    --eval_strategy no --do_predict false --output_dir "$scratch/kept"
cp "$scratch/check.log" "$scratch/told"
check "that is told" told_as_logged keep_up "$scratch/told" "$scratch/kept/trainer_log.jsonl"
check "what is given is not told" "$train" --config "$steady/zenflow.json" "${new_model[@]}" --data_dir data/sample "${short[@]}" \
    --eval_strategy no --do_predict false --output_dir "$scratch/given"
cp "$scratch/check.log" "$scratch/told"
check "it is no choice" not grep update_interval "$scratch/told"

# As in DeepSpeed's ZenFlow tutorial.
cat >"$scratch/tutorial.json" <<'END'
{
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {
      "device": "cpu",
      "pin_memory": true
    },
    "zenflow": {
      "topk_ratio": 0.05,
      "select_strategy": "auto",
      "select_interval": "auto",
      "update_interval": 4,
      "full_warm_up_rounds": 0,
      "overlap_step": true
    }
  }
}
END
# And a whole configuration in the style of DeepSpeed's examples.
cat >"$scratch/example.json" <<'END'
{
  "train_batch_size": 8,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "steps_per_print": 1,
  "bf16": {"enabled": true},
  "gradient_clipping": 1.0,
  "zero_allow_untested_optimizer": true,
  "wall_clock_breakdown": false,
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "zenflow": {
      "topk_ratio": 0.1,
      "select_strategy": "step",
      "select_interval": 4,
      "update_interval": 4,
      "full_warm_up_rounds": 1,
      "overlap_step": true
    },
    "allgather_partitions": true,
    "reduce_scatter": true,
    "overlap_comm": true,
    "contiguous_gradients": true
  },
  "optimizer": {
    "type": "AdamW",
    "params": {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
  },
  "scheduler": {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 3}
  }
}
END
check "the tutorial's configuration runs" "$train" --deepspeed "$scratch/tutorial.json" \
    --task_name sst2 "${new_model[@]}" --data_dir data/sample "${short[@]}" \
    --output_dir "$scratch/tutorial-out"
check "the tutorial's configuration trains" trained "$scratch/tutorial-out"
check "an example's configuration runs" "$train" --deepspeed "$scratch/example.json" \
    --task_name sst2 "${new_model[@]}" --data_dir data/sample --max_steps 5 --max_train_samples 64 \
    --max_eval_samples 16 --save_strategy no --output_dir "$scratch/example-out"
check "an example's configuration trains" trained "$scratch/example-out"
finish
