"""Which seeds may stand together: one method on one task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.run_folders import write_result, write_run
from rl_training.utils.errors import UserError
from rl_training.zoo.score_groups import collect, select, shipped


def _summary(paths: list[Path]) -> dict[tuple[str, str], list[float | None]]:
    return {(group.task, group.name): [run.last for run in group.runs] for group in collect(paths)[0]}


def test_seeds_of_one_config_stand_together_and_environments_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=1, curve=[(1000, 10.0)])
    write_run(tmp_path / "b", seed=0, curve=[(1000, 20.0)], output_dir="elsewhere", device="cuda")
    write_run(tmp_path / "c", seed=0, curve=[(1000, -150.0)], env_id="Pendulum-v1")
    write_run(tmp_path / "d", seed=0, curve=[(1000, 30.0)], algo="a2c")
    assert _summary([tmp_path]) == {
        ("CartPole-v1", "a2c"): [30.0],
        ("CartPole-v1", "ppo"): [20.0, 10.0],
        ("Pendulum-v1", "ppo"): [-150.0],
    }


def test_an_environment_with_other_arguments_is_another_task(tmp_path: Path) -> None:
    write_run(tmp_path / "a", env_id="LunarLander-v3", env={"kwargs": {"continuous": True}})
    write_run(tmp_path / "b", env_id="LunarLander-v3", env={"kwargs": {}})
    write_run(tmp_path / "c", env_id="LunarLander-v3", env={"kwargs": {}, "max_episode_steps": 50})
    tasks = [task for task, _ in _summary([tmp_path])]
    assert tasks == ["LunarLander-v3", "LunarLander-v3(continuous=True)", "LunarLander-v3(max_episode_steps=50)"]
    assert len(select(collect([tmp_path])[0], ["LunarLander-v3"], [])) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"hyperparams": {"learning_rate": 1.0}},
        {"total_timesteps": 9000},
        {"num_envs": 2},
        {"env": {"kwargs": {}, "normalize_observations": True}},
        {"evaluation": {"deterministic": False}},
    ],
)
def test_another_method_is_another_group_and_says_how_it_differs(tmp_path: Path, change: dict) -> None:
    write_run(tmp_path / "a", num_envs=8, env={"kwargs": {}, "normalize_observations": False}, seed=0)
    write_run(tmp_path / "b", **{"num_envs": 8, **change}, seed=1)
    groups, notes = collect([tmp_path])
    assert [group.name for group in groups] == ["ppo (1)", "ppo (2)"] and notes == []
    section, value = next(iter(change.items()))
    key, value = (
        (f"{section}.{list(value)[-1]}", list(value.values())[-1]) if isinstance(value, dict) else (section, value)
    )
    assert list(groups[0].differences) == [key] and groups[1].differences == {key: value}


@pytest.mark.parametrize("change", [{"env": {"kwargs": {}, "backend": "async"}}, {"logging": {"every": 5}}])
def test_where_and_how_a_run_works_does_not_make_it_another_method(tmp_path: Path, change: dict) -> None:
    write_run(tmp_path / "a", env={"kwargs": {}, "backend": "sync"}, logging={"every": 1}, seed=0)
    write_run(tmp_path / "b", **{"env": {"kwargs": {}, "backend": "sync"}, **change}, seed=1)
    assert _summary([tmp_path]) == {("CartPole-v1", "ppo"): [100.0, 100.0]}


def test_a_result_file_without_defaults_is_the_config_that_spells_them_out(tmp_path: Path) -> None:
    write_result(tmp_path / "r.json", [500.0, 490.0], hyperparams={"learning_rate": {"start": 0.001, "end": 0.0}})
    full = {"learning_rate": {"start": 0.001, "end": 0.0, "fraction": 1.0}, "gamma": 0.99}
    write_run(tmp_path / "run", seed=7, hyperparams=full, curve=[(1000, 480.0)])
    assert _summary([tmp_path / "r.json", tmp_path / "run"]) == {("CartPole-v1", "ppo"): [500.0, 490.0, 480.0]}


def test_results_of_several_presets_go_by_their_presets(tmp_path: Path) -> None:
    write_result(tmp_path / "a.json", [1.0], preset="ppo/cartpole", num_envs=8)
    write_result(tmp_path / "b.json", [2.0], preset="ppo/cartpole_fast", num_envs=1)
    assert _summary([tmp_path]) == {("CartPole-v1", "ppo/cartpole"): [1.0], ("CartPole-v1", "ppo/cartpole_fast"): [2.0]}


def test_a_seed_counts_once_the_completed_and_newest_run_of_it(tmp_path: Path) -> None:
    write_run(tmp_path / "old", seed=0, curve=[(1000, 1.0)], created="2026-01-01")
    write_run(tmp_path / "new", seed=0, curve=[(1000, 2.0)], created="2026-01-02")
    write_run(tmp_path / "broken", seed=0, curve=[(1000, 3.0)], created="2026-01-03", status="failed")
    groups, notes = collect([tmp_path])
    assert [run.last for run in groups[0].runs] == [2.0]
    assert sorted(notes) == [
        f"{tmp_path / name}: left out, seed 0 of the same config counts already" for name in ("broken", "old")
    ]


def test_a_failed_run_has_no_score_and_an_interrupted_one_an_early_one(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, status="failed", curve=[(1000, 500.0)])
    write_run(tmp_path / "b", seed=1, status="interrupted", curve=[(1000, 200.0)])
    write_run(tmp_path / "c", seed=2, curve=[])
    (group,), _ = collect([tmp_path])
    assert [run.seed for run in group.without_score] == [0, 2]
    assert [run.seed for run in group.unfinished] == [1]
    assert group.last.tolist() == [200.0]


def test_a_benchmark_folder_is_read_by_its_results(tmp_path: Path) -> None:
    write_result(tmp_path / "results" / "ppo.json", [500.0], seeds_asked=5)
    write_run(tmp_path / "runs" / "seed0", seed=0, curve=[(1000, 499.0)])
    (group,), notes = collect([tmp_path])
    assert (group.preset, group.seeds_asked, notes) == ("ppo/cartpole", 5, [])
    assert group.last.tolist() == [500.0] and group.best.tolist() == [501.0]


def test_what_is_neither_run_nor_result_is_refused_or_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run and no result found in .*empty: expected run folders"):
        collect([tmp_path / "empty"])
    with pytest.raises(UserError, match="missing does not exist"):
        collect([tmp_path / "missing"])
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UserError, match="no run and no result found in .*x.json: is not a result file"):
        collect([tmp_path])
    write_result(tmp_path / "good.json", [1.0])
    groups, notes = collect([tmp_path])
    assert len(groups) == 1 and notes == [f"{tmp_path / 'x.json'}: is not a result file"]


def test_the_shipped_results_can_be_grouped() -> None:
    groups = {(group.algo, group.task): group for group in shipped()}
    assert len(groups[("ppo", "CartPole-v1")].scored) >= 5
    assert ("dqn", "BitFlip-v0(bits=20)") in groups


def _benchmark(folder: Path, preset: str, total_timesteps: int) -> None:
    """The folder of a benchmark: its identity, a run, and the result that was made from it."""
    algo = preset.partition("/")[0]
    write_run(folder / "preset" / "run", algo=algo, curve=[(total_timesteps, 9.0)], total_timesteps=total_timesteps)
    (folder / "benchmark.json").write_text('{"format": 1, "name": "x"}', encoding="utf-8")
    write_result(folder / "results" / "r.json", [9.0], algo=algo, preset=preset, steps=total_timesteps)


def test_a_smoke_benchmark_among_the_runs_is_not_ranked(tmp_path: Path) -> None:
    write_run(tmp_path / "mine", seed=0, curve=[(1000, 20.0)], algo="ppo")
    _benchmark(tmp_path / "zoo" / "smoke", "ppo/cartpole", 1_100)
    groups, (note,) = collect([tmp_path])
    assert [(group.algo, [run.last for run in group.runs]) for group in groups] == [("ppo", [20.0])]
    assert "zoo/smoke: left out ppo/cartpole" in note and f"axiomrl leaderboard {tmp_path / 'zoo/smoke'}" in note
    (group,) = collect([tmp_path / "zoo" / "smoke"])[0]
    assert group.preset == "ppo/cartpole", "who names it means it"


def test_a_whole_benchmark_among_the_runs_counts_by_its_results(tmp_path: Path) -> None:
    write_run(tmp_path / "mine", seed=0, curve=[(1000, 20.0)], algo="ppo")
    _benchmark(tmp_path / "zoo" / "whole", "a2c/cartpole", 10_000_000)
    groups, notes = collect([tmp_path])
    assert [(group.algo, group.preset) for group in groups] == [("a2c", "a2c/cartpole"), ("ppo", None)] and notes == []


def test_nothing_but_a_smoke_benchmark_is_nothing_to_rank(tmp_path: Path) -> None:
    _benchmark(tmp_path / "zoo" / "smoke", "ppo/cartpole", 1_100)
    with pytest.raises(UserError, match=r"nothing to rank in .*\n.*left out ppo/cartpole"):
        collect([tmp_path])


def test_a_run_whose_hyperparameters_changed_on_the_way_stands_apart(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"run{seed}", seed=seed, curve=[(1000, 20.0)])
    path = tmp_path / "run1" / "metadata.json"
    metadata = json.loads(path.read_text(encoding="utf-8"))
    change = {"key": "hyperparams.gamma", "old": 0.9, "new": 0.99}
    metadata["resumes"] = [{"step": 500, "changes": [change]}]
    path.write_text(json.dumps(metadata), encoding="utf-8")
    first, second = collect([tmp_path])[0]
    assert first.differences == {"changed on resume": None}
    assert second.differences == {"changed on resume": "hyperparams.gamma at step 500"}
