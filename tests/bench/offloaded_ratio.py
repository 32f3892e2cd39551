#!/usr/bin/env python3
"""Plans: how much longer a step takes whose optimizer state is on the host than AdamW's on the device, at every batch, GPU
and host that the goals name (at most 1.05 times, stall at most 2 %, worst step at most 1.1 times the median, traffic at most
0.6 sizes of the model). A step that misses one is set beside the physical limit, which is the longest of three: the bytes of the
host's AdamW and of the link over the rate of the host's memory; the link's bytes over its rate; the resident step.

    python3 tests/bench/offloaded_ratio.py BUILD

A stall is the time in which the device has nothing to do, since it waits for the host's workers. Windows of 4, a new choice
every 16 steps, 32 steps; sequences of 512. Where the resident run does not fit its time counts all the same; a row whose
offloaded run does not fit says so. Nothing is measured: these are plans.
"""
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from planned import ZENFLOW, host_memory_seconds, link_seconds, machine_with_host, planned

MACHINES = ["h100", "h200"]
HOST_RATES = [200e9, 340e9]  # bytes a second of the host's memory
MODELS = ["gpt2-xl", "gpt-6.7b"]
SEQUENCES = [4, 8, 16]
LENGTH = 512
OFFLOADED = [*ZENFLOW, "--steps", "32"]
RESIDENT = ["--method", "resident", "--steps", "8"]


def row(build, folder, machine, rate, model, sequences):
    path = machine_with_host(folder, machine, rate)
    zenflow, resident = (planned(build, path, model, sequences, LENGTH, way) for way in (OFFLOADED, RESIDENT))
    median, stall, traffic = zenflow["median_seconds"], zenflow["stall_share"], zenflow["link_model_sizes"]
    ratio, worst = median / resident["median_seconds"], zenflow["worst_seconds"] / median
    line = (f"{machine:5s} {rate / 1e9:4.0f} {model:9s} {sequences:3d} {median * 1e3:8.2f} {ratio:6.3f} {stall:6.1%} {worst:6.3f}"
            f" {traffic:6.3f}")
    if ratio > 1.05 or stall > 0.02 or worst > 1.1 or traffic > 0.6:
        seconds, what = max((host_memory_seconds(zenflow, rate), "the host's memory"), (link_seconds(zenflow, path), "the link"),
                            (resident["median_seconds"], "the device"))
        line += f"  missed: {median / seconds:.3f} times what {what} takes, {seconds * 1e3:.2f} ms"
    if not zenflow["fits"]:
        line += f"  does not fit: {zenflow['device_bytes'] / 1e9:.1f} GB, {zenflow['device_bytes_free'] / 1e9:.1f} are free"
    return line


def main():
    print("GPU  GB/s model     seqs  ms/step  ratio  stall  worst traffic")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        rows = [pool.submit(row, sys.argv[1], folder, machine, rate, model, sequences)
                for machine in MACHINES for rate in HOST_RATES for model in MODELS for sequences in SEQUENCES]
        for done in rows:
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
