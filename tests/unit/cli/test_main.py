"""The command line: what it prints, its exit codes, and what it imports."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rl_training import __version__
from rl_training.cli.main import COMMANDS, _warn, main


def test_alone_it_names_the_commands_a_newcomer_needs(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("  axiomrl")] == [
        ["axiomrl", "train"],
        ["axiomrl", "train"],
        ["axiomrl", "eval"],
        ["axiomrl", "resume"],
        ["axiomrl", "check-env"],
        ["axiomrl", "doctor"],
    ]
    assert "axiomrl train --algo sac --env Pendulum-v1" in out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"axiomrl {__version__}\n"


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"axiomrl {name}" in capsys.readouterr().out


def test_unknown_command_is_exit_2_with_a_suggestion(capsys):
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'trian': did you mean 'train'?\n"


def test_unknown_option_is_exit_2(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--sed", "1"])
    assert stop.value.code == 2
    assert "--sed" in capsys.readouterr().err


def _modules_after(*arguments: str) -> set[str]:
    code = (
        "import sys\n"
        "from rl_training.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('MODULES', *sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(result.stdout.rsplit("MODULES", 1)[1].split())


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], [], ["train", "--help"], ["doctor"]])
def test_light_commands_do_not_import_torch(arguments):
    modules = _modules_after(*arguments)
    assert "rl_training.cli.main" in modules
    assert not modules & {"torch", "gymnasium", "tensorboard"}


def test_importtime_shows_no_torch_for_doctor():
    command = [sys.executable, "-X", "importtime", "-m", "rl_training.cli", "doctor"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = [line.split("|")[-1].strip() for line in result.stderr.splitlines() if line.startswith("import time:")]
    assert "rl_training.cli.options" in imported  # what the command module itself imports
    assert not [name for name in imported if name == "torch" or name.startswith("torch.")]


def test_listing_algorithms_does_not_import_torch():
    code = "import sys\nfrom rl_training.experiment import registry\nprint(*registry.algorithm_ids(), 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *algorithms, torch_loaded = result.stdout.split()
    assert {"ppo", "a2c", "dqn", "rainbow"} <= set(algorithms) and torch_loaded == "False"


def test_doctor_prints_stable_keys(capsys):
    assert main(["doctor"]) == 0
    lines = [line.split(": ", 1) for line in capsys.readouterr().out.splitlines()]
    assert all(len(line) == 2 for line in lines)
    keys = [key for key, _ in lines if key != "problem"]
    assert keys[:2] == ["axiomrl", "python"] and keys[-1] == "status"
    assert {"os", "cpu", "memory_gib", "torch", "cuda", "gymnasium", "extra.mujoco", "shared_memory_mib", "git"} <= set(
        keys
    )


def test_doctor_and_readme_know_the_extras_that_there_are():
    from rl_training.cli.doctor import EXTRAS

    root = Path(__file__).parents[3]
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(declared)
    (named,) = re.findall(r"Extras: (.*?), e\.g\.", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == set(declared)


def test_every_package_of_an_extra_is_used():
    """By our code, or by the environments that the extra is for."""
    root = Path(__file__).parents[3]
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    # For rendering MuJoCo's, for stepping Box2D's environments, and for the wrapper AtariPreprocessing.
    gymnasium_needs = {"imageio", "pygame-ce", "opencv-python-headless"}
    packages = {re.match(r"[\w-]+", item)[0] for extra in ("mujoco", "box2d", "atari") for item in declared[extra]}
    source = " ".join(path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py")).lower()
    unused = [name for name in packages - gymnasium_needs if f'"{name.replace("-", "_")}"' not in source]
    assert unused == []


def test_doctor_json(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"] == "ok" and facts["extra.mujoco"] is True and facts["torch"].startswith("2.")


def test_doctor_says_what_is_wrong_and_how_to_mend_it(monkeypatch, capsys):
    from rl_training.cli import doctor

    facts = {**doctor.gather_facts(), "torch": None, "gpu": ["H200"], "shared_memory_mib": 1, "cuda": None}
    monkeypatch.setattr(doctor, "gather_facts", lambda: facts)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert 'problem: torch is not installed (fix: pip install "torch")' in out
    assert "--shm-size" in out and "status: cannot train" in out


def test_doctor_notices_a_cpu_build_beside_a_gpu():
    from rl_training.cli.doctor import find_problems, gather_facts

    facts = {**gather_facts(), "gpu": ["H200"], "cuda": None}
    assert [problem["fatal"] for problem in find_problems(facts)] == [False]


def test_a_bug_shows_its_traceback_and_exit_1(monkeypatch, capsys):
    from rl_training.cli import doctor

    def broken():
        raise ZeroDivisionError("planted")

    broken.__code__ = broken.__code__.replace(co_filename=doctor.__file__)  # as if it were ours
    monkeypatch.setattr(doctor, "gather_facts", broken)
    assert main(["doctor"]) == 1
    err = capsys.readouterr().err
    assert "planted" in err and err.splitlines()[-1].startswith("error: this is a bug in AxiomRL")


def test_a_failure_in_the_users_code_is_not_called_a_bug_of_ours(monkeypatch, capsys):
    from rl_training.cli import doctor

    def broken():
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(doctor, "gather_facts", broken)
    assert main(["doctor"]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert "test_main.py:" in last and "ZeroDivisionError: planted" in last and "bug" not in last


@pytest.mark.parametrize("code", [0, 3, None])
def test_sys_exit_in_the_middle_of_a_command_is_a_failure(code, monkeypatch, capsys):
    from rl_training.cli import doctor

    monkeypatch.setattr(doctor, "gather_facts", lambda: sys.exit(code))
    assert main(["doctor"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the code at ") and f"sys.exit({code})" in line and "test_main.py:" in line


def test_a_path_that_no_file_system_takes_is_exit_2(capsys):
    for command in ("eval", "resume", "report", "watch", "leaderboard"):
        assert main([command, "x" * 300]) == 2, command
        err = capsys.readouterr().err
        assert err.startswith("error: ") and err.count("\n") == 1, command


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "run\udcff"],
        ["resume", "run\udcff"],
        ["train", "--output-dir=run\udcff"],
        ["zoo", "benchmark", "smoke", "--output", "\udcff"],
        ["report", "--format", "html", "run\udcff"],
    ],
)
def test_names_that_are_no_text_are_exit_2(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run\udcff" / "checkpoints").mkdir(parents=True)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "udcff' is not UTF-8 text" in line


def test_warnings_are_one_plain_line(capsys):
    _warn(UserWarning("\x1b[33mWARN: The environment CartPole-v0 is out of date.\x1b[0m"))
    assert capsys.readouterr().err == "warning: The environment CartPole-v0 is out of date.\n"


def test_a_reader_that_leaves_does_not_end_a_command(tmp_path):
    """As with `axiomrl train … 2>&1 | head -1`: the run goes on to its end in silence."""
    short = ["--total-timesteps=256", "--num-envs=2", "--set=hyperparams.num_steps=32", "--set=logging.every=0"]
    arguments = ["train", "a2c", "--env=CartPole-v1", *short, "--set=logging.tensorboard=false"]
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "rl_training.cli", *arguments, f"--output-dir={tmp_path}"]
    process = subprocess.Popen(command, stdout=writer, stderr=writer)
    os.close(writer)
    os.close(reader)
    assert process.wait(timeout=120) == 0
    (run_dir,) = tmp_path.iterdir()
    assert json.loads((run_dir / "metadata.json").read_text())["status"] == "completed"


def test_doctor_tries_gl_backends_when_asked(monkeypatch, capsys):
    from rl_training.cli import doctor

    monkeypatch.setattr(doctor, "_draws", lambda backend: backend == "egl" or "no library")
    assert main(["doctor", "--gl", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["gl.egl"], facts["gl.osmesa"]) == (True, "no library")
    assert not any("GL backend" in problem["problem"] for problem in facts["problems"])
    monkeypatch.setattr(doctor, "_draws", lambda backend: "no library")
    assert main(["doctor", "--gl"]) == 0
    assert "no GL backend draws (egl: no library; osmesa: no library)" in capsys.readouterr().out


def test_a_gl_backend_that_is_not_there_says_why():
    from rl_training.cli.doctor import _draws

    assert "MUJOCO_GL" in str(_draws("nonsense"))
