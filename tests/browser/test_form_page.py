"""The form as a person meets it: typing, mistakes, widths, and what is left of it without a kernel."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from pages import eventually, find_nothing_serious, see

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import nbtools as nt
form = nt.ConfigForm(name="digits", config=nt.Program(script="train_digits.py", args=("--epochs", "3")))
form
"""
BRIGHTNESS = """e => {
  const of = color => color.match(/[0-9.]+/g).map(Number).slice(0, 3).reduce((a, b) => a + b) / 3;
  const opaque = e => { const c = getComputedStyle(e).backgroundColor; return !/, 0\\)$/.test(c) && c };
  let ground = e;
  while (!opaque(ground)) ground = ground.parentElement;
  return [of(getComputedStyle(e).color), of(opaque(ground))];
}"""
"""Mean brightness of an element's text and of what is behind it, of 255."""
FORM = 'import nbtools as nt\nform = nt.ConfigForm(name="experiment")\nform'


def test_without_its_kernel_a_form_is_one_sentence_and_no_broken_icon(notebook: Any) -> None:
    form = notebook.run("form.ipynb", FORM).locator(".nbtools-form")

    def sentence() -> Any:
        return notebook.output(0).get_by_text("The form for mlm_pretraining needs a kernel: run this cell again.")

    form.get_by_label("script").fill("typed_before")
    form.get_by_role("button", name="Write script").wait_for()
    assert not sentence().is_visible()
    form.get_by_label("learning_rate", exact=True).fill("-1")
    see(form, "Cannot write or launch")
    notebook.shoot("form-mistake", form)
    find_nothing_serious(notebook, "form", "label", "select-name", "color-contrast")
    notebook.command("docmanager:save")

    notebook.restart_kernel()
    sentence().wait_for()
    assert form.get_by_label("script").input_value() == "typed_before", "what was typed can still be read"
    icons = "all => all.map(e => getComputedStyle(e, '::before').content).filter(icon => icon !== 'none')"
    assert notebook.output(0).locator(".jupyter-widgets-disconnected").count() > 50
    assert notebook.output(0).locator(".jupyter-widgets-disconnected").evaluate_all(icons) == []
    notebook.shoot("form-after-restart", notebook.output(0))

    notebook.reload()  # the notebook as it was saved, with a kernel that knows nothing of the form
    sentence().wait_for()
    assert not notebook.output(0).get_by_text("not found").is_visible()
    notebook.shoot("form-reopened", notebook.output(0))

    notebook.run_cell(0)
    notebook.output(0).locator(".nbtools-form").get_by_role("button", name="Write script").wait_for()
    assert not sentence().is_visible()


def test_own_table_is_launched_on_its_columns_with_three_clicks(notebook: Any) -> None:
    root = notebook.lab.project
    rows = (f"{'no' if n % 3 else 'yes'},<b>words</b> number {n} of a text,{n}\n" for n in range(400))
    (root / "answers.csv").write_text("verdict,what was said,id\n" + "".join(rows))
    (root / "scripts" / "text_classification.py").unlink()
    form = notebook.run("new.ipynb", "import nbtools as nt\nform = nt.new()\nform").locator(".nbtools-form").first
    try:
        form.get_by_role("button", name="Text classification").wait_for()
        notebook.shoot("form-new", form)
        find_nothing_serious(notebook, "new", "button-name")
        _choose_card(form, "Text classification")
        form.get_by_label("file", exact=True).select_option(label=_label(form, "answers.csv"))
        form.locator("th.nbtools-named", has_text="what was said").wait_for()
        form.get_by_text("<b>words</b> number 4 of a text").wait_for()
        notebook.shoot("form-data", form)
        form.get_by_role("button", name="Launch").click()
        form.get_by_text("Launched 2").wait_for()
        top = "document.querySelector('.nbtools-form .nbtools-live')?.getBoundingClientRect().top"
        notebook.page.wait_for_function(f"() => {top} < innerHeight / 2")
        script = root / "scripts" / "text_classification.py"
        assert 'text_col="what was said"' in script.read_text()
        assert "target_cols=('verdict',)" in script.read_text()
        assert notebook.mistakes == []
    finally:
        shutil.copy(ROOT / "scripts" / "text_classification.py", root / "scripts")
        (root / "answers.csv").unlink()


def _choose_card(form: Any, name: str) -> None:
    """Click a card; a click is lost if the page moves the card under it, and a person clicks again."""
    from playwright.sync_api import TimeoutError as PageTimeout

    file = form.get_by_label("file", exact=True)
    form.get_by_role("button", name=name).click()
    with contextlib.suppress(PageTimeout):
        file.wait_for(timeout=20_000)
    if not file.is_visible():
        form.get_by_role("button", name=name).click()
    file.wait_for()


def _label(form: Any, name: str) -> str:
    options = form.get_by_label("file", exact=True).locator("option").all_text_contents()
    return next(text for text in options if text.startswith(name))


def assert_columns_follow_the_width(notebook: Any, form: Any, columns: dict[int, int]) -> None:
    """Assert that a form has these columns at these widths, is as wide as the page at most, and shows Launch."""
    headings = form.locator(".nbtools-columns .nbtools-fold")
    headings.first.wait_for()

    def num_columns() -> int:
        return len({round(heading.bounding_box()["x"]) for heading in headings.all() if heading.is_visible()})

    before = notebook.page.viewport_size
    for width, count in columns.items():
        notebook.page.set_viewport_size({"width": width, "height": 700})
        eventually(lambda count=count: num_columns() == count, f"{count} columns at {width} pixels")
        notebook.page.evaluate("() => { document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0 }")
        assert form.bounding_box()["height"] > 700
        launch = form.get_by_role("button", name="Launch").bounding_box()
        assert launch["y"] + launch["height"] < 700
        assert notebook.page.evaluate("() => document.documentElement.scrollWidth") <= width
    notebook.page.set_viewport_size(before)


def test_the_arguments_of_a_program_are_rows_that_write_its_command_line(notebook: Any) -> None:
    program = notebook.lab.project / "train_digits.py"
    shutil.copy(ROOT / "notebooks" / "train_digits.py", program)
    form = notebook.run("program.ipynb", PROGRAM).locator(".nbtools-form")
    form.get_by_label("epochs").wait_for()
    words = form.get_by_label("args", exact=True)
    assert words.input_value() == "--epochs 3"
    assert form.get_by_label("epochs").input_value() == "3"
    notebook.shoot("form-program", form)
    # Those of the launch are two; those of the arguments are as many as there are groups.
    assert_columns_follow_the_width(notebook, form, {1600: 2, 1200: 2, 900: 1})

    form.get_by_label("epochs").fill("many")
    link = form.get_by_role("button", name="argument epochs: 'many' is not a whole number")
    link.wait_for()
    assert form.get_by_role("button", name="Launch").is_disabled()
    words.focus()
    link.click()
    notebook.page.wait_for_function("() => document.activeElement.value === 'many'")
    form.get_by_label("epochs").fill("5")
    form.get_by_label("find").fill("batch")
    form.get_by_label("epochs").wait_for(state="hidden")
    form.get_by_label("find").fill("")
    notebook.page.wait_for_function("() => [...document.querySelectorAll('input')].some(e => e.value === '--epochs 5')")
    words.fill("--epochs 7 --lr 0.5")
    words.press("Enter")
    notebook.page.wait_for_function("() => [...document.querySelectorAll('input')].some(e => e.value === '0.5')")
    assert [form.get_by_label(name, exact=True).input_value() for name in ("epochs", "lr")] == ["7", "0.5"]
    notebook.page.set_viewport_size({"width": 900, "height": 1000})
    notebook.shoot("form-program-900", form)
    notebook.theme("Dark")
    for element in (form.get_by_label("epochs"), form.locator(".nbtools-note").first):
        text, ground = element.evaluate(BRIGHTNESS)
        assert text > 128 > ground, (text, ground)
    notebook.theme("Light")
    assert notebook.mistakes == []


def test_a_click_on_launch_is_kept_when_the_help_above_it_folds(notebook: Any) -> None:
    """At this height the whole form is in view, so its buttons stand below its rows and move with them."""
    source = 'import nbtools as nt\nform = nt.ConfigForm("text_classification", name="pressed")\nform'
    (notebook.lab.project / f"{'a_long_name_' * 9}.csv").write_text("text,label\na,b\n")
    script = notebook.lab.project / "scripts" / "pressed.py"
    notebook.page.set_viewport_size({"width": 1600, "height": 1700})
    form = notebook.run("pressed.ipynb", source).locator(".nbtools-form").first
    assert_columns_follow_the_width(notebook, form, {1600: 3, 1200: 2, 900: 1})
    rate, write = form.get_by_label("learning_rate", exact=True), form.get_by_role("button", name="Write script")

    def top() -> float:
        return float(write.bounding_box()["y"])

    files = form.get_by_label("file", exact=True)
    assert files.evaluate("e => [e.options.length, e.scrollWidth - e.clientWidth]") == [2, 0], "no horizontal scrollbar"
    rate.click()
    rate.fill("0.0031")
    form.get_by_text("+ 1 change").wait_for()
    folded = top()
    rate.press("Tab")
    notebook.page.wait_for_function("() => document.activeElement.tagName === 'SELECT'")
    unfolded = top()
    assert unfolded > folded + 10, "the help of precision is longer than two lines"

    write.hover()
    notebook.page.mouse.down()
    notebook.page.wait_for_function("() => document.activeElement.tagName === 'BUTTON'")
    assert top() == unfolded
    notebook.page.mouse.up()
    form.get_by_text(f"Wrote {script}").wait_for()
    assert top() < unfolded
    assert "learning_rate=0.0031" in script.read_text()
    assert notebook.mistakes == []
