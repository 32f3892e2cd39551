"""read_events.py FOLDER: what TensorBoard's own reader finds there, as JSON: {tag: [[step, value], ...]}, and under
"texts" the tags of texts."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import SCALARS, TENSORS, EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={SCALARS: 0, TENSORS: 0})
events.Reload()
found = {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()[SCALARS]}
found["texts"] = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()[TENSORS]}
print(json.dumps(found))
