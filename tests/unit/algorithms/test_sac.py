"""SAC: targets, losses and moves of every part by hand on linear networks, a small problem solved, exact states."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.actor_critics import (
    LINEAR,
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
from rl_training.algorithms.off_policy_actor_critic import regression_loss
from rl_training.algorithms.sac import SACAlgorithm, SACConfig, soft_target
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.execution.optimizers import FlatParameters, slow_copies
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.errors import ConfigError, NonFiniteError, SpaceError
from rl_training.utils.schedules import Schedule
from rl_training.utils.spaces import ActionAdapter
from rl_training.utils.trees import differing_paths

STILL: dict[str, Any] = {"learning_rate": 0.0, "actor_learning_rate": 0.0}


def log_prob(u: float, log_std: float = 0.0) -> float:
    """log π of tanh(u) for a mean of 0, in double precision."""
    density = -0.5 * (u * math.exp(-log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    return density - math.log(1 - math.tanh(u) ** 2)


class TestPureFunctions:
    def test_soft_target(self) -> None:
        targets = soft_target(
            rewards=torch.tensor([1.0, 2.0]),
            discounts=torch.tensor([0.5, 0.0]),
            next_q=torch.tensor([[4.0, 7.0], [3.0, 9.0], [8.0, 8.0]]),
            next_log_probs=torch.tensor([-2.0, 5.0]),
            alpha=torch.tensor(0.25),
        )
        assert targets.tolist() == [1 + 0.5 * (3 + 0.25 * 2), 2.0]

    def test_soft_target_refuses_a_column(self) -> None:
        row, column = torch.ones(3), torch.ones(3, 1)
        with pytest.raises(AssertionError):
            soft_target(row, row, torch.ones(2, 3), column, torch.tensor(1.0))
        with pytest.raises(AssertionError):
            soft_target(row, column, torch.ones(2, 3), row, torch.tensor(1.0))

    def test_regression_loss(self) -> None:
        q = torch.tensor([[1.0, 2.0], [4.0, 0.0]], requires_grad=True)
        critic = regression_loss(q, torch.tensor([2.0, 2.0]), torch.tensor([1.0, 0.5]))
        # Errors −1, 0 and 2, −2; ½ ((1 · 1 + ½ · 0) / 2 + (1 · 4 + ½ · 4) / 2).
        assert critic.loss.item() == 0.5 * (0.5 + 3.0)
        assert critic.errors.tolist() == [1.5, 1.0], "not weighted, averaged over the critics"
        critic.loss.backward()
        assert q.grad is not None and q.grad.tolist() == [[-0.5, 0.0], [1.0, -0.5]]
        assert not critic.errors.requires_grad

    def test_a_slow_copy_follows_by_its_vector(self) -> None:
        online = torch.nn.Linear(1, 1)
        set_bias(online, [1.0])
        (copied,), weights = slow_copies(online)
        followed = FlatParameters(online.parameters())
        set_bias(online, [5.0])
        weights.follow(followed, 0.25)
        assert copied.bias.item() == 2.0 and online.bias.item() == 5.0
        assert not any(parameter.requires_grad for parameter in copied.parameters())


class TestTarget:
    online = [(0.0, 0.0, 1.0), (0.0, 0.0, 3.0)]
    target = [(1.0, 2.0, 0.0), (-1.0, 1.0, 2.0)]

    def algorithm(self, **settings: Any) -> Any:
        """Standard normal before the tanh, whatever the state."""
        algorithm = make(SACAlgorithm, **{**STILL, "ent_coef": 0.5, **settings})
        set_bias(algorithm.policy.actor.head, [0.0, 0.0])
        set_critics(algorithm.policy.critics, self.online)
        set_critics(algorithm.target_critics, self.target)
        return algorithm

    def test_by_hand(self) -> None:
        algorithm = self.algorithm()
        noise = torch.randn(2, 1, generator=copy_of(algorithm.generator)).flatten().tolist()
        metrics = algorithm.update(make_batch([(7.0, 0.5, 1.0, 3.0, 0.9), (7.0, 0.5, -2.0, -2.0, 0.9)]), 0.0)
        errors, losses = [], []
        for reward, state, u in zip((1.0, -2.0), (3.0, -2.0), noise):
            a = math.tanh(u)
            y = reward + 0.9 * (min(state + 2 * a, -state + a + 2) - 0.5 * log_prob(u))
            errors.append((abs(1 - y) + abs(3 - y)) / 2)
            losses.append(0.5 * ((1 - y) ** 2 + (3 - y) ** 2))
        assert algorithm.priorities().tolist() == pytest.approx(errors, rel=1e-5)
        assert metrics["td_error"].item() == pytest.approx(sum(errors) / 2, rel=1e-5)
        assert metrics["critic_loss"].item() == pytest.approx(sum(losses) / 2, rel=1e-5)
        assert metrics["q"].item() == 2.0

    def test_the_log_probability_of_a_whole_action(self) -> None:
        algorithm = make(SACAlgorithm, actions=2, ent_coef=1.0, **STILL)
        set_bias(algorithm.policy.actor.head, [0.0, 0.0, -1.0, 0.5])
        for critics in (algorithm.policy.critics, algorithm.target_critics):
            with torch.no_grad():
                critics.output.weight.zero_()
                critics.output.bias.zero_()
        noise = torch.randn(1, 2, generator=copy_of(algorithm.generator))[0].tolist()
        algorithm.update(random_batch(1, actions=2), 0.0)
        batch = random_batch(1, actions=2)
        total = log_prob(math.exp(-1.0) * noise[0], -1.0) + log_prob(math.exp(0.5) * noise[1], 0.5)
        expected = abs(batch.rewards.item() - batch.discounts.item() * total)
        assert batch.discounts.item() > 0 and algorithm.priorities().item() == pytest.approx(expected, rel=1e-5)

    def test_an_end_counts_and_a_time_limit_does_not(self) -> None:
        algorithm = self.algorithm(ent_coef=0.0)
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
        rows = [(0.0, 0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 6.0, 0.0, 0.0)]
        algorithm = self.algorithm()
        metrics = algorithm.update(make_batch(rows, [1.0, 0.5]), 0.0)
        # Errors 0 and 2 in the first transition, −5 and −3 in the second.
        assert metrics["critic_loss"].item() == 0.5 * ((0 + 0.5 * 25) / 2 + (4 + 0.5 * 9) / 2)
        assert algorithm.priorities().tolist() == [1.0, 4.0]


class TestSubsets:
    def test_the_smallest_of_two_drawn_anew_for_each_target(self) -> None:
        algorithm = make(SACAlgorithm, num_critics=5, critic_subset=2, ent_coef=0.0, **STILL)
        set_critics(algorithm.policy.critics, [(0.0, 0.0, 0.0)] * 5)
        set_critics(algorithm.target_critics, [(0.0, 0.0, float(value)) for value in (3, 1, 4, 0, 2)])
        batch = make_batch([(0.0, 0.0, 1.0, 0.0, 1.0)])
        seen: Counter[float] = Counter()
        for _ in range(400):
            algorithm.update(batch, 0.0)
            seen[round(algorithm.priorities().item() - 1, 3)] += 1
            set_critics(algorithm.target_critics, [(0.0, 0.0, float(value)) for value in (3, 1, 4, 0, 2)])
        # Of the ten pairs the smaller one is 0, 1, 2, 3 in 4, 3, 2, 1; never 4, as if one were drawn twice.
        assert set(seen) == {0.0, 1.0, 2.0, 3.0}
        assert [round(seen[float(value)] / 40) for value in range(4)] == pytest.approx([4, 3, 2, 1], abs=1)

    def test_draws_are_without_repetition_and_from_the_own_stream(self) -> None:
        algorithm = make(SACAlgorithm, num_critics=4, critic_subset=3, seed=1)
        draws = [tuple(sorted(algorithm._subset(algorithm.generator).tolist())) for _ in range(200)]
        assert set(draws) == {(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)}
        again = make(SACAlgorithm, num_critics=4, critic_subset=3, seed=1)
        assert draws == [tuple(sorted(again._subset(again.generator).tolist())) for _ in range(200)]

    @pytest.mark.parametrize("size", [None, 3])
    def test_all_of_them_need_no_draw(self, size: int | None) -> None:
        algorithm = make(SACAlgorithm, num_critics=3, critic_subset=size)
        before = algorithm.generator.get_state()
        assert algorithm._subset(algorithm.generator) == slice(None) and torch.equal(
            before, algorithm.generator.get_state()
        )

    def test_more_than_there_are(self) -> None:
        with pytest.raises(ConfigError, match="critic_subset is 3, more than num_critics, 2"):
            make(SACAlgorithm, num_critics=2, critic_subset=3)


class TestActor:
    critics = [(0.0, 1.0, 0.0), (0.0, -2.0, 0.5)]
    """min(a, ½ − 2a): the best action is 1/6; the mean, (½ − a) / 2, is best at −1."""

    def algorithm(self, **settings: Any) -> Any:
        algorithm = make(
            SACAlgorithm, **{"learning_rate": 0.0, "actor_learning_rate": 0.1, "ent_coef": 0.25, **settings}
        )
        set_bias(algorithm.policy.actor.head, [0.3, -1.0])
        set_critics(algorithm.policy.critics, self.critics)
        return algorithm

    @pytest.mark.parametrize("value", ["min", "mean"])
    def test_loss_by_hand(self, value: str) -> None:
        algorithm = self.algorithm(actor_value=value)
        generator = copy_of(algorithm.generator)
        torch.randn(2, 1, generator=generator)  # the target's
        noise = torch.randn(2, 1, generator=generator).flatten().tolist()
        batch = make_batch([(0.0, 0.0, 0.0, 0.0, 0.9)] * 2)
        metrics = algorithm.update(batch, 0.0)
        losses, log_probs = [], []
        for z in noise:
            u = 0.3 + math.exp(-1.0) * z
            a = math.tanh(u)
            q = (a, 0.5 - 2 * a)
            log_probs.append(-0.5 * z * z + 1.0 - 0.5 * math.log(2 * math.pi) - math.log(1 - a * a))
            losses.append(0.25 * log_probs[-1] - (min(q) if value == "min" else sum(q) / 2))
        assert metrics["actor_loss"].item() == pytest.approx(sum(losses) / 2, rel=1e-5)
        assert metrics["entropy"].item() == pytest.approx(-sum(log_probs) / 2, rel=1e-5)
        assert metrics["alpha"].item() == pytest.approx(0.25)

    def test_its_gradient_by_hand(self) -> None:
        algorithm = self.algorithm(ent_coef=0.25)
        set_critics(algorithm.policy.critics, [(0.0, 3.0, 0.0), (0.0, 3.0, 1.0)])
        generator = copy_of(algorithm.generator)
        torch.randn(1, 1, generator=generator)
        z = torch.randn(1, 1, generator=generator).item()
        algorithm.update(make_batch([(0.0, 0.0, 0.0, 0.0, 0.9)]), 0.0)
        std = math.exp(-1.0)
        a = math.tanh(0.3 + std * z)
        # u moves by 1 with the mean and by std · z with the log std; log π = … − log std − log(1 − a²), so that
        # ∂ log π/∂u = 2a; the value climbs by 3 (1 − a²).
        slope = 0.25 * 2 * a - 3 * (1 - a * a)
        expected = [slope, slope * std * z - 0.25]
        gradient = first_gradient_of(algorithm.actor_optimizer, algorithm.policy.actor.head.bias)
        assert gradient.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
        # The first step of Adam has the length of the learning rate.
        moved = algorithm.policy.actor.head.bias.detach() - torch.tensor([0.3, -1.0])
        assert moved.tolist() == pytest.approx([-math.copysign(0.1, slope) for slope in expected], abs=1e-5)

    def test_it_moves_no_critic(self) -> None:
        algorithm, batch = (
            make(SACAlgorithm, SMALL, learning_rate=0.0, actor_learning_rate=0.1, tau=1.0),
            random_batch(),
        )
        before = weights_of(algorithm.policy.critics), weights_of(algorithm.target_critics)
        actor = weights_of(algorithm.policy.actor)
        algorithm.update(batch, 0.0)
        assert (
            differing_paths(before, (weights_of(algorithm.policy.critics), weights_of(algorithm.target_critics))) == []
        )
        assert differing_paths(actor, weights_of(algorithm.policy.actor)) != []

    def test_it_leaves_the_gradients_of_the_critics_alone(self) -> None:
        algorithm, batch = make(SACAlgorithm, SMALL, ent_coef=0.1), random_batch()
        twin = make(SACAlgorithm, SMALL, ent_coef=0.1)
        twin._critic_loss(batch, twin.policy.encoder(batch.obs), twin.generator).loss.backward()
        assert all(parameter.grad is None for parameter in twin.policy.actor.parameters()), "nor the other way round"
        assert all(parameter.grad is None for parameter in twin.target_critics.parameters())
        algorithm.update(batch, 0.0)
        alone = torch.cat([parameter.grad.flatten() for parameter in twin.policy.critics.parameters()])
        torch.testing.assert_close(first_gradient(algorithm.critic_optimizer), alone)


class TestTemperature:
    def test_a_learned_one_follows_the_actor_at_its_own_rate(self) -> None:
        rates = {"actor_learning_rate": 0.05, "learning_rate": 0.0, "temperature_learning_rate": 0.1}
        algorithm = make(SACAlgorithm, initial_ent_coef=0.5, target_entropy=-100.0, **rates)
        metrics = algorithm.update(random_batch(), 0.0)
        assert metrics["alpha"].item() == pytest.approx(0.5), "before the update"
        assert algorithm.temperature.alpha.item() == pytest.approx(0.5 * math.exp(-0.1), rel=1e-4)
        assert set(algorithm.optimizers()) == {"critics", "actor", "temperature"}

    def test_a_fixed_one_stays(self) -> None:
        algorithm = make(SACAlgorithm, ent_coef=0.2, learning_rate=0.1)
        for _ in range(3):
            algorithm.update(random_batch(), 0.0)
        assert algorithm.temperature.alpha.item() == pytest.approx(0.2)
        assert set(algorithm.optimizers()) == {"critics", "actor"}

    def test_target_entropy(self) -> None:
        assert make(SACAlgorithm, actions=3).temperature.target_entropy == -3.0
        assert make(SACAlgorithm, actions=3, target_entropy=-0.5).temperature.target_entropy == -0.5


class TestTurns:
    def test_the_actor_moves_every_third_time_and_the_targets_always(self) -> None:
        algorithm, batch = make(SACAlgorithm, SMALL, policy_delay=3, tau=0.25, learning_rate=0.01), random_batch()
        for step in range(1, 8):
            actor, target = weights_of(algorithm.policy.actor), weights_of(algorithm.target_critics)
            alpha = algorithm.temperature.alpha
            metrics = algorithm.update(batch, 0.0)
            moved = differing_paths(actor, weights_of(algorithm.policy.actor)) != []
            assert moved == (step % 3 == 0) == (alpha != algorithm.temperature.alpha)
            assert ("actor_loss" in metrics) == (step >= 3), "told again until the next turn"
            for name, online in algorithm.policy.critics.state_dict().items():
                expected = target[name] + 0.25 * (online - target[name])
                torch.testing.assert_close(algorithm.target_critics.state_dict()[name], expected)

    def test_targets_start_as_copies(self) -> None:
        algorithm = make(SACAlgorithm, SMALL)
        assert differing_paths(weights_of(algorithm.policy.critics), weights_of(algorithm.target_critics)) == []
        assert not any(parameter.requires_grad for parameter in algorithm.target_critics.parameters())


def test_learning_rates_follow_their_schedules() -> None:
    both = make(SACAlgorithm, learning_rate=Schedule(0.1, 0.0))
    assert both.update(random_batch(), 0.25)["learning_rate"].item() == pytest.approx(0.075)
    assert learning_rates(both) == pytest.approx({"critics": 0.075, "actor": 0.075, "temperature": 0.075})
    apart = make(SACAlgorithm, learning_rate=Schedule(0.1, 0.0), actor_learning_rate=Schedule(0.0, 0.02, 0.5))
    assert apart.update(random_batch(), 0.25)["learning_rate"].item() == pytest.approx(0.075)
    assert learning_rates(apart) == pytest.approx({"critics": 0.075, "actor": 0.01, "temperature": 0.075})
    own = make(SACAlgorithm, temperature_learning_rate=0.3)
    own.update(random_batch(), 0.25)
    assert learning_rates(own) == pytest.approx({"critics": 3e-4, "actor": 3e-4, "temperature": 0.3})


def test_gradients_are_clipped_where_asked() -> None:
    free, clipped = make(SACAlgorithm, SMALL), make(SACAlgorithm, SMALL, max_grad_norm=0.01)
    norms = [algorithm.update(random_batch(), 0.0)["critic_grad_norm"].item() for algorithm in (free, clipped)]
    assert norms[0] == norms[1] > 0.01, "told before clipping"
    for algorithm, norm in ((free, norms[0]), (clipped, 0.01)):
        assert first_gradient(algorithm.critic_optimizer).norm().item() == pytest.approx(norm, rel=1e-3)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "delayed": {"policy_delay": 3},
    "fixed": {"ent_coef": 0.1},
    "subset": {"num_critics": 4, "critic_subset": 2},
    "dropout": {"dropout": 0.1, "layer_norm": True},
    "schedules": {"learning_rate": Schedule(1e-2, 0.0), "actor_learning_rate": Schedule(0.0, 1e-2)},
}


@pytest.mark.parametrize("updates", [1, 3, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_state_comes_back_exactly(name: str, updates: int) -> None:
    batch = random_batch()
    first, second = (make(SACAlgorithm, SMALL, seed=seed, **SETTINGS[name]) for seed in (0, 1))
    for step in range(updates):
        first.update(batch, 0.1 * step)
    state = through_codec({"policy": first.policy.state_dict(), "algorithm": first.state_dict()})
    second.policy.load_state_dict(state["policy"])
    second.load_state_dict(state["algorithm"])
    assert differing_paths(weights_of(first.policy.critics), weights_of(first.target_critics)) != []
    results = []
    for algorithm in (first, second):
        torch.manual_seed(0)  # dropout draws from torch's own stream, which belongs to the run
        metrics = [algorithm.update(batch, 0.5) for _ in range(4)]
        results.append((metrics, algorithm.priorities(), weights_of(algorithm.policy), algorithm.state_dict()))
    assert differing_paths(*results) == []


def test_the_seed_decides_weights_and_draws() -> None:
    runs = []
    for seed in (0, 0, 1):
        algorithm = make(SACAlgorithm, SMALL, seed=seed)
        algorithm.update(random_batch(), 0.0)
        runs.append(weights_of(algorithm.policy))
    assert differing_paths(runs[0], runs[1]) == [] and differing_paths(runs[0], runs[2]) != []


@pytest.mark.parametrize(("shape", "obs_shape"), [((2, 3), (4,)), ((), (2, 2)), ((1, 1, 2), (3, 1))])
def test_actions_and_observations_of_any_box_shape(shape: tuple[int, ...], obs_shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    box = spaces.Box(-3.0, 1.0, shape, np.float32)
    algorithm = SACAlgorithm(spaces.Box(-1, 1, obs_shape, np.float32), box, SACConfig(), SMALL)
    assert algorithm.temperature.target_entropy == -size
    before = weights_of(algorithm.policy.actor)
    batch = random_batch(obs=obs_shape, actions=size)
    algorithm.update(batch, 0.0)
    for optimizer in algorithm.optimizers().values():
        optimizer.raise_if_nonfinite()
    assert differing_paths(before, weights_of(algorithm.policy.actor)) != []
    actions = explored(algorithm.make_explorer(), batch.obs)
    assert actions.shape == (32, size) and actions.abs().max() <= 1
    assert all(box.contains(np.asarray(action)) for action in ActionAdapter(box).to_env(actions.numpy()))


def test_exploring_is_sampling_with_the_given_generator() -> None:
    algorithm, obs = make(SACAlgorithm, SMALL), random_batch().obs
    before, explorer = algorithm.generator.get_state(), algorithm.make_explorer()
    one, same, other = (explored(explorer, obs, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(before, algorithm.generator.get_state()), "the update's own stream is left alone"


def test_correlated_noise_follows_its_recursion_and_starts_anew_with_an_episode() -> None:
    algorithm, obs, rho = make(SACAlgorithm, SMALL, actions=2, noise_correlation=0.8), torch.randn(3, 1), 0.8
    generator, draws = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    gaussian, explorer = algorithm.policy.actor(algorithm.policy.encoder(obs)).gaussian, algorithm.make_explorer()

    def noise_of_a_step() -> torch.Tensor:
        """The noise that led to the actions."""
        actions = explored(explorer, obs, generator)
        return ((torch.atanh(actions) - gaussian.mean) / gaussian.log_std.exp()).detach()

    first, second, third, fourth = (0.6 * torch.randn(3, 2, generator=draws) for _ in range(4))  # 0.6 = √(1 − 0.8²)
    first = first / 0.6  # an episode begins with the variance that it keeps
    torch.testing.assert_close(noise_of_a_step(), first, atol=1e-4, rtol=1e-4)
    explorer.episodes_ended(torch.tensor([False, True, False]))
    noise = torch.where(torch.tensor([[False], [True], [False]]), second / 0.6, rho * first + second)
    torch.testing.assert_close(noise_of_a_step(), noise, atol=1e-4, rtol=1e-4)
    saved = through_codec(explorer.state_dict())
    noise = rho * noise + third
    torch.testing.assert_close(noise_of_a_step(), noise, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(noise_of_a_step(), rho * noise + fourth, atol=1e-4, rtol=1e-4)
    other = make(SACAlgorithm, SMALL, actions=2, noise_correlation=0.8).make_explorer()
    other.load_state_dict(saved)
    assert torch.equal(other.noise.state_dict()["state"], saved["noise"]["state"])


def test_normalised_observations_reach_actor_and_critics() -> None:
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    config = SACConfig(ent_coef=0.0, **STILL)
    algorithm = SACAlgorithm(space, spaces.Box(-1, 1, (1,), np.float32), config, LINEAR, normalize_observations=True)
    set_bias(algorithm.policy.actor.head, [0.0, -20.0])
    set_critics(algorithm.policy.critics, [(1.0, 0.0, 0.0)] * 2)
    set_critics(algorithm.target_critics, [(1.0, 0.0, 0.0)] * 2)
    data = torch.tensor([[4.0], [8.0]]).repeat(5000, 1)  # mean 6, standard deviation 2
    algorithm.update_statistics(data)
    algorithm.update(make_batch([(8.0, 0.0, 0.0, 10.0, 0.5)]), 0.0)
    # The value of a state is its normalised one: 1 here, and ½ · 2 there.
    assert algorithm.priorities().item() == pytest.approx(0.0, abs=1e-2)
    algorithm.update(make_batch([(8.0, 0.0, 0.0, 6.0, 0.5)]), 0.0)
    assert algorithm.priorities().item() == pytest.approx(1.0, abs=1e-2)


def test_a_loss_that_is_not_finite_changes_no_weight() -> None:
    algorithm = make(SACAlgorithm, SMALL, learning_rate=0.1)
    before = weights_of(algorithm.policy.critics)
    algorithm.update(make_batch([(0.0, 0.0, math.nan, 0.0, 0.5)]), 0.0)
    assert differing_paths(before, weights_of(algorithm.policy.critics)) == []
    assert differing_paths(before, weights_of(algorithm.target_critics)) == []
    with pytest.raises(NonFiniteError, match="critic_loss"):
        algorithm.critic_optimizer.raise_if_nonfinite()


@pytest.mark.parametrize("settings", [{"ent_coef": 0.01}, {"target_entropy": -3.0, "initial_ent_coef": 0.05}])
def test_a_small_problem_is_solved(settings: dict[str, Any]) -> None:
    assert best_action(SACAlgorithm, 0, **settings) != pytest.approx(0.5, abs=0.2), "not from the start"
    assert best_action(SACAlgorithm, 250, **settings) == pytest.approx(0.5, abs=0.1)


def test_much_entropy_is_worth_more_than_the_reward() -> None:
    algorithm = make(SACAlgorithm, SMALL, learning_rate=0.01, ent_coef=10.0)
    actions = torch.linspace(-1, 1, 64).tolist()
    batch = make_batch([(1.0, action, -((action - 0.5) ** 2), 1.0, 0.0) for action in actions])
    for _ in range(300):
        entropy = algorithm.update(batch, 0.0)["entropy"].item()
    assert entropy == pytest.approx(math.log(2.0), abs=0.1), "that of uniform actions in [-1, 1], the largest there is"


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match="SAC does not support Discrete action spaces"):
        SACAlgorithm(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2), SACConfig(), PolicyConfig())
