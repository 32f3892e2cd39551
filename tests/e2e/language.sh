#!/usr/bin/env bash
# From conversations, instructions and a folder of texts to a trained model and its answers by zf-run.

. tests/e2e/lib/common.sh "$@"
need python3
run=$build/zf-run

says() { # says WORDS COMMAND...: it succeeds and says so
    local words=$1
    shift
    "$@" >"$scratch/said" 2>&1 && grep -Eq -- "$words" "$scratch/said" || {
        cat "$scratch/said"
        return 1
    }
}
result() { # result FOLDER CONDITION of r, all_results.json
    python3 -c "
import json, sys
r = json.load(open(sys.argv[1] + '/all_results.json'))
assert eval(sys.argv[2]), r" "$1" "$2"
}

# A tokenizer with a chat template, and what is to be learned.
cp -r tests/fixtures/tokenizer/shapes/smollm2 "$scratch/tokenizer"
cp tests/fixtures/chat/chatml.jinja "$scratch/tokenizer/chat_template.jinja"
python3 - "$scratch" <<'EOF'
import json, pathlib, random, sys
scratch = pathlib.Path(sys.argv[1])
capitals = dict(France="Paris", Denmark="Copenhagen", Italy="Rome", Spain="Madrid", Norway="Oslo", Peru="Lima")
draw = random.Random(3)
with open(scratch / "chat.jsonl", "w") as chat, open(scratch / "alpaca.json", "w") as alpaca:
    rows = []
    for _ in range(60):
        for land, city in capitals.items():
            other = draw.choice(list(capitals))
            chat.write(json.dumps({"messages": [
                {"role": "user", "content": f"Capital of {land}?"},
                {"role": "assistant", "content": f"{city}."},
                {"role": "user", "content": f"And {other}?"},
                {"role": "assistant", "content": f"{capitals[other]}."}]}) + "\n")
            rows.append({"instruction": "Name the capital.", "input": land, "output": city})
    json.dump(rows, alpaca, indent=1)
(scratch / "texts" / "more").mkdir(parents=True)
for i in range(8):
    (scratch / "texts" / ("more" if i % 2 else ".") / f"{i}.txt").write_text(
        "\n".join(f"The capital of {land} is {city}." for land, city in capitals.items()) + "\n" )
(scratch / "texts" / "picture.png").write_bytes(b"\x89PNG")
EOF
training=("$train" --task_name lm --config_name llama --tokenizer_name "$scratch/tokenizer" --learning_rate 3e-3
    --per_device_train_batch_size 16 --logging_steps 50)

# Conversations.
chat=$scratch/chat
check "conversations: train" says "360 rows with answers in 1 file.s., form: ChatML; the loss is of the answers alone" \
    "${training[@]}" --train_file "$scratch/chat.jsonl" --num_train_epochs 5 --output_dir "$chat"
check "conversations: answers are learned" result "$chat" "r['eval_loss'] < 0.3 and r['eval_samples'] == 18"
check "the chat template is the model's" cmp "$chat/chat_template.jinja" tests/fixtures/chat/chatml.jinja
check "zf-run --chat answers" test "$("$run" "$chat" --chat "Capital of Italy?" "And Peru?" 2>/dev/null)" = $'Rome.\nLima.'
check "zf-run --chat answers line by line" test "$(printf 'Capital of Spain?\nAnd Denmark?\n' |
    "$run" "$chat" --chat 2>/dev/null)" = $'Madrid.\nCopenhagen.'
if command -v mpirun >/dev/null; then
    short=("${training[@]}" --train_file "$scratch/chat.jsonl" --max_steps 3 --logging_steps 1 --device cpu) # in fp32
    check "one rank" "${short[@]}" --output_dir "$scratch/one"
    check "two ranks" ranks 2 "${short[@]}" --per_device_train_batch_size 8 --output_dir "$scratch/two"
    check "have the same losses" compare "$scratch/one/trainer_log.jsonl" "$scratch/two/trainer_log.jsonl" 1e-5
fi
check "what is too long is said" says "longer than max_seq_length and are cut; [0-9]+ have no answer left" \
    "${training[@]}" --train_file "$scratch/chat.jsonl" --max_steps 1 --max_seq_length 24 --output_dir "$scratch/cut"

# Evaluation alone.
check "evaluation alone" "$train" --task_name lm --do_eval --model_name_or_path "$chat" --validation_file \
    "$scratch/chat.jsonl" --output_dir "$scratch/judged"
check "of answers alone" result "$scratch/judged" "r['eval_loss'] < 0.3"

# Instructions, in the chat template's form and in Alpaca's.
alpaca=("${training[@]}" --train_file "$scratch/alpaca.json" --max_seq_length 256 --do_eval false)
check "instructions: ChatML" says "form: ChatML" "${alpaca[@]}" --max_steps 60 --output_dir "$scratch/instructed"
check "instructions: zf-run answers" test "$("$run" "$scratch/instructed" --chat $'Name the capital.\n\nPeru' \
    2>/dev/null)" = Lima
rm "$scratch/tokenizer/chat_template.jinja"
check "instructions: Alpaca's form" says "form: plain" "${alpaca[@]}" --max_steps 60 --output_dir "$scratch/plain"
check "its answers end" test "$("$run" "$scratch/plain" --max_new_tokens 20 "Below is an instruction that describes a \
task, paired with an input that provides further context. Write a response that appropriately completes the \
request.

### Instruction:
Name the capital.

### Input:
Norway

### Response:
" 2>/dev/null)" = Oslo
check "messages need a template" says "chat.jsonl:1: it has messages, but .*tokenizer has no chat template" not \
    "${training[@]}" --train_file "$scratch/chat.jsonl" --output_dir "$scratch/none"
check "nothing is written" test ! -e "$scratch/none"
check "a model without a template does not chat" says "^zf-run: .*no chat template" not "$run" "$scratch/plain" --chat hi

# A folder of texts.
texts=$scratch/from-texts
check "texts: train" says "8 text.s. in 8 file.s., [0-9,]+ tokens in sequences of 64" "${training[@]}" --train_file \
    "$scratch/texts" --max_seq_length 64 --max_steps 60 --output_dir "$texts"
check "texts: what is no text is said" grep -q "1 files are passed over" "$scratch/said"
check "texts: what is held out is said" grep -q "sequences of train_file are held out" "$scratch/said"
go_on=("$run" "$texts" --max_new_tokens 12 "The capital of Denmark is")
python3 -c 'import sys; open(sys.argv[1], "wb").write("a text\n".encode("utf-16"))' "$scratch/utf16.txt"
check "texts: UTF-16 is refused" says "utf16.txt:1: byte 0xff is not UTF-8" not "${training[@]}" --train_file \
    "$scratch/utf16.txt" --output_dir "$scratch/none"
check "texts: zf-run goes on" says "^ Copenhagen" "${go_on[@]}"
check "texts: from standard input" test "$(printf 'The capital of Denmark is' | "$run" "$texts" \
    --max_new_tokens 12 2>/dev/null)" = "$("${go_on[@]}" 2>/dev/null)"
check "positions are called as the model's config.json does" says \
    "max_seq_length 9999 is more than the model's max_position_embeddings; 512 is used" "${training[@]}" --train_file \
    "$scratch/texts" --max_seq_length 9999 --max_steps 1 --do_eval false --output_dir "$scratch/positions"
check "of GPT-2 n_positions" says "more than the model's n_positions; 512" "${training[@]}" --config_name gpt --train_file \
    "$scratch/texts" --max_seq_length 9999 --max_steps 1 --do_eval false --output_dir "$scratch/positions2"

# Streaming: each token is written when it is there. A socket keeps writes apart as packets, whenever they are read.
check "zf-run streams" python3 - "${go_on[@]}" <<'EOF'
import socket, subprocess, sys
ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
run = subprocess.Popen(sys.argv[1:], stdout=its, stderr=subprocess.DEVNULL)
its.close()
pieces = list(iter(lambda: ours.recv(1 << 16), b""))
assert run.wait() == 0
whole = subprocess.run(sys.argv[1:], capture_output=True, check=True).stdout
assert b"".join(pieces) == whole and len(whole) > 12, (pieces, whole)
assert 8 <= len(pieces) <= 13 and max(map(len, pieces)) < len(whole) / 2, pieces
EOF
check "zf-run --chat answers before it has the next line" timeout 120 python3 - "$run" "$chat" --chat <<'EOF'
import subprocess, sys
with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
    for question, answer in (b"Capital of Spain?\n", b"Madrid.\n"), (b"And Denmark?\n", b"Copenhagen.\n"):
        run.stdin.write(question)
        run.stdin.flush()
        said = run.stdout.readline()
        assert said == answer, said
EOF
check "a pattern is the same files" says "8 text.s. in 8 file" "${training[@]}" --train_file \
    "$scratch/texts/*.txt,$scratch/texts/more" --max_seq_length 64 --max_steps 1 --output_dir "$scratch/pattern"

# Drawing.
drawn() {
    "$run" "$texts" --max_new_tokens 30 --temperature 3 "$@" "The" 2>/dev/null
}
check "a seed draws the same" test "$(drawn --seed 1)" = "$(drawn --seed 1)"
check "another draws others" test "$(drawn --seed 1)" != "$(drawn --seed 2)"
greedy=$("$run" "$texts" --max_new_tokens 30 "The" 2>/dev/null)
check "of one token it is greedy: top_k" test "$(drawn --top_k 1)" = "$greedy"
check "of one token it is greedy: top_p" test "$(drawn --top_p 0.000001)" = "$greedy"
check "temperature 0 is greedy" test "$(drawn --temperature 0)" = "$greedy"

# Options of the other kind, and what does not fit.
check "a file for a language model" says "^zf-run: --file is given, but .* is a language model" not "$run" "$texts" --file x.csv
check "a number of rows for a language model" says "^zf-run: --per_device_eval_batch_size is given, but .* is a language model" \
    not "$run" "$texts" --per_device_eval_batch_size 8 x
check "a prompt too long" says "^zf-run: the prompt has [0-9]+ tokens, but with its answer it may have 8" not "$run" \
    "$texts" --max_seq_length 8 "The capital of Denmark is Copenhagen and the capital of Norway is Oslo"
check "the end of the positions is said" says "^warning: the text has 16 tokens, and no more are possible" "$run" "$texts" \
    --max_seq_length 16 "The capital of"
check "zf-run --help" "$run" --help
"$run" --help >"$scratch/help"
check "help fits 100 columns" awk 'length > 100 { exit 1 }' "$scratch/help"
for option in $(sed -n 's/.*{\.name = "\([a-z_]*\)".*/\1/p' cmd/answer/options.c); do
    check "help has --$option" grep -q -- "--$option\b" "$scratch/help"
done
check "zf-run --version" says "^zf-run [0-9.]+$" "$run" --version
check "a prompt that is no text" says "^zf-run: standard input:2: byte 0xff is not UTF-8" not bash -c \
    "printf 'a\\n\\377' | '$run' '$texts'"
check "nor on the command line" says "^zf-run: TEXT:1: byte 0xff is not UTF-8" not "$run" "$texts" $'\xff'
check "a byte order mark is no text" test "$(printf '\357\273\277The capital of Denmark is' | "$run" "$texts" \
    --max_new_tokens 12 2>/dev/null)" = "$("${go_on[@]}" 2>/dev/null)"
check "no text at all" says "^zf-run: there is no text to go on with" not bash -c "'$run' '$texts' </dev/null"
finish
