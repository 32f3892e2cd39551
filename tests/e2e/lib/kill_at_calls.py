"""kill -9 at system calls: each that changes a file, as a run writes checkpoints and ends.

    kill_at_calls.py COUNT SEED SCRATCH START COMMAND...

START is a folder that a run may begin in. COMMAND writes to SCRATCH/out, a copy of it, and is killed as it makes
a call; then it is run again. What it leaves must be, to the bit, what an undisturbed run leaves, and nothing
unfinished; or it says at once that nothing has been saved yet, which has to be true. COUNT: so many of the calls, drawn with SEED; 0: all of them."""

import collections
import filecmp
import pathlib
import random
import re
import shutil
import subprocess
import sys

CALLS = "openat,write,pwrite64,fsync,rename,renameat2,unlink,unlinkat,rmdir,mkdir,ftruncate"
count, seed, scratch, start = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4]
command, out = sys.argv[5:], scratch / "out"


def prepare():
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(start, out)


def trace(*options):
    """Of the main thread alone, which writes all files."""
    done = subprocess.run(["strace", "-qq", "-o", scratch / "calls", "-e", f"trace={CALLS}", *options, *command],
                          capture_output=True, text=True)
    return done, (scratch / "calls").read_text()


def results(folder):
    files = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
    return {name: path for name, path in files.items()
            if path.name not in ("all_results.json", "trainer_log.jsonl", "zf_train_config.json", "report.html")}


def describe(expected, found):
    if set(expected) != set(found):
        return f"files {sorted(map(str, set(expected) ^ set(found)))}"
    differ = [str(name) for name in expected if not filecmp.cmp(expected[name], found[name], shallow=False)]
    return f"other bytes in {differ}" if differ else ""


prepare()
done, calls = trace()
assert done.returncode == 0, done.stderr
shutil.copytree(out, scratch / "whole")
expected = results(scratch / "whole")
places, numbers = [], collections.Counter()
for line in calls.splitlines():
    name = re.match(r"(\w+)\(", line)
    if not name:
        continue
    numbers[name[1]] += 1
    if "/out" in line or name[1] in ("write", "fsync", "pwrite64") and places:
        places.append((name[1], numbers[name[1]], line))
# Writes one behind the other are of one file: the first, one between and the last tell.
told = [p for i, p in enumerate(places)
        if not (0 < i < len(places) - 1 and places[i - 1][0] == p[0] == places[i + 1][0] == "write") or i % 16 == 0]
places = told
drawn = places if count == 0 else random.Random(seed).sample(places, min(count, len(places)))
faults, killed, nothing = [], 0, 0
for name, number, line in drawn:
    prepare()
    done, _ = trace("-e", f"inject={name}:signal=KILL:when={number}")
    killed += done.returncode == -9 or done.returncode == 137
    again = subprocess.run(command, capture_output=True, text=True)
    nothing += "resuming from" not in again.stderr
    what = describe(expected, results(out)) if again.returncode == 0 else again.stderr[-300:]
    if "holds other files, and no checkpoint to go on from" in what and not list(out.glob("checkpoint-*/manifest.json")):
        what = ""
    if what:
        faults.append(f"killed at {line[:120]}: {what}")
print(f"{len(drawn)} of {len(places)} calls, {killed} killed; {nothing} runs began anew; seed {seed}", *faults, sep="\n")
sys.exit(bool(faults) or killed < 0.9 * len(drawn))
