"""The parts of the benchmark harness that decide what runs, where, and how it is timed."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import keep, parse
from benchmarks.cases import CASES, NOT_MEASURED, PEERS, find_case
from benchmarks.environments import CONSTRAINTS, PACKAGES, install_failure, torch_pin
from benchmarks.peers.common import Stopwatch, transitions
from benchmarks.runner import Entry, MeasurementError, entries, measure, within_reach


class Clock:
    """Seconds that pass only when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_what_follows_the_warm_up_is_timed() -> None:
    clock = Clock()
    watch = Stopwatch({"warmup": 100, "timed": 50, "max_seconds": 1000}, clock=clock)
    done = []
    for steps, clock.now in [(60, 1.0), (120, 3.0), (150, 4.0), (180, 7.0)]:
        done.append(watch.tick(steps))
    assert done == [False, False, False, True]
    result = watch.result()
    assert (result["steps"], result["seconds"], result["warmup_seconds"]) == (60, 4.0, 3.0)
    assert result["values"] == {"steps_per_second": 15.0}


def test_a_slow_library_is_cut_off_at_the_time_limit() -> None:
    clock = Clock()
    watch = Stopwatch({"warmup": 0, "timed": 10_000, "max_seconds": 5}, clock=clock)
    assert not watch.tick(0)
    clock.now = 6.0
    assert not watch.tick(0), "no step was taken yet, so there is no speed to speak of"
    assert watch.tick(30)
    assert watch.result()["values"] == {"steps_per_second": 5.0}


def test_a_round_has_ours_first_and_only_peers_that_can_do_the_case() -> None:
    sac, ppo = find_case("sac-pendulum"), find_case("ppo-cartpole")
    assert entries(sac, ["sb3", "sample_factory"], quick=False) == [
        Entry("ours", 1),
        Entry("ours", 2),
        Entry("sb3", 1),
        Entry("sb3", 2),
    ]
    assert entries(sac, ["sb3"], quick=True) == [Entry("ours", 1), Entry("sb3", 1)]
    assert Entry("d3rlpy", 1) not in entries(ppo, PEERS, quick=False)


def test_every_peer_either_does_a_case_or_has_a_reason_not_to() -> None:
    folder = Path(__file__).parents[3] / "benchmarks" / "peers"
    for peer in PEERS:
        script = (folder / f"{peer}.py").read_text()
        for case in CASES:
            function = "ppo" if case.kind == "startup" else case.kind
            able = f"def {function}(work: Work)" in script
            assert able or (peer, case.name) in NOT_MEASURED, (peer, case.name)
    assert set(PACKAGES) == {*PEERS, "defaults", "sb3_contrib"}


def test_the_quick_run_changes_only_what_it_names() -> None:
    case = find_case("sac-pendulum")
    full, quick = case.work_for(quick=False), case.work_for(quick=True)
    assert {name for name in full if full[name] != quick[name]} == {"learning_starts", "warmup", "timed", "max_seconds"}
    assert full["kind"] == "sac"
    for case in CASES:
        work = case.work_for(quick=False)
        assert work.get("warmup", 1) > 0 and work.get("learning_starts", 0) <= work.get("warmup", 10**9)


def test_options() -> None:
    quick = parse(["--quick"])
    assert (quick.peers, quick.rounds) == (["sb3"], 2)
    assert "ppo-halfcheetah" not in [case.name for case in quick.cases]
    chosen = parse(["--cases", "gae,import", "--peers", "torchrl", "--rounds", "7"])
    assert [case.name for case in chosen.cases] == ["gae", "import"]
    assert (chosen.peers, chosen.rounds, chosen.output.name) == (["torchrl"], 7, "cpu.json")


@pytest.mark.parametrize("arguments", [["--cases", "chess"], ["--peers", "sb4"], ["--rounds", "0"]])
def test_a_wrong_option_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(arguments)
    assert stopped.value.code == 2


def test_torch_is_pinned_for_every_peer() -> None:
    assert torch_pin("torchrl==1.0\ntorch==2.13.0\nnumpy==2.4\n") == "torch==2.13.0"
    assert torch_pin(CONSTRAINTS.read_text()).startswith("torch==2")
    with pytest.raises(ValueError, match="does not pin torch"):
        torch_pin("torchvision==1.0\n")


def test_the_reason_of_a_failed_installation_is_pips_own() -> None:
    stderr = "WARNING: slow\nERROR: Cannot install a and b\n  a 1.0 depends on numpy<1\n  b 2.0 depends on numpy>2\n"
    assert install_failure(stderr) == (
        "ERROR: Cannot install a and b; a 1.0 depends on numpy<1; b 2.0 depends on numpy>2"
    )
    assert install_failure("") == "pip failed without a message"


def test_a_measurement_is_a_fresh_process_that_answers_in_json() -> None:
    work = find_case("gae").work_for(quick=True) | {"steps": 4, "envs": 2, "repeats": 2}
    result = measure(Entry("ours", 1), Path(sys.executable), work)
    assert result["values"]["calls_per_second"] > 0
    assert result["torch_threads"] == 1
    with pytest.raises(MeasurementError, match="KeyError: 'chess'"):
        measure(Entry("ours", 1), Path(sys.executable), {"kind": "chess"})


def test_only_peers_near_the_fastest_are_measured_again() -> None:
    def found(name: str, value: float) -> dict[str, Any]:
        return {"values": {name: value}}

    ours, fast, near, far = (Entry(library, 1) for library in ("ours", "sb3", "tianshou", "torchrl"))
    rates = {ours: found("calls_per_second", 1.0), fast: found("calls_per_second", 100.0)}
    rates |= {near: found("calls_per_second", 60.0), far: found("calls_per_second", 59.0)}
    assert within_reach(find_case("gae"), rates) == {ours, fast, near}
    seconds = {ours: found("seconds", 9.0), fast: found("seconds", 1.0), far: found("seconds", 2.0)}
    assert within_reach(find_case("import"), seconds) == {ours, fast}
    assert within_reach(find_case("gae"), {ours: found("calls_per_second", 1.0)}) == {ours}
    assert within_reach(find_case("checkpoint"), {fast: {}, far: {}}) == {fast, far}


def test_measuring_a_case_again_replaces_its_record_only(tmp_path: Path) -> None:
    path = tmp_path / "performance" / "cpu.json"
    keep(path, "gae", {"rounds": 1})
    keep(path, "import", {"rounds": 2})
    keep(path, "gae", {"rounds": 3})
    assert json.loads(path.read_text()) == {"gae": {"rounds": 3}, "import": {"rounds": 2}}


def test_transitions_are_linked_within_an_episode_and_end_after_a_thousand_steps() -> None:
    steps = list(transitions({"obs": 3, "action": 2}, 1_500, num_envs=4))
    assert len(steps) == 1_500
    for (_, _, _, next_obs, _), (obs, action, reward, _, _) in pairwise(steps[:1_000]):
        assert (next_obs == obs).all() and action.shape == (4, 2) and reward.shape == (4,)
    assert [t for t, step in enumerate(steps) if step[4].all()] == [999]
