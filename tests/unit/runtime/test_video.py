"""The grid of views, with pictures made by hand, and the film of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.videos import decoded
from rl_training import PPO
from rl_training.runtime.video import CAPTION_HEIGHT, GAP, MIN_WIDTH, Grid, caption, layout

WHITE = np.full((10, MIN_WIDTH, 3), 255, np.uint8)


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (2, 2)), (4, (2, 2)), (5, (2, 3)), (7, (3, 3)), (9, (3, 3))]
)
def test_a_grid_is_as_square_as_it_can_be(count: int, shape: tuple[int, int]) -> None:
    assert layout(count) == shape


def test_each_view_has_its_place_and_the_canvas_even_sides() -> None:
    grid = Grid([(11, MIN_WIDTH + 1)] * 3)
    below = CAPTION_HEIGHT + 11 + GAP + CAPTION_HEIGHT
    assert grid.canvas.shape == (below + 11, 2 * (MIN_WIDTH + 1) + GAP, 3)
    assert Grid([(11, MIN_WIDTH + 1)]).canvas.shape == (CAPTION_HEIGHT + 12, MIN_WIDTH + 2, 3), "a line more of each"
    for index, shade in enumerate((50, 100, 150)):
        grid.show(index, np.full((11, MIN_WIDTH + 1, 3), shade, np.uint8), "x")
    right = MIN_WIDTH + 1 + GAP
    assert grid.canvas[CAPTION_HEIGHT, 0, 0] == 50 and grid.canvas[CAPTION_HEIGHT, right, 0] == 100
    assert grid.canvas[below, 0, 0] == 150 and grid.canvas[below + 10, MIN_WIDTH, 0] == 150
    assert grid.canvas[below, right, 0] == 24, "nobody is there"
    assert grid.canvas[CAPTION_HEIGHT + 5, MIN_WIDTH + 1, 0] == 24, "a gap"


def test_smaller_pictures_are_padded_and_grown_ones_cropped() -> None:
    grid = Grid([(10, MIN_WIDTH), (4, MIN_WIDTH - 10)])
    grid.show(1, WHITE[:4, : MIN_WIDTH - 10], "x")
    view = grid.canvas[CAPTION_HEIGHT:, MIN_WIDTH + GAP :]
    assert (view[3:7, 5:-5] == 255).all() and (view == 255).all(axis=2).sum() == 4 * (MIN_WIDTH - 10)
    grid.show(1, np.full((30, 2 * MIN_WIDTH, 3), 77, np.uint8), "x")
    assert (view[:10] == 77).all() and not (grid.canvas[:, : MIN_WIDTH + GAP] == 77).any()


def test_tiny_pictures_are_enlarged_without_blurring() -> None:
    board = np.zeros((2, 2, 3), np.uint8)
    board[0, 1] = board[1, 0] = 255
    grid = Grid([(2, 2)])
    grid.show(0, board, "x")
    half = MIN_WIDTH // 2
    view = grid.canvas[CAPTION_HEIGHT:]
    assert (view[:half, half:] == 255).all() and (view[half:, half:] == 0).all()


def test_a_view_that_is_over_is_dimmed_once_and_keeps_its_caption() -> None:
    grid = Grid([(10, MIN_WIDTH)])
    grid.show(0, WHITE, caption(12.5, 3))
    bar = grid.canvas[:CAPTION_HEIGHT].copy()
    for _ in range(2):
        grid.fade(0)
    assert (grid.canvas[CAPTION_HEIGHT:] == 89).all() and (grid.canvas[:CAPTION_HEIGHT] == bar).all()


def test_the_caption_is_drawn_and_says_return_and_step() -> None:
    assert caption(-12.34, 7) == "return -12.3   step 7"
    grid, drawn = Grid([(10, MIN_WIDTH)]), []
    for text in ("return 1.0", "return 2.0"):
        grid.show(0, WHITE, text)
        drawn.append(grid.canvas[:CAPTION_HEIGHT].copy())
    assert drawn[0].max() > 200 and not np.array_equal(*drawn)


def agent(**settings: Any) -> Any:
    return PPO("CartPole-v1", seed=0, device="cpu", num_envs=2, num_steps=16, **settings)


def test_one_episode_is_one_view_with_a_picture_for_every_step(tmp_path: Path) -> None:
    recording = agent().record(tmp_path / "a.mp4", 1)
    video = decoded(tmp_path / "a.mp4")
    assert len(video.frames) == recording.frames == 1 + recording.result.lengths[0]
    assert video.frames[0].shape == (400 + CAPTION_HEIGHT, 600, 3) and video.fps == 50
    assert not recording.cut and recording.seconds == recording.frames / 50


def test_views_wait_dimmed_for_the_longest_and_returns_are_those_of_evaluate(tmp_path: Path) -> None:
    player = agent()
    recording = player.record(tmp_path / "a.mp4", 6, num_envs=3)
    result = recording.result
    assert result == player.evaluate(6, num_envs=3), "nothing is played otherwise because it is filmed"
    lengths = [sum(result.lengths[index : index + 2]) for index in (0, 2, 4)]
    frames = decoded(tmp_path / "a.mp4").frames
    assert len(frames) == recording.frames == 1 + max(lengths)
    height, width = frames[0].shape[:2]
    for index, length in enumerate(lengths):
        row, column = divmod(index, 2)
        y, x = round(height * (0.3 + row * 0.5)), round(width * (0.45 + column * 0.5))
        bright = [frame[y, x].min() > 200 for frame in frames]
        assert bright == [True] * (length + 1) + [False] * (len(frames) - length - 1)


def test_stochastic_episodes_are_those_of_evaluate_too(tmp_path: Path) -> None:
    player = agent()
    recording = player.record(tmp_path / "a.mp4", 7, deterministic=False)
    assert recording.result == player.evaluate(7, deterministic=False)


def test_a_cut_video_goes_with_a_whole_evaluation(tmp_path: Path) -> None:
    player = agent()
    with pytest.warns(UserWarning, match=r"a\.mp4 was cut after 0\.1 s of video"):
        recording = player.record(tmp_path / "a.mp4", 2, max_seconds=0.1)
    assert recording.cut and len(decoded(tmp_path / "a.mp4").frames) == recording.frames == 5
    assert recording.result == player.evaluate(2)
