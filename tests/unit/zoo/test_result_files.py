"""Result files: read as they are, refused when they do not add up, and shipped with the package."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rl_training.experiment.config.loader import preset_names
from rl_training.utils.errors import UserError
from rl_training.zoo.manifest import manifest_names
from rl_training.zoo.result_files import read_result_file, read_result_files, shipped_results

ROOT = Path(__file__).parents[3]


def record(**changes):
    """A small result of two seeds: last scores 10 and 20, best scores 30 and 20."""
    runs = [
        {"seed": 3, "steps": 128, "seconds": 2.0, "last": {"mean": 10.0}, "best": {"mean": 30.0}, "curve": [[64, 5.0]]},
        {
            "seed": 4,
            "steps": 132,
            "seconds": None,
            "last": {"mean": 20.0, "success_rate": 0.5},
            "best": {"mean": 20.0},
            "curve": [[64, 6.0], [132, 20.0]],
        },
    ]
    return {
        "preset": "ppo/cartpole",
        "command": "axiomrl zoo benchmark smoke",
        "versions": {"axiomrl": "0.1.0"},
        "system": {"cpu": "AMD EPYC", "gpu": None},
        "config": {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 128},
        "episodes_per_seed": 7,
        "last_mean": 15.0,
        "last_interval_95": [10.0, 20.0],
        "runs": runs,
        **changes,
    }


def write(path, value):
    path.write_text(json.dumps(value))
    return path


def test_a_file_is_read_with_its_seeds(tmp_path):
    result = read_result_file(write(tmp_path / "ppo_cartpole.json", record()))
    assert (result.preset, result.algo, result.env_id) == ("ppo/cartpole", "ppo", "CartPole-v1")
    assert (result.last_mean, result.best_mean, result.last_interval) == (15.0, 25.0, (10.0, 20.0))
    assert (result.config["total_timesteps"], result.episodes_per_seed, result.seeds_asked) == (128, 7, None)
    assert [seed.last_success for seed in result.seeds] == [None, 0.5]
    assert result.seeds[1].curve == [(64, 6.0), (132, 20.0)]
    assert result.mean_seconds == 2.0, "over the seeds whose time is known"
    assert result.hardware == "CPU (AMD EPYC)"
    on_gpu = write(tmp_path / "gpu.json", record(system={"cpu": "x", "gpu": "NVIDIA H200"}))
    assert read_result_file(on_gpu).hardware == "NVIDIA H200"


def without(key):
    values = record()
    del values[key]
    return values


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (without("command"), "'command' is missing"),
        (without("runs"), "is not a result file"),
        ([1, 2], "is not a result file"),
        (record(runs=[]), "it has no runs"),
        (record(runs=record()["runs"][:1] * 2, last_mean=10.0), "a seed is there twice"),
        (record(last_mean=15.2), "last_mean is 15.2, but its seeds give 15.00"),
        (record(last_mean=float("nan")), "nan is not a score"),
        (record(config={"algo": "ppo", "env_id": "CartPole-v1"}), "'total_timesteps' is missing"),
    ],
)
def test_a_file_that_does_not_add_up_is_refused(value, message, tmp_path):
    path = write(tmp_path / "bad.json", value)
    with pytest.raises(UserError) as error:
        read_result_file(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


def test_a_folder_gives_its_results_and_names_what_it_skips(tmp_path):
    write(tmp_path / "a.json", record())
    (tmp_path / "b.json").write_text("{")
    write(tmp_path / "c.json", {"some": "other file"})
    results, skipped = read_result_files(tmp_path)
    assert [result.path.name for result in results] == ["a.json"]
    assert len(skipped) == 2 and "b.json: cannot be read as JSON" in skipped[0] and "c.json" in skipped[1]
    with pytest.raises(UserError, match="is not a folder"):
        read_result_files(tmp_path / "nothing")


def test_every_data_file_of_the_checkout_is_shipped():
    presets = [json.loads(path.read_text())["preset"] for path in (ROOT / "results").glob("*.json")]
    shipped = [result.preset for result in shipped_results()]
    assert shipped == sorted(presets) and set(shipped) <= set(preset_names())
    ppo = next(result for result in shipped_results() if result.preset == "ppo/cartpole")
    assert ppo.last_mean == 500.0 and len(ppo.seeds) == 10 and ppo.held_out


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", f"--wheel-dir={folder}"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True, capture_output=True)
    (wheel,) = folder.glob("axiomrl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_carries_results_presets_and_manifests(installed):
    code = (
        "import rl_training\n"
        "from rl_training.experiment.config.presets import preset_names\n"
        "from rl_training.zoo.manifest import manifest_names\n"
        "from rl_training.zoo.result_files import results_folder, shipped_results\n"
        "print(rl_training.__file__)\nprint(results_folder())\nprint(*(result.preset for result in shipped_results()))\n"
        "print(*preset_names())\nprint(*manifest_names())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=True
    )
    package, folder, measured, presets, manifests = result.stdout.splitlines()
    assert Path(package).is_relative_to(installed), "not the checkout"
    assert Path(folder) == installed / "rl_training" / "zoo" / "results"
    assert measured.split() == [result.preset for result in shipped_results()]
    assert presets.split() == preset_names() and manifests.split() == manifest_names()
    assert not [path for path in Path(folder).iterdir() if path.is_dir()], "controls and speed figures stay outside"


def test_a_link_to_a_result_is_read_and_a_pipe_is_not(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(json.dumps(record()))
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    assert read_result_file(tmp_path / "link.json").last_mean == 15.0
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "endless.json"):
        with pytest.raises(UserError, match="not a regular file"):
            read_result_file(tmp_path / name)
