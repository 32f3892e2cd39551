"""Whether a timeline of zf-train --trace is well formed, and says what the log says.

    check_trace.py FILE RANKS STEPS LOG NAME...

LOG: rank 0's trainer_log.jsonl with an entry for each step. NAME: spans that each rank has, beside those
of every run. Prints the median share of a step that forward and backward take on the device."""

import collections
import json
import statistics
import sys

HOST, DEVICE, DOWN, UP, STATE, WORKERS = range(6)
LANES = {HOST: "main thread", DEVICE: "device", DOWN: "link: device to host", UP: "link: host to device",
         STATE: "link: state of channels", WORKERS: "worker 0"}
path, ranks, steps, log = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
names = {"step", "forward", "backward", "update", "finish"} | set(sys.argv[5:])
numbers = set(range(1, steps + 1))

with open(path) as file:
    events = json.load(file)
assert isinstance(events, list)


def end(span):
    return span["ts"] + span["dur"]


def by_lane(spans):
    lanes = collections.defaultdict(list)
    for s in spans:
        lanes[s["pid"], lane_of(s)].append(s)
    return lanes


def lane_of(event):
    """Viewers tell threads by their numbers alone: each is one rank's, and none is 0."""
    return event["tid"] - 1 - 1000 * event["pid"]


def check_shape(span):
    assert all(isinstance(span[key], int) and span[key] >= 0 for key in ("pid", "tid", "ts", "dur")), span
    assert span["args"]["step"] in numbers, span
    assert span["args"].get("bytes", 1) > 0 and set(span["args"]) <= {"step", "bytes"}, span
    assert (lane_of(span) in (DOWN, UP, STATE)) == ("bytes" in span["args"]), span


def check_nesting(spans):
    """A viewer drops what lies neither within a span of its lane nor beside it, and takes the first of two
    that begin together for the outer one. Steps never go back."""
    around, step = [], 0
    for s in sorted(spans, key=lambda s: s["ts"]):  # stable: those that begin together stay as written
        while around and end(around[-1]) <= s["ts"]:
            around.pop()
        assert not around or end(s) <= end(around[-1]), (s, around[-1])
        assert not around or s["args"]["step"] == around[-1]["args"]["step"], (s, around[-1])
        assert s["args"]["step"] >= step, s
        around.append(s)
        step = s["args"]["step"]


def check_device(spans):
    """Of each step one span, and its parts in it, in their order."""
    shares = []
    whole = {s["args"]["step"]: s for s in spans if s["name"] == "step"}
    assert set(whole) == numbers and sum(s["name"] == "step" for s in spans) == steps
    for step, around in whole.items():
        parts = [s for s in spans if s["args"]["step"] == step and s["name"] in ("forward", "backward", "update")]
        order = [s["name"] for s in sorted(parts, key=lambda s: (s["ts"], end(s)))]
        assert order == ["forward", "backward"] * ((len(order) - 1) // 2) + ["update"] and len(order) > 2, order
        assert all(around["ts"] <= s["ts"] and end(s) <= end(around) for s in parts), (around, parts)
        shares.append(sum(s["dur"] for s in parts if s["name"] != "update") / around["dur"])
    return statistics.median(shares)


def check_bytes(spans):
    """The log's bytes are those of the spans; what the last step left open crosses after it. State that changes sides
    is told in the step that chose so, and the part that comes to the device crosses in the next."""
    with open(log) as file:
        entries = {e["step"]: e for e in map(json.loads, file) if "loss" in e}
    assert set(entries) == numbers

    def crossed(step, chosen):
        return sum(s["args"]["bytes"] for s in spans if s["args"]["step"] == step and chosen(s))

    told = seen = 0
    for step, entry in sorted(entries.items()):
        seen += crossed(step, lambda s: s["name"].startswith("state, "))
        assert told <= seen and (seen <= told + entry.get("bytes_moved", 0) or step == steps), (step, told, seen, entry)
        told += entry.get("bytes_moved", 0)
        found = {"bytes_down": crossed(step, lambda s: lane_of(s) == DOWN and not s["name"].startswith("state, ")),
                 "bytes_up": crossed(step, lambda s: lane_of(s) == UP or s["name"] == "windows, to the device")}
        for key, value in found.items():
            assert value == entry.get(key, 0) or (step == steps and value > entry.get(key, 0)), (step, found, entry)


spans = [e for e in events if e["ph"] == "X"]
lane_names = {(e["pid"], lane_of(e)): e["args"]["name"] for e in events if e["name"] == "thread_name"}
assert {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"} == {
    r: f"rank {r}" for r in range(ranks)}
for span in spans:
    check_shape(span)
for key, lane in by_lane(spans).items():
    assert key in lane_names, key
    check_nesting(lane)
for rank in range(ranks):
    mine = [s for s in spans if s["pid"] == rank]
    missing = names - {s["name"] for s in mine}
    assert not missing, missing
    for lane, name in LANES.items():
        assert lane == WORKERS and (rank, lane) not in lane_names or lane_names[rank, lane] == name, (rank, lane)
    share = check_device([s for s in mine if lane_of(s) == DEVICE])
assert "AdamW" not in names or lane_names[0, WORKERS] == LANES[WORKERS]
check_bytes([s for s in spans if s["pid"] == 0])
print(f"{share:.4f}")
