"""The pages of the algorithms: generated from the code and the data files, up to date, and none is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from rl_training.experiment.config.loader import resolve
from rl_training.experiment.config.presets import preset_about
from rl_training.experiment.registry import BUILT_IN, load
from rl_training.experiment.run.build import complete_config
from rl_training.zoo.catalog import catalog, find_entry

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "algorithms"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_algorithm_pages", ROOT / "scripts" / "make_algorithm_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(script: ModuleType) -> dict[str, str]:
    return script.pages()


UNMEASURED = {"recurrent_ppo", "drq_v2"}
"""Those of tests/unit/zoo/test_catalog.py."""


def test_every_algorithm_has_a_preset_a_page_and_a_result(pages: dict[str, str]) -> None:
    entries = catalog()
    for algo in BUILT_IN:
        own = [entry for entry in entries if entry.algo == algo]
        assert own, f"{algo} has no preset: add one under src/rl_training/zoo/presets/{algo}/"
        assert (FOLDER / f"{algo}.md").is_file(), f"{algo} has no page: run `make pages`"
        if algo not in UNMEASURED:
            assert any(entry.result for entry in own), f"{algo} has no result under results/"


def test_the_pages_are_up_to_date(pages: dict[str, str]) -> None:
    files = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert set(files) == set(pages), "run `make pages`"
    assert [name for name in pages if files[name] != pages[name]] == [], "out of date: run `make pages`"


def test_a_page_says_what_the_code_and_the_data_file_say(pages: dict[str, str]) -> None:
    page, result = pages["ppo.md"], find_entry("ppo/cartpole").result
    assert result is not None and result.last_interval == (500.0, 500.0)
    row = next(line for line in page.splitlines() if line.startswith("| [`ppo/cartpole`]"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:8] == ["CartPole-v1", "core", "100,352", "10 × 100", "500.0", "500.0 to 500.0", "499.9"]
    assert cells[0] == "[`ppo/cartpole`](../../results/ppo_cartpole.json)"
    assert "axiomrl zoo benchmark ppo/cartpole --seeds 100,101,102,103,104,105,106,107,108,109 --episodes 100\n" in page
    assert "| paper | Schulman et al. 2017, [arXiv 1707.06347](https://arxiv.org/abs/1707.06347) |" in page
    assert "| actions | Discrete, MultiDiscrete, MultiBinary, Box |" in page
    assert "| `clip_coef` | number or schedule | `0.2` | > 0 | ε of the clipped objective" in page
    assert "with other defaults for `double`" in pages["double_dqn.md"]
    assert "`num_quantiles`, `drop_quantiles`" in pages["tqc.md"]


def test_an_algorithm_without_a_result_claims_nothing(script: ModuleType) -> None:
    entries = [entry for entry in catalog() if entry.preset == "ppo/hopper"]
    bare = [type(entry)(entry.preset, entry.algo, entry.env_id, entry.total_timesteps, None) for entry in entries]
    page = script.algorithm_page(BUILT_IN["ppo"], load("ppo"), bare)
    assert "nothing is claimed" in page and "axiomrl zoo benchmark ppo/hopper\n" in page
    assert "| `ppo/hopper` | Hopper-v5 | unmeasured | 1,000,000 | – |" in page


def test_a_docstring_without_a_paper_is_refused(script: ModuleType) -> None:
    nameless = type("Nameless", (load("ppo"),), {"__doc__": "Clipped policy gradient."})
    with pytest.raises(ValueError, match="Nameless: the docstring names no paper"):
        script.algorithm_page(BUILT_IN["ppo"], nameless, catalog()[:1])


def test_the_readme_names_every_algorithm() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [info.name for info in BUILT_IN.values() if info.name not in readme] == []


@pytest.mark.parametrize("preset", [entry.preset for entry in catalog() if entry.algo in ("noisy_dqn", "rainbow")])
def test_a_noisy_preset_that_still_explores_otherwise_says_so_on_its_page(preset: str, pages: dict[str, str]) -> None:
    _, hyperparams = complete_config(resolve(preset).config)
    about = preset_about(preset)
    as_cited = hyperparams.exploration == 0 and hyperparams.noisy_sigma == 0.5
    assert ("as in the paper" in about) == as_cited
    assert as_cited or ("ε-greedy actions kept" in about and f"(σ₀ {hyperparams.noisy_sigma})" in about)
    assert f"- `{preset}`: {about}\n" in pages[f"{preset.split('/')[0]}.md"]
