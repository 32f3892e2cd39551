#!/usr/bin/env bash
# tests/bench/accuracy_table.py --quick, on the sample: its records, how local the important channels were by them, and
# one table of two files.

. tests/e2e/lib/common.sh "$@"
need python3

cp -r tests/fixtures/glue "$scratch/glue"
cp data/sample/SST-2/*.tsv "$scratch/glue/SST-2"
table=(python3 tests/bench/accuracy_table.py --zf-train "$train" --glue "$scratch/glue" --out "$scratch" --work "$scratch/work"
    --quick --tasks sst2 --seeds 2)
check "runs of AdamW" "${table[@]}" --methods adamw
check "which choose no channels" not "${table[@]}" --locality
cp "$scratch/check.log" "$scratch/printed"
check "and that is said" grep -q "none of its 2 runs tells of choices" "$scratch/printed"
check "runs of ZenFlow" "${table[@]}" --methods zenflow
check "are beside them" grep -Eq '^SST-2 accuracy +ZenFlow +2 .* 4\.0 +[0-9]+\.[0-9]+%' "$scratch/accuracy_quick.txt"
check "how local its channels were" "${table[@]}" --locality
cp "$scratch/check.log" "$scratch/printed"
check "is the mean over the seeds" python3 - "$scratch" <<'END'
import json, sys
runs = [r for r in json.load(open(sys.argv[1] + "/accuracy_quick.json"))["runs"] if r["method"] == "zenflow"]
lines = open(sys.argv[1] + "/printed").read().split("\n")
assert len(runs) == 2 and all(r["locality"]["choices"] >= 2 for r in runs)
assert 50 < runs[0]["bytes_gradients"] / runs[0]["bytes_norms"] < 1000, runs[0]
assert lines[0].startswith("SST-2, ZenFlow, 2 seeds, ") and f" {runs[0]['bytes_norms']:,} bytes of norms" in lines[0], lines[0]
rows = {line[:12].strip(): line[12:].split() for line in lines[3:] if line}
assert set(rows) == {"all", "blocks", "embeddings", "head"} | {f"block {i}" for i in range(1, len(rows) - 3)}, rows
for name, layer in ("embeddings", 0), ("block 1", 1):
    for at, figure in (0, "selection_overlap"), (3, "selection_share"):
        for i in range(3):
            mean = sum(r["locality"][figure]["layers"][layer][i] for r in runs) / 2
            assert abs(float(rows[name][at + i].rstrip("%")) - 100 * mean) < 0.051, (name, figure, i, rows[name], mean)
END
check "runs that choose every five steps" "${table[@]}" --methods zenflow --select-interval 5
check "have a row of their own" grep -Eq '^SST-2 accuracy +ZenFlow, choice every 5 +2 ' "$scratch/accuracy_quick.txt"
check "and choose so" python3 -c '
import json, sys
runs = [r for r in json.load(open(sys.argv[1]))["runs"] if r["title"].endswith("every 5")]
assert len(runs) == 2
for r in runs:
    assert r["locality"]["choices"] == (r["results"]["global_step"] + 4) // 5, r
' "$scratch/accuracy_quick.json"
mkdir "$scratch/more"
sed 's/"notes": \[\]/"notes": ["slow"]/' "$scratch/accuracy_quick.json" >"$scratch/more/accuracy_quick.json"
check "a third seed, in another file" "${table[@]}" --methods zenflow --first-seed 3 --seeds 3 --out "$scratch/more"
together() { python3 tests/bench/accuracy_together.py "$scratch/accuracy_quick.json" "$1"; }
check "a table of both" together "$scratch/more/accuracy_quick.json"
cp "$scratch/check.log" "$scratch/printed"
check "has each seed once" grep -Eq '^SST-2 accuracy +ZenFlow +2\+1 .* 4\.0 ' "$scratch/printed"
check "and what one file alone has" grep -Eq '^SST-2 accuracy +ZenFlow, choice every 5 +2\+0 ' "$scratch/printed"
check "but AdamW of each machine" grep -Eq '^SST-2 accuracy +AdamW +2\+0 ' "$scratch/printed"
check "apart" grep -Eq '^SST-2 accuracy +AdamW \(2\) +0\+2 ' "$scratch/printed"
check "whose notes stay with its runs" grep -q '^2: slow$' "$scratch/printed"
sed 's/"sentences": [0-9]*/"sentences": 1/' "$scratch/more/accuracy_quick.json" >"$scratch/other.json"
check "runs from another model do not stand beside them" not together "$scratch/other.json"
cp "$scratch/other.json" "$scratch/more/accuracy_quick.json"
check "nor are runs added to them" not "${table[@]}" --methods adamw --out "$scratch/more"
check "which stay" cmp "$scratch/other.json" "$scratch/more/accuracy_quick.json"
sed 's/"cpu": "/"cpu": "not /' "$scratch/accuracy_quick.json" >"$scratch/more/accuracy_quick.json"
check "nor to those of another machine" not "${table[@]}" --methods adamw --out "$scratch/more"
cp "$scratch/check.log" "$scratch/printed"
check "and that is said" grep -q "its runs were made on not " "$scratch/printed"
finish
