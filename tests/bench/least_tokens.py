#!/usr/bin/env python3
"""Plans: the least tokens of a step at which what is offloaded takes at most 1.05 times as long as AdamW on the device.

    python3 tests/bench/least_tokens.py BUILD

For each machine, rate of the host's memory (GB/s), model and way of keeping the optimizer's state: sequences of 128 tokens in one
micro-batch, their number from the list below; means over 16 steps, a new choice among them. keep_up chooses its windows'
length S there; the others have 4. Where the resident run does not fit its time counts all the same. Nothing is measured: these
are plans.
"""
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from planned import CHOICES, ZENFLOW, machine_with_host, planned

LENGTH = 128
SEQUENCES = [4, 8, 16, 24, 32, 64, 128, 256]
MOST = 1.05
MACHINES = ["h100", "h200"]
HOST_RATES = [200e9, 400e9]
MODELS = ["gpt2-xl", "llama-2-7b"]
WAYS = {"ZenFlow, windows on the device": ZENFLOW, "ZenFlow, windows on the host": ZENFLOW + ["--accumulate", "host"],
        "ZenFlow keep_up, windows on the device": ["--method", "keep_up", "--warm-up", "16", *CHOICES],
        "ZeRO-Offload": ["--method", "offload"]}


class Search:
    def __init__(self, build, folder, machine, rate, model):
        self.build, self.machine, self.model, self.known = build, machine_with_host(folder, machine, rate), model, {}
        self.name = f"{machine:5s} {rate / 1e9:4.0f} {model:11s}"

    def figures(self, sequences, way):
        key = (sequences, *way)
        if key not in self.known:
            self.known[key] = planned(self.build, self.machine, self.model, sequences, LENGTH, ["--steps", "16", *way])
        return self.known[key]

    def ratio(self, sequences, way):
        return (self.figures(sequences, way)["mean_seconds"]
                / self.figures(sequences, ["--method", "resident"])["mean_seconds"])

    def said(self, sequences, way):
        interval = f", S {self.figures(sequences, way)['update_interval']:.0f}" if "keep_up" in way else ""
        return f"{self.ratio(sequences, way):.3f}{interval}"

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
            found = f"{SEQUENCES[i] * LENGTH:6d} tokens ({self.said(SEQUENCES[i], way)})" if i < len(SEQUENCES) else \
                f"more than {SEQUENCES[-1] * LENGTH} tokens ({self.said(SEQUENCES[-1], way)} there)"
            before = f"; {self.said(SEQUENCES[i - 1], way)} at {SEQUENCES[i - 1] * LENGTH}" if 0 < i < len(SEQUENCES) else ""
            yield f"  {self.name} {name:38s} {found}{before}"


def main():
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        searches = [Search(sys.argv[1], folder, machine, rate, model)
                    for machine in MACHINES for rate in HOST_RATES for model in MODELS]
        for lines in pool.map(lambda s: list(s.lines()), searches):
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
