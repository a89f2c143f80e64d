"""Looking into a video that was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np


@dataclass(frozen=True)
class Decoded:
    frames: list[np.ndarray[Any, Any]]
    """(H, W, 3) RGB each."""
    fps: float
    codec: str
    pixels: str


def decoded(path: Path) -> Decoded:
    """The whole video, by another way than it was written."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [
            frame.reformat(format="rgb24", src_colorspace="ITU709").to_ndarray()
            if path.suffix == ".mp4"
            else frame.to_ndarray(format="rgb24")
            for frame in container.decode(stream)
        ]
        context = stream.codec_context
        assert stream.average_rate is not None
        return Decoded(frames, float(stream.average_rate), context.name, str(context.pix_fmt))
