"""What `overlap: true` gains over the serial loop: python -m benchmarks.overlap [--rounds R] [CASE ...].

Two agents train through the ordinary API, in turns of a few seconds: the benchmark's PPO on CartPole, and presets. Nothing is
gained where no second core is free, so every turn notes how many cores other programs used, and rounds in which that was more
than QUIET are reported apart. What the benchmark's CartPole learns is measured with it; for the presets it stands in results/.
Named cases are measured again alone, and only their speeds are replaced in the data file.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.cases import PPO_CARTPOLE
from benchmarks.ratios import Ratio
from rl_training import PPO, Callback, TrainConfig
from rl_training.experiment.config.loader import resolve
from rl_training.experiment.run.metadata import system_info
from rl_training.experiment.versions import versions

RESULTS = Path("results/performance/overlap.json")
PRESETS = ("ppo/cartpole", "ppo/pendulum", "ppo/acrobot", "ppo/lunarlander")
"""Whose scores with and without overlap are compared."""
BACKENDS = ("tensor", "native")
"""Of the benchmark's CartPole."""
CASES = (*(f"CartPole, {backend}" for backend in BACKENDS), *PRESETS)
SEEDS = (0, 1, 2, 3, 4)
QUIET = 0.15
"""Cores that others may use in a round that counts as quiet."""
SECONDS = 3.0
"""How long a turn lasts at least."""
STEPS, EPISODES = 100_000, 20
"""Of the training that shows what the benchmark's CartPole learns, and of the evaluation after it."""


class Turn(Callback):
    """Times iterations for `SECONDS`, then stops; what comes before the first one's end is left out."""

    name = "turn"

    def __init__(self) -> None:
        self._first: tuple[int, float, float] | None = None
        self.steps_per_second = self.others = 0.0

    def on_iteration_end(self, trainer: Any) -> None:
        now = (trainer.global_step, time.perf_counter(), _others_seconds())
        if self._first is None:
            self._first = now
            return
        steps, seconds, others = (after - before for after, before in zip(now, self._first))
        if seconds >= SECONDS:
            self.steps_per_second, self.others = steps / seconds, others / seconds
            trainer.stop("measured")


def _others_seconds() -> float:
    """Seconds of CPU time that all other processes have used so far; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq, *_ = (int(part) for part in stat.read_text().splitlines()[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK") - time.process_time()


def make_agent(case: str, overlap: bool, folder: str, *, seed: int = 0, total_timesteps: int = 100_000_000) -> PPO:
    config = resolve(case).config if case in PRESETS else _benchmark(case.removeprefix("CartPole, "))
    return PPO(
        replace(
            config,
            seed=seed,
            total_timesteps=total_timesteps,
            device="cpu",
            overlap=overlap,
            output_dir=folder,
            evaluation=replace(config.evaluation, every=0),
            checkpoint=replace(config.checkpoint, every=0),
            logging=replace(config.logging, console="off"),
        )
    )


def _benchmark(backend: str) -> TrainConfig:
    work: dict[str, Any] = dict(PPO_CARTPOLE)
    return TrainConfig(
        env_id=work["env"],
        num_envs=work["num_envs"],
        hyperparams={
            "learning_rate": work["lr"],
            "num_steps": work["num_steps"],
            "update_epochs": work["epochs"],
            "num_minibatches": work["num_envs"] * work["num_steps"] // work["minibatch"],
            "ent_coef": work["ent_coef"],
        },
        policy={"hidden_sizes": work["hidden"], "activation": work["activation"]},  # type: ignore[arg-type]
        env={"backend": backend},  # type: ignore[arg-type]
    )


def take_turn(agent: PPO) -> Turn:
    turn = Turn()
    agent.learn(callbacks=[turn])
    return turn


def measure(case: str, rounds: int) -> dict[str, Any]:
    """Ratios of overlapped to serial steps per second, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        agents = {name: make_agent(case, name == "overlapped", folder) for name in ("serial", "overlapped")}
        for agent in agents.values():
            take_turn(agent)  # records
        taken = [{name: take_turn(agent) for name, agent in agents.items()} for _ in range(rounds)]
        for agent in agents.values():
            agent.close()
    ratios = [turns["overlapped"].steps_per_second / turns["serial"].steps_per_second for turns in taken]
    others = [turns["serial"].others for turns in taken]  # beside the other one runs its second process
    quiet = [ratio for ratio, used in zip(ratios, others) if used <= QUIET]
    return {
        "ratio": Ratio(tuple(ratios)).to_json(),
        "quiet": Ratio(tuple(quiet)).to_json() if quiet else None,
        "others_cores": [round(used, 2) for used in others],
        "steps_per_second": {name: [round(turns[name].steps_per_second) for turns in taken] for name in agents},
    }


def learned(case: str, overlap: bool) -> dict[int, float]:
    """Mean returns after training, seed by seed."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            agent = make_agent(case, overlap, folder, seed=seed, total_timesteps=STEPS)
            agent.learn()
            found[seed] = agent.evaluate(EPISODES, seed=10_000 + seed).mean
            agent.close()
    return found


def scores() -> dict[str, Any]:
    """Mean returns, seed by seed, with and without overlap; of the presets those of the last checkpoints."""
    command = f"python -m benchmarks.overlap  # {STEPS:,} steps, {EPISODES} episodes"
    found = {
        f"{case}, {name}": {"command": command, "last_mean_by_seed": learned(case, name == "overlapped")}
        for case in CASES
        if case not in PRESETS
        for name in ("serial", "overlapped")
    }
    for preset in PRESETS:
        file_name = preset.replace("/", "_")
        for name, file in (("serial", f"{file_name}.json"), ("overlapped", f"controls/{file_name}_overlapped.json")):
            record = json.loads((Path("results") / file).read_text())
            runs = {run["seed"]: run["last"]["mean"] for run in record["runs"] if run["seed"] in SEEDS}
            found[f"{preset}, {name}"] = {"command": record["command"], "last_mean_by_seed": runs}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each of the two (9)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {'; '.join(CASES)} (all, and what they learn)")
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {'; '.join(CASES)}")
    record: dict[str, Any] = json.loads(options.output.read_text()) if options.cases else {"work": PPO_CARTPOLE}
    for case in options.cases or CASES:
        found = record[case] = {
            "command": f"python -m benchmarks.overlap --rounds {options.rounds} '{case}'",
            "at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "system": system_info("cpu"),
            "versions": versions(),
            **measure(case, options.rounds),
        }
        quiet = "no quiet round" if found["quiet"] is None else f"{found['quiet']['median']:.2f} in quiet rounds"
        print(f"{case}: overlapped is {found['ratio']['median']:.2f} times as fast ({quiet})", flush=True)
    if not options.cases:
        record["scores"] = scores()
        for name, found in record["scores"].items():
            print(f"{name}: mean return by seed {found['last_mean_by_seed']}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
