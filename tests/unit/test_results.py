"""Claims and evidence: the tables of results are exactly what the data files say, and the files are complete."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rl_training.experiment.config.loader import preset_names, resolve
from rl_training.experiment.config.stored import stored_config
from rl_training.experiment.run.build import complete_config
from rl_training.zoo.result_files import FIRST_HELD_OUT_SEED

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "results").glob("*.json"))


def _script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_made_from_the_data_files():
    pages = _script("make_results_table").updated_pages(ROOT)
    assert {path.name for path in pages} == {"README.md", "results.md", "defaults.md"}
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.name}: run `make pages`"


def test_the_readme_shows_only_presets_that_exist():
    assert set(_script("make_results_table").SELECTION) <= set(preset_names())


# Presets that run but whose scores have not been measured yet, so that nothing is claimed for them.
UNMEASURED: set[str] = {
    *(f"{algo}/atari" for algo in ("c51", "dqn", "ppo", "qr_dqn", "rainbow")),
    *("recurrent_ppo/cartpole_no_velocity", "recurrent_ppo/pendulum_no_velocity"),
    *("ppo/keyring", "dqn/keyring", "drq_v2/pendulum_pixels", "sac/pendulum_pixels"),
}


def test_every_preset_has_a_measured_result_or_is_known_to_have_none():
    measured = {json.loads(path.read_text())["preset"] for path in FILES}
    assert measured | UNMEASURED == set(preset_names())
    assert measured & UNMEASURED == set(), "measured by now: take it off the list"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_data_file_says_how_it_was_made_and_adds_up(path):
    record = json.loads(path.read_text())
    runs = record["runs"]
    assert record["seeds"] == len(runs) == len({run["seed"] for run in runs}) >= 3
    seeds = ",".join(str(run["seed"]) for run in runs)
    arguments = f"{record['preset']} --seeds {seeds} --episodes {record['episodes_per_seed']}"
    # The script and the command are one mechanism with the same options.
    programs = ("python scripts/measure.py", "axiomrl zoo benchmark")
    assert record["command"].startswith(tuple(f"{program} {arguments}" for program in programs))
    assert {"torch", "gymnasium", "numpy", "axiomrl"} <= set(record["versions"])
    assert record["last_mean"] == pytest.approx(sum(run["last"]["mean"] for run in runs) / len(runs), abs=0.01)
    assert all(run["curve"] for run in runs)
    held_out = all(run["seed"] >= FIRST_HELD_OUT_SEED for run in runs)
    assert record["tuned_on"] == "seeds below 100" + ("" if held_out else ", the reported ones among them")
    # The numbers belong to the preset as it is now, not to an earlier version of it.
    configs = (resolve(record["preset"]).config, stored_config(record["config"]))
    current, measured = (complete_config(config)[0].to_dict() for config in configs)
    for key in ("algo", "env_id", "total_timesteps", "num_envs", "hyperparams", "policy", "env"):
        assert measured[key] == current[key], f"{key} has changed since the measurement"


# What the presets are held to.
DQN_VARIANTS = (
    *("double_dqn", "dueling_dqn", "prioritized_dqn", "noisy_dqn", "nstep_dqn"),
    *("c51", "qr_dqn", "iqn", "rainbow"),
)
TARGETS = {
    **{f"{algo}/cartpole": 450 for algo in DQN_VARIANTS},
    **{f"{algo}/acrobot": -90 for algo in ("dqn", "ppo", "trpo", *DQN_VARIANTS)},
    **{f"{algo}/mountaincar": -110 for algo in ("dqn", *DQN_VARIANTS) if algo != "rainbow"},
    "rainbow/mountaincar": -130,  # one seed of five does not find the flag
    **{f"{algo}/lunarlander": 150 for algo in ("dqn", *DQN_VARIANTS)},
    **{
        f"{algo}/lunarlander_continuous": 200 for algo in ("crossq", "droq", "ppo", "redq", "sac", "td3", "tqc", "trpo")
    },
    "ddpg/lunarlander_continuous": 150,
    "a2c/lunarlander_continuous": 80,  # weak and uneven: -43 to 201
    "a2c/pendulum": -300,
    "a2c/mountaincar": -140,
    "a2c/lunarlander": 50,  # weak: it lands in some episodes only; a random policy gets -180
    "discrete_sac/acrobot": -80,
    "discrete_sac/mountaincar": -110,
    "ppo/mountaincar": -115,
    "ppo/lunarlander": 200,
    **{f"{algo}/pendulum": -200 for algo in ("crossq", "redq", "droq", "td3", "sac", "tqc", "ddpg")},
    **{f"{algo}/pendulum": -250 for algo in ("ppo", "trpo")},
    **{f"{algo}/mountaincar_continuous": 90 for algo in ("ddpg", "td3", "sac", "crossq", "redq", "droq")},
    **{f"{algo}/mountaincar_continuous": 88 for algo in ("a2c", "ppo", "trpo")},
    "ppo/cartpole": 495,
    "a2c/cartpole": 475,
    "dqn/cartpole": 475,
    "trpo/cartpole": 475,
    "discrete_sac/cartpole": 400,
    "discrete_sac/lunarlander": 150,
    "ppo/halfcheetah": 1500,
    "ppo/hopper": 2000,
    "ppo/walker2d": 2000,
    "sac/ant": 600,
    "td3/ant": 300,
    "sac/halfcheetah": 4500,
    "sac/hopper": 1500,
    "td3/halfcheetah": 4500,
    "tqc/halfcheetah": 5000,
    "tqc/hopper": 2000,
    "dqn/bitflip": -10,
}


@pytest.mark.parametrize("preset", TARGETS)
def test_targets_are_met(preset):
    record = next(json.loads(path.read_text()) for path in FILES if json.loads(path.read_text())["preset"] == preset)
    assert record["last_mean"] >= TARGETS[preset]


def test_the_control_without_hindsight_fails_on_the_same_budget():
    control = json.loads((ROOT / "results/controls/dqn_bitflip_without_hindsight.json").read_text())
    measured = json.loads((ROOT / "results/dqn_bitflip.json").read_text())
    assert [run["last"]["success_rate"] for run in measured["runs"]] == [1.0] * 5
    assert max(run["best"]["success_rate"] for run in control["runs"]) <= 0.05
    with_hindsight = measured["config"]["hyperparams"]
    assert control["config"]["hyperparams"] == {**with_hindsight, "hindsight": 0.0}
    assert control["config"]["total_timesteps"] == measured["config"]["total_timesteps"]


@pytest.mark.parametrize(
    "preset", ["ppo/cartpole", "ppo/pendulum", "ppo/acrobot", "ppo/lunarlander", "sac/pendulum", "td3/pendulum"]
)
def test_overlapped_collection_learns_as_well(preset):
    name = preset.replace("/", "_")
    control = json.loads((ROOT / f"results/controls/{name}_overlapped.json").read_text())
    measured = json.loads((ROOT / f"results/{name}.json").read_text())
    assert control["config"]["overlap"] is True
    for key in ("algo", "env_id", "total_timesteps", "num_envs", "hyperparams", "policy", "env"):
        assert control["config"][key] == measured["config"][key], key
    assert len(control["runs"]) >= 5
    assert control["last_mean"] >= TARGETS[preset]


@pytest.mark.parametrize("preset", ["ppo/cartpole", "sac/pendulum"])
def test_what_short_numbers_learn_is_what_the_page_says(preset):
    name = preset.replace("/", "_")
    control = json.loads((ROOT / f"results/controls/{name}_bf16.json").read_text())
    configs = (resolve(preset).config, replace(stored_config(control["config"]), device="cpu", precision="float32"))
    current, measured = (complete_config(config)[0].to_dict() for config in configs)
    assert control["config"]["precision"] == "bf16"
    for key in ("algo", "env_id", "total_timesteps", "num_envs", "hyperparams", "policy", "env"):
        assert measured[key] == current[key]
    page = (ROOT / "docs/performance.md").read_text()
    if preset == "sac/pendulum":
        assert f"−{-control['last_mean']:.1f} over {control['seeds']} seeds" in page
    else:
        scores = sorted(round(run["last"]["mean"]) for run in control["runs"])
        assert scores == 10 * [500] and "10 of 10 held-out seeds end at 500" in page
