"""Optimisers over one vector of weights, with gradient clipping, that never apply a step that is not finite.

All weights of an optimiser are views of one vector: a step is a handful of operations, however many layers there are.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import is_
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from rl_training.execution.scalar import Scalar
from rl_training.utils.errors import NONFINITE_CAUSES, CheckpointError, ExecutionError, NonFiniteError
from rl_training.utils.schedules import Schedule

Parameters: TypeAlias = nn.Module | nn.Parameter | Iterable["Parameters"]

MOST_TERMS = 32
"""Scalars that a step may report."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The named scalars of one step."""

    names: tuple[str, ...]
    values: Tensor
    """(K,) on the device, in the order of the names."""

    def metrics(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.values.unbind()))


@dataclass(frozen=True)
class Group:
    """Weights that share a step size: those of modules, or single ones."""

    parameters: Parameters
    learning_rate: float | Schedule
    weight_decay: float = 0.0


class _Names:
    """What the steps report. A recorded step does not assign them again, so that they outlive its recording."""

    outside_of_steps = True

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()


class FlatOptimizer(ABC):
    """Makes the parameters views of one vector and moves that vector, each group of them at a step size of its own.

    The check for finite steps costs no device synchronisation: once a loss, or another of its terms, was bad, that step and all
    later ones change nothing. `raise_if_nonfinite` then reports, once per update, with the weights as they were before.
    """

    unwatched: ClassVar[frozenset[str]] = frozenset({"_slices", "moments"})
    decays_weights: ClassVar[bool] = False
    moments: Mapping[str, Tensor]
    """What the optimiser remembers, by name; vectors as long as the weights, and counts ()."""

    def __init__(
        self,
        parameters: Parameters | Sequence[Group],
        learning_rate: float | Schedule | None = None,
    ):
        """`parameters` with their `learning_rate`, or groups that bring their own."""
        groups = [replace(group, parameters=_listed(group.parameters)) for group in _groups(parameters, learning_rate)]
        self.flat = FlatParameters([group.parameters for group in groups], trainable=True)
        self.weights = self.flat.vector
        sizes = [sum(weight.numel() for weight in _trainable(group.parameters)) for group in groups]
        bounds = [0, *accumulate(sizes)]
        if bounds[-1] != len(self.weights):
            raise ValueError("a weight belongs to two groups: which of the learning rates should count?")
        self._slices = [slice(start, stop) for start, stop in pairwise(bounds)]
        self.learning_rates = [Scalar(group.learning_rate, self.weights.device) for group in groups]
        self._decays = [group.weight_decay for group in groups]
        if any(self._decays) and not self.decays_weights:
            raise ValueError(f"{type(self).__name__} has no weight decay; AdamW has")
        self._reported = _Names()
        self._bad = torch.zeros(MOST_TERMS, device=self.weights.device)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self.flat.parts

    @property
    def learning_rate(self) -> Tensor:
        """() of the first group."""
        return self.learning_rates[0].tensor

    def advance(self, progress: float) -> None:
        """Takes the step sizes at this point of training."""
        for rate in self.learning_rates:
            rate.advance(progress)

    def gradient(self, loss: Tensor) -> Tensor:
        """(P,) the gradient of a loss () by these weights only: an actor's loss also passes through critics."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise ExecutionError(
                "the loss depends on none of the weights that this optimiser moves: it would learn nothing"
            )
        return flat(torch.zeros_like(own) if part is None else part for own, part in zip(self.parameters, gradients))

    @torch.no_grad()
    def step(self, gradient: Tensor, terms: Mapping[str, Tensor], max_norm: float | None = None) -> StepReport:
        """Moves the weights by a gradient (P,), scaled down to `max_norm` if it is longer.

        `terms` are the named scalars to blame if it is not finite. Reports them and the gradient's norm.
        """
        norm = torch.linalg.vector_norm(gradient)
        self._reported.names = (*terms, "grad_norm")
        report = torch.stack([*(term.detach() for term in terms.values()), norm])
        # What is not finite differs from itself by NaN. In place, so that it also adds up when a recorded step is replayed.
        self._bad[: len(report)].logical_or_(report - report != 0)
        excess = torch.ones_like(norm) if max_norm is None else norm.div(max_norm).clamp_min(1.0)
        self._move(gradient, excess, self._bad.amax())
        return StepReport(self._reported.names, report)

    @abstractmethod
    def _move(self, gradient: Tensor, excess: Tensor, skip: Tensor) -> None:
        """Moves the weights by `gradient` / `excess`, of shapes (P,) and (), or changes nothing where `skip` () is 1, not 0."""

    def raise_if_nonfinite(self) -> None:
        """Call once per update: raises NonFiniteError if any step since the last call was not finite."""
        flags = self._bad.tolist()
        if any(flags):
            names = [name for name, flag in zip(self._reported.names, flags) if flag]
            self._bad.zero_()
            raise NonFiniteError(
                f"{', '.join(names)} became NaN or infinite; the weights are those before that step.\n{NONFINITE_CAUSES}"
            )

    def state_dict(self) -> dict[str, Any]:
        moments = {name: value.clone() for name, value in self.moments.items()}
        return {"learning_rates": [rate.number for rate in self.learning_rates], "moments": moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = state["moments"]
        if set(saved) != set(self.moments):
            raise CheckpointError(f"an optimiser was saved with {sorted(saved)}, expected {sorted(self.moments)}")
        for name, value in self.moments.items():
            if saved[name].shape != value.shape or saved[name].dtype != value.dtype:
                raise CheckpointError(
                    f"an optimiser's {name} is {saved[name].dtype} {tuple(saved[name].shape)}, "
                    f"expected {value.dtype} {tuple(value.shape)}"
                )
        for name, value in self.moments.items():
            value.copy_(saved[name])
        for rate, number in zip(self.learning_rates, state["learning_rates"], strict=True):
            rate.set(number)


GPU_SLICES, SMALLEST_SLICE = 128, 2048
"""In how many parts a GPU moves the weights at once, and how many weights make a part worth while."""


class Adam(FlatOptimizer):
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    BETA2 = 0.999

    def __init__(
        self,
        parameters: Parameters | Sequence[Group],
        learning_rate: float | Schedule | None = None,
        *,
        eps: float = 1e-8,
        beta1: float = 0.9,
    ):
        super().__init__(parameters, learning_rate)
        self.eps, self.beta1 = eps, beta1
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.count = torch.zeros((), device=self.weights.device)
        self.moments = {"mean": self.mean, "square": self.square, "count": self.count}
        # A GPU moves the slices at once; of one long vector torch would give it 65,536 weights at a time.
        on_gpu, size = self.weights.device.type == "cuda", len(self.weights)
        self._slice = max(size // GPU_SLICES, SMALLEST_SLICE) if on_gpu else size

    def _move(self, gradient: Tensor, excess: Tensor, skip: Tensor) -> None:
        self.count.add_(1 - skip)
        move = torch._fused_adamw_ if self.decays_weights else torch._fused_adam_
        for part, rate, decay in zip(self._slices, self.learning_rates, self._decays):
            weights, gradients, means, squares = (
                vector[part].split(self._slice) for vector in (self.weights, gradient, self.mean, self.square)
            )
            move(
                weights,
                gradients,
                means,
                squares,
                [],
                [self.count] * len(weights),
                lr=rate.tensor,
                beta1=self.beta1,
                beta2=self.BETA2,
                weight_decay=decay,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
                grad_scale=excess,
                found_inf=skip,
            )


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101, algorithm 2): θ ← θ − lr · λ · θ besides."""

    decays_weights = True


class RMSprop(FlatOptimizer):
    """RMSprop as TensorFlow computes it, which A2C's published results rest on:

        v ← α v + (1 − α) g²,   θ ← θ − lr · g / √(v + ε),   v starts at 1

    torch adds ε outside the root and starts at 0, which makes the first steps much larger.
    """

    def __init__(
        self,
        parameters: Parameters | Sequence[Group],
        learning_rate: float | Schedule | None = None,
        *,
        alpha: float = 0.99,
        eps: float = 1e-5,
    ):
        super().__init__(parameters, learning_rate)
        self.alpha, self.eps = alpha, eps
        self.square = torch.ones_like(self.weights)
        self.moments = {"square": self.square}

    def _move(self, gradient: Tensor, excess: Tensor, skip: Tensor) -> None:
        bad = skip > 0
        gradient = gradient / excess
        square = self.alpha * self.square + (1 - self.alpha) * gradient * gradient
        for part, rate in zip(self._slices, self.learning_rates):
            change = rate.tensor * gradient[part] / (square[part] + self.eps).sqrt()
            self.weights[part].sub_(torch.where(bad, 0.0, change))
        self.square.copy_(torch.where(bad, self.square, square))


class FlatParameters:
    """Parameters as views of one vector (P,), so that one operation changes them all.

    Whoever gives a network other weights (`load_state_dict(assign=True)`, `.double().float()`) parts them from the vector;
    `relink` notices.
    """

    unwatched: ClassVar[frozenset[str]] = frozenset({"_slots", "_pointers", "_shapes", "parts", "_roots", "_children"})

    def __init__(self, parameters: Parameters, *, trainable: bool = False):
        """`trainable` leaves out weights that want no gradient."""
        self._roots, self._trainable = _listed(parameters), trainable
        self._find()
        self.parts = self._present()
        self.vector = flat([own.detach() for own in self.parts])
        self._link()

    def _find(self) -> None:
        """Where the weights stand, and which modules they stand in."""
        self._slots = [
            (container, name)
            for container, name in _slots(self._roots)
            if container[name].requires_grad or not self._trainable
        ]
        modules = [module for root in _modules(self._roots) for module in root.modules()]
        self._children = [
            (module._modules, name, child) for module in modules for name, child in module._modules.items()
        ]

    def _present(self) -> list[nn.Parameter]:
        return [_found(container, name) for container, name in self._slots]

    def _link(self) -> None:
        for own, part in zip(self.parts, split_as(self.parts, self.vector)):
            own.data = part
        self._shapes = [own.shape for own in self.parts]
        self._pointers = [own.data_ptr() for own in self.parts]

    def relink(self) -> None:
        """Takes over weights that were replaced since the last call; ExecutionError if they no longer fit."""
        if any(children.get(name) is not child for children, name, child in self._children):
            self._find()
            if [_found(container, name).shape for container, name in self._slots] != self._shapes:
                raise ExecutionError(
                    "a module was replaced by one with other weights than its optimiser was made for: make the agent anew"
                )
        present = self._present()
        if all(map(is_, present, self.parts)) and [own.data_ptr() for own in present] == self._pointers:
            return
        kind = (self.vector.dtype, self.vector.device)
        for (_, name), shape, now in zip(self._slots, self._shapes, present):
            if now is None or now.shape != shape or (now.dtype, now.device) != kind:
                found = "gone" if now is None else f"{now.dtype} {tuple(now.shape)} on {now.device}"
                raise ExecutionError(
                    f"the weight {name!r} is {found} now, and its optimiser was made for {kind[0]} {tuple(shape)} on {kind[1]}: "
                    "make the agent anew, or bring the weight back"
                )
        self.vector.copy_(flat([own.detach() for own in present]))
        self.parts = present
        self._link()

    @torch.no_grad()
    def follow(self, other: FlatParameters, rate: float) -> None:
        """θ ← θ + rate · (θ' − θ), with the first weights of the other, which may have more behind them."""
        self.vector.lerp_(other.vector[: len(self.vector)], rate)


def slow_copies(*networks: nn.Module) -> tuple[list[Any], FlatParameters]:
    """Copies without gradients, and their weights: `weights.follow(optimizer.flat, τ)` lets them follow."""
    copies = [copy.deepcopy(network).requires_grad_(False) for network in networks]
    return copies, FlatParameters(copies)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All elements one after the other, (P,)."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def split_as(tensors: Sequence[Tensor], vector: Tensor) -> list[Tensor]:
    """The way back from `flat`: the parts of a vector (P,) in the shapes of the tensors."""
    parts = vector.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors)]


def _groups(parameters: Parameters | Sequence[Group], learning_rate: float | Schedule | None) -> list[Group]:
    if learning_rate is not None:
        return [Group(parameters, learning_rate)]  # type: ignore[arg-type]
    assert not isinstance(parameters, nn.Module | nn.Parameter), "parameters need a learning rate"
    groups = list(parameters)
    assert groups and all(isinstance(group, Group) for group in groups), "parameters need a learning rate"
    return groups


def _listed(parameters: Parameters) -> Parameters:
    """The same, with lists for generators, which could be read only once."""
    return parameters if isinstance(parameters, nn.Module | nn.Parameter) else [_listed(part) for part in parameters]


def _modules(parameters: Parameters) -> Iterator[nn.Module]:
    if isinstance(parameters, nn.Module):
        yield parameters
    elif not isinstance(parameters, nn.Parameter):
        for part in parameters:
            yield from _modules(part)


def _found(container: Any, name: Any) -> Any:
    return container[name] if isinstance(container, list) else container.get(name)


def _trainable(parameters: Parameters) -> list[nn.Parameter]:
    return [container[name] for container, name in _slots(parameters) if container[name].requires_grad]


def _slots(parameters: Parameters) -> Iterator[tuple[Any, Any]]:
    """(container, name) under which each parameter is found, also after it was replaced; each parameter once."""
    seen: set[int] = set()
    for container, name in _all_slots(parameters):
        if id(container[name]) not in seen:
            seen.add(id(container[name]))
            yield container, name


def _all_slots(parameters: Parameters) -> Iterator[tuple[Any, Any]]:
    if isinstance(parameters, nn.Parameter):
        yield [parameters], 0
    elif isinstance(parameters, nn.Module):
        for module in parameters.modules():
            for name, own in module._parameters.items():
                if own is not None:
                    yield module._parameters, name
    else:
        for part in parameters:
            yield from _all_slots(part)
