"""Reads the table of tests/e2e/expectations.md.

    expectations.py setup PAGE               the script of its one block of code
    expectations.py lines PAGE               NUMBER, tab, what is expected; a fault where a line is not in order
    expectations.py run PAGE NUMBER FOLDER   runs the line's command in the folder; a fault unless what it promises is so
"""
import pathlib
import re
import subprocess
import sys

PROMISE = re.compile(r"(says|makes|refused:) `([^`]+)`(?:, |$)")


def read(page):
    text = pathlib.Path(page).read_text(encoding="utf-8")
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    return text, [[cell.strip().replace(r"\|", "|") for cell in line] for line in lines]


def promises(cell):
    found = PROMISE.findall(cell)
    assert found and PROMISE.sub("", cell) == "", f"no promise that can be looked for: {cell}"
    assert all(kind != "refused:" for kind, _ in found) or len(found) == 1, cell
    return found


def check_lines(lines):
    for i, line in enumerate(lines):
        assert len(line) == 5 and line[0] == str(i + 1), f"line {i + 1}: {line}"
        assert re.fullmatch(r"`[^`]+`", line[3]), f"no command: {line}"
        promises(line[4])
        print(f"{line[0]}\t{line[1]}")


def run(line, folder):
    done = subprocess.run(["bash", "-c", line[3].strip("`")], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    said = done.stdout + done.stderr
    print(said)
    refused = [words for kind, words in promises(line[4]) if kind == "refused:"]
    assert (done.returncode in (1, 2)) if refused else done.returncode == 0, f"status {done.returncode}"
    for kind, words in promises(line[4]):
        if kind == "makes":
            assert (pathlib.Path(folder) / words).exists(), f"{words} is not made"
        else:
            where = done.stderr.splitlines()[-1] if refused else said
            assert words in where, f"it does not say {words}"


def main():
    command, page, *rest = sys.argv[1:]
    text, lines = read(page)
    if command == "setup":
        print(re.search(r"^```\n(.*?)^```", text, re.S | re.M)[1])
    elif command == "lines":
        check_lines(lines)
    else:
        run(lines[int(rest[0]) - 1], rest[1])


if __name__ == "__main__":
    main()
