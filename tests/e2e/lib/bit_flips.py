"""Single bits of a checkpoint flip, one at a time, over all its files: each is refused with a sentence that
names the file, or changes nothing in what the run leaves.

    bit_flips.py COUNT SEED CHECKPOINT OUTPUT MODEL COMMAND...

COMMAND goes on from CHECKPOINT and leaves in OUTPUT a model, which is to be MODEL."""

import pathlib
import random
import shutil
import subprocess
import sys

count, seed = int(sys.argv[1]), sys.argv[2]
checkpoint, output, model = map(pathlib.Path, sys.argv[3:6])
draw = random.Random(seed)
files = sorted(checkpoint.iterdir())
expected, refused, harmless, faults = model.read_bytes(), 0, 0, []

for i in range(count):
    path = files[i % len(files)]
    data = bytearray(path.read_bytes())
    at, bit = draw.randrange(len(data)), draw.randrange(8)
    good = bytes(data)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    shutil.rmtree(output, ignore_errors=True)
    done = subprocess.run(sys.argv[6:], capture_output=True)
    path.write_bytes(good)
    sentences = [line for line in done.stderr.splitlines() if line.startswith(b"zf-train: ")]
    if done.returncode == 1 and len(sentences) == 1 and path.name.encode() in sentences[0]:
        refused += 1
    elif done.returncode == 0 and (output / "model.safetensors").read_bytes() == expected:
        harmless += 1
    else:
        faults.append(f"{path.name}, byte {at}, bit {bit}: status {done.returncode}, {done.stderr[-300:]}")
print(f"{count} flips with seed {seed}: {refused} refused by name, {harmless} harmless", *faults, sep="\n")
sys.exit(bool(faults) or refused < count * 0.9)
