"""What tests/bench/accuracy_table.py has found, as text: its table, and how local the important channels were."""

import re
import statistics

import locality_table
from accuracy_tasks import METHODS, METRIC_TITLES, TASKS


def mean_and_deviation(values):
    """Sample standard deviation; None of a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def format_deviation(deviation):
    return "-" if deviation is None else f"{deviation:.4f}"


def format_seeds(runs):
    """Their number; where runs of several files stand together, the number of each file's."""
    files = runs[0].get("files", 1)
    return "+".join(str(sum(r.get("file", 0) == i for r in runs)) for i in range(files))


def format_waits(runs):
    """Means of the runs that tell of them; of several files the first that has such runs counts."""
    told = [r for r in runs if "stall" in r]
    told = [r for r in told if r.get("file", 0) == min(r.get("file", 0) for r in told)]
    if not told:
        return f"{'-':>4} {'-':>6}"
    interval, stall = (statistics.fmean(r[key] for r in told) for key in ("update_interval", "stall"))
    return f"{interval:4.1f} {stall:6.2%}"


def judge(metric, reference):
    """A row beside AdamW's mean, deviation and number of seeds; nothing without a deviation."""
    if not reference or not reference[1]:
        return ""
    difference = (metric - reference[0]) / reference[1]
    few = f" (a deviation of {reference[2]} seeds)" if reference[2] < 3 else ""
    return f"{difference:+8.2f}  {'yes' if abs(difference) <= 1 else 'NO'}{few}"


def table_row(runs, task, title, reference):
    """One line of the table. reference: mean, deviation and seeds of AdamW, or None for AdamW itself."""
    metric, deviation = mean_and_deviation([r["metric"] for r in runs])
    loss, loss_deviation = mean_and_deviation([r["last_quarter_loss"] for r in runs])
    name = f"{TASKS[task][0]} {METRIC_TITLES[TASKS[task][2]]}"
    return (f"{name:<16} {title:<33} {format_seeds(runs):>5} {metric:8.4f} {format_deviation(deviation):>7} "
            f"{loss:9.4f} {format_deviation(loss_deviation):>7} {format_waits(runs)} {judge(metric, reference)}").rstrip()


def table_lines(document):
    yield (f"{'task, metric':<16} {'method':<33} {'seeds':>5} {'mean':>8} {'std':>7} "
           f"{'loss':>9} {'std':>7} {'S':>4} {'stall':>6} {'off/std':>8}  within one std of AdamW")
    for task in TASKS:
        runs = [r for r in document["runs"] if r["task"] == task]
        reference = None
        for _, title in sorted({(list(METHODS).index(r["method"]), r["title"]) for r in runs}):
            own = [r for r in runs if r["title"] == title]
            yield table_row(own, task, title, reference)
            if title == "AdamW":
                reference = *mean_and_deviation([r["metric"] for r in own]), len(own)


def size_lines(document):
    for task, settings in document["settings"].items():
        sizes = [r["results"] for r in document["runs"] if r["task"] == task]
        if sizes:
            yield (f"  {TASKS[task][0]}: {sizes[0]['train_samples']} training examples, "
                   f"{settings['num_train_epochs']} epochs, {sizes[0]['global_step']} steps of "
                   f"{settings['per_device_train_batch_size']}, learning rate "
                   f"{settings['learning_rate']}, {sizes[0]['eval_samples']} dev examples")


def format_model(model):
    if "pretrained" in model:
        return f"Pretrained model: {model['pretrained']}, sha256 {model['sha256'][:16]}"
    return (f"Language model: {model['sentences']} sentences, dev perplexity "
            f"{model['results']['eval_perplexity']:.1f}")


def commits_of(runs):
    return ", ".join(sorted({re.sub(r"^(\w{7})\w*", r"\1", r["commit"]) for r in runs}))


def format_machine(document):
    return f"{document['cpu']}, parameters in {'bf16' if document['device'] == 'cuda' else 'fp32'}"


def format_document(document):
    """The table as text, with what it was measured on."""
    lines = [f"{document['date']}, {format_machine(document)}, commits {commits_of(document['runs'])}; the last of the commands:",
             document["command"], "", f"{format_model(document['language_model'])}. Fine-tuning:",
             *size_lines(document), "", *table_lines(document), "",
             "loss: mean training loss of the last quarter of the steps. std: sample standard "
             "deviation over the seeds.",
             "S: the update interval at the end; stall: the share of the time in which the device waited; means.",
             "off/std: difference of the means in standard deviations of AdamW.", *document["notes"]]
    return "\n".join(lines) + "\n"


def locality_lines(runs):
    """Of runs with choices, a table for each task and method: means over the seeds."""
    told = [r for r in runs if "locality" in r]
    for task, title in dict.fromkeys((r["task"], r["title"]) for r in told):
        own = [r for r in told if (r["task"], r["title"]) == (task, title)]
        found = locality_table.average([r["locality"] for r in own])
        yield (f"{TASKS[task][0]}, {title}, {len(own)} seeds, {found['choices']:.0f} choices; channels are chosen by "
               f"{own[0]['bytes_norms']:,} bytes of norms in a step, where gradients are "
               f"{own[0]['bytes_gradients']:,}: 1/{own[0]['bytes_gradients'] / own[0]['bytes_norms']:.0f}")
        yield from locality_table.table_lines(found)
        yield ""
