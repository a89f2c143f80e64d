"""From raw observations to the flat float features that networks read.

An encoder is a module class: made with the observation space and its own settings, with the attribute `features: int`, and a
forward pass that turns a batch of observations into (B, features) float32. Policies know nothing else about it.

Raw observations: a tensor (B, *shape), or for a Dict space one such tensor per key. Discrete: (B,) int64.
"""

import copy
import math
import random
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.execution.batches import ObsTensor
from rl_training.policies.encoder_registry import ENCODERS
from rl_training.policies.normalization import ObservationNormalizer
from rl_training.policies.spec import PolicySpec
from rl_training.utils.action_masks import mask_key, visible_space
from rl_training.utils.errors import ConfigError, SpaceError
from rl_training.utils.global_random import preserved_global_rng
from rl_training.utils.images import image_entries
from rl_training.utils.spaces import Observation, map_obs, stored_obs

_SUPPORTED = "Supported: Box, Discrete, MultiDiscrete, MultiBinary, and a Dict of those."


class ObservationEncoder(nn.Module):
    """Normaliser and encoder of a policy, made by `make_encoder`: raw observations → features (B, features).

    The normaliser is saved, copied and exported with the weights, so nobody can forget it. An action mask among the observations
    is not encoded: `action_mask` hands it to whoever chooses actions.
    """

    def __init__(
        self,
        network: nn.Module,
        normalizer: ObservationNormalizer | None,
        features: int,
        observation_space: spaces.Space | None = None,
    ) -> None:
        """`observation_space` need only be given where it may hold a mask."""
        super().__init__()
        self.normalizer, self.network, self.features = normalizer, network, features
        self._mask_key = None if observation_space is None else mask_key(observation_space)

    def forward(self, obs: ObsTensor) -> Tensor:
        if self._mask_key is not None:
            obs = self._visible(obs)
        return self.network(obs if self.normalizer is None else self.normalizer(obs))

    def action_mask(self, obs: ObsTensor) -> Tensor | None:
        """Which actions are valid, (B, n) bool; None in environments without masks."""
        if self._mask_key is None:
            return None
        assert isinstance(obs, dict)
        return obs[self._mask_key] != 0

    def _visible(self, obs: ObsTensor) -> ObsTensor:
        """The observations without the mask, in the form of `visible_space`."""
        assert isinstance(obs, dict)
        rest = {key: values for key, values in obs.items() if key != self._mask_key}
        return next(iter(rest.values())) if len(rest) == 1 else rest

    @property
    def trainable(self) -> bool:
        """Whether it has weights that somebody must train."""
        return any(weight.requires_grad for weight in self.network.parameters())

    def update_statistics(self, obs: ObsTensor) -> None:
        """Lets the normaliser, if there is one, take in a batch of raw observations."""
        if self.normalizer is not None:
            self.normalizer.update(obs if self._mask_key is None else self._visible(obs))

    def copy_statistics(self, other: "ObservationEncoder") -> None:
        """Sees observations as the other encoder does."""
        if self.normalizer is not None and other.normalizer is not None:
            self.normalizer.load_state_dict(other.normalizer.state_dict())


def make_encoder(spec: PolicySpec) -> ObservationEncoder:
    """The encoder that `policy.encoder` names for this observation space, with the normaliser if there is one."""
    space, (name, settings) = visible_space(spec.observation_space), spec.config.encoder_choice
    check_observation_space(space)
    if name == "auto":
        name = "image" if image_entries(space) else "flatten"
    kind = ENCODERS[name]
    try:
        network: Any = kind(space, **settings)
    except TypeError as error:
        raise ConfigError(f"policy.encoder: {name} cannot be made with the settings {settings}: {error}") from error
    features = getattr(network, "features", None)
    if not isinstance(network, nn.Module) or not isinstance(features, int):
        raise ConfigError(
            f"policy.encoder: {name} must be a torch module with the attribute `features`, the length of what it puts out; "
            f"got {features!r}"
        )
    if kind.__module__ != __name__:
        _check_generators(name, network)
        _check_output(name, network, features, space)
    normalizer = ObservationNormalizer(space) if spec.normalize_observations else None
    return ObservationEncoder(network, normalizer, features, spec.observation_space)


def _check_generators(name: str, network: nn.Module) -> None:
    """Raise ConfigError for a random generator that no checkpoint would hold."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    for module in network.modules():
        found = [attribute for attribute, value in vars(module).items() if isinstance(value, kinds)]
        if found and type(module).get_extra_state is nn.Module.get_extra_state:
            raise ConfigError(
                f"policy.encoder: {name} has a random generator of its own, {found[0]!r}, which no checkpoint would hold: a resume "
                "would not be exact.\nDraw from torch's own (torch.rand, nn.Dropout), whose state is saved, or give the module "
                "get_extra_state and set_extra_state with the generator's state as a tensor."
            )


def _check_output(name: str, network: nn.Module, features: int, space: spaces.Space) -> None:
    """Raise ConfigError unless two observations become (2, features) floats; the network stays as it was."""
    if torch.empty(0).device.type == "meta":
        return  # only shapes are wanted of it
    samples = copy.deepcopy(space)
    samples.seed(0)
    batch = _side_by_side([samples.sample() for _ in range(2)])
    modes = {module: module.training for module in network.modules()}
    try:
        with torch.no_grad(), preserved_global_rng():
            network.train(False)  # so that nothing is learned from it
            found = network(map_obs(torch.from_numpy, stored_obs(batch)))
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(
            f"policy.encoder: {name} cannot encode observations of this environment: {type(error).__name__}: {error}"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (2, features) or not found.is_floating_point():
        kind = f" of {found.dtype}" if isinstance(found, Tensor) else ""
        raise ConfigError(
            f"policy.encoder: {name} says features = {features}, so two observations must become a float tensor of shape "
            f"(2, {features}), but it gives {shape}{kind}.\nLet `features` be the length of what forward returns, and keep one row "
            "per observation."
        )


def _side_by_side(rows: list[Any]) -> Observation:
    """Observations side by side, (B, ...)."""
    if isinstance(rows[0], dict):
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)


def check_observation_space(space: spaces.Space) -> None:
    """Raise SpaceError, with a way out, unless observations of this space can be encoded."""
    if not isinstance(space, spaces.Dict):
        _check_leaf(space, "The observation space")
        return
    if len(space.spaces) == 0:
        raise SpaceError(
            f"The observation space is a Dict without entries: there is nothing to learn from. {_SUPPORTED}"
        )
    for key, entry in space.spaces.items():
        _check_leaf(entry, f"Entry {key!r} of the observation space")


def _check_leaf(space: spaces.Space, where: str) -> None:
    advice = {
        spaces.Dict: "Flatten the nested Dict, for example into keys like 'arm/position'.",
        spaces.Tuple: "Turn the Tuple into a Dict with one named key per entry.",
        spaces.Text: "Encode the text as numbers, for example as a MultiDiscrete of character codes.",
        spaces.Sequence: "Pad the sequence to a fixed length and give it as a Box.",
        spaces.Graph: "Give the graph as Box entries of fixed size, for example node features and adjacency.",
        spaces.OneOf: "Give a Dict with one key per alternative and one that says which is used.",
    }
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        if math.prod(space.shape) == 0:
            raise SpaceError(f"{where} has the shape {space.shape}, which holds no values. Remove it from the env.")
        return
    if isinstance(space, spaces.Discrete):
        return
    hint = next((text for kind, text in advice.items() if isinstance(space, kind)), "Convert it with a wrapper.")
    example = "Example: gymnasium.wrappers.TransformObservation(env, function, new_space)."
    raise SpaceError(f"{where} is a {type(space).__name__}, which is not supported. {hint}\n{_SUPPORTED}\n{example}")


class FlattenEncoder(nn.Module):
    """Any supported observation as one vector.

    Box: flattened (uint8 divided by 255). Discrete: one-hot. MultiDiscrete: one-hots side by side.
    MultiBinary: 0 and 1. Dict: its entries side by side in the order of the space's keys.
    """

    features: int
    """Length of the vector."""

    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__()
        check_observation_space(observation_space)
        entries = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
        encoders = [leaf_encoder(entry) for entry in entries.values()]
        self._keys = tuple(entries)
        # A list: keys of a Dict space may hold dots or be named like a method, which ModuleDict refuses.
        self._encoders = nn.ModuleList(encoders)
        self.features = sum(encoder.features for encoder in encoders)

    def forward(self, obs: ObsTensor) -> Tensor:
        """Encode raw observations into (B, features) float32."""
        if isinstance(obs, Tensor):
            return self._encoders[0](obs)
        return torch.cat([encoder(obs[key]) for key, encoder in zip(self._keys, self._encoders)], dim=-1)


class _Flat(nn.Module):
    """(B, *shape) numbers -> (B, features), times a constant scale."""

    def __init__(self, features: int, scale: float) -> None:
        super().__init__()
        self.features = features
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(x.shape[0], self.features).to(torch.float32)
        return flat if self.scale == 1.0 else flat * self.scale


class _OneHots(nn.Module):
    """(B, *shape) integers, the i-th in [start[i], start[i] + nvec[i]) -> (B, sum(nvec)) zeros and ones."""

    offsets: Tensor

    def __init__(self, nvec: np.ndarray, start: np.ndarray) -> None:
        super().__init__()
        self.features = int(nvec.sum())
        # The column of value v in dimension i is v - start[i] + (columns of the dimensions before i).
        columns = np.cumsum(nvec) - nvec - start
        self.register_buffer("offsets", torch.as_tensor(columns, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        columns = x.reshape(x.shape[0], -1).long() + self.offsets
        zeros = torch.zeros(x.shape[0], self.features, device=x.device)
        return zeros.scatter_(1, columns, 1.0)


def leaf_encoder(space: spaces.Space) -> _Flat | _OneHots:
    """Numbers of an entry that is no image, side by side."""
    if isinstance(space, spaces.Discrete):
        return _OneHots(np.array([space.n], np.int64), np.array([space.start], np.int64))
    if isinstance(space, spaces.MultiDiscrete):
        return _OneHots(space.nvec.ravel().astype(np.int64), space.start.ravel().astype(np.int64))
    assert isinstance(space, spaces.Box | spaces.MultiBinary)
    is_image = isinstance(space, spaces.Box) and space.dtype == np.uint8
    return _Flat(math.prod(space.shape), 1.0 / 255.0 if is_image else 1.0)
