"""Seeded damage: bytes, JSON and state trees, files and their kinds. The same seed always does the same."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
EVIL_ENV = "axiomrl_fuzz_canary:Env-v0"
"""An environment id whose module would be imported if anybody asked Gymnasium for it unchecked."""
_TEXTS = (
    "",
    "x",
    ESCAPES,
    "=1+1",
    "../../../etc/passwd",
    "/dev/zero",
    EVIL_ENV,
    "\ud800",
    "nan",
    "1e999",
    "$tensor",
    "a" * 5000,
)
_NUMBERS = (0, 1, -1, 2, 7, 255, 2**31, 2**53, 2**63, 2**64, -(2**63), 2**200, 10**15, 0.5, -0.0, 1e308, -1e308, 1e-320)
_TOKENS = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 400,
    b"9" * 5000,
    b"[" * 300,
    b"{" * 40,
    b"null",
    b'"',
    b"\\",
    b"\xff\xfe",
    b"\0",
    b"\n",
)
_DTYPES = (np.float64, np.float32, np.int64, np.uint8, np.bool_)


def odd_value(rng: random.Random, *, arrays: bool = False) -> Any:
    """A value that nobody expects; with `arrays`, also tensors and arrays."""
    kind = rng.randrange(9 if arrays else 7)
    if kind == 0:
        return rng.choice((None, True, False, [], {}, float("inf"), float("-inf"), float("nan")))
    if kind <= 2:
        return rng.choice(_NUMBERS)
    if kind == 3:
        return rng.choice(_TEXTS)
    if kind == 4:
        return [rng.choice(_NUMBERS) for _ in range(rng.choice((1, 3, 200)))]
    if kind == 5:
        value: Any = rng.choice(_NUMBERS)
        for _ in range(rng.choice((2, 30, 60))):
            value = [value] if rng.random() < 0.5 else {"a": value}
        return value
    if kind == 6:
        return {rng.choice(("a", "step", "kind", ESCAPES)): rng.choice(_TEXTS) for _ in range(3)}
    shape = rng.choice(((), (0,), (1,), (3,), (2, 4), (5, 5, 5)))
    array = np.zeros(shape, dtype=rng.choice(_DTYPES))
    return array if kind == 7 else torch.from_numpy(array)


def mutate_tree(tree: Any, rng: random.Random, *, arrays: bool = False) -> Any:
    """The tree (dicts, lists, leaves) with one to three places changed, in place where it can be."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = _places(tree) if isinstance(tree, dict | list) else []
        if not places or rng.random() < 0.01:
            return odd_value(rng, arrays=arrays)
        container, key = rng.choice(places)
        _mutate_place(container, key, rng, arrays)
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting and len(found) < 5000:
        container = waiting.pop()
        items = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
        found += [(container, key) for key, _ in items[:200]]
        waiting += [value for _, value in items[:200] if isinstance(value, dict | list) and value]
    return found


def _mutate_place(container: Any, key: Any, rng: random.Random, arrays: bool) -> None:
    value, action = container[key], rng.random()
    if isinstance(value, np.ndarray | torch.Tensor) and action < 0.75:
        container[key] = _mutate_array(value, rng)
    elif isinstance(value, bool) and action < 0.3:
        container[key] = not value
    elif isinstance(value, int | float) and action < 0.5:
        container[key] = rng.choice(
            (-value, value + 1, value - 1, value * 2, value * 10**6, float(value), -1 - abs(value))
        )
    elif isinstance(value, list) and value and action < 0.4:
        container[key] = rng.choice(
            (value[:-1], value * 2, value[::-1], [*value, odd_value(rng)], value[0], value * 50)
        )
    elif isinstance(container, dict) and action < 0.6:
        del container[key]
        if rng.random() < 0.3:
            container[f"{key}{rng.choice(('_', ESCAPES, '.x'))}"] = value
    else:
        container[key] = odd_value(rng, arrays=arrays)


def _mutate_array(value: Any, rng: random.Random) -> Any:
    array = value.detach().cpu().numpy().copy() if isinstance(value, torch.Tensor) else value.copy()
    action = rng.randrange(8)
    if action == 0:
        array = array[:-1] if array.ndim else array
    elif action == 1:
        array = np.concatenate([array, array]) if array.ndim else array
    elif action == 2:
        array = array.astype(rng.choice(_DTYPES))
    elif action == 3:
        array = array.reshape(-1)
    elif action == 4:
        array = array[None]
    elif action == 5 and array.dtype.kind == "f":
        array = np.full_like(array, rng.choice((np.nan, np.inf, 1e30, -1.0)))
    elif action == 6 and array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(array.dtype)
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice((limits.min, limits.max, limits.max // 2))
    elif array.size:
        raw = np.frombuffer(array.tobytes(), dtype=np.uint8).copy()
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        if array.dtype != np.bool_:
            array = raw.view(array.dtype).reshape(array.shape).copy()
    array = np.ascontiguousarray(array) if array.ndim else array
    return torch.from_numpy(array) if isinstance(value, torch.Tensor) else array


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """The data with a few bytes changed, cut, doubled or put in."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(data) + 1)
        action = rng.randrange(6)
        if action == 0 and place < len(data):
            data = data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        elif action == 1:
            data = data[:place]
        elif action == 2:
            data = data[:place] + rng.choice(_TOKENS) + data[place:]
        elif action == 3:
            data = data[:place] + data[place + rng.randrange(1, 30) :]
        elif action == 4:
            data = data[:place] + data[max(0, place - 60) :]
        else:
            data = data[:place] + rng.randbytes(rng.choice((1, 8, 200))) + data[place:]
    return data


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """A JSON document changed as a tree, or as bytes."""
    try:
        tree = json.loads(data) if rng.random() > 0.35 else None
    except (ValueError, RecursionError):  # damaged before
        tree = None
    return mutate_bytes(data, rng) if tree is None else json.dumps(mutate_tree(tree, rng)).encode()


def mutate_lines(data: bytes, rng: random.Random) -> bytes:
    """JSON lines with some of them changed, doubled, moved or cut."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 2, 4))):
        place = rng.randrange(len(lines))
        action = rng.randrange(5)
        if action == 0:
            lines[place] = mutate_bytes(lines[place], rng)
        elif action == 1 and lines[place].strip():
            try:
                lines[place] = json.dumps(mutate_tree(json.loads(lines[place]), rng)).encode()
            except (ValueError, RecursionError):  # damaged before
                lines[place] = b""
        elif action == 2:
            lines.insert(place, rng.choice(lines))
        elif action == 3:
            lines.insert(place, rng.choice(_TOKENS))
        else:
            lines = lines[:place] or lines
    return b"\n".join(lines)


def mutate_yaml(text: str, rng: random.Random) -> bytes:
    """A config with some values, keys or bytes changed."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(lines))
        key, colon, _ = lines[place].partition(":")
        action = rng.randrange(6)
        if action <= 2 and colon:
            lines[place] = f"{key}: {_yaml_value(rng)}"
        elif action == 3:
            lines.insert(place, rng.choice(lines))
        elif action == 4:
            del lines[place]
            lines = lines or ["x: 1"]
        else:
            return mutate_bytes("\n".join(lines).encode("utf-8", "replace"), rng)
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _yaml_value(rng: random.Random) -> str:
    value = odd_value(rng)
    odd = (
        "{start: 1, end: .nan}",
        "!!python/object/apply:os.system ['true']",
        "&a [*a]",
        "0x" + "f" * 500,
        "1e400",
        ".inf",
        "[" * 80,
    )
    return rng.choice(odd) if rng.random() < 0.25 else json.dumps(value)


def make_special(path: Path, rng: random.Random) -> None:
    """Puts a pipe, a link or a folder in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    action = rng.randrange(5)
    if action == 0:
        os.mkfifo(path)
    elif action == 1:
        path.symlink_to(rng.choice(("/dev/zero", "/etc/hostname", "nowhere", path.name, "..")))
    elif action == 2:
        path.mkdir()
    elif action == 3:
        path.write_bytes(b"")
