"""The rules of the house: no include reaches up, and no source files call each other in a circle.

    rooms.py SOURCE_FOLDER BUILD_FOLDER

Floors from the ground: data, model, offload, cmd. Calls are read from the objects of the build."""
import graphlib
import pathlib
import re
import shutil
import subprocess
import sys

FLOORS = ["data", "model", "offload", "cmd"]
source, build = map(pathlib.Path, sys.argv[1:])
faults = []
if not shutil.which("nm"):
    print("nm, which lists the calls, is not installed")
    sys.exit(77)

for floor, room in enumerate(FLOORS):
    for path in sorted((source / room).rglob("*.[ch]*")):
        for other in re.findall(r'^#include "(\w+)/', path.read_text(), re.M):
            if other not in FLOORS[: floor + 1]:
                faults.append(f"{path.relative_to(source)} includes {other}/, which lies above it")

home, needs = {}, {}  # where a symbol is defined; the symbols that a file needs
for path in build.glob("CMakeFiles/zf_*.dir/**/*.c.o"):
    name = str(path.relative_to(build)).split(".dir/")[1].removesuffix(".o")
    if not (source / name).exists():
        continue  # left over in the build from a file that has moved
    lines = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    symbols = [line.split()[-2:] for line in lines.splitlines()]
    home |= {symbol: name for kind, symbol in symbols if kind in "TDBRVW"}
    needs[name] = [symbol for kind, symbol in symbols if kind == "U"]
calls = {name: {home[s] for s in needs[name] if s in home} - {name} for name in needs}
if len(calls) < 50:
    faults.append(f"{build} has {len(calls)} objects, too few to be the program")
try:
    graphlib.TopologicalSorter(calls).prepare()
except graphlib.CycleError as error:
    faults.append("files that call each other in a circle: " + " <- ".join(error.args[1]))

print("\n".join(faults) or f"{len(calls)} files, no include reaches up, no circle")
sys.exit(bool(faults))
