#!/usr/bin/env python3
"""Plans beside runs on this machine's CPU device: step times, memory and traffic.

    python3 tests/bench/compare_plan.py BUILD [--rounds N]

In each round zf-bench machine measures this machine, alone and as each of two ranks has it, and then every
row of CASES is run and planned by zf-bench train. What others take from the machine is not its own, so a
time is the least of all steps and rounds, as the machine's figures are; on a quiet machine --median takes
medians.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

S = "--preset gpt --method staggered "
LARGE = "--preset distilgpt2 --head classify --steps 12 "
# ranks, threads of each, a name, and what zf-bench train is given
CASES = [
    (1, 1, "1.0 M, 16 x 16, resident", "--preset gpt --seqs 16 --length 16"),
    (1, 1, "1.0 M, 16 x 16, S 4", S + "--seqs 16 --length 16"),
    (1, 1, "1.0 M, 4 x 64, S 8, bf16", S + "--seqs 4 --length 64 --update_interval 8 --bf16"),
    (1, 1, "1.0 M, 8 x 12, classification", S + "--seqs 8 --length 12 --head classify"),
    (1, 1, "1.0 M, 2 x 3 x 20", S + "--seqs 3 --length 20 --micro-batches 2"),
    (1, 1, "2.6 M wide, 4 x 16, resident", "--preset gpt --width 192 --seqs 4 --length 16"),
    (1, 1, "2.6 M wide, 4 x 16, ZeRO-Offload", "--preset gpt --width 192 --method offload --seqs 4 --length 16"),
    (1, 1, "2.6 M wide, 4 x 16, S 2, k 0.3", S + "--width 192 --seqs 4 --length 16 --update_interval 2 --topk_ratio 0.3"),
    (1, 1, "2.6 M wide, 4 x 16, windows on host", S + "--width 192 --seqs 4 --length 16 --accumulate host"),
    (1, 1, "6 M, 2 x 48, classification", S + "--width 288 --layers 4 --seqs 2 --length 48 --head classify"),
    (1, 1, "6 M, 2 x 32, no dropout, recompute",
     S + "--width 288 --layers 4 --seqs 2 --length 32 --head classify --dropout 0 --gradient_checkpointing"),
    (1, 2, "82 M, 2 x 32, 2 threads, resident", LARGE + "--seqs 2 --length 32"),
    (1, 2, "82 M, 2 x 32, 2 threads, ZeRO-Offload", LARGE + "--seqs 2 --length 32 --method offload"),
    (1, 2, "82 M, 2 x 32, 2 threads, S 4", LARGE + "--seqs 2 --length 32 --method staggered"),
    (1, 2, "82 M, 4 x 64, 2 threads, S 8", LARGE + "--seqs 4 --length 64 --method staggered --update_interval 8"),
    (2, 1, "1.0 M, 8 x 16, resident, 2 ranks", "--preset gpt --seqs 8 --length 16"),
    (2, 1, "1.0 M, 8 x 16, S 4, 2 ranks", S + "--seqs 8 --length 16"),
    (2, 1, "2.6 M wide, ZeRO-Offload, 2 ranks", "--preset gpt --width 192 --method offload --seqs 4 --length 16"),
    (2, 1, "2.6 M wide, windows on host, 2 ranks", S + "--width 192 --seqs 4 --length 16 --accumulate host"),
]


def run(command, threads):
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")


class Bench:
    def __init__(self, build, scratch):
        self.program, self.scratch = os.path.join(build, "zf-bench"), scratch

    def launch(self, ranks):
        return ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"] if ranks > 1 else []

    def measure(self, ranks, threads, rounds, path):
        run(self.launch(ranks) + [self.program, "machine", "--device", "cpu", "--rounds", str(rounds),
                                  "--sizes", "4", "--json", path], threads)

    def train(self, launch, threads, options):
        path = os.path.join(self.scratch, "train.json")
        run(launch + [self.program, "train"] + options + ["--json", path], threads)
        with open(path) as file:
            return json.load(file)["methods"][0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=3, help="of measuring the machine and the runs (3)")
    parser.add_argument("--machine-rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--median", action="store_true", help="of steps and rounds, not the least")
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--within", type=float, help="a fault where a plan is further off than this factor")
    parser.add_argument("--keep", help="a folder for the machine files of the last round")
    a = parser.parse_args()
    pick = statistics.median if a.median else min
    cases = [c for c in CASES if a.only in c[2]]
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(a.build, scratch)
        planned, measured, same = [[] for _ in cases], [[] for _ in cases], [True for _ in cases]
        for round_ in range(a.rounds):
            files = {}
            for ranks, threads in sorted({c[:2] for c in cases}):
                path = files[ranks, threads] = os.path.join(a.keep or scratch, f"machine{ranks}{threads}.json")
                bench.measure(ranks, threads, a.machine_rounds, path)
            for i, (ranks, threads, name, options) in enumerate(cases):
                options = ["--steps", str(a.steps), "--warm-up", "8"] + options.split()
                real = bench.train(bench.launch(ranks), threads, options + ["--device", "cpu", "--probe", "64"])
                plan = bench.train([], 1, options + ["--plan", files[ranks, threads], "--ranks", str(ranks)])
                planned[i].append(pick(plan["seconds"]))
                measured[i].append(pick(real["seconds"]))
                same[i] &= all(plan[k] == real[k] for k in ("device_bytes", "host_bytes", "tokens"))
                print(f"{round_} {name}: {planned[i][-1] * 1e3:.2f} planned, {measured[i][-1] * 1e3:.2f} ms",
                      file=sys.stderr, flush=True)
    print(f"{'':38s} {'planned':>10s} {'measured':>10s} {'error':>8s}   memory of device and host")
    errors = []
    for i, (_, _, name, _) in enumerate(cases):
        p, m = pick(planned[i]), pick(measured[i])
        errors.append(abs(p / m - 1))
        print(f"{name:38s} {p * 1e3:7.2f} ms {m * 1e3:7.2f} ms {100 * (p / m - 1):+6.1f} %   "
              f"{'the same to the byte' if same[i] else 'DIFFERS'}")
    if a.within and any(not 1 / a.within < pick(p) / pick(m) < a.within for p, m in zip(planned, measured)):
        sys.exit(f"a plan is off by more than a factor of {a.within}")
    print(f"error: median {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %")


if __name__ == "__main__":
    main()
