"""`check_env`: is an environment right, and what can be expected of it? Free of torch, like everything that workers import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import Autoreset

from rl_training.envs.action_masks import SOURCES, MaskedEnv, MaskSetting, with_vector_masks
from rl_training.envs.check_play import play
from rl_training.envs.check_report import EnvReport
from rl_training.envs.check_rules import (
    add_grade,
    check_episodes,
    check_repeatability,
    check_rewards,
    check_spaces,
    check_speed,
    check_values,
    space_text,
)
from rl_training.envs.contract import EnvStepper
from rl_training.envs.env_config import EnvConfig
from rl_training.envs.factory import EnvFactory, EnvLike, custom_factory, env_name, make_vector_env
from rl_training.envs.flat_observations import flattened
from rl_training.envs.inspection import layers_of
from rl_training.envs.limits import episode_limit
from rl_training.utils.coerce import build_dataclass
from rl_training.utils.errors import AxiomError, EnvCreationError, UserError
from rl_training.utils.spaces import ActionAdapter, same_tree

_REPLAYED_STEPS = (1, 23, 57)
"""After how many steps the state is exported and brought back."""


@dataclass
class _Settings:
    """What the factory needs of a config."""

    env_id: str
    env: EnvConfig
    num_envs: int
    seed: int


def check_env(
    env: EnvLike, *, settings: EnvConfig | Mapping[str, Any] | None = None, steps: int = 1_000, seed: int = 0
) -> EnvReport:
    """Plays `steps` random steps, some of them twice, and says what is wrong and what to do about it.

    `env` is what an agent takes: an id, a callable, an environment (which is copied where that is possible) or a vector
    environment. `settings` is the `env` section of a config: kwargs, wrappers, max_episode_steps, backend, autoreset.
    """
    if steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}")
    if not isinstance(env, str | gym.Env | VectorEnv) and not callable(env):
        raise EnvCreationError(f"an environment is an id, a callable or a Gymnasium env, not {type(env).__name__}")
    config = settings if isinstance(settings, EnvConfig) else build_dataclass(EnvConfig, settings or {}, "env")
    report = EnvReport(env_name(env))
    if isinstance(env, VectorEnv):
        if settings:
            raise UserError("settings cannot reach a vector environment object, which is made already: leave them out.")
        _check_vector(report, env, steps, seed, config.action_masks)
        return report
    wanted = _Settings(report.env, config, 2, seed)
    try:
        custom = _maker(report, env, config)
        if config.backend in ("native", "tensor"):
            _check_vector(report, make_vector_env(wanted, custom=custom), steps, seed, False)
        else:
            _check_single(report, wanted, custom, steps)
    except AxiomError as error:
        report.add("error", "creation", str(error))
    return report


def _maker(report: EnvReport, env: EnvLike, config: EnvConfig) -> Callable[[], gym.Env[Any, Any]] | None:
    """A maker of fresh environments; of an object that cannot be copied it can be asked once."""
    try:
        return custom_factory(env, config.kwargs, itself=False)
    except AxiomError as error:
        if not isinstance(env, gym.Env) or config.kwargs:
            raise
        report.add("warning", "creation", str(error).split("\n")[0], "give the class or a function that makes it")
        report.facts["copies"] = "none: the object itself was checked"
        return custom_factory(env, itself=True)


def _check_single(
    report: EnvReport, wanted: _Settings, custom: Callable[[], gym.Env[Any, Any]] | None, steps: int
) -> None:
    factory, seed = EnvFactory.of(wanted, custom), wanted.seed
    env = _inner(factory())
    alone = "copies" in report.facts
    report.facts |= {
        "observation_space": space_text(env.observation_space),
        "action_space": space_text(env.action_space),
    }
    masked = next((layer for layer in layers_of(env) if isinstance(layer, MaskedEnv)), None)
    if masked is not None:
        report.facts["action_masks"] = SOURCES[masked.source]
    supported = check_spaces(report, env.observation_space, env.action_space)
    if any(isinstance(layer, Autoreset) for layer in layers_of(env)):
        report.add(
            "error",
            "autoreset",
            "the environment resets itself (gymnasium.wrappers.Autoreset), so its final observations are lost",
            "leave that wrapper out: AxiomRL resets finished environments (env.autoreset)",
        )
    if not supported:
        return
    few = min(steps, 300)
    try:
        first = play(env, steps, seed, action_seed=seed)
        other = play(env, few, seed + 1, action_seed=seed)
        again = play(env, few, seed, action_seed=seed)
        mixed = play(env, few, seed, action_seed=seed, process_seed=1)
        twin = None if alone else play(_inner(factory()), few, seed, action_seed=seed)
    except AxiomError as error:
        report.add("error", "api", str(error))
        return
    check_values(report, first)
    check_episodes(report, first, episode_limit(env), steps)
    check_repeatability(report, first, other, again, mixed, twin)
    check_speed(report, steps / max(first.seconds, 1e-9))
    env.close()
    if not alone:
        _check_resume(report, lambda: make_vector_env(_sync(wanted), custom=custom), steps, seed)
    if wanted.env.backend == "async":
        _check_workers(report, wanted, custom, min(steps, 50))


def _inner(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Without the outermost wrapper, which gives environments that draw from process-wide generators generators of their own."""
    assert isinstance(env, gym.Wrapper)
    return env.env


def _sync(wanted: _Settings) -> _Settings:
    return replace(wanted, env=replace(wanted.env, backend="sync", restart_workers=0))


def _check_resume(report: EnvReport, make: Callable[[], VectorEnv[Any, Any, Any]], steps: int, seed: int) -> None:
    """Exports the state now and then, brings it back in other environments, and goes on in both."""
    problem = None
    try:
        stepper = EnvStepper(make())
        stepper.reset(seed)
        for number, batch in enumerate(_batches(stepper, min(max(_REPLAYED_STEPS), steps), seed), start=1):
            stepper.step(batch)
            if number in _REPLAYED_STEPS and problem is None:
                problem = _resume_problem(stepper, make, seed)
        stepper.close()
    except AxiomError as error:
        report.add("error", "resume", str(error))
        return
    add_grade(report, problem)


def _resume_problem(stepper: EnvStepper, make: Callable[[], VectorEnv[Any, Any, Any]], seed: int) -> str | None:
    other = EnvStepper(make())
    try:
        other.load_state_dict(stepper.state_dict(), fallback_seed=seed + 1)
        if other.resume_grade != "exact":
            return getattr(other, "resume_problem", None) or "it could not be brought back"
        return None
    finally:
        other.close()


def _batches(stepper: EnvStepper, count: int, seed: int) -> Iterator[Any]:
    """Random actions, each batch for the observations that the stepper has when it is asked for."""
    adapter, generator = ActionAdapter(stepper.envs.single_action_space), np.random.default_rng(seed)
    for _ in range(count):
        yield adapter.to_env(adapter.sample(generator, stepper.num_envs, stepper.action_masks))


def _check_workers(
    report: EnvReport, wanted: _Settings, custom: Callable[[], gym.Env[Any, Any]] | None, steps: int
) -> None:
    """The same seed and actions in this process and in workers."""
    records = []
    try:
        for settings in (_sync(wanted), wanted):
            stepper = EnvStepper(make_vector_env(settings, custom=custom))
            try:
                obs = [stepper.reset(wanted.seed)]
                obs += [stepper.step(batch).next_obs for batch in _batches(stepper, steps, wanted.seed)]
            finally:
                stepper.close()
            records.append(obs)
    except AxiomError as error:
        report.add("error", "workers", str(error))
        return
    if not same_tree(*records):
        report.add(
            "warning",
            "workers",
            "worker processes see other episodes than this process, with the same seed and actions",
            "use self.np_random only, and nothing that the environments of a process share",
        )


def _check_vector(
    report: EnvReport, given: VectorEnv[Any, Any, Any], steps: int, seed: int, masks: MaskSetting
) -> None:
    """A vector environment: its autoreset mode, its form, and whether it repeats itself."""
    report.facts |= {
        "num_envs": given.num_envs,
        "observation_space": space_text(given.single_observation_space),
        "action_space": space_text(given.single_action_space),
    }
    if not check_spaces(report, given.single_observation_space, given.single_action_space):
        return
    try:
        stepper = EnvStepper(flattened(with_vector_masks(given, masks, report.env)))
    except UserError as error:
        message, _, fix = str(error).partition("\n")
        report.add("error", "autoreset", message, fix)
        return
    report.facts["autoreset"] = stepper.mode.name.lower()
    count = max(1, steps // given.num_envs)
    try:
        first, ends, rewards = _play_vector(stepper, count, seed)
        again, _, _ = _play_vector(stepper, min(count, 50), seed)
        state = stepper.state_dict()
        stepper.load_state_dict(state, fallback_seed=seed + 1)
    except UserError as error:
        report.add("error", "autoreset", str(error))
        return
    except AxiomError as error:
        report.add("error", "api", str(error))
        return
    if not same_tree(first[: len(again)], again):
        report.add(
            "warning",
            "determinism",
            "the same seed and actions give other episodes the second time",
            "seed every generator in reset(seed=seed)",
        )
    limit = episode_limit(given)
    report.facts["time_limit"] = "none declared" if limit is None else f"{limit} steps"
    if not ends and limit is None:
        report.add(
            "warning",
            "endless",
            f"no episode ended in {count} steps of each environment, and there is no time limit",
            "truncate episodes after a number of steps that fits the task",
        )
    check_rewards(report, np.concatenate(rewards))
    exact = stepper.resume_grade == "exact"
    add_grade(report, None if exact else getattr(stepper, "resume_problem", None) or "it could not be brought back")


def _play_vector(stepper: EnvStepper, count: int, seed: int) -> tuple[list[Any], int, list[Any]]:
    """(observations, episodes that ended, rewards) of the steps."""
    obs, rewards, ends = [stepper.reset(seed)], [], 0
    for batch in _batches(stepper, count, seed):
        record = stepper.step(batch)
        obs.append(record.next_obs)
        rewards.append(record.rewards)
        ends += int((record.terminated | record.truncated).sum())
    return obs, ends, rewards
