"""What a run shows while it trains: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import EvaluationResult
from rl_training.runtime.trainer import BaseTrainer

_STAGES = ("env", "inference", "learn")


def make_console(config: TrainConfig) -> Callback:
    """The reporter that `logging.console` asks for; `auto` is live on a terminal and plain elsewhere."""
    kind = config.logging.console
    if kind == "auto":
        kind = "live" if sys.stderr.isatty() else "plain"
    if kind == "off":
        return Callback()
    title = f"{config.algo.upper()} on {config.env_id}, seed {config.seed}"
    return LivePanel(title) if kind == "live" else PlainLines()


class PlainLines(Callback):
    """One line per report on stderr, at most one a second; stdout stays free for results."""

    name = "console"
    MIN_SECONDS = 1.0

    def __init__(self) -> None:
        self._last = 0.0

    def on_metrics(self, trainer: BaseTrainer, metrics: dict[str, float]) -> None:
        done = trainer.global_step >= trainer.total_timesteps
        if not done and time.monotonic() - self._last < self.MIN_SECONDS:
            return
        self._last = time.monotonic()
        parts = [
            f"step {trainer.global_step:>9,}/{trainer.total_timesteps:,}",
            f"return {_number(metrics.get('episode_return'))}",
            f"{metrics['time/steps_per_second']:,.0f} steps/s ({_stage_text(metrics)})",
            f"ETA {_eta(trainer)}",
        ]
        print("  ".join(parts), file=sys.stderr, flush=True)

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        print(f"step {trainer.global_step:>9,}  {evaluation_text(result)}", file=sys.stderr, flush=True)


class LivePanel(Callback):
    """A panel that is redrawn in place."""

    name = "console"

    def __init__(self, title: str):
        self._title = title
        self._live: Live | None = None
        self._metrics: Mapping[str, float] = {}
        self._evaluation: EvaluationResult | None = None

    def on_training_start(self, trainer: BaseTrainer) -> None:
        self._live = Live(self._render(trainer), console=Console(stderr=True), refresh_per_second=8, transient=True)
        self._live.start()

    def on_metrics(self, trainer: BaseTrainer, metrics: dict[str, float]) -> None:
        self._metrics = metrics
        self._update(trainer)

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        self._evaluation = result
        self._update(trainer)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _update(self, trainer: BaseTrainer) -> None:
        if self._live is not None:
            self._live.update(self._render(trainer))

    def _render(self, trainer: BaseTrainer) -> Panel:
        rows = Table.grid(padding=(0, 2))
        rows.add_row("step", f"{trainer.global_step:,} / {trainer.total_timesteps:,}", f"ETA {_eta(trainer)}")
        rows.add_row("return", _number(self._metrics.get("episode_return")), "mean of the last 100 training episodes")
        if self._evaluation is not None:
            rows.add_row("evaluation", _number(self._evaluation.mean), evaluation_text(self._evaluation))
        if self._metrics:
            speed = f"{self._metrics['time/steps_per_second']:,.0f} steps/s"
            rows.add_row("speed", speed, _stage_text(self._metrics))
        bar = ProgressBar(total=trainer.total_timesteps, completed=min(trainer.global_step, trainer.total_timesteps))
        hint = Text("Ctrl-C once: save and leave; twice: leave now", style="dim")
        return Panel(Group(rows, bar, hint), title=self._title)


def evaluation_text(result: EvaluationResult) -> str:
    """One line for an evaluation: mean, interval, number of episodes."""
    kind = "deterministic" if result.deterministic else "stochastic"
    success = "" if result.success_rate is None else f", success {result.success_rate:.0%}"
    return (
        f"evaluation return {result.mean:.1f} (95 % interval {result.ci_low:.1f} to {result.ci_high:.1f}, "
        f"{result.episodes} {kind} episodes){success}"
    )


def _stage_text(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{stage} {metrics.get(f'time/{stage}_share', 0.0):.0%}" for stage in _STAGES)


def _eta(trainer: BaseTrainer) -> str:
    if trainer.global_step == 0:
        return "-"
    left = trainer.timer.elapsed * (trainer.total_timesteps / trainer.global_step - 1)
    minutes, seconds = divmod(int(max(left, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
