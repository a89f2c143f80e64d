"""Optimisers over one vector of weights, with gradient clipping, that never apply a step that is not finite.

All weights of an optimiser are views of one vector: a step is a handful of operations, however many layers there are.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rl_training.utils.errors import CheckpointError, NonFiniteError

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class StepReport:
    """The named scalars of one step."""

    names: tuple[str, ...]
    values: Tensor
    """(K,) on the device, in the order of the names."""

    def metrics(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.values.unbind()))


class FlatOptimizer(ABC):
    """Makes the parameters views of one vector and moves that vector.

    The check for finite steps costs no device synchronisation: once a loss, or another of its terms, was bad, that step and all
    later ones change nothing. `raise_if_nonfinite` then reports, once per update, with the weights as they were before.
    """

    moments: Mapping[str, Tensor]
    """What the optimiser remembers, by name; vectors as long as the weights, and counts ()."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, max_grad_norm: float | None = None):
        self.flat = FlatParameters(parameters)
        self.parameters, self.weights = self.flat.parts, self.flat.vector
        self.max_grad_norm = max_grad_norm
        # A tensor, because a recorded or compiled step would repeat a number for ever.
        self._rate = float(learning_rate)
        self.learning_rate = torch.tensor(self._rate, device=self.weights.device)
        self._names: tuple[str, ...] = ()
        self._bad: Tensor | None = None

    def set_learning_rate(self, value: float) -> None:
        if value != self._rate:  # else nothing to launch
            self._rate = value
            self.learning_rate.fill_(value)

    def step(self, loss: Tensor, terms: Mapping[str, Tensor]) -> StepReport:
        """One step on `loss`; `terms` are the named scalars to blame if it is not finite. Reports them and the gradient's norm."""
        # Only these parameters: the loss of an actor passes through critics whose gradients nobody wants.
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            gradient = flat(gradients)
            norm = torch.linalg.vector_norm(gradient)
            names = (*terms, "grad_norm")
            report = torch.stack([*(term.detach() for term in terms.values()), norm])
            if self._bad is None or names != self._names:
                self._names, self._bad = names, torch.zeros_like(report)
            # What is not finite differs from itself by NaN. In place, so that it also adds up when a recorded step is replayed.
            self._bad.logical_or_(report - report != 0)
            excess = (
                torch.ones_like(norm) if self.max_grad_norm is None else norm.div(self.max_grad_norm).clamp_min(1.0)
            )
            self._move(gradient, excess, self._bad.amax())
        return StepReport(names, report)

    @abstractmethod
    def _move(self, gradient: Tensor, excess: Tensor, skip: Tensor) -> None:
        """Moves the weights by `gradient` / `excess`, of shapes (P,) and (), or changes nothing where `skip` () is 1, not 0."""

    def raise_if_nonfinite(self) -> None:
        """Call once per update: raises NonFiniteError if any step since the last call was not finite."""
        flags = [] if self._bad is None else self._bad.tolist()
        if self._bad is not None and any(flags):
            names = [name for name, flag in zip(self._names, flags) if flag]
            self._bad.zero_()
            raise NonFiniteError(
                f"{', '.join(names)} became NaN or infinite; the weights are those before that step.\n"
                "Usual causes: a learning rate that is too high, unscaled rewards or observations "
                "(env.normalize_observations, env.normalize_rewards)."
            )

    def state_dict(self) -> dict[str, Any]:
        moments = {name: value.clone() for name, value in self.moments.items()}
        return {"learning_rate": self._rate, "moments": moments}

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
        self.set_learning_rate(state["learning_rate"])


GPU_SLICES, SMALLEST_SLICE = 128, 2048
"""In how many parts a GPU moves the weights at once, and how many weights make a part worth while."""


class Adam(FlatOptimizer):
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    BETA2 = 0.999

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        *,
        eps: float = 1e-8,
        beta1: float = 0.9,
        max_grad_norm: float | None = None,
    ):
        super().__init__(parameters, learning_rate, max_grad_norm)
        self.eps, self.beta1 = eps, beta1
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.count = torch.zeros((), device=self.weights.device)
        self.moments = {"mean": self.mean, "square": self.square, "count": self.count}
        # A GPU moves the slices at once; of one long vector torch would give it 65,536 weights at a time.
        on_gpu, size = self.weights.device.type == "cuda", len(self.weights)
        self._slice = max(size // GPU_SLICES, SMALLEST_SLICE) if on_gpu else size

    def _move(self, gradient: Tensor, excess: Tensor, skip: Tensor) -> None:
        if torch.compiler.is_compiling() or self.weights.device.type == "mps":
            self._move_by_formula(gradient / excess, skip)
            return
        self.count.add_(1 - skip)
        weights, gradients, means, squares = (
            vector.split(self._slice) for vector in (self.weights, gradient, self.mean, self.square)
        )
        torch._fused_adam_(
            weights,
            gradients,
            means,
            squares,
            [],
            [self.count] * len(weights),
            lr=self.learning_rate,
            beta1=self.beta1,
            beta2=self.BETA2,
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=excess,
            found_inf=skip,
        )

    def _move_by_formula(self, gradient: Tensor, skip: Tensor) -> None:
        """The same in separate operations, which a compiler can join with what comes before."""
        bad = skip > 0
        self.count.add_(1 - skip)
        mean = self.mean + (1 - self.beta1) * (gradient - self.mean)
        square = self.BETA2 * self.square + (1 - self.BETA2) * gradient * gradient
        # Stacked, because a compiler for the CPU computes what is stacked once, and other scalars again for every few weights.
        corrections = torch.stack([1 - self.beta1**self.count, (1 - self.BETA2**self.count).sqrt()])
        of_mean, of_root = corrections.unbind()
        change = self.learning_rate / of_mean * mean / (square.sqrt() / of_root + self.eps)
        self.flat.sub_(torch.where(bad, 0.0, change))
        self.mean.copy_(torch.where(bad, self.mean, mean))
        self.square.copy_(torch.where(bad, self.square, square))


class RMSpropTF(FlatOptimizer):
    """RMSprop as TensorFlow computes it, which A2C's published results rest on:

        v ← α v + (1 − α) g²,   θ ← θ − lr · g / √(v + ε),   v starts at 1

    torch adds ε outside the root and starts at 0, which makes the first steps much larger.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        *,
        alpha: float = 0.99,
        eps: float = 1e-5,
        max_grad_norm: float | None = None,
    ):
        super().__init__(parameters, learning_rate, max_grad_norm)
        self.alpha, self.eps = alpha, eps
        self.square = torch.ones_like(self.weights)
        self.moments = {"square": self.square}

    def _move(self, gradient: Tensor, excess: Tensor, skip: Tensor) -> None:
        bad = skip > 0
        gradient = gradient / excess
        square = self.alpha * self.square + (1 - self.alpha) * gradient * gradient
        change = self.learning_rate * gradient / (square + self.eps).sqrt()
        self.flat.sub_(torch.where(bad, 0.0, change))
        self.square.copy_(torch.where(bad, self.square, square))


class FlatParameters:
    """Parameters as views of one vector (P,), so that one operation changes them all.

    A compiler is given them one by one: a vector that changes, and views of it beside it, it copies back and forth.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]):
        self.parts = list(parameters)
        self.vector = flat([own.detach() for own in self.parts])
        for own, part in zip(self.parts, split_as(self.parts, self.vector)):
            own.data = part

    @torch.no_grad()
    def sub_(self, change: Tensor) -> None:
        """Subtracts `change` (P,)."""
        if not self._one_by_one:
            self.vector.sub_(change)
            return
        for own, part in zip(self.parts, split_as(self.parts, change)):
            own.sub_(part)

    @torch.no_grad()
    def follow(self, other: FlatParameters, rate: float) -> None:
        """θ ← θ + rate · (θ' − θ)."""
        if not self._one_by_one:
            self.vector.lerp_(other.vector, rate)
            return
        for own, part in zip(self.parts, other.parts):
            own.lerp_(part, rate)

    @property
    def _one_by_one(self) -> bool:
        return torch.compiler.is_compiling()


def slow_copy(network: ModuleT) -> tuple[ModuleT, FlatParameters]:
    """A copy without gradients, and its weights: `weights.follow(optimizer.flat, τ)` lets it follow."""
    copied = copy.deepcopy(network).requires_grad_(False)
    return copied, FlatParameters(copied.parameters())


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All elements one after the other, (P,)."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def split_as(tensors: Sequence[Tensor], vector: Tensor) -> list[Tensor]:
    """The way back from `flat`: the parts of a vector (P,) in the shapes of the tensors."""
    parts = vector.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors)]
