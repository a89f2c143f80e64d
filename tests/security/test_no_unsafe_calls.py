"""Nothing in src/ can run code that it loads: the calls that could are absent, even from comments."""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FORBIDDEN = re.compile(
    r"pickle|torch\.load\b|eval\(|exec\(|yaml\.load\b|yaml\.load_all|yaml\.unsafe|UnsafeLoader|FullLoader"
    r"|\bmarshal\b|\bshelve\b|\bjoblib\b"
)


def findings(folder: Path) -> list[str]:
    """``file:line: text`` of every forbidden word in the Python files under ``folder``."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(folder)}:{number}: {line.strip()}")
    return found


def test_the_source_has_none():
    assert len(list(SOURCE.rglob("*.py"))) > 5
    assert findings(SOURCE) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "state = torch.load(path)",
        "load = torch.load",
        "value = eval(text)",
        "model.eval()",
        "exec(code)",
        "ast.literal_eval(text)",
        "yaml.load(stream, Loader=yaml.Loader)",
        "yaml.unsafe_load(stream)",
        "loader = yaml.UnsafeLoader",
        "loader = yaml.FullLoader",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_a_planted_one_is_found(line, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "clean.py").write_text("evaluate(1)\nexecute(2)\nyaml.safe_load(s)\n")
    (tmp_path / "package" / "planted.py").write_text(f"x = 1\n{line}\n")
    assert findings(tmp_path) == [f"package/planted.py:2: {line}"]
