"""What observations do not show comes back too, or the grade says what did not."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from helpers import hiding_envs
from helpers.envs import CounterEnv
from helpers.tools import through_codec
from rl_training.envs import action_log
from rl_training.envs.contract import EnvStepper
from rl_training.envs.factory import make_vector_env
from rl_training.envs.replay import ReplayableEnv
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.process_random import preserved_process_random, seed_process_random
from rl_training.utils.trees import differing_paths


def stepper(make: Any, **env: Any) -> EnvStepper:
    return EnvStepper(make_vector_env(TrainConfig(env_id="custom", num_envs=2, env=env), custom=make))


def lived(stepper: EnvStepper, steps: int, seed: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    records = [stepper.step(rng.integers(3, size=2)) for _ in range(steps)]
    return [[r.obs, r.rewards, r.next_obs, r.terminated, r.truncated] for r in records]


def resumed(make: Any, *, steps: int = 23, **env: Any) -> tuple[EnvStepper, EnvStepper]:
    """One pair of environments that played on, and one that was brought back to where it is."""
    first, second = stepper(make, **env), stepper(make, **env)
    first.reset(seed=7)
    lived(first, steps, seed=0)
    saved = through_codec(first.state_dict())
    with preserved_process_random():
        seed_process_random(99)  # another process has drawn something else
        second.load_state_dict(saved, fallback_seed=1)
    return first, second


def goes_on_the_same(first: EnvStepper, second: EnvStepper, steps: int = 60) -> bool:
    try:
        return differing_paths(lived(second, steps), lived(first, steps)) == []
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("steps", [1, 9, 23])
@pytest.mark.parametrize("make", [hiding_envs.GlobalDraws, hiding_envs.TorchDraws])
def test_draws_from_the_process_wide_generators_come_back(make: Any, backend: str, steps: int) -> None:
    first, second = resumed(make, steps=steps, backend=backend)
    assert second.resume_grade == "exact", second.resume_problem
    assert goes_on_the_same(first, second)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_draws_from_the_process_wide_generators_depend_on_the_seed_alone(backend: str) -> None:
    found = []
    for process_seed, seed in ((1, 7), (2, 7), (1, 8)):
        with preserved_process_random():
            seed_process_random(process_seed)
            envs = stepper(hiding_envs.GlobalDraws, backend=backend)
            envs.reset(seed=seed)
            found.append(lived(envs, 20))
            envs.close()
    assert differing_paths(found[0], found[1]) == []
    assert differing_paths(found[0], found[2]) != []
    goals = np.array([record[2][:, 1] for record in found[0]])
    assert (goals[2] != 0).all() and goals[2, 0] != goals[2, 1], "each environment draws its own"


def test_draws_that_begin_late_are_found_when_they_are_replayed() -> None:
    _, second = resumed(hiding_envs.LateGlobalDraws, steps=30, backend="sync")
    assert second.resume_grade == "episode-boundary"
    assert "np.random" in str(second.resume_problem)
    first, second = resumed(hiding_envs.LateGlobalDraws, steps=30, backend="async")
    assert second.resume_grade == "exact", "a worker's generators are its environment's"
    assert goes_on_the_same(first, second)


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize(
    "make",
    [
        hiding_envs.EpisodeSeeds,
        hiding_envs.NewWorld,
        hiding_envs.OtherGenerator,
        hiding_envs.PhiloxGenerator,
        hiding_envs.SeedFirst,
        hiding_envs.MujocoStyle,
        hiding_envs.ObjectState,
        hiding_envs.InnerGenerator,
        hiding_envs.OwnFolder,
        hiding_envs.DrawsBeforeSeeding,
    ],
)
def test_these_come_back(make: Any, backend: str) -> None:
    first, second = resumed(make, backend=backend)
    assert second.resume_grade == "exact", second.resume_problem
    assert goes_on_the_same(first, second)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (hiding_envs.Diary, "Diary.pages differs"),
        (hiding_envs.SharedCount, "SharedCount.episodes differs"),
        (hiding_envs.ModuleCount, "hiding_envs.STEPS differs"),
        (hiding_envs.ReadsClock, "ReadsClock.before differs"),
        (hiding_envs.OldWorld, "OldWorld.world cannot be looked into and outlives an episode"),
        (hiding_envs.Crowd, "Crowd.creatures holds a set of objects"),
        (hiding_envs.RaisingSetState, "restoring it raised OSError: no such simulator"),
    ],
)
def test_these_do_not_and_the_reason_is_told(make: Any, problem: str) -> None:
    _, second = resumed(make)
    assert second.resume_grade == "episode-boundary"
    assert problem in str(second.resume_problem)
    assert second.step(np.zeros(2, dtype=np.int64)).valid.all()


def test_a_seed_that_is_not_passed_on_still_counts() -> None:
    found = []
    for seed in (1, 1, 2):
        envs = stepper(hiding_envs.DrawsBeforeSeeding)
        envs.reset(seed=seed)
        found.append(lived(envs, 20))
    assert differing_paths(found[0], found[1]) == [] != differing_paths(found[0], found[2])


def test_in_its_first_episode_an_old_world_is_as_new() -> None:
    first, second = resumed(hiding_envs.OldWorld, steps=3)
    assert second.resume_grade == "exact", second.resume_problem
    assert goes_on_the_same(first, second)


@pytest.mark.parametrize("make", [hiding_envs.OldWorld, hiding_envs.SeedsFromTheClock, hiding_envs.Diary])
def test_renewed_at_every_episode_these_come_back(make: Any) -> None:
    _, second = resumed(make)
    assert second.resume_grade == "episode-boundary"
    first, second = resumed(make, renew=True)
    assert second.resume_grade == "exact", second.resume_problem
    assert goes_on_the_same(first, second)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_bipedal_walker_comes_back_although_its_world_survives_resets(backend: str) -> None:
    def make() -> EnvStepper:
        config = TrainConfig(env_id="BipedalWalker-v3", num_envs=2, env={"backend": backend})
        return EnvStepper(make_vector_env(config))

    first, second = make(), make()
    space = first.envs.action_space
    space.seed(5)
    actions = [space.sample() for _ in range(900)]
    first.reset(seed=3)
    ended = sum(int(first.step(action).ended.sum()) for action in actions[:400])
    second.load_state_dict(through_codec(first.state_dict()), fallback_seed=1)
    assert second.resume_grade == "exact", second.resume_problem
    for action in actions[400:]:
        expected, found = first.step(action), second.step(action)
        ended += int(found.ended.sum())
        assert found.next_obs.tobytes() == expected.next_obs.tobytes()  # type: ignore[union-attr]
    assert ended >= 4
    first.close()
    second.close()


def test_an_endless_episode_costs_little_and_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ReplayableEnv(CounterEnv())
    env.reset(seed=0)
    for _ in range(1000):
        env.step(np.int64(2))
    actions = env.export_state()["actions"]
    assert actions.nbytes == 1000 and actions.tolist() == [2] * 1000

    monkeypatch.setattr(action_log, "MAX_BYTES", 100 * 400)
    env = ReplayableEnv(hiding_envs.EndlessBox())
    env.reset(seed=0)
    env.action_space.contains = lambda action: True  # type: ignore[method-assign]
    for kept in (100, None):
        for _ in range(100):
            env.step(np.zeros(100, dtype=np.float32))
        actions = env.export_state()["actions"]
        assert actions is None if kept is None else len(actions) == kept
    _, problem = ReplayableEnv(hiding_envs.EndlessBox()).restore_state(through_codec(env.export_state()), 0)
    assert problem == "the episode is too long to be replayed"
    env.reset()
    env.step(np.zeros(100, dtype=np.float32))
    assert len(env.export_state()["actions"]) == 1, "the next episode is kept again"


def test_a_forged_state_changes_no_more_than_numbers() -> None:
    class Named(CounterEnv):
        def __init__(self) -> None:
            super().__init__(((3, "terminated"),))
            self.path, self.level = "results", 1

    env = ReplayableEnv(Named())
    env.reset(seed=0)
    env.reset()
    state = through_codec(env.export_state())
    state["start"]["carried"] |= {"0:path": 1, "0:level": 2}
    other = ReplayableEnv(Named())
    _, problem = other.restore_state(state, 0)
    assert problem is not None and "level differs" in problem
    assert other.unwrapped.path == "results"  # type: ignore[attr-defined]


def test_gymnasiums_own_that_keep_their_world_are_named() -> None:
    env = ReplayableEnv(gym.make("BipedalWalker-v3"))
    env.reset(seed=0)
    env.reset()
    _, problem = ReplayableEnv(gym.make("BipedalWalker-v3")).restore_state(through_codec(env.export_state()), 0)
    assert problem is not None and "BipedalWalker.world" in problem
