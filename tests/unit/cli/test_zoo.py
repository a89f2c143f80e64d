"""`axiomrl zoo` as a user sees it."""

import json
import re
import subprocess
import sys

import pytest

from rl_training.cli.main import main, parse_command
from rl_training.cli.zoo_text import benchmark_text
from rl_training.experiment.config.loader import preset_names
from rl_training.zoo.result_files import mean_curve, shipped_results
from rl_training.zoo.values import table


def test_alone_and_with_help_it_names_its_commands(capsys):
    for arguments in (["zoo"], ["zoo", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
        out = capsys.readouterr().out
        assert all(f"\n  {name} " in out for name in ("list", "show", "run", "benchmark")) and "--format report" in out


@pytest.mark.parametrize("name", ["list", "show", "run", "benchmark"])
def test_each_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["zoo", name, "--help"])
    assert stop.value.code == 0 and f"axiomrl zoo {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lst"], "unknown command 'zoo lst'; did you mean 'list'?"),
        (["xyz"], "unknown command 'zoo xyz'; there are list, show, run, benchmark"),
        (["show", "ppo/cartpol"], "no preset 'ppo/cartpol'; did you mean 'ppo/cartpole'?"),
        (["list", "--algo", "poo"], "no preset for algorithm 'poo'; did you mean 'ppo'?"),
        (["list", "--tier", "best"], "no preset for tier 'best'; known: core, measured, unmeasured"),
        (["run"], "zoo run needs a preset, e.g. axiomrl zoo run ppo/cartpole"),
        (["run", "ppo/cartpol"], "no preset 'ppo/cartpol'; did you mean 'ppo/cartpole'?"),
        (["--format", "html"], "zoo --format takes report or leaderboard, got 'html'"),
        (["--format"], "zoo --format takes report or leaderboard, got ''"),
        (["--format=reprot"], "did you mean 'report'?"),
    ],
)
def test_mistakes_are_one_message_and_exit_2(arguments, message, capsys):
    assert main(["zoo", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_an_unknown_option_is_exit_2(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["zoo", "list", "--teir", "core"])
    assert stop.value.code == 2 and "--teir" in capsys.readouterr().err


def shipped(preset):
    return next(result for result in shipped_results() if result.preset == preset)


def test_list_has_one_row_per_preset(capsys):
    assert main(["zoo", "list"]) == 0
    table, notes = capsys.readouterr().out.split("\n\n")
    header, *rows = table.splitlines()
    assert [row.split()[0] for row in rows] == preset_names()
    summary = notes.splitlines()[-1]
    assert header.split()[:4] == ["preset", "environment", "tier", "steps"]
    assert summary.startswith(f"{len(rows)} presets: ")
    ppo = next(row for row in rows if row.startswith("ppo/cartpole ")).split()
    result = shipped("ppo/cartpole")
    assert ppo[:5] == ["ppo/cartpole", "CartPole-v1", "core", "100,000", f"{result.last_mean:.1f}"]
    assert ppo[8].rstrip("†") == str(len(result.seeds))


def test_list_filters_and_json(capsys):
    assert main(["zoo", "list", "--algo=ppo", "--env=CartPole-v1", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert {(entry["algo"], entry["env_id"]) for entry in entries} == {("ppo", "CartPole-v1")}
    (entry,) = [entry for entry in entries if entry["preset"] == "ppo/cartpole"]
    result = shipped("ppo/cartpole")
    assert (entry["tier"], entry["score"], entry["seeds"]) == ("core", result.last_mean, len(result.seeds))
    assert entry["command"] == result.command
    assert main(["zoo", "list", "--algo=dqn", "--env=pendulum"]) == 0
    assert capsys.readouterr().out == "no preset fits these filters\n"


def test_show_a_measured_preset(capsys):
    assert main(["zoo", "show", "ppo/pendulum"]) == 0
    out = capsys.readouterr().out
    (result,) = [result for result in shipped_results() if result.preset == "ppo/pendulum"]
    low, high = result.last_interval
    assert (
        f"score     {result.last_mean:,.1f} (95 % interval {low:,.1f} to {high:,.1f}): last checkpoints, 5 seeds" in out
    )
    assert f"best      {result.best_mean:,.1f}: best checkpoints" in out
    assert f"on {result.hardware}" in out and f"torch {result.versions['torch']}" in out
    assert "repeat    axiomrl zoo benchmark ppo/pendulum --seeds 0,1,2,3,4 --episodes 100" in out
    rows = out.split("seconds\n")[1].split("\n\n")[0].splitlines()
    assert [row.split()[:3] for row in rows] == [
        [str(seed.seed), f"{seed.last:,.1f}", f"{seed.best:,.1f}"] for seed in result.seeds
    ]
    assert "  env_id: Pendulum-v1" in out


def test_show_json_and_a_preset_without_a_result(capsys):
    assert main(["zoo", "show", "ppo/cartpole", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["preset_config"]["algo"] == "ppo" and [run["last"] for run in page["runs"]] == [
        seed.last for seed in shipped("ppo/cartpole").seeds
    ]
    assert main(["zoo", "list", "--tier=unmeasured", "--json"]) == 0
    unmeasured = json.loads(capsys.readouterr().out)
    if unmeasured:
        assert main(["zoo", "show", unmeasured[0]["preset"]]) == 0
        out = capsys.readouterr().out
        assert "not measured yet" in out and f"measure   axiomrl zoo benchmark {unmeasured[0]['preset']}" in out


def test_run_is_train(capsys, tmp_path):
    arguments = ["ppo/cartpole", "--total-timesteps=64", "--seed=5", "--set=hyperparams.num_steps=8"]
    outputs = []
    for command in (["zoo", "run"], ["train"]):
        assert main([*command, *arguments, "--dry-run"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] and "total_timesteps" in outputs[0]
    assert main(["zoo", "run", *arguments, f"--output-dir={tmp_path}", "--set=evaluation.episodes=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["global_step"] == 64


@pytest.mark.parametrize("name", ["report", "leaderboard"])
def test_formats_are_aliases_of_commands(name, capsys):
    helps = []
    for arguments in (["zoo", "--format", name], ["zoo", f"--format={name}"], [name]):
        with pytest.raises(SystemExit):
            main([*arguments, "--help"])
        helps.append(capsys.readouterr().out)
    assert helps[0] == helps[1] == helps[2] and f"axiomrl {name}" in helps[0]


@pytest.mark.parametrize("arguments", [["list"], ["show", "ppo/cartpole"], ["benchmark", "--help"], ["lst"]])
def test_light_commands_do_not_import_torch(arguments):
    code = (
        "import sys\nfrom rl_training.cli.main import main\n"
        "try:\n    main(['zoo', *sys.argv[1:]])\nexcept SystemExit:\n    pass\nprint('MODULES', *sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    modules = set(result.stdout.rsplit("MODULES", 1)[1].split())
    assert "rl_training.cli.zoo" in modules and not modules & {"torch", "gymnasium", "tensorboard", "rich"}


def test_benchmark_options_become_the_manifest():
    command = parse_command("zoo", ["benchmark", "smoke", "--seeds=4,5,6", "--episodes=9", "--set=device=cpu"])
    from rl_training.zoo.manifest import load_manifest

    manifest = command._with_options(load_manifest("smoke"))
    assert (manifest.seeds, manifest.episodes) == ((4, 5, 6), 9)
    assert manifest.overrides == {**load_manifest("smoke").overrides, "device": "cpu"}


def test_the_table_of_a_benchmark_flags_missing_seeds():
    run = {"steps": 1000, "seconds": 90.0}
    record = {
        "preset": "ppo/cartpole",
        "runs": [run, {**run, "seconds": None}],
        "seeds": 2,
        "seeds_asked": 5,
        "last_mean": 1234.56,
        "last_interval_95": [1000.0, 1500.0],
        "last_lowest": 999.9,
        "best_mean": 1300.0,
    }
    lines = benchmark_text([record, {**record, "preset": "a2c/cartpole", "seeds_asked": 2}]).splitlines()
    expected = "ppo/cartpole|1,000|2 of 5!|1,234.6|1,000.0 to 1,500.0|999.9|1,300.0|1.5"
    assert re.split(r" {2,}", lines[2]) == expected.split("|")
    assert lines[3].split()[:4] == ["a2c/cartpole", "1,000", "2", "1,234.6"]
    assert lines[-1] == "! fewer seeds than the manifest asks for: ppo/cartpole"


def test_tables():
    assert table([("a", "b"), ("long", "1")], right=(1,)) == ["a     b", "long  1"]


def test_the_mean_curve_is_over_the_steps_all_seeds_have():
    result = shipped_results()[0]
    from dataclasses import replace

    first, second = result.seeds[:2]
    seeds = [replace(first, curve=[(10, 1.0), (20, 2.0)]), replace(second, curve=[(10, 3.0), (30, 9.0)])]
    assert mean_curve(replace(result, seeds=seeds)) == [(10, 2.0)]
