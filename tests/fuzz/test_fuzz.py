"""Fuzzed checkpoints, run folders, configs and result files: whatever is in them, a command ends with a message.

Each case is made from its number alone: `run_case(number, corpus, folder)` repeats it.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.fuzz_mutations import make_special, mutate_bytes, mutate_json, mutate_lines, mutate_tree, mutate_yaml
from helpers.fuzz_watch import Outcome, run_watched, watch_executions
from helpers.run_folders import write_result
from rl_training.experiment.checkpoint.store import read_checkpoint, write_checkpoint
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.reference import Reference, save_reference
from rl_training.experiment.run.runner import start_run
from rl_training.utils.errors import AxiomError

SLICE, FULL, CHUNK = 150, 5_000, 500
FILES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "metadata.json": mutate_json,
    "reference.json": mutate_json,
    "metrics.jsonl": mutate_lines,
    "evaluations.jsonl": mutate_lines,
    "config.yaml": lambda data, rng: mutate_yaml(data.decode("utf-8", "replace"), rng),
    "checkpoints/latest": mutate_bytes,
    "checkpoints/best": mutate_bytes,
}
READERS = (
    ["report"],
    ["report", "--json"],
    ["report", "--format", "csv"],
    ["report", "--format", "html"],
    ["leaderboard"],
    ["leaderboard", "--format", "csv"],
    ["leaderboard", "--json"],
    ["leaderboard", "--compare-to", "shipped"],
    ["watch", "--once"],
    ["watch", "--json"],
)
OPENERS = (["resume"], ["resume"], ["eval", "--episodes", "1"], ["eval", "--episodes", "1", "--best"])


@dataclass(frozen=True)
class Corpus:
    """What is damaged: three small runs with all their files, and a result file."""

    runs: list[Path]
    result: Path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    watch_executions()
    folder = tmp_path_factory.mktemp("corpus")
    off_policy = {"learning_starts": 8, "batch_size": 4, "buffer_size": 64}
    runs = [
        _train(folder, "ppo", "CartPole-v1", {"num_steps": 8}),
        _train(folder, "prioritized_dqn", "CartPole-v1", off_policy),
        _train(folder, "sac", "Pendulum-v1", off_policy),
    ]
    for run in runs:
        save_reference(run, Reference("p/q", 9.0, (8.0, 10.0), (9.0, 9.5), (((16, 9.0), (32, 9.5)), ((16, 8.0),))))
    return Corpus(runs, write_result(folder / "results" / "ppo_cartpole.json", [480.0, 500.0, 450.0], steps=1000))


def _train(folder: Path, algo: str, env_id: str, hyperparams: dict[str, int]) -> Path:
    config = TrainConfig(
        algo=algo,
        env_id=env_id,
        num_envs=2,
        total_timesteps=32,
        output_dir=folder / "runs",
        hyperparams=hyperparams,
        policy={"hidden_sizes": [4]},
        evaluation={"every": 16, "episodes": 1},
        checkpoint={"every": 16},
        logging={"console": "off", "tensorboard": False, "every": 8},
    )
    run_dir = start_run(config).run_dir
    assert run_dir is not None
    # The last checkpoint goes, so that there is something left to train.
    steps = sorted((run_dir / "checkpoints").glob("step_*"))
    if len(steps) > 1:
        shutil.rmtree(steps[-1])
        for pointer in ("latest", "best"):
            (run_dir / "checkpoints" / pointer).write_text(f"{steps[-2].name}\n")
    return run_dir


def run_case(number: int, corpus: Corpus, folder: Path) -> tuple[str, list[str], Outcome]:
    """(what was damaged, the command, how it ended)."""
    rng = random.Random(number)
    kind = rng.choice(("state", "state", "state", "files", "files", "files", "checkpoint", "config", "result"))
    if kind == "config":
        argv = _fuzzed_config(rng, corpus, folder)
    elif kind == "result":
        argv = _fuzzed_result(rng, corpus, folder)
    else:
        run = folder / "run"
        shutil.copytree(rng.choice(corpus.runs), run)
        damage = {"state": _fuzz_state, "files": _fuzz_files, "checkpoint": _fuzz_checkpoint_bytes}[kind]
        damage(rng, run)
        name, *options = rng.choice(READERS if kind == "files" and rng.random() < 0.7 else OPENERS)
        argv = [name, str(run), *options]
    return kind, argv, run_watched(argv)


def _fuzz_state(rng: random.Random, run: Path) -> None:
    """One state tree, also with tensors of other shapes and dtypes, under right checksums."""
    sound = read_checkpoint(rng.choice(_checkpoints(run)))
    groups, info = dict(sound.groups), dict(sound.info)
    try:
        if rng.random() < 0.2:
            info = mutate_tree(info, rng)
            write_checkpoint(sound.path, groups, info if isinstance(info, dict) else {"config": info})
        else:
            name = rng.choice([*groups, *(key for key in groups if key in ("runtime", "replay", "rows"))])
            groups[name] = mutate_tree(groups[name], rng, arrays=True)
            write_checkpoint(sound.path, groups, info)
    except (AxiomError, UnicodeError, RuntimeError):  # not every odd value can be saved
        _fuzz_checkpoint_bytes(rng, run)


def _fuzz_checkpoint_bytes(rng: random.Random, run: Path) -> None:
    """Bytes of one checkpoint's files, half of the time under right checksums."""
    checkpoint = rng.choice(_checkpoints(run))
    path = rng.choice(sorted(checkpoint.iterdir()))
    if rng.random() < 0.1:
        make_special(path, rng)
        return
    path.write_bytes(
        mutate_json(path.read_bytes(), rng) if path.suffix == ".json" else mutate_bytes(path.read_bytes(), rng)
    )
    if rng.random() < 0.6:
        _seal(checkpoint)


def _checkpoints(run: Path) -> list[Path]:
    newest = sorted((run / "checkpoints").glob("step_*"))[-1:] * 3
    return [*newest, *sorted((run / "checkpoints" / "segments").glob("rows_*"))]


def _seal(checkpoint: Path) -> None:
    """Makes the manifest fit whatever the files are now."""
    from hashlib import sha256

    files = {}
    for path in sorted(checkpoint.iterdir()):
        if path.name != "manifest.json" and path.is_file():
            files[path.name] = {"sha256": sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size}
    content = {"format": "axiomrl-checkpoint", "version": 1, "files": files}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    (checkpoint / "manifest.json").write_text(json.dumps(content | {"sha256": sha256(text.encode()).hexdigest()}))


def _fuzz_files(rng: random.Random, run: Path) -> None:
    """One to three of a run's own files, or what kind of file they are."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice([*FILES])
        path = run / name
        if rng.random() < 0.12:
            make_special(path, rng)
        elif path.is_file() and not path.is_symlink():
            path.write_bytes(FILES[name](path.read_bytes(), rng))


def _fuzzed_config(rng: random.Random, corpus: Corpus, folder: Path) -> list[str]:
    text = (rng.choice(corpus.runs) / "config.yaml").read_text()
    (folder / "c.yaml").write_bytes(mutate_yaml(text, rng))
    return ["train", "--config", str(folder / "c.yaml"), "--dry-run", *(["--json"] if rng.random() < 0.3 else [])]


def _fuzzed_result(rng: random.Random, corpus: Corpus, folder: Path) -> list[str]:
    path = folder / "results" / "r.json"
    path.parent.mkdir()
    path.write_bytes(mutate_json(corpus.result.read_bytes(), rng))
    shutil.copy(corpus.result, folder / "results" / "sound.json")
    options = rng.choice(([], ["--json"], ["--format", "csv"], ["--compare-to", str(corpus.result)]))
    return ["leaderboard", str(path.parent if rng.random() < 0.5 else path), *options]


def _run_cases(numbers: range, corpus: Corpus, folder: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    failures = []
    for number in numbers:
        place = folder / str(number)
        place.mkdir()
        kind, argv, outcome = run_case(number, corpus, place)
        counts[f"{kind} {argv[0]}: exit {outcome.code}"] += 1
        if outcome.problems:
            failures.append(f"case {number} ({kind}, {' '.join(argv)}): {outcome.problems}\n{outcome.err[-1500:]}")
        shutil.rmtree(place)
    print("\n".join(f"{count:5} {what}" for what, count in sorted(counts.items())))
    assert not failures, f"{len(failures)} of {len(numbers)} cases:\n" + "\n".join(failures[:20])
    return counts


def test_a_slice_of_damaged_files_ends_in_messages(corpus, tmp_path):
    counts = _run_cases(range(SLICE), corpus, tmp_path)
    codes = Counter({code: sum(n for what, n in counts.items() if what.endswith(f"exit {code}")) for code in (0, 1, 2)})
    assert min(codes.values()) > 0, f"some are read, some refused as damage and some as mistakes: {codes}"


@pytest.mark.torture
@pytest.mark.parametrize("first", range(1000, 1000 + FULL, CHUNK))
def test_thousands_of_damaged_files_end_in_messages(first, corpus, tmp_path):
    _run_cases(range(first, first + CHUNK), corpus, tmp_path)


def test_the_watch_sees_what_it_is_for(corpus, tmp_path, monkeypatch):
    """A fuzzer that notices nothing proves nothing."""
    import gymnasium as gym

    from rl_training.cli import report

    def broken(self: object) -> int:
        raise RuntimeError("\x1b[2J")

    monkeypatch.setattr(report.Command, "run", broken)
    problems = run_watched(["report", str(tmp_path)]).problems
    assert "traceback" in problems and any("raw" in problem for problem in problems)

    def importing(self: object) -> int:
        with suppress(Exception):
            gym.make("axiomrl_fuzz_canary:Env-v0")
        return 0

    monkeypatch.setattr(report.Command, "run", importing)
    assert run_watched(["report", str(tmp_path)]).problems == ["execution: import axiomrl_fuzz_canary"]
