"""The seeds a run is measured against: looked up between evaluations, and kept in the run's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_training.experiment.run.reference import Band, Reference, read_reference, save_reference
from rl_training.utils.errors import UserError

TWO_SEEDS = Reference(
    preset="ppo/cartpole",
    last_mean=450.0,
    last_interval=(420.0, 480.0),
    last_scores=(400.0, 500.0),
    curves=(((100, 10.0), (200, 30.0)), ((100, 20.0), (300, 80.0))),
)


def test_between_evaluations_a_seed_lies_on_the_line_between_them() -> None:
    # Seed 0: 10 -> 30 over 100 steps, at 150 it has 20. Seed 1: 20 -> 80 over 200 steps, at 150 it has 35.
    assert TWO_SEEDS.at(150) == Band(150, low=20.0, high=35.0, mean=27.5, seeds=2)


def test_at_an_evaluation_the_band_is_what_the_seeds_had() -> None:
    assert TWO_SEEDS.at(100) == Band(100, low=10.0, high=20.0, mean=15.0, seeds=2)


def test_before_the_first_evaluation_there_is_no_band_and_after_the_last_it_stays() -> None:
    assert TWO_SEEDS.at(99) is None
    assert TWO_SEEDS.first_step == 100
    assert TWO_SEEDS.at(250) == Band(250, low=30.0, high=65.0, mean=47.5, seeds=2)
    assert TWO_SEEDS.at(1000) == Band(1000, low=30.0, high=80.0, mean=55.0, seeds=2)


def test_a_seed_that_starts_later_joins_later() -> None:
    late = Reference("p/q", 1.0, (1.0, 1.0), (1.0, 1.0), (((10, 1.0),), ((20, 3.0),)))
    assert late.at(15) == Band(15, low=1.0, high=1.0, mean=1.0, seeds=1)
    assert late.at(20) == Band(20, low=1.0, high=3.0, mean=2.0, seeds=2)


def test_the_mean_curve_has_every_step_at_which_a_seed_was_evaluated() -> None:
    # At 200 seed 1 has 50, at 300 seed 0 keeps its 30.
    assert TWO_SEEDS.mean_curve == ((100, 15.0), (200, 40.0), (300, 55.0))


def test_the_end_is_judged_by_the_last_checkpoints() -> None:
    assert TWO_SEEDS.at_end == Band(300, low=400.0, high=500.0, mean=450.0, seeds=2)


@pytest.mark.parametrize(
    ("score", "interval", "place"),
    [
        (450.0, (440.0, 460.0), "within"),
        (400.0, (390.0, 410.0), "within"),
        (399.996, (390.0, 399.996), "within"),  # the data files round to two decimals
        (399.9, (380.0, 402.0), "slightly below"),
        (390.0, (380.0, 399.0), "below"),
        (501.0, (499.0, 503.0), "slightly above"),
        (510.0, (505.0, 515.0), "above"),
    ],
)
def test_where_a_score_lies(score: float, interval: tuple[float, float], place: str) -> None:
    assert TWO_SEEDS.at_end.place(score, *interval) == place


def test_it_comes_back_from_the_run_folder_as_it_was(tmp_path: Path) -> None:
    assert read_reference(tmp_path) is None
    save_reference(tmp_path, TWO_SEEDS)
    assert read_reference(tmp_path) == TWO_SEEDS
    save_reference(tmp_path, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({**TWO_SEEDS.to_dict(), "curves": []}), '{"preset": "x"}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "reference.json").write_text(text)
    with pytest.raises(UserError, match=r"reference\.json cannot be read .* if you delete it"):
        read_reference(tmp_path)
