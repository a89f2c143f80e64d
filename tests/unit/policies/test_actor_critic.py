"""The actor-critic policy: shapes per space, sharing, initialisation, normalisers that travel with it."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from helpers.acting import acted
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import ConfigError, SpaceError

BOX = spaces.Box(-np.inf, np.inf, (4,))
DISCRETE = spaces.Discrete(3)
ACTION_SPACES = {
    "Discrete": (spaces.Discrete(3, start=7), (), 3),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 4]), (2,), 6),
    "MultiDiscrete 2d": (spaces.MultiDiscrete([[2, 3], [4, 5]]), (4,), 14),
    "MultiBinary": (spaces.MultiBinary(3), (3,), 3),
    "MultiBinary 2d": (spaces.MultiBinary((2, 3)), (6,), 6),
    "Box": (spaces.Box(-2, 2, (3,)), (3,), 3),
    "Box 2d": (spaces.Box(-2, 2, (2, 2)), (4,), 4),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observations(batch: int = 6) -> Tensor:
    return torch.randn(batch, 4, generator=seeded(1))


def policy(action_space: spaces.Space = DISCRETE, **config: object) -> ActorCritic:
    torch.manual_seed(0)
    settings = PolicyConfig(**{"hidden_sizes": (8, 8), **config})  # type: ignore[arg-type]
    return ActorCritic(PolicySpec(BOX, action_space, settings))


def gram(weight: Tensor) -> Tensor:
    return weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight


def assert_orthogonal(layer: nn.Linear, gain: float) -> None:
    product = gram(layer.weight.detach())
    torch.testing.assert_close(product, gain**2 * torch.eye(len(product)), atol=1e-5 * gain**2, rtol=0)
    assert layer.bias.count_nonzero() == 0


def body_layers(body: nn.Module) -> list[nn.Linear]:
    return [layer for layer in body.modules() if isinstance(layer, nn.Linear)]


@pytest.mark.parametrize(("space", "shape", "outputs"), ACTION_SPACES.values(), ids=ACTION_SPACES)
def test_actions_log_probs_and_values_per_action_space(
    space: spaces.Space, shape: tuple[int, ...], outputs: int
) -> None:
    model = policy(space)
    obs = observations()
    distribution, values = model(obs)
    actions = acted(model, obs, generator=seeded())
    assert actions.shape == (6, *shape) and not actions.requires_grad
    assert acted(model, obs, deterministic=True).shape == (6, *shape)
    assert distribution.log_prob(actions).shape == distribution.entropy().shape == values.shape == (6,)
    assert model.action_head.linear.out_features == outputs
    discrete = not isinstance(space, spaces.Box | spaces.MultiBinary)
    assert actions.dtype == (torch.int64 if discrete else torch.float32)


def test_discrete_actions_count_from_zero_whatever_the_start() -> None:
    actions = acted(policy(spaces.Discrete(3, start=7)), torch.zeros(200, 4), generator=seeded())
    assert set(actions.tolist()) == {0, 1, 2}


def test_multi_discrete_actions_stay_within_nvec() -> None:
    actions = acted(policy(spaces.MultiDiscrete([[2, 3], [4, 5]])), torch.zeros(500, 4), generator=seeded())
    assert actions.max(dim=0).values.tolist() == [1, 2, 3, 4]
    assert actions.min() == 0


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Discrete(5, start=2), torch.tensor([2, 6])),
        (spaces.MultiDiscrete([2, 3]), torch.tensor([[0, 2], [1, 1]])),
        (spaces.MultiBinary(4), torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.int8)),
        (spaces.Box(0, 255, (2, 2), dtype=np.uint8), torch.full((2, 2, 2), 9, dtype=torch.uint8)),
        (
            spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "n": spaces.Discrete(3)}),
            {"x": torch.tensor([[0.5, 0.1], [-0.5, 0.0]]), "n": torch.tensor([0, 2])},
        ),
    ],
    ids=["Discrete", "MultiDiscrete", "MultiBinary", "image", "Dict"],
)
def test_every_observation_space_trains(space: spaces.Space, obs: Tensor | dict[str, Tensor]) -> None:
    model = ActorCritic(PolicySpec(space, spaces.Discrete(2), PolicyConfig(), normalize_observations=True))
    assert model.encoder.normalizer is not None
    model.encoder.normalizer.update(obs)
    distribution, values = model(obs)
    (distribution.log_prob(torch.tensor([0, 1])).sum() + values.sum()).backward()
    assert values.shape == (2,)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("shared", [False, True])
def test_forward_equals_distribution_and_value(shared: bool) -> None:
    model = policy(shared=shared)
    obs, actions = observations(), torch.arange(6) % 3
    distribution, values = model(obs)
    assert torch.equal(values, model.value(obs))
    assert torch.equal(distribution.log_prob(actions), model.distribution(obs).log_prob(actions))


def test_separate_bodies_keep_the_gradients_apart() -> None:
    model = policy(shared=False)
    assert model.critic_body is not None
    model.value(observations()).sum().backward()
    assert all(p.grad is None for p in [*model.actor_body.parameters(), *model.action_head.parameters()])
    assert all(p.grad is not None for p in model.critic_body.parameters())
    model.zero_grad()
    model.distribution(observations()).log_prob(torch.zeros(6, dtype=torch.int64)).sum().backward()
    assert all(p.grad is None for p in [*model.critic_body.parameters(), *model.value_head.parameters()])


def test_a_shared_body_runs_once_and_learns_from_both_heads() -> None:
    model = policy(shared=True)
    calls: list[int] = []
    model.actor_body.register_forward_hook(lambda *_: calls.append(1))
    distribution, values = model(observations())
    assert len(calls) == 1
    body = list(model.actor_body.parameters())
    from_value = torch.autograd.grad(values.sum(), body, retain_graph=True)
    from_policy = torch.autograd.grad(distribution.log_prob(torch.zeros(6, dtype=torch.int64)).sum(), body)
    assert all(g.abs().sum() > 0 for g in (*from_value, *from_policy))


def test_parameter_counts_and_a_state_without_duplicates() -> None:
    body = 4 * 8 + 8 + 8 * 8 + 8
    heads = (8 * 3 + 3) + (8 + 1)
    for shared, expected in ((True, body + heads), (False, 2 * body + heads)):
        model = policy(shared=shared)
        assert sum(p.numel() for p in model.parameters()) == expected
        state = model.state_dict()
        assert sum(value.numel() for value in state.values()) == expected
        assert len({value.data_ptr() for value in state.values()}) == len(state)


@pytest.mark.parametrize("shared", [False, True])
def test_orthogonal_gains(shared: bool) -> None:
    model = policy(shared=shared, orthogonal_init=True)
    bodies = [model.actor_body] if model.critic_body is None else [model.actor_body, model.critic_body]
    assert len(bodies) == (1 if shared else 2)
    for body in bodies:
        for layer in body_layers(body):
            assert_orthogonal(layer, math.sqrt(2.0))
    assert_orthogonal(model.action_head.linear, 0.01)
    assert_orthogonal(model.value_head, 1.0)


def test_without_orthogonal_init_the_layers_keep_the_default_one() -> None:
    model = policy(orthogonal_init=False)
    for layer in [*body_layers(model.actor_body), model.action_head.linear, model.value_head]:
        assert layer.bias.count_nonzero() > 0
        assert layer.weight.abs().max() <= 1 / math.sqrt(layer.in_features)


def test_same_seed_gives_the_same_weights() -> None:
    first, again = policy().state_dict(), policy().state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)


def test_without_hidden_layers_the_heads_read_the_observation() -> None:
    model = policy(hidden_sizes=())
    nn.init.ones_(model.value_head.weight)
    torch.testing.assert_close(model.value(torch.tensor([[1.0, 2.0, 3.0, 4.0]])), torch.tensor([10.0]))


def test_log_std_is_one_parameter_per_action_dimension() -> None:
    model = policy(spaces.Box(-1, 1, (2,)), log_std_init=-0.5)
    assert model.action_head.log_std is not None
    assert model.action_head.log_std.tolist() == [-0.5, -0.5]
    # H = d * (1/2 + log(2 pi)/2 + log std), the same in every state.
    expected = 2 * (0.5 + 0.5 * math.log(2 * math.pi) - 0.5)
    torch.testing.assert_close(model.distribution(observations()).entropy(), torch.full((6,), expected))
    model.distribution(observations()).entropy().sum().backward()
    torch.testing.assert_close(model.action_head.log_std.grad, torch.tensor([6.0, 6.0]))


def test_squash_keeps_actions_inside_the_bounds() -> None:
    wide = {"log_std_init": 1.5}
    free = policy(spaces.Box(-1, 1, (2,)), squash=False, **wide)
    squashed = policy(spaces.Box(-1, 1, (2,)), squash=True, **wide)
    obs = torch.zeros(100, 4)
    assert acted(free, obs, generator=seeded()).abs().max() > 1
    # The weights are the same, so are the draws before the tanh.
    torch.testing.assert_close(acted(squashed, obs, generator=seeded()), acted(free, obs, generator=seeded()).tanh())
    assert torch.equal(
        acted(squashed, observations(), deterministic=True), acted(free, observations(), deterministic=True).tanh()
    )


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.MultiBinary(2)], ids=["Discrete", "MultiBinary"])
def test_squash_is_refused_for_other_actions_than_box(space: spaces.Space) -> None:
    with pytest.raises(ConfigError, match=f"{type(space).__name__}.*squash to false"):
        policy(space, squash=True)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), "Dict.*MultiDiscrete"),
        (spaces.Tuple([spaces.Discrete(2)]), "Tuple.*MultiDiscrete"),
        (spaces.Text(3), "Text.*wrapper"),
        (spaces.Box(-1, 1, (0,)), "nothing to decide"),
    ],
)
def test_other_action_spaces_are_refused_with_advice(space: spaces.Space, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        policy(space)


def test_unsupported_observations_are_refused() -> None:
    with pytest.raises(SpaceError, match="Tuple"):
        ActorCritic(PolicySpec(spaces.Tuple([BOX]), spaces.Discrete(2), PolicyConfig()))


def test_act_repeats_with_the_generator_and_is_the_mode_when_deterministic() -> None:
    model = policy(spaces.Box(-1, 1, (2,)))
    obs = observations()
    assert torch.equal(acted(model, obs, generator=seeded(5)), acted(model, obs, generator=seeded(5)))
    assert not torch.equal(acted(model, obs, generator=seeded(5)), acted(model, obs, generator=seeded(6)))
    generator = seeded(5)
    state = generator.get_state()
    assert torch.equal(acted(model, obs, generator=generator, deterministic=True), model.distribution(obs).mode())
    assert torch.equal(generator.get_state(), state)


def test_observations_are_normalised_inside_and_the_statistics_travel_with_the_weights() -> None:
    def build(normalize: bool) -> ActorCritic:
        torch.manual_seed(0)
        return ActorCritic(
            PolicySpec(
                BOX,
                spaces.Discrete(3),
                PolicyConfig(),
                normalize_observations=normalize,
                normalize_rewards=normalize,
            )
        )

    plain, trained = build(False), build(True)
    assert plain.encoder.normalizer is None and plain.reward_scaler is None
    assert trained.encoder.normalizer is not None and trained.reward_scaler is not None
    trained.encoder.normalizer.update(torch.tensor([[10.0] * 4, [14.0] * 4]))  # mean 12, std 2
    trained.reward_scaler.update(torch.tensor([1.0, 7.0]))
    obs = observations()
    torch.testing.assert_close(trained.value(obs * 2 + 12), plain.value(obs), atol=1e-5, rtol=1e-5)

    restored = build(True)
    restored.load_state_dict(trained.state_dict())
    assert restored.reward_scaler is not None
    assert torch.equal(restored.value(obs), trained.value(obs))
    reward = torch.tensor([6.0])
    assert torch.equal(restored.reward_scaler(reward), trained.reward_scaler(reward))
    torch.testing.assert_close(restored.reward_scaler(reward), torch.tensor([2.0]))
