#!/usr/bin/env bash
# Every GLUE task goes through training, evaluation and prediction; so does language modelling, and
# each kind of tokenizer.

. tests/e2e/lib/common.sh "$@"
need python3

run=("$train" --config configs/adamw.json --max_steps 2 --per_device_train_batch_size 4
    --max_seq_length 32 --learning_rate 1e-3 --logging_steps 1)
bpe=(--config_name gpt --tokenizer_name data/sample/tokenizer)
glue=tests/fixtures/glue

results_are() { # results_are FOLDER KEY...: the evaluation has these, all finite
    python3 - "$@" <<'END'
import json, math, sys
results = json.load(open(sys.argv[1] + "/all_results.json"))
evaluation = {k for k in results if k.startswith("eval_") and not ("runtime" in k or "samples" in k or "per_second" in k)}
assert evaluation == set(sys.argv[2:]), evaluation
assert all(math.isfinite(v) for v in results.values()), results
END
}
submission_is() { # submission_is FILE ROWS PATTERN: every prediction is like PATTERN
    test "$(head -n 1 "$1")" = $'index\tprediction' && test "$(wc -l <"$1")" = $(($2 + 1)) &&
        ! tail -n +2 "$1" | cut -f 2 | grep -Evqx -- "$3"
}
count() { # count FILE: rows below the header, without empty lines
    tail -n +2 "$1" | grep -c '[^[:space:]]'
}

# task SUBMISSION LABELS METRIC...
while read -r task file labels metrics; do
    out=$scratch/$task
    check "$task runs" "${run[@]}" "${bpe[@]}" --task_name "$task" --data_dir $glue --do_predict \
        --output_dir "$out"
    cp "$scratch/check.log" "$scratch/said"
    if [ "$task" = QQP ] || [ "$task" = MNLI ]; then # which have such rows
        check "$task: rows that are left out are told" grep -Eq "^warning: $task: [0-9]+ row.s. of .* are left out" "$scratch/said"
    else
        check "$task: no row is left out" not grep "left out" "$scratch/said"
    fi
    keys=(eval_loss)
    for metric in $metrics; do keys+=("eval_$metric"); done
    if [ "$task" = MNLI ]; then keys+=(eval_loss_mm eval_accuracy_mm); fi
    check "$task: loss and official metrics" results_are "$out" "${keys[@]}"
    if [ "$task" = MNLI ]; then
        check "MNLI: matched submission" submission_is "$out/MNLI-m.tsv" \
            "$(count $glue/MNLI/test_matched.tsv)" "$labels"
        check "MNLI: mismatched submission" submission_is "$out/MNLI-mm.tsv" \
            "$(count $glue/MNLI/test_mismatched.tsv)" "$labels"
    else
        check "$task: submission" submission_is "$out/$file" "$(count "$glue/$task/test.tsv")" \
            "$labels"
    fi
    check "$task: no other submission" test "$(find "$out" -name '*.tsv' | wc -l)" = \
        "$([ "$task" = MNLI ] && echo 2 || echo 1)"
done <<'END'
CoLA CoLA.tsv 0|1 matthews_correlation
SST-2 SST-2.tsv 0|1 accuracy
MRPC MRPC.tsv 0|1 accuracy f1 combined_score
STS-B STS-B.tsv [0-5]\.[0-9]+ pearson spearmanr combined_score
QQP QQP.tsv 0|1 accuracy f1 combined_score
MNLI MNLI-m.tsv entailment|neutral|contradiction accuracy
QNLI QNLI.tsv entailment|not_entailment accuracy
RTE RTE.tsv entailment|not_entailment accuracy
WNLI WNLI.tsv 0|1 accuracy
END
check "a name in any case is the same task" cmp "$scratch/CoLA/model.safetensors" <("${run[@]}" \
    "${bpe[@]}" --task_name cola --data_dir $glue/CoLA --output_dir "$scratch/cola" >/dev/null 2>&1
cat "$scratch/cola/model.safetensors")

# Language modelling, with a file of its own for evaluation and without.
head -n 400 data/sample/SST-2/train.tsv | cut -f 1 >"$scratch/train.txt"
head -n 40 data/sample/SST-2/dev.tsv | cut -f 1 >"$scratch/dev.txt"
for held_out in "" "--validation_file $scratch/dev.txt"; do
    out=$scratch/lm$((${#held_out} > 0))
    # shellcheck disable=SC2086
    check "lm runs ${held_out% *}" "${run[@]}" "${bpe[@]}" --task_name lm \
        --train_file "$scratch/train.txt" $held_out --output_dir "$out"
    check "lm: loss and perplexity" results_are "$out" eval_loss eval_perplexity
    check "lm: perplexity is the loss's exponential" python3 -c "
import json, math
r = json.load(open('$out/all_results.json'))
assert abs(r['eval_perplexity'] / math.exp(r['eval_loss']) - 1) < 1e-6, r"
done
check "a language model is fine-tuned on a task" "${run[@]}" --task_name SST-2 --data_dir $glue \
    --model_name_or_path "$scratch/lm0" --output_dir "$scratch/from-lm"

# What was written is read: the exported folder evaluates as the run that wrote it did.
for model in spm_bpe spm_unigram; do
    mkdir "$scratch/$model"
    cp tests/fixtures/tokenizer/$model.model "$scratch/$model/tokenizer.model"
done
for tokenizer in data/sample/tokenizer "$scratch/spm_bpe" "$scratch/spm_unigram"; do
    name=$(basename "$tokenizer") out=$scratch/sst2-$(basename "$tokenizer")
    check "tokenizer $name runs" "${run[@]}" --config_name gpt --tokenizer_name "$tokenizer" --task_name sst2 \
        --data_dir data/sample --max_train_samples 32 --max_eval_samples 64 --output_dir "$out"
    check "tokenizer $name: the result evaluates" "${run[@]}" --no_do_train --task_name sst2 \
        --model_name_or_path "$out" --data_dir data/sample --max_eval_samples 64 \
        --output_dir "$out-again"
    check "tokenizer $name: alike" python3 -c "
import json
a, b = (json.load(open('$out' + s + '/all_results.json')) for s in ('', '-again'))
assert a['eval_loss'] == b['eval_loss'] and a['eval_accuracy'] == b['eval_accuracy'], (a, b)"
    check "tokenizer $name: evaluation alone writes no model" test ! -e \
        "$out-again/model.safetensors"
done
finish
