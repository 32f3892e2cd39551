#!/usr/bin/env python3
"""Does ZenFlow cost accuracy? Fine-tunes one small GPT on real GLUE tasks with each way of keeping
optimizer state, several seeds each, and prints a table of means and standard deviations.

    tests/bench/accuracy_table.py --zf-train build/zf-train --glue GLUE_DIR

First the model (preset "gpt", about 1 M parameters) is trained as a language model on the sentences
of the tasks' own training files. Every run starts from that model, and all methods of a task share
its hyper-parameters and, seed by seed, its order of examples and its dropout. The hyper-parameters
were chosen with resident AdamW alone.

    tests/bench/accuracy_table.py --pretrained SMOLLM2_DIR --glue GLUE_DIR

does the same with a pretrained model of Hugging Face's, SmolLM2-135M-Instruct, hours a seed. There --witness PYTHON
adds Transformers' own AdamW with the same settings, one seed of each task (tests/bench/accuracy_witness.py).

The results go to accuracy.json (raw, one record a run) and accuracy.txt (the table) in the folder
--out, accuracy_pretrained.json and .txt with --pretrained, and with --device cuda to accuracy_cuda and so on. Runs that the JSON file already holds
are skipped, so the script can be stopped and called again; none is thrown away: a file with runs of another model, other
settings or another machine is refused, and so is one that another call is adding to.
--deferred-lr-scale, --deferred-update and --select-interval add rows for ZenFlow with that setting to the same table.
--locality prints, of the runs that the JSON file holds, how local the important channels were, layer by
layer, and what choosing them takes of the other ranks; no run is made.
tests/bench/accuracy_together.py makes one table of several JSON files.

Only the Python standard library is used.
"""

import argparse
import concurrent.futures
import datetime
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading

import locality_table
from accuracy_tasks import (COMMON, DEFERRED_LR_SCALE, DEFERRED_UPDATE, DROPOUT, LANGUAGE_MODEL, METHODS, OWN_METHODS,
                            PRETRAINED_COMMON, PRETRAINED_TASKS, SELECT_INTERVAL, SELECT_STRATEGY, TASKS, method_title,
                            read_rows)
from accuracy_text import format_document, locality_lines

ROOT = pathlib.Path(__file__).resolve().parents[2]

QUICK_EXAMPLES = 320  # of each split, with --quick
QUICK_EPOCHS = 2
QUICK_LM_STEPS = 40


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zf-train", type=pathlib.Path, default=ROOT / "build/zf-train",
                        help="the program to measure (build/zf-train)")
    parser.add_argument("--glue", type=pathlib.Path, required=True,
                        help="the folder that holds GLUE's SST-2, CoLA, ...")
    parser.add_argument("--pretrained", type=pathlib.Path, metavar="FOLDER",
                        help="a model to start from, in place of one that is trained first")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=ROOT / "data/sample/tokenizer",
                        help="a tokenizer of at most 8,000 entries (data/sample/tokenizer)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/bench/results",
                        help="folder of accuracy.json and accuracy.txt (tests/bench/results)")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "output/accuracy_table",
                        help="folder of the language model and of runs under way")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu",
                        help="what computes (cpu); with cuda, files of their own: accuracy_..._cuda.json")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run (1)")
    parser.add_argument("--seeds", type=int, default=3, help="the last seed of each task and method (3)")
    parser.add_argument("--first-seed", type=int, default=1, help="the first of them (1)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=OWN_METHODS, default=OWN_METHODS)
    parser.add_argument("--deferred-lr-scale", metavar="X",
                        help="run the ZenFlow methods with this scale, a number or sqrt, and no "
                             "others; rows of their own")
    parser.add_argument("--deferred-update", choices=["all_steps"],
                        help="the same for what a deferred update stands for")
    parser.add_argument("--select-interval", type=int, metavar="N",
                        help="the same for a choice of important channels every N steps, not once an epoch")
    parser.add_argument("--witness", metavar="PYTHON",
                        help="with --pretrained: run Transformers' AdamW by this python, and nothing else")
    parser.add_argument("--locality", action="store_true",
                        help="print how local the important channels were, and make no run")
    parser.add_argument("--quick", action="store_true",
                        help="a dry run of a minute, in accuracy_quick.json and .txt")
    args = parser.parse_args()
    if args.deferred_lr_scale or args.deferred_update or args.select_interval:
        args.methods = [m for m in args.methods if m.startswith("zenflow")]
    if args.witness and (not args.pretrained or args.deferred_lr_scale or args.deferred_update or args.select_interval):
        parser.error("--witness needs --pretrained, and has no settings of ZenFlow")
    if args.witness:
        args.methods, args.first_seed, args.seeds = ["witness"], 1, 1
    return args


def read_sentences(glue, task, split):
    rows, place = read_rows(glue, task, split)
    columns = [place[name] for name in TASKS[task][1]]
    return [row[c].strip() for row in rows for c in columns if c < len(row) and row[c].strip()]


def write_corpus(path, glue, split):
    """The sentences of all tasks, one a line. Returns their number."""
    sentences = [s for task in TASKS for s in read_sentences(glue, task, split)]
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return len(sentences)


def run_command(command, threads):
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads),
                   "OPENBLAS_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode} of {shlex.join(command)}\n"
                           f"{done.stderr[-2000:]}")
    return done


def run_zf_train(args, settings, output_dir, threads):
    """Runs zf-train with these settings. Returns all_results.json, the log's records, and what was said."""
    command = [str(args.zf_train)]
    for key, value in {**settings, "output_dir": output_dir, "overwrite_output_dir": "true",
                       "num_threads": threads, "device": args.device}.items():
        command += [f"--{key}", str(value)]
    done = run_command(command, threads)
    results = json.loads((output_dir / "all_results.json").read_text())
    log = [json.loads(line) for line in (output_dir / "trainer_log.jsonl").open()]
    return results, log, done.stderr


def language_model_settings(args):
    settings = dict(LANGUAGE_MODEL)
    if args.quick:
        settings["max_steps"] = QUICK_LM_STEPS
    return settings


def find_model(args):
    """The folder of the model that all runs start from, and a record of what it is."""
    if not args.pretrained:
        return train_language_model(args)
    weights = (args.pretrained / "model.safetensors").read_bytes()
    return args.pretrained, {"pretrained": args.pretrained.name,
                             "sha256": hashlib.sha256(weights).hexdigest()}


def train_language_model(args):
    """Returns its folder and a record of how it was made; trains it unless it is there."""
    folder = args.work / ("lm_quick" if args.quick else "lm")
    record_path = folder / "record.json"
    settings = language_model_settings(args)
    if record_path.exists():
        record = json.loads(record_path.read_text())
        if record["settings"] == settings:
            return folder / "model", record
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sentences = write_corpus(folder / "train.txt", args.glue, "train")
    write_corpus(folder / "dev.txt", args.glue, "dev")
    print(f"training the language model on {sentences} sentences", flush=True)
    paths = {"tokenizer_name": args.tokenizer, "train_file": folder / "train.txt",
             "validation_file": folder / "dev.txt"}
    results, _, _ = run_zf_train(args, {**settings, **paths}, folder / "model", args.jobs)
    record = {"settings": settings, "sentences": sentences, "results": results}
    record_path.write_text(json.dumps(record, indent=1))
    print(f"dev perplexity {results['eval_perplexity']:.1f} after "
          f"{results['train_runtime']:.0f} s", flush=True)
    return folder / "model", record


def task_settings(args, task):
    """What all methods of a task share."""
    own = {**COMMON, **DROPOUT, **TASKS[task][3]}
    if args.pretrained:
        own = {**PRETRAINED_COMMON, **PRETRAINED_TASKS[task]}
    settings = {"task_name": task, **own}
    if args.quick:
        settings.update(num_train_epochs=QUICK_EPOCHS, max_train_samples=QUICK_EXAMPLES,
                        max_eval_samples=QUICK_EXAMPLES)
    return settings


def method_settings(args, method):
    settings = dict(METHODS[method][1])
    if args.deferred_lr_scale:
        settings[DEFERRED_LR_SCALE] = args.deferred_lr_scale
    if args.deferred_update:
        settings[DEFERRED_UPDATE] = args.deferred_update
    if args.select_interval:
        settings.update({SELECT_STRATEGY: "step", SELECT_INTERVAL: args.select_interval})
    return settings


def training_records(log):
    """The log's records of training, each with the number of steps since the one before it, which it covers."""
    records = [r for r in log if "loss" in r]
    ends = [0] + [r["step"] for r in records]
    return [(r, r["step"] - before) for r, before in zip(records, ends)]


def last_quarter_loss(log, total_steps):
    """Mean training loss over the steps of the last quarter."""
    late = [(r["loss"], n) for r, n in training_records(log) if r["step"] > 0.75 * total_steps]
    return sum(loss * n for loss, n in late) / sum(n for _, n in late)


def find_waits(log):
    """The last update interval of a run with ZenFlow, and the share of its time that the device stood still."""
    records = training_records(log)
    if "update_interval" not in records[-1][0]:
        return {}
    stalled, lasted = (sum(r[key] * n for r, n in records) for key in ("stall_seconds", "step_seconds"))
    return {"update_interval": records[-1][0]["update_interval"], "stall": stalled / lasted}


def run_witness(args, settings):
    """The same of Transformers' run: results, log and what was said."""
    script = str(ROOT / "tests/bench/accuracy_witness.py")
    done = run_command([args.witness, script, json.dumps({**settings, "device": args.device})], args.threads)
    found = json.loads(done.stdout)
    return found["results"], found["log"], done.stderr


def run_fine_tuning(args, model, task, method, seed):
    """One run, as a record for the JSON file."""
    shared, own = task_settings(args, task), method_settings(args, method)
    title = method_title(method, own)
    settings = {**shared, "model_name_or_path": str(model), "data_dir": str(args.glue), "seed": seed}
    if method == "witness":
        results, log, said = run_witness(args, settings)
    else:
        output_dir = args.work / f"{task}-{title.replace(' ', '_').replace(',', '')}-{seed}"
        results, log, said = run_zf_train(args, {**settings, **own}, output_dir, args.threads)
        shutil.rmtree(output_dir)
    return {"task": task, "method": method, "title": title, "seed": seed,
            "metric": results["eval_" + TASKS[task][2]],
            "last_quarter_loss": last_quarter_loss(log, results["global_step"]),
            "settings": shared, "method_settings": own, "commit": find_commit(args),
            "results": results, **find_waits(log), **find_locality(log, said)}


def find_locality(log, said):
    """What a run that chooses channels tells of its choices, for its record."""
    locality = locality_table.summarise(log)
    sums = re.search(r"^to choose channels, .* ([\d,]+) bytes of norms.* ([\d,]+) bytes of gradients", said, re.M)
    if not locality["choices"] or not sums:
        return {}
    norms, gradients = (int(n.replace(",", "")) for n in sums.groups())
    return {"locality": locality, "bytes_norms": norms, "bytes_gradients": gradients}


def find_commit(args):
    """The commit that the program was built from."""
    done = run_command([str(args.zf_train), "--version"], 1)
    return re.search(r"^commit: (\S+)", done.stdout, re.M).group(1)


def find_machine(device):
    if device == "cpu":
        return find_cpu()
    done = run_command(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], 1)
    name, driver = done.stdout.splitlines()[0].split(", ")
    return f"{name}, driver {driver}; {find_cpu()}"


def find_cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return f"unknown, {os.cpu_count()} cores"


def print_locality(path):
    """Returns the exit status."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    lines = list(locality_lines(runs))
    if not lines:
        print(f"{path}: none of its {len(runs)} runs tells of choices of important channels", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def take_alone(folder):
    """Keeps other calls from the folder until this one ends."""
    try:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"{folder}: another call is adding runs there")


def load_document(path, machine, language_model, settings):
    """What the JSON file holds: runs made on this machine with these settings, from this language model; and notes that
    somebody has added to it, lines that stay and stand under its table."""
    if not path.exists():
        return {"runs": [], "notes": []}
    document = json.loads(path.read_text())
    then, now = (model.get("sha256", model) for model in (document["language_model"], language_model))
    if then != now:
        sys.exit(f"{path}: its runs started from another model: they stay there, and these need another --out")
    if document["cpu"] != machine:
        sys.exit(f"{path}: its runs were made on {document['cpu']}, and this is {machine}: they need another --out")
    for r in document["runs"]:
        if r["settings"] != settings[r["task"]]:
            sys.exit(f"{path}: a run of {r['task']} there had other settings, {r['settings']}: it stays, and these need "
                     "another --out")
    return {"runs": document["runs"], "notes": document.get("notes", [])}


def save(document, path):
    """Replaces JSON and table at once each, so that a stopped run leaves whole files."""
    for target, text in ((path, json.dumps(document, indent=1) + "\n"),
                         (path.with_suffix(".txt"), format_document(document))):
        temporary = target.with_name(target.name + ".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)


def pending_runs(args, document):
    """Seeds outermost, so that a run that is stopped early leaves a table of whole rows."""
    done = {(r["task"], json.dumps(r["method_settings"]), r["seed"]) for r in document["runs"]}
    return [(task, method, seed) for seed in range(args.first_seed, args.seeds + 1) for task in args.tasks
            for method in args.methods
            if (task, json.dumps(method_settings(args, method)), seed) not in done]


def run_all(args, model, document, path):
    """Returns the number of runs that failed."""
    pending = pending_runs(args, document)
    lock = threading.Lock()
    failures = 0

    def run_one(task, method, seed):
        record = run_fine_tuning(args, model, task, method, seed)
        with lock:
            document["runs"].append(record)
            save(document, path)
        print(f"[{len(document['runs'])}] {task} {record['title']} seed {seed}: "
              f"{record['metric']:.4f}, loss {record['last_quarter_loss']:.4f}, "
              f"{record['results']['train_runtime']:.0f} s", flush=True)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(run_one, *run) for run in pending]
        for future, run in zip(futures, pending):
            try:
                future.result()
            except RuntimeError as fault:
                failures += 1
                print(f"{run}: {fault}", file=sys.stderr, flush=True)
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise
    return failures


def main():
    args = parse_arguments()
    suffix = "".join(part for part, wanted in (("_pretrained", args.pretrained), ("_cuda", args.device == "cuda"),
                                               ("_quick", args.quick)) if wanted)
    path = args.out / f"accuracy{suffix}.json"
    if args.locality:
        return print_locality(path)
    args.out.mkdir(parents=True, exist_ok=True)
    take_alone(args.out)
    model, language_model = find_model(args)
    settings = {task: task_settings(args, task) for task in TASKS}
    machine = find_machine(args.device)
    document = {"date": datetime.date.today().isoformat(), "cpu": machine, "device": args.device,
                "commit": find_commit(args), "command": shlex.join(sys.argv),
                "language_model": language_model, "settings": settings,
                **load_document(path, machine, language_model, settings)}
    failures = run_all(args, model, document, path)
    save(document, path)
    print("\n" + format_document(document))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
