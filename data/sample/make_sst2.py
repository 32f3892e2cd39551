#!/usr/bin/env python3
"""Writes SST-2/{train,dev,test}.tsv beside this file: a synthetic sentiment data set.

Nobody wrote these sentences: they are put together from the templates and word lists below, in the
layout of GLUE's SST-2 (lower case, spaced punctuation, label 1 positive and 0 negative; the test
file has no labels). They stand in for the real data where there is no network, so that a training
run has something to learn. Results on them say nothing about results on SST-2.

One word does not settle the label. "not" and "hardly" turn it around, "but" gives the last clause
the say, "although" the one behind the comma, and intensifiers change nothing. Only the Python
standard library is used; the seed is fixed, and the files are the same wherever this is run.
"""

import pathlib
import random

SEED = 20250601
N_TRAIN, N_DEV, N_TEST = 4000, 400, 200

NOUNS = (
    "film movie story plot script acting cast dialogue ending soundtrack camerawork pacing "
    "direction humor romance premise performance comedy drama thriller documentary sequel editing score"
).split()
OWNERS = ["the", "this", "its", "the director 's", "the whole", "the second", "the young star 's"]
PLACES = [
    "from start to finish", "in the second half", "for most of its running time", "at every turn",
    "on the big screen", "by the end", "in its best scenes", "despite the hype",
    "for anyone over twelve", "like so many others", "this time around", "in every frame",
]
GOOD = (
    "good great charming funny moving delightful clever gripping brilliant warm fresh lovely "
    "touching engaging witty superb inventive heartfelt graceful thrilling memorable sincere tender dazzling"
).split()
BAD = (
    "bad dull boring clumsy tedious bland awful predictable shallow tiresome silly lifeless messy "
    "stale annoying flat hollow lazy grating forgettable muddled pointless dreary contrived"
).split()
INTENSIFIERS = [
    "very", "really", "so", "quite", "truly", "utterly", "remarkably", "surprisingly",
    "thoroughly",
]
NEGATIONS = ["not", "never", "hardly", "far from", "not at all", "anything but"]
PRAISE = [
    "i loved {}", "{} won me over", "{} is worth your time", "{} works", "{} shines",
    "{} kept me smiling", "you should see {}", "{} is a joy",
]
BLAME = [
    "i hated {}", "{} lost me early", "{} is a waste of time", "{} falls apart", "{} drags",
    "{} put me to sleep", "you should skip {}", "{} is a chore",
]
TURNS = {"i loved {}": "i did not love {}", "{} works": "{} does not work",
         "{} shines": "{} does not shine", "i hated {}": "i did not hate {}",
         "{} falls apart": "{} never falls apart", "{} drags": "{} never drags"}  # fmt: skip


def subject(rng):
    return f"{rng.choice(OWNERS)} {rng.choice(NOUNS)}"


def quality(rng, positive):
    """An adjective with what stands before it, such as "not very dull"."""
    negated = rng.random() < 0.3
    words = [rng.choice(NEGATIONS)] if negated else []
    if rng.random() < 0.4:
        words.append(rng.choice(INTENSIFIERS))
    words.append(rng.choice(GOOD if positive != negated else BAD))
    return " ".join(words)


def clause(rng, positive):
    kind = rng.random()
    if kind < 0.25:
        text = rng.choice(PRAISE if positive else BLAME)
        if rng.random() < 0.3:
            turned = [k for k in TURNS if k in (BLAME if positive else PRAISE)]
            text = TURNS[rng.choice(turned)]
        return text.format(subject(rng))
    if kind < 0.75:
        return f"{subject(rng)} is {quality(rng, positive)}"
    if kind < 0.9:
        return f"{subject(rng)} feels {quality(rng, positive)}"
    return f"{subject(rng)} is {quality(rng, positive)} and {quality(rng, positive)}"


def sentence(rng, positive):
    kind = rng.random()
    if kind < 0.6:
        text = clause(rng, positive)
    elif kind < 0.8:
        text = f"{clause(rng, not positive)} , but {clause(rng, positive)}"
    elif kind < 0.9:
        text = f"although {clause(rng, not positive)} , {clause(rng, positive)}"
    else:
        text = f"{clause(rng, positive)} and {clause(rng, positive)}"
    if rng.random() < 0.35:
        text = f"{text} {rng.choice(PLACES)}"
    return f"{text} {rng.choice(['.', '.', '.', '!', ''])}".rstrip() + " "


def distinct_rows(rng, n):
    """n sentences that differ in more than their last mark, half of them positive."""
    rows = {}
    while len(rows) < n:
        positive = len(rows) % 2 == 1
        text = sentence(rng, positive)
        rows.setdefault(text.rstrip(" .!"), (text, int(positive)))
    rows = list(rows.values())
    rng.shuffle(rows)
    return rows


def main():
    folder = pathlib.Path(__file__).parent / "SST-2"
    folder.mkdir(exist_ok=True)
    rows = distinct_rows(random.Random(SEED), N_TRAIN + N_DEV + N_TEST)
    splits = {"train": rows[:N_TRAIN], "dev": rows[N_TRAIN : N_TRAIN + N_DEV]}
    for name, split in splits.items():
        lines = ["sentence\tlabel"] + [f"{text}\t{label}" for text, label in split]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts = [text for text, _ in rows[N_TRAIN + N_DEV :]]
    lines = ["index\tsentence"] + [f"{i}\t{text.rstrip()}" for i, text in enumerate(texts)]
    (folder / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
