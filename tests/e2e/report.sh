#!/usr/bin/env bash
# report.html: what it holds is the log's, whole after a resume, and is drawn by a real browser without a fault and
# without a network; whatever a text holds stays a text; and several runs on one page. With ZF_LONG=1 of every task.

. tests/e2e/lib/common.sh "$@"
need python3

data() { # data FOLDER: what its page holds
    python3 tests/e2e/lib/report_page.py data "$1/report.html"
}
# In fp32, so that two ranks have the losses of one.
run=("$train" --device cpu --config "$steady/zenflow.json" "${tiny[@]}" --eval_strategy steps --eval_steps 4 --max_steps 16)

# What the page holds.
check "a run" "${run[@]}" --output_dir "$scratch/whole"
cp "$scratch/check.log" "$scratch/whole.said"
data "$scratch/whole" >"$scratch/whole.json"
check "it is the log's" python3 - "$scratch/whole" <<'END'
import json, sys
run, = json.load(open(sys.argv[1] + ".json"))
log = [json.loads(line) for line in open(sys.argv[1] + "/trainer_log.jsonl")]
for key in "loss", "learning_rate", "grad_norm", "tokens_per_second", "stall", "bytes_down", "eval_loss", "eval_accuracy":
    expected = [(e["step"], e[key]) for e in log if key in e]
    curve = run["curves"][key]
    assert curve["step"] == [step for step, _ in expected] and len(expected) == (4 if key.startswith("eval") else 16), key
    assert all(abs(a - b) <= 1e-6 * abs(b) for a, (_, b) in zip(curve["value"], expected, strict=True)), key
assert run["state"] == "done" and run["step"] == run["total_steps"] == 16 and run["results"]["eval_samples"] == 64
mistakes, = run["mistakes"]
accuracy = sum(n for right, answer, n in mistakes["cells"] if right == answer) / 64
assert abs(accuracy - run["results"]["eval_accuracy"]) < 1e-6 and mistakes["labels"] == ["negative", "positive"]
wrong = sum(n for right, answer, n in mistakes["cells"] if right != answer)
losses = [w["loss"] for w in mistakes["wrongest"]]
assert len(losses) == min(25, wrong) and losses == sorted(losses, reverse=True) and all(w["text"] for w in mistakes["wrongest"])
keys = {name: (value, origin) for group in run["configuration"] for name, value, origin in group["keys"]}
assert keys["max_steps"] == ("16", "--max_steps") and keys["seed"] == ("42", "default")
assert keys["zero_optimization.zenflow.topk_ratio"][1].endswith("/configs/zenflow.json:11")
assert sum(n for _, n in run["memory"]["device"]) > 1e6 and run["memory"]["process_peak"] > 1e6
END
check "layer by layer how local the choices were, and only where there was one" python3 - "$scratch/whole" <<'END'
import json, sys
run, = json.load(open(sys.argv[1] + ".json"))
log = [json.loads(line) for line in open(sys.argv[1] + "/trainer_log.jsonl")]
chosen = [e for e in log if "selection_share" in e]
assert len(chosen) >= 2 and not any("loss" in e for e in chosen)
assert [("selection_overlap" in e) for e in chosen] == [False] + [True] * (len(chosen) - 1)
for key, entries in ("selection_share", chosen), ("selection_overlap", chosen[1:]):
    layers = list(zip(*(e[key + "_by_layer"] for e in entries), strict=True))
    assert layers and all(0 < e[key] <= 1 for e in entries), key
    for name, values in (key, [e[key] for e in entries]), *((f"{key}_by_layer.{i}", v) for i, v in enumerate(layers)):
        curve = run["curves"].get(name, {"step": [], "value": []})
        expected = [(e["step"], v) for e, v in zip(entries, values) if v is not None]
        assert curve["step"] == [step for step, _ in expected], name
        assert all(abs(a - b) <= 1e-6 for a, (_, b) in zip(curve["value"], expected)), name
END
check "a run too short to log a step" "${run[@]}" --logging_steps 20 --output_dir "$scratch/rare"
check "loses no choice" python3 - "$scratch/whole" "$scratch/rare" <<'END'
import json, sys
whole, rare = ([json.loads(line) for line in open(folder + "/trainer_log.jsonl")] for folder in sys.argv[1:])
assert not any("loss" in e for e in rare), rare
whole, rare = ([e for e in log if "selection_share" in e] for log in (whole, rare))
assert whole == rare and len(rare) >= 2, (whole, rare)
END
check "the same as a table" bash -c 'python3 tests/bench/locality_table.py "$1" >"$1.table"' - "$scratch/whole"
check "of the log's numbers" python3 - "$scratch/whole" <<'END'
import json, re, statistics, sys
log = [json.loads(line) for line in open(sys.argv[1] + "/trainer_log.jsonl")]
rows = {line[:12].strip(): line[12:].split() for line in open(sys.argv[1] + ".table")}
def told(values): return [f"{v:.1%}" for v in (values[0], statistics.median(values), values[-1])]
shares = [e["selection_share_by_layer"] for e in log if "selection_share" in e]
overlaps = [e["selection_overlap_by_layer"] for e in log if "selection_overlap" in e]
for name, layer in ("embeddings", 0), ("block 1", 1), ("block 2", 2):
    assert rows[name] == told([o[layer] for o in overlaps]) + told([s[layer] for s in shares]), (name, rows[name])
blocks = [statistics.fmean(o[1:-1]) for o in overlaps], [statistics.fmean(s[1:-1]) for s in shares]
assert len(shares[0]) == 4 and rows["blocks"] == told(blocks[0]) + told(blocks[1]), (rows["blocks"], blocks)
assert rows["all"][5] == f"{[e['selection_share'] for e in log if 'selection_share' in e][-1]:.1%}"
END
check "two ranks have the same mistakes" ranks 2 "${run[@]}" --per_device_train_batch_size 8 \
    --per_device_eval_batch_size 8 --output_dir "$scratch/two"
cp "$scratch/check.log" "$scratch/two.said"
data "$scratch/two" >"$scratch/two.json"
check "to rounding" python3 - "$scratch" <<'END'
import json, sys
one, two = (json.load(open(f"{sys.argv[1]}/{name}.json"))[0]["mistakes"][0] for name in ("whole", "two"))
assert one["cells"] == two["cells"], (one["cells"], two["cells"])
assert all(abs(a["loss"] - b["loss"]) < 1e-3 for a, b in zip(one["wrongest"], two["wrongest"], strict=True))
one, two = (json.load(open(f"{sys.argv[1]}/{name}.json"))[0]["curves"] for name in ("whole", "two"))
local = [key for key in one if key.startswith("selection_")]
assert len(local) > 6 and local == [key for key in two if key.startswith("selection_")]
for key in local: # a channel more or less, where norms are alike
    assert one[key]["step"] == two[key]["step"], key
    assert all(abs(a - b) < 0.05 for a, b in zip(one[key]["value"], two[key]["value"], strict=True)), key
END
check "a norm for each channel is what ranks choose by, beside all gradients" python3 - "$scratch" <<'END'
import json, re, struct, sys
with open(sys.argv[1] + "/two/model.safetensors", "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
shapes = {name: t["shape"] for name, t in header.items() if name != "__metadata__"}
elements = channels = 0
for name, shape in shapes.items(): # a channel: an input of a linear layer, a token, a vector
    n = 1
    for side in shape: n *= side
    elements += n
    channels += 1 if len(shape) == 1 else shape[1] if name == "score.weight" else shape[0]
for run, ranks in ("whole", 1), ("two", 2):
    log = [json.loads(line) for line in open(f"{sys.argv[1]}/{run}/trainer_log.jsonl")]
    steps = [(e["bytes_norms"], e["bytes_gradients"]) for e in log if "loss" in e]
    assert steps == [(4 * channels, 4 * elements) if ranks > 1 else (0, 0)] * 16, (run, steps[0], channels, elements)
    said = re.findall("^to choose channels.*", open(f"{sys.argv[1]}/{run}.said").read(), re.M)
    n = 16 if ranks > 1 else 1
    line, = said
    assert f" {4 * n * channels:,} bytes of norms" in line and f" {4 * n * elements:,} bytes of gradients: " in line, line
    assert f"1/{elements / channels:.0f} of them" in line and ("one rank sends none" in line) == (ranks == 1), line
    page, = json.load(open(f"{sys.argv[1]}/{run}.json"))
    assert page["curves"]["bytes_norms"]["value"] == [float(a) for a, _ in steps], run
END
check "AdamW on the device chooses nothing, and says nothing of it" bash -c '"${@:2}" 2>&1 | tee "$1" | grep -q loss &&
    ! grep "to choose channels" "$1"' - "$scratch/adamw.said" "$train" --config configs/adamw.json "${tiny[@]}" --max_steps 2 \
    --output_dir "$scratch/adamw"
check "nor is there a table of it" bash -c '! python3 tests/bench/locality_table.py "$0" 2>"$0/said" &&
    grep -q "no choice" "$0/said"' "$scratch/adamw"

# While it trains, and in parts.
stops() { # its command is asked to stop
    local status=0
    "$@" --max_runtime 0.001s || status=$?
    test "$status" = 75
}
check "a run that stops" stops "${run[@]}" --output_dir "$scratch/parts"
data "$scratch/parts" >"$scratch/stopped.json"
check "goes on" "${run[@]}" --output_dir "$scratch/parts" --resume_from_checkpoint latest
data "$scratch/parts" >"$scratch/parts.json"
check "its curves are those of a run in one piece" python3 - "$scratch" <<'END'
import json, sys
stopped, parts, whole = (json.load(open(f"{sys.argv[1]}/{name}.json"))[0] for name in ("stopped", "parts", "whole"))
assert stopped["state"] == "stopped" and 0 < stopped["step"] < 16, stopped["step"]
for key in "loss", "learning_rate", "grad_norm", "eval_loss", "eval_accuracy", "selection_overlap", "selection_share_by_layer.1":
    assert parts["curves"][key] == whole["curves"][key], key
assert parts["mistakes"] == whole["mistakes"]
END
check "the best model is evaluated" "${run[@]}" --save_strategy steps --save_steps 4 --load_best_model_at_end \
    --metric_for_best_model loss --learning_rate 0.01 --lr_scheduler_type constant --output_dir "$scratch/best"
cp "$scratch/check.log" "$scratch/best.said"
check "what its choices took is told, and not where no step was left to do" bash -c 'grep -q "to choose channels" "$1" &&
    "${@:2}" 2>&1 | tee "$1" | grep -q "resuming from .*checkpoint-16" && ! grep "to choose channels" "$1"' - \
    "$scratch/best.said" "${run[@]}" --save_strategy steps --save_steps 4 --load_best_model_at_end --metric_for_best_model loss \
    --learning_rate 0.01 --lr_scheduler_type constant --output_dir "$scratch/best" --resume_from_checkpoint latest
data "$scratch/best" >"$scratch/best.json"
check "and told of, not drawn twice" python3 - "$scratch/best.json" <<'END'
import json, sys
run, = json.load(open(sys.argv[1]))
assert run["evaluated"] == run["results"]["best_global_step"] < 16 == run["step"], run["evaluated"]
assert run["curves"]["eval_loss"]["step"] == run["curves"]["disk_seconds"]["step"] == [4, 8, 12, 16]
right = sum(n for label, answer, n in run["mistakes"][0]["cells"] if label == answer)
assert abs(right / 64 - run["results"]["eval_accuracy"]) < 1e-6
END
"${run[@]}" --output_dir "$scratch/watched" --max_steps 100000 --eval_steps 20 >/dev/null 2>&1 &
pid=$!
for ((i = 0; i < 600; i++)); do
    grep -q '"eval_loss"' "$scratch/watched/report.html" 2>/dev/null && break
    sleep 0.1
done
check "it is there while the run trains" kill -0 $pid
kill -9 $pid
wait $pid 2>/dev/null || true
data "$scratch/watched" >"$scratch/watched.json"
check "and whole when the run is killed" grep -q '"state": "training"' "$scratch/watched.json"

# What goes wrong.
check "--no_html_report" "${run[@]}" --max_steps 4 --no_html_report --output_dir "$scratch/without"
check "writes none" test ! -e "$scratch/without/report.html"
mkdir -p "$scratch/taken/report.html/x"
check "a page that cannot be written" not "${run[@]}" --overwrite_output_dir --output_dir "$scratch/taken"
check "is said once on the way, and is a fault at the end" test \
    "$(grep -c 'warning: .*report.html: cannot be written' "$scratch/check.log") \
$(grep -c '^zf-train: .*report.html: cannot be written' "$scratch/check.log")" = "1 1"
check "the model is there all the same" test -s "$scratch/taken/model.safetensors"
check "a run that diverges" not "${run[@]}" --learning_rate 1e30 --max_grad_norm 0 --output_dir "$scratch/failed"
data "$scratch/failed" >"$scratch/failed.json"
check "says so on its page" python3 -c '
import json, sys
run, = json.load(open(sys.argv[1]))
assert run["state"] == "failed" and "diverged" in run["why"], run["why"]' "$scratch/failed.json"

# Other tasks: many labels with texts that are no HTML, scores, text.
python3 - "$scratch" <<'END'
import csv, sys
words = "</script><script>document.title='broken'</script> <img src=x onerror=alert(1)> & \u00e9\u4e2d\U0001f600 <!--".split(" ")
with open(sys.argv[1] + "/labels.csv", "w", newline="", encoding="utf-8") as f:
    out = csv.writer(f)
    out.writerow(["text", "label"])
    for i in range(1540):
        out.writerow([f"{words[i % len(words)]} number {i * 7919 % 77} of {i}", f"label {i % 77} {words[i % 77 % len(words)]}"])
with open(sys.argv[1] + "/scores.csv", "w", newline="") as f:
    out = csv.writer(f)
    out.writerow(["text", "label"])
    for i in range(400):
        out.writerow(["good " * (i % 9 + 1), i % 9 / 2])
with open(sys.argv[1] + "/text.txt", "w") as f:
    f.write("All work and no play makes <b>Jack</b> a dull boy. " * 400)
END
own=("$train" --config_name gpt --tokenizer_name data/sample/tokenizer --max_seq_length 32
    --train_batch_size 32 --per_device_train_batch_size 32 --logging_steps 1 --eval_strategy steps --eval_steps 5)
check "77 labels" "${own[@]}" --train_file "$scratch/labels.csv" --validation_split_percentage 30 --max_steps 20 \
    --output_dir "$scratch/labels"
check "scores" "${own[@]}" --train_file "$scratch/scores.csv" --validation_split_percentage 30 --max_steps 10 \
    --output_dir "$scratch/scores"
if [ "${ZF_LONG:-}" = 1 ]; then
    check "two splits" "$train" --config configs/adamw.json "${tiny[@]}" --task_name mnli --data_dir tests/fixtures/glue \
        --train_batch_size 4 --per_device_train_batch_size 4 --max_steps 2 --logging_steps 9 --output_dir "$scratch/mnli"
    check "text" "${own[@]}" --task_name lm --train_file "$scratch/text.txt" --max_steps 10 --output_dir "$scratch/text"
fi

# Several on one page.
check "zf-bench report" "$build/zf-bench" report "$scratch/whole" "$scratch/parts/report.html" "$scratch/scores" \
    --output "$scratch/comparison.html"
check "of a comparison, too" "$build/zf-bench" report "$scratch/comparison.html" "$scratch/labels" \
    --output "$scratch/four.html"
check "with --compare, options between the folders" bash -c '"$0" report --compare "$1" --output "$2" "$3" | grep -qx "$2: 2 runs"' \
    "$build/zf-bench" "$scratch/whole" "$scratch/compared.html" "$scratch/scores"
check "one run alone" bash -c '"$0" report "$1" --output "$2" | grep -qx "$2: 1 run"' "$build/zf-bench" "$scratch/whole" \
    "$scratch/one.html"
says() { # says WORDS COMMAND...: it fails, with a sentence that has them
    ! "${@:2}" >"$scratch/said" 2>&1 && grep -Eq -- "$1" "$scratch/said"
}
check "a folder without a report" says "^zf-bench: $scratch/without/report.html: " "$build/zf-bench" report \
    "$scratch/without" --output "$scratch/none.html"
check "no folder" says "^zf-bench: report: no FOLDER is given" "$build/zf-bench" report
check "another page" says "README.md: this is no report of zf-train" "$build/zf-bench" report README.md
check "and nothing is written" test ! -e "$scratch/none.html"

# A browser.
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
    echo "skipped: there is no Chromium (scripts/setup.sh --tests installs it) to draw the pages"
    finish
fi
draw() { # draw PAGE CONDITION...: in a real browser, which says nothing on its console
    HOME=$scratch timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
        --disable-background-networking --user-data-dir="$scratch/profile" --enable-logging=stderr --v=0 \
        --virtual-time-budget=5000 --window-size=1300,2000 --dump-dom "file://$1" >"$scratch/dom" 2>"$scratch/console"
    ! grep CONSOLE "$scratch/console" && python3 tests/e2e/lib/report_page.py dom "$scratch/dom" "${@:2}"
}
echo '<html data-state="drawn"><body><script>nothing.at.all</script></body></html>' >"$scratch/broken.html"
check "a broken page does not pass" not draw "$scratch/broken.html"
check "the browser says why" grep -q "CONSOLE.*nothing is not defined" "$scratch/console"
sed 's/"curves":{/"kurves":{/' "$scratch/whole/report.html" >"$scratch/torn.html"
check "nor does one without its curves" not draw "$scratch/torn.html"
python3 - "$scratch" <<'END'
import json, re, sys
page = open(sys.argv[1] + "/whole/report.html").read()
begin, data, end = re.split(r'(?<=id="runs">)(.*?)(?=</script>)', page, maxsplit=1, flags=re.S)
data = json.loads(data)
narrow = dict(loss=(4.33301, 4.33353), learning_rate=(1.00002e-3, 1.00012e-3), grad_norm=(1000.02, 1000.53),
              tokens_per_second=(24960.1, 24960.9), step_seconds=(0.0200001, 0.0200004), stall=(0.120001, 0.120004),
              bytes_down=(2**31 + 2**10, 2**31 + 2**13))
for keys in ("host_seconds", "stall_seconds", "bytes_up", "bytes_moved", "eval_loss"):
    data[0]["curves"].pop(keys, None)
for key, values in narrow.items():
    data[0]["curves"][key] = {"step": [1, 16], "value": values}
open(sys.argv[1] + "/narrow.html", "w").write(begin + json.dumps(data).replace("<", "\\u003c") + end)
END
check "values close together" draw "$scratch/narrow.html" "dom.levels['Loss'] == ['4.333', '4.3332', '4.3334']" \
    "dom.levels['Gradient norm'][:2] == ['1,000', '1,000.2']" "dom.levels['Traffic of a step'][0] == '2.0000019 GiB'"
sed 's/format(tick, digits > 4 ? digits : undefined)/format(tick)/' "$scratch/narrow.html" >"$scratch/alike.html"
check "ticks that are alike do not pass" bash -c '! cmp -s "$0" "$1"' "$scratch/narrow.html" "$scratch/alike.html"
check "they are seen" not draw "$scratch/alike.html"
check "a run that is too short to log" "${run[@]}" --max_steps 2 --logging_steps 9 --output_dir "$scratch/short"
check "is over, without a loss" draw "$scratch/short/report.html" "dom.has('finished', 'The log has no loss: logging_steps')"
sed 's/"state":"done"/"state":"training"/' "$scratch/short/report.html" >"$scratch/begun.html"
check "while it trains there is none yet" draw "$scratch/begun.html" "dom.has('training', 'The log has no loss yet')"
check "a run's page" draw "$scratch/whole/report.html" \
    "dom.charts[:4] == ['Loss', 'Evaluation', 'Learning rate', 'Gradient norm']" \
    "{'Throughput, tokens per second', 'Time of a step', 'Stall, share of the time', 'Traffic of a step'} <= set(dom.charts)" \
    "'Locality of the important channels' in dom.charts" "len(dom.find('table', class_='locality')) == 1" \
    "dom.has('How local the important channels are', 'overlap: first', 'share: first')" \
    "len(dom.find('path', class_='curve')) >= 12" "len(dom.find('circle')) >= 8" \
    "dom.has('16 steps', 'finished', 'Confusion matrix', 'wrongest', 'topk_ratio', 'configs/zenflow.json:')" \
    "len(dom.find('svg', class_='matrix')) == 1" "len(dom.find('svg', class_='memory')) == 1" \
    "'--max_steps' in dom.find('tr', data_key='max_steps')[0][2]" "not dom.find('tr', data_key='seed')"
cat "$scratch/whole/report.html" - >"$scratch/touched.html" <<'END'
<script>
const curve = document.querySelector("[data-chart=Loss] svg"), box = curve.getBoundingClientRect();
curve.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right - 5, clientY: box.top + 50}));
document.getElementById("all-keys").click();
</script>
END
check "it tells the values under the pointer, and defaults" draw "$scratch/touched.html" \
    "re.match(r'step 16training [0-9.]+evaluation [0-9.]+', dom.find('div', class_='tip')[0][2])" \
    "dom.find('tr', data_key='seed')"
check "77 labels, and texts that are no HTML" draw "$scratch/labels/report.html" "not dom.find('img')" \
    "dom.find('title')[0][2] == 'labels – zf-train'" "len(dom.find('svg', class_='matrix')) == 1" \
    "dom.has('Confused most')" "dom.has('<img', '</script><script>document', 'é中😀', '<!--')" "len(dom.find('tr')) > 40"
check "scores" draw "$scratch/scores/report.html" "len(dom.find('svg', class_='scatter')) == 1" \
    "'Mean squared error' in dom.charts" "dom.has('squared error')" "not dom.find('svg', class_='matrix')"
check "three runs" draw "$scratch/comparison.html" "dom.has('3 runs', 'whole', 'parts', 'scores')" \
    "len([p for p in dom.find('path', class_='curve') if p[1]['data-name'].endswith('training')]) == 3" \
    "dom.find('tr', data_key='train_file')" "not dom.find('tr', data_key='seed')" \
    "len(dom.find('svg', class_='memory')) == 3"
if [ "${ZF_LONG:-}" = 1 ]; then
    echo '<html data-state="drawn"><body><img src="http://127.0.0.1:9/x"></body></html>' >"$scratch/fetching.html"
    check "a page that asks a network does not pass" not draw "$scratch/fetching.html"
    check "one that trains" draw "$scratch/watched/report.html" "dom.has('training', 'of 100,000')"
    check "one that failed" draw "$scratch/failed/report.html" "dom.has('failed', 'diverged')"
    check "two splits" draw "$scratch/mnli/report.html" "len(dom.find('svg', class_='matrix')) == 2" \
        "dom.has('Mistakes on dev_matched', 'Mistakes on dev_mismatched', 'The log has no loss: ')"
    check "one that was resumed" draw "$scratch/parts/report.html" "dom.has('since it was resumed at step')"
    check "text" draw "$scratch/text/report.html" "'Perplexity' in dom.charts" "not dom.find(class_='mistakes')"
    check "four runs" draw "$scratch/four.html" "dom.has('4 runs')"
fi
finish
