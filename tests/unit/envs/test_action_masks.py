"""Where masks are found, what becomes of them, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from helpers.envs import CounterEnv
from helpers.masked_envs import BadMaskEnv, PickyEnv, PickyMultiEnv
from rl_training import A2C, DQN, PPO, SAC, check_env
from rl_training.envs.contract import EnvStepper
from rl_training.envs.env_config import EnvConfig
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.utils.action_masks import ActionMask, mask_space
from rl_training.utils.coerce import FieldError
from rl_training.utils.errors import EnvCreationError, EnvFailure, SpaceError, UserError
from rl_training.utils.spaces import ActionAdapter, space_from_tree, space_to_tree

FORMS = ("method", "info", "observation")


class Config:
    env_id, num_envs, seed = "Picky", 3, 5

    def __init__(self, **settings: Any):
        self.env = EnvConfig(**settings)


def stepper(make: Any, **settings: Any) -> EnvStepper:
    return EnvStepper(make_vector_env(Config(**settings), custom=make))  # type: ignore[arg-type]


def play(stepper: EnvStepper, steps: int) -> list[Any]:
    """Random valid actions; what came back."""
    adapter, generator = ActionAdapter(stepper.envs.single_action_space), np.random.default_rng(0)
    stepper.reset(1)
    records = []
    for _ in range(steps):
        actions = adapter.sample(generator, stepper.num_envs, stepper.action_masks)
        records.append(stepper.step(adapter.to_env(actions)))
    return records


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("kind", [PickyEnv, PickyMultiEnv])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_the_same_entry(form: str, kind: type[PickyEnv], autoreset: str) -> None:
    """The environment raises on an action it has ruled out, so each step shows that the mask is the right one."""
    parts = kind is PickyMultiEnv
    made = stepper(lambda: kind(form, parts, start=2), autoreset=autoreset)
    assert mask_space(made.envs.single_observation_space) == ActionMask(kind.sizes)
    records = play(made, 60)
    truncated = [record for record in records if record.truncated.any()]
    assert truncated and any(record.terminated.any() for record in records)
    for record in records:
        masks = record.next_obs["action_mask"]
        assert masks.dtype == np.int8
        assert masks[record.terminated].all(), "nothing is ruled out where nothing can be done"
        assert not masks[record.truncated].all(axis=1).any() or parts
        assert not ActionMask(kind.sizes).without_choice(masks).any()


def test_workers_see_the_same_masks() -> None:
    here, there = (
        play(stepper(lambda: PickyMultiEnv("info", True), backend=backend), 40) for backend in ("sync", "async")
    )
    for mine, theirs in zip(here, there):
        np.testing.assert_array_equal(mine.next_obs["action_mask"], theirs.next_obs["action_mask"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_the_state_comes_back_exactly(backend: str, form: str) -> None:
    made = stepper(lambda: PickyMultiEnv(form), backend=backend)
    play(made, 17)
    other = stepper(lambda: PickyMultiEnv(form), backend=backend)
    other.load_state_dict(made.state_dict(), fallback_seed=9)
    assert (other.resume_grade, other.resume_problem) == ("exact", None)
    np.testing.assert_array_equal(other.action_masks, made.action_masks)
    made.close()
    other.close()


class TestDetection:
    def test_an_environment_without_masks_is_made_once_and_left_alone(self) -> None:
        made = []

        class Counted(CounterEnv):
            def __init__(self) -> None:
                super().__init__()
                made.append(self)
                self.resets = 0

            def reset(self, **options: Any) -> Any:
                self.resets += 1
                return super().reset(**options)

        Counted.__module__ = CounterEnv.__module__  # this one names masks
        env = EnvFactory("Counted", custom=Counted)()
        assert len(made) == 1 and made[0].resets == 0
        assert not isinstance(env.observation_space, spaces.Dict)

    def test_for_an_info_another_one_is_looked_at(self) -> None:
        made = []

        class Counted(PickyEnv):
            def __init__(self) -> None:
                super().__init__("info")
                made.append(self)

        env = EnvFactory("Counted", custom=Counted)()
        assert len(made) == 2 and env.unwrapped is made[0]
        assert not hasattr(made[0], "left"), "it was not reset"
        assert mask_space(env.observation_space) is not None

    def test_the_object_that_was_given_is_not_the_one_looked_at(self) -> None:
        given = PickyEnv("info")
        agent = PPO(given, num_steps=8, num_minibatches=1)
        assert mask_space(agent._spaces.observation) is not None and not hasattr(given, "left")

    def test_an_info_that_the_code_does_not_name_is_refused_when_it_turns_up(self) -> None:
        key = "action_mask"

        class Hidden(CounterEnv):
            def reset(self, **options: Any) -> Any:
                return super().reset(**options)[0], {key: np.ones(3)}

            def step(self, action: Any) -> Any:
                return (*super().step(action)[:4], {key: np.array([0, 1, 1])})

        Hidden.__module__ = CounterEnv.__module__
        with pytest.raises(EnvFailure, match=r"'Picky' \(index 0, episode 1, step 0\)[^$]*action_masks=true"):
            stepper(Hidden, action_masks="auto").reset(0)
        stepper(Hidden, action_masks=False).reset(0)
        found = stepper(Hidden, action_masks=True)
        found.reset(0)
        assert found.step(np.array([1, 1, 1])).next_obs["action_mask"].tolist() == [[0, 1, 1]] * 3

    def test_a_method_of_a_wrapper_counts(self) -> None:
        class Ruling(gym.Wrapper[Any, Any, Any, Any]):
            def action_masks(self) -> list[bool]:
                return [True, False, True]

        made = stepper(lambda: Ruling(CounterEnv()))
        made.reset(0)
        assert made.action_masks is not None and made.action_masks.tolist() == [[1, 0, 1]] * 3

    def test_false_leaves_the_environment_as_it_is(self) -> None:
        for form, kind in (("method", spaces.Box), ("info", spaces.Box), ("observation", spaces.Dict)):
            env = stepper(lambda form=form: PickyEnv(form), action_masks=False).envs
            assert isinstance(env.single_observation_space, kind)
            assert mask_space(env.single_observation_space) is None

    def test_true_wants_masks(self) -> None:
        with pytest.raises(EnvCreationError, match="'Picky' has no masks: no method action_masks"):
            stepper(CounterEnv, action_masks=True)
        with pytest.raises(FieldError, match="no tensor environment has masks"):
            EnvConfig(action_masks=True, backend="tensor")
        with pytest.raises(FieldError, match="action_masks"):
            EnvConfig(action_masks="always")  # type: ignore[arg-type]

    def test_taxi_has_masks(self) -> None:
        env = EnvFactory("Taxi-v4")()
        obs, info = env.reset(seed=0)
        np.testing.assert_array_equal(obs["action_mask"], info["action_mask"])


class TestMistakes:
    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (np.zeros(6, bool), "no action is valid, says info"),
            (np.ones(5, bool), r"a mask of shape \(5,\) for 6 actions"),
            (np.full(6, 0.5), "dtype float64 with other values than 0 and 1"),
            (np.array(["a"] * 6), "dtype <U1 with other values"),
            (None, r"a mask of shape \(\)"),
        ],
    )
    def test_a_bad_mask_is_named_with_environment_and_step(self, bad: Any, message: str) -> None:
        with pytest.raises(EnvFailure, match=rf"'Picky' \(index 0, episode 1, step 3\).*{message}"):
            play(stepper(lambda: BadMaskEnv(bad)), 5)
        report = check_env(lambda: BadMaskEnv(bad), steps=20)
        assert not report.passed and "step 3" in str(report)

    def test_a_step_without_the_mask_of_the_reset_is_named(self) -> None:
        class Forgetful(PickyEnv):
            def step(self, action: Any) -> Any:
                return (*super().step(action)[:4], {})

        with pytest.raises(EnvFailure, match=r"step 1\): there is no 'action_mask' in its info"):
            play(stepper(lambda: Forgetful("info")), 2)

    def test_an_empty_dimension_is_named(self) -> None:
        class Stuck(PickyMultiEnv):
            def _told(self) -> Any:
                return [np.ones(3), np.zeros(2), np.ones(4)]

        with pytest.raises(EnvFailure, match="no action is valid in dimension 1"):
            stepper(Stuck).reset(0)

    def test_what_the_method_raises_is_the_environments(self) -> None:
        class Broken(PickyEnv):
            def _told(self) -> Any:
                raise ZeroDivisionError("oh")

        with pytest.raises(EnvFailure, match=r"failed in action_masks\(\): ZeroDivisionError: oh"):
            stepper(Broken).reset(0)

    def test_masks_of_continuous_actions_are_refused(self) -> None:
        class Steering(CounterEnv):
            def __init__(self) -> None:
                super().__init__()
                self.action_space = spaces.Box(-1, 1, (2,), np.float32)

            def action_masks(self) -> Any:
                return np.ones(2)

        for algorithm in (PPO, SAC):
            with pytest.raises(EnvCreationError, match=r"Box actions: only a choice among.*\n.*action_masks=false"):
                algorithm(Steering)
            algorithm(Steering, env={"action_masks": False})

    def test_an_action_that_is_ruled_out_reaches_no_environment(self) -> None:
        made = stepper(lambda: PickyEnv("method"))
        made.reset(0)
        assert made.action_masks is not None
        wrong = np.argmin(made.action_masks, axis=1)
        with pytest.raises(UserError, match=r"index 0.*which its mask rules out"):
            made.step(wrong)

    def test_an_algorithm_that_knows_no_masks_refuses_them(self) -> None:
        space = spaces.Dict({"observation": spaces.Discrete(2), "action_mask": ActionMask((2,))})
        algorithm = DQN("CartPole-v1").algorithm
        algorithm.check_spaces(space, spaces.Discrete(2))
        ignorant = type("Ignorant", (type(algorithm),), {"action_masks": False})
        with pytest.raises(SpaceError, match=r"Ignorant knows no action masks"):
            ignorant.check_spaces(space, spaces.Discrete(2))

    def test_nothing_to_see_is_refused(self) -> None:
        class Blind(PickyEnv):
            def __init__(self) -> None:
                super().__init__("observation")
                self.observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(6)})

            def _observe(self) -> Any:
                return {"action_mask": self._told()}

        with pytest.raises(SpaceError, match="no entry beside 'action_mask'"):
            A2C(Blind)


class TestVectorObjects:
    def test_masks_in_dict_observations_are_used(self) -> None:
        envs = SyncVectorEnv([lambda: PickyEnv("observation")] * 2)
        agent = PPO(envs, num_steps=16, num_minibatches=1)
        agent.learn(64)
        assert mask_space(agent._spaces.observation) is not None
        assert agent.evaluate(2, env=SyncVectorEnv([lambda: PickyEnv("observation")] * 2)).episodes == 2

    def test_masks_elsewhere_are_refused(self) -> None:
        envs = SyncVectorEnv([lambda: PickyEnv("method")] * 2)
        with pytest.raises(EnvCreationError, match="only masks in Dict observations are known"):
            PPO(envs)
        assert mask_space(PPO(envs, env={"action_masks": False})._spaces.observation) is None
        with pytest.raises(EnvCreationError, match="has no entry 'action_mask'"):
            PPO(SyncVectorEnv([CounterEnv] * 2), env={"action_masks": True})

    def test_a_row_without_a_valid_action_is_named(self) -> None:
        envs = SyncVectorEnv([lambda: BadMaskEnv(np.zeros(6, np.int8), "observation")] * 2)
        with pytest.raises(EnvFailure, match=r"index 0, step 3 since the start.*no action is valid"):
            PPO(envs, num_steps=16, num_minibatches=1).learn(64)

    def test_a_mask_of_another_length_is_refused(self) -> None:
        class Long(PickyEnv):
            def __init__(self) -> None:
                super().__init__("observation")
                self.action_space = spaces.Discrete(5)

        with pytest.raises(EnvCreationError, match=r"has the shape \(6,\), and there are 5 choices"):
            PPO(SyncVectorEnv([Long] * 2))


class TestReport:
    @pytest.mark.parametrize("form", FORMS)
    def test_check_env_says_where_masks_are_and_takes_valid_actions(self, form: str) -> None:
        report = check_env(lambda: PickyMultiEnv(form), steps=200)
        assert report.passed and form.partition("_")[0] in report.facts["action_masks"]
        assert report.facts["resume_grade"] == "exact"

    def test_without_masks_it_says_nothing_of_them(self) -> None:
        assert "action_masks" not in check_env("CartPole-v1", steps=50).facts


class TestActionMask:
    def test_a_choice_is_uniform_among_the_valid_ones(self) -> None:
        mask = ActionMask((4, 3))
        masks = np.tile(np.array([[1, 0, 1, 1, 0, 1, 1]], np.int8), (6000, 1))
        drawn = mask.pick(masks, np.random.default_rng(0).random((6000, 2)))
        assert np.bincount(drawn[:, 0], minlength=4)[1] == 0 and np.bincount(drawn[:, 1], minlength=3)[0] == 0
        np.testing.assert_allclose(np.bincount(drawn[:, 0], minlength=4) / 6000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.03)
        np.testing.assert_allclose(np.bincount(drawn[:, 1], minlength=3) / 6000, [0, 0.5, 0.5], atol=0.03)
        assert mask.pick(masks[:1], np.array([[0.9999999999, 0.0]])).tolist() == [[3, 1]]

    def test_actions_are_judged(self) -> None:
        mask, masks = ActionMask((2, 2)), np.array([[1, 0, 1, 1], [1, 1, 0, 1]], np.int8)
        assert mask.allowed(masks, np.array([[0, 1], [1, 0]])).tolist() == [True, False]
        assert mask.without_choice(np.array([[0, 0, 1, 0]])).tolist() == [[True, False]]

    def test_forms_of_a_mask(self) -> None:
        single, double = ActionMask((3,)), ActionMask((2, 2))
        assert single.flat([True, False, True]).tolist() == [1, 0, 1]
        for form in ([1, 0, 0, 1], ([1, 0], np.array([False, True])), np.array([[1, 0], [0, 1]])):
            assert double.flat(form).tolist() == [1, 0, 0, 1]
        with pytest.raises(ValueError, match=r"lengths \(1, 3\) for dimensions of \(2, 2\)"):
            double.flat(([1], [1, 0, 1]))

    def test_it_is_saved_as_what_it_is(self) -> None:
        space = spaces.Dict({"action_mask": ActionMask((2, 3)), "observation": spaces.MultiBinary(5)})
        again = space_from_tree(space_to_tree(space))
        assert again == space and isinstance(again["action_mask"], ActionMask)  # type: ignore[index]
        assert ActionMask((2, 3)) != spaces.MultiBinary(5) != ActionMask((5,))
