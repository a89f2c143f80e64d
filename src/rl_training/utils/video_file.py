"""A video on disk, encoded frame by frame: H.264 in an .mp4 that browsers play, or a .gif."""

from __future__ import annotations

import importlib.util
import os
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from rl_training.utils.disk import fsync_folder, write_all, writing
from rl_training.utils.errors import UserError
from rl_training.utils.safe_files import require_replaceable

if TYPE_CHECKING:
    from av import VideoFrame as AvFrame
    from av.container import OutputContainer
    from av.video.reformatter import VideoReformatter
    from av.video.stream import VideoStream

FORMATS = (".mp4", ".gif")
MAX_SIDE = {".mp4": 1280, ".gif": 960}
"""Pixels; a larger picture is scaled down: a grid of nine stays quick to encode and small to send."""
GIF_FPS = 50
"""Browsers play a .gif that asks for more at a tenth of that."""
_PACKAGES = {"av": "av", "PIL": "pillow"}
_OPTIONS: dict[str, object] = {
    "crf": "23",
    "preset": "veryfast",
    "threads": "1",  # training has the others
    "x264-params": "mbtree=0",  # reads memory that nobody wrote, so that the same frames became other bytes now and then
}


def require_encoder() -> None:
    """UserError with the command to type where the packages that encode are not installed."""
    for module, package in _PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            raise UserError(f'videos need the package {package}, which is not installed: pip install "axiomrl[video]"')


def check_video_path(path: Path, option: str = "--video") -> None:
    """UserError for a name that no video can be written under."""
    if path.suffix not in FORMATS:
        raise UserError(f"a video ends in {' or '.join(FORMATS)}, got {path}")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} for the video {path.name}: make it first")
    require_replaceable(path, option)


class VideoFile:
    """Takes frames one at a time and keeps none. The file gets its name when it is whole; until then, and after an error, what
    was there before stays."""

    def __init__(self, path: Path, fps: float):
        require_encoder()
        self.path, self.frames = path, 0
        self.fps = min(fps, GIF_FPS) if path.suffix == ".gif" else fps
        self._temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
        self._output: _Output | None = None
        self._container: OutputContainer
        self._stream: VideoStream
        self._reformatter: VideoReformatter

    def write(self, frame: npt.NDArray[np.uint8]) -> None:
        """(H, W, 3) RGB, each time of the same even size."""
        import av

        with writing(self.path):
            if self._output is None:
                self._open(*frame.shape[:2])
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            self._encode(self._palette(picture) if self.path.suffix == ".gif" else self._scaled(picture, "yuv420p"))
        self.frames += 1

    def finish(self) -> None:
        """The rest of the video, and its name."""
        assert self._output is not None, "a video has at least one frame"
        with writing(self.path):
            self._encode(None)
            self._container.close()
            os.fsync(self._output.descriptor)
            os.close(self._output.descriptor)
            self._output = None
            self._temporary.replace(self.path)
            fsync_folder(self.path.parent)

    def discard(self) -> None:
        """Leaves nothing behind; without effect on a video that is whole."""
        if self._output is not None:
            self._output.dead = True  # the encoder writes its last words as it closes
            with suppress(Exception):
                self._container.close()
            os.close(self._output.descriptor)
            self._output = None
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None and self._output is not None:
                self.finish()
        finally:
            self.discard()

    def _open(self, height: int, width: int) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self._temporary.unlink(missing_ok=True)
        self._output = _Output(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        name = self.path.suffix[1:]
        options = {"movflags": "+faststart"} if name == "mp4" else {"loop": "0"}
        # Moving the index to the front, for which `faststart` stands, reads the file once more.
        reopen = lambda url, flags, options: _Input(self._temporary, os.O_RDONLY)  # noqa: E731
        self._container = av.open(self._output, "w", format=name, options=options, io_open=reopen)
        self._reformatter = VideoReformatter()  # kept, because setting one up takes longer than a frame
        rate = Fraction(self.fps).limit_denominator(1000)
        self._stream = self._container.add_stream("libx264" if name == "mp4" else "gif", rate=rate)
        shrink = min(1.0, MAX_SIDE[self.path.suffix] / max(height, width))
        self._stream.width, self._stream.height = (2 * round(side * shrink / 2) or 2 for side in (width, height))
        if name == "gif":
            self._stream.pix_fmt = "rgb8"
            return
        self._stream.pix_fmt = "yuv420p"  # what every browser decodes
        self._stream.options = {**_OPTIONS}
        context = self._stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = 1  # BT.709
        context.color_range = 1

    def _scaled(self, picture: AvFrame, pixels: str) -> AvFrame:
        colours: dict[str, Any] = {"dst_colorspace": "ITU709", "dst_color_range": "MPEG"} if pixels == "yuv420p" else {}
        return self._reformatter.reformat(picture, self._stream.width, self._stream.height, pixels, **colours)

    def _palette(self, picture: AvFrame) -> AvFrame:
        """Three bits of red, three of green, two of blue. The library would dither them, and noise does not compress."""
        import av

        red, green, blue = np.moveaxis(self._scaled(picture, "rgb24").to_ndarray(), 2, 0)
        return av.VideoFrame.from_ndarray(red & 0xE0 | green >> 3 & 0x1C | blue >> 6, format="rgb8")

    def _encode(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)


class _Output:
    """The file as the encoder sees it: written by the calls of `os`, so that a full disk is an OSError that says so."""

    def __init__(self, path: Path, flags: int):
        self.name = str(path)
        self.dead = False
        self.descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    def write(self, data: bytes) -> int:
        if not self.dead:
            write_all(self.descriptor, data)
        return len(data)

    def read(self, size: int) -> bytes:
        return os.read(self.descriptor, size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return 0 if self.dead else os.lseek(self.descriptor, offset, whence)

    def tell(self) -> int:
        return os.lseek(self.descriptor, 0, os.SEEK_CUR)


class _Input(_Output):
    """The same file, read beside; the encoder closes what it has opened itself."""

    def close(self) -> None:
        os.close(self.descriptor)
