#!/usr/bin/env python3
"""Plans beside runs on this machine's CPU device: step times, memory and traffic.

    python3 tests/bench/compare_plan.py BUILD [--rounds N] [--quiet] [--machine FILE --machine2 FILE]

zf-bench machine measures this machine, alone and as each of two ranks has it; then every row of CASES is
run and planned by zf-bench train. The machine may be busy with other things: what is measured of it and
the runs take turns, so that both meet the same neighbours, and a figure is the median over the rounds of
each round's own. --quiet takes the least instead, for machines that others slow down at random.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

# ranks, then what zf-bench train is given
CASES = [
    (1, "resident", "--preset gpt --seqs 32 --length 16 --method resident"),
    (1, "gpt, staggered S=4", "--preset gpt --seqs 32 --length 16 --method staggered"),
    (1, "distilgpt2, resident", "--preset distilgpt2 --seqs 4 --length 64 --method resident"),
    (1, "distilgpt2, ZeRO-Offload", "--preset distilgpt2 --seqs 4 --length 64 --method offload"),
    (1, "distilgpt2, staggered S=4", "--preset distilgpt2 --seqs 4 --length 64 --method staggered"),
    (1, "distilgpt2, staggered S=2, k=0.2",
     "--preset distilgpt2 --seqs 4 --length 64 --method staggered --update_interval 2 --topk_ratio 0.2"),
    (1, "distilgpt2, windows on the host",
     "--preset distilgpt2 --seqs 4 --length 64 --method staggered --accumulate host"),
    (1, "distilgpt2, 8 x 128, S=8", "--preset distilgpt2 --seqs 8 --length 128 --method staggered --update_interval 8"),
    (1, "gpt2, 8 x 16, classification", "--preset gpt2 --head classify --seqs 8 --length 16 --method staggered"),
    (1, "gpt2, 4 x 128", "--preset gpt2 --seqs 4 --length 128 --method staggered"),
    (2, "distilgpt2, resident, 2 ranks", "--preset distilgpt2 --seqs 4 --length 64 --method resident"),
    (2, "distilgpt2, ZeRO-Offload, 2 ranks", "--preset distilgpt2 --seqs 4 --length 64 --method offload"),
    (2, "distilgpt2, staggered, 2 ranks", "--preset distilgpt2 --seqs 4 --length 64 --method staggered"),
    (2, "gpt2, windows on the host, 2 ranks",
     "--preset gpt2 --head classify --seqs 8 --length 16 --method staggered --accumulate host"),
]


def run(command):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")


class Bench:
    def __init__(self, build, scratch):
        self.program, self.scratch = os.path.join(build, "zf-bench"), scratch

    def launch(self, ranks):
        return ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"] if ranks > 1 else []

    def measure(self, ranks, rounds, path):
        run(self.launch(ranks) + [self.program, "machine", "--rounds", str(rounds), "--json", path])

    def train(self, launch, options):
        path = os.path.join(self.scratch, "train.json")
        run(launch + [self.program, "train"] + options + ["--json", path])
        with open(path) as file:
            return json.load(file)["methods"][0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=3, help="of measuring the machine and the runs (3)")
    parser.add_argument("--machine-rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--quiet", action="store_true", help="the least of rounds and steps, not the medians")
    parser.add_argument("--machine", help="a file of this machine, instead of measuring it")
    parser.add_argument("--machine2", help="and as each of two ranks has it")
    parser.add_argument("--only", default="", help="cases whose name has this")
    a = parser.parse_args()
    pick = min if a.quiet else statistics.median
    cases = [c for c in CASES if a.only in c[1]]
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(a.build, scratch)
        planned, measured, lines = [[] for _ in cases], [[] for _ in cases], {}
        for round_ in range(a.rounds):
            files = {1: a.machine, 2: a.machine2}
            for ranks in sorted({c[0] for c in cases}):
                if not files[ranks]:
                    files[ranks] = os.path.join(scratch, f"machine{ranks}.json")
                    bench.measure(ranks, a.machine_rounds, files[ranks])
            for i, (ranks, name, options) in enumerate(cases):
                options = options.split() + ["--steps", str(a.steps), "--warm-up", "6"]
                real = bench.train(bench.launch(ranks), options + ["--device", "cpu", "--probe", "64"])
                plan = bench.train([], options + ["--plan", files[ranks], "--ranks", str(ranks)])
                planned[i].append(plan["median_seconds"])
                measured[i].append(pick(real["seconds"]) if a.quiet else real["median_seconds"])
                lines[name] = (plan, real)
                print(f"{round_} {name}: {planned[i][-1] * 1e3:.1f} planned, {measured[i][-1] * 1e3:.1f} ms",
                      file=sys.stderr, flush=True)
    print(f"{'':36s} {'planned':>9s} {'measured':>9s} {'error':>8s}  memory")
    errors = []
    for i, (ranks, name, _) in enumerate(cases):
        p, m = pick(planned[i]), pick(measured[i])
        errors.append(abs(p / m - 1))
        plan, real = lines[name]
        same = all(plan[k] == real[k] for k in ("device_bytes", "host_bytes"))
        print(f"{name:36s} {p * 1e3:6.1f} ms {m * 1e3:6.1f} ms {100 * (p / m - 1):+6.1f} %  "
              f"{'the same to the byte' if same else 'DIFFERS'}")
    print(f"error: median {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %")


if __name__ == "__main__":
    main()
