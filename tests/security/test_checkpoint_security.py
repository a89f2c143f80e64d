"""Malicious checkpoints: each is refused with a clear error and runs nothing.

Every attack here carries correct checksums: a checksum protects against damage, not against an author.
"""

import hashlib
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rl_training.experiment.checkpoint.store import CheckpointStore, read_checkpoint, write_checkpoint
from rl_training.utils.errors import CheckpointError


def short(value: object) -> str:
    """A test id; pytest puts it into the environment, where a long one would break every new process."""
    return repr(value)[:40]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound checkpoint to tamper with: policy = {"w": float32 [4]}."""
    path = tmp_path / "run" / "agent"
    write_checkpoint(path, {"policy": {"w": torch.arange(4.0)}}, {"algo": "ppo"})
    return path


def seal(folder: Path, manifest_changes: dict | None = None) -> None:
    """Make the manifest fit whatever the files are now."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name != "manifest.json" and path.is_file():
            data = path.read_bytes()
            files[path.name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    write_manifest(folder, {"format": "axiomrl-checkpoint", "version": 1, "files": files} | (manifest_changes or {}))


def write_manifest(folder: Path, content: dict) -> None:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(content | {"sha256": checksum}))


def refused(folder: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        read_checkpoint(folder)
    assert len(str(caught.value)) < 1500


def test_the_tampering_itself_is_not_what_is_refused(folder):
    seal(folder)
    assert read_checkpoint(folder).groups["policy"]["w"].tolist() == [0, 1, 2, 3]


# Code in the files


class Payload:
    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple:
        return (os.mkdir, (str(self.sentinel),))


def pickle_stream(sentinel: Path) -> bytes:
    return pickle.dumps(Payload(sentinel))


def torch_archive(sentinel: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": Payload(sentinel)}, buffer)
    return buffer.getvalue()


def zip_with_pickle(sentinel: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", pickle_stream(sentinel))
    return buffer.getvalue()


@pytest.mark.parametrize("make", [pickle_stream, torch_archive, zip_with_pickle])
@pytest.mark.parametrize("file", ["policy.safetensors", "state.json", "manifest.json"])
def test_a_pickle_under_a_trusted_name_never_runs(make, file, folder, tmp_path):
    sentinel = tmp_path / "executed"
    (folder / file).write_bytes(make(sentinel))
    if file != "manifest.json":
        seal(folder)
    refused(folder, file)
    assert not sentinel.exists()


def test_the_payload_would_run_if_it_were_unpickled(tmp_path):
    pickle.loads(pickle_stream(tmp_path / "executed"))
    assert (tmp_path / "executed").exists()


# state.json

W = '{"$tensor":"w","dtype":"float32","shape":[4]}'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "not valid JSON"),
        ("hello", "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        ("[]", "'info' and 'groups'"),
        ("12345678901234567890", "'info' and 'groups'"),
        ("1" * 10_000, "not valid JSON"),
        ('{"info":{},"groups":NaN}', "NaN is not JSON"),
        ('{"info":{"x":-Infinity},"groups":{}}', "Infinity is not JSON"),
        ('{"info":{"x":1e999},"groups":{"policy":{"w":' + W + "}}}", "not finite"),
        ('{"info":{},"groups":' + "9" * 400 + "}", "must be objects"),
        ('{"info":[],"groups":{}}', "must be objects"),
        ('{"info":{},"groups":{"policy":' + "9" * 400 + "}}", "plain integer"),
        ('{"info":{},"groups":{"policy":' + "[" * 200_000 + "]" * 200_000 + "}}", "not valid JSON|deeper"),
        ('{"info":{},"groups":{"policy":' + '{"a":' * 500 + "1" + "}" * 500 + "}}", "deeper than 100"),
        ('{"info":{},"groups":{"policy":' + '{"$tuple":[' * 300 + "]}" * 300 + "}}", "deeper than 100"),
        ('{"info":{},"info":{},"groups":{}}', "occurs twice"),
        ('{"info":{},"groups":{"policy":{"w":' + W + ',"w":1}}}', "occurs twice"),
        ('{"info":{},"groups":{},"extra":1}', "'info' and 'groups'"),
        ('{"info":{},"groups":{}}', "no group for the file policy.safetensors"),
        ('{"info":{"w":' + W + '},"groups":{"policy":{"w":' + W + "}}}", "info.w: tensor 'w' is missing"),
        (
            '{"info":{},"groups":{"policy":{"w":{"$object":"os.system"}}}}',
            r"malformed marker '\$object'",
        ),
        ('{"info":{},"groups":{"policy":{}}}', "not part of the state"),
        ('{"info":{},"groups":{"policy":{"a":' + W + ',"b":' + W + "}}}", "used twice"),
        ('{"info":{},"groups":{"policy":{"w":' + W.replace("float32", "float64") + "}}}", "float64"),
        ('{"info":{},"groups":{"policy":{"w":' + W.replace("[4]", "[2,2]") + "}}}", r"\[2, 2\]"),
        ('{"info":{},"groups":{"policy":{"w":' + W.replace("float32", "object") + "}}}", "object"),
    ],
    ids=short,
)
def test_hostile_state(text, match, folder):
    (folder / "state.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    seal(folder)
    refused(folder, match)


@pytest.mark.parametrize(("file", "size"), [("state.json", 2**28 + 1), ("manifest.json", 2**20 + 1)])
def test_a_huge_json_file_is_not_read(file, size, folder):
    os.truncate(folder / file, size)  # sparse: costs no disk
    if file == "state.json":
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["state.json"]["size"] = size
        del manifest["sha256"]
        write_manifest(folder, manifest)
    tracemalloc.start()
    refused(folder, f"{file} has {size} bytes, more than")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 2**20


# manifest.json


@pytest.mark.parametrize(
    "name",
    [
        "../../secret.safetensors",
        "../secret",
        "/etc/passwd",
        "sub/policy.safetensors",
        "policy.safetensors\x00",
        "policy.safetensors\n",
        "Policy.safetensors",
        ".safetensors",
        "policy.pkl",
        "manifest.json",
        "",
        "x" * 5000,
    ],
    ids=short,
)
def test_names_outside_the_pattern(name, folder):
    (folder.parents[1] / "secret.safetensors").write_bytes(b"s")
    files = json.loads((folder / "manifest.json").read_text())["files"]
    seal(folder, {"files": files | {name: files["state.json"]}})
    refused(folder, "names a file that no checkpoint has")


@pytest.mark.parametrize("file", ["policy.safetensors", "state.json", "manifest.json"])
def test_links_are_not_followed(file, folder, tmp_path):
    moved = tmp_path / "elsewhere"
    (folder / file).rename(moved)
    (folder / file).symlink_to(moved)
    refused(folder, f"{file} is a link")


@pytest.mark.parametrize("file", ["policy.safetensors", "state.json", "manifest.json"])
def test_a_pipe_or_folder_in_place_of_a_file(file, folder):
    (folder / file).unlink()
    os.mkfifo(folder / file)
    refused(folder, file)
    (folder / file).unlink()
    (folder / file).mkdir()
    refused(folder, file)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "zip"},
        {"version": "1"},
        {"version": True},
        {"version": None},
        {"files": []},
        {"files": {}},
        {"files": {"state.json": 1}},
        {"files": {"state.json": {"sha256": "0" * 64, "size": -1}}},
        {"files": {"state.json": {"sha256": "0" * 64, "size": 1.0}}},
        {"files": {"state.json": {"sha256": 5, "size": 1}}},
        {"files": {"state.json": {"sha256": "0" * 64, "size": 1, "url": "http://x"}}},
    ],
)
def test_malformed_manifests(changes, folder):
    seal(folder, changes)
    refused(folder, "manifest.json")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "NaN", '{"a":1,"a":2}', "[" * 100_000, '{"format":"axiomrl-checkpoint"}'],
    ids=short,
)
def test_manifests_that_are_none(text, folder):
    (folder / "manifest.json").write_text(text)
    refused(folder, "manifest.json")


@pytest.mark.parametrize("name", ["run.py", "policy.pkl", "optimiser.safetensors", "sub"])
def test_files_that_do_not_belong_there(name, folder):
    (folder / name).mkdir() if name == "sub" else (folder / name).write_bytes(b"x")
    refused(folder, f"'{name}' does not belong")


def test_hidden_files_of_the_system_are_ignored(folder):
    (folder / ".DS_Store").write_bytes(b"x")
    assert read_checkpoint(folder).info == {"algo": "ppo"}


# Tensor files


def tensor_file(header: object, data: bytes = b"\0" * 16, size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(dtype: str = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


GOOD = {"w": entry()}
TENSOR_FILES: dict[str, bytes | Callable[[], bytes]] = {
    "empty file": b"",
    "seven bytes": b"\0" * 7,
    "header size 2**60": tensor_file(GOOD, size=2**60),
    "header size 2**64 - 1": tensor_file(GOOD, size=2**64 - 1),
    "header size one byte past the file": tensor_file(GOOD, size=len(json.dumps(GOOD)) + 17),
    "header of size 0": tensor_file(b""),
    "header that is a list": tensor_file([]),
    "header that is deep": tensor_file(b'{"w":' + b"[" * 50_000),
    "header not UTF-8": tensor_file(b'{"\xff":1}'),
    "overlapping": tensor_file({"w": entry(), "v": entry(offsets=(8, 24))}, b"\0" * 24),
    "same bytes twice": tensor_file({"w": entry(), "v": entry()}),
    "hole": tensor_file({"w": entry(offsets=(16, 32))}, b"\0" * 32),
    "offsets past the end": tensor_file({"w": entry(shape=(400,), offsets=(0, 1600))}),
    "offsets backwards": tensor_file({"w": entry(offsets=(16, 0))}),
    "negative offsets": tensor_file({"w": entry(offsets=(-16, 0))}),
    "trailing data": tensor_file(GOOD, b"\0" * 32),
    "too little data": tensor_file(GOOD, b"\0" * 12),
    "gigantic shape": tensor_file({"w": entry(shape=(2**40, 2**40))}),
    "gigantic shape that overflows to 16 bytes": tensor_file({"w": entry(shape=(2**62 + 1, 4))}),
    "gigantic empty shape": tensor_file({"w": entry(shape=(0, 2**62), offsets=(0, 0))}, b""),
    "negative shape": tensor_file({"w": entry(shape=(-4,))}),
    "shape of floats": tensor_file({"w": entry(shape=(4.0,))}),
    "shape that does not fit": tensor_file({"w": entry(shape=(5,))}),
    "unknown dtype": tensor_file({"w": entry(dtype="OBJECT")}),
    "another dtype of the same size": tensor_file({"w": entry(dtype="I32")}),
    "another dtype and shape": tensor_file({"w": entry(dtype="F64", shape=(2,))}),
    "packed dtype": tensor_file({"w": entry(dtype="F4", shape=(32,))}),
    "repeated name": tensor_file(b'{"w":%b,"w":%b}' % ((json.dumps(entry(dtype="I32")).encode(),) * 2)),
    "other name": tensor_file({"v": entry()}),
    "one more tensor": tensor_file({"w": entry(), "v": entry(offsets=(16, 32))}, b"\0" * 32),
}


@pytest.mark.parametrize("attack", TENSOR_FILES)
def test_hostile_tensor_files(attack, folder):
    (folder / "policy.safetensors").write_bytes(TENSOR_FILES[attack])
    seal(folder)
    refused(folder, "policy.safetensors: a header of" if "header size" in attack else "policy")


def test_a_hostile_checkpoint_in_a_run_is_set_aside_not_fatal(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    store.save(1, {"policy": {"w": torch.ones(4)}}, {})
    path = store.save(2, {"policy": {"w": torch.ones(4)}}, {})
    (path / "policy.safetensors").write_bytes(tensor_file(GOOD, size=2**60))
    seal(path)
    checkpoint, messages = store.load_latest()
    assert checkpoint.info["step"] == 1
    assert "policy.safetensors" in messages[0]
