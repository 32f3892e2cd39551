#!/usr/bin/env python3
"""Training steps of two builds of zf-bench on the CPU device, by turns: the same steps, an older commit and a newer one.

    python3 tests/bench/compare_builds.py OLD/zf-bench NEW/zf-bench [--rounds 5] [--preset gpt2]

Of each way to keep the optimizer's state a run in each round; medians of the rounds' medians, and the newer beside the older.
"""
import argparse
import json
import statistics
import subprocess
import tempfile

STAGGERED = ["--method", "staggered"]
WAYS = {
    "AdamW on the device": ["--method", "resident"],
    "ZeRO-Offload": ["--method", "offload"],
    "ZenFlow, windows on the device": STAGGERED,
    "ZenFlow, windows on the host": [*STAGGERED, "--accumulate", "host"],
}


def step_seconds(zf_bench, options):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([zf_bench, "train", "--device", "cpu", "--dropout", "0", "--probe", "64", *options, "--json", out.name],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.load(open(out.name))["methods"][0]["median_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs=2, metavar="ZF_BENCH")
    parser.add_argument("--rounds", type=int, default=5)
    for name, value in {"preset": "gpt2", "seqs": "8", "length": "128", "steps": "4", "warm-up": "2"}.items():
        parser.add_argument(f"--{name}", default=value, help=f"as zf-bench's ({value})")
    args = parser.parse_args()
    shape = [part for name in ("preset", "seqs", "length", "steps", "warm_up")
             for part in ("--" + name.replace("_", "-"), getattr(args, name))]
    print(f"zf-bench train --device cpu --dropout 0 {' '.join(shape)}; ms a step, old and new in each round")
    for way, options in WAYS.items():
        rounds = [[step_seconds(build, shape + options) for build in args.builds] for _ in range(args.rounds)]
        old, new = (statistics.median(column) for column in zip(*rounds))
        print(f"{way:32s} {old * 1e3:6.0f} {new * 1e3:6.0f}   {new / old:.3f} of the old; "
              + ", ".join(f"{o * 1e3:.0f} {n * 1e3:.0f}" for o, n in rounds), flush=True)


if __name__ == "__main__":
    main()
