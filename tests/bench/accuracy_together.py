#!/usr/bin/env python3
"""One table of several files of tests/bench/accuracy_table.py, say of a GPU and of a CPU:

    tests/bench/accuracy_together.py accuracy_pretrained_cuda.json accuracy_pretrained.json

Of two runs that differ in nothing but the machine, which computes in its own dtype, the one in the file named first counts.
AdamW, and "keep_up", whose interval is the machine's, have a row for each file; all are judged by the first one's AdamW.
"""

import json
import sys

from accuracy_text import commits_of, format_machine, table_lines


def has_own_row(run, number):
    return run["method"] == "zenflow_keep_up" or (run["method"] == "adamw" and number > 0)


def collect(documents):
    """The runs of all files, each once; "file" is the number of its file, "files" how many there are."""
    found = {}
    for number, document in enumerate(documents):
        for run in document["runs"]:
            title = run["title"] + (f" ({number + 1})" if has_own_row(run, number) else "")
            key = run["task"], title, json.dumps(run["settings"], sort_keys=True), run["seed"]
            found.setdefault(key, {**run, "title": title, "file": number, "files": len(documents)})
    return list(found.values())


def describe(number, document):
    return f"{number + 1}: {format_machine(document)}, {document['date']}, commits {commits_of(document['runs'])}"


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 1
    documents = [json.load(open(path, encoding="utf-8")) for path in sys.argv[1:]]
    first, *others = (d["language_model"].get("sha256", d["language_model"]) for d in documents)
    for path, model in zip(sys.argv[2:], others):
        if model != first:
            print(f"{path}: its runs start from another model than those of {sys.argv[1]}", file=sys.stderr)
            return 1
    lines = [describe(*numbered) for numbered in enumerate(documents)]
    lines += ["", *table_lines({"runs": collect(documents)}), "",
              "seeds: of file 1 + of file 2 and so on; S and stall: of the first file that tells of them.",
             *(f"{number + 1}: {note}" for number, document in enumerate(documents) for note in document["notes"])]
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
