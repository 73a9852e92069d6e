"""A text that changes, shown frame by frame: what is masked, what is new, and everything literally."""

import re

from nbtools.notebook.plots.text_frames import as_html, as_picture, picked


def test_the_first_and_the_last_frame_are_always_shown_and_no_more_than_asked() -> None:
    frames = [str(number) for number in range(65)]
    assert [number for number, _ in picked(frames, 5)] == [0, 16, 32, 48, 64]
    assert picked(frames[:3], 5) == [(0, "0"), (1, "1"), (2, "2")]
    assert picked([], 5) == []


def test_what_is_masked_is_a_block_and_what_changed_is_marked() -> None:
    shown = str(as_html(["░░░░", "░b░d", "abcd"]).data)
    rows = re.findall(r"<div style='font[^>]*>(.*?)</div>", shown)
    assert [row.count("color:transparent") for row in rows] == [4, 2, 0]
    assert [re.findall(r"f5a623[^>]*>(.)<", row) for row in rows] == [[], ["b", "d"], ["a", "c"]]


def test_whatever_the_text_says_it_is_no_markup_no_formula_and_moves_nothing() -> None:
    hostile = "<img src=x onerror=alert(1)>&$\\frac$\u202e\x1b[2J\n"
    shown = str(as_html([hostile]).data)
    assert "<img" not in shown
    assert "mathjax_ignore" in shown
    assert not re.search("[\u202e\x1b\n]", shown)
    assert "↵" in shown
    assert as_picture([hostile, hostile]).data.startswith(b"\x89PNG")  # type: ignore[union-attr]


def test_a_picture_is_the_same_each_time_and_small_enough_for_a_notebook() -> None:
    frames = ["░" * 64] + ["the quick brown fox jumps over it " * 2] * 30
    first, second = (as_picture(frames).data for _ in range(2))
    assert first == second
    assert first is not None
    assert len(first) < 120_000
