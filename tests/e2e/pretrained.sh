#!/usr/bin/env bash
# A real pretrained model, SmolLM2-135M-Instruct, trains as in Transformers: the losses of 20 steps on MRPC,
# and the labels that Transformers then gives to the whole dev split. ZF_SMOLLM2 names its folder, which
# ../shared/tools/make_smollm2.py makes; ZF_PYTHON the Python that has Transformers (default: python3).
# Without Transformers, what it gave is read from tests/fixtures/pretrained. Takes minutes.

. tests/e2e/lib/common.sh "$@"
python=${ZF_PYTHON:-python3}
shared=$root/../shared
model=${ZF_SMOLLM2:-$shared/smollm2}
need python3
[ -f "$model/model.safetensors" ] || skip "$model has no model: ZF_SMOLLM2 names the folder of SmolLM2-135M-Instruct"
[ -f "$shared/glue/MRPC/train.tsv" ] || skip "$shared/glue/MRPC is not there"
unset OMP_NUM_THREADS # this model is large enough for all cores

lib=tests/e2e/lib/pretrained.py
expected=tests/fixtures/pretrained
# With labels taken away, the dev split's pairs are a test split's.
awk -F '\t' -v OFS='\t' 'NR == 1 { print "index", "#1 ID", "#2 ID", "#1 String", "#2 String" }
    NR > 1 { print NR - 2, $2, $3, $4, $5 }' "$shared/glue/MRPC/dev.tsv" >"$scratch/dev.tsv"
check "a score head is added" python3 $lib head "$model" "$scratch/model"
# shellcheck disable=SC2046
check "trains 20 steps" "$train" --config configs/adamw.json --data_dir "$shared/glue" --device cpu \
    --model_name_or_path "$scratch/model" $(python3 $lib arguments) --no_do_eval --do_predict \
    --test_file "$scratch/dev.tsv" --output_dir "$scratch/out"

if "$python" -c "import torch, transformers" 2>/dev/null; then
    check "Transformers trains the same" "$python" tests/fixtures/make_pretrained.py "$model" "$shared/glue" \
        "$scratch/theirs"
    expected=$scratch/theirs
    check "logits and losses of 50 sentences are theirs" env ZF_SMOLLM2="$model" ZF_PRETRAINED="$expected" \
        "$build/tests/test_pretrained"
    grep sentences: "$scratch/check.log"
    check "Transformers gives the same labels" "$python" tests/e2e/lib/predict.py "$scratch/out" \
        "$scratch/dev.tsv" "$scratch/out/predict_results_mrpc.txt" 128
    tail -n 1 "$scratch/check.log"
else
    echo "$python has no Transformers: losses are compared with those in $expected, labels with none"
fi
check "the losses are Transformers'" python3 $lib losses "$scratch/out/trainer_log.jsonl" $expected/mrpc.json 1e-4
cat "$scratch/check.log"
finish
