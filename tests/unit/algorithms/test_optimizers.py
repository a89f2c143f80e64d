"""RMSpropTF by hand."""

import copy
import math

import pytest
import torch

from rl_training.algorithms.optimizers import RMSpropTF


def _two_steps(optimizer_class: type, **settings: float) -> list[float]:
    """A parameter at 1 with gradients 2, then −1."""
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = optimizer_class([parameter], **settings)
    values = []
    for gradient in (2.0, -1.0):
        parameter.grad = torch.tensor([gradient])
        optimizer.step()
        values.append(parameter.item())
    return values


def test_two_steps_by_hand() -> None:
    # v = 0.9·1 + 0.1·4 = 1.3, θ = 1 − 0.1·2/√(1.3 + 0.5); then v = 0.9·1.3 + 0.1·1 = 1.27, θ += 0.1/√(1.27 + 0.5).
    first = 1 - 0.2 / math.sqrt(1.8)
    second = first + 0.1 / math.sqrt(1.77)
    settings = {"lr": 0.1, "alpha": 0.9, "eps": 0.5}
    assert _two_steps(RMSpropTF, **settings) == pytest.approx([first, second], abs=1e-7)
    # torch's own has ε outside the root and starts at 0: the first step would be 0.2/(√0.4 + 0.5).
    assert _two_steps(torch.optim.RMSprop, **settings)[0] == pytest.approx(1 - 0.2 / (math.sqrt(0.4) + 0.5))


def test_the_accumulator_starts_at_one_and_is_the_whole_state() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = RMSpropTF([parameter], lr=0.1, alpha=0.9)
    parameter.grad = torch.tensor([0.0, 10.0])
    optimizer.step()
    assert optimizer.state_dict()["state"][0]["square_avg"].tolist() == pytest.approx([0.9, 10.9])
    assert list(optimizer.state_dict()["state"][0]) == ["square_avg"]


def test_state_travels_through_state_dict() -> None:
    def steps(optimizer: RMSpropTF, parameter: torch.nn.Parameter, count: int) -> None:
        for i in range(count):
            parameter.grad = torch.tensor([1.0 + i, -2.0])
            optimizer.step()

    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = RMSpropTF([parameter], lr=0.1)
    steps(optimizer, parameter, 3)
    other = torch.nn.Parameter(parameter.detach().clone())
    restored = RMSpropTF([other], lr=0.1)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(optimizer, parameter, 2)
    steps(restored, other, 2)
    assert torch.equal(parameter, other)


def test_found_inf_skips_the_step_and_a_missing_gradient_the_parameter() -> None:
    parameter, idle = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = RMSpropTF([parameter, idle], lr=0.1, alpha=0.9)
    parameter.grad = torch.tensor([2.0])
    optimizer.step()
    before = parameter.item(), optimizer.state[parameter]["square_avg"].item()
    for gradient in (3.0, float("nan"), float("inf")):
        parameter.grad = torch.tensor([gradient])
        optimizer.found_inf = torch.tensor(1.0)
        optimizer.step()
        assert (parameter.item(), optimizer.state[parameter]["square_avg"].item()) == before
    parameter.grad = torch.tensor([2.0])
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert parameter.item() < before[0]
    assert idle.item() == 1.0 and idle not in optimizer.state
