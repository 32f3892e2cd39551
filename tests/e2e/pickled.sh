#!/usr/bin/env bash
# Pickled weights, whole or in shards, are refused with the shell line that converts them. A shell and Python can
# read it and, with torch, it makes the weights that were pickled. ZF_PYTHON names the Python that has torch and
# safetensors (default: python3).

. tests/e2e/lib/common.sh "$@"
need python3
python=${ZF_PYTHON:-python3}
"$python" -c "import torch, safetensors.torch" 2>/dev/null || python=

mkdir "$scratch/bin" # the line says python3
printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "${python:-python3}")" >"$scratch/bin/python3"
chmod +x "$scratch/bin/python3"

check "a model" "$train" "${tiny[@]}" --task_name sst2 --max_steps 1 --output_dir "$scratch/model"

pickled() { # pickled FOLDER FILE: the model, its weights pickled; without torch there is but the name
    mkdir -p "$(dirname "$1")"
    cp -r "$scratch/model" "$1"
    rm "$1/model.safetensors"
    if [ -z "$python" ]; then
        echo '{}' >"$1/$2"
    else
        "$python" - "$scratch/model/model.safetensors" "$1" "$2" <<'END'
import json, sys
import safetensors.torch, torch
weights, (folder, name) = safetensors.torch.load_file(sys.argv[1]), sys.argv[2:]
if name == "pytorch_model.bin":
    torch.save(weights, f"{folder}/{name}")
else:
    names = sorted(weights)
    shards = {f"pytorch_model-0000{i + 1}-of-00003.bin": names[i::3] for i in range(3)}
    for shard, keys in shards.items():
        torch.save({k: weights[k] for k in keys}, f"{folder}/{shard}")
    with open(f"{folder}/{name}", "w") as f:
        json.dump({"weight_map": {k: shard for shard, keys in shards.items() for k in keys}}, f)
END
    fi
}

for name in pytorch_model.bin pytorch_model.bin.index.json; do
    folder="$scratch/Ada's models/$name"
    pickled "$folder" "$name"
    fails "$name" "/$name is not read, but model.safetensors" "$build/zf-run" "$folder" "a good film"
    line=$(sed -n 's/^zf-run: .* this makes it: //p' "$scratch/stderr")
    check "$name: a line for a shell" bash -n -c "$line"
    check "$name: a program for Python" python3 -c 'import ast, re, sys
ast.parse(re.search("python3 -c \"(.*)\"$", sys.argv[1]).group(1))' "$line"
    if [ -n "$python" ]; then
        check "$name: the line works" env PATH="$scratch/bin:$PATH" bash -c "$line"
        check "$name: and makes the weights that were pickled" "$python" -c 'import sys
from safetensors.torch import load_file
a, b = map(load_file, sys.argv[1:])
assert a.keys() == b.keys() and all(a[k].equal(b[k]) for k in a)' \
            "$scratch/model/model.safetensors" "$folder/model.safetensors"
        check "$name: which are read" "$build/zf-run" "$folder" "a good film"
    fi
done
[ -n "$python" ] || echo "skipped: running the line, for want of a Python with torch (ZF_PYTHON names one that has)"
finish
