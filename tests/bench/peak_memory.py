#!/usr/bin/env python3
"""Peak resident memory of training steps with windows, important state and parameters in every place.

    python3 tests/bench/peak_memory.py build/zf-bench --layers 24

On the CPU device every place is the host's memory, and the device's parameters are fp32 there, 4 bytes each: what
moves from device to host is then held once and not twice. The shape is GPT-2 XL's, 1,600 wide, with as many of its
48 blocks as this machine's memory holds. The peak is the kernel's figure for the process, so the libraries are in it.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

HOST_WINDOWS = ["--method", "staggered", "--accumulate", "host"]
PLACES = {
    "AdamW, all on the device": ["--method", "resident"],
    "ZeRO-Offload": ["--method", "offload"],
    "ZenFlow, windows on the device": ["--method", "staggered"],
    "windows on the host": HOST_WINDOWS,
    "important state too": [*HOST_WINDOWS, "--offload"],
    "parameters too, 2 slots": [*HOST_WINDOWS, "--offload", "--offload_param", "2"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zf_bench")
    parser.add_argument("--layers", type=int, default=24)
    args = parser.parse_args()
    shape = ["--preset", "gpt2-xl", "--layers", str(args.layers), "--seqs", "1", "--length", "32", "--dropout", "0",
             "--device", "cpu", "--bf16", "--gradient_checkpointing", "--warm-up", "2", "--steps", "6"]
    print(f"{args.zf_bench} train {' '.join(shape)}")
    print(f"{'':32}{'peak GB':>8}{'device GB':>10}{'host GB':>8}{'peak, bytes a parameter':>25}{'ms/step':>9}")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "figures.json"
        for name, options in PLACES.items():
            subprocess.run([args.zf_bench, "train", *shape, *options, "--json", str(path)],
                           check=True, stdout=subprocess.DEVNULL)
            figures = json.loads(path.read_text(encoding="utf-8"))
            method, parameters = figures["methods"][0], figures["model_bytes"] / 2
            peak = figures["process_peak_bytes"]
            print(f"{name:32}{peak / 1e9:8.2f}{method['device_bytes'] / 1e9:10.2f}{method['host_bytes'] / 1e9:8.2f}"
                  f"{peak / parameters:25.2f}{method['median_seconds'] * 1e3:9.0f}", flush=True)


if __name__ == "__main__":
    main()
