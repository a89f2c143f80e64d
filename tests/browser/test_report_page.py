"""The report page in a real browser: quiet, offline, within a phone's width, readable in both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.chromium import Chromium, Page, find_chromium
from helpers.report_runs import change_metadata, learning_run
from rl_training.cli.main import main

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here; on Debian: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),  # one browser for all of them
]
SIZES = pytest.mark.parametrize("width", [375, 1280])
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])
# The first chart of the environment with two groups.
READOUT = "document.querySelector('.environment:has(.legend) .readout')"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"

# Text whose contrast with its background is below 4.5 (WCAG AA), with half-transparent backgrounds of ancestors in mind.
LOW_CONTRAST = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ["SCRIPT", "TITLE", "DESC"].includes(element.tagName.toUpperCase())) continue;
    const [one, two] = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    if (ratio < 4.5) bad.push(`${walker.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }
  return bad;
})()"""

# Elements that stick out of the window without being inside a box that scrolls.
STICKING_OUT = """[...document.querySelectorAll("body *")].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.width && !element.closest(".scroll, svg, caption, .scores thead") && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((element) => element.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two environments, two groups with bands, a failed and a hostile run, a resume, a video, and a skipped folder."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(5):
        learning_run(folder / f"ppo__CartPole-v1__seed{seed}__20260101-000000-000000", seed=seed)
        learning_run(folder / f"dqn__CartPole-v1__seed{seed}__20260101-000000-000001", seed=seed, algo="dqn", gain=30.0)
    run = learning_run(folder / "sac__Pendulum-v1__seed0__20260101-000000-000002", algo="sac", env_id="Pendulum-v1")
    resume = {"at_utc": "2026-01-01T00:00:00+00:00", "checkpoint": "step_000001000", "step": 1000}
    change_metadata(run, resumes=[{**resume, "grade": "episode-boundary", "notes": ["environment 0 differs"]}])
    (run / "videos").mkdir()
    (run / "videos" / "step_1000.gif").write_bytes(
        bytes.fromhex("47494638396101000100800000000000ffffff21f90401000000002c00000000010001000002024401003b")
    )
    hostile = learning_run(folder / "hostile", env_id=HOSTILE, algo=HOSTILE)
    change_metadata(hostile, status="failed", stop_reason=HOSTILE, versions={HOSTILE: HOSTILE})
    (folder / "half").mkdir()
    (folder / "half" / "metadata.json").write_text("{")
    assert main(["report", str(folder), "--format", "html"]) == 0
    return folder / "report.html"


@pytest.fixture
def page(browser: Chromium) -> Page:
    return browser.new_page()


@SIZES
@SCHEMES
def test_the_page_is_quiet_offline_and_fits(page: Page, report: Path, width: int, scheme: str) -> None:
    page.open(report, width=width, scheme=scheme)
    assert page.problems == [], "errors, warnings or dialogs"
    assert [url for url in page.requests if not url.startswith(("data:", report.as_uri()))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(STICKING_OUT) == []
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate("document.querySelectorAll('.chart').length") == 6


def test_both_colour_schemes_are_drawn(page: Page, report: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page.open(report, width=1280, scheme=scheme)
        colours[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        strokes = page.evaluate(
            "[...document.querySelectorAll('.environment .legend .mean')].slice(0, 2).map((e) => getComputedStyle(e).stroke)"
        )
        assert len(set(strokes)) == 2, "two groups, two colours"
    brightness = {scheme: sum(map(int, text[4:-1].split(","))) for scheme, text in colours.items()}
    assert brightness["light"] > 700 and brightness["dark"] < 100


@SIZES
def test_lines_lie_inside_their_chart(page: Page, report: Path, width: int) -> None:
    page.open(report, width=width)
    outside = page.evaluate("""[...document.querySelectorAll(".chart")].flatMap((chart) => {
      const area = chart.querySelector(".area").getBoundingClientRect();
      return [...chart.querySelectorAll(".mean")].map((path) => path.getBoundingClientRect()).filter((box) =>
        box.width < area.width * 0.3 || box.left < area.left - 2 || box.right > area.right + 2 ||
        box.top < area.top - 2 || box.bottom > area.bottom + 2);
    }).length""")
    assert outside == 0


@SIZES
def test_pointing_at_a_chart_shows_its_values(page: Page, report: Path, width: int) -> None:
    """PPO's seeds have 200, 201, ..., 204 at step 4000."""
    page.open(report, width=width)
    left, top, wide, high = page.evaluate("""(() => {
      const area = document.querySelector(".environment:has(.legend) .area");
      area.scrollIntoView({block: "center", behavior: "instant"});
      const box = area.getBoundingClientRect();
      return [box.left, box.top, box.width, box.height];
    })()""")
    assert page.evaluate(f"{READOUT}.checkVisibility()") is False
    page.move_mouse(left + wide * 0.51, top + high / 2)
    text = page.evaluate(f"{READOUT}.innerText")
    assert "step 4,000" in text and "PPO" in text and "202.0 (2" in text, text
    assert page.evaluate(f"{READOUT}.querySelector('svg').getBoundingClientRect().width") < 40, (
        "a piece of the group's line"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width and page.evaluate(STICKING_OUT) == []
    page.move_mouse(2, 2)
    assert page.evaluate(f"{READOUT}.checkVisibility()") is False


def test_the_keyboard_reads_a_chart_too(page: Page, report: Path) -> None:
    page.open(report, width=1280)
    page.evaluate("document.querySelector('.environment:has(.legend) .area').focus()")
    page.press("ArrowLeft")
    assert "step 8,000" in page.evaluate(f"{READOUT}.innerText")
    page.press("ArrowLeft")
    assert "step 7,000" in page.evaluate(f"{READOUT}.innerText")
    page.press("Escape")
    assert page.evaluate(f"{READOUT}.hidden") is True


def test_a_group_can_be_switched_off_and_on_in_its_environment(page: Page, report: Path) -> None:
    page.open(report, width=1280)
    groups = "document.querySelectorAll('.environment:has(.legend) .chart g[data-s=\"0\"]')"
    shown = f"[...{groups}].map((e) => getComputedStyle(e).display)"
    button = "document.querySelector('.legend button')"
    assert page.evaluate(shown) == ["inline", "inline"]
    page.evaluate(f"{button}.click()")
    assert page.evaluate(shown) == ["none", "none"]
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    page.evaluate(f"{button}.click()")
    assert page.evaluate(shown) == ["inline", "inline"]
    assert page.problems == []


def test_what_files_say_is_shown_and_not_run(page: Page, report: Path) -> None:
    page.open(report, width=1280)
    assert page.evaluate(
        "[...document.querySelectorAll('h3')].some((e) => e.innerText.includes('<script>alert(1)</script>'))"
    )
    assert page.evaluate("[...document.images].every((image) => image.src.startsWith('data:'))")
    assert page.problems == []


def test_the_page_works_without_its_script(page: Page, report: Path) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.open(report, width=375)
    assert page.evaluate("document.querySelectorAll('.chart .mean').length") > 0
    assert page.evaluate(f"{READOUT}.checkVisibility()") is False
