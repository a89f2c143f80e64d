"""Measuring presets: one run, a benchmark of several with a run that fails, and going on with what is finished."""

import importlib.util
import json
import shlex
import sys
from pathlib import Path

import pytest

from rl_training.cli.main import main, parse_command
from rl_training.experiment.run.run_dir import EVALUATIONS, read_lines
from rl_training.utils.errors import UserError
from rl_training.zoo.benchmark import command_for, plan, run_benchmark
from rl_training.zoo.manifest import Manifest, load_manifest, manifest_names
from rl_training.zoo.measure import measure_seed, result_record
from rl_training.zoo.result_files import read_result_file, read_result_files
from rl_training.zoo.workers import locked

TINY = {
    "total_timesteps": 64,
    "num_envs": 2,
    "hyperparams.num_steps": 16,
    "hyperparams.num_minibatches": 4,
    "evaluation": {"every": 32, "episodes": 2, "num_envs": 2},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(folder, what was measured) of one seed."""
    folder = tmp_path_factory.mktemp("measured")
    return folder, measure_seed("ppo/cartpole", TINY, 3, folder, 7)


def test_one_run_is_trained_and_scored(measured):
    folder, run = measured
    (run_dir,) = folder.iterdir()
    evaluations = read_lines(run_dir / EVALUATIONS)
    assert (run["seed"], run["steps"]) == (7, 64) and run["seconds"] > 0
    assert run["curve"] == [[record["step"], round(record["mean"], 2)] for record in evaluations]
    assert [step for step, _ in run["curve"]] == [32, 64]
    assert run["last"]["step"] == 64
    best = max(evaluations, key=lambda record: record["mean"])
    assert run["best"]["step"] == best["step"]


def test_a_finished_run_is_not_trained_again_but_scored_the_same(measured):
    folder, run = measured
    again = measure_seed("ppo/cartpole", TINY, 3, folder, 7)
    assert again == {**run, "seconds": None} and len(list(folder.iterdir())) == 1


def test_a_record_adds_up_and_can_be_read(measured, tmp_path):
    _, run = measured
    other = {**run, "seed": 8, "last": {"mean": run["last"]["mean"] + 2.0}}
    record = result_record("ppo/cartpole", TINY, 3, [run, other], "some command")
    assert record["last_mean"] == round(run["last"]["mean"] + 1.0, 2)
    assert record["last_lowest"] == round(run["last"]["mean"], 2)
    assert record["last_interval_95"] == [round(run["last"]["mean"], 2), round(run["last"]["mean"] + 2.0, 2)]
    path = tmp_path / "ppo_cartpole.json"
    path.write_text(json.dumps(record))
    result = read_result_file(path)
    assert (result.last_mean, result.config["total_timesteps"], len(result.seeds)) == (record["last_mean"], 64, 2)


def test_a_plan_goes_seed_by_seed_and_checks_configs(tmp_path):
    manifest = Manifest("m", ("ppo/cartpole", "a2c/cartpole"), (4, 5), 3, {"total_timesteps": 64})
    tasks = plan(manifest, tmp_path)
    assert [(task.preset, task.seed) for task in tasks] == [
        ("ppo/cartpole", 4),
        ("a2c/cartpole", 4),
        ("ppo/cartpole", 5),
        ("a2c/cartpole", 5),
    ]
    assert tasks[0].fingerprint == tasks[2].fingerprint != tasks[1].fingerprint
    assert tasks[0].config["total_timesteps"] == 64 and "seed" not in tasks[0].config
    with pytest.raises(UserError, match="ppo/cartpole: overrides: key 'hyperparams.clip_cof': unknown key"):
        plan(Manifest("m", ("ppo/cartpole",), overrides={"hyperparams.clip_cof": 1}), tmp_path)


@pytest.mark.parametrize("name", manifest_names())
def test_the_configs_of_every_manifest_are_valid(name, tmp_path):
    manifest = load_manifest(name)
    tasks = plan(manifest, tmp_path)
    assert len(tasks) == len(manifest.presets) * len(manifest.seeds)
    assert len({task.file for task in tasks}) == len(tasks)


def test_the_command_of_a_data_file_means_the_same_config():
    overrides = {"evaluation": {"every": 9}, "device": "cpu", "env.kwargs": {"name": "1e3"}, "hyperparams.gamma": 0.5}
    command = command_for("ppo/cartpole", [3, 4], 7, overrides)
    program, name, *arguments = shlex.split(command)
    parsed = parse_command(name, arguments)
    assert (program, parsed.manifest, parsed.seeds, parsed.episodes) == ("axiomrl", "ppo/cartpole", "3,4", 7)
    assert parsed._with_options(Manifest("m", ("ppo/cartpole",))).overrides == overrides
    assert "--set device=cpu" in command


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """(manifest, output folder, outcome, lines) of a benchmark in which CartPole fails: only LunarLander knows `continuous`."""
    folder = tmp_path_factory.mktemp("benchmark")
    overrides = {**TINY, "env.kwargs": {"continuous": True}}
    manifest = Manifest("mixed", ("ppo/cartpole", "ppo/lunarlander"), (3,), 2, overrides)
    lines: list[str] = []
    outcome = run_benchmark(manifest, folder / "out", seeds_asked=2, jobs=2, say=lines.append)
    return manifest, folder / "out", outcome, lines


def test_a_run_that_fails_is_named_and_the_others_go_on(benchmark):
    _, output, outcome, lines = benchmark
    assert outcome.exit_code == 1
    ((task, reason),) = outcome.failed.items()
    assert (task.preset, task.seed) == ("ppo/cartpole", 3)
    assert "continuous" in reason and reason in task.log.read_text()
    assert any(line.startswith("ppo/cartpole seed 3: FAILED: ") for line in lines)
    assert any(line.startswith("ppo/lunarlander seed 3: done in ") for line in lines)
    assert [path.name for path in (output / "results").iterdir()] == ["ppo_lunarlander.json"]


def test_the_data_file_has_fingerprints_and_flags_missing_seeds(benchmark):
    manifest, output, outcome, _ = benchmark
    (result,), skipped = read_result_files(output / "results")
    assert skipped == [] and (len(result.seeds), result.seeds_asked) == (1, 2)
    (record,) = outcome.records
    assert record == json.loads((output / "results" / "ppo_lunarlander.json").read_text())
    task = plan(manifest, output)[1]
    assert record["fingerprint"] == task.fingerprint and record["manifest"] == "mixed"
    assert record["command"].startswith("axiomrl zoo benchmark ppo/lunarlander --seeds 3 --episodes 2 --set ")


def test_finished_seeds_are_not_repeated_and_other_origins_refused(benchmark):
    manifest, output, outcome, _ = benchmark
    only = Manifest("mixed", ("ppo/lunarlander",), (3,), 2, manifest.overrides)
    lines: list[str] = []
    again = run_benchmark(only, output, seeds_asked=2, say=lines.append)
    assert lines == ["1 of 1 runs are finished already"] and again.exit_code == 0
    assert again.records[0]["runs"] == outcome.records[0]["runs"]
    changed = Manifest("mixed", ("ppo/lunarlander",), (3,), 9, manifest.overrides)
    with pytest.raises(UserError, match="ppo/lunarlander seed 3: episodes: 2 then, 9 now"):
        run_benchmark(changed, output)
    with pytest.raises(UserError, match="another benchmark is running in"), locked(output / ".lock"):
        run_benchmark(only, output)


def test_redo_trains_anew_what_has_another_origin(benchmark, capsys):
    manifest, output, _, _ = benchmark
    old = next((output / "ppo_lunarlander").glob("ppo__*"))
    more = Manifest("mixed", ("ppo/lunarlander",), (3,), 1, manifest.overrides)
    outcome = run_benchmark(more, output, redo=True)
    assert outcome.exit_code == 0 and outcome.records[0]["episodes_per_seed"] == 1
    assert not old.exists() and len(list((output / "ppo_lunarlander").glob("ppo__*"))) == 1


def test_the_script_writes_the_same_numbers(measured, tmp_path, monkeypatch, capsys):
    _, run = measured
    path = Path(__file__).parents[3] / "scripts" / "measure.py"
    spec = importlib.util.spec_from_file_location("measure", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    settings = [f"--set={key}={json.dumps(value)}" for key, value in TINY.items()]
    output = tmp_path / "out" / "r.json"
    arguments = ["ppo/cartpole", "--seeds=7", "--episodes=3", *settings, f"--folder={tmp_path}/f", f"--output={output}"]
    monkeypatch.setattr(sys, "argv", ["measure.py", *arguments])
    script.main()
    record = json.loads(output.read_text())
    assert record["command"].startswith("python scripts/measure.py ppo/cartpole --seeds 7 --episodes 3 --set ")
    assert {**record["runs"][0], "seconds": None} == {**run, "seconds": None}
    assert "over 1 seeds, written to" in capsys.readouterr().out


def test_bad_input_is_exit_2(tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for arguments, message in (
        (["smok"], "no manifest 'smok'; did you mean 'smoke'?"),
        (["smoke", "--jobs=0"], "--jobs must be at least 1"),
        (["smoke", "--seeds=1,1"], "--seeds names a seed twice"),
        (["smoke", "--seeds=-1"], "--seeds takes numbers and ranges with commas"),
        (["smoke", "--episodes=0"], "key 'episodes': must be >= 1"),
        (["smoke", "--set=seed=3"], "'seed' is set by the benchmark itself"),
        (["smoke", "--set=nonsense=3"], "key 'nonsense': unknown key"),
        (["smoke", f"--output={tmp_path / 'full'}"], "is not empty and not the folder of a benchmark"),
    ):
        assert main(["zoo", "benchmark", *arguments]) == 2, arguments
        err = capsys.readouterr().err
        assert message in err and err.count("error:") == 1 and "Traceback" not in err


def test_a_config_file_with_an_import_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = "import gymnasium as gym\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
    (tmp_path / "benched_env.py").write_text(f"{code}gym.register('Benched-v0', entry_point=CartPoleEnv)\n")
    settings = "".join(f"{key}: {json.dumps(value)}\n" for key, value in TINY.items() if "." not in key)
    hyperparams = "hyperparams: {num_steps: 16, num_minibatches: 4}\n"
    (tmp_path / "mine.yaml").write_text(f"algo: ppo\nenv_id: Benched-v0\n{settings}{hyperparams}")
    command = ["zoo", "benchmark", "mine.yaml", "--seeds", "0", "--episodes", "2", "--import", "benched_env.py"]
    assert main([*command, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["preset"] == "mine.yaml" and Path(result["file"]).name == "mine.json"
    assert shlex.split(result["command"])[1:] == command, "the command that repeats it carries the import"
    (tmp_path / "benched_env.py").write_text(f"{code}gym.register('Benched-v0', entry_point=CartPoleEnv)\n# changed\n")
    assert main(command) == 2
    assert "imports.benched_env.py" in capsys.readouterr().err, "numbers of other code are not mixed"
