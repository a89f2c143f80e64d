"""The report as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helpers.report_runs import change_metadata, learning_run
from helpers.run_folders import write_run
from rl_training.zoo.report.export import csv_report, json_report
from rl_training.zoo.report.model import Report, build_report
from rl_training.zoo.report.text import text_report
from rl_training.zoo.run_records import find_runs
from rl_training.zoo.values import leaves, show_number, show_seconds, show_setting, show_steps


def report_on(folder: Path) -> Report:
    records, skipped = find_runs([folder])
    return build_report(records, skipped, [folder], datetime(2026, 3, 1, tzinfo=UTC))


def test_the_text_has_every_part(tmp_path: Path) -> None:
    for seed in range(3):
        run = learning_run(tmp_path / f"ppo{seed}", seed=seed)
    change_metadata(
        run, resumes=[{"checkpoint": "step_000001000", "step": 1000, "grade": "episode-boundary", "notes": ["n"]}]
    )
    learning_run(tmp_path / "fast", seed=9, hyperparams={"learning_rate": 0.5}, gain=1.0)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "metadata.json").write_text("{")
    text = text_report(report_on(tmp_path))
    assert text.startswith("AxiomRL report: 4 runs in 2 groups on 1 environment\n")
    assert "PPO, learning_rate 0.001  3      401.0 (400.0 to 402.0)" in text
    assert "hyperparams.learning_rate  0.001  0.5" in text
    assert "note: A resume was not exact\n    ppo2: resumed from step_000001000" in text
    assert "ppo2  step_000001000   episode-boundary" in text
    assert "torch             2.6.0" in text
    assert "half: metadata.json cannot be read" in text.partition("Skipped")[2]


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    run = learning_run(tmp_path / "run", status="failed")
    change_metadata(run, stop_reason="\x1b[2Jgone\x07")
    text = text_report(report_on(tmp_path))
    assert "gone" in text and not [sign for sign in text if not sign.isprintable() and sign != "\n"]


def test_json_is_strict_and_complete(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=3, curve=[(1000, 10.0), (2000, 30.0), (3000, 20.0)])
    with (tmp_path / "a" / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 4000, "mean": NaN}\n')

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    values = json.loads(json_report(report_on(tmp_path)), parse_constant=refuse)
    (run,) = values["runs"]
    assert run["last_score"] is None and run["best_score"] == 30.0 and run["best_step"] == 2000
    (group,) = values["environments"][0]["groups"]
    assert group["last"] is None and "no score" in group["flags"]


def test_csv_has_one_row_per_run_and_no_formulas(tmp_path: Path) -> None:
    learning_run(tmp_path / "a", seed=0)
    learning_run(tmp_path / "b", seed=1, env_id="=1+1")
    rows = list(csv.DictReader(io.StringIO(csv_report(report_on(tmp_path)))))
    assert [(row["env_id"], row["seed"], row["last_score"]) for row in rows] == [
        ("'=1+1", "1", "401.0"),
        ("CartPole-v1", "0", "400.0"),
    ]
    assert float(rows[1]["learn_share"]) == pytest.approx(0.5) and float(rows[1]["other_share"]) == pytest.approx(0.1)


def test_numbers_in_short() -> None:
    assert [show_number(value) for value in (0.0, 0.051, -1234.56, 12345.6, 0.00001, 3e12, None)] == [
        *("0.00", "0.0510", "-1,234.6", "12,346", "1.00e-05", "3.00e+12", "-"),
    ]
    assert [show_steps(value) for value in (999, 15360, 1_500_000)] == ["999", "15.4k", "1.5M"]
    assert [show_seconds(value) for value in (5.86, 59.4, 200, 7500)] == ["5.9 s", "59 s", "3 min 20 s", "2 h 05 min"]


def test_settings_in_short() -> None:
    config = {"a": {"b": {"start": 0.001, "end": 0.0, "fraction": 0.5}, "c": {}}, "d": [64, 64], "e": None, "f": True}
    assert {key: show_setting(value) for key, value in leaves(config).items()} == {
        "a.b": "0.001 to 0 over 50 %",
        "a.c": "none",
        "d": "64, 64",
        "e": "none",
        "f": "true",
    }
