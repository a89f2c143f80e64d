"""The files of a checkpoint: written durably with their checksum in one pass, read back with suspicion."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

from rl_training.experiment.checkpoint.codec import DTYPE_CODES, Json
from rl_training.utils import safe_files
from rl_training.utils.disk import create_file
from rl_training.utils.errors import CheckpointError

MAX_TENSOR_HEADER: Final = 100_000_000
"""The safetensors format's own limit on its header, in bytes."""


@dataclass(frozen=True)
class FileRecord:
    """What the manifest says about one file."""

    sha256: str
    size: int


def write_bytes(path: Path, chunks: Iterable[bytes | memoryview]) -> FileRecord:
    """Write a new file from ``chunks`` and fsync it; each byte is hashed and written once."""
    digest, size = hashlib.sha256(), 0

    def hashed() -> Iterable[bytes | memoryview]:
        nonlocal size
        for chunk in chunks:
            yield chunk
            digest.update(chunk)
            size += len(chunk)

    create_file(path, hashed())
    return FileRecord(digest.hexdigest(), size)


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> FileRecord:
    """Write contiguous CPU tensors in the safetensors format, straight from their memory.

    The library's own writer would need a second copy of all tensors, or a second pass over the file for the
    checksum; a replay buffer is too large for either.
    """
    # Descending item sizes keep every tensor aligned, as the format asks.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.numel() * tensor.element_size()
        code = DTYPE_CODES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)

    def chunks() -> Iterable[bytes | memoryview]:
        yield len(head).to_bytes(8, "little") + head
        for _, tensor in ordered:
            if tensor.numel():
                flat = tensor.reshape(-1)
                if flat.stride(0) != 1:  # a single value, spread from another: contiguous, but not to a view
                    flat = flat.clone(memory_format=torch.contiguous_format)
                yield flat.view(torch.uint8).numpy().data

    return write_bytes(path, chunks())


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, in memory of their own (the file may be deleted afterwards)."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        header_size = int.from_bytes(file.read(8), "little")
    if size < 8 or header_size > min(size - 8, MAX_TENSOR_HEADER):
        raise CheckpointError(f"{path.name}: a header of {header_size} bytes does not fit a file of {size} bytes")
    try:
        mapped = load_file(path)
    except Exception as error:  # whatever the library has against the file, it is refused
        raise CheckpointError(f"{path.name}: not a valid safetensors file: {str(error)[:300]}") from error
    # The library hands out views of the mapped file, which would fail if the file were cut short later.
    return {name: tensor.clone() for name, tensor in mapped.items()}


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a link, a pipe or a device in its place is damage."""
    try:
        return safe_files.open_regular(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing") from None
    except PermissionError:
        raise
    except safe_files.SpecialFileError as error:
        raise CheckpointError(f"{path.name} {error.strerror}") from None
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be opened: {error.strerror}") from error


def read_limited(path: Path, limit: int) -> bytes:
    """The whole of a small file; longer than ``limit`` bytes is refused before reading."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise CheckpointError(f"{path.name} has {size} bytes, more than the {limit} allowed")
        return file.read(limit)


def sha256_of(path: Path) -> str:
    """Checksum of a file, read in pieces."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(data: bytes, name: str) -> Json:
    """Strict JSON: UTF-8, no NaN or Infinity, no repeated keys, no nesting that exhausts the parser."""

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key occurs twice in one object")
        return result

    def refuse(word: str) -> Json:
        raise ValueError(f"{word} is not JSON")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is not valid JSON: {error}") from error
