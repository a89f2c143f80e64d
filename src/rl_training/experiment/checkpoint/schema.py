"""Whether a saved state fits the run that is to go on from it: one walk over the whole tree, before anything is restored.

The schema is the run's own state, as its freshly built parts give it: types, dtypes and shapes must be the same. Where a
running training differs by nature from a fresh one (episode statistics grow, a maximum is None at first), `_RULES` says what may
stand there instead, and within which range. A key that is missing is noticed by the part that loads it, which may know what to do
without it; one that no part asks for does nothing. Checksums show damage; this shows a tree that somebody made by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.replay_ring import WORTHLESS, has_final
from rl_training.experiment.checkpoint.values import (
    MAX_WORD,
    described,
    fit_array,
    fit_keys,
    fit_number,
    fit_rows,
    fit_whole,
    require,
    shape_text,
)
from rl_training.runtime.trainer import BaseTrainer, CollectingTrainer, OffPolicyTrainer
from rl_training.utils.printable import quoted
from rl_training.utils.safe_files import MAX_INT
from rl_training.utils.spaces import ActionAdapter

MAX_COUNT: Final = MAX_INT // 2
"""Largest counter: sums of two still fit 64 bits."""
_TWISTER_WORDS: Final = 624

Rule = Callable[[Any, Any, str, int], None]
"""(found, expected, path, number of environments that were saved)."""


def check_algorithm(saved: Any, algorithm: Algorithm[Any, Any]) -> None:
    """Compares the saved state of an update rule with its own; of a rule that is not ours, only what ours have too."""
    own = algorithm.state_dict()
    if not _ours(algorithm):
        own = {key: own[key] for key in ("optimizers", "generator") if key in own}
    _fit(saved, own, "algorithm", 0)


def check_runtime(saved: Any, trainer: BaseTrainer) -> None:
    """Compares the saved state of the training loop, its collector and its environments with the trainer's own."""
    saved_envs = _saved_envs(saved)
    _fit(saved, _fresh_state(trainer), "runtime", saved_envs)
    if isinstance(trainer, CollectingTrainer) and saved_envs != trainer.num_envs:
        envs = saved["collector"]["envs"]
        if (envs["envs"] or {}).get("kind") != "replay":
            envs["envs"] = None  # all environments in one state, of another number of them: fresh episodes
    require(saved["previous_step"] <= saved["global_step"], "runtime.previous_step", "is beyond global_step")
    if isinstance(trainer, OffPolicyTrainer):
        config = trainer.algorithm.config
        most = config.gradient_steps * (trainer.num_envs // config.train_frequency + 1)
        require(0 <= saved["due"] <= most, "runtime.due", f"must be 0 to {most:,} updates, got {quoted(saved['due'])}")


def check_replay(saved: Any, buffer: ReplayBuffer, adapter: ActionAdapter) -> None:
    """Compares a saved replay buffer, its head and all its rows, with an empty one; bounds belong to what is there."""
    fit_keys(saved, ("head", "rows"), "replay")
    head, rows = saved["head"], saved["rows"]
    _fit(head, buffer.head_state(), "replay.head", 0)
    _ended(head["last_flags"], head["last_final_obs"], "replay.head.last_final_obs")
    if head["priorities"] is not None:
        leaves, largest = head["priorities"]["leaves"], head["priorities"]["max"]
        sound = bool(np.isfinite(leaves).all() and (leaves >= 0).all()) and math.isfinite(largest) and largest > 0
        require(sound, "replay.head.priorities", "must be finite and not negative")
    require(isinstance(rows, list), "replay.rows", f"expected a list, got {described(rows)}")
    empty = buffer.export_rows(buffer.counts, buffer.counts)
    for number, part in enumerate(rows):
        path = f"replay.rows.{number}"
        _fit(part, empty, path, 0)
        start, stop = part["start"], part["stop"]
        sound = bool((start >= 0).all() and (stop >= start).all() and (stop <= MAX_COUNT).all())
        require(sound, path, "its steps must be from 0 on, and not end before they start")
        count = int((stop - start).sum())
        for key in ("obs", "actions", "rewards", "ages", "flags"):
            fit_rows(part[key], count, f"{path}.{key}")
        _actions(part["actions"], adapter, f"{path}.actions")
        _ended(part["flags"], part["final_obs"], f"{path}.final_obs")
        _ended(part["flags_before"], part["final_obs_before"], f"{path}.final_obs_before")


def _fit(found: Any, expected: Any, path: str, saved_envs: int) -> None:
    """Raises Misfit at the first place where `found` is of another form than `expected`."""
    rule = _rule(path)
    if rule is not None:
        rule(found, expected, path, saved_envs)
    elif isinstance(expected, Mapping):
        require(isinstance(found, dict), path, f"expected a mapping, got {described(found)}")
        for key in expected.keys() & found.keys():
            _fit(found[key], expected[key], f"{path}.{key}", saved_envs)
    elif isinstance(expected, list | tuple):
        require(
            type(found) is type(expected) and len(found) == (len(expected) or len(found)),
            path,
            f"expected {len(expected)} values in a {type(expected).__name__}, got {described(found)}",
        )
        for index, value in enumerate(expected):
            _fit(found[index], value, f"{path}.{index}", saved_envs)
    elif isinstance(expected, Tensor | np.ndarray):
        fit_array(found, expected, path, tuple(expected.shape))
    elif isinstance(expected, str):
        require(found == expected, path, f"expected {expected!r}, got {quoted(found)}")
    elif isinstance(expected, bool):
        require(isinstance(found, bool), path, f"expected true or false, got {described(found)}")
    elif expected is None:
        return  # nothing yet, in a part that has no rule: what loads it says what it may be
    elif isinstance(expected, int):
        fit_whole(found, path, -MAX_WORD, MAX_WORD)
    else:
        fit_number(found, expected, path, saved_envs)


# Rules: what may stand where a running training differs from a fresh one ------------------------------------------------


def _count(found: Any, expected: Any, path: str, _: int) -> None:
    fit_whole(found, path, 0, MAX_COUNT)


def _place(found: Any, expected: Any, path: str, _: int) -> None:
    """A step, or a mark that there was none yet."""
    if found is not None:
        fit_whole(found, path, -1, MAX_COUNT)


def _places(found: Any, expected: Any, path: str, _: int) -> None:
    """Steps by the names of a run's own files, and of no others."""
    fit_keys(found, expected, path)
    for name, place in found.items():
        _place(place, 0, f"{path}.{name}", 0)


def _seconds(found: Any, expected: Any, path: str, _: int) -> None:
    fit_number(found, expected, path, 0)
    require(math.isfinite(found) and found >= 0, path, f"expected seconds, got {quoted(found)}")


def _optional_number(found: Any, expected: Any, path: str, _: int) -> None:
    if found is not None:
        fit_number(found, expected, path, 0)


def _numbers(found: Any, expected: Any, path: str, _: int) -> None:
    require(isinstance(found, list), path, f"expected a list of numbers, got {described(found)}")
    for index, item in enumerate(found):
        fit_number(item, 0.0, f"{path}.{index}", 0)


def _counts(found: Any, expected: Any, path: str, _: int) -> None:
    require(isinstance(found, list), path, f"expected a list of whole numbers, got {described(found)}")
    for index, item in enumerate(found):
        _count(item, 0, f"{path}.{index}", 0)


def _scalars(found: Any, expected: Any, path: str, _: int) -> None:
    """Metrics by name, which appear with the first update."""
    require(isinstance(found, dict), path, f"expected metrics by name, got {described(found)}")
    for name, value in found.items():
        fit_array(value, torch.zeros(()), f"{path}.{name}", ())


def _random_bytes(found: Any, expected: Any, path: str, _: int) -> None:
    """A generator's state; whether it is one, the generator itself says."""
    fit_array(found, torch.zeros(0, dtype=torch.uint8), path, (None,))


def _list_of_random_bytes(found: Any, expected: Any, path: str, _: int) -> None:
    require(isinstance(found, list), path, f"expected a list, got {described(found)}")
    for index, item in enumerate(found):
        _random_bytes(item, None, f"{path}.{index}", 0)


def _position(found: Any, expected: Any, path: str, _: int) -> None:
    """NumPy does not look at it, and would read beyond the generator's memory."""
    fit_whole(found, path, 0, _TWISTER_WORDS)


def _per_env(found: Any, expected: Any, path: str, saved_envs: int) -> None:
    """One row for each environment that was saved, which need not be as many as there are now."""
    if isinstance(expected, Mapping):
        fit_keys(found, expected, path)
        for key, value in expected.items():
            _per_env(found[key], value, f"{path}.{key}", saved_envs)
    elif isinstance(expected, list | tuple):
        require(
            type(found) is type(expected) and len(found) == len(expected),
            path,
            f"expected {described(expected)}, got {described(found)}",
        )
        for index, value in enumerate(expected):
            _per_env(found[index], value, f"{path}.{index}", saved_envs)
    elif expected is None:
        require(found is None, path, f"expected nothing, got {described(found)}")
    else:
        fit_array(found, expected, path, (saved_envs, *expected.shape[1:]))


def _optional_per_env(found: Any, expected: Any, path: str, saved_envs: int) -> None:
    """Floats for each environment, from the first step on."""
    if found is not None:
        fits = isinstance(found, Tensor) and found.is_floating_point() and found.ndim >= 1
        require(fits, path, f"expected numbers for each environment, got {described(found)}")
        require(not saved_envs or len(found) == saved_envs, path, f"expected {saved_envs} rows, got {len(found)}")


def _observations(found: Any, expected: Any, path: str, saved_envs: int) -> None:
    """As environments give them, which need not have the exact dtype of their space."""
    if isinstance(expected, Mapping):
        fit_keys(found, expected, path)
        for key, value in expected.items():
            _observations(found[key], value, f"{path}.{key}", saved_envs)
    elif expected is not None:
        shape = (saved_envs, *expected.shape[1:])
        fits = isinstance(found, np.ndarray) and found.shape == shape and found.dtype.kind in "biuf"
        require(fits, path, f"expected {expected.dtype} {shape_text(shape)}, got {described(found)}")


def _environments(found: Any, expected: Any, path: str, saved_envs: int) -> None:
    """Whatever the environments export, which restoring them verifies; but for what could break later, or read foreign memory."""
    require(found is None or isinstance(found, dict), path, f"expected a mapping, got {described(found)}")
    _check_generators(found, path)
    states = found.get("envs") if isinstance(found, dict) and found.get("kind") == "replay" else None
    for index, state in enumerate(states if isinstance(states, list) else []):
        where = f"{path}.envs.{index}"
        if state is None:
            continue
        require(isinstance(state, dict), where, f"expected an environment's state, got {described(state)}")
        fit_number(state.get("return"), 0.0, f"{where}.return", 0)
        require(isinstance(state.get("done"), bool), f"{where}.done", "expected true or false")
        _counts(state.get("elapsed", []), [], f"{where}.elapsed", 0)
        actions = state.get("actions")
        require(actions is None or isinstance(actions, np.ndarray), f"{where}.actions", "expected an array")


def _check_generators(tree: Any, path: str) -> None:
    if isinstance(tree, dict):
        for key in ("pos", "position", "buffer_pos"):
            if key in tree and tree.keys() & {"key", "keys", "buffer"}:
                _position(tree[key], 0, f"{path}.{key}", 0)
        for key, value in tree.items():
            _check_generators(value, f"{path}.{key}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            _check_generators(value, f"{path}.{index}")


def _callbacks(found: Any, expected: Any, path: str, saved_envs: int) -> None:
    """Callbacks that are new start fresh, those that are gone are forgotten; a key that is new in ours may be missing."""
    require(isinstance(found, dict), path, f"expected a state for each callback, got {described(found)}")
    for name in expected.keys() & found.keys():
        state = found[name]
        require(isinstance(state, dict), f"{path}.{name}", f"expected a mapping, got {described(state)}")
        for key in expected[name].keys() & state.keys():
            _fit(state[key], expected[name][key], f"{path}.{name}.{key}", saved_envs)


def _named_numbers(found: Any, expected: Any, path: str, _: int) -> None:
    require(isinstance(found, dict), path, f"expected numbers by name, got {described(found)}")
    for key, value in found.items():
        _optional_number(value, 0.0, f"{path}.{key}", 0)


def _optional_text(found: Any, expected: Any, path: str, _: int) -> None:
    require(found is None or isinstance(found, str), path, f"expected text, got {described(found)}")


def _checked_by_its_reader(found: Any, expected: Any, path: str, _: int) -> None:
    """`EvaluationResult.from_state` turns every value into what it must be."""


def _rollout(found: Any, expected: Any, path: str, _: int) -> None:
    """A rollout that waits to be learned from: all of its parts are as long as its rewards."""
    if found is None:
        return
    require(isinstance(found, dict), path, f"expected a rollout, got {described(found)}")
    rewards, index = found.get("rewards"), found.get("final_index")
    require(isinstance(rewards, Tensor) and rewards.ndim == 2, f"{path}.rewards", f"got {described(rewards)}")
    if index is not None:
        fits = isinstance(index, Tensor) and index.ndim == 1 and index.dtype == torch.int64
        fits = fits and (not len(index) or (int(index.min()) >= 0 and int(index.max()) < rewards.numel()))
        require(fits, f"{path}.final_index", "must be places in the rollout")
        fit_rows(found.get("final_obs"), len(index), f"{path}.final_obs")


def _rows(found: Any, expected: Any, path: str, _: int) -> None:
    """Stored steps: as many as there are, each of the buffer's own form."""
    if isinstance(expected, Mapping):
        fit_keys(found, expected, path)
        for key, value in expected.items():
            _rows(found[key], value, f"{path}.{key}", 0)
    elif expected is None:
        require(found is None, path, f"expected nothing, got {described(found)}")
    else:
        fit_array(found, expected, path, (None, *expected.shape[1:]))


_RULES: dict[str, Rule] = {
    "algorithm.generator": _random_bytes,
    "algorithm.running_returns": _optional_per_env,
    "algorithm.actor_metrics": _scalars,
    "algorithm.updates": _count,
    "runtime.global_step": _count,
    "runtime.previous_step": _count,
    "runtime.iterations": _count,
    "runtime.resume_count": _count,
    "runtime.due": _count,
    "runtime.stop_reason": _optional_text,
    "runtime.metrics": _named_numbers,
    "runtime.last_evaluation": _checked_by_its_reader,
    "runtime.timer.elapsed": _seconds,
    "runtime.waiting": _rollout,
    "runtime.callbacks": _callbacks,
    "runtime.callbacks.*.best": _optional_number,
    "runtime.callbacks.*.waited": _count,
    "runtime.callbacks.*.*_step": _place,
    "runtime.callbacks.*.latest": _named_numbers,
    "runtime.callbacks.*.written": _places,
    "runtime.global_random.python.gauss": _optional_number,
    "runtime.global_random.numpy.position": _position,
    "runtime.global_random.torch": _random_bytes,
    "runtime.global_random.cuda": _list_of_random_bytes,
    "runtime.collector.generator": _random_bytes,
    "runtime.collector.statistics.returns": _numbers,
    "runtime.collector.statistics.lengths": _counts,
    "runtime.collector.statistics.episodes": _count,
    "runtime.collector.statistics.running_*": _per_env,
    "runtime.collector.acting_state": _per_env,
    "runtime.collector.explorer.noise.state": _optional_per_env,
    "runtime.collector.envs.obs": _observations,
    "runtime.collector.envs.awaiting_reset": _per_env,
    "runtime.collector.envs.envs": _environments,
    "replay.head.last_final_obs": _rows,
    "replay.rows.*.obs": _rows,
    "replay.rows.*.actions": _rows,
    "replay.rows.*.rewards": _rows,
    "replay.rows.*.ages": _rows,
    "replay.rows.*.flags": _rows,
    "replay.rows.*.final_obs*": _rows,
}


def _rule(path: str) -> Rule | None:
    for pattern, rule in _RULES.items():
        if path.count(".") == pattern.count(".") and fnmatchcase(path, pattern):  # a * stays within one part
            return rule
    return None


# Helpers ---------------------------------------------------------------------------------------------------------------


def _fresh_state(trainer: BaseTrainer) -> dict[str, Any]:
    """The trainer's own state before its first step; callbacks that are not ours may have none to give before they start."""
    callbacks = trainer.callbacks
    trainer.callbacks = [callback for callback in callbacks if _ours(callback)]
    try:
        return trainer.state_dict()
    finally:
        trainer.callbacks = callbacks


def _ours(part: object) -> bool:
    return type(part).__module__.startswith("rl_training.")


def _saved_envs(saved: Any) -> int:
    """How many environments were saved; 0 for a run that has none."""
    found = saved
    for key in ("collector", "envs", "awaiting_reset"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return len(found) if isinstance(found, np.ndarray) and found.ndim == 1 else 0


def _ended(flags: np.ndarray, final_obs: Any, path: str) -> None:
    """A final observation for each step that ended an episode."""
    require(bool((flags <= WORTHLESS).all()), path, "there is an unknown kind of end")
    fit_rows(final_obs, int(np.count_nonzero(has_final(flags))), path)


def _actions(actions: Tensor, adapter: ActionAdapter, path: str) -> None:
    """Numbered actions are used as indices."""
    if adapter.choices is not None and actions.numel():
        choices = torch.from_numpy(np.asarray(adapter.choices)).to(actions.device)
        require(bool((actions >= 0).all() and (actions < choices).all()), path, "there is no such action")
