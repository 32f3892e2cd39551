#!/usr/bin/env bash
# Language modelling beside llm.c's train_gpt2cu on one GPU: the same shape, random tokens, no dropout.
#
#   bash tests/bench/compare_llmc.sh build/zf-bench --llmc DIR [--preset gpt2-xl] [--seqs 16]
#
# DIR holds llm.c's source; it is built in a copy, for one GPU, with its own attention; its cuDNN
# attention comes with LLMC_MAKE="USE_CUDNN=1" in the environment, where cudnn-frontend is installed.
# Without DIR, or without nvcc and a GPU, the script says so and ends with status 77.
set -euo pipefail
export LC_ALL=C

usage() {
    echo "usage: compare_llmc.sh ZF_BENCH --llmc DIR [--preset NAME] [--seqs N] [--length N] [--steps N]" >&2
    exit 2
}
skip() {
    echo "skipped: llm.c: $*"
    exit 77
}

[ $# -ge 1 ] || usage
zf_bench=$1
shift
llmc='' preset=gpt2 seqs=16 length=1024 steps=20 warm_up=8
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
    --llmc) llmc=$2 ;;
    --preset) preset=$2 ;;
    --seqs) seqs=$2 ;;
    --length) length=$2 ;;
    --steps) steps=$2 ;;
    *) usage ;;
    esac
    shift 2
done
# Its random initialisation is asked for by the number of layers.
case $preset in
gpt2) depth=d12 ;;
gpt2-medium) depth=d24 ;;
gpt2-large) depth=d36 ;;
gpt2-xl) depth=d48 ;;
*) skip "it has no model of $preset's shape" ;;
esac
[ -n "$llmc" ] || skip "no folder with its source is given (--llmc DIR)"
[ -f "$llmc/train_gpt2.cu" ] || skip "$llmc has no train_gpt2.cu"
command -v nvcc >/dev/null || skip "nvcc is not installed"
nvidia-smi >/dev/null 2>&1 || skip "this machine has no GPU"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -R "$llmc" "$scratch/llmc"
# shellcheck disable=SC2086 # LLMC_MAKE is several words
make -C "$scratch/llmc" train_gpt2cu NO_MULTI_GPU=1 ${LLMC_MAKE:-} >"$scratch/make.log" 2>&1 || {
    tail -n 20 "$scratch/make.log"
    skip "it does not build here"
}

# Its token files: 256 int32 (a magic number, the version, how many tokens), then uint16 tokens.
python3 - "$scratch/tokens.bin" $((seqs * (length + 1) * (steps + warm_up + 2))) <<'END'
import random
import struct
import sys

n = int(sys.argv[2])
draw = random.Random(1)
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<256i", 20240520, 1, n, *[0] * 253))
    file.write(struct.pack(f"<{n}H", *draw.choices(range(50257), k=n)))
END

(cd "$scratch/llmc" && ./train_gpt2cu -i "$scratch/tokens.bin" -j "$scratch/tokens.bin" -e "$depth" -b "$seqs" \
    -t "$length" -d $((seqs * length)) -x $((steps + warm_up)) -v 0 -s 0 -h 0 -l 1e-4 -c 0.01) \
    >"$scratch/llmc.log" 2>&1 || {
    tail -n 20 "$scratch/llmc.log"
    skip "its program fails here"
}
"$zf_bench" train --preset "$preset" --device cuda --seqs "$seqs" --length "$length" --dropout 0 --steps "$steps" \
    --warm-up "$warm_up" --json "$scratch/ours.json" >/dev/null

python3 - "$scratch/llmc.log" "$scratch/ours.json" "$warm_up" "$preset" "$seqs" "$length" <<'END'
import json
import re
import statistics
import sys

log, ours, warm_up, preset, seqs, length = sys.argv[1:]
steps = [float(ms) for ms in re.findall(r"^step .*\| ([0-9.]+) ms \|", open(log).read(), re.M)]
if len(steps) <= int(warm_up):
    sys.exit(f"llm.c's output has {len(steps)} steps")
theirs = statistics.median(steps[int(warm_up):])
ours = 1e3 * json.load(open(ours))["methods"][0]["median_seconds"]
tokens = int(seqs) * int(length)
print(f"lm, {preset}, {seqs} x {length}: ours {ours:.2f} ms, {1e3 * tokens / ours:.0f} tokens/s; "
      f"llm.c {theirs:.2f} ms, {1e3 * tokens / theirs:.0f} tokens/s; ratio {theirs / ours:.2f}")
END
