"""From measured numbers to ratios with their spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, TypeVar

Kind = Literal["rate", "seconds", "bytes"]
"""Of rates more is better, of seconds and bytes less."""
Label = TypeVar("Label", str, int)


@dataclass(frozen=True)
class Ratio:
    """One ratio per round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.rounds)

    def to_json(self) -> dict[str, Any]:
        rounds = [round(value, 4) for value in self.rounds]
        return {"median": round(self.median, 4), "min": min(rounds), "max": max(rounds), "rounds": rounds}

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.rounds):.2f}..{max(self.rounds):.2f})"


def compare(ours: Sequence[float], peer: Sequence[float], kind: Kind) -> Ratio:
    """Round by round: how many times as fast ours is, or which share of the peer's bytes ours takes.

    Rounds are compared one by one because both were measured in the same minutes; what slows the machine slows both.
    """
    if len(ours) != len(peer) or not ours:
        raise ValueError(f"{len(ours)} rounds of ours and {len(peer)} of the peer cannot be compared")
    pairs = zip(ours, peer, strict=True)
    return Ratio(tuple(theirs / mine if kind == "seconds" else mine / theirs for mine, theirs in pairs))


def best(series: Mapping[Label, Sequence[float]], kind: Kind) -> Label:
    """The label with the best median, e.g. the number of threads that suits a library, or the fastest peer."""
    choose = max if kind == "rate" else min
    return choose(series, key=lambda label: median(series[label]))


def shares(stages: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Share of the time that each stage takes; `rest` is what no stage claims (logging, callbacks, the loop itself)."""
    found = {name: spent / seconds for name, spent in stages.items() if spent > 0}
    return {**found, "rest": max(0.0, 1.0 - sum(found.values()))}
