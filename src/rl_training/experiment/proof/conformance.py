"""`check_algorithm`: the suite that every registered algorithm must pass, whoever wrote it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.envs.builtin.synthetic import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    UNSUPPORTED_ACTION_SPACES,
    UNSUPPORTED_OBSERVATION_SPACES,
)
from rl_training.execution.batches import count_of, mapped, tensors_of
from rl_training.experiment import registry
from rl_training.experiment.checkpoint.codec import decode, encode
from rl_training.experiment.checkpoint.snapshot import RESUME_IGNORES, config_of, restore, spaces_of
from rl_training.experiment.checkpoint.store import read_checkpoint, write_checkpoint
from rl_training.experiment.proof.bench import Bench, ConformanceError, require, snapshot
from rl_training.experiment.run.build import build_algorithm, complete_config
from rl_training.experiment.run.device import select_device
from rl_training.policies.policy import ActingState, restarted
from rl_training.runtime.collector import obs_to_torch
from rl_training.utils.coerce import did_you_mean
from rl_training.utils.errors import SpaceError, UserError
from rl_training.utils.global_random import seeded_global_rng
from rl_training.utils.spaces import space_name
from rl_training.utils.trees import differing_paths

DEFAULT_TIMESTEPS = 520

ACTING_STEPS = 5
"""Steps that a policy acts for where its actions are compared: what it remembers must have had its effect."""

FEW_STEPS, OFTEN = 80, 8
"""Environment steps of the runs that are compared with eager ones, and recordings of one function that are too many in them."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check."""

    name: str
    problem: str | None
    """What went wrong; None if nothing did."""
    seconds: float

    @property
    def passed(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class ConformanceReport:
    """All checks of one algorithm."""

    algo: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if not result.passed)

    def raise_if_failed(self) -> None:
        """Raises ConformanceError with every failure."""
        if not self.passed:
            raise ConformanceError(str(self))

    def __str__(self) -> str:
        marks = {True: "ok    ", False: "FAILED"}
        lines = [f"{marks[r.passed]} {r.name} ({r.seconds:.1f} s)" for r in self.results]
        lines += [f"\n{r.name}: {r.problem}" for r in self.failures]
        return f"conformance of {self.algo!r}\n" + "\n".join(lines)


def check_algorithm(
    algo: str,
    *,
    total_timesteps: int | None = None,
    hyperparams: Mapping[str, Any] | None = None,
    seed: int = 1,
    device: str = "cpu",
    only: Collection[str] = (),
) -> ConformanceReport:
    """Puts a registered algorithm through the whole suite, on small synthetic environments.

    `total_timesteps` (520 by default) is the length of each training; it must hold at least two iterations, because one check stops
    and resumes in between. `hyperparams` are the algorithm's own settings, e.g. fewer steps before learning starts. `only` names
    the checks to run, all by default. The global random generators are left as they were. The checks:

    - same_seed: two runs with one seed end in the same state, whatever the global generators do; another seed does not.
    - save_load: a policy read back from disk acts the same, deterministically and by samples, over several steps.
    - memory: what a policy remembers of one environment depends on no other, and it acts on what it is given back.
    - split_run: a run stopped half-way, saved, built anew and resumed ends bit for bit like one never stopped.
    - state_tree: the whole state comes through the checkpoint format exactly.
    - evaluation: evaluating during training changes nothing in it.
    - execution: it trains as written, too, a short run ends within rounding of the recorded one, and nothing is recorded over and
      over again.
    - observation_space:NAME, action_space:NAME: trains in each space it declares, with finite metrics.
    - refusals: every other space is refused with SpaceError.
    """
    steps = DEFAULT_TIMESTEPS if total_timesteps is None else total_timesteps
    bench = Bench(algo, steps, dict(hyperparams or {}), seed, select_device(device))
    checks: dict[str, Callable[[], None]] = {
        "same_seed": lambda: _check_same_seed(bench),
        "save_load": lambda: _check_save_load(bench),
        "memory": lambda: _check_memory(bench),
        "split_run": lambda: _check_split_run(bench),
        "state_tree": lambda: _check_state_tree(bench),
        "evaluation": lambda: _check_evaluation(bench),
        "execution": lambda: _check_execution(bench),
        "refusals": lambda: _check_refusals(bench),
    }
    declared = registry.load(algo)
    for name in declared.observation_spaces:
        checks[f"observation_space:{name}"] = lambda name=name: _check_observation_space(bench, name)  # type: ignore[misc]
    for name in declared.action_spaces:
        checks[f"action_space:{name}"] = lambda name=name: _check_action_space(bench, name)  # type: ignore[misc]
    unknown = sorted(set(only) - set(checks))
    if unknown:
        raise UserError(f"{algo} has no check named {unknown[0]!r}{did_you_mean(unknown[0], checks)}")
    selected = {name: check for name, check in checks.items() if not only or name in only}
    return ConformanceReport(algo, tuple(_run_check(name, check) for name, check in selected.items()))


def _run_check(name: str, check: Callable[[], None]) -> CheckResult:
    begin, problem = time.perf_counter(), None
    try:
        with seeded_global_rng(0):
            check()
    except ConformanceError as error:
        problem = str(error)
    except Exception as error:  # whatever an algorithm does wrong belongs into the report
        problem = f"{type(error).__name__}: {error}"
    return CheckResult(name, problem, time.perf_counter() - begin)


def _check_same_seed(bench: Bench) -> None:
    runs = []
    for global_seed in (1, 2):
        with seeded_global_rng(global_seed):  # nothing in a run may depend on what the process drew before
            runs.append(bench.trained())
    _require_same(runs[0], runs[1], "two runs with the same seed end in different states", ("runtime.timer",))
    other = bench.trained(seed=bench.seed + 1)
    same = differing_paths(runs[0]["policy"]["weights"], other["policy"]["weights"])
    require(bool(same), "runs with different seeds end with the same weights")


def _check_save_load(bench: Bench) -> None:
    with bench.session() as session, _folder() as folder:
        session.train()
        write_checkpoint(folder, *session.snapshot())
        checkpoint = read_checkpoint(folder)
        trained = session.algorithm
        # Another seed, so that fresh weights cannot pass for loaded ones.
        config, hyperparams = complete_config(replace(config_of(checkpoint, bench.algo), seed=bench.seed + 1))
        saved_spaces = spaces_of(checkpoint)
        loaded = build_algorithm(config, hyperparams, saved_spaces.observation, saved_spaces.action, bench.device)
        restore(checkpoint, loaded, None)
        _require_same(trained.policy.state_dict(), loaded.policy.state_dict(), "loaded weights differ")
        obs = obs_to_torch(bench.observations(), bench.device)
        for deterministic in (True, False):
            ours, theirs = (_acts(algorithm, obs, deterministic) for algorithm in (trained, loaded))
            kind = "deterministic" if deterministic else "sampled"
            for number, (one, other) in enumerate(zip(ours, theirs)):
                _require_same(
                    one, other, f"{kind} actions of the loaded policy, or what it remembers, differ at step {number}"
                )


def _check_memory(bench: Bench) -> None:
    """Passes for a policy without a memory, which returns None for it."""
    with bench.session() as session:
        session.train()
        algorithm, obs = session.algorithm, obs_to_torch(bench.observations(), bench.device)
    count = count_of(obs)
    if algorithm.policy.initial_state(count) is None:
        require(all(state is None for _, state in _acts(algorithm, obs, True)), "begins with no memory and returns one")
        return
    straight, again = (_acts(algorithm, obs, True) for _ in range(2))
    _require_same(
        straight, again, "acts otherwise when it is given the same states again: it remembers something elsewhere"
    )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(5)).to(bench.device)
    mixed = _acts(algorithm, mapped(lambda rows: rows[order], obs), True, order=order)
    for (_, state), (_, other) in zip(straight, mixed):
        for one, its in zip(tensors_of(state), tensors_of(other), strict=True):
            require(
                len(one) == count, f"remembers a tensor {tuple(one.shape)}, whose rows are not the {count} environments"
            )
            near = torch.allclose(one[order].double(), its.double(), rtol=1e-4, atol=1e-4, equal_nan=True)
            require(near, "what it remembers of one environment depends on its place among the others")


def _check_split_run(bench: Bench) -> None:
    whole = bench.trained()
    with _folder() as folder:
        with bench.session(stop_at=bench.total_timesteps // 2) as session:
            session.train()
            stopped_at = session.trainer.global_step
            require(
                stopped_at < bench.total_timesteps,
                f"one iteration takes all of the {bench.total_timesteps} steps, so there is no middle: train for longer",
            )
            write_checkpoint(folder, *session.snapshot())
        checkpoint = read_checkpoint(folder)
    with seeded_global_rng(3), bench.session() as session:  # the new process has drawn something else
        session.resume(checkpoint)
        require(session.resume_grade == "exact", f"the environments came back only as {session.resume_grade!r}")
        _require_same(
            dict(checkpoint.groups),
            snapshot(session),
            "the state right after loading is not the saved one",
            RESUME_IGNORES,
        )
        session.train()
        _require_same(
            whole, snapshot(session), f"a run resumed at step {stopped_at} ends in another state", RESUME_IGNORES
        )


def _check_state_tree(bench: Bench) -> None:
    groups = bench.trained()
    for name, tree in groups.items():
        document, tensors = encode(tree, name)
        returned = decode(json.loads(json.dumps(document, allow_nan=False)), tensors, name)
        _require_same(tree, returned, f"group {name!r} changes on its way through the checkpoint format")


def _check_evaluation(bench: Bench) -> None:
    without = bench.trained()
    with bench.session(evaluate=True) as session:
        session.train()
        require(session.trainer.last_evaluation is not None, "no evaluation took place")
        _require_same(
            without,
            snapshot(session),
            "evaluating during training changes the training",
            ("runtime.timer", "runtime.callbacks", "runtime.last_evaluation"),
        )


def _check_execution(bench: Bench) -> None:
    """Only the first few updates are compared: rounding grows, and at last makes for other actions."""
    weights: dict[str, dict[str, Tensor]] = {}
    for execution in ("eager", "auto"):
        with bench.session(execution=execution, stop_at=FEW_STEPS) as session:
            session.train()
            weights[execution] = {
                name: value.detach().cpu() for name, value in session.algorithm.policy.state_dict().items()
            }
            often = [function.name for function in session.algorithm.executor.functions if function.recordings > OFTEN]
            require(
                not often,
                f"{', '.join(often)} is recorded over and over again: name attributes that change between updates in `unwatched`",
            )
    for name, wanted in weights["eager"].items():
        found = weights["auto"][name]
        near = torch.allclose(found.double(), wanted.double(), rtol=1e-3, atol=1e-3, equal_nan=True)
        require(near, f"recorded updates end with another {name} than updates as written")
    _require_same(
        bench.trained(execution="eager"), bench.trained(execution="eager"), "two eager runs differ", ("runtime.timer",)
    )


def _check_observation_space(bench: Bench, name: str) -> None:
    require(name in OBSERVATION_SPACES, f"declares {name!r}, which is not one of {sorted(OBSERVATION_SPACES)}")
    for space in OBSERVATION_SPACES[name]:
        _train_in(bench, observation_space=space)


def _check_action_space(bench: Bench, name: str) -> None:
    require(name in ACTION_SPACES, f"declares {name!r}, which is not one of {sorted(ACTION_SPACES)}")
    for space in ACTION_SPACES[name]:
        _train_in(bench, action_space=space)


def _train_in(bench: Bench, **space: Any) -> None:
    (where,) = space.values()
    try:
        with bench.session(**space) as session:
            policy = session.algorithm.policy
            before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
            session.train()
    except Exception as error:
        raise ConformanceError(f"fails in {where}: {type(error).__name__}: {error}") from error
    require(bool(differing_paths(before, dict(policy.named_parameters()))), f"learns nothing in {where}")
    weights = policy.state_dict()
    broken = [name for name, value in weights.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    require(not broken, f"weights are not finite in {where}: {', '.join(broken)}")


def _check_refusals(bench: Bench) -> None:
    declared = bench.algorithm_class
    observations = [s for s in _all(OBSERVATION_SPACES) if space_name(s) not in declared.observation_spaces]
    for space in (*observations, *UNSUPPORTED_OBSERVATION_SPACES):
        _require_refusal(bench, space, bench.action_space, f"observations in {space}")
    actions = [s for s in _all(ACTION_SPACES) if space_name(s) not in declared.action_spaces]
    for space in (*actions, *UNSUPPORTED_ACTION_SPACES):
        _require_refusal(bench, bench.observation_space, space, f"actions in {space}")


def _require_refusal(bench: Bench, observed: spaces.Space[Any], acted: spaces.Space[Any], what: str) -> None:
    try:
        bench.build(observed, acted)
    except SpaceError as error:
        require(bool(str(error).strip()), f"refuses {what} without saying why")
    except Exception as error:
        raise ConformanceError(f"refuses {what} with {type(error).__name__} instead of SpaceError: {error}") from error
    else:
        raise ConformanceError(f"accepts {what}, which it does not declare or cannot handle")


def _acts(
    algorithm: Algorithm[Any, Any], obs: Any, deterministic: bool, order: Tensor | None = None
) -> list[tuple[Tensor, ActingState]]:
    """Actions and what is remembered over several steps; in the middle every other episode ends. `order` says how the rows of the
    observations were put in another order, so that the same episodes end."""
    policy: Any = algorithm.policy
    policy.train(False)
    generator, count = torch.Generator(algorithm.device).manual_seed(11), count_of(obs)
    initial = state = policy.initial_state(count)
    ended = torch.arange(count, device=algorithm.device) % 2 == 0
    found = []
    for step in range(ACTING_STEPS):
        actions, state = policy.act(obs, state, generator=generator, deterministic=deterministic)
        found.append((actions, state))
        if step == ACTING_STEPS // 2:
            state = restarted(state, initial, ended if order is None else ended[order])
    return found


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="axiomrl-conformance-") as parent:
        yield Path(parent) / "checkpoint"


def _all(examples: Mapping[str, tuple[spaces.Space[Any], ...]]) -> list[spaces.Space[Any]]:
    return [space for group in examples.values() for space in group]


def _require_same(a: Any, b: Any, problem: str, ignore: tuple[str, ...] = ()) -> None:
    paths = differing_paths(a, b, ignore)
    if paths:
        shown = ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
        raise ConformanceError(f"{problem}; these differ: {shown}")
