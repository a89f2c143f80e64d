"""Health rules on a run's learning metrics. Each limit is a named number at the top."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from rl_training.experiment.run.reference import read_reference
from rl_training.experiment.run.run_dir import CHECKPOINTS
from rl_training.utils.errors import UserError
from rl_training.utils.safe_files import read_json, read_limited
from rl_training.zoo.report.curves import Series, series
from rl_training.zoo.report.findings import Finding, Rule
from rl_training.zoo.run_records import NotFinite, RunRecord
from rl_training.zoo.values import mapping, number, setting, show_number, show_share, show_steps

_STEP_FOLDER = re.compile(r"step_\d{1,18}")
MIN_LINES = 5
"""Fewer log lines than this say nothing about a trend."""
ENTROPY_SHARE = 0.1
"""Discrete actions: entropy below this share of its start, in the first half of the training, is a collapse."""
ENTROPY_NATS = 3.0
"""Continuous actions: a fall by this much per dimension, a standard deviation 20 times smaller, is one."""
KL_LIMIT = 0.1
KL_TARGET_FACTOR = 4.0
"""An update that moves further than this, or this many times `target_kl`, is a spike."""
EXPLAINED = 0.1
"""A value function that ever explained more than this (in a tenth of the log lines) did learn something."""
LOSS_GROWTH = 100.0
"""Growth of the value loss beyond what the growth of the returns explains (their square)."""
Q_FACTOR = 5.0
"""Mean Q-value over the largest return ever seen."""
COLLAPSE_SHARE = 0.5
"""Part of what was learned that is lost again between the best and the last evaluation."""
GAP_SHARE = 0.3
"""Evaluation below the training return, as a share of the range of training returns."""


def entropy_collapse(run: RunRecord) -> Iterator[Finding]:
    """The policy stopped exploring early."""
    entropy = series(run.metrics, "train/entropy_loss")
    total = number(run.config.get("total_timesteps")) or run.steps
    if len(entropy) < MIN_LINES:
        return
    start = float(entropy.values[:3].max())
    continuous = bool((entropy.values < 0).any())
    if continuous:
        dimensions = _action_dimensions(run)
        if dimensions is None:
            return
        limit = start - ENTROPY_NATS * dimensions
    elif start > 0:
        limit = ENTROPY_SHARE * start
    else:
        return
    above = np.flatnonzero(entropy.values >= limit)
    first = int(above[-1]) + 1 if len(above) else 0  # from here on it stays below
    if first >= len(entropy) or entropy.steps[first] > total / 2:
        return
    yield Finding(
        "entropy_collapse",
        "warning",
        "The policy's entropy collapsed early",
        f"entropy {show_number(start)} at the start, below {show_number(limit)} for good from step "
        f"{show_steps(entropy.steps[first])}, {show_number(float(entropy.values[-1]))} at the end",
        "if the score is lower than you expect, raise `hyperparams.ent_coef` or lower the learning rate",
        run,
        "train/entropy_loss",
        int(entropy.steps[first]),
    )


def kl_spikes(run: RunRecord) -> Iterator[Finding]:
    """Updates that moved the policy much further than PPO means to."""
    kl = series(run.metrics, "train/approx_kl")
    target = number(setting(run.config, "hyperparams.target_kl"))
    limit = KL_TARGET_FACTOR * target if target else KL_LIMIT
    over = np.flatnonzero(kl.values > limit)
    if not len(over):
        return
    peak = int(kl.values.argmax())
    fix = "lower the learning rate or `hyperparams.update_epochs`"
    yield Finding(
        "kl_spikes",
        "warning",
        "Updates moved the policy too far (KL spikes)",
        f"{len(over)} of {len(kl)} log lines above {show_number(limit)}, peak {show_number(float(kl.values[peak]))} "
        f"at step {show_steps(kl.steps[peak])}",
        fix if target else f"{fix}, or stop epochs early with `--set hyperparams.target_kl=0.02`",
        run,
        "train/approx_kl",
        int(kl.steps[peak]),
    )


def useless_critic(run: RunRecord) -> Iterator[Finding]:
    """The value function predicts the returns no better than a constant."""
    explained = series(run.metrics, "train/explained_variance")
    if len(explained) < MIN_LINES:
        return
    late = float(np.median(explained.part(0.5, 1).values))
    # Once every episode has the same return there is nothing left to explain, so a critic that was good before is fine.
    if late > 0 or float(np.quantile(explained.values, 0.9)) > EXPLAINED:
        return
    yield Finding(
        "explained_variance",
        "warning",
        "The value function explains nothing of the returns",
        f"explained variance stays at {show_number(late)} (median of the second half); 1 is perfect, 0 is a constant",
        "normalise rewards (`--set env.normalize_rewards=true`), raise `hyperparams.vf_coef` or the learning rate, "
        "or check that the observation tells how much reward is left",
        run,
        "train/explained_variance",
    )


def not_finite(run: RunRecord) -> Iterator[Finding]:
    """NaN or infinity in the logged metrics, which JSON holds as null."""
    bad = run.not_finite or NotFinite.of(run.metrics)
    if not bad.affected:
        return
    keys = bad.keys
    yield Finding(
        "not_finite",
        "problem",
        "NaN or infinity among the training metrics",
        f"{bad.affected:,} of {bad.lines:,} log lines, {', '.join(keys[:3])}{' and more' if len(keys) > 3 else ''}, first at "
        f"step {show_steps(bad.first_step or 0)}",
        "lower the learning rate, clip gradients (`hyperparams.max_grad_norm`), and check rewards and observations for "
        "very large values (`--set env.normalize_observations=true`)",
        run,
        step=bad.first_step,
    )


def loss_blow_up(run: RunRecord) -> Iterator[Finding]:
    """The value loss grew far more than the returns explain: a loss grows with their square."""
    returns = series(run.metrics, "episode_return")
    for key in ("train/value_loss", "train/critic_loss"):
        loss = series(run.metrics, key)
        if len(loss) < 2 * MIN_LINES:
            continue
        base, late = (float(np.median(loss.part(*share).values)) for share in ((0, 0.5), (0.9, 1)))
        grown = 1.0
        if len(returns) >= MIN_LINES:
            before, after = (float(np.abs(returns.part(*share).values).max()) for share in ((0, 0.5), (0.5, 1)))
            grown = max(1.0, after / before) if before > 0 else 1.0
        if base <= 0 or late / base < LOSS_GROWTH * grown**2:
            continue
        yield Finding(
            "value_loss",
            "warning",
            "The value loss blew up",
            f"{show_number(base)} in the first half, {show_number(late)} at the end ({late / base:,.0f} times as much)",
            "lower the learning rate, clip gradients (`hyperparams.max_grad_norm`) or normalise rewards",
            run,
            key,
        )


def q_overestimation(run: RunRecord) -> Iterator[Finding]:
    """Q-values beyond anything the environment has ever paid."""
    q, returns = series(run.metrics, "train/q"), series(run.metrics, "episode_return")
    if len(q) < MIN_LINES or not len(returns) or setting(run.config, "env.normalize_rewards"):
        return
    scale = number(setting(run.config, "hyperparams.reward_scale")) or 1.0
    late, largest = abs(float(np.median(q.part(0.8, 1).values)) / scale), float(np.abs(returns.values).max())
    if largest <= 0 or late < Q_FACTOR * largest:
        return
    yield Finding(
        "q_overestimation",
        "warning",
        "Q-values exceed what the environment pays",
        f"mean |Q| {show_number(late)} at the end; the largest training return ever was {show_number(largest)}",
        "lower the learning rate, update the target network more slowly (`hyperparams.tau`), or use an algorithm with "
        "clipped double critics",
        run,
        "train/q",
    )


def return_collapse(run: RunRecord) -> Iterator[Finding]:
    """Most of what had been learned was lost again."""
    evaluations = [record for record in run.evaluations if number(record.get("mean")) is not None]
    if len(evaluations) < 4:
        return
    means = np.array([number(record["mean"]) for record in evaluations], dtype=np.float64)
    best = int(means.argmax())
    gained, lost = means[best] - means[: best + 1].min(), means[best] - means[-1]
    if gained <= 0 or lost < COLLAPSE_SHARE * gained or not _clearly_below(evaluations[-1], evaluations[best]):
        return
    yield Finding(
        "return_collapse",
        "problem",
        "The return collapsed after its best",
        f"evaluation return {show_number(float(means[best]))} at step {show_steps(number(evaluations[best].get('step')) or 0)}, "
        f"{show_number(float(means[-1]))} at the end ({show_share(min(lost / gained, 1.0))} of the gain lost)",
        "use the best checkpoint (`axiomrl eval RUN --best`), let the learning rate fall to 0 "
        "(`{start: 1e-3, end: 0}`), or lower it",
        run,
        "evaluation",
        int(number(evaluations[best].get("step")) or 0),
    )


def evaluation_gap(run: RunRecord) -> Iterator[Finding]:
    """The agent does much worse in evaluation than in training."""
    returns = series(run.metrics, "episode_return")
    last = run.evaluations[-1] if run.evaluations else {}
    mean, high = number(last.get("mean")), number(last.get("ci_high"))
    if len(returns) < MIN_LINES or mean is None:
        return
    trained, spread = float(returns.values[-1]), float(np.ptp(returns.values))
    if trained - mean < max(GAP_SHARE * spread, 0.1 * abs(trained)) or (high is not None and high >= trained):
        return
    deterministic = last.get("deterministic") is True
    yield Finding(
        "evaluation_gap",
        "warning",
        "Evaluations are far below the training return",
        f"evaluation {show_number(mean)}, training return {show_number(trained)} (mean of the last 100 episodes)",
        "the most likely action may be worse than a sampled one: compare with `axiomrl eval RUN --stochastic`"
        if deterministic
        else "check that the evaluation environment is the same as the one trained on (`env.kwargs`)",
        run,
        "evaluation",
    )


def no_progress(run: RunRecord) -> Iterator[Finding]:
    """Neither evaluations nor training returns are better at the end than at the start."""
    returns = series(run.metrics, "episode_return")
    if len(run.curve) < 4 or len(returns) < MIN_LINES:
        return
    first, best = run.evaluations[0], max(run.evaluations, key=lambda line: number(line.get("mean")) or float("-inf"))
    early, late = (float(returns.part(*share).values.mean()) for share in ((0, 0.2), (0.8, 1)))
    if _clearly_below(first, best) or late > early + 0.1 * abs(early):
        return
    yield Finding(
        "no_progress",
        "warning",
        "The agent has not learned",
        f"training return {show_number(early)} at the start, {show_number(late)} at the end; evaluations "
        f"{show_number(run.curve[0][1])} at first, {show_number(run.best_score)} at best",
        "train longer, or start from a preset that is known to work here (`axiomrl zoo list`)",
        run,
        "evaluation",
    )


def below_reference(run: RunRecord) -> Iterator[Finding]:
    """The run ended clearly below every seed of the shipped result that has its config."""
    try:
        reference = read_reference(run.path)
    except UserError:
        return
    last = run.evaluations[-1] if run.evaluations else {}
    score, low, high = (number(last.get(key)) for key in ("mean", "ci_low", "ci_high"))
    if reference is None or run.status != "completed" or score is None or low is None or high is None:
        return
    seeds = reference.at_end
    if seeds.place(score, low, high) != "below":
        return
    yield Finding(
        "below_reference",
        "warning",
        "The run ended below the reference",
        f"evaluation {show_number(score)} ({show_number(low)} to {show_number(high)}); the {seeds.seeds} seeds of "
        f"{reference.preset} ended between {show_number(seeds.low)} and {show_number(seeds.high)}",
        "one seed may be unlucky: run more (`axiomrl train PRESET --seeds 1,2,3`), then compare with "
        "`axiomrl leaderboard RUNS --compare-to shipped`",
        run,
        "evaluation",
    )


LEARNING_RULES: tuple[Rule, ...] = (
    not_finite,
    return_collapse,
    below_reference,
    no_progress,
    evaluation_gap,
    entropy_collapse,
    kl_spikes,
    useless_critic,
    loss_blow_up,
    q_overestimation,
)


def metric_series(finding: Finding) -> Series | None:
    """The series that shows a finding, if it has one."""
    if finding.metric is None:
        return None
    if finding.metric == "evaluation":
        return series(finding.run.evaluations, "mean")
    return series(finding.run.metrics, finding.metric)


def _clearly_below(one: dict[str, object], other: dict[str, object]) -> bool:
    """Whether the 95 % intervals of two evaluations do not even touch."""
    high, low = number(one.get("ci_high")), number(other.get("ci_low"))
    if high is None or low is None:
        high, low = number(one.get("mean")), number(other.get("mean"))
    return high is not None and low is not None and high < low


def _action_dimensions(run: RunRecord) -> int | None:
    """Size of a continuous action, from the newest checkpoint; None if that cannot be read."""
    folder = run.path / CHECKPOINTS
    try:
        name = read_limited(folder / "latest", 100, inside=run.path).decode("ascii").strip()
        state = read_json(folder / name / "state.json", inside=run.path) if _STEP_FOLDER.fullmatch(name) else None
    except (OSError, ValueError):
        return None
    space = mapping(setting(mapping(state), "groups.policy.action_space"))
    shape = mapping(space.get("low")).get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size > 0 for size in shape):
        return None
    return int(np.prod(shape))
