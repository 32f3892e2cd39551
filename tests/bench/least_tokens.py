#!/usr/bin/env python3
"""Plans: the least tokens of a step at which what is offloaded takes at most 1.05 times as long as AdamW on the device.

    python3 tests/bench/least_tokens.py BUILD

For each machine, model and way of keeping the optimizer's state: sequences of 128 tokens in one micro-batch, their number
from the list below; means over 16 steps, a new choice among them. Where the resident run does not fit its time counts all
the same. Nothing is measured: these are plans.
"""
import sys
from concurrent.futures import ThreadPoolExecutor

from planned import ZENFLOW, planned

LENGTH = 128
SEQUENCES = [4, 8, 16, 24, 32, 64, 128, 256]
MOST = 1.05
MACHINES = ["h100", "h200"]
MODELS = ["gpt2-xl", "llama-2-7b"]
WAYS = {"ZenFlow, windows on the device": ZENFLOW, "ZenFlow, windows on the host": ZENFLOW + ["--accumulate", "host"],
        "ZeRO-Offload": ["--method", "offload"]}


class Search:
    def __init__(self, build, machine, model):
        self.build, self.machine, self.model, self.known = build, machine, model, {}

    def seconds(self, sequences, way):
        key = (sequences, *way)
        if key not in self.known:
            figures = planned(self.build, self.machine, self.model, sequences, LENGTH, ["--steps", "16", *way])
            self.known[key] = figures["mean_seconds"]
        return self.known[key]

    def ratio(self, sequences, way):
        return self.seconds(sequences, way) / self.seconds(sequences, ["--method", "resident"])

    def least(self, way):
        """Index of the first number of sequences that will do, as if the ratio only fell."""
        low, high = 0, len(SEQUENCES)
        while low < high:
            middle = (low + high) // 2
            if self.ratio(SEQUENCES[middle], way) <= MOST:
                high = middle
            else:
                low = middle + 1
        return low

    def lines(self):
        for name, way in WAYS.items():
            i = self.least(way)
            found = f"{SEQUENCES[i] * LENGTH:6d} tokens ({self.ratio(SEQUENCES[i], way):.3f})" if i < len(SEQUENCES) else \
                f"more than {SEQUENCES[-1] * LENGTH} tokens ({self.ratio(SEQUENCES[-1], way):.3f} there)"
            before = f"; {self.ratio(SEQUENCES[i - 1], way):.3f} at {SEQUENCES[i - 1] * LENGTH}" if 0 < i < len(SEQUENCES) else ""
            yield f"  {self.machine:5s} {self.model:11s} {name:44s} {found}{before}"


def main():
    searches = [Search(sys.argv[1], machine, model) for machine in MACHINES for model in MODELS]
    with ThreadPoolExecutor(2) as pool:
        for lines in pool.map(lambda s: list(s.lines()), searches):
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
