"""A text or a drawing that changes, shown frame by frame: what is masked, what is new, and everything literally."""

import re
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from nbtools.notebook.plots.frames import as_picture, frames_html, picked

WALK = ["....\n..@.\n....", "....\n.@..\n....", ".@..\n....\n...."]
both = pytest.mark.parametrize("keep_lines", [False, True])


def as_html(frames: list[str], most: int = 8, *, keep_lines: bool = False) -> str:
    return frames_html(frames, most, keep_lines=keep_lines)


def opened(picture: Any) -> Image.Image:
    image = Image.open(BytesIO(picture.data)).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def test_the_first_and_the_last_frame_are_always_shown_and_no_more_than_asked() -> None:
    frames = [str(number) for number in range(65)]
    assert [number for number, _ in picked(frames, 5)] == [0, 16, 32, 48, 64]
    assert picked(frames[:3], 5) == [(0, "0"), (1, "1"), (2, "2")] and picked([], 5) == []


@both
def test_each_frame_has_its_number(keep_lines: bool) -> None:
    shown = as_html([str(number) for number in range(65)], most=5, keep_lines=keep_lines)
    assert re.findall(r"opacity:.6'>(\d+)<", shown) == ["0", "16", "32", "48", "64"]


def test_what_is_masked_is_a_block_and_what_changed_is_marked() -> None:
    shown = as_html(["░░░░", "░b░d", "abcd"])
    rows = re.findall(r"<div style='font[^>]*>(.*?)</div>", shown)
    assert [row.count("color:transparent") for row in rows] == [4, 2, 0]
    assert [re.findall(r"f5a623[^>]*>(.)<", row) for row in rows] == [[], ["b", "d"], ["a", "c"]]


def test_a_word_that_stays_is_not_marked_when_those_before_it_get_longer() -> None:
    shown = as_html(["░ ░ barks", "the ░ barks", "the dog barks"])
    rows = re.findall(r"<div style='font[^>]*>(.*?)</div>", shown)
    assert ["".join(re.findall(r"f5a623[^>]*>(.)<", row)) for row in rows] == ["", "the", "dog"]


def test_lines_of_a_drawing_stay_lines_and_what_moved_is_marked() -> None:
    blocks = re.findall("<pre[^>]*>(.*?)</pre>", as_html(WALK, keep_lines=True), re.DOTALL)
    assert [block.count("<br>") for block in blocks] == [2, 2, 2]
    assert [block.count("f5a623") for block in blocks] == [0, 2, 2]


@both
def test_a_frame_is_no_markup_and_no_formula_and_moves_nothing(keep_lines: bool) -> None:
    hostile = "<img src=x onerror=alert(1)>&$\\frac$\u202e\x1b[2J\n"
    shown = as_html([hostile, hostile], keep_lines=keep_lines)
    assert "<img" not in shown
    assert not re.search("[\u202e\x1b]", shown)
    assert ("↵" in shown) is not keep_lines
    assert opened(as_picture([hostile, "", hostile], keep_lines=keep_lines)).width > 200


@both
def test_a_picture_marks_what_changed_and_is_the_same_each_time(keep_lines: bool) -> None:
    first, second = (as_picture(WALK, keep_lines=keep_lines).data for _ in range(2))
    assert first == second
    colours = opened(as_picture(WALK, keep_lines=keep_lines)).getcolors(100_000)
    assert colours and (252, 232, 200) in {colour for _, colour in colours}
    still = opened(as_picture(WALK[:1] * 3, keep_lines=keep_lines)).getcolors(100_000)
    assert still and (252, 232, 200) not in {colour for _, colour in still}
    assert as_picture([], keep_lines=keep_lines).data is not None


def test_a_picture_of_text_is_small_enough_for_a_notebook() -> None:
    picture = as_picture(["░" * 64] + ["the quick brown fox jumps over it " * 2] * 30, most=12)
    assert picture.data is not None and len(picture.data) < 60_000
    assert opened(picture).height == 20 * 13
