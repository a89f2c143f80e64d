"""Benchmark manifests: those of the package are complete, and mistakes in others are named with their line."""

import pytest

from rl_training.utils.errors import ConfigError, UserError
from rl_training.zoo.benchmark import plan
from rl_training.zoo.catalog import FAMILIES, catalog
from rl_training.zoo.manifest import load_manifest, manifest_names, parse_manifest

GOOD = "name: mine\npresets: [ppo/cartpole]\nseeds: [1, 2]\n"


def test_there_is_one_manifest_per_family_with_all_its_presets():
    long = ("atari", "pixels")
    assert set(manifest_names()) == {*FAMILIES, *long, "smoke"}
    for family in long:
        assert sorted(load_manifest(family).presets) == [entry.preset for entry in catalog() if entry.family == family]
    for family in FAMILIES:
        manifest = load_manifest(family)
        assert manifest.name == family and len(manifest.seeds) >= 5 and not manifest.overrides
        assert sorted(manifest.presets) == [entry.preset for entry in catalog() if entry.family == family]


def test_the_smoke_manifest_is_tiny():
    manifest = load_manifest("smoke")
    assert manifest.overrides["total_timesteps"] * len(manifest.presets) * len(manifest.seeds) < 10_000


def test_a_file_and_a_preset_are_manifests(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "episodes: 7\noverrides: {total_timesteps: 1_000}\n")
    manifest = load_manifest(str(path))
    assert (manifest.name, manifest.presets, manifest.seeds) == ("mine", ("ppo/cartpole",), (1, 2))
    assert (manifest.episodes, manifest.overrides) == (7, {"total_timesteps": 1000})
    one = load_manifest("ppo/cartpole")
    assert (one.name, one.presets, one.seeds, one.episodes) == (
        "ppo_cartpole",
        ("ppo/cartpole",),
        (100, 101, 102, 103, 104),
        100,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "sedes: [3]\n", "m.yaml:4: key 'sedes': unknown key; did you mean 'seeds'?"),
        (GOOD.replace("1, 2", "1, 1"), "m.yaml:3: key 'seeds': names 1 twice"),
        (GOOD.replace("[1, 2]", "[]"), "m.yaml:3: key 'seeds': is empty"),
        (GOOD.replace("1, 2", "-1"), "m.yaml:3: key 'seeds[0]': must be >= 0 and < 4294967296, got -1"),
        (GOOD.replace("cartpole", "cartpol"), "m.yaml:2: key 'presets': no preset 'ppo/cartpol'; did you mean"),
        (GOOD.replace("name: mine\n", ""), "m.yaml: key 'name': missing"),
        (GOOD.replace("mine", "../mine"), "m.yaml:1: key 'name': must be letters, digits, _ and -"),
        (GOOD + "episodes: 0\n", "m.yaml:4: key 'episodes': must be >= 1, got 0"),
        (GOOD + "overrides: {seed: 3}\n", "m.yaml:4: key 'overrides': 'seed' is set by the benchmark itself"),
        (GOOD + "overrides: {logging.every: 3}\n", "'logging.every' is set by the benchmark itself"),
        ("- ppo/cartpole\n", "m.yaml: expected the keys name, presets and seeds"),
        ("", "m.yaml: expected the keys name, presets and seeds"),
        ("name: [\n", "m.yaml:2: not valid YAML"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(ConfigError) as error:
        parse_manifest(text, "m.yaml")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("smok", "no manifest 'smok'; did you mean 'smoke'?"),
        ("ppo/cartpol", "no manifest 'ppo/cartpol'; did you mean 'ppo/cartpole'?"),
        (
            "xyz",
            "no manifest 'xyz'; there are atari, box2d, classic_control, goals, masks, mujoco, pixels, smoke, your own YAML files",
        ),
        ("nothing.yaml", "nothing.yaml: no such file"),
    ],
)
def test_manifests_that_are_not_there(source, message):
    with pytest.raises(ConfigError) as error:
        load_manifest(source)
    assert str(error.value).startswith(message)


def test_config_files_are_entries_and_manifests_of_one(tmp_path):
    (tmp_path / "mine.yaml").write_text("algo: a2c\nenv_id: CartPole-v1\n")
    (tmp_path / "other.yaml").write_text(GOOD.replace("ppo/cartpole", "ppo/cartpole, mine.yaml"))
    manifest = load_manifest(str(tmp_path / "other.yaml"))
    assert manifest.presets == ("ppo/cartpole", str(tmp_path / "mine.yaml")), "beside the manifest, wherever that is"
    tasks = plan(manifest, tmp_path / "out")
    assert [task.folder.name for task in tasks[:2]] == ["ppo_cartpole", "mine"]
    assert tasks[1].config["algo"] == "a2c"
    one = load_manifest(str(tmp_path / "mine.yaml"))
    assert (one.name, one.presets) == ("mine", (str(tmp_path / "mine.yaml"),))


@pytest.mark.parametrize(
    ("entries", "message"),
    [("a/x.yaml, b/x.yaml", "would share a folder"), ("nothing.yaml", "nothing.yaml: no such file")],
)
def test_config_files_that_cannot_be_entries(entries, message, tmp_path):
    (tmp_path / "m.yaml").write_text(GOOD.replace("ppo/cartpole", entries))
    with pytest.raises(UserError, match=message):
        plan(load_manifest(str(tmp_path / "m.yaml")), tmp_path / "out")
