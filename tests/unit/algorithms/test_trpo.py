"""TRPO: its parts by hand, a whole update against explicit matrices, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from helpers.rollouts import ACTIONS, OBSERVATIONS, copied_weights, make_algorithm, make_rollout
from rl_training.algorithms.trpo import (
    Candidate,
    TRPOAlgorithm,
    TRPOConfig,
    conjugate_gradient,
    fisher_vector_product,
    line_search,
    step_length,
    surrogate_advantage,
)
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.policies.distributions import Categorical, DiagGaussian
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.errors import ConfigError, NonFiniteError
from rl_training.utils.trees import differing_paths

INF, NAN = float("inf"), float("nan")
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTOR = ("actor_body", "action_head")


def make_trpo(
    action_space: spaces.Space[Any] = ACTIONS,
    *,
    hidden_sizes: tuple[int, ...] = (),
    squash: bool = False,
    **hyperparams: Any,
) -> TRPOAlgorithm:
    """TRPO with a network small enough for explicit matrices; a linear policy unless told otherwise."""
    policy = PolicyConfig(hidden_sizes=hidden_sizes, orthogonal_init=False, squash=squash)
    return TRPOAlgorithm(OBSERVATIONS, action_space, TRPOConfig(**hyperparams), policy, seed=0)


def box_rollout(algorithm: TRPOAlgorithm, num_steps: int = 32, num_envs: int = 2) -> RolloutBuffer:
    """Like make_rollout, with actions in a Box; the reward is the first number of the action."""
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(num_steps + 1, num_envs, 3, generator=generator)
    nothing = torch.zeros(num_envs, dtype=torch.bool)
    buffer = RolloutBuffer(num_steps, num_envs, (3,), (2,))
    for t in range(num_steps):
        actions, _ = algorithm.policy.act(obs[t], generator=generator)
        buffer.add(
            obs=obs[t],
            actions=actions,
            rewards=actions[:, 0],
            terminated=nothing,
            truncated=nothing,
            valid=~nothing,
            next_obs=obs[t + 1],
        )
    buffer.last_obs = obs[-1]
    return buffer


def actor_weights(algorithm: TRPOAlgorithm) -> list[torch.nn.Parameter]:
    return [weight for name, weight in algorithm.policy.named_parameters() if name.startswith(ACTOR)]


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def changed(algorithm: TRPOAlgorithm, before: dict[str, Tensor]) -> set[str]:
    """The parts of the policy whose weights have changed."""
    after = algorithm.policy.state_dict()
    return {name.split(".")[0] for name, value in before.items() if not torch.equal(value, after[name])}


# --- Surrogate ------------------------------------------------------------------------------------


def test_surrogate_by_hand() -> None:
    old = torch.tensor([-1.0, -2.0])
    log_probs = (old + torch.tensor([1.5, 0.5]).log()).requires_grad_()
    value = surrogate_advantage(log_probs, old, torch.tensor([2.0, -4.0]))
    assert value.item() == pytest.approx(0.5)  # (1.5·2 + 0.5·(−4)) / 2
    (gradient,) = torch.autograd.grad(value, log_probs)
    assert gradient.tolist() == pytest.approx([1.5, -1.0]), "r A / B"


# --- Conjugate gradient ---------------------------------------------------------------------------

MATRIX = torch.tensor([[4.0, 1.0], [1.0, 3.0]])


def solve(iterations: int, b: tuple[float, float] = (1.0, 2.0)) -> list[float]:
    solution: list[float] = conjugate_gradient(lambda v: MATRIX @ v, torch.tensor(b), iterations).tolist()
    return solution


def test_conjugate_gradient_by_hand() -> None:
    # First along b: α = b·b / b·Ab = 5 / 20. Then the exact solution, as the matrix has two rows.
    assert solve(1) == pytest.approx([0.25, 0.5])
    assert solve(2) == pytest.approx([1 / 11, 7 / 11])


def test_conjugate_gradient_stays_at_the_solution() -> None:
    assert solve(50) == pytest.approx([1 / 11, 7 / 11])
    assert solve(50) == solve(49)
    assert solve(5, b=(0.0, 0.0)) == [0.0, 0.0]
    # Convergence is judged in relation to b.
    assert solve(2, b=(1e-9, 2e-9)) == pytest.approx([1e-9 / 11, 7e-9 / 11], rel=1e-5)


def test_conjugate_gradient_of_a_larger_matrix() -> None:
    root = torch.randn(12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix, b = root @ root.T + 0.1 * torch.eye(12), torch.arange(1.0, 13.0, dtype=torch.float64)
    solution = conjugate_gradient(lambda v: matrix @ v, b, 40)
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, b), rtol=1e-3, atol=1e-3)


def test_conjugate_gradient_does_not_hide_what_is_not_finite() -> None:
    assert not torch.isfinite(conjugate_gradient(lambda v: NAN * v, torch.ones(2), 3)).any()
    assert not torch.isfinite(torch.tensor(solve(3, b=(NAN, 1.0)))).any()


# --- Fisher-vector product ------------------------------------------------------------------------


def products(product: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """The matrix behind a product, column by column."""
    return torch.stack([product(unit) for unit in torch.eye(size)], dim=1)


def test_fisher_of_a_categorical_by_hand() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log().requires_grad_()
    kl = Categorical(logits.detach()).kl(Categorical(logits)).mean()
    # diag(p) − p pᵀ, and λ on the diagonal.
    expected = torch.tensor([[0.25, -0.125, -0.125], [-0.125, 0.1875, -0.0625], [-0.125, -0.0625, 0.1875]])
    torch.testing.assert_close(products(fisher_vector_product(kl, [logits], 0.0), 3), expected)
    damped = products(fisher_vector_product(kl, [logits], 0.1), 3)
    torch.testing.assert_close(damped, expected + 0.1 * torch.eye(3))


def test_fisher_of_a_gaussian_by_hand() -> None:
    mean = torch.tensor([[1.0], [-3.0]], requires_grad=True)
    log_std = torch.tensor([math.log(2.0)], requires_grad=True)
    kl = DiagGaussian(mean.detach(), log_std.detach()).kl(DiagGaussian(mean, log_std)).mean()
    # 1/σ² for each mean, halved by the mean over two states; 2 for log σ, which both states share.
    expected = torch.tensor([0.125, 0.125, 2.0]).diag()
    torch.testing.assert_close(products(fisher_vector_product(kl, [mean, log_std], 0.0), 3), expected)


def jacobian(outputs: Tensor, parameters: list[torch.nn.Parameter]) -> Tensor:
    """(B, k) outputs → (B, k, P)."""
    rows = [
        flat(torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True))
        for value in outputs.flatten()
    ]
    return torch.stack(rows).unflatten(0, outputs.shape)


def explicit_fisher(algorithm: TRPOAlgorithm, obs: Tensor) -> Tensor:
    """E_s E_a[∇log π ∇log πᵀ], (P, P), from its definition for a choice and from 1/σ² and 2 for a Gaussian."""
    distribution, parameters = algorithm.policy.distribution(obs), actor_weights(algorithm)
    if isinstance(distribution, Categorical):
        scores = jacobian(distribution.log_probs, parameters)
        return torch.einsum("ba,bap,baq->pq", distribution.probs.detach(), scores, scores) / len(obs)
    assert isinstance(distribution, DiagGaussian)
    means = jacobian(distribution.mean, parameters)
    deviations = jacobian(distribution.log_std.expand_as(distribution.mean), parameters)
    precision = torch.exp(-2.0 * distribution.log_std).detach()
    fisher = torch.einsum("d,bdp,bdq->pq", precision, means, means)
    return (fisher + 2.0 * torch.einsum("bdp,bdq->pq", deviations, deviations)) / len(obs)


@pytest.mark.parametrize("action_space", [ACTIONS, BOX], ids=["categorical", "gaussian"])
def test_fisher_of_a_network_is_the_explicit_one(action_space: spaces.Space[Any]) -> None:
    algorithm = make_trpo(action_space, hidden_sizes=(4,))
    parameters = actor_weights(algorithm)
    with torch.no_grad():
        for parameter in parameters:  # away from the symmetric start, with a deviation that is not 1
            parameter.add_(0.3)
    obs = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    actor = algorithm._actor
    kl = actor.at(actor.vector(), obs).kl(algorithm.policy.distribution(obs)).mean()
    product = fisher_vector_product(kl, parameters, 0.1)
    size = sum(parameter.numel() for parameter in parameters)
    expected = explicit_fisher(algorithm, obs) + 0.1 * torch.eye(size)
    assert kl.item() == pytest.approx(0.0, abs=1e-7)
    torch.testing.assert_close(products(product, size), expected, rtol=1e-4, atol=1e-6)
    assert (expected - 0.1 * torch.eye(size)).abs().max() > 0.1, "something was compared"


# --- Step length and line search ------------------------------------------------------------------


def test_step_length_by_hand() -> None:
    assert step_length(torch.tensor(8.0), 0.01).item() == pytest.approx(0.05)  # √(0.02 / 8)
    assert step_length(torch.tensor(0.0), 0.01).item() == 0.0
    assert not torch.isfinite(step_length(torch.tensor(NAN), 0.01))
    assert not torch.isfinite(step_length(torch.tensor(-1.0), 0.01))


def test_the_step_reaches_the_trust_region_of_the_quadratic_model() -> None:
    x = torch.tensor([1.0, 2.0])
    step = step_length(x @ MATRIX @ x, 0.02) * x
    assert (0.5 * step @ MATRIX @ step).item() == pytest.approx(0.02)


def search(*candidates: tuple[float, float], steps: int = 3) -> tuple[float, list[float]]:
    """The fraction found and those tried, if the candidates have these improvements and KL divergences."""
    tried: list[float] = []
    queue: Iterator[tuple[float, float]] = iter(candidates)

    def evaluate(fraction: float) -> Candidate:
        tried.append(fraction)
        return Candidate(*(torch.tensor(value, dtype=torch.float64) for value in next(queue)))

    fraction, accepted = line_search(evaluate, 0.5, steps, target_kl=0.01)
    assert (accepted is None) == (fraction == 0.0)
    return fraction, tried


def test_line_search_takes_the_first_step_that_is_near_and_better() -> None:
    assert search((1.0, 0.01)) == (1.0, [1.0]), "δ itself is inside"
    assert search((1.0, 0.0101), (1e-9, 0.009), (9.0, 0.0)) == (0.5, [1.0, 0.5])


@pytest.mark.parametrize(
    "bad",
    [(1.0, 0.0101), (0.0, 0.0), (-1.0, 0.005), (NAN, 0.0), (INF, 0.0), (1.0, NAN), (1.0, INF)],
    ids=["too far", "not better", "worse", "NaN", "infinite", "KL NaN", "KL infinite"],
)
def test_line_search_refuses_what_fails_one_condition(bad: tuple[float, float]) -> None:
    assert search(bad, bad, bad) == (0.0, [1.0, 0.5, 0.25]), "and tries no more often than it may"
    assert search(bad, (1.0, 0.005)) == (0.5, [1.0, 0.5])


# --- The update -----------------------------------------------------------------------------------

VALID = [[1, 1], [1, 0], [1, 1], [0, 1], [1, 1], [1, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_an_update_is_the_natural_gradient_step_on_the_valid_steps(fraction: float) -> None:
    algorithm = make_trpo(target_kl=1e-3, cg_iterations=40, fisher_fraction=fraction)
    rollout = make_rollout(algorithm, valid=VALID)
    algorithm._preprocess_batch(rollout)
    mask = rollout.valid.flatten()
    advantages = rollout.advantages.flatten()[mask]
    advantages = (advantages - advantages.mean()) / advantages.std()
    parameters = actor_weights(algorithm)
    log_probs = algorithm.policy.distribution(rollout.flat_obs()).log_prob(rollout.actions.flatten())[mask]
    gradient = flat(torch.autograd.grad((advantages * log_probs).mean(), parameters)).double()
    # The Fisher matrix sees the first of the steps in the order of the update's own permutation: ⌈0.4 · 13⌉ = 6.
    generator = torch.Generator()
    generator.set_state(algorithm.generator.get_state())
    (shuffled,) = rollout.minibatches(1, generator)
    assert isinstance(shuffled.obs, Tensor) and len(shuffled.obs) == 13
    obs = shuffled.obs[: {1.0: 13, 0.4: 6}[fraction]]
    matrix = explicit_fisher(algorithm, obs).double() + 0.1 * torch.eye(len(gradient))
    direction = torch.linalg.solve(matrix, gradient)
    step = (2e-3 / (direction @ matrix @ direction)).sqrt() * direction
    before, old = flat(parameters).detach(), copy.deepcopy(algorithm.policy)

    metrics = algorithm.update(make_rollout(algorithm, valid=VALID), 0.0)
    assert metrics["step_fraction"] > 0.5, "a step was taken"
    moved = flat(actor_weights(algorithm)).detach() - before
    torch.testing.assert_close(moved, (metrics["step_fraction"] * step).float(), rtol=1e-3, atol=1e-5)
    assert metrics["grad_norm"].item() == pytest.approx(gradient.norm().item(), rel=1e-4)
    assert metrics["step_norm"].item() == pytest.approx(step.norm().item(), rel=1e-3)

    # What was accepted: the KL divergence from the old policy, not towards it, and what the new policy would gain.
    valid_obs = rollout.valid_obs()
    with torch.no_grad():
        new = algorithm.policy.distribution(valid_obs)
        kl, reverse = old.distribution(valid_obs).kl(new).mean(), new.kl(old.distribution(valid_obs)).mean()
        ratio = (new.log_prob(rollout.actions.flatten()[mask]) - log_probs).exp()
    assert metrics["kl"].item() == pytest.approx(kl.item(), abs=1e-7) and 0 < kl <= 1e-3
    assert metrics["kl"].item() != pytest.approx(reverse.item(), abs=1e-7)
    assert metrics["surrogate_improvement"].item() == pytest.approx((ratio * advantages).mean().item(), abs=1e-5)


def test_a_refused_step_leaves_the_policy_and_trains_the_critic() -> None:
    # With next to no damping the full step ends where the quadratic model says δ; here the true divergence is a little more.
    algorithm = make_trpo(target_kl=0.05, cg_damping=1e-6, backtrack_steps=1)
    before = copied_weights(algorithm)
    metrics = algorithm.update(make_rollout(algorithm, seed=2), 0.0)
    assert metrics["grad_norm"] > 0 and metrics["step_norm"] > 0
    assert (metrics["step_fraction"], metrics["kl"], metrics["surrogate_improvement"]) == (0.0, 0.0, 0.0)
    assert changed(algorithm, before) == {"value_head"}, "a linear critic has no body"


def test_a_refused_step_is_shortened() -> None:
    algorithm = make_trpo(target_kl=0.05, cg_damping=1e-6, backtrack_coef=0.5, backtrack_steps=2)
    before = copied_weights(algorithm)
    metrics = algorithm.update(make_rollout(algorithm, seed=2), 0.0)
    assert metrics["step_fraction"] == 0.5
    assert metrics["kl"].item() == pytest.approx(0.05 / 4, rel=0.05), "the divergence grows with the square of the step"
    assert changed(algorithm, before) == {"action_head", "value_head"}


def test_improvement_is_over_the_old_policy() -> None:
    """The advantage of a single step is not normalised, so that the old policy's surrogate advantage is not 0."""
    algorithm = make_trpo()
    rollout = make_rollout(algorithm, 1, 1, rewards=[[2.0]])
    old = copy.deepcopy(algorithm.policy)
    metrics = algorithm.update(rollout, 0.0)
    obs, actions = rollout.flat_obs(), rollout.actions.flatten()
    with torch.no_grad():
        change = algorithm.policy.distribution(obs).log_prob(actions) - old.distribution(obs).log_prob(actions)
    expected = (change.exp() - 1.0).item() * rollout.advantages.item()
    assert abs(expected) > 0.01 and metrics["surrogate_improvement"].item() == pytest.approx(expected, rel=1e-3)


def test_no_advantage_is_no_step() -> None:
    algorithm = make_trpo(gamma=0.0)
    with torch.no_grad():
        for parameter in algorithm.policy.value_head.parameters():
            parameter.zero_()
    before = copied_weights(algorithm)
    metrics = algorithm.update(make_rollout(algorithm, rewards=[[1.0, 1.0]] * 8), 0.0)
    assert (metrics["grad_norm"], metrics["step_norm"], metrics["step_fraction"]) == (0.0, 0.0, 0.0)
    assert changed(algorithm, before) == {"value_head"}


@pytest.mark.parametrize("squash", [False, True], ids=["gaussian", "squashed"])
def test_continuous_actions_move_towards_reward_inside_the_trust_region(squash: bool) -> None:
    algorithm = make_trpo(BOX, squash=squash, hidden_sizes=(8,), gamma=0.0)
    obs, before = torch.zeros(1, 3), copied_weights(algorithm)
    mean = algorithm.policy.distribution(obs).mode()
    metrics = algorithm.update(box_rollout(algorithm), 0.0)
    assert 1e-3 < metrics["kl"] <= 0.01
    assert (algorithm.policy.distribution(obs).mode() - mean)[0, 0] > 0.01, "the reward is the first number"
    assert not torch.equal(algorithm.policy.state_dict()["action_head.log_std"], before["action_head.log_std"])


def test_the_trust_region_follows_its_schedule() -> None:
    algorithm = make_algorithm(
        TRPOAlgorithm, target_kl={"start": 0.02, "end": 0.01}, critic_learning_rate={"start": 1, "end": 0}
    )
    metrics = algorithm.update(make_rollout(algorithm), 0.5)
    assert metrics["target_kl"].item() == pytest.approx(0.015) and 0.0 < metrics["kl"] <= 0.015
    assert metrics["critic_learning_rate"].item() == 0.5
    before = copied_weights(algorithm)
    algorithm.update(make_rollout(algorithm, seed=1), 1.0)
    assert changed(algorithm, before) == set(ACTOR), "the critic's learning rate has reached 0"


@pytest.mark.parametrize("max_grad_norm", [1e9, 0.1], ids=["free", "clipped"])
def test_the_critic_is_trained_apart_with_adam(max_grad_norm: float) -> None:
    # With so large an ε, Adam's step depends on the size of the gradient.
    settings = {"critic_learning_rate": 0.1, "adam_eps": 0.01, "max_grad_norm": max_grad_norm}
    algorithm = make_trpo(hidden_sizes=(4,), critic_epochs=2, critic_minibatches=1, **settings)
    critic = copy.deepcopy(algorithm.policy)
    assert critic.critic_body is not None
    parameters = [*critic.critic_body.parameters(), *critic.value_head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.1, eps=0.01)
    rollout = make_rollout(algorithm, valid=VALID)
    algorithm._preprocess_batch(rollout)
    losses, mask = [], rollout.valid.flatten()
    for _ in range(2):
        loss = 0.5 * (critic.value(rollout.valid_obs()) - rollout.returns.flatten()[mask]).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward(inputs=parameters)
        torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
        optimizer.step()
    metrics = algorithm.update(make_rollout(algorithm, valid=VALID), 0.0)
    assert metrics["value_loss"].item() == pytest.approx(sum(losses) / 2, rel=1e-5)
    for name, value in critic.state_dict().items():
        if not name.startswith(ACTOR):
            torch.testing.assert_close(algorithm.policy.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_epochs_and_minibatches_of_the_critic() -> None:
    algorithm = make_algorithm(TRPOAlgorithm, critic_epochs=3, critic_minibatches=4)
    algorithm.update(make_rollout(algorithm), 0.0)
    assert algorithm.critic_optimizer.count.item() == 12


def test_every_weight_belongs_to_the_actor_or_the_critic() -> None:
    algorithm = make_algorithm(TRPOAlgorithm)
    trained = [*algorithm._actor.weights, *algorithm.critic_optimizer.parameters]
    assert len(trained) == len({id(weight) for weight in trained})
    assert {id(weight) for weight in trained} == {id(weight) for weight in algorithm.policy.parameters()}


def test_metrics_are_detached_finite_scalars() -> None:
    algorithm = make_algorithm(TRPOAlgorithm)
    metrics = algorithm.update(make_rollout(algorithm), 0.0)
    assert {"kl", "policy_loss", "value_loss", "entropy_loss", "grad_norm", "explained_variance"} <= set(metrics)
    for name, value in metrics.items():
        assert value.shape == () and torch.isfinite(value) and not value.requires_grad, name


@pytest.mark.filterwarnings("ignore:var")
def test_a_rollout_without_valid_steps_changes_nothing() -> None:
    algorithm = make_algorithm(TRPOAlgorithm)
    before = copied_weights(algorithm)
    algorithm.update(make_rollout(algorithm, num_steps=2, valid=[[0, 0], [0, 0]]), 0.0)
    assert changed(algorithm, before) == set()


# --- What is not finite ---------------------------------------------------------------------------


def test_a_bad_reward_stops_before_any_weight_changes() -> None:
    algorithm = make_algorithm(TRPOAlgorithm)
    before = copied_weights(algorithm)
    rollout = make_rollout(algorithm)
    rollout.rewards[0, 0] = INF
    with pytest.raises(
        NonFiniteError, match="^policy_loss, grad_norm, .* became NaN or infinite; the weights are those before"
    ):
        algorithm.update(rollout, 0.0)
    assert changed(algorithm, before) == set() and differing_paths(before, algorithm.policy.state_dict()) == []
    algorithm.update(make_rollout(algorithm, seed=1), 0.0)
    assert changed(algorithm, before) >= {*ACTOR, "value_head"}, "and the next rollout is learned from"


def test_a_step_that_is_not_finite_is_not_taken() -> None:
    # Squared, these observations overflow in the Fisher matrix; the gradient is finite.
    algorithm = make_trpo()
    with torch.no_grad():
        for parameter in actor_weights(algorithm):
            parameter.zero_()
    rollout = make_rollout(algorithm)
    assert isinstance(rollout.obs, Tensor)
    rollout.obs *= 1e15
    rollout.advantages.normal_(generator=torch.Generator().manual_seed(0))
    before = copied_weights(algorithm)
    (batch,) = rollout.minibatches(1, algorithm.generator)
    with pytest.raises(NonFiniteError, match="^step_norm, curvature became NaN or infinite"):
        algorithm._policy_step(algorithm._actor.vector(), batch, 0.01)
    assert changed(algorithm, before) == set()


def test_a_bad_value_loss_leaves_actor_and_critic() -> None:
    # Too large to be squared: the normalised advantages are finite, the value loss is not.
    algorithm = make_algorithm(TRPOAlgorithm)
    before = copied_weights(algorithm)
    rollout = make_rollout(algorithm)
    rollout.rewards *= 1e30
    with pytest.raises(NonFiniteError, match="^value_loss"):
        algorithm.update(rollout, 0.0)
    assert changed(algorithm, before) == set()


# --- Settings -------------------------------------------------------------------------------------


def test_defaults_are_the_usual_ones() -> None:
    config = TRPOConfig()
    assert (config.target_kl, config.cg_iterations, config.cg_damping) == (0.01, 15, 0.1)
    assert (config.backtrack_coef, config.backtrack_steps) == (0.8, 10)


def test_a_shared_body_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot share a body(?s:.*)Set policy.shared to false"):
        TRPOAlgorithm(OBSERVATIONS, ACTIONS, TRPOConfig(), PolicyConfig(shared=True))


def test_more_minibatches_than_steps_are_refused() -> None:
    TRPOAlgorithm.check_config(TRPOConfig(num_steps=4, critic_minibatches=8), num_envs=2)
    with pytest.raises(ConfigError, match="critic_minibatches is 8.*num_steps × num_envs = 4 steps"):
        TRPOAlgorithm.check_config(TRPOConfig(num_steps=4, critic_minibatches=8), num_envs=1)
