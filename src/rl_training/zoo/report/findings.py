"""What a finding is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rl_training.zoo.run_records import RunRecord

Severity = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong in one run."""

    kind: str
    """Stable id such as `entropy_collapse`, for scripts."""
    severity: Severity
    title: str
    """The same words for every run with this finding."""
    seen: str
    """The number seen, and where."""
    advice: str
    """What to try."""
    run: RunRecord
    metric: str | None = None
    """Key of metrics.jsonl, or `evaluation` for the evaluation means, that shows it."""
    step: int | None = None
    """Where it began or was worst."""


Rule = Callable[[RunRecord], Iterator[Finding]]
