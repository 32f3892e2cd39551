#!/usr/bin/env python3
"""Plans: how much longer a step takes whose optimizer state is on the host than AdamW's on the device, at every batch, GPU
and host that the goals name (at most 1.05 times, stall at most 2 %, worst step at most 1.1 times the median, traffic at most
0.6 sizes of the model), and where a step misses one, what its critical path consists of above all.

    python3 tests/bench/offloaded_ratio.py BUILD

A stall is the host's wait for its workers once the norm is known, whatever the device still does beside it. Windows of 4, a
new choice every 16 steps, 32 steps; sequences of 512. Where the resident run does not fit its time counts all the same.
Nothing is measured: these are plans.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

MACHINES = ["h100", "h200"]
HOST_RATES = [200e9, 340e9]  # bytes a second of the host's AdamW
MODELS = ["gpt2-xl", "gpt-6.7b"]
SEQUENCES = [4, 8, 16]
ZENFLOW = ["--method", "staggered", "--topk_ratio", "0.05", "--update_interval", "4", "--select_interval", "16", "--steps", "32"]
RESIDENT = ["--method", "resident", "--steps", "8"]


def machine_with_host(folder, machine, rate):
    rates = json.load(open(f"configs/machines/{machine}.json"))
    rates["host"]["adam_bytes_per_second"] = {"value": rate, "source": "given"}
    path = pathlib.Path(folder, f"{machine}-{rate:.0f}.json")
    path.write_text(json.dumps(rates))
    return str(path)


def plan(bench, machine, model, sequences, method):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([bench, "train", "--plan", machine, "--preset", model, "--seqs", str(sequences), "--length", "512",
                        "--dropout", "0", "--json", out.name, *method], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name))["methods"][0]


def row(bench, folder, machine, rate, model, sequences):
    path = machine_with_host(folder, machine, rate)
    zenflow, resident = (plan(bench, path, model, sequences, method) for method in (ZENFLOW, RESIDENT))
    median = zenflow["median_seconds"]
    ratio, stall, worst = median / resident["median_seconds"], zenflow["stall_share"], zenflow["worst_seconds"] / median
    missed = ratio > 1.05 or stall > 0.02 or worst > 1.1 or zenflow["link_model_sizes"] > 0.6
    what, seconds = max(zenflow["plan"]["critical_path_seconds"].items(), key=lambda part: part[1])
    return (f"{machine:5s} {rate / 1e9:4.0f} {model:9s} {sequences:3d} {median * 1e3:8.2f} {ratio:6.3f} {stall:6.1%} {worst:6.3f}"
            f" {zenflow['link_model_sizes']:6.3f}" + (f"  missed: {median / seconds:.3f} times the {what} in it" if missed else ""))


def main():
    bench = sys.argv[1] + "/zf-bench"
    print("GPU  GB/s model     seqs  ms/step  ratio  stall  worst traffic")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        rows = [pool.submit(row, bench, folder, machine, rate, model, sequences)
                for machine in MACHINES for rate in HOST_RATES for model in MODELS for sequences in SEQUENCES]
        for done in rows:
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
