"""One checkpoint on disk: a folder that is either complete and verified, or not there.

It holds ``state.json`` (the caller's info and the state trees), one ``<group>.safetensors`` for each group
that has tensors, and ``manifest.json`` (format version, size and sha256 of each file, and a checksum of the
manifest itself). It is written under a temporary name beside its place, fsynced and renamed, so a crash at
any instant leaves the old state or the new one. Reading runs no code from the files and trusts nothing in
them.
"""

import hashlib
import json
import re
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from rl_training.experiment.checkpoint.codec import Json, Tree, decode, encode
from rl_training.experiment.checkpoint.files import (
    FileRecord,
    parse_json,
    read_limited,
    read_tensors,
    sha256_of,
    write_bytes,
    write_tensors,
)
from rl_training.utils import failpoints
from rl_training.utils.disk import alone_in, fsync_folder, sibling, standing_in, sweep, writing
from rl_training.utils.errors import CheckpointError, UserError

FORMAT_VERSION: Final = 1
FORMAT_NAME: Final = "axiomrl-checkpoint"
MANIFEST: Final = "manifest.json"
STATE: Final = "state.json"
MAX_MANIFEST_BYTES: Final = 2**20
MAX_STATE_BYTES: Final = 2**28

_GROUP_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TENSOR_FILE = re.compile(r"([a-z][a-z0-9_]{0,63})\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class FormatVersionError(CheckpointError):
    """A sound checkpoint in a format that this version does not read: refused, never treated as damaged."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: the caller's ``info``, the state trees by group, and the folder."""

    info: dict[str, Any]
    groups: dict[str, Any]
    path: Path


MIGRATIONS: dict[int, Callable[[Checkpoint], Checkpoint]] = {}
"""For each older format version the function that turns its content into the next version's.

Whatever a later format changes, the manifest keeps ``format``, ``version`` and its own ``sha256``.
"""


def write_checkpoint(folder: Path, groups: Mapping[str, Tree], info: Mapping[str, Json]) -> None:
    """Write ``groups`` (state trees by name, e.g. ``policy``) and ``info`` as the checkpoint ``folder``.

    An existing checkpoint of that name is replaced; any other folder or file is left alone with an error.
    """
    folder = Path(folder).resolve()
    document: dict[str, Json] = {"info": _encode_info(info), "groups": {}}
    tensors = {}
    for name, tree in groups.items():
        if not _GROUP_NAME.fullmatch(name):
            raise CheckpointError(f"{name!r} is not a group name: use small letters, digits and underscores")
        document["groups"][name], tensors[name] = encode(tree, name)
    state = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    if len(state) > MAX_STATE_BYTES:
        raise CheckpointError(f"the state has {len(state)} bytes of JSON; keep long lists as arrays or tensors")

    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(folder.parent):
            sweep(folder.parent, folder.name)
            _check_replaceable(folder)
            temporary = sibling("tmp", folder)
            try:
                _write_files(temporary, tensors, state)
                _put_in_place(temporary, folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


def _write_files(temporary: Path, tensors: Mapping[str, dict[str, Tensor]], state: bytes) -> None:
    temporary.mkdir()
    files: dict[str, FileRecord] = {}
    for name, group_tensors in tensors.items():
        if group_tensors:
            hit()
            files[f"{name}.safetensors"] = write_tensors(temporary / f"{name}.safetensors", group_tensors)
    hit()
    files[STATE] = write_bytes(temporary / STATE, [state])
    hit()
    write_bytes(temporary / MANIFEST, [_manifest_text(files)])
    hit()
    fsync_folder(temporary)


def read_checkpoint(folder: Path, groups: Collection[str] | None = None) -> Checkpoint:
    """Verify and read a checkpoint; with ``groups``, only those (an empty collection: the info alone).

    The presence and size of every file are checked, and the checksums of all files that are read, before
    anything but the manifest is parsed. Raises CheckpointError with the file and the cause.
    """
    folder = standing_in(Path(folder))
    try:
        if not folder.is_dir():
            raise UserError(f"there is no checkpoint folder {folder}")
        return _read_verified(folder, groups)
    except CheckpointError as error:
        raise type(error)(f"checkpoint {folder}: {error}") from error
    except PermissionError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror}") from error
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder}: {error.strerror}") from error


def hit() -> None:
    """Every boundary at which a crash or a full disk is tested."""
    failpoints.hit("checkpoint.write")


def _encode_info(info: Mapping[str, Json]) -> Json:
    encoded, tensors = encode(dict(info), "info")
    if tensors:
        raise CheckpointError(f"cannot save info.{next(iter(tensors))}: tensors belong in a group")
    return encoded


def _manifest_text(files: Mapping[str, FileRecord]) -> bytes:
    records = {name: {"sha256": record.sha256, "size": record.size} for name, record in files.items()}
    manifest: dict[str, Json] = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "files": records}
    manifest["sha256"] = _manifest_checksum(manifest)
    return json.dumps(manifest, indent=2).encode()  # no newline at the end: every lost byte is noticed


def _manifest_checksum(manifest: Mapping[str, Json]) -> str:
    """Over the content, not the layout. Without it one flipped bit could pass for a newer format version."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another name for the checkpoint folder")
    names = sorted(entry.name for entry in folder.iterdir())
    ours = all(name in (MANIFEST, STATE) or _TENSOR_FILE.fullmatch(name) for name in names)
    if names and not (ours and MANIFEST in names):
        raise UserError(f"{folder} exists and is not a checkpoint (it holds {names[0]}); choose another name")


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Rename the finished folder to its name; a predecessor stays beside it until that is durable."""
    hit()
    replaced = sibling("old", folder) if folder.exists() else None
    if replaced is not None:
        folder.rename(replaced)
    try:
        hit()
        temporary.rename(folder)
    except BaseException:
        if replaced is not None and not folder.exists():
            replaced.rename(folder)
        raise
    hit()
    fsync_folder(folder.parent)
    hit()
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)  # what remains is swept later
    hit()


def _read_verified(folder: Path, groups: Collection[str] | None) -> Checkpoint:
    version, files = _read_manifest(folder)
    _check_folder(folder, files)
    wanted = [name for name in files if name != STATE and (groups is None or name.split(".")[0] in groups)]
    state = read_limited(folder / STATE, MAX_STATE_BYTES)
    found = {STATE: hashlib.sha256(state).hexdigest()} | {name: sha256_of(folder / name) for name in wanted}
    for name, checksum in found.items():
        if checksum != files[name].sha256:
            raise CheckpointError(f"{name} is damaged: its checksum does not match the manifest")

    document = parse_json(state, STATE)
    if not isinstance(document, dict) or set(document) != {"info", "groups"}:
        raise CheckpointError(f"{STATE} must hold 'info' and 'groups'")
    encoded = document["groups"]
    if not isinstance(encoded, dict) or not isinstance(document["info"], dict):
        raise CheckpointError(f"{STATE}: 'info' and 'groups' must be objects")
    strangers = [name for name in files if name != STATE and name.split(".")[0] not in encoded]
    if strangers:
        raise CheckpointError(f"{STATE} has no group for the file {strangers[0]}")
    missing = sorted(set(groups or ()) - set(encoded))
    if missing:
        held = ", ".join(encoded) or "nothing"
        raise UserError(f"checkpoint {folder} has no part {missing[0]!r}, only: {held}")
    trees = {}
    for name in encoded if groups is None else groups:
        file = f"{name}.safetensors"
        trees[name] = decode(encoded[name], read_tensors(folder / file) if file in files else {}, name)
    checkpoint = Checkpoint(decode(document["info"], {}, "info"), trees, folder)
    for old_version in range(version, FORMAT_VERSION):
        checkpoint = MIGRATIONS[old_version](checkpoint)
    return checkpoint


def _read_manifest(folder: Path) -> tuple[int, dict[str, FileRecord]]:
    manifest = parse_json(read_limited(folder / MANIFEST, MAX_MANIFEST_BYTES), MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT_NAME:
        raise CheckpointError(f"{MANIFEST} is not the manifest of an AxiomRL checkpoint")
    try:
        checksum = _manifest_checksum(manifest)
    except RecursionError as error:
        raise CheckpointError(f"{MANIFEST} is nested too deeply") from error
    if manifest.get("sha256") != checksum:
        raise CheckpointError(f"{MANIFEST} is damaged: it does not match its own checksum")
    version, entries = manifest.get("version"), manifest.get("files")
    if type(version) is not int:
        raise CheckpointError(f"{MANIFEST}: 'version' must be an integer")
    if version > FORMAT_VERSION:
        raise FormatVersionError(f"written by a newer AxiomRL (format {version}); upgrade")
    if not all(old_version in MIGRATIONS for old_version in range(version, FORMAT_VERSION)):
        raise FormatVersionError(f"format {version} is not supported; this AxiomRL reads {FORMAT_VERSION}")
    if not isinstance(entries, dict) or STATE not in entries:
        raise CheckpointError(f"{MANIFEST} does not list {STATE}")
    return version, {name: _file_record(name, entry) for name, entry in entries.items()}


def _file_record(name: str, entry: Json) -> FileRecord:
    if name != STATE and not _TENSOR_FILE.fullmatch(name):
        raise CheckpointError(f"{MANIFEST} names a file that no checkpoint has: {name[:100]!r}")
    if not isinstance(entry, dict) or set(entry) != {"sha256", "size"}:
        raise CheckpointError(f"{MANIFEST}: the entry of {name} must hold 'sha256' and 'size'")
    checksum, size = entry["sha256"], entry["size"]
    if not (isinstance(checksum, str) and _SHA256.fullmatch(checksum) and type(size) is int and size >= 0):
        raise CheckpointError(f"{MANIFEST}: the entry of {name} is malformed")
    return FileRecord(checksum, size)


def _check_folder(folder: Path, files: Mapping[str, FileRecord]) -> None:
    for name, record in files.items():
        try:
            found = (folder / name).lstat()
        except FileNotFoundError:
            raise CheckpointError(f"{name} is missing") from None
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{name} is a link or a folder, not a plain file")
        if found.st_size != record.size:
            raise CheckpointError(f"{name} has {found.st_size} bytes, the manifest says {record.size}")
    # Hidden files (.DS_Store, .nfs…) come from the system; they are never opened.
    known = {MANIFEST, *files}
    unknown = sorted(e.name for e in folder.iterdir() if e.name not in known and not e.name.startswith("."))
    if unknown:
        raise CheckpointError(f"{unknown[0]!r} does not belong to the checkpoint; remove it")
