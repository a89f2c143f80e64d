"""What a run shows while it trains: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.live import Live

from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.console.panel import plain_evaluation, plain_line, run_panel
from rl_training.experiment.console.terminal import RunConsole, keys_unseen
from rl_training.experiment.run.reference import Reference
from rl_training.experiment.run.run_dir import EVALUATIONS, METRICS
from rl_training.experiment.run.view import HISTORY_LINES, Evaluation, RunView
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import EvaluationResult
from rl_training.runtime.trainer import BaseTrainer
from rl_training.utils.json_lines import JsonLines
from rl_training.utils.streams import abandon

HINT = "Ctrl-C once: save and leave; twice: leave now"


def make_console(config: TrainConfig, run_dir: Path | None = None, reference: Reference | None = None) -> Callback:
    """The reporter that `logging.console` asks for; `auto` is live on a terminal and plain elsewhere.

    A terminal that cannot move its cursor (TERM=dumb) gets plain lines, whatever was asked.
    """
    kind = config.logging.console
    if kind == "off":
        return Callback()
    console = RunConsole()
    # A panel needs a place that can be drawn on again; nothing at all would be the worst of reports.
    live = kind != "plain" and (console.is_terminal or (kind == "live" and console.is_jupyter))
    title = f"{config.algo.upper()} on {config.env_title}, seed {config.seed}"
    view = RunView(title, config.total_timesteps, reference)
    return LivePanel(view, run_dir, console) if live and not console.is_dumb_terminal else PlainLines(view, run_dir)


class _Reporter(Callback):
    """Keeps the run's view current."""

    name = "console"

    def __init__(self, view: RunView, run_dir: Path | None):
        self.view, self._run_dir, self._gone = view, run_dir, False

    def show(self, draw: Callable[[], None]) -> None:
        """Draws, unless the terminal or the reader of the pipe has gone: then the run goes on without a console."""
        if self._gone:
            return
        try:
            draw()
        except (OSError, ValueError):  # ValueError: a closed file
            self._gone = True
            abandon(sys.stderr)

    def on_training_start(self, trainer: BaseTrainer) -> None:
        if self._run_dir is not None:  # a resumed run shows its whole history
            self.view = RunView(self.view.title, trainer.total_timesteps, self.view.reference)
            for record in JsonLines(self._run_dir / METRICS).records(sample=HISTORY_LINES):
                self.view.add_metrics(record["step"], record)
            for record in JsonLines(self._run_dir / EVALUATIONS).records():
                self.view.add_evaluation(record["step"], record)
        self._look(trainer)

    def on_metrics(self, trainer: BaseTrainer, metrics: dict[str, float]) -> None:
        self.view.add_metrics(trainer.global_step, metrics)

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        self.view.add_evaluation(trainer.global_step, result.to_dict())

    def _look(self, trainer: BaseTrainer) -> None:
        self.view.total_timesteps = trainer.total_timesteps
        self.view.step, self.view.elapsed = trainer.global_step, trainer.timer.elapsed


class PlainLines(_Reporter):
    """One line per report on stderr, at most one a second; stdout stays free for results."""

    MIN_SECONDS = 1.0

    def __init__(self, view: RunView, run_dir: Path | None = None):
        super().__init__(view, run_dir)
        self._last = 0.0

    def on_metrics(self, trainer: BaseTrainer, metrics: dict[str, float]) -> None:
        super().on_metrics(trainer, metrics)
        done = trainer.global_step >= trainer.total_timesteps
        if not done and time.monotonic() - self._last < self.MIN_SECONDS:
            return
        self._last = time.monotonic()
        self._print(plain_line(self.view))

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        finite = self.view.add_evaluation(trainer.global_step, result.to_dict()) is not None
        text = plain_evaluation(self.view) if finite else f"step {trainer.global_step:>9,}  {evaluation_text(result)}"
        self._print(text)

    def _print(self, text: str) -> None:
        self.show(lambda: print(text, file=sys.stderr, flush=True))


class LivePanel(_Reporter):
    """A panel that is redrawn in place by the thread that trains: four times a second, or less often where drawing is slow."""

    MIN_SECONDS = 0.25
    MAX_SHARE = 0.01
    """Most of the time that may be spent on drawing."""

    def __init__(self, view: RunView, run_dir: Path | None = None, console: Console | None = None):
        super().__init__(view, run_dir)
        self._console = console or RunConsole()
        self._live: Live | None = None
        self._terminal = ExitStack()
        self._next = 0.0

    def on_training_start(self, trainer: BaseTrainer) -> None:
        super().on_training_start(trainer)
        self._terminal.enter_context(keys_unseen())
        self._live = Live(run_panel(self.view, HINT), console=self._console, auto_refresh=False, transient=True)
        self.show(partial(self._live.start, refresh=True))

    def on_iteration_end(self, trainer: BaseTrainer) -> None:
        if time.monotonic() >= self._next:
            self._draw(trainer)

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        super().on_evaluation(trainer, result)
        self._next = 0.0  # evaluations are rare, and worth seeing at once

    def close(self) -> None:
        if self._live is not None:
            # Also where nobody sees it any more, because it gives stdout and stderr back; rich may then stumble over itself.
            with suppress(Exception):
                self._live.stop()
            self._live = None
        self._terminal.close()

    def _draw(self, trainer: BaseTrainer) -> None:
        begin = time.monotonic()
        self._look(trainer)
        if self._live is not None:
            self.show(partial(self._live.update, run_panel(self.view, HINT), refresh=True))
        end = time.monotonic()
        self._next = end + max(self.MIN_SECONDS, (end - begin) / self.MAX_SHARE)


def evaluation_text(result: EvaluationResult) -> str:
    """One line for an evaluation: mean, interval, number of episodes."""
    evaluation = Evaluation.from_record(0, result.to_dict())
    return "evaluation return not finite" if evaluation is None else evaluation.text
