"""unread_keys.py: prints each key of cmd/config/table.c whose value has no bearing on a run.

A field is read where a run is made: in cmd/ itself, and where the engine's settings are made. Those that
cmd/config/resolve.c turns into others before the run begins are named here, with what they become.
"""

import pathlib
import re

SETTLED = {
    "use_cpu": "device",
    "task_name": "task",
    "optimizer_type": "adam_w_mode",
    "num_train_epochs": "total_steps",
    "max_steps": "total_steps",
    "max_runtime": "max_seconds",
    "report_to": "reports_to_tensorboard",
    "warmup_ratio": "warmup_steps",
    "zero_stage": "a condition of offloading; the engine always divides what it offloads",
}

table = re.sub(r"\s+", " ", pathlib.Path("cmd/config/table.c").read_text())
table = table[table.index("config_table[] =") :]
text = r'(?:[A-Z]+ )?"[^"]*"'
fields = re.findall(r"\bARG_[A-Z]+\( ?(\w+)", table)
fields += re.findall(r"\bDS_[A-Z_]+\( ?(?:\"[\w|]+\", )?(?:CONFIG_\w+, )?" + text + r", ([\w.]+),", table)
fields += re.findall(r"\bFIELD\((\w+)\)", table)
rows = len(re.findall(r"\{ ?(?:\{? ?)(?:ARG_|DS_|\.name = ZERO)", table))
assert len(fields) == rows > 80, (len(fields), rows)

cmd = pathlib.Path("cmd")
readers = "".join(path.read_text() for path in [*cmd.glob("*.c"), *cmd.glob("report/*.c"), cmd / "config/engine_settings.c"])
for field in fields:
    name = field.split(".")[-1]
    if not re.search(rf"(?:->|\.){name}\b", readers) and name not in SETTLED:
        print(field)
