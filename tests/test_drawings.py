"""Drawings made of characters: every line kept, what moved marked, everything literally."""

import re

from nbtools.notebook.drawings import as_html, as_picture

WALK = ["....\n..@.\n....", "....\n.@..\n....", ".@..\n....\n...."]


def test_drawings_stand_side_by_side_the_first_and_last_among_them() -> None:
    shown = str(as_html([str(number) for number in range(65)], most=5).data)
    assert re.findall(r"opacity:.6'>(\d+)<", shown) == ["0", "16", "32", "48", "64"]


def test_lines_stay_lines_and_what_moved_is_marked() -> None:
    blocks = re.findall("<pre[^>]*>(.*?)</pre>", str(as_html(WALK).data), re.DOTALL)
    assert [block.count("<br>") for block in blocks] == [2, 2, 2]
    assert [block.count("f5a623") for block in blocks] == [0, 2, 2]


def test_whatever_a_drawing_says_it_is_no_markup_and_moves_nothing() -> None:
    hostile = "<img src=x onerror=alert(1)>\n$\\frac$\u202e\x1b[2J"
    shown = str(as_html([hostile, hostile]).data)
    assert "<img" not in shown
    assert "mathjax_ignore" in shown
    assert not re.search("[\u202e\x1b]", shown)
    assert as_picture([hostile, "", hostile]).data.startswith(b"\x89PNG")  # type: ignore[union-attr]


def test_a_picture_is_the_same_each_time() -> None:
    first, second = (as_picture(WALK).data for _ in range(2))
    assert first == second
    assert as_picture([]).data is not None
