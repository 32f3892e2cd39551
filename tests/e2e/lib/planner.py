"""What --fit chooses, beside everything that fits: planner.py BUILD MOST MEDIAN MACHINE[:RANKS],LAYERS,SEQUENCES...

Each setting is a GPT of 6.7 B's blocks, so many of them, and sequences of 512 tokens of a step. All 16 places of
things are planned once; then, for device memories at which something begins to fit, what the planner chooses. Fails
where that takes more than MOST times the fastest that fits, or half of all choices more than MEDIAN times it.
ZF_LONG=1: all such memories, else every third."""
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

PLACES = [["--gradient_checkpointing"], ["--accumulate", "host"], ["--offload"], ["--offload_param", "2"]]
build, most, median = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))


def plan(machine, ranks, layers, sequences, options):
    """(seconds of a step, bytes of device memory)"""
    out = folder + "/plan.json"
    subprocess.run([build + "/zf-bench", "train", "--plan", machine, "--ranks", ranks, "--preset", "gpt-6.7b",
                    "--layers", layers, "--length", "512", "--dropout", "0", "--method", "staggered",
                    "--train_batch_size", str(int(sequences) * int(ranks)), "--steps", "4", "--warm-up", "6",
                    "--json", out, *options], check=True, stdout=subprocess.DEVNULL)
    line = json.load(open(out))["methods"][0]
    return line["median_seconds"], line["device_bytes"]


def with_memory(name, device_bytes):
    machine = json.load(open(f"configs/machines/{name}.json"))
    machine["device"]["memory_bytes"] = {"value": device_bytes, "source": "a test"}
    path = folder + "/machine.json"
    json.dump(machine, open(path, "w"))
    return path


ratios = []
for setting in sys.argv[4:]:
    place, layers, sequences = setting.split(",")
    name, _, ranks = place.partition(":")
    shape = ranks or "1", layers, sequences
    ways = {}
    for chosen in itertools.product([False, True], repeat=len(PLACES)):
        options = [word for way, do in zip(PLACES, chosen) if do for word in way]
        ways[" ".join(options) or "all on the device"] = plan(name, *shape, options)
    for memory in sorted({held for _, held in ways.values()})[::1 if os.environ.get("ZF_LONG") == "1" else 3]:
        fits = {way: seconds for way, (seconds, held) in ways.items() if held <= memory}
        best = min(fits, key=fits.get)
        seconds, held = plan(with_memory(name, memory), *shape, ["--fit"])
        assert held <= memory, (setting, memory, held)
        ratios.append(seconds / fits[best])
        print(f"{setting}, {memory / 1e9:6.2f} GB: {1e3 * seconds:7.2f} ms chosen, {1e3 * fits[best]:7.2f} ms with {best}: "
              f"{ratios[-1]:.2f}", flush=True)
print(f"{len(ratios)} choices: at most {max(ratios):.2f} times the fastest, in the middle {statistics.median(ratios):.2f}")
assert max(ratios) <= most and statistics.median(ratios) <= median
