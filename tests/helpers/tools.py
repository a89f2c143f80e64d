"""What several tests do with state trees."""

from __future__ import annotations

import json
from typing import Any

from rl_training.experiment.checkpoint.codec import decode, encode


def through_codec(tree: Any) -> Any:
    """The tree after a trip through the real codec and real JSON."""
    value, tensors = encode(tree)
    text = json.dumps(value, allow_nan=False)
    return decode(json.loads(text), {name: tensor.clone() for name, tensor in tensors.items()})
