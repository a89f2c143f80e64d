"""Environments by id, by callable or as objects, one at a time or as a vector."""

from __future__ import annotations

import copy
import difflib
import functools
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit

from rl_training.envs.action_masks import MaskedEnv, MaskSetting, mask_source, with_vector_masks
from rl_training.envs.async_env import AsyncEnvs
from rl_training.envs.atari_config import AtariConfig, atari_settings
from rl_training.envs.builtin.array_envs import make_array_env
from rl_training.envs.builtin.classic_dynamics import DYNAMICS
from rl_training.envs.checked_env import RAISED, CheckedEnv, raised_text
from rl_training.envs.env_config import EnvConfig
from rl_training.envs.filming import RGB, FilmedEnv, check_offers_pictures
from rl_training.envs.flat_observations import FlatObservation
from rl_training.envs.renewed_env import KEEP_THEIR_WORLD, RenewedEnv
from rl_training.envs.replay import ReplayableEnv
from rl_training.envs.sync_env import SyncEnvs
from rl_training.envs.wrappers import WrapperMaker, wrapper_makers
from rl_training.utils.coerce import did_you_mean
from rl_training.utils.errors import AxiomError, EnvCreationError
from rl_training.utils.nested import is_nested
from rl_training.utils.process_random import preserved_process_random, seed_process_random
from rl_training.utils.seeding import derive_seed

EnvLike = str | Callable[..., gym.Env[Any, Any]] | gym.Env[Any, Any] | VectorEnv[Any, Any, Any]

# Which extra brings which simulator: (prefix of the entry point's module, module to import, extra).
_EXTRAS = (
    ("gymnasium.envs.mujoco", "mujoco", "mujoco"),
    ("gymnasium.envs.box2d", "Box2D", "box2d"),
    ("ale_py", "ale_py", "atari"),
    ("ale_py", "cv2", "atari"),
)


class HasEnvSettings(Protocol):
    """What the factory needs of a TrainConfig."""

    env_id: str
    env: EnvConfig
    num_envs: int
    seed: int


@dataclass(frozen=True)
class EnvFactory:
    """Makes one environment, wrapped so that its mistakes are named and its state can be saved."""

    env_id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    custom: Callable[[], gym.Env[Any, Any]] | None = None
    wrappers: tuple[WrapperMaker, ...] = ()
    """Innermost first."""
    index: int | None = None
    """The environment's number among those of a vector."""
    seed: int = 0
    """Of the process-wide generators while the environment is made: some draw from them there."""
    renew: bool = False
    """Whether every episode gets a new environment."""
    atari: AtariConfig | None = None
    """How an Atari game is played."""
    action_masks: MaskSetting = "auto"
    """Whether masks are looked for."""
    film: bool = False
    """Whether it is to be drawn: see FilmedEnv."""

    @classmethod
    def of(
        cls, cfg: HasEnvSettings, custom: Callable[[], gym.Env[Any, Any]] | None = None, *, film: bool = False
    ) -> EnvFactory:
        """The factory a config asks for."""
        env = cfg.env
        return cls(
            cfg.env_id,
            dict(env.kwargs),
            env.max_episode_steps,
            custom,
            wrapper_makers(env.wrappers),
            seed=cfg.seed,
            renew=env.renew,
            atari=atari_settings(cfg.env_id, env.atari) if custom is None else None,
            action_masks=env.action_masks,
            film=film,
        )

    def __call__(self) -> gym.Env[Any, Any]:
        with preserved_process_random():
            seed_process_random(self.seed)
            return self._make()

    def _make(self) -> gym.Env[Any, Any]:
        env = self._make_wrapped()
        if self.film:
            env = FilmedEnv(env, self.env_id)
        source = mask_source(env, self.action_masks, self._make_wrapped, self.seed, self.env_id)
        unseen = source is None and self.action_masks is not False
        env = checked = CheckedEnv(env, self.env_id, self.index, masks_unseen=unseen)
        if source is not None:
            env = MaskedEnv(checked, source)
        if is_nested(env.observation_space):
            env = FlatObservation(env)
        # Outermost, so that replaying an episode goes through the wrappers too.
        return ReplayableEnv(env)

    def _make_wrapped(self) -> gym.Env[Any, Any]:
        """With the config's wrappers and none of ours."""
        env = self._make_bare()
        if self.renew or type(env.unwrapped).__module__ in KEEP_THEIR_WORLD:
            env = RenewedEnv(env, self._make_bare)
        for wrap in self.wrappers:
            env = wrap(env)
        return env

    def _make_bare(self) -> gym.Env[Any, Any]:
        """Without the config's wrappers."""
        if self.atari is not None and self.atari.protocol != "none":
            kwargs = {**self.kwargs, "render_mode": RGB} if self.film else self.kwargs
            return _make_atari(self.env_id, self.atari, kwargs, self.max_episode_steps)
        if self.custom is None:
            kwargs = _drawn(self.env_id, self.kwargs) if self.film else self.kwargs
            return _make_by_id(self.env_id, self.max_episode_steps, kwargs)
        make: Callable[..., gym.Env[Any, Any]] = self.custom
        if self.film and "render_mode" in (_accepted(make) or ()):
            make = functools.partial(make, render_mode=RGB)
        env = _make_custom(self.env_id, make)
        return env if self.max_episode_steps is None else TimeLimit(env, self.max_episode_steps)

    def numbered(self, count: int) -> list[EnvFactory]:
        """The factories of a vector of environments."""
        seeds = [derive_seed(self.seed, "making envs", index) for index in range(count)]
        return [replace(self, index=index, seed=seed) for index, seed in enumerate(seeds)]


def make_vector_env(
    cfg: HasEnvSettings,
    num_envs: int | None = None,
    *,
    custom: Callable[[], gym.Env[Any, Any]] | None = None,
    device: str = "cpu",
    film: bool = False,
) -> VectorEnv[Any, Any, Any]:
    """The vector environment a config asks for (a `gymnasium.vector.SyncVectorEnv` by default).

    `device` is where tensor environments live; all others are in main memory. `film` goes with the backend sync: every environment
    is then a FilmedEnv inside.
    """
    count = cfg.num_envs if num_envs is None else num_envs
    if cfg.env.backend == "native":
        return with_vector_masks(_make_native(cfg, count, custom), cfg.env.action_masks, cfg.env_id)
    if cfg.env.backend == "tensor":
        return _make_tensor(cfg, count, custom, device)
    factory = EnvFactory.of(cfg, custom, film=film)
    mode = AutoresetMode[cfg.env.autoreset.upper()]
    if cfg.env.backend == "async":
        factory().close()  # the user's mistakes are reported from here, not from a worker
        seed = derive_seed(cfg.seed, "restarted workers")
        return AsyncEnvs(factory.numbered(count), mode, cfg.env.restart_workers, seed, cfg.env.workers)
    envs = SyncEnvs(factory.numbered(count), autoreset_mode=mode)
    if len({id(env.unwrapped) for env in envs.envs}) < count:
        raise EnvCreationError(
            "the callable returned the same environment object twice: it must make a new one at each call, "
            "e.g. lambda: MyEnv() and not lambda: env"
        )
    return envs


def custom_factory(
    env: EnvLike, kwargs: Mapping[str, Any] | None = None, *, itself: bool = True
) -> Callable[[], gym.Env[Any, Any]] | None:
    """A maker of environments like the one the user gave: None for an id, the callable with its arguments, or copies of the object.

    With `itself` the object is handed out first, so that a single training environment is the very one the user holds, and need
    not be copyable; without, it is copied now, as it is, and never touched.
    """
    if isinstance(env, str):
        return None
    if isinstance(env, gym.Env):
        if kwargs:
            raise EnvCreationError(
                f"env.kwargs cannot reach {env_name(env)}, which was given as an object and is made already: give the class, "
                f"such as PPO({type(env.unwrapped).__name__}, env={{'kwargs': ...}})."
            )
        given, original = ([env], env) if itself else ([], copied(env))
        return lambda: given.pop() if given else copied(original)
    if callable(env):
        _check_arguments(env, kwargs or {})
        return functools.partial(env, **kwargs) if kwargs else env
    raise EnvCreationError(
        f"an environment must be a Gymnasium id, a callable or a Gymnasium env, not {type(env).__name__}"
    )


def copied(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """A copy of an environment object, in the state it is in."""
    try:
        return copy.deepcopy(env)
    except Exception as error:  # whatever the environment's own code raises
        raise EnvCreationError(
            f"the environment object {env_name(env)} cannot be copied ({raised_text(error)}), and more than one environment, "
            "workers and evaluations need copies of it.\n"
            "Give the class or a function that makes it, e.g. PPO(MyEnv); or train in the object itself with num_envs=1 and "
            "evaluation={'every': 0}, and evaluate with evaluate(env=ANOTHER_ONE)."
        ) from error


def _check_arguments(make: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses arguments that the class or function does not take."""
    accepted = _accepted(make)
    if accepted is None:
        return
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    names = [name for name, parameter in accepted.items() if parameter.kind is not parameter.POSITIONAL_ONLY]
    for name in kwargs:
        if name not in names and not takes_any:
            hint = did_you_mean(name, names) or f"; it takes {', '.join(names) or 'none'}"
            raise EnvCreationError(f"env.kwargs: {env_name(make)} has no argument {name!r}{hint}")


def _accepted(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a callable; None where it does not say what it takes."""
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):
        return None


def env_name(env: EnvLike) -> str:
    """A name for run folders and metadata; for custom environments the class or function name."""
    if isinstance(env, str):
        return env
    spec = getattr(env, "spec", None)
    if spec is not None:
        return str(spec.id)
    if isinstance(env, (gym.Env, VectorEnv)):
        return type(env.unwrapped).__name__
    return getattr(env, "__name__", type(env).__name__).strip("<>")


def _drawn(env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an environment that is to be drawn."""
    spec = _check_known(env_id)
    try:
        maker = (
            spec.entry_point
            if callable(spec.entry_point)
            else gym.envs.registration.load_env_creator(str(spec.entry_point))
        )
    except RAISED as error:  # whatever importing it raises
        raise EnvCreationError(f"environment {env_id!r} could not be made: {_creation_text(error)}") from error
    check_offers_pictures(env_id, getattr(maker, "metadata", None))
    accepted = _accepted(maker)
    silent = accepted is not None and not (
        "render_mode" in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    )
    return (
        {key: value for key, value in kwargs.items() if key != "render_mode"}
        if silent
        else {**kwargs, "render_mode": RGB}
    )


def _make_by_id(env_id: str, max_episode_steps: int | None, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    _check_known(env_id)
    try:
        return gym.make(env_id, max_episode_steps=max_episode_steps, disable_env_checker=True, **kwargs)
    except RAISED as error:  # whatever the environment's own code raises over its arguments
        raise EnvCreationError(f"environment {env_id!r} could not be made: {_creation_text(error)}") from error


def _make_atari(
    env_id: str, atari: AtariConfig, kwargs: dict[str, Any], max_episode_steps: int | None
) -> gym.Env[Any, Any]:
    _check_known(env_id)
    from rl_training.envs.builtin.atari import make_atari  # here, because ale-py is an extra

    try:
        return make_atari(env_id, atari, kwargs, max_episode_steps)
    except AxiomError:
        raise
    except RAISED as error:  # of the emulator, over a mode that the game does not have
        raise EnvCreationError(f"environment {env_id!r} could not be made: {raised_text(error)}") from error


def _make_custom(name: str, make: Callable[[], gym.Env[Any, Any]]) -> gym.Env[Any, Any]:
    try:
        env = make()
    except AxiomError:
        raise
    except RAISED as error:
        raise EnvCreationError(f"environment {name!r} could not be made: {raised_text(error)}") from error
    if not isinstance(env, gym.Env):
        raise EnvCreationError(
            f"environment {name!r}: the callable must return a gymnasium.Env, not {type(env).__module__}.{type(env).__name__}.\n"
            "An environment of the old gym package must be rewritten, or wrapped with shimmy."
        )
    return env


def _make_native(cfg: HasEnvSettings, count: int, custom: object) -> VectorEnv[Any, Any, Any]:
    if custom is None and cfg.env_id in DYNAMICS:
        return make_array_env(
            cfg.env_id, count, kwargs=dict(cfg.env.kwargs), max_episode_steps=cfg.env.max_episode_steps
        )
    spec = None if custom is not None else _check_known(cfg.env_id)
    if spec is None or spec.vector_entry_point is None:
        raise EnvCreationError(
            f"environment {cfg.env_id!r} has no native vector version: use env.backend=sync or env.backend=async."
        )
    kwargs = dict(cfg.env.kwargs)
    if cfg.env.max_episode_steps is not None:
        kwargs["max_episode_steps"] = cfg.env.max_episode_steps
    try:
        return gym.make_vec(cfg.env_id, count, vectorization_mode="vector_entry_point", wrappers=(), **kwargs)
    except RAISED as error:
        raise EnvCreationError(f"environment {cfg.env_id!r} could not be made: {_creation_text(error)}") from error


def _make_tensor(cfg: HasEnvSettings, count: int, custom: object, device: str) -> VectorEnv[Any, Any, Any]:
    if custom is not None:
        raise EnvCreationError(
            f"environment {cfg.env_id!r} was given as Python code, which has no tensor version: "
            "use env.backend=sync or env.backend=async."
        )
    from rl_training.envs.builtin.tensor_envs import make_tensor_env  # here, because it imports torch

    return make_tensor_env(
        cfg.env_id, count, kwargs=cfg.env.kwargs, max_episode_steps=cfg.env.max_episode_steps, device=device
    )


def _check_known(env_id: str) -> gym.envs.registration.EnvSpec:
    """The registered spec; otherwise an error with the nearest ids or the missing extra."""
    if env_id.startswith("ALE/") and importlib.util.find_spec("ale_py") is not None:
        import ale_py

        gym.register_envs(ale_py)
    spec = gym.registry.get(env_id)
    entry_point = str(spec.entry_point) if spec is not None else ("ale_py" if env_id.startswith("ALE/") else "")
    for prefix, module, extra in _EXTRAS:
        if entry_point.startswith(prefix) and importlib.util.find_spec(module) is None:
            raise EnvCreationError(f'environment {env_id!r} needs the extra {extra!r}: pip install "axiomrl[{extra}]"')
    if spec is None and (old := re.fullmatch(r"(\w+?)(NoFrameskip|Deterministic)?-v[04]", env_id)) and old[2]:
        raise EnvCreationError(
            f"{env_id!r} is an old name: use 'ALE/{old[1]}-v5', with env.atari.protocol=classic for the published way of playing."
        )
    if spec is None:
        close = difflib.get_close_matches(env_id, gym.registry, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else "gymnasium.pprint_registry() lists those installed."
        raise EnvCreationError(
            f"unknown environment {env_id!r}: {hint}\n"
            "Environments of other packages must be imported first: --import MODULE, or import it in Python."
        )
    return spec


def _creation_text(error: BaseException) -> str:
    # Gymnasium's own errors need no place in its code.
    return (str(error).strip().splitlines() or [""])[0] if isinstance(error, gym.error.Error) else raised_text(error)
