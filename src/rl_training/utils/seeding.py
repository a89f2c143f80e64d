"""One seed, many independent streams: each part of a run draws from its own generator. Free of torch."""

from __future__ import annotations

import zlib

import numpy as np


def derive_seed(seed: int, *path: str | int) -> int:
    """A 31-bit seed for the stream named by `path`, e.g. derive_seed(7, "env", 3).

    Streams of different names are independent (NumPy's SeedSequence), and adding a stream changes no other.
    """
    key = tuple(zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path)
    return int(np.random.SeedSequence(entropy=seed, spawn_key=key).generate_state(1)[0] >> 1)
