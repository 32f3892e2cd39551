"""Compares two runs' trainer_log.jsonl: what they computed, not how long it took.

    compare.py LOG LOG TOLERANCE [FIRST STEP]

The entries of steps from FIRST STEP on, but for those of checkpoints, must be the same in number and keys, and their values agree
to TOLERANCE, relative; 0 means exactly."""

import json
import sys


def read(path, first):
    entries = []
    with open(path) as file:
        for line in file:
            entry = json.loads(line)
            if entry["step"] >= first and "checkpoint" not in entry:
                entries.append({k: v for k, v in entry.items() if is_computed(k)})
    return entries


def is_computed(key):
    named = ("step", "epoch", "loss", "grad_norm", "learning_rate")
    times = ("runtime", "per_second")
    return key in named or (key.startswith("eval_") and not any(t in key for t in times))


def main():
    tolerance = float(sys.argv[3])
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    a, b = (read(path, first) for path in sys.argv[1:3])
    if not a or [list(e) for e in a] != [list(e) for e in b]:
        other = next((pair for pair in zip(a, b) if list(pair[0]) != list(pair[1])), "")
        sys.exit(f"{len(a)} and {len(b)} entries, or other keys: {other}")
    for left, right in zip(a, b):
        for key in left:
            difference = abs(left[key] - right[key])
            if not difference <= tolerance * max(abs(left[key]), abs(right[key])):
                sys.exit(f"step {left['step']}: {key} is {left[key]!r} and {right[key]!r}")


main()
