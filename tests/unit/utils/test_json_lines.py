import itertools
import json
import os
from pathlib import Path

import pytest

from rl_training.utils import json_lines
from rl_training.utils.json_lines import JsonLines, cut_after


def write(path: Path, *lines: object, end: str = "\n") -> Path:
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts) + end.encode())
    return path


def steps(path: Path) -> list[int]:
    return [record["step"] for record in JsonLines(path).records()]


DAMAGED = [
    b'{"step": 2, "x": "\xff"}',
    b'{"step": "2"}',
    b'{"step": true}',
    b'{"step": -1}',
    b'{"step": 1.5}',
    b'{"step": ' + b"9" * 30 + b"}",
    b'{"step": ' + b"9" * 5000 + b"}",
    b'{"step": 2',
    b"\0" * 50,
    b"[1]",
    b'{"a": 1}',
    b'{"step": 2, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"step": 2, "x": ' + b"[" * 60 + b"]" * 60 + b"}",
]


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: repr(line[:30]))
def test_a_damaged_line_is_passed_over_and_counted(line, tmp_path):
    reader = JsonLines(write(tmp_path / "m", {"step": 1}, line, {"step": 3}))
    assert [record["step"] for record in reader.records()] == [1, 3]
    assert reader.damaged == 1


def test_blank_lines_and_one_that_is_being_written_are_not_damage(tmp_path):
    reader = JsonLines(write(tmp_path / "m", {"step": 1}, b"", b'{"step": 2', end=""))
    assert [record["step"] for record in reader.records()] == [1]
    assert reader.damaged == 0


def test_a_growing_file_gives_each_line_once(tmp_path):
    path = write(tmp_path / "m", {"step": 1}, b'{"st', end="")
    reader = JsonLines(path)
    assert [record["step"] for record in reader.records()] == [1]
    with path.open("ab") as file:
        file.write(b'ep": 2}\n{"step": 3}\n')
    assert not reader.replaced()
    assert [record["step"] for record in reader.records()] == [2, 3]
    assert list(reader.records()) == []


def test_lines_longer_than_a_chunk_and_longer_than_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "_CHUNK", 16)
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 100)
    long, longer = {"step": 2, "x": "y" * 60}, {"step": 3, "x": "y" * 200}
    path = write(tmp_path / "m", {"step": 1}, long, longer, {"step": 4})
    reader = JsonLines(path)
    assert [record["step"] for record in reader.records()] == [1, 2, 4]
    assert reader.damaged == 1
    assert cut_after(path, 3) == 1
    assert steps(path) == [1, 2]
    assert path.read_bytes().endswith(b'"}\n')


def test_a_file_cut_by_a_resume_and_grown_again_is_noticed(tmp_path):
    path = write(tmp_path / "m", *({"step": step, "at": "first"} for step in range(10)))
    reader = JsonLines(path)
    assert len(list(reader.records())) == 10
    cut_after(path, 4)
    assert reader.replaced(), "shorter"
    with path.open("ab") as file:
        for step in range(5, 20):
            file.write(json.dumps({"step": step, "at": "again"}).encode() + b"\n")
    assert reader.replaced(), "longer, but other lines"
    reader.rewind()
    assert [record["step"] for record in reader.records()] == list(range(20))


@pytest.mark.parametrize("chunk", [1, 7, 64, 2**18])
@pytest.mark.parametrize("step", [-1, 0, 5, 99, 100])
@pytest.mark.parametrize("end", ["\n", "", '\n{"step": 7', "\n\n\0\0"])
def test_cutting_keeps_what_a_whole_reading_would_keep(tmp_path, monkeypatch, chunk, step, end):
    monkeypatch.setattr(json_lines, "_CHUNK", chunk)
    path = write(tmp_path / "m", *({"step": number, "x": "é" * (number % 7)} for number in range(100)), end=end)
    last = 99 if end else 98  # a line without an end is not finished
    cut_after(path, step)
    assert steps(path) == list(range(min(step, last) + 1))
    assert path.read_bytes()[-1:] in (b"\n", b"")


def test_damaged_lines_at_the_end_go_and_earlier_ones_stay(tmp_path):
    path = write(tmp_path / "m", {"step": 1}, b"\xff", {"step": 2}, b"junk", {"step": 9}, b"more", end="\n")
    assert cut_after(path, 2) == 2
    assert path.read_bytes() == b'{"step": 1}\n\xff\n{"step": 2}\n'
    assert cut_after(path, 2) == 0


def test_cutting_reads_the_end_of_a_long_file_only(tmp_path, monkeypatch):
    path = tmp_path / "m"
    with path.open("w") as file:
        for step in range(200_000):
            file.write(f'{{"step": {step}, "value": 0.12345678}}\n')
    read = []
    real = json_lines._lines_from_end

    def counting(file, size):
        for line, end, whole in real(file, size):
            read.append(size - end)
            yield line, end, whole

    monkeypatch.setattr(json_lines, "_lines_from_end", counting)
    size = path.stat().st_size
    cut_after(path, 199_990)
    assert len(read) < 20 and size > 5_000_000
    assert size - path.stat().st_size < 1000


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Records come one at a time: the first is there before the rest has been read."""
    path = write(tmp_path / "m", *({"step": step} for step in range(200_000)))
    reader = JsonLines(path)
    records = reader.records()
    assert next(records) == {"step": 0}
    assert reader._offset == len(b'{"step": 0}\n')
    assert sum(1 for _ in records) == 199_999


def test_nothing_to_read_and_special_files(tmp_path):
    assert list(JsonLines(tmp_path / "none").records()) == []
    assert cut_after(tmp_path / "none", 5) == 0
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe, not a regular file"):
        list(JsonLines(tmp_path / "pipe").records())
    with pytest.raises(OSError, match="a pipe, not a regular file"):
        cut_after(tmp_path / "pipe", 5)


def test_a_sample_of_a_long_file_is_spread_and_ends_with_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "_LONG", 10_000)
    monkeypatch.setattr(json_lines, "_LAST_PART", 1_000)
    path = write(tmp_path / "m", *({"step": step, "x": "y" * (step % 50)} for step in range(20_000)))
    reader = JsonLines(path)
    found = [record["step"] for record in reader.records(sample=100)]
    assert 90 < len(found) < 250 and found == sorted(set(found))
    assert found[-10:] == list(range(19_990, 20_000)), "all of the last part"
    assert max(after - before for before, after in itertools.pairwise(found)) < 500, "evenly spread"
    with path.open("a") as file:
        file.write('{"step": 20000}\n')
    assert [record["step"] for record in reader.records(sample=100)] == [20_000], "what comes later is read whole"


def test_a_file_that_is_not_long_is_not_sampled(tmp_path):
    path = write(tmp_path / "m", *({"step": step} for step in range(5000)))
    assert len(list(JsonLines(path).records(sample=10))) == 5000
