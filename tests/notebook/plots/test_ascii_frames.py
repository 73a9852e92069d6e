"""Drawings made of characters: every line kept, what moved marked, everything literally."""

import base64
import re
from io import BytesIO

from PIL import Image

from nbtools.notebook.plots.ascii_frames import as_animation, as_html, as_picture

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


def animation(frames: list[str]) -> Image.Image:
    data = re.findall("src='data:image/gif;base64,([^']*)'", str(as_animation(frames, frame_ms=100).data))
    return Image.open(BytesIO(base64.b64decode(data[0])))


def test_an_animation_shows_every_drawing_and_rests_at_the_last() -> None:
    moving = animation(WALK)
    shown, durations = [], []
    for number in range(3):
        moving.seek(number)
        shown.append(moving.convert("RGB").tobytes())
        durations.append(moving.info["duration"])
    assert moving.info["loop"] == 0, "for ever"
    assert len(set(shown)) == 3 and durations == [100, 100, 1500]
    assert [set(picture[:3]) for picture in shown] == [{255}] * 3, "on white"


def test_an_animation_takes_any_drawing_and_is_small() -> None:
    assert animation([]).size == animation([""]).size
    hostile = "<img src=x>\n$\\frac$\u202e\x1b[2J\n" + "x" * 10_000
    assert animation([hostile, ""]).size[0] < 50_000
    room = "\n".join(["· " * 9] * 9)
    many = as_animation([room[:number] + "@" + room[number + 1 :] for number in range(170)])
    assert len(str(many.data)) < 200_000
    assert str(many.data) == str(as_animation([room[:n] + "@" + room[n + 1 :] for n in range(170)]).data)
