#!/usr/bin/env bash
# On a terminal there is one live progress line, which fits, and of which nothing is left behind.

. tests/e2e/lib/common.sh "$@"
need script python3

cat >"$scratch/run.sh" <<END
stty cols \$1
exec "$train" --config configs/zenflow.json ${tiny[*]} --max_steps 12 --eval_strategy steps \\
    --eval_steps 4 --overwrite_output_dir --output_dir "$scratch/out" \$2
END
on_terminal() { # on_terminal COLUMNS OPTION: what the terminal was sent
    script -qec "bash $scratch/run.sh $1 $2" /dev/null </dev/null
}

check "a wide terminal" on_terminal 120 ""
cp "$scratch/check.log" "$scratch/wide"
check "a narrow terminal" on_terminal 30 ""
cp "$scratch/check.log" "$scratch/narrow"
check "--disable_tqdm" on_terminal 80 --disable_tqdm
cp "$scratch/check.log" "$scratch/plain"

cat >"$scratch/screen.py" <<'END'
"""Plays what a terminal was sent, and checks every state of the line that the cursor is on."""
import re, sys

sent = open(sys.argv[1], newline="").read()
columns = int(sys.argv[2])
shown = [f for f in re.split(r"[\r\n]+|\033\[K", sent) if f.startswith("step ")]
assert shown, sent
assert max(map(len, shown)) < columns, shown
assert not re.search(r"\033(?!\[K)", sent), "other escape codes than clearing a line"
assert re.match(r"step \d+/12 {2}epoch ", shown[0]) and shown[-1].startswith("step 12/12 "), shown
# What stays on the screen: each line as it was after its last \r and clearing.
stays = [re.split(r"\r(?:\033\[K)?", line.rstrip("\r"))[-1] for line in sent.split("\n")]
assert not any(line.startswith("step ") for line in stays), stays
assert any(re.match(r"eval_accuracy +\d", line) for line in stays), stays
if columns >= 120:
    assert re.match(r"step \d+/12  epoch \d\.\d\d  loss \d+\.\d{4}  lr \d\.\d\de-\d\d  "
                    r"\d+ tokens/s  stall \d+\.\d%  left \d+:\d\d$", shown[-1].rstrip()), shown[-1]
END
check "the wide line is whole, and is cleared" python3 "$scratch/screen.py" "$scratch/wide" 120
check "the narrow line fits, and is cleared" python3 "$scratch/screen.py" "$scratch/narrow" 30
check "--disable_tqdm gives lines" grep -q '^step 12 ' "$scratch/plain"
check "--disable_tqdm gives no escape codes" not grep -q $'\033' "$scratch/plain"
finish
