"""Games through the whole package: trained, saved, resumed to the bit, evaluated with true scores, asked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import DQN, Callback, agent_class, load_agent
from rl_training.utils.trees import differing_paths

pytest.importorskip("ale_py")

SMALL: dict[str, Any] = {"protocol": "classic", "sticky_actions": 0.25, "screen_size": 36, "max_frames": 1_200}
REPLAY: dict[str, Any] = {
    "buffer_size": 250,
    "learning_starts": 60,
    "batch_size": 8,
    "train_frequency": 8,
    "num_envs": 2,
}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 2, "num_envs": 4},
    "dqn": REPLAY,
    "rainbow": REPLAY,
}


class Half(Callback):
    """Stops in the middle; a shorter training would have other schedules."""

    def on_iteration_end(self, trainer: Any) -> None:
        if trainer.global_step >= 320:
            trainer.stop("half")


def make(algo: str, *, game: str = "Breakout", backend: dict[str, Any] | None = None) -> Any:
    policy = {"hidden_sizes": [16], "activation": "relu"}
    env = {"atari": SMALL, **(backend or {})}
    return agent_class(algo)(f"ALE/{game}-v5", seed=1, device="cpu", policy=policy, env=env, **RUNS[algo])


@pytest.mark.parametrize(
    ("algo", "backend"),
    [("ppo", {"backend": "async", "workers": 2}), ("ppo", {}), ("dqn", {}), ("rainbow", {})],
    ids=["ppo-workers", "ppo", "dqn", "rainbow"],
)
def test_a_run_that_was_saved_and_resumed_ends_as_one_that_was_not(
    algo: str, backend: dict[str, Any], tmp_path: Path
) -> None:
    whole, first = make(algo, backend=backend), make(algo, backend=backend)
    whole.learn(640)
    first.learn(640, callbacks=Half())
    first.save(tmp_path / "half")
    first.close()
    second = load_agent(tmp_path / "half")
    second.learn(640)
    assert second._session.trainer.collector.stepper.resume_grade == "exact"
    assert differing_paths(second.get_parameters(), whole.get_parameters()) == []
    whole.close()
    second.close()


def test_learning_sees_signs_and_evaluation_the_true_score() -> None:
    agent = make("dqn", game="SpaceInvaders")
    agent.learn(400)
    replay = agent.replay_buffer
    assert set(np.unique(replay._rewards)) <= {-1.0, 0.0, 1.0}
    result = agent.evaluate(2, deterministic=False)
    assert max(result.returns) >= 5 and all(score % 5 == 0 for score in result.returns), "invaders count 5 to 30"
    agent.close()


def test_replay_keeps_each_frame_once() -> None:
    agent = DQN("ALE/Pong-v5", num_envs=1, buffer_size=10_000, env={"atari": {"protocol": "classic"}}, device="cpu")
    agent.learn(20)
    assert agent.replay_buffer.nbytes < 1.05 * 10_000 * 84 * 84
    agent.close()


def test_predict_takes_what_the_game_shows() -> None:
    agent = make("ppo")
    stacks = np.random.default_rng(0).integers(0, 256, (3, 4, 36, 36), dtype=np.uint8)
    one, _ = agent.predict(stacks[0])
    several, _ = agent.predict(stacks)
    turned, _ = agent.predict(np.moveaxis(stacks, 1, -1))
    assert several.shape == (3,) and several[0] == one and np.array_equal(turned, several)
    with pytest.raises(Exception, match=r"\(84, 84\) does not fit: the agent was trained on \(4, 36, 36\)"):
        agent.predict(np.zeros((84, 84), np.uint8))
    agent.close()
