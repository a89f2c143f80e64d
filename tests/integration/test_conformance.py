"""Every registered algorithm passes the conformance suite, and the suite catches algorithms that are broken on purpose."""

from __future__ import annotations

import itertools
import os
from typing import Any, ClassVar

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from helpers.gpu import needs_gpu
from rl_training.algorithms.a2c import A2CAlgorithm
from rl_training.experiment import registry
from rl_training.experiment.proof.bench import ConformanceError
from rl_training.experiment.proof.conformance import check_algorithm
from rl_training.policies.actor_critic import ActorCritic
from rl_training.utils.errors import UserError

ON_A_GPU = ("same_seed", "save_load", "split_run", "state_tree", "evaluation")
"""What a device could change."""

BROKEN_STEPS = 60
"""Enough for six iterations of A2C with two environments."""


@pytest.mark.parametrize("algo", sorted(registry.BUILT_IN))
def test_every_algorithm_conforms(algo: str) -> None:
    before = torch.get_rng_state()
    report = check_algorithm(algo)
    report.raise_if_failed()
    declared = registry.load(algo)
    names = {result.name for result in report.results}
    assert {"same_seed", "save_load", "memory", "split_run", "state_tree", "evaluation", "refusals"} <= names
    assert {f"observation_space:{name}" for name in declared.observation_spaces} <= names
    assert {f"action_space:{name}" for name in declared.action_spaces} <= names
    assert torch.equal(before, torch.get_rng_state())


@needs_gpu
@pytest.mark.parametrize("algo", sorted(registry.BUILT_IN))
def test_every_algorithm_conforms_on_a_gpu(algo: str) -> None:
    check_algorithm(algo, device="cuda", only=ON_A_GPU).raise_if_failed()
    if registry.algorithm_info(algo).trainer == "off_policy":
        replay = {"replay_storage": "device"}
        check_algorithm(algo, device="cuda", only=ON_A_GPU, hyperparams=replay).raise_if_failed()


def test_a_run_with_its_replay_in_files_goes_on_exactly() -> None:
    files = {"replay_storage": "disk"}
    check_algorithm("sac", only=("same_seed", "save_load", "split_run"), hyperparams=files).raise_if_failed()


class UnseededNoise(A2CAlgorithm):
    """Randomness that no seed controls."""

    def _optimize(self, rollout: Any, progress: float) -> dict[str, Tensor]:
        metrics = super()._optimize(rollout, progress)
        with torch.no_grad():
            self.policy.value_head.bias += int.from_bytes(os.urandom(4)) * 1e-12
        return metrics


class GlobalNoise(A2CAlgorithm):
    """Draws from torch's global generator, which a run seeds, saves and restores: not broken."""

    def _optimize(self, rollout: Any, progress: float) -> dict[str, Tensor]:
        metrics = super()._optimize(rollout, progress)
        with torch.no_grad():
            self.policy.value_head.bias += 1e-3 * torch.randn(1)
        return metrics


class ForgetsOptimizer(A2CAlgorithm):
    """Neither saves nor restores the moments of its optimiser."""

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "optimizers"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self._running_returns = state["running_returns"]


class ForgetsCounter(A2CAlgorithm):
    """Keeps a counter that changes the update and is not in its state."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._updates = itertools.count(1)

    def update(self, rollout: Any, progress: float) -> dict[str, Tensor]:
        return super().update(rollout, 1.0 if next(self._updates) > 2 else 0.5)


class IgnoresRestoredGenerator(A2CAlgorithm):
    """Saves its random stream and does not take it back."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        fresh = self.generator.get_state()
        super().load_state_dict(state)
        self.generator.set_state(fresh)


class SeedlessWeights(A2CAlgorithm):
    """Starts from, and stays at, the same weights whatever the seed."""

    def update(self, rollout: Any, progress: float) -> dict[str, Tensor]:
        metrics = super().update(rollout, progress)
        with torch.no_grad():
            for value in self.policy.state_dict().values():
                value.fill_(0.25)
        return metrics


class StateOfAnotherKind(A2CAlgorithm):
    """Puts something into its state that the checkpoint format does not have."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": {1, 2, 3}}


class NoiseOfEvaluation(A2CAlgorithm):
    """Acts in evaluation mode from the stream that training draws from."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        policy, act = self.policy, self.policy.act

        def disturbing(obs: Any, state: Any = None, **settings: Any) -> tuple[Tensor, Any]:
            if not policy.training:
                torch.rand(1, generator=self.generator)
            return act(obs, state, **settings)

        policy.act = disturbing  # type: ignore[method-assign]


class AcceptsEverything(A2CAlgorithm):
    """Declares one action space and checks nothing."""

    action_spaces: ClassVar[tuple[str, ...]] = ("Discrete",)

    @classmethod
    def check_spaces(cls, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        pass


class DeclaresTooMuch(A2CAlgorithm):
    """Declares MultiDiscrete actions and acts as if there were one choice only."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        act = self.policy.act

        def first_choice(obs: Any, state: Any = None, **settings: Any) -> tuple[Tensor, Any]:
            actions, state = act(obs, state, **settings)
            return actions[..., :1], state

        self.policy.act = first_choice  # type: ignore[method-assign]

    action_spaces: ClassVar[tuple[str, ...]] = ("MultiDiscrete",)


class DeclaresUnknown(A2CAlgorithm):
    """Declares a space that does not exist."""

    observation_spaces: ClassVar[tuple[str, ...]] = ("Box", "Sphere")


class WrongRefusal(A2CAlgorithm):
    """Refuses with an error that the command line would show as a bug."""

    @classmethod
    def check_spaces(cls, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        if isinstance(observation_space, spaces.Tuple):
            raise NotImplementedError("Tuple")
        super().check_spaces(observation_space, action_space)


class BadMetric(A2CAlgorithm):
    """Reports a metric that is not finite although the loss is."""

    def update(self, rollout: Any, progress: float) -> dict[str, Tensor]:
        return {**super().update(rollout, progress), "ratio": torch.tensor(float("nan"))}


class FloatMetric(A2CAlgorithm):
    """Reads a metric from the device in the update."""

    def update(self, rollout: Any, progress: float) -> dict[str, Any]:
        return {**super().update(rollout, progress), "ratio": 0.5}


class NeverLearns(A2CAlgorithm):
    """Skips the optimiser."""

    def _optimize(self, rollout: Any, progress: float) -> dict[str, Tensor]:
        return {"loss": torch.zeros(())}


class Remembers(ActorCritic):
    """Keeps a running mean of what it has seen."""

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, self.encoder.features)

    def act(self, obs: Any, state: Any = None, *, generator: Any = None, deterministic: bool = False) -> Any:
        with torch.no_grad():
            state = self.remember(state, self.encoder(obs))
            distribution = self.action_head(self.actor_body(state))
            return distribution.mode() if deterministic else distribution.sample(generator), state

    def remember(self, state: Tensor, seen: Tensor) -> Tensor:
        return 0.5 * state + seen


class MemoryElsewhere(Remembers):
    """Remembers in an attribute, which no checkpoint holds."""

    kept: Any = None

    def remember(self, state: Tensor, seen: Tensor) -> Tensor:
        self.kept = seen if self.kept is None or self.kept.shape != seen.shape else 0.5 * self.kept + seen
        return self.kept


class MixedMemory(Remembers):
    """Remembers the first environment's observation in all."""

    def remember(self, state: Tensor, seen: Tensor) -> Tensor:
        return 0.5 * state + seen[:1]


class UnsavedMemory(Remembers):
    """Has a weight for what it remembers that is not saved; it does not show in an episode's first step."""

    def __init__(self, spec: Any):
        super().__init__(spec)
        self.register_buffer("share", torch.rand(self.encoder.features), persistent=False)

    def remember(self, state: Tensor, seen: Tensor) -> Tensor:
        return self.share * state + seen


class WithMemory(A2CAlgorithm):
    memory: ClassVar[type[Remembers]] = Remembers

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "execution": "eager"})

    @classmethod
    def make_policy(cls, spec: Any, hyperparams: Any) -> Any:  # type: ignore[override]
        return cls.memory(spec)


class WithMemoryElsewhere(WithMemory):
    memory = MemoryElsewhere


class WithMixedMemory(WithMemory):
    memory = MixedMemory


class WithUnsavedMemory(WithMemory):
    memory = UnsavedMemory


@pytest.mark.parametrize(
    "broken, failing, message",
    [
        (
            UnseededNoise,
            {"same_seed", "split_run", "evaluation"},
            "same seed end in different states.*policy.weights",
        ),
        (ForgetsOptimizer, {"split_run"}, "resumed at step 32 ends in another state.*weights"),
        (ForgetsCounter, {"split_run"}, "ends in another state"),
        (IgnoresRestoredGenerator, {"split_run"}, "right after loading is not the saved one.*algorithm.generator"),
        (SeedlessWeights, {"same_seed"}, "different seeds end with the same weights"),
        (StateOfAnotherKind, {"save_load", "split_run", "state_tree"}, "set is not a state value"),
        (NoiseOfEvaluation, {"evaluation"}, "changes the training.*policy.weights"),
        (AcceptsEverything, {"refusals"}, "accepts actions in .*which it does not declare"),
        (DeclaresTooMuch, {"action_space:MultiDiscrete"}, "fails in MultiDiscrete"),
        (DeclaresUnknown, {"observation_space:Sphere"}, "declares 'Sphere'"),
        (WrongRefusal, {"refusals"}, "with NotImplementedError instead of SpaceError"),
        (BadMetric, {"same_seed", "action_space:Box"}, "metric 'ratio' is nan at step 16"),
        (FloatMetric, {"same_seed", "action_space:Box"}, "metric 'ratio' is 0.5; metrics are tensors"),
        (WithMemoryElsewhere, {"memory", "split_run"}, "it remembers something elsewhere"),
        (WithMixedMemory, {"memory"}, "of one environment depends on its place among the others"),
        (WithUnsavedMemory, {"save_load"}, "actions of the loaded policy, or what it remembers, differ at step 1"),
        (NeverLearns, {"action_space:Box", "observation_space:Dict"}, "learns nothing in"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_broken_algorithms_are_caught(
    monkeypatch: pytest.MonkeyPatch, broken: type, failing: set[str], message: str
) -> None:
    hyperparams = {"learning_rate": {"start": 1e-2, "end": 0.0}} if broken is ForgetsCounter else {}
    report = check_algorithm(
        _register(monkeypatch, broken), total_timesteps=BROKEN_STEPS, hyperparams=hyperparams, only=failing
    )
    assert failing == {result.name for result in report.failures}, str(report)
    with pytest.raises(ConformanceError, match=f"(?s){message}"):
        report.raise_if_failed()


@pytest.mark.parametrize("sound", [A2CAlgorithm, GlobalNoise, WithMemory])
def test_a_sound_algorithm_passes_the_same_short_suite(monkeypatch: pytest.MonkeyPatch, sound: type) -> None:
    """The other half of the negative controls: what was caught above was not the length of the run."""
    report = check_algorithm(_register(monkeypatch, sound), total_timesteps=BROKEN_STEPS)
    assert report.passed, str(report)
    assert "FAILED" not in str(report)


def test_a_run_too_short_to_split_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    report = check_algorithm(_register(monkeypatch, A2CAlgorithm), total_timesteps=10, only=["split_run"])
    (split,) = [result for result in report.failures if result.name == "split_run"]
    assert "one iteration takes all of the 10 steps" in str(split.problem)


def test_an_unknown_check_is_named() -> None:
    with pytest.raises(UserError, match="no check named 'split_runs'.*split_run"):
        check_algorithm("a2c", only=["split_runs"])


def _register(monkeypatch: pytest.MonkeyPatch, algorithm: type) -> str:
    monkeypatch.setitem(registry.ALGORITHMS.things, "under_test", registry.describe_algorithm("under_test", algorithm))
    return "under_test"
