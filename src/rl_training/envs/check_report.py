"""What `check_env` says: findings in plain words, each with its fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("error", "warning", "info")

CHECKS = {
    "creation": "the environment can be made",
    "api": "reset and step take and return what Gymnasium says",
    "observation-space": "observations can be encoded",
    "action-space": "actions can be chosen",
    "bounds": "observations lie in their space",
    "images": "images are stored and scaled well",
    "buffers": "arrays that were handed out are left alone",
    "seeding": "the seed decides how episodes begin",
    "determinism": "the same seed and actions give the same episodes",
    "shared-generators": "random numbers come from self.np_random",
    "carried-state": "a seeded reset forgets what was before",
    "endless": "episodes end",
    "final-observation": "the last observation of an episode is a number",
    "autoreset": "it is known when a finished environment is reset",
    "rewards": "rewards are of a size to learn from",
    "resume": "a run comes back exactly",
    "workers": "worker processes see the same episodes",
    "speed": "how fast it steps",
}
"""Every check, and what holds where it finds nothing."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    An `error` makes training impossible or wrong; after a `warning` it goes on, and something that AxiomRL promises, or that
    helps to learn, does not hold; an `info` is worth knowing.
    """

    level: Level
    check: str
    """A key of CHECKS."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.level}: {self.check}: {self.message}"
        return f"{text}\n    fix: {self.fix}" if self.fix else text


@dataclass
class EnvReport:
    """All findings about one environment."""

    env: str
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Spaces, limits, rewards, speed and the resume grade to expect, where they are known."""

    @property
    def passed(self) -> bool:
        """No errors; warnings are allowed."""
        return not self.of("error")

    def of(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == level]

    def add(self, level: Level, check: str, message: str, fix: str = "") -> None:
        assert check in CHECKS
        self.findings.append(Finding(level, check, message, fix))

    def to_dict(self) -> dict[str, Any]:
        """As `axiomrl check-env --json` prints it."""
        findings = [asdict(finding) for finding in self.findings]
        return {"env": self.env, "passed": self.passed, "facts": self.facts, "findings": findings}

    def __str__(self) -> str:
        lines = [self.env, *(f"  {name.replace('_', ' ')}: {value}" for name, value in self.facts.items())]
        lines += [str(finding) for level in LEVELS for finding in self.of(level)]
        errors, warnings = len(self.of("error")), len(self.of("warning"))
        counts = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
        return "\n".join([*lines, f"{'passed' if self.passed else 'not passed'}: {counts}"])
