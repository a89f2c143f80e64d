"""All findings of a run."""

from __future__ import annotations

from datetime import datetime

from rl_training.zoo.report.findings import SEVERITIES, Finding
from rl_training.zoo.report.learning_rules import LEARNING_RULES
from rl_training.zoo.report.run_rules import RUN_RULES, stalled
from rl_training.zoo.run_records import RunRecord


def find_all(run: RunRecord, now: datetime) -> list[Finding]:
    """Every finding of a run, the gravest first; `now` tells a running run from one that was killed."""
    found = [finding for rule in (*RUN_RULES, *LEARNING_RULES) for finding in rule(run)]
    return sorted([*found, *stalled(run, now)], key=lambda finding: SEVERITIES.index(finding.severity))
