"""More ways in which a recorded function could be silently wrong: arguments, results, sources of numbers, types, and what is added
after recording. Each gives the eager result or an error."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rl_training
from rl_training.algorithms.exploration import EpsilonGreedyExplorer
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import Executor, RecordedFunction, recordable
from rl_training.execution.optimizers import Adam
from rl_training.utils.errors import ConfigError, ExecutionError

CPU = torch.device("cpu")


@dataclass(slots=True)
class Slotted:
    factor: float = 1.0


class Owner:
    """What a step of a test may read."""

    unwatched = frozenset({"hidden"})

    def __init__(self, body: Callable[[Any, Any], Any], execution: Any, *, unseen: bool = False):
        """`unseen` adds attributes whose changes nobody can see."""
        torch.manual_seed(0)
        self.body, self.executor = body, Executor(self, CPU, execution)
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.state, self.items, self.names = torch.zeros(3), [1.0], {"a": 1.0}
        self.source, self.numbers = torch.Generator().manual_seed(1), np.random.default_rng(1)
        self.space = SimpleNamespace(factor=1.0)
        if unseen:
            self.slotted, self.last, self.array, self.chosen = Slotted(), deque([1.0]), np.ones(1), {1.0}
        self.hidden = self.shared = SimpleNamespace(factor=1.0)
        self.factor: Any = 2

    @recordable
    def step(self, x: Any, random: RandomSource) -> Any:
        return self.body(self, x)


def changed(owner: Any, index: int) -> None:
    """What happens to the owner between two calls."""
    if index == 1:
        owner.items.append(2.0)
        owner.names["b"] = 2.0
        owner.network.append(nn.ReLU())
        owner.space.factor = owner.shared.factor = 3.0
        owner.factor = 2.0
        owner.extra = 4.0
        if hasattr(owner, "slotted"):
            owner.slotted.factor = 3.0
            owner.last.append(5.0)
            owner.array[0] = 7.0
            owner.chosen.add(9.0)


def run(
    body: Callable[[Any, Any], Any], execution: str, between: Callable[[Any, int], None], unseen: bool = False
) -> list[Any]:
    owner, results = Owner(body, execution, unseen=unseen), []
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    for index, x in enumerate(torch.randn(4, 2, 3)):
        between(owner, index)
        x = x.clone()
        result = owner.step(x, torch.Generator())
        carried = torch.tensor(result.requires_grad)
        results.append((result.detach().clone(), carried, x, owner.state.clone(), owner.source.get_state()))
    return results


BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "item of a list": lambda owner, x: x * sum(owner.items),
    "key of a dict": lambda owner, x: x * sum(owner.names.values()),
    "module": lambda owner, x: owner.network(x).detach(),
    "slots": lambda owner, x: x * owner.slotted.factor,
    "namespace": lambda owner, x: x * owner.space.factor,
    "deque": lambda owner, x: x * sum(owner.last),
    "array": lambda owner, x: x * float(owner.array[0]),
    "set": lambda owner, x: x * sum(owner.chosen),
    "seen through what is unwatched first": lambda owner, x: x * owner.shared.factor,
    "type of a number": lambda owner, x: x.long() * owner.factor,
    "new attribute": lambda owner, x: x * getattr(owner, "extra", 1.0),
    "argument changed": lambda owner, x: x.mul_(2).sum(),
    "argument clamped": lambda owner, x: x.clamp_(0).sum() + 1,
    "own generator": lambda owner, x: x + torch.randn(2, 3, generator=owner.source),
    "NumPy's generator": lambda owner, x: x * float(owner.numbers.random()),
    "NumPy's global generator": lambda owner, x: x * float(np.random.random()),  # noqa: NPY002
    "distribution as a result": lambda owner, x: torch.distributions.Normal(x * 2, 1.0, validate_args=False).mean,
    "object as a result": lambda owner, x: SimpleNamespace(x=x * 2).x + 0,
    "shape in place": lambda owner, x: (x * 1).t_() @ torch.ones_like(x),
    "vector times matrix": lambda owner, x: x[0] @ owner.network[0].weight.detach().t(),
    "uint8 function": lambda owner, x: x.abs().mul(9).to(torch.uint8).exp(),
    "uint8 power": lambda owner, x: x.abs().mul(90).to(torch.uint8).pow(2.0),
    "uint8 and a number": lambda owner, x: x.abs().to(torch.uint8) * 300 - 1,
    "sign of nan": lambda owner, x: (x * torch.nan).sign(),
    "two kinds of floats": lambda owner, x: x > x.double().mean(),
    "integers and a float": lambda owner, x: (x * 2**25).long() > 2.5,
    "clamp by itself": lambda owner, x: (x * 1).clamp_(min=torch.ones_like(x), max=x),
    "carried gradient": lambda owner, x: owner.network(x).sum(),
}


@pytest.mark.parametrize("name", BODIES)
def test_recorded_or_not_it_is_what_is_written(name: str) -> None:
    unseen = name in ("slots", "deque", "array", "set")
    eager, auto = (run(BODIES[name], execution, changed, unseen) for execution in ("eager", "auto"))
    for wanted, found in zip(eager, auto, strict=True):
        for a, b in zip(wanted, found, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_forms_of_arguments_are_told_apart() -> None:
    class Named(NamedTuple):
        x: Tensor

    def body(owner: Any, x: Any) -> Tensor:
        rows = next(iter(x.values())) if isinstance(x, dict) else x[0]
        return rows * (1.0 if isinstance(x, dict) else 2.0 if hasattr(x, "_fields") else 3.0)

    owner, ones = Owner(body, "recorded"), torch.ones(2)
    for form, factor in (((ones,), 3.0), (Named(ones), 2.0), ({1: ones}, 1.0), ([ones], 3.0), ((ones,), 3.0)):
        assert torch.equal(owner.step(form, torch.Generator()), ones * factor)


def test_an_argument_that_is_the_owners_state() -> None:
    def body(owner: Any, x: Tensor) -> Tensor:
        owner.state.add_(1.0)
        return x * 2

    for execution in ("eager", "auto"):
        owner = Owner(body, execution)
        found = [float(owner.step(owner.state, torch.Generator())[0]) for _ in range(3)]
        assert found == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("around", [torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16), torch.inference_mode])
def test_modes_around_a_call_count(around: Any) -> None:
    def body(owner: Any, x: Tensor) -> Tensor:
        return owner.network(x).detach() * (2.0 if torch.is_grad_enabled() else 1.0)

    eager, auto = Owner(body, "eager"), Owner(body, "auto")
    x = torch.ones(2, 3)
    for _ in range(2):
        for inside in (False, True):
            for owner in (eager, auto):
                if inside:
                    with around():
                        owner.kept = owner.step(x, torch.Generator()).clone()
                else:
                    owner.kept = owner.step(x, torch.Generator()).clone()
            torch.testing.assert_close(auto.kept, eager.kept)
            for owner in (eager, auto):
                del owner.kept


def test_reads_inside_a_gradient_are_seen() -> None:
    class Reading(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * sum(gradient.tolist())

    def body(owner: Any, x: Tensor) -> Tensor:
        weight = owner.network[0].weight
        (gradient,) = torch.autograd.grad((Reading.apply(weight.sum(1)) * x.sum()).sum(), weight)
        return gradient

    eager, auto = (run(body, execution, lambda *_: None) for execution in ("eager", "auto"))
    assert all(torch.allclose(a[0], b[0]) for a, b in zip(eager, auto))
    assert torch.ones(2).tolist() == [1.0, 1.0], "nothing is left behind"


def test_hooks_and_frozen_weights_after_recording() -> None:
    def body(owner: Any, x: Tensor) -> Tensor:
        return torch.autograd.grad(owner.network(x).sum(), owner.network[0].weight)[0]

    for change in (
        lambda owner: owner.network[0].weight.register_hook(lambda gradient: gradient * 0),
        lambda owner: owner.network[0].weight.requires_grad_(False),
    ):
        outcomes = []
        for execution in ("eager", "auto"):
            owner = Owner(body, execution)
            owner.step(torch.ones(2, 3), torch.Generator())
            change(owner)
            try:
                outcomes.append(float(owner.step(torch.ones(2, 3), torch.Generator()).abs().sum()))
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


def test_a_copied_owner_records_anew() -> None:
    owner = Owner(lambda owner, x: x.sum() * 2, "recorded")
    owner.step(torch.ones(3), torch.Generator())
    other = copy.deepcopy(owner)
    assert float(other.step(torch.full((3,), 5.0), torch.Generator())) == 30.0
    step: Any = other.step
    assert isinstance(step, RecordedFunction) and step is not owner.step


def test_a_copied_agent_learns_from_its_own_rollouts() -> None:
    agent = rl_training.PPO("CartPole-v1", num_envs=2, num_steps=8)
    agent.learn(total_timesteps=32)
    other = copy.deepcopy(agent)
    buffer = other._session.trainer.collector.buffer  # type: ignore[union-attr]
    before = buffer.obs.clone()
    other.learn(total_timesteps=64)
    assert not torch.equal(buffer.obs, before)
    agent.learn(total_timesteps=64)
    for a, b in zip(agent.policy.parameters(), other.policy.parameters()):
        assert torch.equal(a, b)


def test_a_replaced_layer_is_trained_or_refused() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = Adam(network, 0.1)
    network[0] = nn.Linear(3, 4)
    optimizer.flat.relink()
    before = network[0].weight.detach().clone()
    optimizer.step(optimizer.gradient(network(torch.ones(2, 3)).sum()), {})
    assert not torch.equal(before, network[0].weight)
    network[0] = nn.Linear(5, 4)
    with pytest.raises(ExecutionError, match="other weights"):
        optimizer.flat.relink()


def test_epsilon_greedy_actions_refuse_a_memory() -> None:
    agent = rl_training.DQN("CartPole-v1")
    agent.policy.initial_state = lambda count: torch.zeros(count)  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="memory"):
        EpsilonGreedyExplorer(agent.policy, agent.algorithm.executor, 0.1)  # type: ignore[arg-type]
