"""What a finding is, and the rules that make them."""

from __future__ import annotations

import functools
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
Seen = tuple[str, str, int | None]
"""What was seen in a run, what to try, and the step."""


def rule(
    kind: str, severity: Severity, title: str, metric: str | None = None
) -> Callable[[Callable[..., Iterator[Seen]]], Callable[..., Iterator[Finding]]]:
    """Makes a rule of a function that looks at a run and yields what it sees."""

    def decorate(look: Callable[..., Iterator[Seen]]) -> Callable[..., Iterator[Finding]]:
        @functools.wraps(look)
        def find(run: RunRecord, *context: object) -> Iterator[Finding]:
            for seen, advice, step in look(run, *context):
                yield Finding(kind, severity, title, seen, advice, run, metric, step)

        return find

    return decorate
