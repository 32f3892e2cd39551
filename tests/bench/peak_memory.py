#!/usr/bin/env python3
"""Peak resident memory of training steps with windows, important state and parameters in every place.

    python3 tests/bench/peak_memory.py build/zf-bench --layers 24

On the CPU device every place is the host's memory, and the device's parameters are fp32 there, 4 bytes each: what
moves from device to host is then held once and not twice. The shape is GPT-2 XL's, 1,600 wide, with as many of its
48 blocks as this machine's memory holds. The peak is the kernel's figure for the process, so the libraries are in it;
of two ranks it is that of the one which has held the most. What all 48 blocks would need is reckoned: blocks are
alike, so that half as many, run too, give what one adds. --places picks rows by a part of their names.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

BLOCKS = 48
HOST_WINDOWS = ["--method", "staggered", "--accumulate", "host"]
ALL_ON_HOST = [*HOST_WINDOWS, "--offload", "--offload_param", "2"]
PLACES = {  # ranks, options
    "AdamW, all on the device": (1, ["--method", "resident"]),
    "ZeRO-Offload": (1, ["--method", "offload"]),
    "ZeRO-Offload, parameters too": (1, ["--method", "offload", "--offload_param", "2"]),
    "ZenFlow, windows on the device": (1, ["--method", "staggered"]),
    "windows on the host": (1, HOST_WINDOWS),
    "important state too": (1, [*HOST_WINDOWS, "--offload"]),
    "parameters too, 2 slots": (1, ALL_ON_HOST),
    "ZenFlow, stage 3": (2, ["--method", "staggered", "--stage", "3"]),
    "stage 3, all on the host": (2, ALL_ON_HOST),
}


def measure(zf_bench, ranks, options, layers):
    """The figures of a run, and its command."""
    shape = ["--preset", "gpt2-xl", "--layers", str(layers), "--seqs", "1", "--length", "32", "--dropout", "0",
             "--device", "cpu", "--bf16", "--gradient_checkpointing", "--warm-up", "2", "--steps", "6"]
    launch = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command = [*launch, zf_bench, "train", *shape, *options]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "figures.json"
        subprocess.run([*command, "--json", str(path)], check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text(encoding="utf-8")), command


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zf_bench")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--places", default="", help="part of the rows' names")
    args = parser.parse_args()
    print(f"gpt2-xl with {args.layers} blocks; GB of the rank that holds the most")
    print(f"{'':32}{'ranks':>6}{'peak GB':>8}{'device GB':>10}{'host GB':>8}{'peak, bytes a parameter':>25}{'ms/step':>9}"
          f"{f'{BLOCKS} blocks, reckoned GB':>25}")
    commands = []
    for name, (ranks, options) in PLACES.items():
        if args.places not in name:
            continue
        half = measure(args.zf_bench, ranks, options, args.layers // 2)[0]["process_peak_bytes"]
        figures, command = measure(args.zf_bench, ranks, options, args.layers)
        commands.append(command)
        method, parameters = figures["methods"][0], figures["model_bytes"] / 2
        peak = figures["process_peak_bytes"]
        reckoned = peak + (BLOCKS - args.layers) * (peak - half) / (args.layers - args.layers // 2)
        print(f"{name:32}{ranks:6}{peak / 1e9:8.2f}{method['device_bytes'] / 1e9:10.2f}{method['host_bytes'] / 1e9:8.2f}"
              f"{peak / parameters:25.2f}{method['median_seconds'] * 1e3:9.0f}{reckoned / 1e9:25.2f}", flush=True)
    for command in commands:
        print(f"$ {' '.join(command)}")


if __name__ == "__main__":
    main()
