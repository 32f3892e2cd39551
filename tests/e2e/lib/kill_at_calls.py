"""kill -9 at system calls: each that changes a file, as a run writes checkpoints and ends.

    kill_at_calls.py KILL_AT COUNT SEED SCRATCH START COMMAND...

KILL_AT is kill_at.c, compiled. START is a folder that a run may begin in. COMMAND writes to SCRATCH/out, a copy of
it, and is killed as one of its threads makes a call; then it is run again. What it leaves must be, to the bit, what
an undisturbed run leaves, and nothing unfinished; or it says at once that nothing has been saved yet, which has to
be true. COUNT: so many of the calls, drawn with SEED; 0: all of them."""

import filecmp
import pathlib
import random
import shutil
import subprocess
import sys

kill_at, count, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
scratch, start, command = pathlib.Path(sys.argv[4]), sys.argv[5], sys.argv[6:]
out = scratch / "out"


def prepare():
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(start, out)


def run(number):
    """Kills it at this call, 0: at none; its status, and the calls up to there."""
    done = subprocess.run([kill_at, str(number), out, scratch / "calls", *command], capture_output=True, text=True)
    return done.returncode, (scratch / "calls").read_text().splitlines()


def results(folder):
    files = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
    timed = ("all_results.json", "train_results.json", "eval_results.json", "trainer_log.jsonl", "trainer_state.json",
             "zf_train_config.json", "report.html")
    return {name: path for name, path in files.items() if str(name) not in timed}


def describe(expected, found):
    if set(expected) != set(found):
        return f"files {sorted(map(str, set(expected) ^ set(found)))}"
    differ = [str(name) for name in expected if not filecmp.cmp(expected[name], found[name], shallow=False)]
    return f"other bytes in {differ}" if differ else ""


prepare()
status, calls = run(0)
assert status == 0, status
shutil.copytree(out, scratch / "whole")
expected = results(scratch / "whole")
# Writes of one file, one behind the other: the first, some between and the last tell. Threads take turns, so that
# the calls of another run are not quite these.
names = [line.split(" ", 1)[1] for line in calls]
places = [i + 1 for i, name in enumerate(names)
          if not (0 < i < len(names) - 1 and name.startswith("write") and names[i - 1] == name == names[i + 1])
          or i % 16 == 0]
drawn = places if count == 0 else random.Random(seed).sample(places, min(count, len(places)))
faults, killed, nothing = [], 0, 0
for number in drawn:
    prepare()
    status, calls = run(number)
    killed += status == 137
    again = subprocess.run(command, capture_output=True, text=True)
    nothing += "resuming from" not in again.stderr
    what = describe(expected, results(out)) if again.returncode == 0 else again.stderr[-300:]
    if "holds other files, and no checkpoint to go on from" in what and not list(out.glob("checkpoint-*/manifest.json")):
        what = ""
    if what:
        faults.append(f"killed at {calls[-1]}: {what}")
print(f"{len(drawn)} of {len(places)} calls, {killed} killed; {nothing} runs began anew; seed {seed}", *faults, sep="\n")
sys.exit(bool(faults) or killed < 0.9 * len(drawn))
