"""Algorithms by id: ours, registered ones, and those of installed packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rl_training
from helpers.registered import forgetting, install
from rl_training import TrainConfig, agent_class, check_algorithm, register_algorithm
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.off_policy import OffPolicyAlgorithm
from rl_training.experiment import registry
from rl_training.experiment.config.loader import load_config
from rl_training.experiment.run.build import complete_config
from rl_training.extend import Metrics, PolicyGradientAlgorithm, PolicyGradientConfig, RolloutMinibatch
from rl_training.utils.errors import ConfigError, UserError


@dataclass
class ReinforceConfig(PolicyGradientConfig):
    """Hyperparameters of REINFORCE."""

    baseline: bool = True
    """Subtract the value."""


class ReinforceAlgorithm(PolicyGradientAlgorithm[ReinforceConfig]):
    """Policy gradient with a baseline.

    More about it.
    """

    config_class = ReinforceConfig

    def losses(self, minibatch: RolloutMinibatch) -> Metrics:
        distribution, values = self.policy(minibatch.obs)
        weights = minibatch.advantages if self.config.baseline else minibatch.returns
        policy_loss = -(weights * distribution.log_prob(minibatch.actions)).mean()
        value_loss = (values - minibatch.returns).square().mean()
        return {"loss": policy_loss + value_loss, "value_loss": value_loss}


DQN = registry.load("dqn")


class OtherDQN(DQN):
    """DQN by another name."""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with forgetting():
        yield


def test_what_is_not_said_is_read_from_the_class() -> None:
    agent = register_algorithm("reinforce", ReinforceAlgorithm)
    info = registry.algorithm_info("reinforce")
    assert (info.name, info.tier, info.summary) == ("Reinforce", "external", "Policy gradient with a baseline.")
    assert (info.trainer, info.load()) == ("on_policy", ReinforceAlgorithm)
    assert agent is agent_class("reinforce") and agent.__name__ == "Reinforce" and agent.algo == "reinforce"
    assert "reinforce" in registry.algorithm_ids() and "reinforce" not in registry.BUILT_IN


def test_what_is_said_counts() -> None:
    agent = register_algorithm(
        "mine", OtherDQN, name="Mine", summary="A line.", policy={"hidden_sizes": (8,), "activation": "relu"}
    )
    info = registry.algorithm_info("mine")
    assert (agent.__name__, info.summary, info.trainer) == ("Mine", "A line.", "off_policy")
    config = TrainConfig(algo="mine")
    assert (config.policy.hidden_sizes, config.policy.activation) == ((8,), "relu")
    assert TrainConfig(algo="mine", policy={"hidden_sizes": [4]}).policy.hidden_sizes == (4,)  # type: ignore[arg-type]


def test_every_way_of_training_knows_it(tmp_path: Path) -> None:
    agent_type = register_algorithm("reinforce", ReinforceAlgorithm)
    path = tmp_path / "x.yaml"
    path.write_text("algo: reinforce\nhyperparams: {num_steps: 8, baseline: false}\nnum_envs: 2\n", encoding="utf-8")
    config, hyperparams = complete_config(load_config(path))
    assert isinstance(hyperparams, ReinforceConfig) and config.hyperparams["baseline"] is False
    agent = agent_type(config, total_timesteps=32, output_dir=str(tmp_path), logging={"console": "off"})
    result = agent.learn()
    loaded = rl_training.load_agent(result.run_dir)
    assert type(loaded) is agent_type and loaded.num_timesteps == 32
    assert loaded.learn(total_timesteps=64).resume_grade == "exact"
    check_algorithm("reinforce", only=["same_seed", "split_run"]).raise_if_failed()


def test_its_hyperparameters_are_checked_with_their_line(tmp_path: Path) -> None:
    register_algorithm("reinforce", ReinforceAlgorithm)
    path = tmp_path / "x.yaml"
    path.write_text("algo: reinforce\nhyperparams:\n  baselin: false\n", encoding="utf-8")
    from rl_training.experiment.config.loader import resolve

    with pytest.raises(ConfigError, match=r"x.yaml:3: key 'hyperparams.baselin': unknown key; did you mean 'baseline'"):
        complete_config(resolve(path))


def test_text_is_imported_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from rl_training.algorithms.a2c import A2CConfig\nfrom rl_training.experiment import registry\n"
    code += "class LateAlgorithm(registry.load('a2c')):\n    '''Late.'''\n"
    (tmp_path / "late_module.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    agent = register_algorithm("late", "late_module:LateAlgorithm")
    assert agent.__name__ == "Late" and "late_module" not in sys.modules
    assert registry.algorithm_info("late").trainer == "on_policy" and "late_module" in sys.modules
    with pytest.raises(ConfigError, match="algorithm 'gone' cannot be imported from no_such_module:X"):
        register_algorithm("gone", "no_such_module:X")("CartPole-v1")


class Bare(Algorithm):  # type: ignore[type-arg]
    action_spaces = ("Discrete",)


class Unfinished(PolicyGradientAlgorithm[ReinforceConfig]):
    config_class = ReinforceConfig


class Unset(OffPolicyAlgorithm):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (dict, "is a class derived from rl_training.algorithms.base.Algorithm, not <class 'dict'>"),
        (3, "not 3"),
        (Bare, "Bare must be derived from OnPolicyAlgorithm, OffPolicyAlgorithm or BatchAlgorithm"),
        (Unfinished, "Unfinished lacks losses"),
        (Unset, "Unset.config_class must be a dataclass"),
        ("Reinforce", "expected a class or the text"),
    ],
)
def test_what_is_no_algorithm_is_refused_at_once(rule: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register_algorithm("x", rule)("CartPole-v1")


def test_ids_are_snake_case_and_policies_are_checked() -> None:
    with pytest.raises(ConfigError, match="'My-Algo' cannot be the id of an algorithm: use snake case"):
        register_algorithm("My-Algo", ReinforceAlgorithm)
    with pytest.raises(ConfigError, match="policy.hidden_size'.*did you mean 'hidden_sizes'"):
        register_algorithm("x", ReinforceAlgorithm, policy={"hidden_size": (3,)})


def test_ours_cannot_be_replaced_and_the_same_may_be_registered_again() -> None:
    with pytest.raises(ConfigError, match="an algorithm named 'ppo' is registered already: rl_training.algorithms.ppo"):
        register_algorithm("ppo", ReinforceAlgorithm)
    first = register_algorithm("reinforce", ReinforceAlgorithm)
    second = register_algorithm("reinforce", ReinforceAlgorithm, policy={"hidden_sizes": (3,)})
    assert agent_class("reinforce") is second and first.algo == second.algo
    assert TrainConfig(algo="reinforce").policy.hidden_sizes == (3,), "the newest edition counts"


def test_an_unknown_algorithm_says_how_to_bring_ones_own() -> None:
    with pytest.raises(
        UserError, match=r"unknown algorithm 'pppo'; did you mean 'ppo'\?\n.*register_algorithm.*--import"
    ):
        agent_class("pppo")
    with pytest.raises(UserError, match="unknown algorithm 'nothing'; known: a2c, c51"):
        complete_config(TrainConfig(algo="nothing"))


def test_an_installed_package_needs_no_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from rl_training.experiment import registry\nclass PackagedAlgorithm(registry.load('a2c')):\n    '''Packed.'''\n"
    (tmp_path / "packaged.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, {"axiomrl.algorithms": {"packaged": "packaged:PackagedAlgorithm"}})
    assert "packaged" in registry.algorithm_ids() and "packaged" not in sys.modules
    agent = agent_class("packaged")("CartPole-v1", num_envs=2, total_timesteps=16)
    assert agent.learn().metrics["global_step"] >= 16
    assert registry.algorithm_info("packaged").summary == "Packed."


def test_a_package_may_register_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import rl_training\nfrom rl_training.experiment import registry\n"
    code += "class Rule(registry.load('a2c')):\n    '''By itself.'''\n"
    code += "rl_training.register_algorithm('by_itself', Rule, policy={'hidden_sizes': (5,)})\n"
    (tmp_path / "by_itself_module.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, {"axiomrl.algorithms": {"by_itself": "by_itself_module:Rule"}})
    assert TrainConfig(algo="by_itself").policy.hidden_sizes == (5,)


def test_our_table_names_classes_that_exist_and_follow_a_base() -> None:
    for info in registry.BUILT_IN.values():
        assert info.trainer in ("on_policy", "off_policy"), info.id
        assert info.tier == {"recurrent_ppo": "contrib", "drq_v2": "experimental"}.get(info.id, "core"), info.id
        assert info.trainer == registry.trainer_kind(info.load()), info.id


def test_the_number_of_environments_follows_the_way_of_training() -> None:
    assert [TrainConfig(algo=algo).num_envs for algo in ("ppo", "a2c", "trpo", "dqn", "sac")] == [8, 8, 8, 1, 1]
    assert TrainConfig(algo="sac", num_envs=5).num_envs == 5 and TrainConfig(algo="not_there").num_envs == 8

    class Replayed(registry.load("dqn")):  # type: ignore[misc]
        """A rule of one's own."""

    rl_training.register_algorithm("replayed_one", Replayed)
    assert TrainConfig(algo="replayed_one").num_envs == 1


def test_listing_imports_no_algorithm_even_where_packages_bring_some(tmp_path: Path) -> None:
    install(tmp_path, {"axiomrl.algorithms": {"packaged": "no_such_module:X"}})
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom rl_training.experiment import registry\n"
    code += "print('packaged' in registry.algorithm_ids(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
