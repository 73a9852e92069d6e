"""The Log tab: numbers are buttons, and the editor turns a clicked one into a pattern."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from nbtools.notebook.panel.panel import LivePlot
from nbtools.project import Project
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir
from nbtools.user_config import read_user_config

LINES = [
    f"[2026-01-01 10:00:{i:02}]  INFO  turn   {5 * i} of the wheel: {3 / (1 + i) + 0.5:.4f} <b> in {i % 3}"
    for i in range(60)
]
PATTERN = "turn {step} of the wheel: {train/loss} <b> in {_}"


@pytest.fixture
def run(project: Project) -> RunDir:
    """An ended run of a program."""
    made, program = RunDir.create(project.runs, "turning"), {"script": "turning.py"}
    content = {"script": "/p/turning.py", "root": "/p", "program": program, "launch": {}, "time": 1.0, "args": []}
    write_json(made.launch, content)
    made.log.write_text("\n".join(["loss 0.5", *LINES]) + "\n")
    write_json(made.exit, {"returncode": 0, "stopped": False, "time": 2.0})
    return made


@pytest.fixture
def panel(run: RunDir, kept: Callable[[LivePlot], LivePlot]) -> LivePlot:
    plot = kept(LivePlot(run.path))
    plot.refresh()
    return plot


def editor_of(panel: LivePlot) -> Any:
    return panel._widgets.tabs.log.editor


def test_every_number_of_a_line_is_a_button_whatever_stands_before_it(panel: LivePlot) -> None:
    panel._widgets.tabs.log.search.value = "wheel: 0.5500 <B>"
    shown = panel._widgets.tabs.log.text.value
    line = next(line for line in shown.split("<div data-line=") if "295" in line)
    button = "<button data-n={} tabindex=-1>{}</button>"
    assert f"turn   {button.format(0, '295')} of the <mark>wheel: </mark>" in line
    assert f"{button.format(1, '<mark>0.5500</mark>')}<mark> &lt;b&gt;</mark> in {button.format(2, '2')}" in line
    assert re.sub("<[^>]*>", "", line).count("2026-01-01 10:00:59") == 1, "a date is no number"


@pytest.mark.promise("any-script")
def test_a_click_and_a_name_make_a_pattern_that_is_kept(panel: LivePlot, run: RunDir) -> None:
    log, editor = panel._widgets.tabs.log, editor_of(panel)
    panel._hear_page({"number": 1, "line": LINES[-1]})
    assert log.curves.value, "the editor is open"
    assert editor.meaning.value == "Curve"
    editor.name.value = "train/loss"
    assert editor.text.value == PATTERN
    assert "60 of the last 61 lines match. step counts from 0 to 295." in editor._preview.value
    assert "<svg" in editor._preview.value
    kept: list[Any] = []
    editor.keep = kept.append
    editor._save.click()
    assert kept == [[PATTERN]]
    assert panel.keep_curves(PATTERN) == "1 pattern remembered for turning.py"
    assert panel.run.history["train/loss"].steps[-1] == 295
    assert editor.kept.options == (PATTERN,)
    assert editor._save.disabled
    editor._remove.click()
    assert kept[-1] == []


def test_without_a_page_the_drop_downs_choose_the_line_and_the_number(panel: LivePlot) -> None:
    log, editor = panel._widgets.tabs.log, editor_of(panel)
    log.curves.value = True
    editor.kind.value = next(line for label, line in editor.kind.options if label.startswith("60 × "))
    editor.number.value = 1
    editor.name.value = "eval/loss"
    editor.number.value = 2
    editor.meaning.value = "Epoch"
    assert editor.text.value == "turn {step} of the wheel: {eval/loss} <b> in {epoch}"
    editor.meaning.value = "Step"
    assert editor.text.value == "turn {_} of the wheel: {eval/loss} <b> in {step}", "one number counts"
    editor.meaning.value = "Nothing"
    assert editor.text.value == "turn {_} of the wheel: {eval/loss} <b> in {_}"


def test_a_line_that_is_drawn_shows_its_names_and_can_be_left_out(panel: LivePlot) -> None:
    editor = editor_of(panel)
    panel._hear_page({"number": 0, "line": "loss 0.5"})
    assert (editor.name.value, editor.text.value) == ("train/loss", "loss {train/loss}")
    editor.meaning.value = "Nothing"
    panel.keep_curves(editor.text.value)
    assert "train/loss" not in panel.run.history, "the line is no longer drawn"
    assert editor.meaning.value == "Nothing"


def test_a_pattern_that_is_typed_wrong_says_what_is_allowed_and_loses_nothing(panel: LivePlot) -> None:
    editor = editor_of(panel)
    panel._hear_page({"number": 1, "line": LINES[-1]})
    for wrong, said in (("turn {step", "a { without its partner"), ("turn", "no number has a name")):
        editor.text.value = wrong
        assert said in editor._preview.value
        assert editor._save.disabled
        assert editor.text.value == wrong
    editor.text.value = "no {step} such {train/x}"
    assert "No line of the last 61 lines matches" in editor._preview.value
    editor.name.value = "a name"
    assert "{a name} is no name" in editor._preview.value


def test_a_message_of_the_page_that_names_no_number_changes_nothing(panel: LivePlot) -> None:
    for said in ({"number": 99, "line": LINES[-1]}, {"number": 0, "line": "words alone"}, {"number": -1, "line": ""}):
        panel._hear_page(said)
    assert read_user_config("curves") == {}


def test_a_recipe_has_no_buttons(run: RunDir, kept: Callable[[LivePlot], LivePlot]) -> None:
    write_json(run.launch, {"script": "x.py", "recipe": "mlm_pretraining", "launch": {}})
    plot = kept(LivePlot(run.path))
    plot.refresh()
    assert "<button" not in plot._widgets.tabs.log.text.value
    assert plot._widgets.tabs.log.curves.layout.display == "none"
