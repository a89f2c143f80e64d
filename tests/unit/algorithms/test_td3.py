"""TD3 and DDPG: targets, turns and moves by hand on linear networks, a small problem solved, exact states."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.actor_critics import (
    SMALL,
    best_action,
    copy_of,
    learning_rates,
    make,
    make_batch,
    random_batch,
    set_bias,
    set_critics,
    weights_of,
)
from helpers.exploring import explored
from helpers.gradients import first_gradient, first_gradient_of
from helpers.tools import through_codec
from rl_training.algorithms.td3 import DDPGAlgorithm, DDPGConfig, TD3Algorithm, TD3Config, smoothed_actions, td3_target
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.utils.errors import NonFiniteError, SpaceError
from rl_training.utils.schedules import Schedule
from rl_training.utils.spaces import ActionAdapter
from rl_training.utils.trees import differing_paths

STILL: dict[str, Any] = {"learning_rate": 0.0, "actor_learning_rate": 0.0}


class TestPureFunctions:
    def test_target(self) -> None:
        targets = td3_target(
            rewards=torch.tensor([1.0, 2.0]),
            discounts=torch.tensor([0.5, 0.0]),
            next_q=torch.tensor([[4.0, 7.0], [3.0, 9.0]]),
        )
        assert targets.tolist() == [1 + 0.5 * 3, 2.0]

    def test_target_refuses_a_column(self) -> None:
        with pytest.raises(AssertionError):
            td3_target(torch.ones(3), torch.ones(3, 1), torch.ones(2, 3))

    def test_smoothed_actions(self) -> None:
        actions = torch.tensor([0.0, 0.0, 0.0, 0.9, -0.9, 0.9])
        noise = torch.tensor([0.25, 3.0, -3.0, 0.25, -3.0, -0.5])
        expected = torch.tensor([0.25, 0.5, -0.5, 1.0, -1.0, 0.4])
        torch.testing.assert_close(smoothed_actions(actions, noise, 0.5), expected)


class TestTarget:
    def algorithm(self, kind: type = TD3Algorithm, **settings: Any) -> Any:
        """The online actor acts 0.9, the target actor −0.5."""
        algorithm = make(kind, **{**STILL, **settings})
        set_bias(algorithm.policy.actor.network[0], [math.atanh(0.9)])
        set_bias(algorithm.target_actor.network[0], [math.atanh(-0.5)])
        set_critics(algorithm.policy.critics, [(0.0, 0.0, 1.0), (0.0, 0.0, 3.0)][: algorithm.config.num_critics])
        set_critics(algorithm.target_critics, [(1.0, 2.0, 0.0), (-1.0, 1.0, 2.0)][: algorithm.config.num_critics])
        return algorithm

    def test_without_noise(self) -> None:
        algorithm = self.algorithm(target_noise=0.0)
        before = algorithm.generator.get_state()
        metrics = algorithm.update(make_batch([(7.0, 0.5, 1.0, 3.0, 0.5), (7.0, 0.5, -2.0, -2.0, 0.5)]), 0.0)
        # Target critics at a = −½: 3 − 1 = 2 and −3 − ½ + 2 = −1½ -> 1 − ¾; −2 − 1 = −3 and 2 − ½ + 2 -> −2 − 1½.
        assert algorithm.priorities().tolist() == pytest.approx([(0.75 + 2.75) / 2, (4.5 + 6.5) / 2])
        loss = 0.5 * ((0.75**2 + 4.5**2) / 2 + (2.75**2 + 6.5**2) / 2)
        assert metrics["critic_loss"].item() == pytest.approx(loss)
        assert metrics["q"].item() == 2.0 and metrics["td_error"].item() == pytest.approx((1.75 + 5.5) / 2)
        assert torch.equal(before, algorithm.generator.get_state()), "nothing was drawn"

    def test_with_noise(self) -> None:
        algorithm = self.algorithm(target_noise=0.3, target_noise_clip=0.4)
        set_critics(algorithm.target_critics, [(0.0, 1.0, 0.0), (0.0, 1.0, 5.0)])
        noise = 0.3 * torch.randn(50, 1, generator=copy_of(algorithm.generator)).flatten()
        algorithm.update(make_batch([(0.0, 0.0, 0.0, 0.0, 1.0)] * 50), 0.0)
        found = 2 - algorithm.priorities()  # (|1 − y| + |3 − y|) / 2 = 2 − y below 1
        torch.testing.assert_close(found, -0.5 + noise.clamp(-0.4, 0.4), atol=1e-6, rtol=0)
        assert (noise.abs() > 0.4).any() and (noise.abs() < 0.4).any()

    def test_the_noise_is_limited_and_so_is_the_action(self) -> None:
        algorithm = self.algorithm(target_noise=1000.0, target_noise_clip=0.75)
        set_critics(algorithm.target_critics, [(0.0, 1.0, 0.0), (0.0, 1.0, 5.0)])
        algorithm.update(make_batch([(0.0, 0.0, 0.0, 0.0, 1.0)] * 100), 0.0)
        actions = {round(2 - error, 4) for error in algorithm.priorities().tolist()}
        assert actions == {-1.0, 0.25}, "−½ ∓ ¾, inside the range"

    def test_every_dimension_has_noise_of_its_own(self) -> None:
        algorithm = make(TD3Algorithm, actions=2, target_noise=0.2, **STILL)
        set_bias(algorithm.target_actor.network[0], [0.0, 0.0])
        for critics, weights in ((algorithm.policy.critics, [0.0] * 3), (algorithm.target_critics, [0.0, 1.0, -1.0])):
            with torch.no_grad():
                critics.output.weight.copy_(torch.tensor(weights)[:, None].expand(2, 3, 1))
                critics.output.bias.zero_()
        noise = 0.2 * torch.randn(32, 2, generator=copy_of(algorithm.generator)).clamp(-2.5, 2.5)
        batch = random_batch(actions=2)
        algorithm.update(batch, 0.0)
        expected = (batch.rewards + batch.discounts * (noise[:, 0] - noise[:, 1])).abs()
        torch.testing.assert_close(algorithm.priorities(), expected, atol=1e-6, rtol=1e-5)

    def test_an_end_counts_and_a_time_limit_does_not(self) -> None:
        algorithm = self.algorithm()
        set_critics(algorithm.target_critics, [(0.0, 0.0, 10.0), (0.0, 0.0, 20.0)])
        buffer = ReplayBuffer(4, 1, (1,), (1,), gamma=0.9)
        for terminated, truncated in ((True, False), (False, True), (False, False)):
            buffer.add(
                obs=torch.zeros(1, 1),
                actions=torch.zeros(1, 1),
                rewards=torch.tensor([1.0]),
                next_obs=torch.zeros(1, 1),
                terminated=torch.tensor([terminated]),
                truncated=torch.tensor([truncated]),
                valid=torch.tensor([True]),
            )
        batch = buffer.sample(64)
        algorithm.update(batch, 0.0)
        # 1 at the end, 1 + 0.9 · 10 elsewhere; the values are 1 and 3.
        found = {(row, round(error, 4)) for row, error in zip(batch.indices.tolist(), algorithm.priorities().tolist())}
        assert found == {(0, 1.0), (1, 8.0), (2, 8.0)}

    def test_weights_reach_the_loss_and_not_the_priorities(self) -> None:
        algorithm = self.algorithm()
        rows = [(0.0, 0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 6.0, 0.0, 0.0)]
        metrics = algorithm.update(make_batch(rows, [1.0, 0.5]), 0.0)
        # Errors 0 and 2 in the first transition, −5 and −3 in the second.
        assert metrics["critic_loss"].item() == 0.5 * ((0 + 0.5 * 25) / 2 + (4 + 0.5 * 9) / 2)
        assert algorithm.priorities().tolist() == [1.0, 4.0]

    def test_ddpg_has_one_critic_and_no_noise(self) -> None:
        algorithm = self.algorithm(DDPGAlgorithm)
        before = algorithm.generator.get_state()
        algorithm.update(make_batch([(7.0, 0.5, 1.0, 3.0, 0.5)]), 0.0)
        assert algorithm.priorities().item() == pytest.approx(abs(1 - (1 + 0.5 * (3 - 1))))
        assert torch.equal(before, algorithm.generator.get_state())


class TestActor:
    def algorithm(self) -> Any:
        algorithm = make(TD3Algorithm, learning_rate=0.0, actor_learning_rate=0.1, policy_delay=1)
        set_bias(algorithm.policy.actor.network[0], [0.5])
        set_critics(algorithm.policy.critics, [(1.0, 2.0, 0.25), (0.0, -50.0, -100.0)])
        return algorithm

    def test_it_climbs_the_first_critic(self) -> None:
        algorithm, a = self.algorithm(), math.tanh(0.5)
        metrics = algorithm.update(make_batch([(3.0, 0.0, 0.0, 0.0, 0.9), (-1.0, 0.0, 0.0, 0.0, 0.9)]), 0.0)
        assert metrics["actor_loss"].item() == pytest.approx(-((3 - 1) / 2 + 2 * a + 0.25), rel=1e-5)
        bias = algorithm.policy.actor.network[0].bias
        assert first_gradient_of(algorithm.actor_optimizer, bias).item() == pytest.approx(-2 * (1 - a * a), rel=1e-5)
        assert bias.item() == pytest.approx(0.5 + 0.1, abs=1e-5), "a step of Adam"

    def test_it_moves_no_critic(self) -> None:
        algorithm = make(TD3Algorithm, SMALL, learning_rate=0.0, actor_learning_rate=0.1, policy_delay=1, tau=1.0)
        before = weights_of(algorithm.policy.critics), weights_of(algorithm.target_critics)
        actor = weights_of(algorithm.policy.actor)
        algorithm.update(random_batch(), 0.0)
        after = weights_of(algorithm.policy.critics), weights_of(algorithm.target_critics)
        assert differing_paths(before, after) == []
        assert differing_paths(actor, weights_of(algorithm.policy.actor)) != []

    def test_it_leaves_the_gradients_of_the_critics_alone(self) -> None:
        algorithm, twin = (make(TD3Algorithm, SMALL, policy_delay=1) for _ in range(2))
        batch = random_batch()
        twin._critic_loss(batch, twin.policy.encoder(batch.obs), twin.generator).loss.backward()
        for module in (twin.policy.actor, twin.target_actor, twin.target_critics):
            assert all(parameter.grad is None for parameter in module.parameters()), "nor the other way round"
        algorithm.update(batch, 0.0)
        alone = torch.cat([parameter.grad.flatten() for parameter in twin.policy.critics.parameters()])
        torch.testing.assert_close(first_gradient(algorithm.critic_optimizer), alone)


class TestTurns:
    @pytest.mark.parametrize("delay", [1, 2, 3])
    def test_actor_and_targets_move_together_every_so_many_updates(self, delay: int) -> None:
        algorithm, batch = make(TD3Algorithm, SMALL, policy_delay=delay, tau=0.25, learning_rate=0.01), random_batch()
        for step in range(1, 8):
            critics, actor = weights_of(algorithm.policy.critics), weights_of(algorithm.policy.actor)
            targets = weights_of(algorithm.target_actor), weights_of(algorithm.target_critics)
            metrics = algorithm.update(batch, 0.0)
            assert differing_paths(critics, weights_of(algorithm.policy.critics)) != []
            turn = step % delay == 0
            assert (differing_paths(actor, weights_of(algorithm.policy.actor)) != []) == turn
            assert ("actor_loss" in metrics) == (step >= delay), "told again until the next turn"
            pairs = (
                (algorithm.target_actor, algorithm.policy.actor),
                (algorithm.target_critics, algorithm.policy.critics),
            )
            for before, (target, online) in zip(targets, pairs):
                for name, value in target.state_dict().items():
                    expected = before[name] + 0.25 * (online.state_dict()[name] - before[name])
                    torch.testing.assert_close(value, expected if turn else before[name])

    def test_targets_start_as_copies(self) -> None:
        algorithm = make(TD3Algorithm, SMALL)
        assert differing_paths(weights_of(algorithm.policy.actor), weights_of(algorithm.target_actor)) == []
        assert differing_paths(weights_of(algorithm.policy.critics), weights_of(algorithm.target_critics)) == []
        targets = [*algorithm.target_actor.parameters(), *algorithm.target_critics.parameters()]
        assert not any(parameter.requires_grad for parameter in targets)


class TestExploration:
    obs = torch.zeros(4000, 1)

    def actions(self, algorithm: Any, action: float, progress: float = 0.0, seed: int = 0) -> torch.Tensor:
        set_bias(algorithm.policy.actor.network[0], [math.atanh(action)])
        return explored(algorithm.make_explorer(), self.obs, torch.Generator().manual_seed(seed), progress)

    def test_gaussian_noise_by_hand(self) -> None:
        algorithm = make(TD3Algorithm, exploration_noise=0.2)
        noise = torch.randn(4000, 1, generator=torch.Generator().manual_seed(3))
        for _ in range(2):  # independent from step to step
            torch.testing.assert_close(self.actions(algorithm, -0.25, seed=3), (-0.25 + 0.2 * noise).clamp(-1, 1))

    def test_its_scale_follows_the_schedule(self) -> None:
        algorithm = make(TD3Algorithm, exploration_noise=Schedule(0.2, 0.0, 0.5))
        spreads = [self.actions(algorithm, 0.0, progress).std().item() for progress in (0.0, 0.25, 0.5, 1.0)]
        assert spreads == pytest.approx([0.2, 0.1, 0.0, 0.0], abs=0.005)

    def test_actions_stay_inside_the_range(self) -> None:
        actions = self.actions(make(TD3Algorithm, exploration_noise=0.5), 0.9)
        assert actions.max() == 1.0 and actions.min() >= -1.0 and (actions == 1).float().mean() > 0.3

    def test_drifting_noise_and_episode_ends(self) -> None:
        algorithm = make(TD3Algorithm, action_noise="ornstein_uhlenbeck", noise_theta=0.5, exploration_noise=0.1)
        set_bias(algorithm.policy.actor.network[0], [0.0])
        obs, generator, twin = torch.zeros(2, 1), torch.Generator(), torch.Generator()
        explorer = algorithm.make_explorer()
        e = [0.1 * torch.randn(2, 1, generator=twin) for _ in range(3)]
        torch.testing.assert_close(explored(explorer, obs, generator), e[0])
        explorer.episodes_ended(torch.tensor([False, False]))
        second = explored(explorer, obs, generator)
        torch.testing.assert_close(second, 0.5 * e[0] + e[1])
        explorer.episodes_ended(torch.tensor([True, False]))
        third = explored(explorer, obs, generator)
        torch.testing.assert_close(third, torch.stack([e[2][0], 0.5 * second[1] + e[2][1]]))

    def test_evaluation_has_no_noise(self) -> None:
        algorithm = make(TD3Algorithm, exploration_noise=0.5)
        set_bias(algorithm.policy.actor.network[0], [0.5])
        actions, _ = algorithm.policy.act(self.obs, generator=torch.Generator(), deterministic=True)
        torch.testing.assert_close(actions, torch.full((4000, 1), math.tanh(0.5)))

    def test_the_stream_of_the_updates_is_left_alone(self) -> None:
        algorithm = make(TD3Algorithm)
        before = algorithm.generator.get_state()
        self.actions(algorithm, 0.0)
        assert torch.equal(before, algorithm.generator.get_state())


def test_learning_rates_follow_their_schedules() -> None:
    both = make(TD3Algorithm, learning_rate=Schedule(0.1, 0.0))
    assert both.update(random_batch(), 0.25)["learning_rate"].item() == pytest.approx(0.075)
    assert learning_rates(both) == pytest.approx({"critics": 0.075, "actor": 0.075})
    apart = make(TD3Algorithm, learning_rate=Schedule(0.1, 0.0), actor_learning_rate=Schedule(0.0, 0.02, 0.5))
    apart.update(random_batch(), 0.25)
    assert learning_rates(apart) == pytest.approx({"critics": 0.075, "actor": 0.01})


SETTINGS: dict[str, tuple[type, dict[str, Any]]] = {
    "td3": (TD3Algorithm, {}),
    "delayed": (TD3Algorithm, {"policy_delay": 3}),
    "drifting": (TD3Algorithm, {"action_noise": "ornstein_uhlenbeck"}),
    "dropout": (TD3Algorithm, {"dropout": 0.1, "layer_norm": True}),
    "schedules": (TD3Algorithm, {"learning_rate": Schedule(1e-2, 0.0), "exploration_noise": Schedule(0.5, 0.0)}),
    "ddpg": (DDPGAlgorithm, {}),
}


@pytest.mark.parametrize("updates", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_state_comes_back_exactly(name: str, updates: int) -> None:
    kind, settings = SETTINGS[name]
    batch = random_batch()
    first, second = (make(kind, SMALL, seed=seed, **settings) for seed in (0, 1))
    explorers = [algorithm.make_explorer() for algorithm in (first, second)]
    for step in range(updates):
        explored(explorers[0], batch.obs)
        first.update(batch, 0.1 * step)
    parts = {"policy": first.policy, "algorithm": first, "explorer": explorers[0]}
    state = through_codec({name: part.state_dict() for name, part in parts.items()})
    second.policy.load_state_dict(state["policy"])
    second.load_state_dict(state["algorithm"])
    explorers[1].load_state_dict(state["explorer"])
    assert differing_paths(weights_of(first.policy.critics), weights_of(first.target_critics)) != []
    results = []
    for algorithm, explorer in zip((first, second), explorers):
        torch.manual_seed(0)  # dropout draws from torch's own stream, which belongs to the run
        actions = explored(explorer, batch.obs, progress=0.5)
        metrics = [algorithm.update(batch, 0.5) for _ in range(4)]
        states = weights_of(algorithm.policy), algorithm.state_dict(), explorer.state_dict()
        results.append((actions, metrics, algorithm.priorities(), states))
    assert differing_paths(*results) == []


def test_the_seed_decides_weights_and_draws() -> None:
    runs = []
    for seed in (0, 0, 1):
        algorithm = make(TD3Algorithm, SMALL, seed=seed)
        algorithm.update(random_batch(), 0.0)
        runs.append(weights_of(algorithm.policy))
    assert differing_paths(runs[0], runs[1]) == [] and differing_paths(runs[0], runs[2]) != []


@pytest.mark.parametrize(("shape", "obs_shape"), [((2, 3), (4,)), ((), (2, 2)), ((1, 1, 2), (3, 1))])
def test_actions_and_observations_of_any_box_shape(shape: tuple[int, ...], obs_shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    box = spaces.Box(-3.0, 1.0, shape, np.float32)
    algorithm = TD3Algorithm(spaces.Box(-1, 1, obs_shape, np.float32), box, TD3Config(policy_delay=1), SMALL)
    before = weights_of(algorithm.policy.actor)
    batch = random_batch(obs=obs_shape, actions=size)
    algorithm.update(batch, 0.0)
    for optimizer in algorithm.optimizers().values():
        optimizer.raise_if_nonfinite()
    assert differing_paths(before, weights_of(algorithm.policy.actor)) != []
    actions = explored(algorithm.make_explorer(), batch.obs)
    assert actions.shape == (32, size) and actions.abs().max() <= 1
    assert all(box.contains(np.asarray(action)) for action in ActionAdapter(box).to_env(actions.numpy()))


def test_a_loss_that_is_not_finite_changes_no_weight() -> None:
    algorithm = make(TD3Algorithm, SMALL, learning_rate=0.1)
    before = weights_of(algorithm.policy.critics)
    for _ in range(2):
        algorithm.update(make_batch([(0.0, 0.0, math.nan, 0.0, 0.5)]), 0.0)
    assert differing_paths(before, weights_of(algorithm.policy.critics)) == []
    assert differing_paths(before, weights_of(algorithm.target_critics)) == []
    with pytest.raises(NonFiniteError, match="critic_loss"):
        algorithm.critic_optimizer.raise_if_nonfinite()


@pytest.mark.parametrize("kind", [TD3Algorithm, DDPGAlgorithm])
def test_a_small_problem_is_solved(kind: type) -> None:
    assert best_action(kind, 0) != pytest.approx(0.5, abs=0.2), "not from the start"
    assert best_action(kind, 250, actor_learning_rate=2e-3) == pytest.approx(0.5, abs=0.1)


def test_ddpg_is_td3_with_other_defaults() -> None:
    td3, ddpg = asdict(TD3Config()), asdict(DDPGConfig())
    changed = {name: value for name, value in ddpg.items() if value != td3[name]}
    assert changed == {"learning_rate": 1e-3, "num_critics": 1, "policy_delay": 1, "target_noise": 0.0}


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match="TD3 does not support Discrete action spaces"):
        TD3Algorithm(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2), TD3Config())
