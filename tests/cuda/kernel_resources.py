#!/usr/bin/env python3
"""What the compiler made of the CUDA kernels of a program, by the toolkit's cuobjdump.

usage: kernel_resources.py PROGRAM          prints a table in Markdown
       kernel_resources.py --check PROGRAM  also fails where a kernel uses local memory (a spill, an
                                            array that is not in registers), or where attention does
                                            not run on tensor cores; 77: cuobjdump is absent
"""

import os
import re
import shutil
import subprocess
import sys

ON_TENSOR_CORES = re.compile(r"^attention_(forward|backward_kv|backward_q)_kernel<")
LOCAL_ACCESS = re.compile(r"\b(STL|LDL)\b")


def find_cuobjdump():
    nvcc = shutil.which("nvcc")
    beside = os.path.dirname(os.path.realpath(nvcc)) if nvcc else "/usr/local/cuda/bin"
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=beside)


def dump(tool, option, program):
    run = subprocess.run([tool, option, program], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{tool} {option} {program} failed: {run.stderr.strip()}")
    return run.stdout.splitlines()


def short_names(mangled):
    """finish_kernel<8, float> for each mangled name: without type and arguments."""
    filt = shutil.which("c++filt")
    if not filt or not mangled:
        return {name: name for name in mangled}
    text = subprocess.run([filt], input="\n".join(mangled), capture_output=True, text=True).stdout
    names = {}
    for name, plain in zip(mangled, text.splitlines()):
        plain = plain.removeprefix("void ").replace("unsigned short", "bf16")
        names[name] = re.sub(r"\(.*$", "", plain.replace("(int)", "").replace("(bool)", ""))
    return names


def read_resources(lines):
    """{(mangled, arch): {"REG": 40, "STACK": 0, "SHARED": 0, "LOCAL": 0, ...}}"""
    found, arch, name = {}, None, None
    for line in lines:
        if match := re.match(r"arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\w+):", line):
            name = match[1]
        elif name and "REG:" in line:
            found[name, arch] = {k: int(v) for k, v in re.findall(r"(\w+):(\d+)", line)}
            name = None
    return found


def read_instructions(lines):
    """{(mangled, arch): (accesses to local memory, tensor core instructions)}"""
    found, arch, key = {}, None, None
    for line in lines:
        if match := re.match(r"\s*arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function : (\w+)", line):
            key = match[1], arch
            found[key] = [0, 0]
        elif key:
            found[key][0] += bool(LOCAL_ACCESS.search(line))
            found[key][1] += "HMMA" in line
    return found


def print_table(resources, names):
    archs = sorted({arch for _, arch in resources})
    print("| kernel | " + " | ".join(f"registers, {a}" for a in archs) + " | static shared memory |")
    print("| --- |" + " ---: |" * (len(archs) + 1))
    for mangled in sorted({m for m, _ in resources}, key=lambda m: names[m]):
        rows = [resources.get((mangled, a)) for a in archs]
        registers = " | ".join(str(r["REG"]) if r else "" for r in rows)
        # Of the oldest: since compute capability 9.0, 1 KiB that the system keeps is counted too.
        shared = next(r["SHARED"] for r in rows if r)
        print(f"| `{names[mangled]}` | {registers} | {shared} |")


def check(resources, instructions, names):
    faults = []
    for (mangled, arch), r in resources.items():
        what = f"{names[mangled]} ({arch})"
        local, tensor = instructions.get((mangled, arch), (0, 0))
        if r["STACK"] or r["LOCAL"] or local:
            faults.append(f"{what} uses local memory: {r['STACK'] + r['LOCAL']} bytes, {local} "
                          "instructions")
        if ON_TENSOR_CORES.match(names[mangled]) and not tensor:
            faults.append(f"{what} has no tensor core instruction")
    attention = {(n, a) for (n, a) in instructions if ON_TENSOR_CORES.match(names.get(n, ""))}
    if not attention:
        faults.append("no attention kernel was found")
    good = (f"No kernel uses local memory ({len(resources)} were read), and those of attention "
            f"({len(attention)}) run on tensor cores.")
    print("\n" + ("\n".join(faults) or good))
    return not faults


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    tool = find_cuobjdump()
    if not tool:
        print("skipped: cuobjdump, a part of the CUDA toolkit, is not installed")
        sys.exit(77)
    resources = read_resources(dump(tool, "-res-usage", arguments[0]))
    if not resources:
        sys.exit(f"{arguments[0]} holds no CUDA kernels")
    names = short_names(sorted({mangled for mangled, _ in resources}))
    print_table(resources, names)
    if "--check" in sys.argv:
        instructions = read_instructions(dump(tool, "-sass", arguments[0]))
        sys.exit(not check(resources, instructions, names))


main()
