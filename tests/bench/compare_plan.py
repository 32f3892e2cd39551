#!/usr/bin/env python3
"""Plans beside runs on this machine's CPU device: step times, memory and traffic.

    python3 tests/bench/compare_plan.py BUILD [--rounds N]

In each round zf-bench machine measures this machine as one rank has it, with one thread and with two, and as each of several
ranks, and right behind each the rows of CASES, HELD_OUT and CROWDED that have as many are run and planned by zf-bench
train. What others take from the machine is not its own, so a time is the least of all steps and rounds, as the
machine's figures are; on a quiet machine --median takes medians. A run lasts --seconds at least: what disturbs steps of 2 ms
lasts longer than sixty of them.
"""
import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

S = "--preset gpt --method staggered "
LARGE = "--preset distilgpt2 --head classify "
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
# Other widths, lengths, S, k and ranks. Nothing in plans was chosen by what these give, and nothing is to be.
HELD_OUT = [
    (1, 1, "160 wide, 6 x 24, resident", "--preset gpt --width 160 --seqs 6 --length 24"),
    (1, 1, "160 wide, 6 x 24, S 3, k 0.15",
     S + "--width 160 --seqs 6 --length 24 --update_interval 3 --topk_ratio 0.15"),
    (1, 1, "224 wide, 3 blocks, 5 x 10, S 6, k 0.02",
     S + "--width 224 --layers 3 --seqs 5 --length 10 --update_interval 6 --topk_ratio 0.02"),
    (1, 1, "224 wide, 3 blocks, 3 x 40, ZeRO-Offload",
     "--preset gpt --method offload --width 224 --layers 3 --seqs 3 --length 40"),
    (1, 1, "96 wide, 2 x 200, S 5, windows on host",
     S + "--seqs 2 --length 200 --update_interval 5 --accumulate host"),
    (1, 1, "96 wide, 12 x 7, classification, S 16, k 0.5",
     S + "--seqs 12 --length 7 --head classify --update_interval 16 --topk_ratio 0.5"),
    (1, 1, "384 wide, 2 x 96, burst, S 7, k 0.1",
     "--preset gpt --method burst --width 384 --seqs 2 --length 96 --update_interval 7 --topk_ratio 0.1"),
    (1, 2, "82 M, 3 x 20, 2 threads, S 3, k 0.2",
     LARGE + "--seqs 3 --length 20 --method staggered --update_interval 3 --topk_ratio 0.2"),
    (1, 2, "82 M, 1 x 120, 2 threads, ZeRO-Offload", LARGE + "--seqs 1 --length 120 --method offload"),
    (2, 1, "160 wide, 4 x 28, S 3, k 0.15, 2 ranks",
     S + "--width 160 --seqs 4 --length 28 --update_interval 3 --topk_ratio 0.15"),
    (2, 1, "224 wide, 3 blocks, 2 x 36, resident, 2 ranks", "--preset gpt --width 224 --layers 3 --seqs 2 --length 36"),
]
# More ranks than a machine of two cores has: plans know nothing of how the system shares cores out.
CROWDED = [
    (3, 1, "96 wide, 6 x 20, resident, 3 ranks", "--preset gpt --seqs 6 --length 20"),
    (3, 1, "96 wide, 6 x 20, S 5, k 0.15, 3 ranks",
     S + "--seqs 6 --length 20 --update_interval 5 --topk_ratio 0.15"),
]
PLANNED_STEPS = 64
LEAST_STEPS = 20


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
                                  "--json", path], threads)

    def train(self, launch, threads, options):
        path = os.path.join(self.scratch, "train.json")
        run(launch + [self.program, "train"] + options + ["--json", path], threads)
        with open(path) as file:
            return json.load(file)["methods"][0]

    def both(self, case, machine, seconds, pick):
        """The figures of a plan and of a run that lasts as many seconds, by its plan."""
        ranks, threads, _, options = case
        options = options.split() + ["--warm-up", "8"]
        plan = self.train([], 1, options + ["--steps", str(PLANNED_STEPS), "--plan", machine, "--ranks", str(ranks)])
        steps = max(LEAST_STEPS, math.ceil(seconds / pick(plan["seconds"])))
        return plan, self.train(self.launch(ranks), threads,
                                options + ["--steps", str(steps), "--device", "cpu", "--probe", "64"])


def report(title, rows):
    """rows: of name, planned and measured seconds, whether memory is the same."""
    for name, planned, measured, same in rows:
        print(f"{name:48s} {planned * 1e3:7.2f} ms {measured * 1e3:7.2f} ms {100 * (planned / measured - 1):+6.1f} %   "
              f"{'the same to the byte' if same else 'DIFFERS'}")
    errors = [100 * abs(planned / measured - 1) for _, planned, measured, _ in rows]
    if errors:
        print(f"{title}: error median {statistics.median(errors):.1f} %, worst {max(errors):.1f} %\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=3, help="of measuring the machine and the runs (3)")
    parser.add_argument("--machine-rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2, help="that a run lasts, without its start (2)")
    parser.add_argument("--median", action="store_true", help="of steps and rounds, not the least")
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--held-out", action="store_true", help="the held-out cases alone")
    parser.add_argument("--within", type=float, help="a fault where a plan is further off than this factor")
    parser.add_argument("--keep", help="a folder for the machine files of the last round")
    a = parser.parse_args()
    pick = statistics.median if a.median else min
    parts = [[c for c in part if a.only in c[2]] for part in ([] if a.held_out else CASES, HELD_OUT, CROWDED)]
    cases = [c for part in parts for c in part]
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(a.build, scratch)
        planned, measured, same = [[] for _ in cases], [[] for _ in cases], [True for _ in cases]
        for round_ in range(a.rounds):
            for ranks, threads in sorted({c[:2] for c in cases}):
                machine = os.path.join(a.keep or scratch, f"machine{ranks}{threads}.json")
                bench.measure(ranks, threads, a.machine_rounds, machine)
                for i in (i for i, c in enumerate(cases) if c[:2] == (ranks, threads)):
                    plan, real = bench.both(cases[i], machine, a.seconds, pick)
                    planned[i].append(pick(plan["seconds"]))
                    measured[i].append(pick(real["seconds"]))
                    same[i] &= all(plan[k] == real[k] for k in ("device_bytes", "host_bytes", "tokens"))
                    print(f"{round_} {cases[i][2]}: {planned[i][-1] * 1e3:.2f} planned, {measured[i][-1] * 1e3:.2f} ms",
                          file=sys.stderr, flush=True)
    print(f"{'':48s} {'planned':>10s} {'measured':>10s} {'error':>8s}   memory of device and host")
    rows = [(c[2], pick(p), pick(m), s) for c, p, m, s in zip(cases, planned, measured, same)]
    left = iter(rows)
    for title, part in zip(("cases that plans were tuned on", "held out", "more ranks than cores"), parts):
        report(title, list(itertools.islice(left, len(part))))
    if a.within and any(not 1 / a.within < p / m < a.within for _, p, m, _ in rows):
        sys.exit(f"a plan is off by more than a factor of {a.within}")


if __name__ == "__main__":
    main()
