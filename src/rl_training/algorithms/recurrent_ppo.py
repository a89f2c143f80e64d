"""PPO for a policy with a memory: recurrent cores, trained on sequences of consecutive steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from rl_training.algorithms.ppo import PPOBase, PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer, RolloutMinibatch, SequenceMinibatch
from rl_training.execution.batches import ObsTensor
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import recordable
from rl_training.execution.optimizers import StepReport
from rl_training.policies.distributions import Distribution
from rl_training.policies.policy import restarted
from rl_training.policies.recurrent import RecurrentActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Range

DEFAULT_MINIBATCH = 128
"""Steps per minibatch where `num_minibatches` is not given."""


@dataclass
class RecurrentPPOConfig(PPOConfig):
    """Hyperparameters of recurrent PPO: PPO's, and those of its memory."""

    num_steps: Annotated[int, Range(ge=1)] = 128
    """Steps per environment in each rollout; by default 1,024 are shared out among the environments."""
    num_minibatches: Annotated[int, Range(ge=1)] = 8
    """Parts that each epoch's permutation of the sequences is cut into; by default parts of about 128 steps."""
    core: Literal["lstm", "gru"] = "lstm"
    """What remembers, between the encoder and the hidden layers."""
    core_size: Annotated[int, Range(ge=1)] = 64
    """Numbers that a core puts out."""
    core_layers: Annotated[int, Range(ge=1)] = 1
    """Layers of a core, one on top of the other."""
    shared_core: bool = False
    """Let actor and critic read one core instead of having one each."""
    sequence_length: Annotated[int, Range(ge=1)] | None = 16
    """Steps that gradients flow back through. A rollout is cut into sequences of this length, each with what the policy remembered
    at its beginning; null for whole rollouts. More for what must be remembered for longer: it also takes longer."""


class RecurrentPPOAlgorithm(PPOBase[RecurrentPPOConfig]):
    """PPO (Schulman et al. 2017, arXiv 1707.06347) with an LSTM or GRU, whose minibatches are sequences with stored states."""

    config_class = RecurrentPPOConfig
    differences = (
        "The paper has no memory. Sequences begin with the state that the policy had there, zeros at an episode's start; no steps "
        "are run again before a sequence to refresh it.",
        "Actor and critic have a core each; `shared_core: true` gives them one.",
    )
    default_rollout = 1024
    policy: RecurrentActorCritic

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: RecurrentPPOConfig) -> RecurrentActorCritic:
        return RecurrentActorCritic(
            spec,
            kind=hyperparams.core,
            size=hyperparams.core_size,
            layers=hyperparams.core_layers,
            shared_core=hyperparams.shared_core,
        )

    @classmethod
    def with_derived_defaults(
        cls, config: RecurrentPPOConfig, given: Collection[str], num_envs: int
    ) -> RecurrentPPOConfig:
        config = super().with_derived_defaults(config, given, num_envs)
        if "sequence_length" not in given and config.sequence_length is not None:
            config = replace(config, sequence_length=min(config.sequence_length, config.num_steps))
        if "num_minibatches" in given:
            return config
        wanted = config.num_steps * num_envs // DEFAULT_MINIBATCH
        return replace(config, num_minibatches=max(1, min(wanted, cls._sequences(config, num_envs))))

    @classmethod
    def check_config(cls, config: RecurrentPPOConfig, num_envs: int) -> None:
        length, sequences = config.sequence_length, cls._sequences(config, num_envs)
        if length is not None and length > config.num_steps:
            raise ConfigError(
                f"hyperparams.sequence_length is {length}, but a rollout has only num_steps = {config.num_steps} steps in each "
                "environment. Lower it, or set it to null for whole rollouts."
            )
        if config.num_minibatches > sequences:
            raise ConfigError(
                f"hyperparams.num_minibatches is {config.num_minibatches}, but a rollout has only {sequences} sequences of "
                f"{length or config.num_steps} steps. Lower it, or sequence_length."
            )

    @staticmethod
    def _sequences(config: RecurrentPPOConfig, num_envs: int) -> int:
        """How many sequences a rollout is cut into."""
        return -(-config.num_steps // (config.sequence_length or config.num_steps)) * num_envs

    @torch.no_grad()
    def _preprocess_batch(self, rollout: RolloutBuffer, *, update_logprobs: bool = True) -> None:
        """Fills in states, values, log-probabilities, advantages and returns, from what was remembered before the rollout on."""
        logprobs, values, after = self.evaluate_rollout(
            rollout.obs, rollout.actions, rollout.starts(), rollout.initial_state, self.generator
        )
        if update_logprobs:
            rollout.logprobs = logprobs.clone()  # the next call may write where they lie
        rollout.values = values.clone()
        rollout.states = torch.cat([rollout.initial_state.unsqueeze(0), after])
        final = rollout.final_obs()
        if final is not None:
            # A truncated episode's last observation comes after its last step, before anything is forgotten.
            obs, index = final
            rollout.final_values.view(-1)[index] = self.policy.value(obs, after.flatten(0, 1)[index])
        assert rollout.last_obs is not None, "the collector sets last_obs"
        state = restarted(after[-1], self.policy.initial_state(rollout.num_envs), rollout.ended()[-1])
        last_value = self.policy.value(rollout.last_obs, state)
        rollout.compute_returns_and_advantages(last_value, self.config.gamma, self.config.gae_lambda)

    @recordable
    def evaluate_rollout(
        self, obs: ObsTensor, actions: Tensor, starts: Tensor, state: Tensor, random: RandomSource
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities and values (T, N) of a rollout (T, N, ...), and what is remembered after each step (T, N, ...)."""
        with self.autocast():
            distribution, values, states = self.policy.unroll(obs, starts, state)
        return distribution.log_prob(actions), values, states

    @torch.no_grad()
    def log_probs_of(self, rollout: RolloutBuffer) -> Tensor:
        args = rollout.obs, rollout.actions, rollout.starts(), rollout.initial_state
        return self.evaluate_rollout(*args, self.generator)[0].clone()

    def _minibatches(self, rollout: RolloutBuffer) -> Iterator[RolloutMinibatch]:
        config = self.config
        return rollout.sequences(config.sequence_length or config.num_steps, config.num_minibatches, self.generator)

    def _learn(self, minibatch: RolloutMinibatch, usual_size: int) -> StepReport:
        return self._train_minibatch(minibatch, self.generator)  # a mask keeps their shapes: there are at most two

    def _evaluate(self, minibatch: RolloutMinibatch) -> tuple[Distribution, Tensor]:
        assert isinstance(minibatch, SequenceMinibatch)
        distribution, values, _ = self.policy.unroll(minibatch.obs, minibatch.starts, minibatch.state)
        return distribution, values
