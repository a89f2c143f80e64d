"""The DQN family: what each switch changes, by hand on tables, and a small decision process solved by all of them."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from helpers.exploring import explored
from helpers.gradients import first_gradient
from rl_training.algorithms import dqn_variants as variants
from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.data.replay_buffer import ReplayBuffer, TransitionBatch
from rl_training.execution.executor import Execution
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.q_network import ACTING_TAUS, QNetwork
from rl_training.utils.errors import ConfigError, NonFiniteError, SpaceError
from rl_training.utils.schedules import Schedule, schedule_value
from rl_training.utils.trees import differing_paths

TABLE = PolicyConfig(hidden_sizes=())
"""Without hidden layers, two discrete observations make the network a table."""


def make(
    algorithm: type[DQNAlgorithm] = DQNAlgorithm,
    policy: PolicyConfig = TABLE,
    seed: int = 0,
    execution: Execution = "auto",
    **settings: Any,
) -> Any:
    config = algorithm.config_class(**{"target_update_interval": 1_000, "tau": 1.0} | settings)
    algorithm.check_config(config, 1)
    return algorithm(spaces.Discrete(2), spaces.Discrete(2), config, policy, seed=seed, execution=execution)


def make_batch(
    transitions: list[tuple[int, int, float, int, float]], weights: list[float] | None = None
) -> TransitionBatch:
    """From rows (state, action, reward, next state, discount)."""
    obs, actions, rewards, next_obs, discounts = (torch.tensor(column) for column in zip(*transitions))
    return TransitionBatch(
        obs=obs,
        actions=actions,
        rewards=rewards,
        next_obs=next_obs,
        discounts=discounts,
        weights=torch.ones(len(obs)) if weights is None else torch.tensor(weights),
        indices=np.arange(len(obs)),
    )


def set_table(network: QNetwork, rows: list[list[float]]) -> None:
    """Makes rows[s] the outputs in state s."""
    output: Any = network.head.advantage.output
    with torch.no_grad():
        output.weight.copy_(torch.tensor(rows).T)
        output.bias.zero_()


def weights_of(network: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


class TestTargets:
    batch = make_batch([(0, 0, 1.0, 1, 0.5), (1, 1, 2.0, 0, 0.0)])
    online = [[1.0, 5.0], [3.0, 4.0]]
    target = [[7.0, 0.0], [10.0, 2.0]]

    def tables(self, algorithm: Any) -> Any:
        set_table(algorithm.policy, self.online)
        set_table(algorithm.target, self.target)
        return algorithm

    def test_plain(self) -> None:
        algorithm = self.tables(make())
        metrics = algorithm.update(self.batch, 0.0)
        # Targets 1 + ½ · 10 = 6 and, terminal, 2; values 1 and 4.
        assert algorithm.priorities().tolist() == [5.0, 2.0]
        assert metrics["td_error"].item() == 3.5 and metrics["q"].item() == 2.5
        assert metrics["loss"].item() == (4.5 + 1.5) / 2

    def test_double(self) -> None:
        algorithm = self.tables(make(double=True))
        algorithm.update(self.batch, 0.0)
        # In state 1 the online network prefers action 1, which the target network puts at 2: 1 + ½ · 2 = 2.
        assert algorithm.priorities().tolist() == [1.0, 2.0]

    def test_munchausen(self) -> None:
        algorithm = self.tables(make(munchausen=True, munchausen_tau=0.03, munchausen_alpha=0.9))
        algorithm.update(self.batch, 0.0)
        # Target network: action 0 in state 0 is greedy, bonus 0; action 1 in state 1 lies 8 behind, bonus −0.9.
        torch.testing.assert_close(algorithm.priorities(), torch.tensor([5.0, 4 - (2 - 0.9)]))
        warm = self.tables(make(munchausen=True, munchausen_tau=2.0, munchausen_alpha=0.5, munchausen_clip=-3.0))
        warm.update(self.batch, 0.0)
        # At τ = 2: τ log π(0|0) = −2 log(1 + e^−3.5), τ log π(1|1) = −8 − …, clipped to −3; soft value 10 + 2 log(1 + e^−4).
        first = 1 - math.log1p(math.exp(-3.5)) + 0.5 * (10 + 2 * math.log1p(math.exp(-4)))
        torch.testing.assert_close(warm.priorities(), torch.tensor([first - 1, 4 - 0.5]))

    def test_discounts_of_the_batch_are_used_and_gamma_is_not(self) -> None:
        results = []
        for gamma in (0.1, 0.9):
            for munchausen in (False, True):
                algorithm = self.tables(make(gamma=gamma, munchausen=munchausen))
                algorithm.update(make_batch([(0, 0, 3.0, 1, 0.125)]), 0.0)  # a 3-step transition at γ = ½
                results.append(algorithm.priorities().item())
        assert results == pytest.approx([3 + 10 / 8 - 1] * 4)

    def test_weights_multiply_the_loss_of_each_transition(self) -> None:
        algorithm = self.tables(make())
        metrics = algorithm.update(make_batch([(0, 0, 1.0, 1, 0.5), (1, 1, 2.0, 0, 0.0)], [1.0, 0.25]), 0.0)
        assert metrics["loss"].item() == (4.5 + 0.25 * 1.5) / 2
        assert algorithm.priorities().tolist() == [5.0, 2.0], "priorities are of the unweighted errors"

    def test_a_weight_of_zero_learns_nothing(self) -> None:
        algorithm = self.tables(make(learning_rate=0.1))
        algorithm.update(make_batch([(0, 0, 1.0, 1, 0.5), (1, 1, 2.0, 0, 0.0)], [1.0, 0.0]), 0.0)
        learned = algorithm.policy.head.advantage.output.weight.detach() - torch.tensor(self.online).T
        torch.testing.assert_close(learned, torch.tensor([[0.1, 0.0], [0.0, 0.0]]))

    @pytest.mark.parametrize("kind", ["terminated", "truncated"])
    def test_truncated_transitions_bootstrap_and_terminated_ones_do_not(self, kind: str) -> None:
        buffer = ReplayBuffer(10, 1, (), (), obs_dtype=torch.int64, action_dtype=torch.int64, gamma=0.5)
        no = torch.tensor([False])
        ends = {"terminated": no, "truncated": no} | {kind: torch.tensor([True])}
        buffer.add(
            obs=torch.tensor([0]),
            actions=torch.tensor([0]),
            rewards=torch.tensor([1.0]),
            next_obs=torch.tensor([1]),
            valid=torch.tensor([True]),
            **ends,
        )
        algorithm = self.tables(make())
        algorithm.update(buffer.sample(3), 0.0)
        assert algorithm.priorities().tolist() == [5.0 if kind == "truncated" else 0.0] * 3

    def test_the_target_network_gets_no_gradient(self) -> None:
        algorithm = self.tables(make(learning_rate=0.1))
        before = weights_of(algorithm.target)
        algorithm.update(self.batch, 0.0)
        assert differing_paths(before, weights_of(algorithm.target)) == []
        assert all(parameter.grad is None for parameter in algorithm.target.parameters())


class TestDistributions:
    batch = make_batch([(0, 0, 1.0, 1, 0.5), (1, 1, 2.0, 0, 0.0)])

    def test_categorical_loss_by_hand(self) -> None:
        algorithm = make(distribution="categorical", num_atoms=5, v_min=0.0, v_max=4.0)
        set_table(algorithm.policy, [[0.0] * 10] * 2)
        low, high = [0.0, 50.0, 0.0, 0.0, 0.0], [0.0, 0.0, 50.0, 0.0, 0.0]  # all on 1, all on 2
        set_table(algorithm.target, [low + high, low + high])
        metrics = algorithm.update(self.batch, 0.0)
        # Predictions are uniform, so each loss is log 5. The greedy next action returns 2: targets 1 + ½ · 2 and 2; value 2.
        torch.testing.assert_close(algorithm.priorities(), torch.full((2,), math.log(5)))
        assert metrics["loss"].item() == pytest.approx(math.log(5))
        assert metrics["q"].item() == pytest.approx(2.0) and metrics["td_error"].item() == pytest.approx(0.0, abs=1e-6)

    def test_quantile_loss_by_hand(self) -> None:
        algorithm = make(distribution="quantile", num_quantiles=2)
        set_table(algorithm.policy, [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 2.0]])
        set_table(algorithm.target, [[0.0] * 4, [9.0, -9.0, 4.0, -4.0 + 1.0]])
        metrics = algorithm.update(self.batch, 0.0)
        # Next action in state 1 is 1 (means 0 and 0.5): targets 3, −0.5; u = 3, −0.5 | 2, −1.5 with τ = ¼ | ¾.
        first = (0.25 * 2.5 + 0.75 * 0.125) / 2 + (0.75 * 1.5 + 0.25 * 1.0) / 2
        torch.testing.assert_close(algorithm.priorities(), torch.tensor([first, 0.0]))
        assert metrics["td_error"].item() == pytest.approx((1.25 - 0.5) / 2)

    @pytest.mark.parametrize("distribution", ["categorical", "quantile"])
    def test_double_lets_the_online_network_choose(self, distribution: str) -> None:
        settings: dict[str, Any] = {"num_atoms": 2, "v_min": 0.0, "v_max": 1.0}
        worse, better = [30.0, 0.0], [0.0, 30.0]
        if distribution == "quantile":
            worse, better, settings = [0.0, 0.0], [1.0, 1.0], {"num_quantiles": 2}
        found = {}
        for double in (False, True):
            algorithm = make(distribution=distribution, double=double, **settings)
            set_table(algorithm.policy, [better + worse] * 2)
            set_table(algorithm.target, [worse + better] * 2)
            metrics = algorithm.update(make_batch([(0, 0, 0.0, 1, 1.0)]), 0.0)
            found[double] = metrics["td_error"].item()
        assert found[False] == pytest.approx(0.0, abs=1e-6), "the target network's best action returns 1, as predicted"
        assert found[True] == pytest.approx(1.0, abs=1e-6), "the online network's choice returns 0"

    @pytest.mark.parametrize("distribution", ["categorical", "quantile", "implicit"])
    def test_weights_multiply_and_priorities_are_the_losses(self, distribution: str) -> None:
        algorithm = make(distribution=distribution)
        weights = [1.0, 0.25]
        metrics = algorithm.update(make_batch([(0, 0, 1.0, 1, 0.5), (1, 1, 2.0, 0, 0.0)], weights), 0.0)
        priorities = algorithm.priorities()
        assert not priorities.requires_grad and (priorities > 0).all()
        torch.testing.assert_close(metrics["loss"], (priorities * torch.tensor(weights)).mean())


class Watching(DQNAlgorithm):
    """Notes each forward pass of an update: which network, which fractions, which noise."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.passes: list[tuple[str, Tensor | None, Tensor | None]] = []

    def _outputs(self, network: QNetwork, obs: Any, random: Any, taus: Tensor | None = None) -> Tensor:
        outputs = super()._outputs(network, obs, random, taus)
        noise: Any = getattr(network.head.advantage.output, "noise_out", None)
        name = "online" if network is self.policy else "target"
        self.passes.append((name, taus, None if noise is None else noise.clone()))
        return outputs


class TestDraws:
    batch = make_batch([(0, 0, 1.0, 1, 0.5)] * 4)

    def test_implicit_quantiles_draw_fractions_for_each_purpose(self) -> None:
        for double, chooser in ((False, "target"), (True, "online")):
            settings: dict[str, Any] = {"num_taus": 5, "num_target_taus": 7, "double": double}
            algorithm = make(Watching, execution="eager", distribution="implicit", **settings)
            algorithm.update(self.batch, 0.0)
            shapes = [(name, tuple(taus.shape)) for name, taus, _ in algorithm.passes]
            assert shapes == [("target", (4, 7)), (chooser, (4, ACTING_TAUS)), ("online", (4, 5))]
            values = torch.cat([taus.flatten() for _, taus, _ in algorithm.passes])
            assert len(values.unique()) == len(values), "no fraction is used twice"
            assert values.min() >= 0 and values.max() < 1

    def test_each_forward_pass_has_noise_of_its_own(self) -> None:
        algorithm = make(Watching, execution="eager", noisy=True, double=True)
        algorithm.update(self.batch, 0.0)
        algorithm.update(self.batch, 0.0)
        assert [name for name, _, _ in algorithm.passes] == ["target", "online", "online"] * 2
        noises = torch.stack([noise for _, _, noise in algorithm.passes])
        assert len(noises.unique(dim=0)) == 6 and (noises != 0).all()

    def test_nothing_is_drawn_without_a_need(self) -> None:
        for settings in ({}, {"double": True}, {"distribution": "categorical"}, {"distribution": "quantile"}):
            algorithm = make(**settings)
            before = algorithm.generator.get_state()
            algorithm.update(self.batch, 0.0)
            assert torch.equal(algorithm.generator.get_state(), before)


class TestTargetNetwork:
    batch = make_batch([(0, 0, 1.0, 1, 0.5), (1, 1, 2.0, 0, 0.0)])

    def moved(self, algorithm: Any) -> float:
        """How far the target network is from where it began (0) to the online network (1)."""
        set_table(algorithm.policy, [[1.0, 1.0], [1.0, 1.0]])
        return algorithm.target.head.advantage.output.weight.mean().item()

    def start(self, **settings: Any) -> Any:
        algorithm = make(learning_rate=0.0, **settings)
        set_table(algorithm.policy, [[1.0, 1.0], [1.0, 1.0]])
        set_table(algorithm.target, [[0.0, 0.0], [0.0, 0.0]])
        return algorithm

    def test_it_begins_as_a_copy(self) -> None:
        algorithm = make(variants.RainbowAlgorithm)
        assert differing_paths(weights_of(algorithm.policy), weights_of(algorithm.target)) == []

    def test_hard_updates_at_the_interval_only(self) -> None:
        algorithm = self.start(target_update_interval=10)
        algorithm.update(self.batch, 0.0)
        algorithm.on_steps(0, 4)
        algorithm.on_steps(4, 9)
        assert self.moved(algorithm) == 0.0
        algorithm.on_steps(9, 10)
        assert self.moved(algorithm) == 1.0
        set_table(algorithm.target, [[0.0, 0.0], [0.0, 0.0]])
        algorithm.on_steps(10, 19)
        assert self.moved(algorithm) == 0.0
        algorithm.on_steps(19, 45)
        assert self.moved(algorithm) == 1.0

    def test_partial_updates_at_the_interval(self) -> None:
        algorithm = self.start(target_update_interval=10, tau=0.5)
        algorithm.update(self.batch, 0.0)
        assert self.moved(algorithm) == 0.0
        algorithm.on_steps(0, 12)
        assert self.moved(algorithm) == 0.5
        algorithm.on_steps(12, 30)  # passes 20 and 30
        assert self.moved(algorithm) == 0.875

    def test_polyak_after_each_gradient_step(self) -> None:
        algorithm = self.start(target_update_interval=0, tau=0.25)
        algorithm.on_steps(0, 1000)
        assert self.moved(algorithm) == 0.0
        algorithm.update(self.batch, 0.0)
        assert self.moved(algorithm) == 0.25
        algorithm.update(self.batch, 0.0)
        assert self.moved(algorithm) == 0.4375


class TestExploration:
    obs = torch.zeros(4000, dtype=torch.int64)

    def share(self, algorithm: Any, progress: float) -> float:
        set_table(algorithm.policy, [[1.0, 0.0], [1.0, 0.0]])
        actions = explored(algorithm.make_explorer(), self.obs, torch.Generator().manual_seed(0), progress)
        return 2 * actions.float().mean().item()

    def test_epsilon_follows_its_schedule(self) -> None:
        algorithm = make(epsilon=Schedule(1.0, 0.0, 0.5))
        assert [round(self.share(algorithm, progress), 1) for progress in (0.0, 0.25, 0.5)] == [1.0, 0.5, 0.0]

    def test_default_epsilon(self) -> None:
        assert [schedule_value(DQNConfig().exploration, p) for p in (0.0, 0.1, 1.0)] == [1.0, 0.05, 0.05]
        assert DQNConfig(noisy=True).exploration == 0.0
        assert DQNConfig(noisy=True, epsilon=0.1).exploration == 0.1

    def test_epsilon_is_reported(self) -> None:
        explorer = make(epsilon=Schedule(1.0, 0.0)).make_explorer()
        explored(explorer, self.obs, progress=0.25)
        assert explorer.metrics()["epsilon"].item() == 0.75

    def test_noisy_networks_explore_by_noise_and_act_by_their_means(self) -> None:
        algorithm = make(noisy=True, noisy_sigma=50.0)
        obs, generator = torch.tensor([0]), torch.Generator().manual_seed(0)
        explorer = algorithm.make_explorer()
        tried = {explored(explorer, obs, generator).item() for _ in range(50)}
        assert tried == {0, 1}
        output: Any = algorithm.policy.head.advantage.output
        best = (output.weight_mean[:, 0] + output.bias_mean).argmax().item()
        for _ in range(20):
            assert algorithm.policy.act(obs, generator=generator, deterministic=True)[0].item() == best


BIG = PolicyConfig(hidden_sizes=(16, 16))
SUPPORT: dict[str, Any] = {"num_atoms": 21, "v_min": -5.0, "v_max": 5.0}
VARIANTS: dict[str, tuple[type[DQNAlgorithm], dict[str, Any]]] = {
    "dqn": (DQNAlgorithm, {}),
    "double": (variants.DoubleDQNAlgorithm, {}),
    "dueling": (variants.DuelingDQNAlgorithm, {}),
    "noisy": (variants.NoisyDQNAlgorithm, {}),
    "prioritized": (variants.PrioritizedDQNAlgorithm, {}),
    "n_step": (variants.NStepDQNAlgorithm, {}),
    "c51": (variants.C51Algorithm, SUPPORT),
    "qr_dqn": (variants.QRDQNAlgorithm, {"num_quantiles": 8}),
    "iqn": (variants.IQNAlgorithm, {"num_taus": 8, "num_target_taus": 8}),
    "rainbow": (variants.RainbowAlgorithm, SUPPORT),
    "munchausen": (DQNAlgorithm, {"munchausen": True}),
    "polyak": (DQNAlgorithm, {"target_update_interval": 0, "tau": 0.1}),
}
PROCESS = [(0, 0, 0.0, 0, 0.5), (0, 1, 1.0, 1, 0.5), (1, 0, -1.0, 0, 0.5), (1, 1, 4.0, 1, 0.0)]
"""Two states; action 1 in state 1 ends the episode. γ = ½."""


def solve(name: str, process: list[tuple[int, int, float, int, float]], updates: int = 600) -> Tensor:
    """Q-values (state, action) after learning from every transition of the process at once."""
    algorithm_class, settings = VARIANTS[name]
    settings = {"target_update_interval": 10} | settings
    algorithm = make(algorithm_class, BIG, learning_rate=Schedule(0.01, 0.0005), **settings)
    batch = make_batch(process)
    for step in range(updates):
        algorithm.update(batch, step / updates)
        algorithm.on_steps(step, step + 1)
    algorithm.optimizer.raise_if_nonfinite()
    with torch.no_grad():
        return algorithm.policy.train(False).q_values(torch.tensor([0, 1]))


def known_values(name: str) -> Tensor:
    # V(1) = 4 by ending; Q(0, 1) = 1 + ½ · 4 = 3 = V(0); Q(0, 0) = ½ · 3; Q(1, 0) = −1 + ½ · 3.
    known = torch.tensor([[1.5, 3.0], [0.5, 4.0]])
    # Munchausen takes α · |l₀| = 0.9 off both actions that are far from the best; the best ones lose nothing.
    return known - torch.tensor([[0.9, 0.0], [0.9, 0.0]]) if name == "munchausen" else known


@pytest.mark.parametrize("name", VARIANTS)
def test_a_known_process_is_solved(name: str) -> None:
    torch.testing.assert_close(solve(name, PROCESS), known_values(name), atol=0.15, rtol=0)


def test_control_a_process_without_its_end_is_not_that_process() -> None:
    endless = [*PROCESS[:3], (1, 1, 4.0, 1, 0.5)]  # as if the end were a truncation: Q(1, 1) = 4 + ½ · 8 = 8
    values = solve("dqn", endless)
    assert values[1, 1].item() == pytest.approx(8.0, abs=0.3)
    assert (values - known_values("dqn")).abs().max() > 3


def test_control_without_learning_nothing_is_solved() -> None:
    assert (solve("dqn", PROCESS, updates=0) - known_values("dqn")).abs().max() > 1


@pytest.mark.parametrize("name", VARIANTS)
def test_state_comes_back_exactly(name: str) -> None:
    algorithm_class, settings = VARIANTS[name]
    batch = make_batch(PROCESS)
    first = make(algorithm_class, BIG, **settings)
    for step in range(3):
        first.update(batch, 0.1 * step)
    policy = weights_of(first.policy)
    state = copy.deepcopy(first.state_dict())  # it holds the live tensors
    second = make(algorithm_class, BIG, seed=1, **settings)
    second.policy.load_state_dict(policy)
    second.load_state_dict(state)
    assert differing_paths(weights_of(first.target), weights_of(second.target)) == []
    assert differing_paths(policy, weights_of(first.target)) != [], "the target network is not the online one"
    for _ in range(3):
        one, two = first.update(batch, 0.5), second.update(batch, 0.5)
        assert differing_paths(one, two) == []
    assert torch.equal(first.priorities(), second.priorities())
    assert differing_paths(weights_of(first.policy), weights_of(second.policy)) == []
    assert differing_paths(weights_of(first.target), weights_of(second.target)) == []


def test_the_seed_decides_weights_and_draws() -> None:
    runs = []
    for seed in (0, 0, 1):
        algorithm = make(variants.RainbowAlgorithm, BIG, seed=seed)
        algorithm.update(make_batch(PROCESS), 0.0)
        runs.append(weights_of(algorithm.policy))
    assert differing_paths(runs[0], runs[1]) == [] and differing_paths(runs[0], runs[2]) != []


def test_learning_rate_schedule_and_gradient_clipping() -> None:
    algorithm = make(learning_rate=Schedule(0.1, 0.0), max_grad_norm=0.5)
    set_table(algorithm.policy, [[0.0, 0.0], [0.0, 0.0]])
    metrics = algorithm.update(make_batch([(0, 0, 100.0, 1, 0.0)]), 0.5)
    assert metrics["learning_rate"].item() == pytest.approx(0.05)
    # The slope of the Huber loss is 1, for one weight and one bias; the norm is told before clipping.
    assert metrics["grad_norm"].item() == pytest.approx(math.sqrt(2))
    assert first_gradient(algorithm.optimizer).norm().item() == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("distribution", ["none", "categorical", "quantile", "implicit"])
def test_a_loss_that_is_not_finite_changes_no_weight(distribution: str) -> None:
    algorithm = make(learning_rate=0.1, distribution=distribution)
    before = weights_of(algorithm.policy)
    algorithm.update(make_batch([(0, 0, math.nan, 1, 0.5)]), 0.0)
    assert differing_paths(before, weights_of(algorithm.policy)) == []
    with pytest.raises(NonFiniteError, match="loss"):
        algorithm.optimizer.raise_if_nonfinite()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"v_min": 1.0, "v_max": 1.0, "distribution": "categorical"}, "v_min"),
        ({"munchausen": True, "distribution": "quantile"}, "munchausen"),
        ({"munchausen": True, "double": True}, "double"),
        ({"tau": 1.0, "target_update_interval": 0}, "target network"),
        ({"batch_size": 10, "buffer_size": 5}, "buffer_size"),
    ],
)
def test_settings_that_do_not_fit_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DQNAlgorithm.check_config(DQNConfig(**settings), 1)


@pytest.mark.parametrize(
    "settings", [{"epsilon": 1.5}, {"tau": 0.0}, {"num_atoms": 1}, {"kappa": 0.0}, {"munchausen_clip": 0.0}]
)
def test_settings_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        DQNConfig(**settings)


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match="Discrete"):
        DQNAlgorithm(spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float32), DQNConfig())


@pytest.mark.parametrize(
    ("algorithm", "changed"),
    [
        (variants.DoubleDQNAlgorithm, {"double": True}),
        (variants.DuelingDQNAlgorithm, {"dueling": True}),
        (variants.NoisyDQNAlgorithm, {"noisy": True, "adam_eps": 1e-3}),
        (variants.PrioritizedDQNAlgorithm, {"prioritized": True}),
        (variants.NStepDQNAlgorithm, {"n_step": 3}),
        (variants.C51Algorithm, {"distribution": "categorical"}),
        (variants.QRDQNAlgorithm, {"distribution": "quantile", "max_grad_norm": None}),
        (variants.IQNAlgorithm, {"distribution": "implicit", "max_grad_norm": None}),
        (
            variants.RainbowAlgorithm,
            {
                "double": True,
                "dueling": True,
                "noisy": True,
                "distribution": "categorical",
                "n_step": 3,
                "prioritized": True,
                "per_alpha": 0.5,
            },
        ),
    ],
)
def test_variants_are_dqn_with_other_defaults(algorithm: type[DQNAlgorithm], changed: dict[str, Any]) -> None:
    plain, config = asdict(DQNConfig()), asdict(algorithm.config_class())
    assert {name: value for name, value in config.items() if value != plain[name]} == changed
    assert set(vars(algorithm)) <= {
        "__module__",
        "__doc__",
        "config_class",
        "differences",
        "__abstractmethods__",
        "_abc_impl",
        "__parameters__",
    }


def test_normalised_observations_reach_both_networks() -> None:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    algorithm = DQNAlgorithm(space, spaces.Discrete(2), DQNConfig(), normalize_observations=True)
    data = 5 + torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    before = algorithm.policy.q_values(data)
    algorithm.update_statistics(data)
    after = algorithm.policy.q_values(data)
    assert not torch.allclose(before, after, atol=1e-2) and torch.equal(algorithm.target.q_values(data), after)
