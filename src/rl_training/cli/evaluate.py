"""`axiomrl eval`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rl_training.cli.options import (
    NUMBER,
    PATH,
    WHOLE,
    EnvId,
    Flag,
    Group,
    ImportModules,
    JsonOption,
    Number,
    arg,
    echo,
    env_can_be_named,
    import_modules,
    print_json,
    print_notes,
)
from rl_training.utils.errors import UserError

if TYPE_CHECKING:
    from rl_training.api.agent import Agent
    from rl_training.runtime.evaluator import EvaluationResult


@dataclass
class Command:
    """Evaluate a run or a checkpoint on complete episodes."""

    path: Annotated[Path, tyro.conf.Positional, arg("RUN|CHECKPOINT")]
    """A run folder (its newest checkpoint), a checkpoint, or a folder that agent.save wrote."""
    output: Annotated[JsonOption, Group]
    episodes: Annotated[int, WHOLE, arg("N")] = 20
    """How many episodes."""
    best: Flag = False
    """Take the run's best checkpoint instead of its newest."""
    stochastic: Flag = False
    """Sample actions instead of taking the most likely one."""
    seed: Number = None
    """Seed of the evaluation episodes; the run's seed by default."""
    env: EnvId = None
    """Another environment with the same spaces, e.g. a harder one; the run's own by default."""
    video: Annotated[Path | None, PATH, arg("FILE")] = None
    """Record the episodes, up to five side by side, to this .mp4 or .gif; --episodes 1 is a single view."""
    video_seconds: Annotated[float | None, NUMBER, arg("SECONDS")] = None
    """Cut the video after so many seconds, by default 120; the evaluation goes on."""
    import_modules: ImportModules = ()

    def run(self) -> int:
        from rl_training.api.agent import agent_of
        from rl_training.experiment.console.lines import evaluation_text
        from rl_training.experiment.run.env_source import EnvSource
        from rl_training.experiment.run.runner import open_checkpoint

        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be from 0 to {2**32 - 1}, got {self.seed}")
        if self.video is not None:
            from rl_training.utils.video_file import check_video_path, require_encoder

            require_encoder()
            check_video_path(self.video)
        elif self.video_seconds is not None:
            raise UserError("--video-seconds needs a video: --video FILE.mp4")
        import_modules(self.import_modules)
        checkpoint, notes = open_checkpoint(self.path, best=self.best)
        print_notes(notes)
        agent = agent_of(checkpoint)
        with env_can_be_named(self.env):
            result, video = self._play(agent)
        played = agent.config if self.env is None else EnvSource(self.env).adopted(agent.config)
        protocol = {} if played.env.atari is None else {"atari_protocol": played.env.atari.text}
        if self.output.json:
            print_json(
                {"checkpoint": str(checkpoint.path), "env_id": played.env_id, **protocol, **result.to_dict(), **video}
            )
        else:
            echo(f"{agent.config.algo.upper()} on {played.env_title}, checkpoint {checkpoint.path}")
            echo(
                f"{evaluation_text(result)}; standard deviation {result.std:.1f}, mean length {result.mean_length:.1f}"
            )
            if video:
                echo(f"video {video['video']}, {video['video_seconds']:.1f} s")
        return 0

    def _play(self, agent: Agent) -> tuple[EvaluationResult, dict[str, Any]]:
        """The result, and what there is to say about the video."""
        kinds: dict[str, Any] = {"env": self.env, "deterministic": not self.stochastic, "seed": self.seed}
        if self.video is None:
            return agent.evaluate(self.episodes, **kinds), {}
        if self.video_seconds is not None:
            kinds["max_seconds"] = self.video_seconds
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".* was cut after")  # said as a note
            recording = agent.record(self.video, self.episodes, **kinds)
        print_notes([recording.note] if recording.note else [])
        facts = {"frames": recording.frames, "seconds": recording.seconds, "cut": recording.cut}
        return recording.result, {"video": str(self.video)} | {f"video_{name}": value for name, value in facts.items()}
