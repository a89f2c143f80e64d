"""Health rules on learning metrics: each fires on what it is for, and on nothing near it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.report_runs import evaluations, lines, record
from rl_training.experiment.run.reference import Reference, save_reference
from rl_training.zoo.report import learning_rules as rules
from rl_training.zoo.report.findings import Finding
from rl_training.zoo.run_records import RunRecord


def fired(rule: Callable[[RunRecord], Iterator[Finding]], run: RunRecord) -> Finding | None:
    found = list(rule(run))
    assert len(found) <= 1
    return found[0] if found else None


def test_entropy_that_collapses_in_the_first_half_and_stays_down() -> None:
    run = record(metrics=lines(train__entropy_loss=[0.69, 0.6, 0.05, 0.04, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01]))
    finding = fired(rules.entropy_collapse, run)
    assert finding is not None and finding.step == 3000, "0.05 is the first below a tenth of 0.69"
    assert "0.69 at the start" in finding.seen and "ent_coef" in finding.advice


@pytest.mark.parametrize(
    "entropy",
    [
        [0.69, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.08, 0.05, 0.04],  # late: convergence
        [0.69, 0.01, 0.01, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5],  # it recovered
        [0.69, 0.01, 0.01],  # too few lines
    ],
)
def test_entropy_that_falls_late_or_recovers_is_no_collapse(entropy: list[float]) -> None:
    assert fired(rules.entropy_collapse, record(metrics=lines(train__entropy_loss=entropy))) is None


def test_continuous_entropy_is_judged_per_action_dimension(tmp_path: Path) -> None:
    """Two dimensions: a fall by 6 nats is the limit. Only the checkpoint knows how many there are."""
    entropy = [2.8, 0.0, -3.3, -3.4, -3.4, -3.5, -3.5, -3.5, -3.5, -3.5]
    run = record(metrics=lines(train__entropy_loss=entropy), path=tmp_path)
    assert fired(rules.entropy_collapse, run) is None, "without the checkpoint nothing is claimed"
    _write_action_space(tmp_path, [2])
    finding = fired(rules.entropy_collapse, run)
    assert finding is not None and finding.step == 3000
    _write_action_space(tmp_path, [6])
    assert fired(rules.entropy_collapse, run) is None, "6 nats over six dimensions is ordinary learning"


def test_kl_spikes_count_against_the_limit_or_the_target() -> None:
    kl = [0.01, 0.02, 0.3, 0.01, 0.15]
    finding = fired(rules.kl_spikes, record(metrics=lines(train__approx_kl=kl)))
    assert finding is not None and "2 of 5 log lines above 0.10, peak 0.30 at step 3k" in finding.seen
    assert "target_kl=0.02" in finding.advice
    with_target = record(metrics=lines(train__approx_kl=kl), config={"hyperparams": {"target_kl": 0.05}})
    finding = fired(rules.kl_spikes, with_target)
    assert finding is not None and "1 of 5 log lines above 0.20" in finding.seen
    assert "target_kl=" not in finding.advice, "it has one already"
    assert fired(rules.kl_spikes, record(metrics=lines(train__approx_kl=[0.01] * 5))) is None


def test_explained_variance_that_never_left_zero() -> None:
    flat = record(metrics=lines(train__explained_variance=[-0.1, 0.01, -0.2, -0.1, -0.05, 0.0]))
    finding = fired(rules.useless_critic, flat)
    assert finding is not None and "-0.05" in finding.seen
    solved = record(metrics=lines(train__explained_variance=[0.2, 0.6, 0.7, -0.1, -0.2, -0.3]))
    assert fired(rules.useless_critic, solved) is None, "constant returns leave nothing to explain"


def test_nan_in_the_metrics_is_found_as_null() -> None:
    run = record(metrics=lines(train__loss=[1.0, None, None], train__q=[1.0, 1.0, None], time__x=[None, 1.0, 1.0]))
    finding = fired(rules.not_finite, run)
    assert finding is not None and finding.severity == "problem" and finding.step == 2000
    assert finding.seen.startswith("2 of 3 log lines, train/loss, train/q, first at step 2k")
    assert fired(rules.not_finite, record(metrics=lines(train__loss=[1.0, 2.0]))) is None


def test_a_value_loss_that_blows_up_beyond_what_the_returns_explain() -> None:
    loss = [1.0] * 6 + [50.0, 200.0, 500.0, 900.0]
    flat = record(metrics=lines(train__value_loss=loss, episode_return=[10.0] * 10))
    finding = fired(rules.loss_blow_up, flat)
    assert finding is not None and "900 times as much" in finding.seen
    grown = record(metrics=lines(train__value_loss=loss, episode_return=[10.0] * 5 + [20.0, 40.0, 60.0, 80.0, 100.0]))
    assert fired(rules.loss_blow_up, grown) is None, "returns ten times as large make a loss a hundred times as large"


def test_q_values_are_compared_with_the_returns_in_the_same_scale() -> None:
    metrics = lines(train__q=[1.0, 5.0, 8.0, 9.0, 9.0], episode_return=[50.0, 80.0, 100.0, 120.0, 150.0])
    assert fired(rules.q_overestimation, record(metrics=metrics)) is None
    scaled = record(metrics=metrics, config={"hyperparams": {"reward_scale": 0.01}})
    finding = fired(rules.q_overestimation, scaled)
    assert finding is not None and "mean |Q| 900.0" in finding.seen and "was 150.0" in finding.seen


def test_a_return_that_collapses_after_its_best() -> None:
    finding = fired(rules.return_collapse, record(evaluations=evaluations(20, 300, 480, 200, 110)))
    assert finding is not None and finding.step == 3000
    assert "evaluation return 480.0 at step 3k, 110.0 at the end (80 % of the gain lost)" in finding.seen
    assert fired(rules.return_collapse, record(evaluations=evaluations(20, 300, 480, 450, 440))) is None
    noisy = record(evaluations=evaluations(20, 300, 480, 200, 110, margin=200))
    assert fired(rules.return_collapse, noisy) is None, "the intervals overlap"


def test_evaluations_far_below_the_training_return() -> None:
    metrics = lines(episode_return=[20.0, 100.0, 200.0, 300.0, 400.0])
    run = record(metrics=metrics, evaluations=evaluations(20, 50, 60))
    finding = fired(rules.evaluation_gap, run)
    assert finding is not None and "evaluation 60.0, training return 400.0" in finding.seen
    assert "--stochastic" in finding.advice
    assert fired(rules.evaluation_gap, record(metrics=metrics, evaluations=evaluations(20, 50, 390))) is None
    assert fired(rules.evaluation_gap, record(metrics=metrics, evaluations=evaluations(60, margin=500))) is None


def test_a_run_that_has_not_learned() -> None:
    flat = lines(episode_return=[20.0, 21.0, 20.0, 19.0, 20.0])
    finding = fired(rules.no_progress, record(metrics=flat, evaluations=evaluations(20, 21, 19, 20)))
    assert finding is not None and "20.0 at the start, 20.0 at the end" in finding.seen
    rising = lines(episode_return=[20.0, 100.0, 200.0, 400.0, 500.0])
    solved = record(metrics=rising, evaluations=evaluations(500, 500, 500, 500))
    assert fired(rules.no_progress, solved) is None, "solved before its first evaluation"


def test_a_run_below_every_seed_of_its_reference(tmp_path: Path) -> None:
    curve = ((1000, 100.0), (2000, 490.0))
    save_reference(tmp_path, Reference("ppo/cartpole", 490.0, (480.0, 500.0), (480.0, 500.0), (curve, curve)))
    finding = fired(rules.below_reference, record(evaluations=evaluations(90, 300), path=tmp_path))
    assert finding is not None
    assert (
        "evaluation 300.0 (299.0 to 301.0); the 2 seeds of ppo/cartpole ended between 480.0 and 500.0" in finding.seen
    )
    assert fired(rules.below_reference, record(evaluations=evaluations(90, 485), path=tmp_path)) is None
    running = record(evaluations=evaluations(90, 300), path=tmp_path, status="running")
    assert fired(rules.below_reference, running) is None, "it is not over yet"


def test_files_full_of_nonsense_give_no_finding_and_no_error() -> None:
    nonsense: list[dict[str, object]] = [{"step": "x", "train/approx_kl": "high"}, {"train/entropy_loss": []}, {}]
    run = record(metrics=nonsense * 5, evaluations=[{"mean": "a lot"}, {"step": None, "mean": True}] * 5)
    assert [finding for rule in rules.LEARNING_RULES for finding in rule(run)] == []


def _write_action_space(run: Path, shape: list[int]) -> None:
    folder = run / "checkpoints" / "step_000001000"
    folder.mkdir(parents=True, exist_ok=True)
    (run / "checkpoints" / "latest").write_text(folder.name)
    space = {"type": "Box", "low": {"$array": "low", "dtype": "float32", "shape": shape}}
    (folder / "state.json").write_text(json.dumps({"groups": {"policy": {"action_space": space}}}))
