"""The documentation: links lead somewhere, commands and code exist, examples match what a run really writes."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.cli.main import COMMANDS, _parse
from rl_training.config import TrainConfig, load_config
from rl_training.experiment.build import complete_config
from rl_training.experiment.config_loader import preset_names

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
WITH_COMMANDS = [ROOT / "README.md", *DOCS]
WITH_LINKS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
ARTIFACTS = ROOT / "docs" / "run-artifacts.md"

_FENCE = re.compile(r"^[ ]*```(\w*)[^\n]*\n(.*?)^[ ]*```[ ]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)|(?:src|href|srcset)=\"([^\"\s]+)")
_COMMAND = re.compile(r"(?:^|&&)[ ]*(?:\$[ ]+)?(?:[\w./-]*/)?axiomrl[ ]+(\S.*)")
# A comment, the next command of a chain, or a column of explanation ends a command.
_COMMAND_END = re.compile(r"[ ]#|&&|[|;>]|[ ]{2,}")


def blocks(page: Path, language: str | None = None) -> list[str]:
    """The fenced code blocks of a page, of one language or of all."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [text for name, text in found if language is None or name == language]


def commands(page: Path) -> Iterator[str]:
    """What follows `axiomrl` in the code blocks of a page."""
    for block in blocks(page):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            for match in _COMMAND.finditer(line.strip()):
                yield _COMMAND_END.split(match[1])[0].strip()


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+[ ]+(.+?)[ ]*$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def cases(pages: list[Path], parts: Any) -> list[Any]:
    return [pytest.param(part, id=f"{page.name}:{i}") for page in pages for i, part in enumerate(parts(page))]


@pytest.mark.parametrize("page", WITH_LINKS, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in [first or second for first, second in _LINK.findall(prose(page))]:
        if re.match(r"[a-z]+:", target):  # https:, mailto:
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {target}; {file.name} has no such heading"


def test_there_are_commands_to_check() -> None:
    assert len(list(commands(ARTIFACTS))) >= 5
    assert len(cases(DOCS, lambda page: blocks(page, "python"))) >= 4


@pytest.mark.parametrize("command", cases(WITH_COMMANDS, commands))
def test_commands_exist_with_their_options_and_presets(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *arguments = shlex.split(command)
    if name in ("--version", "--help") or name.isupper() or re.fullmatch(r"\d+\.\d+\.\d+\S*", name):
        return  # an option of axiomrl itself, a placeholder such as COMMAND, or the output of --version
    assert name in COMMANDS, f"axiomrl {command}"
    arguments = [re.sub(r"^(.*=)?N$", r"\g<1>1", argument) for argument in arguments]
    try:
        parsed = _parse(name, arguments)
    except SystemExit as leaving:
        assert leaving.code == 0 and "--help" in arguments, f"axiomrl {command}\n{capsys.readouterr().err}"
        return
    options = getattr(parsed, "options", None)
    if options is None:
        return
    if options.preset is not None and not options.preset.strip("[]").isupper():
        assert options.preset in preset_names(), f"axiomrl {command}"
    if options.config is not None and options.config.parts[0] == "configs":
        assert (ROOT / options.config).is_file(), f"axiomrl {command}"


@pytest.mark.parametrize("code", cases(WITH_COMMANDS, lambda page: blocks(page, "python")))
def test_python_blocks_compile_and_their_imports_work(code: str) -> None:
    tree = ast.parse(code)
    compile(tree, "<docs>", "exec")
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), "<docs>", "exec"), {})


@pytest.mark.parametrize("text", cases(DOCS, lambda page: blocks(page, "json")))
def test_json_blocks_are_json(text: str) -> None:
    json.loads(text)


def test_the_example_config_is_complete_and_every_key_in_it_exists(tmp_path: Path) -> None:
    (text,) = [block for block in blocks(ARTIFACTS, "yaml") if "algo:" in block]
    assert set(yaml.safe_load(text)) == {field.name for field in fields(TrainConfig)}
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    config, _ = complete_config(load_config(path))
    assert config.to_yaml() == text, "a run writes its config in this form"


def test_the_snippet_reads_a_checkpoint_and_notices_damage(tmp_path: Path) -> None:
    agent = small_agent("ppo", tmp_path, total_timesteps=16)
    (code,) = [block for block in blocks(ARTIFACTS, "python") if "def read_tensors" in block]
    names: dict[str, Any] = {}
    exec(compile(code, "<docs>", "exec"), names)
    folder = agent.save(tmp_path / "agent")
    tensors = names["read_tensors"](folder)
    for name, value in agent.policy.state_dict().items():
        assert (tensors[f"weights.{name}"] == value.numpy()).all(), name
    damaged = bytearray((folder / "algorithm.safetensors").read_bytes())
    damaged[-1] ^= 1
    (folder / "algorithm.safetensors").write_bytes(damaged)
    with pytest.raises(ValueError, match="algorithm.safetensors is damaged"):
        names["read_tensors"](folder)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_every_key_a_run_writes_is_documented(algo: str, tmp_path: Path) -> None:
    agent = small_agent(algo, tmp_path, total_timesteps=256)
    run_dir = agent.learn().run_dir
    assert run_dir is not None
    documented = set(re.findall(r"`([^`\n]+)`", prose(ARTIFACTS)))
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        lines = (run_dir / file).read_text(encoding="utf-8").splitlines()
        written = {key for line in lines for key in json.loads(line)}
        assert len(written) > 8 and written <= documented, f"{file}: {sorted(written - documented)}"
        if algo == "ppo" and file == "metrics.jsonl":  # PPO has every metric that the page names
            named = {name for name in documented if re.fullmatch(r"(train|time)/\w+", name)}
            assert named <= written, f"not written: {sorted(named - written)}"
    metadata = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert set(metadata) <= documented, sorted(set(metadata) - documented)
    tree = blocks(ARTIFACTS)[1]
    assert all(entry.name in tree for entry in run_dir.iterdir())


def small_agent(algo: str, folder: Path, **settings: Any) -> Any:
    """A small agent that writes a run directory."""
    import rl_training

    hyperparams = {"num_steps": 8} if algo == "a2c" else {"num_steps": 8, "num_minibatches": 2}
    return getattr(rl_training, algo.upper())(
        "CartPole-v1",
        num_envs=2,
        output_dir=str(folder),
        hyperparams=hyperparams,
        evaluation={"every": 32, "episodes": 2},
        checkpoint={"every": 32},
        logging={"every": 16, "tensorboard": False, "console": "off"},
        **settings,
    )
