"""Does in roots of Debian what a container's recipe says, where no container can be built.

    container.py RECIPE BASE FOLDER    BASE: a root of Debian, in the place of every image; FOLDER: where copies go

A Dockerfile (ARG, FROM, COPY, RUN, WORKDIR, USER, ENTRYPOINT) or an Apptainer definition (%arguments, %files, %post,
%test). Prints the last stage's root. Needs to be root; images, users and labels are not looked at."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive",
               **{k: v for k, v in os.environ.items() if k.lower() in ("http_proxy", "https_proxy")}}


def fresh(base, folder, name):
    root = pathlib.Path(folder) / name
    subprocess.run(["cp", "-a", "--one-file-system", base, root], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    return root


def inside(root, directory, arguments, command):
    script = f"cd {shlex.quote(directory)} && {command}"
    subprocess.run(["chroot", root, "sh", "-ec", script], check=True, stdout=sys.stderr, env={**ENVIRONMENT, **arguments})


def copy(sources, root, target):
    """Files and folders to a folder, where the target ends with a slash; else one of them in its place."""
    place = root / target.lstrip("/")
    as_folder = target.endswith("/")
    (place if as_folder else place.parent).mkdir(parents=True, exist_ok=True)
    for source in sources:
        subprocess.run(["cp", "-a", "-T", source, place / source.name if as_folder else place], check=True)


def lines_of(text):
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M)
    return [line.strip() for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]


def dockerfile(text, base, folder):
    stages, root, directory, arguments = {}, None, "/", {}
    for line in lines_of(text):
        word, rest = line.split(None, 1)
        if word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word == "FROM":
            name = re.search(r" AS (\w+)$", rest)
            root = stages[name[1] if name else ""] = fresh(base, folder, name[1] if name else "last")
            directory = "/"
        elif word == "WORKDIR":
            directory = rest
            (root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            words = rest.split()
            origin = stages[words.pop(0)[7:]] if words[0].startswith("--from=") else pathlib.Path.cwd()
            *sources, target = words
            found = [p for s in sources for p in sorted(origin.glob(s.lstrip("/")))]
            assert len(found) >= len(sources), f"{line}: no such file"
            copy(found, root, os.path.join(directory, target))
        elif word == "RUN":
            inside(root, directory, arguments, rest)
        elif word in ("ENTRYPOINT", "CMD"):
            program = json.loads(rest)[0]
            assert word == "CMD" or any((root / d / program).exists() for d in ("usr/bin", "bin")), line
        else:
            assert word == "USER", f"{line}: not known here"
    return root


def apptainer(text, base, folder):
    sections = {name: body for name, body in re.findall(r"^%(\w+)[^\n]*\n(.*?)(?=^%|\Z)", text, re.S | re.M)}
    arguments = dict(line.split("=", 1) for line in lines_of(sections["arguments"]))
    filled = lambda body: re.sub(r"\{\{ (\w+) \}\}", lambda m: arguments[m[1]], body)
    assert "{{ IMAGE }}" in text and arguments["IMAGE"].startswith("debian:"), arguments
    root = fresh(base, folder, "apptainer")
    for line in lines_of(sections["files"]):
        source, target = line.split()
        copy([pathlib.Path(source)], root, target)
    inside(root, "/", {}, filled(sections["post"]))
    inside(root, "/", {}, filled(sections["test"]))
    return root


def main():
    recipe, base, folder = sys.argv[1:]
    text = pathlib.Path(recipe).read_text()
    print((dockerfile if "\nFROM " in text else apptainer)(text, base, folder))


if __name__ == "__main__":
    main()
