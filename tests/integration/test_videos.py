"""Videos of real runs: recorded while training without changing it, resumed, killed, reported, and refused with a way out."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from helpers.envs import CounterEnv
from helpers.videos import decoded
from rl_training import PPO, TrainConfig
from rl_training.cli.main import main
from rl_training.experiment.proof.folders import differing_files
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.runtime import video as video_module
from rl_training.utils.errors import ConfigError, UserError, WriteError

QUIET = {"console": "off", "tensorboard": False, "every": 64}
VIDEO = {"every": 64, "episodes": 2, "keep": 2}
NAMES = ["step_000000192.mp4", "step_000000256.mp4"]


def config(folder: Path, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "env_id": "CartPole-v1",
        "total_timesteps": 256,
        "num_envs": 2,
        "seed": 3,
        "device": "cpu",
        "hyperparams": {"num_steps": 16},
        "policy": {"hidden_sizes": [8]},
        "env": {"max_episode_steps": 20},
        "evaluation": {"every": 64, "episodes": 2, "num_envs": 2},
        "checkpoint": {"every": 96},
        "logging": QUIET,
        "video": VIDEO,
        "output_dir": str(folder),
    }
    return TrainConfig(**{**values, **changes})


def videos(run: Path | None) -> dict[str, bytes]:
    assert run is not None
    return {path.name: path.read_bytes() for path in sorted((run / "videos").iterdir())}


@pytest.mark.parametrize("backend", ["sync", "native", "tensor"])
def test_a_run_is_the_same_with_and_without_videos(backend: Any, tmp_path: Path) -> None:
    env = {"max_episode_steps": 20, "backend": backend}
    filmed = start_run(config(tmp_path / "a", env=env)).run_dir
    plain = start_run(config(tmp_path / "b", env=env, video={})).run_dir
    assert filmed is not None and plain is not None
    assert list(videos(filmed)) == NAMES and not videos(plain)
    different = differing_files(plain, filmed)
    # The config, the videos and the note that one was recorded; no weight, generator, metric, evaluation or return.
    allowed = ("config.yaml: video", "metadata.json: config.video", "videos/")
    left = [path for path in different if not path.startswith(allowed)]
    assert left and all("RecordVideos" in path or "info.config.video" in path for path in left), left


def test_the_videos_show_complete_episodes(tmp_path: Path) -> None:
    run = start_run(config(tmp_path)).run_dir
    assert run is not None
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    for name, line in zip(NAMES, lines[-2:], strict=True):
        video = decoded(run / "videos" / name)
        assert len(video.frames) == 1 + max(line["lengths"]), "the episodes of that evaluation, side by side"
        assert (video.codec, video.fps) == ("h264", 50)


KILLED = """
import os, signal, sys
from rl_training.config import load_config
from rl_training.experiment.run.runner import start_run
from rl_training.utils.video_file import VideoFile
real = VideoFile.write
def dies(self, frame):
    real(self, frame)
    if "192" in self.path.name and self.frames == 5:
        os.kill(os.getpid(), signal.SIGKILL)
VideoFile.write = dies
start_run(load_config(sys.argv[1]))
"""


def test_a_killed_run_makes_up_its_videos(tmp_path: Path) -> None:
    whole = start_run(config(tmp_path / "whole")).run_dir
    (tmp_path / "killed.yaml").write_text(config(tmp_path / "killed").to_yaml())
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed.yaml")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (killed,) = (tmp_path / "killed").iterdir()
    left = sorted(path.name for path in (killed / "videos").iterdir())
    assert len(left) == 3 and left[0].startswith(".tmp-step_000000192.mp4-"), "no broken file has the video's name"
    resume_run(killed)
    assert whole is not None and differing_files(whole, killed) == []


def test_a_signal_stops_a_recording_and_a_resume_makes_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = start_run(config(tmp_path / "whole")).run_dir
    real = video_module.VideoFile.write

    def interrupted(self: Any, frame: Any) -> None:
        real(self, frame)
        if "128" in self.path.name and self.frames == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(video_module.VideoFile, "write", interrupted)
    stopped = start_run(config(tmp_path / "stopped"))
    monkeypatch.undo()
    assert stopped.exit_code == 143 and stopped.run_dir is not None
    assert list(videos(stopped.run_dir)) == ["step_000000064.mp4"]
    resume_run(stopped.run_dir)
    assert videos(stopped.run_dir) == videos(whole)


def test_videos_of_what_was_rolled_back_go_and_other_files_stay(tmp_path: Path) -> None:
    run = start_run(config(tmp_path)).run_dir
    assert run is not None
    for name in ("step_000009999.mp4", "mine.mp4", ".tmp-step_000000064.mp4-1"):
        (run / "videos" / name).write_bytes(b"x")
    resume_run(run, total_timesteps=320)
    assert list(videos(run)) == ["mine.mp4", "step_000000256.mp4", "step_000000320.mp4"]


def test_a_linked_folder_is_not_written_through(tmp_path: Path) -> None:
    run = start_run(config(tmp_path / "runs")).run_dir
    assert run is not None
    (tmp_path / "elsewhere").mkdir()
    (run / "videos").rename(tmp_path / "old")
    (run / "videos").symlink_to(tmp_path / "elsewhere")
    result = resume_run(run, total_timesteps=320)
    assert not list((tmp_path / "elsewhere").iterdir()) and list(videos(run)) == ["step_000000320.mp4"]
    assert any("is a link, not a folder; set aside as damaged-videos" in note for note in result.notes)


def test_a_full_disk_while_recording_ends_the_run_and_a_resume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start_run(config(tmp_path / "whole")).run_dir
    real = video_module.VideoFile.finish

    def full(self: Any) -> None:
        self._output.descriptor, keep = os.open("/dev/full", os.O_RDWR), self._output.descriptor
        try:
            real(self)
        finally:
            os.close(keep)

    monkeypatch.setattr(video_module.VideoFile, "finish", full)
    with pytest.raises(WriteError, match=r"disk full while writing .*step_000000064\.mp4"):
        start_run(config(tmp_path / "full"))
    monkeypatch.undo()
    (run,) = (tmp_path / "full").iterdir()
    assert not videos(run) and json.loads((run / "metadata.json").read_text())["status"] == "failed"
    resume_run(run)
    assert whole is not None and differing_files(whole, run) == []


def test_a_cut_is_noted_once(tmp_path: Path) -> None:
    result = start_run(config(tmp_path, video={**VIDEO, "max_seconds": 0.1}))
    assert [note for note in result.notes if "was cut" in note] == [
        "step_000000064.mp4 was cut after 0.1 s of video; its episodes are longer (max_seconds or --video-seconds is the limit)"
    ]
    assert result.run_dir is not None and len(decoded(result.run_dir / "videos" / NAMES[-1]).frames) == 5


def test_without_a_folder_videos_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="videos go to a run's folder"):
        PPO("CartPole-v1", video={"every": 10})
    saved = PPO("CartPole-v1", device="cpu").save(tmp_path / "agent")
    with pytest.raises(ConfigError, match="videos go to a run's folder"):
        PPO.load(saved, video={"every": 10})
    assert PPO.load(start_run(config(tmp_path)).checkpoint_path or "").learn(288).metrics["global_step"] == 288


def test_a_run_that_cannot_be_recorded_writes_nothing(tmp_path: Path) -> None:
    gym.register("NotDrawn-v0", CounterEnv, kwargs={"script": ((3, "terminated"),)})
    try:
        with pytest.raises(
            UserError, match=r"'NotDrawn-v0' cannot be drawn: NotImplementedError.*\nIt has no render\(\)"
        ):
            start_run(config(tmp_path / "runs", env_id="NotDrawn-v0", env={}))
    finally:
        del gym.registry["NotDrawn-v0"]
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = start_run(config(tmp_path_factory.mktemp("trained"))).run_dir
    assert run is not None
    return run


def test_eval_writes_a_video_of_the_same_evaluation(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(trained), "--episodes=3", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main(["eval", str(trained), "--episodes=3", "--json", f"--video={tmp_path / 'a.mp4'}"]) == 0
    filmed = json.loads(capsys.readouterr().out)
    frames = len(decoded(tmp_path / "a.mp4").frames)
    extra = {"video": str(tmp_path / "a.mp4"), "video_frames": frames, "video_seconds": frames / 50, "video_cut": False}
    assert filmed == plain | extra and frames == 1 + max(plain["lengths"])
    assert main(["eval", str(trained), "--episodes=1", f"--video={tmp_path / 'a.gif'}", "--video-seconds=0.2"]) == 0
    output = capsys.readouterr()
    assert f"video {tmp_path / 'a.gif'}, 0.2 s" in output.out and "note: a.gif was cut after 0.2 s" in output.err
    assert len(decoded(tmp_path / "a.gif").frames) == 10


BLOCKED = """
import sys, importlib.util
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == sys.argv[1] else real(name, *more)
sys.meta_path.insert(0, Block())
from rl_training.cli.main import main
raise SystemExit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("module", ["av", "pygame"])
def test_a_missing_package_is_one_message_with_the_command(module: str, trained: Path, tmp_path: Path) -> None:
    short = ["--total-timesteps=64", "--set=video.every=32", f"--output-dir={tmp_path / 'runs'}"]
    for words in (["eval", str(trained), f"--video={tmp_path / 'a.mp4'}"], ["train", "ppo/cartpole", *short]):
        command = [sys.executable, "-c", BLOCKED, module, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and 'pip install "axiomrl[video]"' in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) <= 4
    assert not list(tmp_path.iterdir())


def test_the_report_shows_the_newest_video(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(trained), "--format=html", f"--output={page}"]) == 0
    data = base64.b64encode(videos(trained)[NAMES[-1]]).decode()
    assert f'src="data:video/mp4;base64,{data}"' in page.read_text() and NAMES[-1] in page.read_text()
