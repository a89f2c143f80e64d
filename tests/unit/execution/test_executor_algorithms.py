"""A recorded or compiled step computes what is written, from the same random numbers, and leaves no trace of being prepared."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.as_written import as_written
from helpers.compiling import needs_compiler
from helpers.rollouts import make_algorithm, make_rollout
from rl_training.algorithms.a2c import A2C
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.crossq import CrossQ
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.dqn_variants import IQN, QRDQN, Rainbow
from rl_training.algorithms.on_policy import OneLossAlgorithm
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.sac_variants import REDQ
from rl_training.algorithms.td3 import TD3
from rl_training.algorithms.tqc import TQC
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.draws import Draw, Recorder, Tape, normal, permutation, uniform
from rl_training.execution.steps import Acting, CompiledStep
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.trees import differing_paths

CPU = torch.device("cpu")


def off_policy(kind: type[Algorithm[Any, Any]], compiled: bool, **settings: Any) -> Any:
    actions = spaces.Discrete(3) if issubclass(kind, DQN) else spaces.Box(-1, 1, (2,), np.float32)
    policy = PolicyConfig(hidden_sizes=(8,), activation="relu")
    return kind(spaces.Box(-9, 9, (4,), np.float32), actions, kind.config_class(**settings), policy, compiled=compiled)


def make_batch(discrete: bool, seed: int) -> TransitionBatch:
    generator = torch.Generator().manual_seed(seed)
    actions = (
        torch.randint(3, (16,), generator=generator) if discrete else torch.rand(16, 2, generator=generator) * 2 - 1
    )
    return TransitionBatch(
        torch.randn(16, 4, generator=generator),
        actions,
        torch.randn(16, generator=generator),
        torch.randn(16, 4, generator=generator),
        torch.full((16,), 0.99),
        torch.ones(16),
        torch.arange(16),
    )


def assert_same_updates(expected: Any, found: Any, *, discrete: bool, progress: list[float]) -> None:
    """Two algorithms in the same state learn the same from the same batches, within rounding."""
    for seed, share in enumerate(progress):
        metrics = [algorithm.update(make_batch(discrete, seed), share) for algorithm in (expected, found)]
        for name, value in metrics[0].items():
            torch.testing.assert_close(metrics[1][name], value, rtol=1e-3, atol=1e-5, msg=name)
        torch.testing.assert_close(found.priorities(), expected.priorities(), rtol=1e-3, atol=1e-5)
    assert torch.equal(expected.generator.get_state(), found.generator.get_state()), "the same numbers were drawn"
    for name, weights in expected.policy.state_dict().items():
        torch.testing.assert_close(found.policy.state_dict()[name], weights, rtol=0, atol=2e-4, msg=name)


ACTING: list[tuple[type[Algorithm[Any, Any]], dict[str, Any]]] = [
    (DQN, {"epsilon": 0.5}),
    (DQN, {"epsilon": 0.0}),
    (Rainbow, {"epsilon": 0.0}),
    (IQN, {"epsilon": 0.1}),
    (SAC, {}),
    (TD3, {}),
    (CrossQ, {}),
]


@pytest.mark.parametrize("kind, settings", ACTING)
def test_recorded_acting_is_the_same_and_moves_the_stream_as_far(
    kind: type[Algorithm[Any, Any]], settings: Any
) -> None:
    observed = [torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)) for rows in (6, 6, 3, 6, 6)]
    streams, actions = [torch.Generator().manual_seed(7) for _ in range(2)], []
    for written, stream in zip((False, True), streams):
        algorithm = off_policy(kind, False, **settings)
        for name, acting in vars(algorithm).items():
            if written and isinstance(acting, Acting):
                setattr(algorithm, name, lambda *args, generator, acting=acting: acting._act(*args, generator))
        actions.append(
            [algorithm.explore(obs, generator=stream, progress=0.1 * step) for step, obs in enumerate(observed)]
        )
    for ours, theirs in zip(*actions):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert torch.equal(*(stream.get_state() for stream in streams))
    assert len({str(chosen.tolist()) for chosen in actions[0]}) > 1, "they do explore"


RECORDED: list[tuple[type[Algorithm[Any, Any]], dict[str, Any]]] = [
    (DQN, {"double": True, "dueling": True, "tau": 0.1, "target_update_interval": 0}),
    (QRDQN, {"num_quantiles": 20}),
    (IQN, {}),
    (Rainbow, {"v_min": -5.0, "v_max": 5.0}),
    (SAC, {}),
    (REDQ, {}),
    (TQC, {}),
    (TD3, {"policy_delay": 2}),
    (CrossQ, {"policy_delay": 3, "critic_hidden_sizes": (8, 8)}),
]


@pytest.mark.parametrize("kind, settings", RECORDED)
def test_recorded_updates_are_the_same_within_rounding(kind: type[Algorithm[Any, Any]], settings: Any) -> None:
    recorded, written = off_policy(kind, False, **settings), as_written(off_policy(kind, False, **settings))
    assert_same_updates(written, recorded, discrete=issubclass(kind, DQN), progress=[0.1 * step for step in range(7)])
    assert all(function._program.repeatable for function in recorded._run_step._functions.values())


def test_recorded_updates_from_large_images_are_the_same_within_rounding() -> None:
    stream = torch.Generator().manual_seed(0)
    frames, flat = torch.randint(256, (2, 24, 4, 84, 84), generator=stream, dtype=torch.uint8), torch.ones(24)
    actions = torch.randint(3, (24,), generator=stream)
    batch = TransitionBatch(frames[0], actions, flat, frames[1], flat * 0.99, flat, indices=torch.arange(24))
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    recorded, written = (DQN(space, spaces.Discrete(3), DQN.config_class()) for _ in range(2))
    as_written(written)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would be left to torch
    try:
        for _ in range(3):
            metrics = [algorithm.update(batch, 0.0) for algorithm in (written, recorded)]
            for name, value in metrics[0].items():
                torch.testing.assert_close(metrics[1][name], value, rtol=1e-3, atol=1e-5, msg=name)
    finally:
        torch.set_num_threads(threads)
    assert all(function._program.repeatable for function in recorded._run_step._functions.values())
    for name, weights in written.policy.state_dict().items():
        torch.testing.assert_close(recorded.policy.state_dict()[name], weights, rtol=0, atol=2e-4, msg=name)


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_recorded_on_policy_updates_are_the_same_within_rounding(kind: type[OneLossAlgorithm[Any]]) -> None:
    recorded, written = make_algorithm(kind), as_written(make_algorithm(kind))
    for seed in range(3):
        metrics = [algorithm.update(make_rollout(algorithm, seed=seed), 0.1) for algorithm in (written, recorded)]
        for name, value in metrics[0].items():
            torch.testing.assert_close(metrics[1][name], value, rtol=1e-3, atol=1e-5, msg=name)
    for name, weights in written.policy.state_dict().items():
        torch.testing.assert_close(recorded.policy.state_dict()[name], weights, rtol=0, atol=1e-5, msg=name)


class Peeking(PPO):
    """Asks what its loss is, and then does something else."""

    def _compute_losses(self, *args: Any) -> Any:
        losses = super()._compute_losses(*args)
        return losses if losses["loss"].item() > -1e9 else {}


def test_a_step_that_asks_for_numbers_is_computed_as_it_is_written() -> None:
    peeking, plain = make_algorithm(Peeking), as_written(make_algorithm(PPO))
    for seed in range(2):
        for algorithm in (peeking, plain):
            algorithm.update(make_rollout(algorithm, seed=seed), 0.0)
    assert differing_paths(peeking.policy.state_dict(), plain.policy.state_dict()) == []


@needs_compiler
@pytest.mark.parametrize("kind, settings", [(Rainbow, {"v_min": -5.0, "v_max": 5.0}), (TD3, {"policy_delay": 2})])
def test_off_policy_updates_are_the_same_within_rounding(kind: type[Algorithm[Any, Any]], settings: Any) -> None:
    """Rainbow draws noise for its weights, TD3 has two kinds of steps."""
    plain, compiled = (off_policy(kind, flag, **settings) for flag in (False, True))
    assert_same_updates(plain, compiled, discrete=kind is Rainbow, progress=[0.0] * 5)
    assert compiled.compile_seconds > 0 and plain.compile_seconds == 0


@needs_compiler
def test_ppo_is_the_same_within_rounding_and_takes_odd_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, compiled = (make_algorithm(PPO, num_minibatches=2) for _ in range(2))
    compiled.compiled = True
    compiled._run_step = CompiledStep(compiled, compiled._step)
    for seed in range(3):
        for algorithm in (plain, compiled):
            rollout = make_rollout(algorithm, seed=seed)
            rollout.valid[0, 0] = seed != 1  # one step fewer: other minibatches, which are not compiled
            metrics = algorithm.update(rollout, 0.1)
            assert torch.isfinite(metrics["loss"])
    for name, weights in plain.policy.state_dict().items():
        torch.testing.assert_close(compiled.policy.state_dict()[name], weights, rtol=0, atol=2e-4, msg=name)
    assert compiled.compile_seconds > 0


@needs_compiler
def test_a_compiled_step_does_not_depend_on_when_it_was_compiled() -> None:
    """What makes a resume exact: a fresh process, which compiles anew, goes on as the old one."""
    first = off_policy(DQN, True, target_update_interval=0, tau=0.1)
    for seed in range(3):
        first.update(make_batch(True, seed), 0.0)
    second = off_policy(DQN, True, target_update_interval=0, tau=0.1)
    second.policy.load_state_dict(first.policy.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for algorithm in (first, second):
        for seed in range(3, 6):
            algorithm.update(make_batch(True, seed), 0.0)
    assert differing_paths(first.policy.state_dict(), second.policy.state_dict()) == []
    assert differing_paths(first.state_dict(), second.state_dict()) == []


def test_a_tape_hands_out_what_was_recorded() -> None:
    def draws(source: Any) -> list[torch.Tensor]:
        return [
            normal((2, 3), source, CPU),
            uniform((4,), source, CPU, torch.float64),
            permutation(5, source, CPU),
            normal((1,), source, CPU),
        ]

    recorder = Recorder(torch.Generator().manual_seed(3))
    recorded = draws(recorder)
    assert recorder.draws[1] == Draw("uniform", (4,), CPU, torch.float64)
    assert sorted(recorded[2].tolist()) == [0, 1, 2, 3, 4] and recorded[1].dtype == torch.float64
    generator = torch.Generator().manual_seed(3)
    again = draws(Tape([draw.take(generator) for draw in recorder.draws]))
    fresh = draws(torch.Generator().manual_seed(3))
    for one, two, three in zip(recorded, again, fresh):
        assert torch.equal(one, two) and torch.equal(one, three)
