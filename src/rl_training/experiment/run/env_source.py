"""Where a run's experience comes from: environments of the config's id, what the user handed over in Python, or a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.data.sources import TransitionDataset
from rl_training.envs.action_masks import with_vector_masks
from rl_training.envs.atari_config import PREFIX as ATARI_IDS
from rl_training.envs.env_config import EnvConfig
from rl_training.envs.factory import EnvFactory, EnvLike, custom_factory, env_name, make_vector_env
from rl_training.envs.flat_observations import flattened
from rl_training.envs.goals import GoalRules
from rl_training.experiment import registry
from rl_training.experiment.checkpoint.snapshot import Spaces
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.device import select_device
from rl_training.runtime.video import check_filming
from rl_training.utils.errors import ConfigError, EnvCreationError, SpaceError
from rl_training.utils.seeding import derive_seed
from rl_training.utils.spaces import space_name

NO_ENV = "dataset"
"""The `env_id` of a run that has a dataset and no environment."""


@dataclass(frozen=True)
class EnvSource:
    """Where experience comes from, and what a config can and cannot say about it."""

    given: EnvLike | None = None
    """What the user handed over; None and an id leave it to the config's `env_id`."""
    dataset: TransitionDataset | None = None
    """What an offline algorithm learns from; environments are then only for evaluations."""

    @property
    def name(self) -> str | None:
        return None if self.given is None else env_name(self.given)

    def facts(self) -> dict[str, Any]:
        """What is true of the environments whatever a config says: keys of TrainConfig, those of `env` as a mapping."""
        if not isinstance(self.given, VectorEnv):
            return {}
        envs, backend = self.given, "native"
        if isinstance(envs.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            backend = "sync" if isinstance(envs.unwrapped, SyncVectorEnv) else "async"
        mode = envs.metadata.get("autoreset_mode")
        own_mode = backend == "native" or not isinstance(mode, AutoresetMode)
        plain = EnvConfig()
        return {
            "num_envs": envs.num_envs,
            "env": {
                "backend": backend,
                "autoreset": plain.autoreset if own_mode else mode.name.lower(),  # type: ignore[union-attr]
                "kwargs": {},
                "max_episode_steps": None,
                "wrappers": [],
                "restart_workers": 0,
                "workers": None,
                "renew": False,
                "atari": None,
            },
        }

    def defaults(self) -> dict[str, Any]:
        """Keys of TrainConfig that have other defaults because of what was given."""
        defaults = self.facts()
        if not isinstance(self.given, str | VectorEnv) and (self.name or "").startswith(ATARI_IDS):
            defaults["env"] = {"atari": {"protocol": "none"}}  # it is made already
        if isinstance(self.given, gym.Env):
            defaults["num_envs"] = 1  # the object itself; more would be copies of it
        if isinstance(self.given, VectorEnv) or self.given == NO_ENV:
            defaults["evaluation"] = {"every": 0}  # there is nothing to evaluate in
        return defaults

    def adopted(self, config: TrainConfig) -> TrainConfig:
        """A saved agent's config with this environment in place of its own. Arguments and limits belonged to the other one, unless
        it has the same name; wrappers go around whatever is given."""
        if self.given is None:
            return config
        name = self.name or config.env_id
        env = config.env if name == config.env_id else _of_another_env(config.env, config.env_id, name)
        if isinstance(self.given, gym.Env):
            env = replace(env, kwargs={}, renew=False)
        if name != config.env_id and env.backend in ("native", "tensor"):
            env = replace(env, backend="sync")
        facts = self.facts()
        env = replace(env, **facts.pop("env", {}))
        return replace(config, env_id=name, env=env, **facts)

    def check(self, config: TrainConfig) -> None:
        """Refuses what a config says about environments that are made already."""
        if isinstance(self.given, VectorEnv):
            facts = self.facts()
            for key, true in {"num_envs": facts["num_envs"], **_dotted("env", facts["env"])}.items():
                said = _value(config, key)
                if said != true:
                    reason = f"has {true}" if key == "num_envs" else "is made already, and takes no such setting"
                    raise ConfigError(
                        f"{key} is {said!r}, but the vector environment object that was given {reason}. "
                        "Leave it out, or give an id or a callable."
                    )
            if config.evaluation.every > 0:
                raise _no_copies()
        elif self.given is not None:
            custom_factory(self.given, config.env.kwargs)
            if isinstance(self.given, gym.Env) and config.env.renew:
                raise ConfigError(
                    f"env.renew makes a new environment for every episode, and {self.name} was given as an object: give the class."
                )

    def training_envs(self, config: TrainConfig) -> VectorEnv[Any, Any, Any] | None:
        """The environments to train in; None for an algorithm that learns from a dataset."""
        offline = registry.algorithm_info(config.algo).trainer == "offline"
        if offline and self.dataset is None:
            raise ConfigError(f"{config.algo} learns from a dataset and was given none: hand one over in Python.")
        if self.dataset is not None and not offline:
            raise ConfigError(f"{config.algo} learns from environments, not from a dataset: give an id or a callable.")
        if offline:
            return None
        self.check(config)
        if config.hyperparams.get("hindsight"):
            self.goal_rules(config)  # an environment without goals is refused here, before anything is written
        if config.evaluation.wrappers is not None or (config.evaluation.every > 0 and isinstance(self.given, gym.Env)):
            self.evaluation_envs(config)  # so is an evaluation that is not possible
        if isinstance(self.given, VectorEnv):
            return self._given_envs(self.given, config)
        # Workers get copies, so that the user's own object is not touched there.
        custom = self._custom(config, itself=config.env.backend != "async")
        return make_vector_env(config, custom=custom, device=str(select_device(config.device)))

    def evaluation_envs(
        self, config: TrainConfig, *, itself: bool = False, film: bool = False
    ) -> Callable[[int], VectorEnv[Any, Any, Any]]:
        """A maker of evaluation environments: in this process and without autoreset surprises, whatever training uses.

        With `itself` an environment object, or a vector environment, is used and not copied. With `film` they take pictures.
        """
        if isinstance(self.given, VectorEnv):
            if film:
                raise EnvCreationError(
                    "a vector environment object cannot be recorded: name one that can be made with "
                    "render_mode='rgb_array', e.g. record(PATH, env='CartPole-v1')."
                )
            if not itself:
                raise _no_copies()
            envs = self._given_envs(self.given, config)
            return lambda count: envs
        if config.env_id == NO_ENV and self._custom(config, itself=True) is None:
            raise EnvCreationError(
                "there is no environment to evaluate in: name one next to the dataset, or set evaluation.every=0."
            )
        custom = self._custom(config, itself=itself)
        settings = _for_evaluation(config)
        if film:  # native environments do not draw
            settings = replace(settings, env=replace(settings.env, backend="sync"))
        if config.evaluation.wrappers is not None and not itself:
            _check_same_spaces(EnvFactory.of(config, custom)(), EnvFactory.of(settings, custom)())
        return lambda count: make_vector_env(settings, count, custom=custom, film=film)

    def check_video(self, config: TrainConfig) -> None:
        """Refuses a config whose videos cannot be recorded here; to be asked before anything is written."""
        if config.video.every > 0:
            check_filming(self.evaluation_envs(config, film=True))

    def goal_rules(self, config: TrainConfig) -> GoalRules:
        """The rules of an environment with goals, asked of one more environment in this process."""
        if isinstance(self.given, VectorEnv):
            raise EnvCreationError(
                "hindsight needs a single environment to ask for rewards, and a vector environment object cannot be copied: "
                "give an id or a callable."
            )
        if config.env.wrappers:
            raise ConfigError(
                "hindsight asks the environment itself for the rewards of other goals, past its wrappers: leave out env.wrappers, "
                "or set hyperparams.hindsight=0."
            )
        return GoalRules(EnvFactory.of(config, self._custom(config, itself=False))())

    def spaces(self, config: TrainConfig) -> Spaces:
        """The spaces of the environments; one is made, and closed again unless it is the user's own."""
        if isinstance(self.given, VectorEnv):
            return Spaces.of(self._given_envs(self.given, config))
        envs = make_vector_env(_for_evaluation(config), 1, custom=self._custom(config, itself=True))
        if not isinstance(self.given, gym.Env):
            envs.close()
        return Spaces.of(envs)

    def _given_envs(self, envs: VectorEnv[Any, Any, Any], config: TrainConfig) -> VectorEnv[Any, Any, Any]:
        return flattened(with_vector_masks(envs, config.env.action_masks, config.env_id))

    def _custom(self, config: TrainConfig, *, itself: bool) -> Callable[[], gym.Env[Any, Any]] | None:
        return None if self.given is None else custom_factory(self.given, config.env.kwargs, itself=itself)


def _of_another_env(env: EnvConfig, before: str, name: str) -> EnvConfig:
    """The settings without those that belonged to the environment of the name before; games are all played alike."""
    env = replace(env, kwargs={}, max_episode_steps=None)
    same_kind = before.startswith(ATARI_IDS) == name.startswith(ATARI_IDS)
    return env if same_kind else replace(env, atari=None, clip_rewards=None)


def check_fits(agent: Spaces, env: Spaces, name: str, *, any_bounds: bool = False) -> None:
    """Refuses an environment with other spaces than those an agent was made for; bounds may differ if `any_bounds`, as those of a
    dataset, which are whatever its maker took them for."""
    for role in ("observation", "action"):
        own, other = getattr(agent, role), getattr(env, role)
        alike = (type(own), own.shape, own.dtype) == (type(other), other.shape, other.dtype)
        if own != other and not (any_bounds and alike):
            raise SpaceError(
                f"the environment {name} does not fit this agent: its {role} space is\n  {other}\n"
                f"and the agent was made for\n  {own}"
            )


def _for_evaluation(config: TrainConfig) -> TrainConfig:
    # Native vector environments stay native: their dynamics may differ in rounding from the single one's. Tensor ones are
    # judged by Gymnasium's own, which for a handful of episodes are also the faster ones.
    backend: Literal["native", "sync"] = "native" if config.env.backend == "native" else "sync"
    wrappers = config.env.wrappers if config.evaluation.wrappers is None else config.evaluation.wrappers
    env = replace(config.env, backend=backend, restart_workers=0, workers=None, wrappers=wrappers)
    # Another seed, for environments that draw their world while they are made.
    return replace(config, env=env, seed=derive_seed(config.seed, "evaluation envs"))


def _check_same_spaces(training: gym.Env[Any, Any], evaluation: gym.Env[Any, Any]) -> None:
    for role in ("observation_space", "action_space"):
        trained, evaluated = getattr(training, role), getattr(evaluation, role)
        if trained != evaluated:
            texts = [f"{space_name(space)} of shape {space.shape} and {space.dtype}" for space in (trained, evaluated)]
            texts[1] = "one with other bounds" if texts[0] == texts[1] else texts[1]
            raise ConfigError(
                f"the {role.replace('_', ' ')} is {texts[0]} with env.wrappers, but {texts[1]} with evaluation.wrappers: "
                "name the wrappers that change it in both"
            )
    training.close()
    evaluation.close()


def _no_copies() -> EnvCreationError:
    return EnvCreationError(
        "a vector environment object cannot be copied for evaluation: give an id or a callable, "
        "or turn evaluation off with evaluation={'every': 0} and evaluate in another one with evaluate(env=...)."
    )


def _dotted(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for key, value in values.items()}


def _value(config: TrainConfig, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, name)
