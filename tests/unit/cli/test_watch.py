"""`axiomrl watch` in a real terminal and without one: what it prints, when it ends, and that it leaves the run alone."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from helpers.run_folders import write_run
from rl_training.cli.main import main
from rl_training.experiment.run.run_dir import append_line, write_atomically


def running(path: Path) -> Path:
    run = write_run(path, status="running", curve=[(500, 90.0)], total_timesteps=1000)
    append_line(run / "metrics.jsonl", {"step": 500, "episode_return": 50.0, "time/elapsed": 10.0})
    return run


def set_metadata(run: Path, **values: Any) -> None:
    metadata = json.loads((run / "metadata.json").read_text())
    write_atomically(run / "metadata.json", json.dumps({**metadata, **values}))


def contents(run: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir() if path.is_file()}


@pytest.mark.parametrize("arguments", [[], ["--once"]])
def test_without_a_terminal_it_prints_one_panel(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = running(tmp_path / "run")
    before = contents(run)
    assert main(["watch", str(run), *arguments]) == 0
    out = capsys.readouterr().out
    assert out.count("PPO on CartPole-v1, seed 0") == 1
    assert "500 of 1,000 steps, 0:00:10 so far, ETA 0:00:10" in out
    assert "best 90.0 at step 500" in out and "Ctrl-C leaves; the run goes on" in out
    assert contents(run) == before


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("completed", None, []),
        ("completed", "evaluation return 500.0 reached 475", ["completed: evaluation return 500.0 reached 475"]),
        ("interrupted", "stopped by SIGINT", ["interrupted: stopped by SIGINT", "axiomrl resume"]),
        ("failed", "disk full", ["failed: disk full", "axiomrl resume"]),
    ],
)
def test_how_a_run_ended(
    status: str, reason: str | None, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = running(tmp_path / "run")
    set_metadata(run, status=status, stop_reason=reason)
    assert main(["watch", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"seed 0 ({status})" in out and "in 0:00:10" in out and "ETA" not in out
    assert all(part in out for part in expected)
    assert ("resume with:" in out) == (status != "completed")


def test_a_run_without_news_may_be_dead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = running(tmp_path / "run")
    an_hour_ago = time.time() - 3600
    for path in run.iterdir():
        os.utime(path, (an_hour_ago, an_hour_ago))
    assert main(["watch", str(run)]) == 0
    out = capsys.readouterr().out
    assert "no news for 3,60" in out and "axiomrl resume" in out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = running(tmp_path / "runs" / "one")
    assert main(["watch", str(tmp_path / "runs"), "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["run_dir"] == str(run)
    assert (state["step"], state["total_timesteps"], state["eta_seconds"]) == (500, 1000, 10.0)
    assert state["best"] == {"step": 500, "mean": 90.0}
    assert 0 <= state["seconds_since_last_write"] < 60


def test_mistakes_are_exit_2_and_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = write_run(tmp_path / "newer")
    set_metadata(newer, schema=99)
    (tmp_path / "empty").mkdir()
    for path, message in [
        (newer, "newer AxiomRL"),
        (tmp_path / "empty", "no run found"),
        (tmp_path / "x", "not exist"),
    ]:
        assert main(["watch", str(path)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ") and message in err and len(err.splitlines()) == 1


def test_a_skipped_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running(tmp_path / "good")
    (write_run(tmp_path / "torn") / "metadata.json").write_text('{"schema"')
    assert main(["watch", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert f"note: skipped {tmp_path / 'torn'}: metadata.json cannot be read" in captured.err
    assert "500 of 1,000 steps" in captured.out


def test_it_starts_without_torch_or_gymnasium(tmp_path: Path) -> None:
    code = "import sys\nfrom rl_training.cli.main import main\nassert main(sys.argv[1:]) == 0\nprint('MODULES', *sys.modules)"
    command = [sys.executable, "-c", code, "watch", str(running(tmp_path / "run"))]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = set(result.stdout.rsplit("MODULES", 1)[1].split())
    assert "rl_training.zoo.run_follower" in modules
    assert not modules & {"torch", "gymnasium", "tensorboard"}


class Terminal:
    """`axiomrl watch` in a pseudo-terminal."""

    def __init__(self, run: Path, term: str):
        self._side, inside = pty.openpty()
        command = [sys.executable, "-m", "rl_training.cli", "watch", str(run)]
        env = {**os.environ, "TERM": term, "COLUMNS": "80", "LINES": "40"}
        # A shell's background jobs ignore SIGINT, and so would their children.
        self.process = subprocess.Popen(
            command,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=env,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(inside)
        self.text = ""

    def read_until(self, part: str) -> None:
        """Reads on until the screen has shown `part`."""
        deadline = time.monotonic() + 30
        while part not in self.text:
            assert time.monotonic() < deadline, f"{part!r} did not come: {self.text}"
            if select.select([self._side], [], [], 1)[0]:
                self.text += os.read(self._side, 65536).decode()

    def finish(self) -> int:
        """Reads to the end; the exit code."""
        deadline = time.monotonic() + 30
        with suppress(OSError):  # what Linux says when the other side is closed
            while select.select([self._side], [], [], max(deadline - time.monotonic(), 0))[0]:
                chunk = os.read(self._side, 65536)
                self.text += chunk.decode(errors="replace")
                if not chunk:
                    break
        return self.process.wait(timeout=30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._side)


@contextmanager
def watching(run: Path, term: str = "xterm") -> Iterator[Terminal]:
    terminal = Terminal(run, term)
    try:
        yield terminal
    finally:
        terminal.close()


def test_it_follows_the_run_and_ends_with_it(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    with watching(run) as terminal:
        terminal.read_until("500 of 1,000 steps")
        append_line(run / "metrics.jsonl", {"step": 750, "episode_return": 60.0, "time/elapsed": 15.0})
        terminal.read_until("750 of 1,000 steps")
        set_metadata(run, status="completed")
        assert terminal.finish() == 0
    last = terminal.text[terminal.text.rindex("╭") :]
    assert "(completed)" in last and "750 of 1,000 steps in 0:00:15" in last
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h") == 1, "the cursor is back"


def test_ctrl_c_leaves_the_run_alone(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    before = contents(run)
    with watching(run) as terminal:
        terminal.read_until("the run goes on")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == 0
    assert "error" not in terminal.text and "Traceback" not in terminal.text
    assert contents(run) == before


def test_a_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    with watching(run, term="dumb") as terminal:
        terminal.read_until("step       500/1,000  return 50.0")
        append_line(
            run / "evaluations.jsonl", {"step": 750, "mean": 95.0, "ci_low": 94.0, "ci_high": 96.0, "episodes": 3}
        )
        append_line(run / "metrics.jsonl", {"step": 750, "episode_return": 60.0, "time/elapsed": 15.0})
        terminal.read_until("step       750/1,000  return 60.0")
        set_metadata(run, status="completed")
        assert terminal.finish() == 0
    assert "step       750  evaluation return 95.0 (95 % interval 94.0 to 96.0" in terminal.text
    assert "\x1b" not in terminal.text
