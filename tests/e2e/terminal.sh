#!/usr/bin/env bash
# What a run shows: on a terminal, that of tmux, lines that stay above a live one, which fits the width
# whenever that changes; in a pipe plain lines; at the end what there is and what to type next, which works.

. tests/e2e/lib/common.sh "$@"
need tmux script strace python3

printf '%s\n' "set -g remain-on-exit on" "set -g status off" >"$scratch/tmux.conf"
terminals=0
mux() {
    tmux -L "zf-$$-$terminals" -f "$scratch/tmux.conf" "$@"
}
trap 'mux kill-server 2>/dev/null || true; rm -rf "$scratch"' EXIT

start() { # start COLUMNS COMMAND...: on a terminal so wide and 40 lines high
    mux kill-server 2>/dev/null || true
    terminals=$((terminals + 1)) # a server that ends takes its time
    mux new-session -d -x "$1" -y 40 "$(printf '%q ' "${@:2}")"
}
shows() { # shows PATTERN: within a minute the last line on the screen is such
    local i
    for ((i = 0; i < 600; i++)); do
        mux capture-pane -p | sed '/^ *$/d' | tail -n 1 >"$scratch/last"
        ! grep -Eq -- "$1" "$scratch/last" || return 0
        sleep 0.1
    done
    cat "$scratch/last"
    return 1
}
ended() { # within two minutes; what stayed on the screen and above is then in $scratch/screen
    local i
    for ((i = 0; i < 1200; i++)); do
        if [ "$(mux list-panes -F '#{pane_dead}')" = 1 ]; then
            mux capture-pane -p -J -S - | sed -e 's/ *$//' -e '/^Pane is dead/d' >"$scratch/screen"
            return 0
        fi
        sleep 0.1
    done
    return 1
}

# A run from its first to its last step: all lines of steps and evaluations, once each, and no part of a live one.
cat >"$scratch/screen.py" <<'END'
import re, sys

columns, name = int(sys.argv[1]), sys.argv[2]
lines = open(sys.argv[3]).read().split("\n")
told = [line for line in lines if re.search(r"step \d|tokens/s| left", line)]
evaluation = r"  eval_loss \d\.\d{4}  eval_accuracy \d\.\d{4}"
training = (r"  (epoch \d\.\d\d  )?loss \d\.\d{4}(  lr \d\.\d\de[-+]\d\d)?(  grad norm [-+\d.e]+)?  "
            r"[\d,]+ tokens/s(  \d+\.\d% computing)?")
expected = []
for step in range(1, 13):
    expected.append(f"step {step}/12" + training + (r"  \d+:\d\d left" if step < 12 else ""))
    if step in (4, 8):
        expected.append(f"step {step}/12" + evaluation)
expected.append("step 12/12  final model" + evaluation)
assert len(told) == len(expected), told
for line, pattern in zip(told, expected):
    assert re.fullmatch(pattern, line), (line, pattern)
    assert len(line) < columns, line
messages = lines[:lines.index(told[0])]
assert all(len(line) <= columns for line in messages), messages  # tmux has joined what it broke itself
assert "; 1 rank(s) on the cpu device matrix products" in " ".join(line.strip() for line in messages), messages
if columns > 110:
    assert all("lr " in line and "epoch " in line for line in told if " loss" in line and "eval" not in line), told
assert sum(line.startswith("eval_accuracy ") for line in lines) == 1, lines
after = lines[lines.index(f"In {name}/out:"):]
for file in "model.safetensors", "all_results.json", "trainer_log.jsonl", "zf_train_config.json":
    assert any(line.startswith(f"  {file} ") for line in after), after
END
short=("$train" --device cpu --config "$steady/zenflow.json" "${tiny[@]}" --max_steps 12 --eval_strategy steps --eval_steps 4
    --overwrite_output_dir --output_dir "$scratch/out")
for columns in 120 80; do
    start $columns "${short[@]}"
    check "$columns columns: it ends" ended
    check "$columns columns: what stays on the screen" python3 "$scratch/screen.py" $columns "$scratch" "$scratch/screen"
    [ $failures = 0 ] || cat "$scratch/screen"
done

# What it says to type next is right.
command=$(sed -n '/^Next:/{n;p}' "$scratch/screen")
check "next: zf-run with the model" test "$command" = "  $build/zf-run $scratch/out \"a sentence\""
check "next: it answers" bash -c "$command"

# The live line, through changes of the width; steps without end, which Ctrl-C ends.
long=("$train" --config "$steady/zenflow.json" "${tiny[@]}" --max_steps 1000000 --logging_steps 5 --eval_strategy no
    --overwrite_output_dir --output_dir "$scratch/long")
step='^step [0-9,]+/1,000,000'
loss='  loss [0-9.]+'
rate='  [0-9,]+ tokens/s'
start 120 "${long[@]}"
check "the live line: all of it" shows \
    "$step  epoch [0-9.]+$loss  lr [0-9.e-]+$rate  [0-9.]+% computing  ([0-9]+:[0-9:]+|[0-9]+ d [0-9]+ h) left$"
mux resize-window -x 80
check "the live line at 80 columns: what matters" shows "$step$loss$rate(  [0-9.]+% computing)?  .* left$"
mux resize-window -x 52
check "the live line at 52 columns: less" shows "$step$loss$rate$"
mux resize-window -x 20
check "the live line at 20 columns: the step" shows "$step$"
mux resize-window -x 120
check "the live line: all of it again" shows "$step  epoch .* left$"
mux send-keys C-c
check "the live line: Ctrl-C ends it" ended
check "the live line: no part of it is left" python3 - "$scratch/screen" <<'END'
import re, sys
lines = open(sys.argv[1]).read().split("\n")
steps = [line for line in lines if re.search(r"\d/1,000,000|tokens/s", line)]
assert steps, lines
for line in steps:
    found = re.match(r"(?:\^C)?step ([\d,]+)/1,000,000  (epoch|loss)", line)
    assert found and int(found[1].replace(",", "")) % 5 == 0, line
assert any(line.startswith("stopped by SIGINT; ") for line in lines), lines
END
[ $failures = 0 ] || cat "$scratch/screen"
command=$(sed -n '/^Next:/{n;p}' "$scratch/screen")
check "stopped: what to type next" grep -q -- "^  $train --config $scratch/long/zf_train_config.json --resume_from_checkpoint latest$" "$scratch/screen"
check "stopped: it goes on" bash -c "$command --max_runtime 1s; [ \$? = 75 ]"
cp "$scratch/check.log" "$scratch/resumed"
check "stopped: from there" grep -q "^resuming from $scratch/long/checkpoint-" "$scratch/resumed"

# Stages that take their time.
slow=("$train" --do_eval --task_name sst2 --data_dir "$scratch/many" --model_name_or_path "$scratch/out" --device cpu
    --per_device_eval_batch_size 1 --num_threads 1)
python3 - "$scratch/many" <<'END'
import os, sys
os.mkdir(sys.argv[1])
rows = open("data/sample/SST-2/dev.tsv").read().split("\n")[1:-1] * 2000
with open(sys.argv[1] + "/dev.tsv", "w") as dev:
    dev.write("sentence\tlabel\n" + "\n".join(rows) + "\n")
END
start 100 "${slow[@]}"
check "at the start: what takes its time" shows "^reading the data  0:[0-9]+$"
check "evaluation: how far it is" shows "^evaluating  [0-9,]+ of 800,000  [0-9.]+%  [0-9:]+ left$"
# Colour, and none.
sent() { # sent COMMAND...: what a terminal of 100 columns is sent
    script -qec "stty cols 100; $(printf '%q ' "$@")" /dev/null </dev/null >"$scratch/sent" 2>&1
}
colour=$'\033\\[[0-9;]*m'
check "in colour" sent env -u NO_COLOR TERM=xterm "${short[@]}"
check "in colour: evaluations" grep -q $'\033\\[36mstep 4/12  eval_loss' "$scratch/sent"
check "in colour: each ends" python3 -c 'import sys; s = open(sys.argv[1], newline="").read()
assert s.count("\033[0m") == s.count("\033[36m") + s.count("\033[1m") + s.count("\033[2m") > 10' "$scratch/sent"
check "NO_COLOR" sent env NO_COLOR=1 TERM=xterm "${short[@]}"
check "NO_COLOR: none" not grep -q "$colour" "$scratch/sent"
check "NO_COLOR: but a live line" grep -q $'\033\\[?7lstep [0-9]*/12' "$scratch/sent"
for plain in "TERM=dumb ${short[*]}" "TERM=xterm ${short[*]} --disable_tqdm"; do
    read -ra words <<<"$plain"
    check "plain: ${words[0]} ${words[-1]}" sent env "${words[@]}"
    check "plain: no escape codes" not grep -q $'\033' "$scratch/sent"
    check "plain: lines" grep -q '^step 12/12  epoch ' "$scratch/sent"
done

# In a pipe.
check "in a pipe" "${short[@]}"
cp "$scratch/check.log" "$scratch/piped"
check "in a pipe: no escape codes" not has_escape_codes "$scratch/piped"
check "in a pipe: no trailing blanks" not grep -q ' $' "$scratch/piped"
check "in a pipe: all steps, and the time left" grep -Eq '^step 4/12  epoch .* tokens/s  .* computing  [0-9]+:[0-9]+ left$' "$scratch/piped"
check "in a pipe: short" not grep -Eq '^step .{115}' "$scratch/piped"
check "the first and the last words" python3 - "$scratch/piped" <<'END'
import sys
lines = open(sys.argv[1]).read().split("\n")
assert lines[-3] == "Next:" and lines[-1] == "", lines[-4:]
END

# A command that is to be typed takes names with blanks. What is of use there is told, whoever has made it.
mkdir "$scratch/its own"
touch "$scratch/its own/"{report.html,predict_results.txt,predict_results_2.txt,notes.txt}
check "a folder with blanks" "${short[@]}" --output_dir "$scratch/its own" --max_steps 1 --eval_strategy no \
    --save_strategy steps --save_steps 1
cp "$scratch/check.log" "$scratch/printed"
check "what is there" grep -q '^  report.html  ' "$scratch/printed"
check "what is there: several of a kind" grep -q '^  predict_results.txt + 1  *predictions$' "$scratch/printed"
check "what is there: checkpoints" grep -q '^  checkpoint-1  *to go on from' "$scratch/printed"
check "what is there: nothing else" not grep -q 'notes.txt' "$scratch/printed"
command=$(sed -n '/^Next:/{n;p}' "$scratch/printed")
check "a folder with blanks: what comes next works" bash -c "$command"

# What takes its time, or depends on others': a checkpoint on a slow disk.
slowly() { # slowly SECONDS: $command is such a run
    command=(strace -f -qq -o "$scratch/calls" -P "$scratch/slow/tmp-checkpoint-4" -e trace=fsync
        -e inject=fsync:delay_enter="$1"000000:when=1 "${short[@]}" --max_steps 4 --eval_strategy no
        --save_strategy steps --save_steps 4 --output_dir "$scratch/slow")
}
if [ "${ZF_LONG:-0}" = 1 ]; then
    slowly 3
    start 100 "${command[@]}"
    check "a checkpoint that takes its time" shows "^step 4/4  saving a checkpoint  0:0[0-9]$"
    check "and the end" ended
    slowly 12
    check "in a pipe: a checkpoint that takes its time" "${command[@]}"
    cp "$scratch/check.log" "$scratch/piped"
    check "in a pipe: it is told of once" test "$(grep -Ec '^step 4/4  saving a checkpoint  0:1[0-9]$' "$scratch/piped")" = 1
    start 100 bash -c "$(printf '%q ' "${short[@]}") --max_steps 400 --logging_steps 50 | tee $scratch/tee"
    check "by way of tee: it ends" ended
    check "by way of tee: whole lines" bash -c "grep -E 'step [0-9]|tokens/s' $scratch/screen | diff - <(grep -E '^step ' $scratch/tee)"
fi
finish
