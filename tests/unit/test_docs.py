"""The documentation: links lead somewhere, commands and code work, and what a page shows is what a reader will see."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from helpers.doc_pages import blocks, command_lines, prose, shows, skeleton
from helpers.doc_session import Kitchen, Session
from rl_training.cli.main import COMMANDS, parse_command
from rl_training.config import TrainConfig, load_config
from rl_training.envs.wrappers import WRAPPERS
from rl_training.experiment.config.loader import preset_names
from rl_training.experiment.registry import ALGORITHMS
from rl_training.experiment.run.build import complete_config
from rl_training.utils.errors import UserError

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
GENERATED = sorted((ROOT / "docs" / "algorithms").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
ARTIFACTS, EVIDENCE, START = (ROOT / "docs" / name for name in ("run-artifacts.md", "evidence.md", "start-here.md"))
LANGUAGES = {"bash", "text", "python", "yaml", "json", "toml"}

_LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)|(?:src|href|srcset)=\"([^\"\s]+)")
_INLINE_COMMAND = re.compile(r"`(?:\.venv/bin/)?axiomrl ([^`]+)`")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+[ ]+(.+?)[ ]*$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def cases(pages: list[Path], parts: Any) -> list[Any]:
    return [pytest.param(part, id=f"{page.name}:{i}") for page in pages for i, part in enumerate(parts(page))]


def texts(page: Path, language: str) -> list[str]:
    return [block.text for block in blocks(page, language)]


@pytest.mark.parametrize("page", [*PAGES, *GENERATED], ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in [first or second for first, second in _LINK.findall(prose(page))]:
        if re.match(r"[a-z]+:", target):  # https:, mailto:
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {target}; {file.name} has no such heading"


@pytest.mark.parametrize("page", [*PAGES, *GENERATED], ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    unknown = [(block.line, block.language) for block in blocks(page) if block.language not in LANGUAGES]
    assert unknown == [], f"{page.name}: bash for commands, text for output, or one of {sorted(LANGUAGES)}"


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Kitchen:
    return Kitchen(tmp_path_factory.mktemp("kitchen"))


@pytest.fixture
def session(kitchen: Kitchen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    modules, environments = set(sys.modules), set(gymnasium.registry)
    for known in (ALGORITHMS, WRAPPERS):
        monkeypatch.setattr(known, "things", dict(known.things))
    yield Session(tmp_path, kitchen)
    for name in set(sys.modules) - modules:  # what a page has saved and imported
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    for name in set(gymnasium.registry) - environments:
        del gymnasium.registry[name]


@pytest.mark.slow
@pytest.mark.xdist_group("docs")  # one kitchen for all pages
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_works_from_top_to_bottom(page: Path, session: Session) -> None:
    """Commands and code are run in order, in one folder, and what the page shows is compared with what they print."""
    if page not in (START, ROOT / "README.md"):  # other pages take a finished run for granted
        assert session.run("axiomrl train").code == 0
    session.play(page)


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_the_commands_and_code_of_generated_pages(page: Path, session: Session, tmp_path: Path) -> None:
    """Checked but not trained: the conformance suite trains every algorithm, and these commands take minutes to hours."""
    for block in blocks(page, "bash"):
        for line in command_lines(block):
            check_command(line.removeprefix("axiomrl "))
    for block in blocks(page, "python"):
        assert block.text.rstrip().endswith("agent.learn()")
        session.execute(block, instead={"agent.learn()": "agent.close()"})


@pytest.mark.parametrize("command", cases(PAGES, lambda page: _INLINE_COMMAND.findall(prose(page))))
def test_commands_in_the_text_exist_with_their_options(command: str) -> None:
    check_command(command)


def check_command(command: str) -> None:
    """Parses a command; capitals stand for something of the reader's."""
    name, *arguments = shlex.split(command)
    if name in ("--version", "--help") or name.isupper():
        return
    assert name in COMMANDS, f"axiomrl {command}"
    if not arguments:  # the mention of a command, perhaps of one that needs more words
        return
    sample = {"N": "1", "KEY=VALUE": "seed=1", "[PRESET]": "ppo/cartpole", "PRESET": "ppo/cartpole"}
    try:
        parsed = parse_command(name, [sample.get(argument, argument) for argument in arguments])
    except UserError as error:
        raise AssertionError(f"axiomrl {command}: {error}") from None
    except SystemExit as leaving:
        assert leaving.code == 0, f"axiomrl {command}"
        return
    options = getattr(parsed, "options", None)
    preset = getattr(options, "preset", None) or getattr(parsed, "preset", None)
    assert preset is None or preset in preset_names() or preset in ALGORITHMS, f"axiomrl {command}"


def test_what_a_page_shows_is_compared_line_by_line() -> None:
    real = "loading\nscore 500.0 in 14 s\nrun: runs/ppo__X-v1__seed0__20261115-100009-014998\n\nnext\nlast"
    assert shows("score 1.5 in 3 s\nrun: runs/ppo__X-v1__seed0__20200101-000000-000000", real, exactly=False) is None
    assert shows("loading\n…\nnext", real, exactly=False) is None
    assert shows("score 1.5 in 3 s", real, exactly=True) == "score 1.5 in 3 s"
    assert shows("loading\nnext", real, exactly=False) == "next", "lines are missing in between"
    assert shows("next\n…\nloading", real, exactly=False) == "loading", "in this order"
    assert shows("score 500.0 after 14 s", real, exactly=False) == "score 0 after 0 s"
    assert skeleton("│ reached -1,660.9  ▁▂█ of 2e-16 in 4 min 02 s │") == "reached 0 of 0 in 0 s"
    assert skeleton("exit code 3") == "exit code 3"
    assert skeleton("CartPole-v1 100k") == "CartPole-v1 0"


def test_the_findings_that_the_pages_name_are_those_that_exist() -> None:
    folder = ROOT / "src" / "rl_training" / "zoo" / "report"
    source = "".join((folder / name).read_text(encoding="utf-8") for name in ("learning_rules.py", "run_rules.py"))
    made = [
        [argument.value for argument in node.args[:3] if isinstance(argument, ast.Constant)]
        for node in ast.walk(ast.parse(source.replace("from __future__ import annotations", "")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    ]
    kinds = {tuple(reversed(finding[:2])) for finding in made if len(finding) == 3}
    rows = re.findall(r"^\| (problem|warning|note) \| (.+) \|$", prose(EVIDENCE), re.MULTILINE)
    named = {(severity, kind) for severity, row in rows for kind in re.findall(r"`(\w+)`", row)}
    assert {kind for kind in named if not kind[1].startswith("slow_")} == kinds - {("note", "slow_aside")}
    titles = {finding[2] for finding in made if len(finding) == 3}
    table = prose(START).partition("| the report says |")[2].partition("\n\n")[0]
    shown = re.findall(r"^\| ([A-Z][^|]+?) \|", table, re.MULTILINE)
    assert len(shown) >= 8 and set(shown) <= titles


@pytest.mark.parametrize("text", cases(DOCS, lambda page: texts(page, "json")))
def test_json_blocks_are_json(text: str) -> None:
    json.loads(text)


def test_the_example_config_is_complete_and_every_key_in_it_exists(tmp_path: Path) -> None:
    (text,) = [block for block in texts(ARTIFACTS, "yaml") if "algo:" in block]
    assert set(yaml.safe_load(text)) == {field.name for field in fields(TrainConfig)}
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    config, _ = complete_config(load_config(path))
    assert config.to_yaml() == text, "a run writes its config in this form"


def test_the_snippet_reads_a_checkpoint_and_notices_damage(tmp_path: Path) -> None:
    agent = small_agent("ppo", tmp_path, total_timesteps=16)
    (code,) = [block for block in texts(ARTIFACTS, "python") if "def read_tensors" in block]
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
    (tree,) = [block for block in texts(ARTIFACTS, "text") if "config.yaml " in block]
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
