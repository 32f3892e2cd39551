#!/usr/bin/env python3
"""Plans: which interval "keep_up" chooses, beside all others.

    python3 tests/bench/keep_up_plans.py BUILD

For each machine, model and number of sequences of 512 tokens: the interval S that is chosen and a step's median time; the same of
the next shorter interval and of the best of the longer ones, as ratios; and the least interval that is within 2% of the
best of all. Nothing is measured: these are plans.
"""
import sys
from concurrent.futures import ThreadPoolExecutor

from planned import CHOICES, planned

MACHINES = ["a100-80gb", "h100", "h200", "rtx-4090"]
MODELS = ["gpt2-medium", "gpt2-large", "gpt2-xl"]
SEQUENCES = [1, 4, 8]
LENGTH = 512
INTERVALS = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24]


def step(build, case, way):
    """Its interval, and milliseconds."""
    figures = planned(build, *case, LENGTH, [*way, *CHOICES])
    return int(figures["update_interval"]), 1e3 * figures["median_seconds"]


def line(build, case):
    chosen, time = step(build, case, ["--method", "keep_up"])
    shorter = [chosen - 1] if chosen > 1 else []
    others = dict(step(build, case, ["--method", "staggered", "--update_interval", str(s)]) for s in {*INTERVALS, *shorter})
    longer = min((ms for s, ms in others.items() if s > chosen), default=time)
    best = min(time, *others.values())
    least = min(s for s, ms in {**others, chosen: time}.items() if ms <= 1.02 * best)
    before = f"{others[chosen - 1] / time:.3f}" if shorter else "-"
    return (f"{case[0]:<10} {case[1]:<12} {case[2]:>9} {chosen:>3} {time:>8.2f} {before:>8} {longer / time:>7.3f} {least:>6}")


def main():
    cases = [(machine, model, sequences) for machine in MACHINES for model in MODELS for sequences in SEQUENCES]
    print(f"{'machine':<10} {'model':<12} {'sequences':>9} {'S':>3} {'ms':>8} {'S - 1':>8} {'longer':>7} {'least':>6}")
    with ThreadPoolExecutor(2) as pool:
        for text in pool.map(lambda case: line(sys.argv[1], case), cases):
            print(text, flush=True)


if __name__ == "__main__":
    main()
