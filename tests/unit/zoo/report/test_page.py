"""The HTML page: what is in it, that all of it is escaped, and that it needs nothing else."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from helpers.report_runs import change_metadata, learning_run
from rl_training.zoo.report import sections
from rl_training.zoo.report.model import build_report
from rl_training.zoo.report.page import html_report
from rl_training.zoo.run_records import find_runs

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&`</style>"


class Tags(HTMLParser):
    """Every element of a page with its attributes; fails on one that is not closed."""

    VOID = {"meta", "img", "wbr"}

    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.found)


def page_of(folder: Path) -> str:
    records, skipped = find_runs([folder])
    return html_report(build_report(records, skipped, [folder], datetime(2026, 3, 1, tzinfo=UTC)), folder)


def test_scores_curves_and_facts_are_on_the_page(tmp_path: Path) -> None:
    for seed in range(5):
        learning_run(tmp_path / f"ppo{seed}", seed=seed)
        learning_run(tmp_path / f"dqn{seed}", seed=seed, algo="dqn", gain=20.0)
    page = page_of(tmp_path)
    tags = Tags(page)
    assert "2 groups on CartPole-v1" in page
    assert "<b>402.0</b>" in page, "PPO ends with 400 + seed, the mean of which is 402"
    assert tags.count("figure") == 2 and page.count('class="band"') == 4
    assert "<b>PPO</b> ends above <b>DQN</b> with probability 100" in page
    assert "Test CPU" in page and "2.6.0" in page


def test_everything_from_files_is_escaped(tmp_path: Path) -> None:
    run = learning_run(tmp_path / "run", env_id=HOSTILE, algo=HOSTILE, hyperparams={HOSTILE: HOSTILE})
    resume = {"at_utc": HOSTILE, "checkpoint": HOSTILE, "step": HOSTILE, "grade": HOSTILE, "notes": [HOSTILE]}
    change_metadata(
        run,
        status="failed",
        stop_reason=HOSTILE,
        resumes=[resume],
        versions={HOSTILE: HOSTILE},
        system={HOSTILE: HOSTILE},
        git={"commit": HOSTILE, "dirty": True},
    )
    learning_run(tmp_path / "other", seed=1, env_id=HOSTILE, algo=HOSTILE, hyperparams={HOSTILE: "b"})
    (tmp_path / "run" / "videos").mkdir()
    (tmp_path / "run" / "videos" / "<img onerror=alert(3)>.gif").write_bytes(b"GIF89a")
    page = page_of(tmp_path)
    tags = Tags(page)
    for name, attributes in tags.found:
        assert not any(attribute.startswith("on") for attribute in attributes), (name, attributes)
    assert tags.count("script") == 1 + tags.count("figure") - 1, "ours, and one with data per chart; the video has none"
    assert tags.count("style") == 1 and tags.count("img") == 1
    assert page.count("<script>") == 1 and "alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    learning_run(tmp_path / "run")
    page = page_of(tmp_path)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
    for name, attributes in Tags(page).found:
        assert "src" not in attributes and name != "link", (name, attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "default-src 'none'" in page


def test_every_link_on_the_page_has_its_place(tmp_path: Path) -> None:
    run = learning_run(tmp_path / "run", status="interrupted")
    change_metadata(run, resumes=[{"checkpoint": "step_1", "step": 1, "grade": "exact", "notes": []}])
    tags = Tags(page_of(tmp_path))
    places = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    links = [str(attributes["href"])[1:] for name, attributes in tags.found if name == "a"]
    assert len(set(places)) == len(places)
    assert set(links) <= set(places) and "run-0" in links and "resumes" in links


def test_a_small_video_is_in_the_page_and_a_large_one_is_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("small", 10), ("large", 2000)):
        run = learning_run(tmp_path / name, seed=size)
        (run / "videos").mkdir()
        (run / "videos" / "step_1 a.mp4").write_bytes(b"old")
        (run / "videos" / "step_2 b.mp4").write_bytes(b"x" * size)
    monkeypatch.setattr(sections, "VIDEO_BYTES", 1000)
    page = page_of(tmp_path)
    assert f'src="data:video/mp4;base64,{base64.b64encode(b"x" * 10).decode()}"' in page, "the newest one"
    assert 'href="large/videos/step_2%20b.mp4"' in page
    monkeypatch.setattr(sections, "ALL_VIDEO_BYTES", 5)
    assert "data:video" not in page_of(tmp_path), "all of them together are too large"


def test_findings_name_their_run_and_many_of_a_kind_are_folded(tmp_path: Path) -> None:
    for seed in range(8):
        learning_run(tmp_path / f"run{seed}", seed=seed, status="interrupted")
    page = page_of(tmp_path)
    assert page.count("The run was interrupted") == 1, "one card for all of them"
    assert "5 more runs" in page
    assert page.count("continue with <code") == 8, "each has a command of its own"


def test_a_page_without_any_score_still_stands(tmp_path: Path) -> None:
    run = learning_run(tmp_path / "run", status="running", points=1)
    (run / "metrics.jsonl").write_text("")
    (run / "evaluations.jsonl").write_text("")
    page = page_of(tmp_path)
    Tags(page)
    assert "Nothing was logged to draw." in page and "no score" in page
