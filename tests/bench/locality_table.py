#!/usr/bin/env python3
"""How local are the important channels? Prints, layer by layer, what a run's log has of its choices.

    tests/bench/locality_table.py OUTPUT_DIR...

overlap: the share of the chosen channels that the choice before had chosen, too. share: of the
squared norm of the step's gradient, what the chosen channels hold. Of each the first, the median and
the last over the choices. blocks: the mean over the blocks; all: of all chosen channels, also tokens that
do not occur, which make up the number where an embedding has fewer others.

Only the Python standard library is used.
"""

import json
import pathlib
import statistics
import sys

FIGURES = ("selection_overlap", "selection_share")


def summary(values):
    """(first, median, last), or None of nothing."""
    values = [v for v in values if v is not None]
    return [values[0], statistics.median(values), values[-1]] if values else None


def of_blocks(layers):
    """The mean over all layers but embeddings and head."""
    told = [v for v in layers[1:-1] if v is not None]
    return statistics.fmean(told) if told else None


def summarise(log):
    """Of a log's records, by figure: "all", "blocks", and "layers" in their order."""
    found = {}
    for figure in FIGURES:
        arrays = [r[figure + "_by_layer"] for r in log if figure + "_by_layer" in r]
        found[figure] = {"all": summary([r[figure] for r in log if figure in r]),
                         "blocks": summary([of_blocks(layers) for layers in arrays]),
                         "layers": [summary(values) for values in zip(*arrays, strict=True)]}
    found["choices"] = sum("selection_share" in r for r in log)
    return found


def mean(rows):
    rows = [r for r in rows if r]
    return [statistics.fmean(column) for column in zip(*rows, strict=True)] if rows else None


def average(summaries):
    """Of several runs of one model: the means of what each has."""
    found = {"choices": statistics.fmean(s["choices"] for s in summaries)}
    for figure in FIGURES:
        layers = [s[figure]["layers"] for s in summaries if s[figure]["layers"]]
        found[figure] = {**{part: mean([s[figure][part] for s in summaries]) for part in ("all", "blocks")},
                         "layers": [mean(rows) for rows in zip(*layers, strict=True)]}
    return found


def layer_name(layer, n_layers):
    return "embeddings" if layer == 0 else "head" if layer == n_layers - 1 else f"block {layer}"


def table_lines(found):
    """Lines of a table, or none where nothing was chosen twice nor told."""
    overlap, share = (found[figure] for figure in FIGURES)
    n_layers = max(len(overlap["layers"]), len(share["layers"]))
    if n_layers == 0:
        return
    yield f"{'':<12} {'overlap':^23} {'share of the norm':^23}"
    yield f"{'layer':<12} " + " ".join(f"{name:>7}" for name in ("first", "median", "last") * 2)
    rows = [(part, overlap[part], share[part]) for part in ("all", "blocks")]
    for layer in range(n_layers):
        rows.append((layer_name(layer, n_layers),
                     *(f["layers"][layer] if f["layers"] else None for f in (overlap, share))))
    for name, *cells in rows:
        if any(cells):
            yield f"{name:<12} " + " ".join(
                f"{value:7.1%}" if cell else f"{'-':>7}"
                for cell in cells for value in (cell or [None] * 3))


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        return 0 if sys.argv[1:] == ["--help"] else 2
    for folder in sys.argv[1:]:
        path = pathlib.Path(folder) / "trainer_log.jsonl"
        log = [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []
        found = summarise(log)
        if not found["choices"]:
            print(f"{path}: it tells of no choice of important channels", file=sys.stderr)
            return 1
        print(f"{folder}: {found['choices']} choices of important channels")
        print("\n".join(table_lines(found)), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
