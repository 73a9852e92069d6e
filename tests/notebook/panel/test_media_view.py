"""What a training shows, in the panel: real widgets, real run directories; a browser looks in tests/browser."""

import base64
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import numpy as np
import pytest
from PIL import Image
from widget_tree import every, html_in

from nbtools.notebook.panel.media_view import MediaView
from nbtools.notebook.plots.line_chart import draw_series
from nbtools.notebook.plots.media_html import show_media, state_html, static_html
from nbtools.notebook.widgets import close_tree
from nbtools.rundir import media
from nbtools.rundir.media import append

HOSTILE = ["<img src=x onerror=alert(1)>", "</pre></script><script>alert(1)</script>", r"$\frac{1}{2}$", "' onclick='x"]
TABLE = media.table("Mistakes", ["text", "true"], [[f"row {number}", "83110"] for number in range(30)])
FRAMES = media.frames("Unmasked", ["░░░░", "░nce", "once"])
DRAWINGS = media.frames("A walk", ["...\n..@", "...\n.@.", "...\n@.."], keep_lines=True)
SERIES = media.series("Return", [1, 2, 3], {"unseen": [0.5, 2.0, 6.9]}, x_label="episode", y_label="return")


@pytest.fixture
def view() -> Iterator[MediaView]:
    made = MediaView()
    yield made
    close_tree(made.widget)


def only(view: MediaView, kind: type[Any]) -> Any:
    (found,) = [part for part in every(view.widget) if isinstance(part, kind)]
    return found


def chart(html: str) -> bytes:
    (data,) = re.findall("src='data:image/png;base64,(.*?)'", html)
    return base64.b64decode(data)


def test_items_of_ones_own_are_shown_in_a_cell_with_a_picture_of_the_first_drawing() -> None:
    bundle = show_media(TABLE, SERIES, FRAMES)._repr_mimebundle_()
    assert "Mistakes" in bundle["text/html"] and "and 10 more rows" in bundle["text/html"]
    assert "step" not in re.sub("<img[^>]*>", "", bundle["text/html"]), "no step was given"
    assert "mathjax_ignore" in bundle["text/html"]
    assert bundle["text/plain"] == "table: Mistakes\nseries: Return\nframes: Unmasked"
    assert base64.b64decode(bundle["image/png"]) == draw_series(SERIES)
    picture = Image.open(io.BytesIO(base64.b64decode(show_media(DRAWINGS)._repr_mimebundle_()["image/png"])))
    assert picture.width > picture.height
    assert "image/png" not in show_media(TABLE, *(media.text("a", hostile) for hostile in HOSTILE))._repr_mimebundle_()
    assert "<img" not in show_media(*(media.text(text, text) for text in HOSTILE))._repr_mimebundle_()["text/html"]


def test_each_kind_is_shown_and_kept_as_html(view: MediaView, tmp_path: Path) -> None:
    for name, item in (("a", media.text("Sample", "once upon")), ("b", TABLE), ("c", FRAMES), ("d", SERIES)):
        append(tmp_path, name, 1200, item)
    assert view.look(tmp_path) and view.html()
    for said in (html_in(view.widget), view.html()):
        assert "once upon" in said and "Mistakes" in said and "step 1,200" in said
        assert "row 19" in said and "row 20" not in said and "10 more rows" in said
        assert Image.open(io.BytesIO(chart(said))).size == (1800, 500)
    assert view.html().count("<details open") == 1


def test_it_is_drawn_again_only_when_something_is_new(view: MediaView, tmp_path: Path) -> None:
    append(tmp_path, "a", 1, media.text("Sample", "first"))
    append(tmp_path, "d", 1, SERIES)
    assert view.look(tmp_path) and not view.look(tmp_path)
    before, drawn = view.widget.children, view.widget.children[-1].value
    append(tmp_path, "a", 2, media.text("Sample", "second"))
    assert view.look(tmp_path)
    assert "second" in html_in(view.widget) and "first" not in html_in(view.widget)
    assert view.widget.children == before, "the same widgets: nothing jumps"
    assert view.widget.children[-1].value is drawn


def test_an_item_may_come_change_its_kind_and_go(view: MediaView, tmp_path: Path) -> None:
    append(tmp_path, "a", 1, FRAMES)
    view.look(tmp_path)
    append(tmp_path, "a", 2, media.text("Sample", "now a text"))
    view.look(tmp_path)
    assert "now a text" in html_in(view.widget)
    assert not [part for part in every(view.widget) if isinstance(part, widgets.Play)]
    (tmp_path / "a.jsonl").unlink()
    view.look(tmp_path)
    assert view.html() == "" and "No samples yet" in html_in(view.widget)


def test_the_slider_and_the_play_button_go_through_the_states(view: MediaView, tmp_path: Path) -> None:
    append(tmp_path, "a", 1, FRAMES)
    view.look(tmp_path)
    play, slider = only(view, widgets.Play), only(view, widgets.IntSlider)
    assert (slider.min, slider.max, slider.value) == (0, 2, 2), "the finished text first"
    assert (play.min, play.max) == (0, 2)
    at_end = html_in(view.widget)
    slider.value = 0
    assert html_in(view.widget) != at_end and "░" in html_in(view.widget)


def test_who_looks_at_a_state_in_the_middle_is_left_there(view: MediaView, tmp_path: Path) -> None:
    append(tmp_path, "a", 1, FRAMES)
    view.look(tmp_path)
    slider = only(view, widgets.IntSlider)
    slider.value = 1
    append(tmp_path, "a", 2, media.frames("Unmasked", ["░", "a", "ab", "abc", "abcd"]))
    view.look(tmp_path)
    assert (slider.value, slider.max) == (1, 4)
    slider.value = 4
    append(tmp_path, "a", 3, media.frames("Unmasked", ["░", "z"]))
    view.look(tmp_path)
    assert (slider.value, slider.max) == (1, 1)
    assert "z" in html_in(view.widget)


# --- limits and hostile content ---------------------------------------------------------------------


def test_a_drawing_is_played_with_its_lines_and_what_moved_is_marked(view: MediaView, tmp_path: Path) -> None:
    append(tmp_path, "walk", 1, DRAWINGS)
    view.look(tmp_path)
    slider = only(view, widgets.IntSlider)
    slider.value = 1
    (drawn,) = re.findall("<pre.*?</pre>", html_in(view.widget), re.DOTALL)
    rows = re.sub("<span style='opacity.*?</span>\n|</?pre.*?>", "", drawn).split("<br>")
    assert [re.sub("<.*?>", "", row) for row in rows] == ["...", ".@."]
    assert re.findall(r"f5a623[^>]*>(.)<", rows[1]) == ["@", "."]
    assert view.html().count("<pre") == 3, "all of them side by side"


def test_earlier_curves_lie_faintly_behind_the_newest(view: MediaView, tmp_path: Path) -> None:
    append(tmp_path, "returns", 1, media.series("t", [1, 2], {"a": [0, 1]}, x_label="x", y_label="y"))
    view.look(tmp_path)
    alone = chart(html_in(view.widget))
    append(tmp_path, "returns", 2, media.series("t", [1, 2], {"a": [0, 9]}, x_label="x", y_label="y"))
    view.look(tmp_path)
    newest, earlier = media.read(tmp_path, "returns")[::-1]
    both = chart(html_in(view.widget))
    assert both == draw_series(newest, earlier=[earlier])
    assert both not in (alone, draw_series(newest))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_never_markup(view: MediaView, tmp_path: Path, text: str) -> None:
    append(tmp_path, "a", 1, media.text(text, text))
    append(tmp_path, "b", 1, media.table(text, [text], [[text]]))
    append(tmp_path, "c", 1, media.frames(text, [text, text]))
    append(tmp_path, "d", 1, media.series(text, [1, 2], {text: [1, 2]}, x_label=text, y_label=text))
    view.look(tmp_path)
    for said in (html_in(view.widget), view.html()):
        for markup in ("<img src=x", "<script", "</script", " onclick='"):
            assert markup not in said
    for part in every(view.widget):
        if isinstance(part, widgets.HTML):
            assert "mathjax_ignore" in part._dom_classes


def test_long_texts_and_wide_tables_are_cut() -> None:
    text = static_html(media.text("t", "x" * 20_000))
    assert len(text) < 6000 and "20,000 characters" in text
    wide = static_html(media.table("t", ["c"] * 50, [["y" * 1000] * 50] * 100))
    assert wide.count("<td") == 20 * 12 and len(wide) < 200_000
    long = media.frames("t", ["░" * 20_000] * 2)
    assert len(state_html(long, 1)) < 300_000


@pytest.mark.parametrize(
    ("x", "lines"),
    [
        ([], {}),
        ([], {"a": []}),
        ([1.0], {"a": [2.0]}),
        ([1, 2], {"a": [math.nan, math.inf]}),
        ([1, 2, 3], {"a": [1.0], "b": [1, 2, 3, 4]}),
        ([math.nan, 1], {"a": [1, 2]}),
        ([0, 1], {"a": [1e308, -1e308]}),
        ([5, 5], {"a": [1, 1]}),
        ([0, 1], {f"{number} a rather long name": [number, 1] for number in range(20)}),
        (list(range(100_000)), {"a": [math.sin(number / 999) for number in range(100_000)]}),
    ],
    ids=range(10),
)
def test_any_curves_are_drawn(x: list[float], lines: dict[str, list[float]]) -> None:
    drawn = draw_series(media.series("t", x, lines, x_label="x", y_label="y"))
    picture = np.asarray(Image.open(io.BytesIO(drawn)).convert("RGBA"))
    assert picture[..., 3].std() > 1, "something is on it"
