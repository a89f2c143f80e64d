"""A recorded step computes what is written, from the same random numbers, and leaves no trace of being prepared: for every
algorithm, every kind of actions, with and without normalisation, in updates and in acting."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from helpers.exploring import explored
from helpers.rollouts import make_algorithm, make_rollout
from rl_training.algorithms.a2c import A2CAlgorithm
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.crossq import CrossQAlgorithm
from rl_training.algorithms.dqn import DQNAlgorithm
from rl_training.algorithms.dqn_variants import IQNAlgorithm, RainbowAlgorithm
from rl_training.algorithms.exploration import Explorer
from rl_training.algorithms.on_policy import OneLossAlgorithm, OnPolicyAlgorithm
from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.algorithms.sac import SACAlgorithm
from rl_training.algorithms.td3 import TD3Algorithm
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import Execution, RecordedFunction, recordable
from rl_training.experiment import registry
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.errors import ExecutionError, NonFiniteError
from rl_training.utils.trees import differing_paths

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32)
SPACES: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_minibatches": 4, "update_epochs": 4},
    "recurrent_ppo": {"num_minibatches": 2, "update_epochs": 4, "sequence_length": 4},
    "dqn": {"double": True, "dueling": True, "tau": 0.1, "target_update_interval": 0},
    "rainbow": {"v_min": -5.0, "v_max": 5.0},
    "qr_dqn": {"num_quantiles": 20},
    "redq": {"policy_delay": 2},
    "trpo": {"cg_iterations": 5},
    "droq": {"policy_delay": 2},
    "crossq": {"policy_delay": 2},
}
"""So that each path of a step is taken within three updates. Conjugate gradients that go on after they have converged make of a
last digit in the advantages, also without any recording, differences above the tolerance."""
CASES = [
    pytest.param(algo, space, squash, id=f"{algo}-{'squashed' if squash else space}")
    for algo in sorted(registry.BUILT_IN)
    for space in registry.load(algo).action_spaces
    for squash in (
        (False, True) if space == "Box" and "squash" not in registry.load(algo).unused_policy_keys else (False,)
    )
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recorded_functions(owner: Any) -> dict[str, RecordedFunction[Any]]:
    found = {name: value for name, value in vars(owner).items() if isinstance(value, RecordedFunction)}
    parts = [value for value in vars(owner).values() if isinstance(value, Explorer)]
    return {**found, **{name: value for part in parts for name, value in recorded_functions(part).items()}}


def make_actions(space: spaces.Space[Any], count: int, generator: torch.Generator) -> Tensor:
    """Random ones in policy form."""
    if isinstance(space, spaces.Discrete):
        return torch.randint(int(space.n), (count,), generator=generator)
    if isinstance(space, spaces.MultiDiscrete):
        return torch.stack([torch.randint(int(n), (count,), generator=generator) for n in space.nvec], dim=-1)
    assert space.shape is not None
    numbers = torch.rand(count, *space.shape, generator=generator)
    return numbers.round() if isinstance(space, spaces.MultiBinary) else 1.8 * numbers - 0.9


def make_observations(count: int, generator: torch.Generator) -> Tensor:
    return 1.0 + 2.0 * torch.randn(count, 4, generator=generator)


def make_batch(space: spaces.Space[Any], seed: int, size: int = 16) -> TransitionBatch:
    generator = torch.Generator().manual_seed(seed)
    return TransitionBatch(
        make_observations(size, generator),
        make_actions(space, size, generator),
        torch.randn(size, generator=generator),
        make_observations(size, generator),
        0.99 * (torch.rand(size, generator=generator) < 0.8),
        0.5 + 0.5 * torch.rand(size, generator=generator),
        np.arange(size),
    )


def make_rollout_of(space: spaces.Space[Any], seed: int, num_steps: int = 8, num_envs: int = 2) -> RolloutBuffer:
    """With actions that owe nothing to the policy, and ends of both kinds."""
    generator = torch.Generator().manual_seed(seed)
    actions = make_actions(space, num_steps * num_envs, generator).unflatten(0, (num_steps, num_envs))
    buffer = RolloutBuffer(num_steps, num_envs, (4,), tuple(actions.shape[2:]), action_dtype=actions.dtype)
    for step in range(num_steps):
        buffer.add(
            obs=make_observations(num_envs, generator),
            actions=actions[step],
            rewards=torch.randn(num_envs, generator=generator).numpy(),
            terminated=np.array([step == 3, False]),
            truncated=np.array([False, step == 5]),
            valid=np.ones(num_envs, dtype=bool),
            next_obs=make_observations(num_envs, generator),
        )
    buffer.last_obs = make_observations(num_envs, generator)
    return buffer


def make(
    kind: type[Algorithm[Any, Any]],
    space: spaces.Space[Any],
    execution: Execution,
    *,
    policy: PolicyConfig | None = None,
    normalize: bool = False,
    **settings: Any,
) -> Any:
    return kind(
        OBSERVATIONS,
        space,
        kind.config_class(**settings),
        policy or PolicyConfig(hidden_sizes=(8, 8), activation="tanh"),
        normalize_observations=normalize,
        normalize_rewards=normalize and kind.normalizes_rewards,
        execution=execution,
    )


def update(algorithm: Any, seed: int, **kwargs: Any) -> dict[str, Tensor]:
    torch.manual_seed(seed)  # dropout draws from torch's own stream
    if isinstance(algorithm, OnPolicyAlgorithm):
        rollout = make_rollout_of(algorithm.action_space, seed)
        rollout.initial_state = algorithm.policy.initial_state(rollout.num_envs)
        return algorithm.update(rollout, 0.1 * seed)
    batch = make_batch(algorithm.action_space, seed, **kwargs)
    algorithm.update_statistics(batch.obs)
    return algorithm.update(batch, 0.1 * seed)


def all_tensors(tree: Any, path: str = "") -> dict[str, Tensor]:
    if isinstance(tree, Tensor):
        return {path: tree.clone()}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return {name: found for key, value in items for name, found in all_tensors(value, f"{path}.{key}").items()}


def assert_alike(found: Any, expected: Any, *, rtol: float = 0.0, atol: float = 1e-6) -> None:
    ours, theirs = all_tensors(found), all_tensors(expected)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours[name], value, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalised"])
@pytest.mark.parametrize(("algo", "space", "squash"), CASES)
def test_recorded_updates_are_those_as_written(algo: str, space: str, squash: bool, normalize: bool) -> None:
    kind, policy = registry.load(algo), PolicyConfig(hidden_sizes=(8, 8), activation="tanh", squash=squash)
    eager, recorded = (
        make(kind, SPACES[space], execution, policy=policy, normalize=normalize, **SETTINGS.get(algo, {}))
        for execution in ("eager", "recorded")
    )
    start = all_tensors(eager.policy.state_dict())
    for seed in range(3):
        metrics = [update(algorithm, seed) for algorithm in (eager, recorded)]
        assert_alike(metrics[1], metrics[0], rtol=1e-5, atol=1e-5)
        if not isinstance(eager, OnPolicyAlgorithm):
            assert_alike(recorded.priorities(), eager.priorities(), rtol=1e-5)
    assert_alike(recorded.policy.state_dict(), eager.policy.state_dict())
    assert_alike(recorded.state_dict(), eager.state_dict())
    assert torch.equal(recorded.generator.get_state(), eager.generator.get_state()), "the same numbers were drawn"
    for name, value in all_tensors(eager.policy.state_dict()).items():
        assert not name.endswith("weight") or not torch.equal(value, start[name]), f"{name} was learned"
    functions = recorded_functions(recorded)
    if algo == "recurrent_ppo":
        del functions["evaluate_actions"]  # it has evaluate_rollout in its place
    assert functions and all(function.recordings > 0 for function in functions.values())
    assert recorded.executor.eager_because == {} and recorded_functions(eager) == {}


def test_settings_name_algorithms() -> None:
    assert set(SETTINGS) <= set(registry.BUILT_IN) == {case.values[0] for case in CASES}


@pytest.mark.parametrize("algo", ["ppo", "sac", "dqn"])
def test_the_relu_of_most_presets_too(algo: str) -> None:
    """A kink may turn a last digit into a gradient, so within wider bounds."""
    kind, policy = registry.load(algo), PolicyConfig(hidden_sizes=(8, 8), activation="relu", orthogonal_init=False)
    space = SPACES[kind.action_spaces[0]]
    eager, recorded = (make(kind, space, execution, policy=policy) for execution in ("eager", "recorded"))
    for seed in range(7):
        metrics = [update(algorithm, seed) for algorithm in (eager, recorded)]
        assert_alike(metrics[1], metrics[0], rtol=1e-3, atol=1e-5)
    assert_alike(recorded.policy.state_dict(), eager.policy.state_dict(), atol=2e-4)


def test_recorded_updates_from_large_images_are_the_same_within_rounding() -> None:
    stream = torch.Generator().manual_seed(0)
    frames, flat = torch.randint(256, (2, 24, 4, 84, 84), generator=stream, dtype=torch.uint8), torch.ones(24)
    actions = torch.randint(3, (24,), generator=stream)
    batch = TransitionBatch(frames[0], actions, flat, frames[1], flat * 0.99, flat, indices=np.arange(24))
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    eager, recorded = (
        DQNAlgorithm(space, spaces.Discrete(3), DQNAlgorithm.config_class(), execution=execution)
        for execution in ("eager", "recorded")
    )
    for _ in range(3):
        metrics = [algorithm.update(batch, 0.0) for algorithm in (eager, recorded)]
        assert_alike(metrics[1], metrics[0], rtol=1e-3, atol=1e-5)
    assert recorded_functions(recorded)["_train_batch"].recordings == 1
    assert_alike(recorded.policy.state_dict(), eager.policy.state_dict(), atol=2e-4)


ACTING: list[tuple[type[Algorithm[Any, Any]], dict[str, Any]]] = [
    (DQNAlgorithm, {"epsilon": 0.5}),
    (DQNAlgorithm, {"epsilon": 0.0}),
    (RainbowAlgorithm, {"epsilon": 0.0}),
    (IQNAlgorithm, {"epsilon": 0.1}),
    (SACAlgorithm, {}),
    (SACAlgorithm, {"noise_correlation": 0.8}),
    (TD3Algorithm, {}),
    (CrossQAlgorithm, {}),
]


@pytest.mark.parametrize("kind, settings", ACTING)
def test_recorded_acting_is_the_same_and_moves_the_stream_as_far(
    kind: type[Algorithm[Any, Any]], settings: Any
) -> None:
    same = settings.get("noise_correlation")  # this noise belongs to so many environments
    sizes = (6, 6, 6) if same else (6, 6, 3, 6, 6)
    observed = [torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)) for rows in sizes]
    streams, actions = [torch.Generator().manual_seed(7) for _ in range(2)], []
    for execution, stream in zip(("recorded", "eager"), streams):
        explorer = make(kind, SPACES[kind.action_spaces[0]], execution, **settings).make_explorer()
        chosen = [explored(explorer, obs, stream, 0.1 * step) for step, obs in enumerate(observed)]
        actions.append([part.clone() for part in chosen])
        counts = [function.recordings for function in recorded_functions(explorer).values()]
        assert sum(counts) == (len(set(sizes)) if execution == "recorded" else 0), "one for each shape"
    assert_alike(*actions, rtol=1e-6)
    assert torch.equal(*(stream.get_state() for stream in streams))
    assert len({str(chosen.tolist()) for chosen in actions[0]}) > 1, "they do explore"


class Sampled:
    """A policy's own actions, recorded as the collector of rollouts does."""

    def __init__(self, algorithm: OnPolicyAlgorithm[Any]):
        self.policy, self.executor = algorithm.policy, algorithm.executor.for_owner(algorithm.policy)
        self.act: Any = self.executor.function(self._act)

    def _act(self, obs: Any, random: RandomSource) -> Tensor:
        return self.policy.act(obs, generator=random)[0]


@pytest.mark.parametrize(("space", "squash"), [*((name, False) for name in SPACES), ("Box", True)])
def test_recorded_sampling_is_the_same_for_all_actions(space: str, squash: bool) -> None:
    policy = PolicyConfig(hidden_sizes=(8, 8), squash=squash)
    streams, actions = [torch.Generator().manual_seed(7) for _ in range(2)], []
    for execution, stream in zip(("recorded", "eager"), streams):
        sampled = Sampled(make(PPOAlgorithm, SPACES[space], execution, policy=policy, normalize=True))
        observed = [make_observations(5, torch.Generator().manual_seed(seed)) for seed in range(4)]
        actions.append([sampled.act(obs, stream).clone() for obs in observed])
    assert_alike(*actions, rtol=1e-6)
    assert torch.equal(*(stream.get_state() for stream in streams))


@pytest.mark.parametrize("kind", [PPOAlgorithm, SACAlgorithm])
def test_observations_of_several_parts(kind: type[Algorithm[Any, Any]]) -> None:
    space = spaces.Dict({"position": OBSERVATIONS, "mode": spaces.Discrete(3), "flags": spaces.MultiBinary(2)})

    def parts(size: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        mode, flags = torch.randint(3, (size,), generator=generator), torch.randint(2, (size, 2), generator=generator)
        return {"position": make_observations(size, generator), "mode": mode, "flags": flags.to(torch.int8)}

    box = SPACES["Box"]
    results = []
    config = kind.config_class(**SETTINGS.get("ppo" if kind is PPOAlgorithm else "sac", {}))
    for execution in ("eager", "recorded"):
        algorithm: Any = kind(space, box, config, PolicyConfig(hidden_sizes=(8, 8)), execution=execution)
        for seed in range(3):
            if kind is SACAlgorithm:
                batch = replace(make_batch(box, seed), obs=parts(16, seed), next_obs=parts(16, seed + 10))
                algorithm.update(batch, 0.0)
                continue
            rollout, whole = make_rollout_of(box, seed), parts(16, seed)
            rollout.obs = {key: value.unflatten(0, (8, 2)) for key, value in whole.items()}
            rollout._final_obs, rollout._final_index, rollout.last_obs = [], [], parts(2, seed + 10)
            rollout.truncated.zero_()
            algorithm.update(rollout, 0.0)
        functions = recorded_functions(algorithm).values()
        assert all(function.recordings == 1 for function in functions) and bool(functions) == (execution == "recorded")
        results.append(all_tensors(algorithm.policy.state_dict()))
    assert_alike(*results)


@pytest.mark.parametrize("algo", ["dqn", "sac", "crossq"])
def test_batches_of_other_sizes_are_recorded_apart(algo: str) -> None:
    kind = registry.load(algo)
    space = SPACES[kind.action_spaces[0]]
    eager, recorded = (make(kind, space, execution, **SETTINGS.get(algo, {})) for execution in ("eager", "recorded"))
    for seed, size in enumerate((16, 16, 5, 16, 5, 5, 16)):
        for algorithm in (eager, recorded):
            update(algorithm, seed, size=size)
    assert_alike(recorded.policy.state_dict(), eager.policy.state_dict())
    turns = 1 if kind is DQNAlgorithm else 2
    assert recorded_functions(recorded)["_train_batch"].recordings <= 2 * turns


@pytest.mark.parametrize("kind", [PPOAlgorithm, A2CAlgorithm])
def test_minibatches_of_odd_sizes_run_as_written(kind: type[OneLossAlgorithm[Any]]) -> None:
    parts = {"num_minibatches": 2} if kind is PPOAlgorithm else {}
    eager, recorded = (make_algorithm(kind, env={"execution": way}, **parts) for way in ("eager", "recorded"))
    for seed in range(3):
        rollout = make_rollout(eager, seed=seed)
        rollout.valid[0, 0] = seed != 1  # one step fewer: other minibatches, which are not recorded
        for algorithm in (eager, recorded):
            assert torch.isfinite(algorithm.update(copy.deepcopy(rollout), 0.1)["loss"])
    assert_alike(recorded.policy.state_dict(), eager.policy.state_dict())
    assert recorded_functions(recorded)["_train_minibatch"].recordings == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("algo", ["dqn", "c51", "sac", "td3", "ppo"])
def test_what_is_not_finite_is_treated_as_if_as_written(algo: str, bad: float) -> None:
    """In the step that is recorded and in one that is repeated; afterwards both go on."""
    kind = registry.load(algo)
    eager, recorded = (make(kind, SPACES[kind.action_spaces[-1]], way) for way in ("eager", "recorded"))
    for seed in range(4):
        messages = []
        for algorithm in (eager, recorded):
            batch: Any
            if isinstance(algorithm, OnPolicyAlgorithm):
                batch = make_rollout_of(algorithm.action_space, seed)
                batch.initial_state = algorithm.policy.initial_state(batch.num_envs)
            else:
                batch = make_batch(algorithm.action_space, seed)
            if seed % 2 == 0:
                batch.rewards.view(-1)[3] = bad
            try:
                algorithm.update(batch, 0.0)
                for optimizer in algorithm.optimizers().values():
                    optimizer.raise_if_nonfinite()
                messages.append("")
            except NonFiniteError as error:
                messages.append(str(error))
        assert messages[0] == messages[1]
        if algo != "c51" or math.isnan(bad):  # which puts what is too large at the end of its support
            assert ("loss" in messages[0]) == (seed % 2 == 0)
        assert_alike(recorded.policy.state_dict(), eager.policy.state_dict())
        assert all(value.isfinite().all() for value in recorded.policy.state_dict().values())


class Peeking(PPOAlgorithm):
    """Asks what its loss is, and then does something else."""

    @recordable
    def _train_minibatch(self, *args: Any) -> Any:
        report = super()._train_minibatch(*args)
        return report if report.values[0].item() > -1e9 else None


def test_a_step_that_asks_for_numbers_is_computed_as_it_is_written() -> None:
    peeking = make_algorithm(Peeking)
    eager = make_algorithm(PPOAlgorithm, env={"execution": "eager"})
    for seed in range(2):
        rollout = make_rollout(eager, seed=seed)
        eager._preprocess_batch(rollout)
        rollout.has_logprobs = True  # else recorded ones, whose last digits may differ
        for algorithm in (peeking, eager):
            algorithm.update(copy.deepcopy(rollout), 0.0)
    assert differing_paths(peeking.policy.state_dict(), eager.policy.state_dict()) == []
    (reason,) = peeking.executor.eager_because.values()
    assert "item" in reason and recorded_functions(peeking)["_train_minibatch"].recordings == 0
    with pytest.raises(ExecutionError, match="Peeking._train_minibatch runs as written(?s:.*)allows no exception"):
        algorithm = make_algorithm(Peeking, env={"execution": "recorded"})
        algorithm.update(make_rollout(algorithm), 0.0)


class PeekingDQN(DQNAlgorithm):
    @recordable
    def _train_batch(self, *args: Any) -> Any:
        outcome = super()._train_batch(*args)
        assert outcome.report.values.isfinite().all()
        return outcome


def test_stepping_aside_leaves_no_trace() -> None:
    peeking, eager = make(PeekingDQN, SPACES["Discrete"], "auto"), make(DQNAlgorithm, SPACES["Discrete"], "eager")
    for seed in range(3):
        for algorithm in (peeking, eager):
            update(algorithm, seed)
    assert differing_paths(peeking.policy.state_dict(), eager.policy.state_dict()) == []
    assert differing_paths(peeking.state_dict(), eager.state_dict()) == []


@pytest.mark.parametrize("algo", ["rainbow", "td3", "sac", "ppo"])
def test_a_recorded_step_does_not_depend_on_when_it_was_recorded(algo: str) -> None:
    """What makes a resume exact: a fresh process, which records anew, goes on as the old one."""
    kind = registry.load(algo)
    first, second = (make(kind, SPACES[kind.action_spaces[-1]], "recorded", normalize=True) for _ in range(2))
    for seed in range(3):
        update(first, seed)
    second.policy.load_state_dict(copy.deepcopy(first.policy.state_dict()))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for algorithm in (first, second):
        for seed in range(3, 6):
            update(algorithm, seed)
    assert differing_paths(first.policy.state_dict(), second.policy.state_dict()) == []
    assert differing_paths(first.state_dict(), second.state_dict()) == []


@pytest.mark.parametrize("algo", ["rainbow", "td3", "ppo"])
def test_checking_each_call_finds_nothing_and_changes_nothing(algo: str) -> None:
    kind = registry.load(algo)
    space = SPACES[kind.action_spaces[-1]]
    plain, checked = make(kind, space, "recorded"), make(kind, space, "recorded")
    checked.executor.check_every = 1
    for seed in range(4):
        for algorithm in (plain, checked):
            update(algorithm, seed)
    assert differing_paths(plain.policy.state_dict(), checked.policy.state_dict()) == []
    assert differing_paths(plain.state_dict(), checked.state_dict()) == []
    assert recorded_functions(plain).keys() == recorded_functions(checked).keys()


def test_weights_that_were_loaded_are_learned_from() -> None:
    eager, recorded = (make(SACAlgorithm, SPACES["Box"], way) for way in ("eager", "recorded"))
    other = make(SACAlgorithm, SPACES["Box"], "eager").policy
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.5)
    for assign in (False, True):
        for algorithm in (eager, recorded):
            update(algorithm, 1)
            algorithm.policy.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
            update(algorithm, 2)
        assert_alike(recorded.policy.state_dict(), eager.policy.state_dict())
