#!/usr/bin/env bash
# "Your own data" as the README has it: its commands, in a folder with such files and tiny models at home.

. tests/e2e/lib/common.sh "$@"
need python3

python3 -I tests/fixtures/own/make_intents.py "$scratch/intents" 6
mkdir -p "$scratch/home" "$scratch/work/texts"
cp -r tests/fixtures/tokenizer/shapes/smollm2 "$scratch/tokenizer"
cp tests/fixtures/chat/smollm2.jinja "$scratch/tokenizer/chat_template.jinja"
python3 - "$scratch/work" <<'EOF'
import json, pathlib, sys
work = pathlib.Path(sys.argv[1])
facts = dict(Peru="Lima", France="Paris", Italy="Rome", Spain="Madrid")
(work / "texts" / "facts.txt").write_text(100 * "".join(f"The capital of {a} is {b}.\n" for a, b in facts.items()))
with open(work / "chats.jsonl", "w") as chats:
    for a, b in 30 * list(facts.items()):
        chats.write(json.dumps({"messages": [{"role": "user", "content": f"What is the capital of {a}?"},
                                             {"role": "assistant", "content": f"{b}."}]}) + "\n")
EOF
cp "$scratch/intents/train.csv" "$scratch/work/intents.csv"
model() { # model NAME PRESET TOKENIZER: one that has learned nothing
    "$train" --task_name lm --train_file README.md --config_name "$2" --tokenizer_name "$3" --max_steps 1 \
        --do_eval false --output_dir "$scratch/home/$1"
}
check "a model in GPT-2's place" model gpt2 gpt data/sample/tokenizer
check "a model in SmolLM2's place" model smollm2 llama "$scratch/tokenizer"

# The section's commands, in order; those that train learn these few rows fast.
sed -n '/^## Your own data/,/^## /p' README.md | grep '^build/' >"$scratch/commands"
check "there are six" test "$(wc -l <"$scratch/commands")" = 6
ln -s "$build" "$scratch/work/build"
cd "$scratch/work"
while read -r command; do
    case $command in
    *texts/*) command="$command --learning_rate 3e-3 --num_train_epochs 12 --per_device_train_batch_size 1" ;;
    build/zf-train*) command="$command --learning_rate 3e-3 --num_train_epochs 8" ;;
    esac
    check "$command" env HOME="$scratch/home" bash -c "$command"
    cp "$scratch/check.log" "$scratch/answer"
    case $command in
    *intents\ *card*) check "a label of 77, with its probability" grep -Eqx "[a-z]+_[a-z-]+	[01]\.[0-9]{4}" "$scratch/answer" ;;
    *--chat*) check "the answer" grep -qx "Lima." "$scratch/answer" ;;
    *"Peru is"*) check "the next word" grep -q "^ Lima" "$scratch/answer" ;;
    esac
done <"$scratch/commands"
finish
