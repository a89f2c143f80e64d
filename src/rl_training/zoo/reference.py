"""Which shipped result a run can be measured against."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.config.stored import stored_config
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import complete_config
from rl_training.experiment.run.reference import Reference
from rl_training.zoo.result_files import ResultFile, shipped_results

DECISIVE = ("algo", "env_id", "total_timesteps", "num_envs", "hyperparams", "policy", "env")
"""What has to be equal for scores to be comparable. The length belongs to it, because schedules follow it."""


def find_reference(config: TrainConfig) -> Reference | None:
    """The shipped result of this very config, whatever the seed; None if there is none.

    `config` has every hyperparameter written out, as a run's own config has.
    """
    wanted = _decisive(config)
    for result in shipped_results():
        if (result.algo, result.env_id) == (config.algo, config.env_id) and any(seed.curve for seed in result.seeds):
            measured, _ = complete_config(stored_config(result.config))
            if _decisive(measured) == wanted:
                return reference_of(result)
    return None


def reference_of(result: ResultFile) -> Reference:
    """A result as the plain data that a run is shown beside."""
    return Reference(
        preset=result.preset,
        last_mean=result.last_mean,
        last_interval=result.last_interval,
        last_scores=tuple(seed.last for seed in result.seeds),
        curves=tuple(tuple(seed.curve) for seed in result.seeds if seed.curve),
    )


def _decisive(config: TrainConfig) -> dict[str, Any]:
    values = config.to_dict()
    return {**{key: values[key] for key in DECISIVE}, "deterministic": config.evaluation.deterministic}
