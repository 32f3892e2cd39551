#!/usr/bin/env bash
# Examples of a person's own: from a CSV file of 77 labels to a trained model and its answers; scores;
# pairs; JSON and TSV; a model whose labels are others; every fault before anything is written.

. tests/e2e/lib/common.sh "$@"
need python3

python3 -I tests/fixtures/own/make_intents.py "$scratch/intents" 12
intents=$scratch/intents
model=(--config_name gpt --tokenizer_name data/sample/tokenizer)
out=$scratch/out

# says WORDS COMMAND...: it succeeds and says so
says() {
    local words=$1
    shift
    "$@" >"$scratch/said" 2>&1 && grep -Eq -- "$words" "$scratch/said" || { cat "$scratch/said"; return 1; }
}
# refused WHAT WORDS COMMAND...: status $expected (1), one sentence, nothing written
refused() {
    local what=$1 words=$2 status=0 expected=${expected:-1}
    shift 2
    "$@" --output_dir "$scratch/none" >"$scratch/said" 2>&1 || status=$?
    check "$what: status $expected" test "$status" = "$expected"
    check "$what: says '$words'" grep -Eq -- "^zf-train: .*($words)" "$scratch/said"
    check "$what: nothing is written" test ! -e "$scratch/none"
}
result() { # result FOLDER CONDITION of r, all_results.json
    python3 -c "
import json, sys
r = json.load(open(sys.argv[1] + '/all_results.json'))
assert eval(sys.argv[2]), r" "$1" "$2"
}

# A CSV of 77 labels.
check "77 labels: train" says "924 examples, drawn by seed, .*47|47 of the 924 examples" "$train" --train_file \
    "$intents/train.csv" --label_column category "${model[@]}" --num_train_epochs 12 \
    --learning_rate 3e-3 --per_device_train_batch_size 16 --output_dir "$out"
check "what is held out is neither trained nor lost" result "$out" \
    "r['train_samples'] == 877 and r['eval_samples'] == 47"
check "77 labels are learned" result "$out" "r['eval_accuracy'] > 0.6"
check "their names are in config.json" python3 - "$out/config.json" <<'EOF'
import json, sys
c = json.load(open(sys.argv[1]))
names = [c["id2label"][str(i)] for i in range(77)]
assert len(c["id2label"]) == 77 and names == sorted(names) and names[0] == "activate_account", names
assert c["label2id"] == {name: i for i, name in enumerate(names)}
EOF
check "evaluation and prediction alone" "$train" --do_eval --do_predict --model_name_or_path "$out" \
    --validation_file "$intents/test.csv" --test_file "$intents/test.csv" --label_column_name category \
    --output_dir "$scratch/judged"
check "predictions are names of labels" python3 - "$intents/test.csv" "$scratch/judged" <<'EOF'
import csv, json, sys
true = [row["category"] for row in csv.DictReader(open(sys.argv[1], newline=""))]
lines = open(sys.argv[2] + "/predict_results.txt").read().splitlines()
assert lines[0] == "index\tprediction" and len(lines) == 1 + len(true), lines[0]
rows = [line.split("\t") for line in lines[1:]]
assert [int(i) for i, _ in rows] == list(range(len(true)))
right = sum(a == b for (_, a), b in zip(rows, true)) / len(true)
accuracy = json.load(open(sys.argv[2] + "/all_results.json"))["eval_accuracy"]
assert abs(right - accuracy) < 1e-6 and right > 0.6, (right, accuracy)
EOF
check "no model is written" test ! -e "$scratch/judged/model.safetensors"
check "the effective configuration gives the same run" python3 - "$out/zf_train_config.json" <<'EOF'
import json, sys
a = json.load(open(sys.argv[1]))["training_arguments"]
assert a["label_column"] == "category" and a["text_column"] == "text", a
assert a["do_regression"] is False, a
EOF
check "it is read" "$train" --config "$out/zf_train_config.json" --max_steps 1 --output_dir "$scratch/again"
if command -v mpirun >/dev/null; then
    check "two ranks" ranks 2 "$train" --train_file "$intents/train.csv" --label_column category "${model[@]}" \
        --max_steps 2 --output_dir "$scratch/ranks"
    check "two ranks hold out the same" result "$scratch/ranks" "r['train_samples'] == 877"
fi

# zf-run answers.
run=$build/zf-run
answers() { # answers COMMAND...: its first column is what prediction wrote
    "$@" 2>/dev/null | cut -f 1 | cmp - <(tail -n +2 "$scratch/judged/predict_results.txt" | cut -f 2)
}
check "zf-run: a file" answers "$run" "$out" --file "$intents/test.csv" --label_column category
python3 - "$intents" <<'EOF'
import csv, sys
rows = [r["text"] for r in csv.DictReader(open(sys.argv[1] + "/test.csv", newline=""))]
open(sys.argv[1] + "/lines.txt", "w").write("".join(r.replace("\n", " ") + "\n" for r in rows[:20]))
EOF
check "zf-run: standard input is as a file's lines" cmp <("$run" "$out" <"$intents/lines.txt") \
    <("$run" "$out" --file "$intents/lines.txt")
check "zf-run: standard input is text" says "^zf-run: standard input:2: there is a NUL byte" not bash -c \
    "printf 'a card\\na\\0b\\n' | '$run' '$out'"
check "zf-run: standard input is UTF-8" says "^zf-run: standard input:1: byte 0xff is not UTF-8" not bash -c \
    "printf 'a \\377\\n' | '$run' '$out'"
check "zf-run: standard input can be read" says "^zf-run: standard input: Is a directory" not bash -c "'$run' '$out' <'$scratch'"
check "zf-run: standard input has a text" says "^zf-run: there is no text to answer: neither" not bash -c "'$run' '$out' </dev/null"
: >"$scratch/empty.txt"
check "zf-run: a file has one" says "^zf-run: .*empty.txt: there are no texts in the file" not "$run" "$out" --file "$scratch/empty.txt"
check "zf-run: an answer for each line" test "$("$run" "$out" <"$intents/lines.txt" | wc -l)" = 20
check "zf-run: and before it has the next line" timeout 120 python3 - "$run" "$out" <<'EOF'
import subprocess, sys
with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
    for text in b"verify my card\n", b"I lost my card\n":
        run.stdin.write(text)
        run.stdin.flush()
        assert b"\t" in run.stdout.readline()
EOF
cp -r "$out" "$scratch/hostile"
python3 - "$scratch/hostile/config.json" <<'EOF'
import json, sys
c = json.load(open(sys.argv[1]))
c["id2label"] = {i: f"\x1b[2J\x9b31m\n{i} caf\u00e9" for i in c["id2label"]}
c["label2id"] = {name: int(i) for i, name in c["id2label"].items()}
json.dump(c, open(sys.argv[1], "w"))
EOF
check "zf-run: labels do nothing to a terminal" python3 - "$("$run" "$scratch/hostile" --top_k 77 'verify my card')" <<'EOF'
import re, sys
answers = sys.argv[1].split("\t")
assert len(answers) == 154 and all(re.fullmatch(r"\\x1b\[2J\\xc2\\x9b31m\\n\d+ café", a) for a in answers[::2]), answers[0]
EOF
check "zf-run: probabilities of all labels are one" python3 - "$("$run" "$out" --top_k 77 'verify my card')" <<'EOF'
import sys
fields = sys.argv[1].split("\t")
names, chances = fields[::2], [float(x) for x in fields[1::2]]
assert len(set(names)) == 77 and abs(sum(chances) - 1) < 0.01, sys.argv
assert chances == sorted(chances, reverse=True) and names[0] == "verify_card", names[:3]
EOF
check "zf-run: which column is the text must be clear" says "it is not clear which are" not "$run" "$out" \
    --file "$intents/test.csv"
check "zf-run: what is cut is said" says "1 of the 1 texts are longer than 4 tokens" "$run" "$out" \
    --max_seq_length 4 "please lock my missing card"
for words in "there is no option --tpo_k:--tpo_k" "top_k is .none.:--top_k none" "both --file:--file $intents/test.csv"; do
    # shellcheck disable=SC2086
    check "zf-run: ${words%%:*}" says "^zf-run: .*${words%%:*}" not "$run" "$out" ${words#*:} text
done
for draws in "--seed 42" "--temperature 1" --do_sample; do
    # shellcheck disable=SC2086 # they are words
    check "zf-run: a classifier does not draw" says "^zf-run: ${draws%% *} is given, but .* is a classifier" not "$run" "$out" $draws x
done
check "zf-run: a pair of nothing" says "^zf-run: --pair is given, but no TEXT" not "$run" "$out" --pair x --file "$intents/test.csv"
check "zf-run: a column of a text" says "^zf-run: --label_column is given, but no --file" not "$run" "$out" --label_column category x
check "zf-run: a column of lines" says "^zf-run: --text_column is given, but no --file with columns" not "$run" "$out" \
    --text_column text --file "$intents/lines.txt"
check "zf-run: no such model" says "^zf-run: .*nowhere: there is no such folder" not "$run" "$scratch/nowhere"
check "zf-run: a full device is no answer" says "standard output" not bash -c "'$run' '$out' text >/dev/full"

# The other formats hold the same rows, and give the same model.
python3 - "$intents" <<'EOF'
import csv, json, sys
rows = list(csv.DictReader(open(sys.argv[1] + "/train.csv", newline="")))[::7]
for row in rows:
    row["text"] = row["text"].replace("\n", " ")
def write(name, text):
    open(f"{sys.argv[1]}/{name}", "w").write(text)
with open(sys.argv[1] + "/few.csv", "w", newline="") as f:
    out = csv.DictWriter(f, ["text", "category"])
    out.writeheader()
    out.writerows(rows)
write("few.tsv", "".join(f"{a}\t{b}\n" for a, b in [("text", "category")] + [tuple(r.values()) for r in rows]))
write("few.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
write("few.json", json.dumps(rows, indent=1))
EOF
for ending in csv tsv jsonl json; do
    check "few.$ending" "$train" --train_file "$intents/few.$ending" --label_column category "${model[@]}" \
        --max_steps 3 --output_dir "$scratch/$ending"
    check "few.$ending gives the same model" cmp "$scratch/$ending/model.safetensors" \
        "$scratch/csv/model.safetensors"
done

# A pair with labels that are numbers, and a validation file with one that is new.
printf 'premise,hypothesis,label\nit rains,it is wet,10\nit rains,it is dry,2\nsun,no rain,2\n' \
    >"$scratch/pairs.csv"
printf 'premise,hypothesis,label\nit rains,it is wet,2\nhail,ice,3\n' >"$scratch/pairs_dev.csv"
check "pairs, and a label that cannot be learned" says \
    "column premise with hypothesis, .*one of 3 labels, 2 to 10" "$train" --train_file "$scratch/pairs.csv" \
    --validation_file "$scratch/pairs_dev.csv" "${model[@]}" --max_steps 2 --output_dir "$scratch/pairs"
check "it is said" grep -q "pairs_dev.csv:3: the label \"3\", one of 1 that the training examples do not have" "$scratch/said"
check "with the second text's column alone the first is another" says "the text is column hypothesis with premise," "$train" \
    --train_file "$scratch/pairs.csv" --text_pair_column premise --no_do_eval "${model[@]}" --max_steps 1 \
    --output_dir "$scratch/turned"
check "which is what is written" python3 -c '
import json, sys
a = json.load(open(sys.argv[1] + "/zf_train_config.json"))["training_arguments"]
assert (a["text_column"], a["text_pair_column"]) == ("hypothesis", "premise"), a' "$scratch/turned"
check "a file that nobody asks for is said" says "test_file $scratch/pairs.csv is not read" "$train" --train_file \
    "$scratch/pairs.csv" --test_file "$scratch/pairs.csv" --no_do_eval "${model[@]}" --max_steps 1 --output_dir "$scratch/unread"
printf 'text,label\na,0.5\nb,N/A\n' >"$scratch/mixed.csv"
refused "scores and words" "mixed.csv:3: the label is \"N/A\", but line 2 has the score 0.5" "$train" --train_file \
    "$scratch/mixed.csv" --no_do_eval "${model[@]}"

# Scores.
python3 - "$scratch/scores.csv" <<'EOF'
import random, sys
draw = random.Random(1)
with open(sys.argv[1], "w") as f:
    f.write("sentence,label\n")
    for _ in range(200):
        n = draw.randint(0, 4)
        f.write(f"{'very ' * n}good film,{n / 2}\n")
EOF
check "scores" says "label column label: scores" "$train" --train_file "$scratch/scores.csv" "${model[@]}" \
    --num_train_epochs 8 --learning_rate 3e-3 --output_dir "$scratch/scores"
check "scores are learned" result "$scratch/scores" \
    "r['eval_mse'] < 0.1 and r['eval_pearson'] > 0.9 and 'eval_accuracy' not in r"
check "scores: predicted" "$train" --do_predict --model_name_or_path "$scratch/scores" --test_file \
    "$scratch/scores.csv" --output_dir "$scratch/scores-predicted"
check "scores: zf-run" grep -Eqx "[0-9]\.[0-9]{4}" <("$run" "$scratch/scores" "very good film")
check "scores: numbers" grep -Eqx "$(printf '0\t[0-9.-]+')" "$scratch/scores-predicted/predict_results.txt"

check "zf-run: a pair" grep -Eqx "(2|3|10)$(printf '\t')[01]\.[0-9]{4}" <("$run" "$scratch/pairs" \
    --pair "it is dry" "it rains")

check "zf-run: the second text's column alone" says "the text is column hypothesis with premise" "$run" "$scratch/pairs" \
    --file "$scratch/pairs.csv" --text_pair_column premise

# A model whose labels are others; one whose labels are the same is gone on with, in its order.
printf 'text,label\na good film,spam\na bad film,ham\n' >"$scratch/two.csv"
further=("$train" --model_name_or_path "$out" --train_file "$scratch/two.csv" --max_steps 1 --do_eval false)
refused "other labels" "config.json:[0-9]+: the model answers with 77 labels .*two.csv has 2: --ignore_mismatched" \
    "${further[@]}"
check "a new head" "${further[@]}" --ignore_mismatched_sizes --output_dir "$scratch/two"
check "for the new labels" grep -q '"0": "ham"' "$scratch/two/config.json"
sed -i 's/ham/eggs/' "$scratch/two.csv"
refused "as many labels of other names" 'id2label has "ham", which is no label of two.csv' "${further[@]}" \
    --model_name_or_path "$scratch/two"
sed -i 's/eggs/ham/; s/spam/x/' "$scratch/two.csv"
sed -i 's/x$/spam/' "$scratch/two.csv"
python3 - "$scratch/two/config.json" <<'EOF'
import json, sys
c = json.load(open(sys.argv[1]))
c["id2label"] = {"0": "spam", "1": "ham"}
json.dump(c, open(sys.argv[1], "w"))
EOF
check "the model's own order of the same labels" "${further[@]}" --model_name_or_path "$scratch/two" \
    --output_dir "$scratch/order"
check "is kept" grep -q '"0": "spam"' "$scratch/order/config.json"

# GLUE's labels have names too.
check "GLUE's own names" "$train" --task_name cola --data_dir tests/fixtures/glue "${model[@]}" --max_steps 1 \
    --do_eval false --output_dir "$scratch/cola"
check "are in config.json" python3 -c "
import json
c = json.load(open('$scratch/cola/config.json'))
assert c['id2label'] == {'0': 'unacceptable', '1': 'acceptable'}, c['id2label']
assert c['label2id'] == {'unacceptable': 0, 'acceptable': 1}"

# Faults.
own=("$train" "${model[@]}" --max_steps 1)
refused "no label column" 'train.csv: there is no column "label" \(label_column\).*text, category' "${own[@]}" \
    --train_file "$intents/train.csv"
echo '{"messages": [{"role": "user", "content": "Hi"}]}' >"$scratch/chats.jsonl"
refused "conversations without their task" 'no column "label" .* conversations and instructions are for task_name lm' \
    "${own[@]}" --train_file "$scratch/chats.jsonl"
printf 'text,label\na,x\nb,y,z\n' >"$scratch/bad.csv"
refused "a row too long" "bad.csv:3: the row has 3 columns, but the header has 2" "${own[@]}" \
    --train_file "$scratch/bad.csv"
printf 'text,label\na,x\nb,x\n' >"$scratch/bad.csv"
refused "one label alone" 'bad.csv: all examples have the label "x"' "${own[@]}" --train_file "$scratch/bad.csv"
refused "plain text" "plain text is for task_name lm" "${own[@]}" --train_file README.md
expected=2 refused "no file to evaluate" "validation_file is not given" "$train" --do_eval --model_name_or_path "$out" \
    --test_file "$intents/test.csv"
refused "a label that the model has not" 'two.csv:2: the label is "spam", which is none of the 77' "$train" \
    --do_eval --model_name_or_path "$out" --validation_file "$scratch/two.csv"
refused "a model without a head" "has no score head" "$train" --do_eval "${model[@]}" --validation_file \
    "$scratch/two.csv"
saved=(--train_file "$intents/train.csv" --label_column category "${model[@]}" --max_steps 4 --save_strategy steps
    --save_steps 2 --do_eval false)
check "uninterrupted" "$train" "${saved[@]}" --output_dir "$scratch/whole"
check "from its checkpoint" "$train" "${saved[@]}" --resume_from_checkpoint "$scratch/whole/checkpoint-2" \
    --output_dir "$scratch/resumed"
check "the same model" cmp "$scratch/whole/model.safetensors" "$scratch/resumed/model.safetensors"
sed s/card/cart/ "$intents/train.csv" >"$scratch/edited.csv"
check "other examples are refused" bash -c '! "$@" 2>"$0" && grep -q "was made with train_data" "$0"' "$scratch/said" \
    "$train" "${saved[@]}" --train_file "$scratch/edited.csv" --resume_from_checkpoint "$scratch/whole/checkpoint-2" \
    --output_dir "$scratch/other"
finish
