"""Health rules on how a run went: its end, its resumes, its speed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta

from rl_training.experiment.run.run_dir import CRASH
from rl_training.zoo.report.findings import Finding, Rule
from rl_training.zoo.report.throughput import ASIDE_LIMIT, MIN_SECONDS, slow_stage, speed_advice, throughput
from rl_training.zoo.run_records import RunRecord
from rl_training.zoo.values import mapping, number, show_seconds, show_share, show_steps

SILENCE = timedelta(minutes=15)
"""A run that says it is running but has written nothing for so long was probably killed."""


def failed(run: RunRecord) -> Iterator[Finding]:
    """A run that an error ended."""
    if run.status != "failed":
        return
    crash = (run.path / CRASH).is_dir()
    yield Finding(
        "failed",
        "problem",
        "The run failed",
        f"at step {show_steps(run.steps)}: {stop_reason(run) or 'no reason was recorded'}",
        f"look at the state it left in {CRASH}/, lower the learning rate, and check rewards and observations for huge values"
        if crash
        else f"fix the cause, then continue with `axiomrl resume {shlex.quote(str(run.path))}`",
        run,
        step=run.steps,
    )


def interrupted(run: RunRecord) -> Iterator[Finding]:
    """A run that a signal stopped."""
    if run.status != "interrupted":
        return
    yield Finding(
        "interrupted",
        "note",
        "The run was interrupted",
        f"at step {show_steps(run.steps)} of {show_steps(number(run.config.get('total_timesteps')) or 0)}: "
        f"{stop_reason(run) or 'no reason was recorded'}",
        f"continue with `axiomrl resume {shlex.quote(str(run.path))}`",
        run,
        step=run.steps,
    )


def stalled(run: RunRecord, now: datetime) -> Iterator[Finding]:
    """A run whose process is gone without a word."""
    if run.status != "running":
        return
    lines = [record.get("at_utc") for records in (run.metrics, run.evaluations) for record in records[-1:]]
    times = [time for text in (*lines, run.metadata.get("created_at_utc")) if (time := parse_time(text)) is not None]
    if not times or now - max(times) < SILENCE:
        return
    yield Finding(
        "stalled",
        "problem",
        "The run was probably killed",
        f"its status is still 'running', but its last line, at step {show_steps(run.steps)}, is "
        f"{show_seconds((now - max(times)).total_seconds())} old",
        f"continue with `axiomrl resume {shlex.quote(str(run.path))}`",
        run,
        step=run.steps,
    )


def inexact_resumes(run: RunRecord) -> Iterator[Finding]:
    """Resumes after which the run was no longer the same run bit for bit."""
    for resume in resumes(run):
        if resume["grade"] == "exact":
            continue
        notes = f" ({resume['notes']})" if resume["notes"] else ""
        yield Finding(
            "inexact_resume",
            "note",
            "A resume was not exact",
            f"resumed from {resume['checkpoint']} with grade '{resume['grade']}'{notes}",
            "the run is sound but not repeatable bit for bit; an environment with `get_state` and `set_state` would be",
            run,
        )


def no_evaluation(run: RunRecord) -> Iterator[Finding]:
    """A run without a score."""
    if run.curve or run.status != "completed":
        return
    yield Finding(
        "no_evaluation",
        "warning",
        "The run has no evaluation",
        f"{show_steps(run.steps)} steps, 0 evaluations: neither a last nor a best score",
        "evaluate while training (`--set evaluation.every=10000`), or afterwards with `axiomrl eval RUN`",
        run,
    )


def cut_evaluations(run: RunRecord) -> Iterator[Finding]:
    """Scores with episodes that did not end."""
    cut = [record for record in run.evaluations if (number(record.get("cut_episodes")) or 0) > 0]
    if not cut:
        return
    newest = cut[-1]
    step = number(newest.get("step"))
    yield Finding(
        "cut_evaluation",
        "warning",
        "Evaluations were cut before their episodes ended",
        f"{len(cut)} of {len(run.evaluations)} evaluations; the newest at step {show_steps(step or 0)}: "
        f"{newest['cut_episodes']:g} of {number(newest.get('episodes')) or 0:g} episodes, whose returns are not whole",
        "give the environment a time limit (`--set env.max_episode_steps=1000`), or evaluations a higher one "
        "(`evaluation.max_episode_steps`)",
        run,
        metric="evaluation",
        step=None if step is None else int(step),
    )


def slow(run: RunRecord) -> Iterator[Finding]:
    """One stage takes most of the training time, or evaluations most of the whole."""
    speed = throughput(run)
    if speed is None:
        return
    stage = slow_stage(speed)
    if stage is not None:
        words = {"env": "Stepping the environments", "inference": "Asking the policy for actions", "learn": "Learning"}
        yield Finding(
            f"slow_{stage}",
            "note",
            f"{words.get(stage, f'The stage {stage!r}')} takes a large part of the time",
            f"{stage} takes {show_share(speed.shares[stage])} of the training time at {speed.steps_per_second:,.0f} steps/s",
            speed_advice(stage, run.config, mapping(run.metadata.get("system"))),
            run,
        )
    aside = speed.aside_share
    if aside is not None and aside >= ASIDE_LIMIT and (speed.elapsed or 0) >= MIN_SECONDS:
        yield Finding(
            "slow_aside",
            "note",
            "Evaluations and checkpoints take a large part of the time",
            f"{show_share(aside)} of {show_seconds(speed.elapsed)} went to evaluations and checkpoints",
            "evaluate less often or on fewer episodes (`evaluation.every`, `evaluation.episodes`)",
            run,
        )


RUN_RULES: tuple[Rule, ...] = (failed, interrupted, inexact_resumes, no_evaluation, cut_evaluations, slow)


def resumes(run: RunRecord) -> list[dict[str, str]]:
    """The resume lineage as text: `at_utc`, `checkpoint`, `step`, `grade`, `notes`."""
    found = run.metadata.get("resumes")
    entries = [mapping(entry) for entry in found] if isinstance(found, list) else []
    return [
        {
            "at_utc": str(entry.get("at_utc") or ""),
            "checkpoint": str(entry.get("checkpoint") or "unknown"),
            "step": str(entry.get("step", "")),
            "grade": str(entry.get("grade") or "unknown"),
            "notes": "; ".join(map(str, notes)) if isinstance(notes := entry.get("notes"), list) else str(notes or ""),
        }
        for entry in entries
        if entry
    ]


def stop_reason(run: RunRecord) -> str | None:
    """Why the run ended before its time, in one line."""
    reason = run.metadata.get("stop_reason")
    return str(reason).strip().partition("\n")[0] if reason else None


def parse_time(text: object) -> datetime | None:
    """A time of the files, which are all in UTC and say so."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None
