"""The rules of the house: no include reaches up, and no files include or call each other in a circle.

    rooms.py SOURCE_FOLDER BUILD_FOLDER

Floors from the ground: data, model, offload, cmd. Calls are read from the objects of the build; those of
the CUDA sources are the emulator's where there is no nvcc."""
import collections
import graphlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FLOORS = ["data", "model", "offload", "cmd"]


def includes_of(source):
    """{file: the project's files that it includes}"""
    paths = [path for room in FLOORS for path in sorted((source / room).rglob("*.[ch]*"))]
    return {str(path.relative_to(source)): set(re.findall(r'^#include "(\w+/[^"]*)"', path.read_text(), re.M))
            for path in paths}


def calls_of(source, build):
    """{file: the files that it calls}, of a C, C++ or CUDA source with an object in the build"""
    objects = {}  # of the program: not what is left over in the build from a file that has moved
    for path in build.rglob("zf_*.dir/**/*.o"):
        name = str(path.relative_to(build)).split(".dir/")[1].removesuffix(".o").replace("__/", "")
        if name.split("/")[0] in FLOORS and (source / name).exists():
            objects[str(path)] = name
    home, needs = collections.defaultdict(set), {name: set() for name in objects.values()}
    nm = ["nm", "-A", "-g", *objects] if objects else ["true"]
    for line in subprocess.run(nm, capture_output=True, text=True, check=True).stdout.splitlines():
        name = objects[line.split(".o:")[0] + ".o"]
        kind, symbol = line.split()[-2:]
        if kind == "U":
            needs[name].add(symbol)
        elif kind in "TDBRi":
            home[symbol].add(name)
    return {name: set().union(*(home[s] for s in symbols if s in home)) - {name} for name, symbols in needs.items()}


def faults_of(includes, calls):
    faults = []
    for name, others in includes.items():
        for other in sorted(others):
            if other.split("/")[0] not in FLOORS[: FLOORS.index(name.split("/")[0]) + 1]:
                faults.append(f"{name} includes {other}, which lies above it")
    for what, graph in ("include", includes), ("call", calls):
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            faults.append(f"files that {what} each other in a circle: " + " <- ".join(error.args[1]))
    return faults


def plant(folder):
    """A house in which each rule is broken once, and what is to be said of it."""
    objects = folder / "build/tests/CMakeFiles/zf_cuda_emulated.dir/__/model/cuda"
    for path in objects, folder / "model/cuda", folder / "data":
        path.mkdir(parents=True)
    (folder / "data/up.h").write_text('#include "model/cuda/a.cuh"\n')
    for one, other in ("a", "b"), ("b", "a"):
        (folder / f"model/cuda/{one}.cuh").write_text(f'#include "model/cuda/{other}.cuh"\n')
        code = folder / f"model/cuda/{one}.cu"
        code.write_text(f"void {other}(void);\nvoid {one}(void) {{ {other}(); }}\n")
        subprocess.run([os.environ.get("CC", "cc"), "-x", "c", "-c", code, "-o", objects / f"{one}.cu.o"], check=True)
    return [r"data/up.h includes model/cuda/a.cuh, which lies above it",
            r"files that include each other in a circle: model/cuda/(a.cuh.*b|b.cuh.*a).cuh.*",
            r"files that call each other in a circle: model/cuda/(a.cu.*b|b.cu.*a).cu.*"]


if not shutil.which("nm"):
    print("nm, which lists the calls, is not installed")
    sys.exit(77)

source, build = map(pathlib.Path, sys.argv[1:])
calls = calls_of(source, build)
faults = faults_of(includes_of(source), calls)
if len(calls) < 50:
    faults.append(f"{build} has {len(calls)} objects, too few to be the program")
with tempfile.TemporaryDirectory() as folder:
    expected = plant(pathlib.Path(folder))
    found = faults_of(includes_of(pathlib.Path(folder)), calls_of(pathlib.Path(folder), pathlib.Path(folder, "build")))
    if len(found) != len(expected) or not all(map(re.fullmatch, expected, found)):
        faults.append(f"of rules that are broken this is seen: {found}")

n_cuda = sum(name.endswith(".cu") for name in calls)
cuda = f"{n_cuda} of them of CUDA" if n_cuda else "none of CUDA, which this build lacks"
print("\n".join(faults) or f"{len(calls)} files, {cuda}: no include reaches up, no circle")
sys.exit(bool(faults))
