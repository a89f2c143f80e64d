"""Numbers that are reported beside an algorithm's own: what callbacks log, and what environments put into their infos."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.envs.contract import StepRecord
from rl_training.runtime.callbacks import Callback
from rl_training.utils.errors import UserError
from rl_training.utils.spaces import Array

if TYPE_CHECKING:
    from rl_training.runtime.trainer import BaseTrainer

RESERVED = ("train/", "time/", "evaluation/", "rollout/")
"""Names of ours begin like this."""


class LoggedMeans:
    """Named numbers, each averaged since the last report."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}  # sum and count

    def add(self, name: str, value: Any, weight: int) -> None:
        if (
            not isinstance(name, str)
            or not name
            or name.startswith(RESERVED)
            or not ("/" in name or name.isidentifier())
        ):
            raise UserError(
                f"log() takes a name such as 'my/name', got {name!r:.100}; {', '.join(RESERVED)} are the trainer's own"
            )
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UserError(f"log({name!r}) takes a number, got {value!r:.100}") from None
        known = self._sums.setdefault(name, [0.0, 0])
        known[0] += number * weight
        known[1] += weight

    def take(self) -> dict[str, float]:
        """The means, and a new beginning."""
        means = {name: total / count for name, (total, count) in self._sums.items()}
        self._sums = {}
        return means

    def state_dict(self) -> dict[str, Any]:
        return {name: list(sums) for name, sums in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums = {str(name): [float(total), int(count)] for name, (total, count) in state.items()}


class LogInfos(Callback):
    """Averages what the environments' infos say under the given keys, as the metrics `info/KEY`."""

    def __init__(self, keys: Sequence[str]):
        self.keys = tuple(keys)
        self.seen: set[str] = set()

    def on_step(self, trainer: BaseTrainer, step: StepRecord) -> None:
        for key in self.keys:
            values = info_values(step, key)
            if len(values):
                self.seen.add(key)
                trainer.log(f"info/{key}", math.fsum(values) / len(values), weight=len(values))

    def on_training_end(self, trainer: BaseTrainer) -> None:
        missing = [key for key in self.keys if key not in self.seen]
        if missing and not trainer.interrupted:
            warnings.warn(f"logging.info_keys: no environment has put {', '.join(missing)} into its info", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": sorted(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = set(state["seen"])


def info_values(step: StepRecord, key: str) -> Array:
    """(M,) what the infos of this step say under `key`; dots lead into infos within infos (`episode.r`).

    Gymnasium's vector environments keep a mask `_key` of those that say it, and, where they reset in the same step, the infos of
    ended episodes apart: beside them is then the info of the reset, which belongs to no step.
    """
    infos, ended = step.infos, step.terminated | step.truncated
    final = infos.get("final_info")
    places = [(infos, step.valid)] if final is None else [(infos, step.valid & ~ended), (final, step.valid & ended)]
    found = [_said(place, key, rows) for place, rows in places]
    return np.concatenate([values for values in found if values is not None] or [np.zeros(0)])


def _said(infos: Any, key: str, rows: Array) -> Array | None:
    *path, last = key.split(".")
    for name in path:
        infos = infos.get(name) if isinstance(infos, Mapping) else None
    if not isinstance(infos, Mapping) or last not in infos:
        return None
    values = np.asarray(infos[last])
    if values.shape != rows.shape:
        raise UserError(
            f"logging.info_keys: {key!r} is not one number per environment, but has the shape {values.shape}"
        )
    rows = rows & np.asarray(infos.get(f"_{last}", True))
    try:
        return values[rows].astype(np.float64)
    except (TypeError, ValueError):
        raise UserError(f"logging.info_keys: {key!r} is not a number, but {values[rows][0]!r:.100}") from None
