"""A kill, a full disk and a broken one at every file-system call of a run: it says so, and resumed it leaves the same folder.

`make torture` disturbs every call; the ordinary suite a slice of them, each time another one.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="tells files apart by /proc")

TOOL = Path(__file__).parents[1] / "helpers" / "disk_torture.py"
CASES = [(algo, action) for action in ("kill", "enospc") for algo in ("ppo", "rainbow", "sac")]


def _torture(folder: Path, algo: str, action: str, stride: int) -> None:
    offset = random.randrange(stride)
    result = subprocess.run(
        [sys.executable, str(TOOL), str(folder / "torture"), algo, action, str(stride), str(offset)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    print(algo, action, {name: value for name, value in outcome.items() if name != "wrong"})
    assert outcome["wrong"] == {}, f"stride {stride}, offset {offset}"
    assert outcome["calls"] > 300 and outcome["cases"] >= outcome["calls"] // stride
    # Only the removal of leftovers may fail without ending the run.
    assert outcome["ended"].get("-9" if action == "kill" else "1", 0) >= 0.8 * outcome["cases"]


@pytest.mark.parametrize(
    ("algo", "action", "stride"), [("ppo", "kill", 60), ("rainbow", "kill", 110), ("sac", "enospc", 80)]
)
def test_a_slice_of_the_calls(algo, action, stride, tmp_path):
    _torture(tmp_path, algo, action, stride)


@pytest.mark.torture
@pytest.mark.parametrize(("algo", "action"), CASES)
def test_every_call(algo, action, tmp_path):
    _torture(tmp_path, algo, action, 1)


@pytest.mark.torture
@pytest.mark.parametrize("action", ["eio", "erofs"])
def test_every_third_call_on_a_broken_disk(action, tmp_path):
    _torture(tmp_path, "rainbow", action, 3)
