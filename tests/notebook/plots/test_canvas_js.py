"""The live canvas in a page: what it draws, what it sends, and that names are never read as HTML."""

import base64
import io
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import nbtools.notebook.panel
from nbtools.notebook.plots.charts import Badge, Mark

from canvas_page import ADDRESS, CANVAS, PALETTE, CanvasPage, Spec, loss_curve, run_of

pytestmark = pytest.mark.browser
PAGE = Path(nbtools.notebook.panel.__file__).with_name("page.js")
MOST_LINES = 700
FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "fetch(", "http")
Open = Callable[..., CanvasPage]


@pytest.fixture(scope="module")
def contexts(browser: Any) -> Iterator[Callable[..., Any]]:
    """Return a context of a zone, with or without a touch screen; pages of several tests share it."""
    opened: dict[tuple[str, bool], Any] = {}

    def context(zone: str, touch: bool) -> Any:
        if (zone, touch) not in opened:
            opened[zone, touch] = browser.new_context(timezone_id=zone, has_touch=touch)
            opened[zone, touch].set_default_timeout(20_000)
        return opened[zone, touch]

    yield context
    for each in opened.values():
        each.close()


@pytest.fixture
def show(contexts: Callable[..., Any]) -> Iterator[Open]:
    """Open a page that shows a spec; at the end nothing went wrong in it and nothing was fetched."""
    opened: list[CanvasPage] = []

    def start(
        spec: Spec, width: int = 900, scheme: str = "light", zone: str = "UTC", touch: bool = False, **more: Any
    ) -> CanvasPage:
        page = contexts(zone, touch).new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        opened.append(CanvasPage(page))
        return opened[-1].start(spec, **more)

    yield start
    for canvas in opened:
        assert canvas.mistakes == []
        assert {url for url in canvas.requests if not url.startswith(ADDRESS)} == set()
        canvas.page.close()


def one(values: Any, title: str = "one", **chart: Any) -> Spec:
    """A chart with one curve, whose values are at the steps 0, 1 and so on."""
    spec = Spec(0, len(values) - 1)
    spec.chart(title, spec.series("a", np.arange(len(values)), values), **chart)
    return spec


def upper(canvas: CanvasPage, index: int = 0) -> Any:
    return canvas.page.locator(".nbt-chart canvas[role=img]").nth(index)


def point(canvas: CanvasPage, share: float, height: float = 120, index: int = 0) -> None:
    """Move the pointer to a share of the width of a chart's plot."""
    box = upper(canvas, index).bounding_box()
    canvas.page.mouse.move(box["x"] + 56 + share * (box["width"] - 72), box["y"] + height)
    canvas.frame()


def drag(canvas: CanvasPage, start: float, end: float, index: int = 0) -> None:
    point(canvas, start, index=index)
    canvas.page.mouse.down()
    point(canvas, (start + end) / 2, index=index)
    point(canvas, end, index=index)
    canvas.page.mouse.up()
    canvas.frame()


def pixels(canvas: CanvasPage, index: int = 0, layer: int = 0) -> Any:
    """The pixels of one layer of a chart: height x width x RGBA."""
    address = canvas.page.evaluate(
        """([index, layer]) => document.querySelectorAll('.nbt-chart')[index].querySelectorAll('canvas')[layer]
          .toDataURL('image/png')""",
        [index, layer],
    )
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGBA"))


def has_colour(image: Any, colour: str) -> Any:
    """Where an image has about this colour, opaque."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return (np.abs(image[..., :3].astype(int) - wanted).max(axis=-1) < 24) & (image[..., 3] > 200)


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CANVAS, CANVAS.with_name("formats.js"), PAGE], ids=lambda path: path.name)
def test_a_module_is_short_and_names_nothing_that_could_run_or_fetch(path: Path, tmp_path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES
    assert [f"{number}: {len(line)}" for number, line in enumerate(lines, 1) if len(line) > 120] == []
    assert [f"{n}: {word}" for n, line in enumerate(lines, 1) for word in FORBIDDEN if word in line] == []
    assert not re.search(r"\bvar\b|==[^=]", re.sub(r"[=!]==|=>|[<>]=", "", "\n".join(lines)))
    styles = "".join(each.read_text(encoding="utf-8") for each in path.parent.glob("*.css"))
    assert "@import" not in styles and "url(" not in styles.replace('url("data:', "")
    if (node := shutil.which("node")) is not None:
        (module := tmp_path / "checked.mjs").write_text("\n".join(lines))
        checked = subprocess.run([node, "--check", module], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr


# --- drawing --------------------------------------------------------------------------------------


def test_curves_are_where_the_values_say(show: Open) -> None:
    spec, x = Spec(0, 100, 900), np.arange(101)
    chart = spec.chart("line", spec.series("a", x, 2.0 * x), spec.series("b", x, 200 - 2.0 * x, colour="evaluation"))
    canvas = show(spec)
    box = upper(canvas).bounding_box()
    assert (box["width"], box["height"]) == (900, 255)  # one chart has the whole width
    image, (low, high) = pixels(canvas), chart.y
    for name, value_of in (("line", lambda step: 2.0 * step), ("evaluation", lambda step: 200 - 2.0 * step)):
        at = has_colour(image, PALETTE[name])
        for step in (10, 40, 90):
            column = round(56 + step / 100 * (900 - 72))
            expected = 255 - 24 - (value_of(step) - low) / (high - low) * (255 - 58)
            assert abs(np.nonzero(at[:, column])[0].mean() - expected) <= 1.5, (name, step)


def test_a_gap_and_a_lone_point_are_drawn_as_such(show: Open) -> None:
    values = np.full(101, 1.0)
    values[40:60] = np.nan
    values[50] = 1.0
    at = has_colour(pixels(show(one(values))), PALETTE["line"]).any(axis=0)
    column = lambda step: round(56 + step / 100 * (900 - 72))  # noqa: E731
    assert at[column(20)] and at[column(50)] and at[column(80)]
    assert not at[column(42) : column(49)].any() and not at[column(51) + 3 : column(58)].any()


def test_a_logarithmic_chart_leaves_out_what_has_no_logarithm(show: Open) -> None:
    x = np.arange(101)
    spec = one(np.where(x < 50, 0.0, 10.0 ** (x / 25)), "log", is_log=True)
    canvas, (chart,) = show(spec), spec.charts
    at = has_colour(pixels(canvas), PALETTE["line"])
    assert not at[:, 60:400].any()
    low, high = chart.y
    column, expected = round(56 + 0.75 * (900 - 72)), 255 - 24 - (3 - low) / (high - low) * (255 - 58)
    assert abs(np.nonzero(at[:, column])[0].mean() - expected) <= 1.5
    assert canvas.page.locator(".nbt-tools [aria-pressed=true]").text_content() == "log"
    canvas.page.locator(".nbt-tools button", has_text="log").click()
    assert canvas.sent("log") == ["log"]


def test_marks_cuts_and_badge_are_drawn(show: Open) -> None:
    more: dict[str, Any] = {
        "marks": [Mark(50, 1.0, 50, "best", "step-000050")],
        "cuts": [(25, "resumed at 25")],
        "veil": 25,
        "badge": Badge("diverged at step 90", 90),
    }
    canvas = show(one(np.full(101, 1.0), "Loss", **more))
    image, column = pixels(canvas), lambda step: round(56 + step / 100 * (900 - 72))
    assert has_colour(image, "#24292f")[231 - 8 : 231, column(50)].any()
    assert has_colour(image, PALETTE["evaluation"])[:, column(50)].any()
    assert has_colour(image, PALETTE["alarm"])[60:70, column(90) - 4 : column(90) + 5].any()
    badge = canvas.page.locator(".nbt-badge")
    assert badge.inner_text() == "diverged at step 90" and badge.bounding_box()["x"] > 700
    red, green, blue = (int(PALETTE["alarm"][i : i + 2], 16) for i in (1, 3, 5))
    assert badge.evaluate("each => getComputedStyle(each).backgroundColor") == f"rgb({red}, {green}, {blue})"
    for share in (0.5, 0.4):
        point(canvas, share, 231 - 4)
        canvas.page.mouse.down()
        canvas.page.mouse.up()
        canvas.page.keyboard.press("Enter")
    assert canvas.sent("mark") == [50, 50], "by a click and by a key; where there is none, nothing is chosen"
    line = image[..., 3][:, column(10)].max(), image[..., 3][:, column(40)].max()
    assert line[0] < 140 < line[1], "the part of the parent is dimmed"


@pytest.mark.parametrize(("width", "columns"), [(500, 1), (699, 1), (700, 2), (1199, 2), (1600, 3)])
def test_the_grid_follows_the_width(show: Open, width: int, columns: int) -> None:
    canvas = show(run_of(1000, width), width)
    boxes = [upper(canvas, index).bounding_box() for index in range(4)]
    assert len({box["x"] for box in boxes}) == columns and {box["width"] for box in boxes} == {width // columns}
    assert {box["height"] for box in boxes} == {min(255, max(180, int(0.55 * (width // columns) + 0.5)))}
    assert canvas.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_new_width_is_told_once(show: Open) -> None:
    canvas = show(run_of(1000))
    assert canvas.sent("ready") == [True] and canvas.sent("width") == [900]
    for width in (860, 820, 800):
        canvas.page.set_viewport_size({"width": width, "height": 900})
        canvas.frame()
    canvas.page.wait_for_function("sent.some(message => message.width === 800)")
    told = canvas.sent("width")
    assert (told[0], told[-1]) == (900, 800) and len(set(told)) == len(told)


def test_without_charts_there_is_a_message(show: Open) -> None:
    canvas = show(Spec(0, 1), message="Waiting for the first metrics")
    assert canvas.page.locator(".nbt-message").inner_text() == "Waiting for the first metrics"
    assert not canvas.page.locator(".nbt-bar").is_visible()
    canvas.push(run_of(1000))
    assert not canvas.page.locator(".nbt-message").is_visible() and upper(canvas, 3).is_visible()


def test_names_are_text_in_any_script_and_never_html(show: Open) -> None:
    spec, x = Spec(0, 1e15), np.arange(101) * 1e13
    nasty = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    arabic = "مرحبا بالعالم"
    spec.chart(nasty, spec.series(nasty, x, x, label=nasty), spec.series(arabic, x, x / 2, label=arabic))
    spec.folded(nasty, 2)
    canvas = show(spec, alt=nasty)
    point(canvas, 0.5)
    assert canvas.page.locator(".nbt-canvas img, .nbt-canvas script").count() == 0
    assert canvas.page.locator(".nbt-title").text_content() == nasty
    assert (
        arabic in canvas.page.locator(".nbt-tip").inner_text() and nasty in canvas.page.locator(".nbt-tip").inner_text()
    )
    assert "500,000,000,000,000" in canvas.data("tip")


# --- the crosshair --------------------------------------------------------------------------------


def test_the_crosshair_reads_mean_and_range_of_a_column_in_all_charts(show: Open) -> None:
    canvas = show(run_of(600_000))
    point(canvas, 0.5)
    said = canvas.data("tip")
    assert re.match(r"Loss, step 29\d,\d{3}|Loss, step 300,\d{3}", said) and "mean of 1,587 steps" in said
    assert re.search(r"train 2\.\d+ \[\d\.\d+, \d\.\d+\], eval 2\.\d+.*, unigram 5\.303", said)
    rates = canvas.page.locator(".nbt-chart").nth(2).locator(".nbt-legend").inner_text()
    assert re.search(r"\[0\.00\d+, 0\.00\d+\]", rates), "the other charts tell theirs in the title's line"
    for index in range(4):
        assert pixels(canvas, index, 1)[..., 3].any(), index
    canvas.page.mouse.move(450, 880)
    canvas.frame()
    assert canvas.data("tip") == "" and not canvas.page.locator(".nbt-tip").is_visible()
    assert not any(pixels(canvas, index, 1)[..., 3].any() for index in range(4))


def test_the_crosshair_reads_exact_values_where_every_step_is_there(show: Open) -> None:
    canvas = show(one(1 / 3 + np.arange(101), "exact"))
    point(canvas, 0.42)
    assert canvas.data("tip") == "exact, step 42: a 42.3333"


def test_what_has_no_logarithm_is_named_and_drawn_to_the_floor(show: Open) -> None:
    canvas = show(one(np.where(np.arange(100_000) % 2, 0.0, 100.0), is_log=True, y=(0.0, 3.0)))
    point(canvas, 0.5)
    assert re.search(r": a \S+ \[0, 100\]", canvas.data("tip"))
    assert (pixels(canvas)[200:230, 100:800, 3] > 140).all()


def test_many_curves_are_as_wide_as_few(show: Open) -> None:
    shown = []
    for count in (1, 12):
        spec, x = Spec(0, 100), np.arange(101)
        curves = [spec.series(f"a{k}", x, np.full(101, 10.0 * k), colour="line", width=3) for k in range(count)]
        spec.chart("flat", *curves, y=(-5.0, 115.0))
        image = pixels(show(spec))[..., 3].astype(float)
        row = round(231 - 5 / 120 * 197)
        shown.append(image[row - 4 : row + 5, 300].sum() / 255)
    assert shown[0] == pytest.approx(3, abs=0.2) and shown[1] == pytest.approx(3, abs=0.4)


def test_a_moving_pointer_draws_no_curve(show: Open) -> None:
    canvas = show(run_of(60_000))
    canvas.page.evaluate(
        """() => {
          window.strokes = 0;
          for (const canvas of document.querySelectorAll('.nbt-chart canvas:first-of-type')) {
            const context = canvas.getContext('2d'), {stroke} = context;
            context.stroke = function (...args) { window.strokes++; return stroke.apply(this, args); };
          }
        }"""
    )
    for share in np.linspace(0.1, 0.9, 5):
        point(canvas, share)
    assert canvas.page.evaluate("strokes") == 0
    canvas.page.emulate_media(color_scheme="dark")
    canvas.page.wait_for_function("strokes > 0")


@pytest.mark.parametrize("width", [500, 900])
def test_the_tooltip_never_leaves_the_canvas(show: Open, width: int) -> None:
    canvas = show(run_of(60_000, width), width)
    root = canvas.page.locator(".nbt-canvas").bounding_box()
    for index in range(4):
        upper(canvas, index).scroll_into_view_if_needed()
        root = canvas.page.locator(".nbt-canvas").bounding_box()
        for share in (0, 1):
            for height in (40, 240):
                point(canvas, share, height, index)
                box = canvas.page.locator(".nbt-tip").bounding_box()
                assert root["x"] <= box["x"] and box["x"] + box["width"] <= root["x"] + root["width"]
                assert root["y"] <= box["y"] and box["y"] + box["height"] <= root["y"] + root["height"]


def test_a_checkpoint_near_the_pointer_is_named(show: Open) -> None:
    canvas = show(run_of(1000))
    point(canvas, 0.4, 224)
    assert "▲ step-000400" in canvas.data("tip") and "best" not in canvas.data("tip")
    point(canvas, 1.0, 224)
    assert "▲ step-001000 · best" in canvas.data("tip")
    point(canvas, 0.4, 80)
    assert "▲" not in canvas.data("tip")


def test_keys_move_the_crosshair_and_do_not_reach_the_notebook(show: Open) -> None:
    canvas = show(one(np.arange(101)))
    canvas.page.evaluate("document.body.addEventListener('keydown', event => sent.push({key: event.key}))")
    upper(canvas).focus()
    for key, step in (
        ("Home", 0),
        ("ArrowRight", 1),
        ("Shift+ArrowRight", 11),
        ("End", 100),
        ("ArrowLeft", 99),
        ("Shift+ArrowLeft", 89),
    ):
        canvas.page.keyboard.press(key)
        canvas.frame()
        assert f"step {step}:" in canvas.data("tip"), key
    canvas.page.wait_for_function("document.querySelector('.nbt-live').textContent.includes('step 89')")
    for key in ("+", "-", "0", "Escape"):
        canvas.page.keyboard.press(key)
    canvas.page.keyboard.press("j")
    assert [key for key in canvas.sent("key") if key != "Shift"] == ["j"]


# --- zoom -----------------------------------------------------------------------------------------


def test_a_drag_asks_once_and_shows_the_span_before_the_answer(show: Open) -> None:
    canvas = show(run_of(60_000))
    before = pixels(canvas, 2)
    drag(canvas, 0.25, 0.5, index=1)
    ((low, high),) = canvas.sent("zoom")
    assert abs(low - 15_000) < 300 and abs(high - 30_000) < 300
    assert (pixels(canvas, 2) != before).any()
    chip = canvas.page.locator(".nbt-chip")
    assert chip.inner_text() == f"zoomed {round(low):,}–{round(high):,} ✕"
    canvas.push(run_of(60_000))  # a refresh from before the request
    assert chip.is_visible()
    canvas.push(run_of(60_000, left=low, right=high))
    assert float(canvas.data("zoomed")) > 0
    point(canvas, 1.0, index=1)
    assert f"step {round(high):,}"[:9] in canvas.data("tip")
    chip.click()
    assert canvas.sent("zoom")[-1] is None
    canvas.push(run_of(60_000))
    assert not chip.is_visible()


def test_the_selection_is_shown_in_all_charts(show: Open) -> None:
    canvas = show(run_of(6_000))
    point(canvas, 0.2)
    canvas.page.mouse.down()
    point(canvas, 0.6)
    for index in range(4):
        shown = pixels(canvas, index, 1)[100, :, 3] > 20
        assert 0.35 < shown[56:].sum() / (450 - 72) < 0.45, index
    canvas.page.keyboard.press("Escape")
    canvas.page.mouse.up()
    assert canvas.sent("zoom") == []


def test_double_click_zero_and_escape_show_all(show: Open) -> None:
    canvas = show(run_of(60_000, left=10_000, right=20_000))
    upper(canvas).dblclick(position={"x": 200, "y": 100})
    canvas.page.keyboard.press("0")
    assert canvas.sent("zoom") == [None, None]
    canvas.push(run_of(60_000, left=10_000, right=20_000))
    canvas.push(run_of(60_000, left=10_000, right=20_000))  # the kernel refused: what it says is shown
    canvas.page.keyboard.press("Escape")
    assert canvas.sent("zoom") == [None, None, None]


def test_shift_drag_moves_the_span_and_stays_within_the_run(show: Open) -> None:
    canvas = show(run_of(60_000, left=10_000, right=20_000))
    canvas.page.keyboard.down("Shift")
    drag(canvas, 0.75, 0.25)
    canvas.page.keyboard.up("Shift")
    ((low, high),) = canvas.sent("zoom")
    assert abs(low - 15_000) < 100 and abs(high - 25_000) < 100
    canvas.push(run_of(60_000, left=low, right=high))
    canvas.page.keyboard.down("Shift")
    for _ in range(2):
        drag(canvas, 0.02, 0.98)
    canvas.page.keyboard.up("Shift")
    low, high = canvas.sent("zoom")[-1]
    assert low == 0 and abs(high - 10_000) < 1


def test_plus_and_minus_zoom_at_the_crosshair(show: Open) -> None:
    canvas = show(one(np.arange(1001)))
    point(canvas, 0.25)
    upper(canvas).focus()
    canvas.page.keyboard.press("+")
    ((low, high),) = canvas.sent("zoom")
    assert abs(low - 125) < 2 and abs(high - 625) < 2
    canvas.page.keyboard.press("-")
    assert canvas.sent("zoom")[-1] is None


def test_a_finger_drags_to_zoom_swipes_to_scroll_and_a_double_tap_shows_all(show: Open) -> None:
    canvas = show(run_of(60_000, left=10_000, right=20_000), touch=True)
    canvas.page.evaluate("document.body.style.paddingBottom = '2000px'")
    box, session = upper(canvas).bounding_box(), canvas.page.context.new_cdp_session(canvas.page)

    def drag(*places: tuple[float, float]) -> None:
        """Drag a finger through places: shares of the width of a chart's plot, and heights below its top."""
        for number, (share, height) in enumerate(places):
            at = {"x": box["x"] + 56 + share * (box["width"] - 72), "y": box["y"] + height}
            told = {"type": "touchMove" if number else "touchStart", "touchPoints": [at]}
            session.send("Input.dispatchTouchEvent", told)
            canvas.frame()
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        canvas.frame()

    drag(*((0.25 + part / 40, 120) for part in range(11)))
    ((low, high),) = canvas.sent("zoom")
    assert abs(low - 12_500) < 100 and abs(high - 15_000) < 100
    for _ in range(2):
        canvas.page.touchscreen.tap(200, box["y"] + 120)
    canvas.page.wait_for_function("window.sent.some(message => message.zoom === null)")
    drag(*((0.5, height) for height in range(200, 20, -15)))
    canvas.page.wait_for_function("scrollY > 50")
    assert canvas.sent("zoom")[1:] == [None] and canvas.data("tip") == ""


def test_the_span_is_absolute_while_the_run_grows(show: Open) -> None:
    canvas = show(run_of(60_000, left=10_000, right=20_000))
    grown = run_of(90_000, left=10_000, right=20_000)
    canvas.push(grown)
    assert canvas.page.locator(".nbt-chip").inner_text() == "zoomed 10,000–20,000 ✕"
    canvas.page.locator(".nbt-chip").click()
    canvas.frame()
    point(canvas, 1.0)
    assert "step 20,0" in canvas.data("tip") or "step 19,9" in canvas.data("tip"), "the last column that is here"


# --- groups, axis, theme --------------------------------------------------------------------------


def test_groups_open_and_fold_and_the_filter_is_sent_once(show: Open) -> None:
    canvas = show(run_of(1000))
    folded = canvas.page.locator(".nbt-folded button")
    assert folded.all_inner_texts() == ["grad_norm · 3 metrics", "weight_decay", "memory · 2 metrics"]
    folded.first.click()
    canvas.page.get_by_title("Fold Scores").click()
    asked = [message for message in canvas.page.evaluate("sent") if "open" in message]
    assert asked == [{"open": ["grad_norm"], "is_open": True}, {"open": ["Scores"], "is_open": False}]
    canvas.page.locator(".nbt-filter").press_sequentially("grad*", delay=5)
    canvas.page.wait_for_function("sent.some(message => message.filter)")
    assert canvas.sent("filter") == ["grad*"]
    canvas.page.locator(".nbt-kinds button", has_text="samples").click()
    assert canvas.sent("x") == ["samples"]


def test_sections_fold_limits_are_typed_and_a_chart_is_shown_in_full_size(show: Open) -> None:
    canvas, spec = show(run_of(1000)), run_of(1000)
    for name, is_open in (("rewards/margin", True), ("rewards/chosen", False), ("layers/0", False)):
        spec.chart(name, spec.series(name, np.arange(100), np.arange(100)))
        spec.charts[-1] = replace(spec.charts[-1], is_open=is_open)
    canvas.push(spec)
    rewards, layers = (
        canvas.page.get_by_role("button", name=name) for name in ("rewards · 2 charts", "layers · 1 chart")
    )
    assert [head.get_attribute("aria-expanded") for head in (rewards, layers)] == ["true", "false"]
    tops = [box["y"] for box in (part.bounding_box() for part in (upper(canvas, 3), rewards, upper(canvas, 4), layers))]
    assert tops == sorted(tops) and rewards.bounding_box()["width"] > 800
    assert canvas.page.locator(".nbt-folded button", has_text="rewards/chosen").is_visible()
    assert not canvas.page.locator(".nbt-folded button", has_text="layers/0").count(), "of a folded section"
    rewards.press("Enter")
    layers.click()
    keys = ["rewards/margin", "rewards/chosen"]
    assert canvas.sent("open")[-2:] == [keys, ["layers/0"]] and canvas.sent("is_open")[-2:] == [False, True]
    field = canvas.page.get_by_label("Limits of y of rewards/margin")
    for text in ("-1e-3 to 2.5", "7 7", ""):
        field.fill(text)
        field.press("Enter")
    assert [canvas.sent("limits"), canvas.sent("y")] == [[[-0.001, 2.5], None, None], ["rewards/margin"] * 3]
    canvas.page.get_by_title("rewards/margin in full size").click()
    assert canvas.sent("only") == ["rewards/margin"]
    canvas.push(spec, only="rewards/margin")
    assert upper(canvas).bounding_box()["width"] == 900 and upper(canvas).bounding_box()["height"] == 480
    assert canvas.page.locator(".nbt-title").all_inner_texts() == ["rewards/margin"] and not rewards.is_visible()
    canvas.page.get_by_title("rewards/margin in full size").click()
    assert canvas.sent("only")[-1] == ""


def test_many_closed_charts_take_three_lines_and_are_scrolled(show: Open) -> None:
    spec = Spec(0, 10)
    for number in range(40):
        spec.folded(f"class_{number}")
    canvas = show(spec)
    chips = canvas.page.locator(".nbt-folded")
    assert chips.bounding_box()["height"] < 100 and chips.evaluate("box => box.scrollHeight > box.clientHeight")
    assert chips.locator("button").all_inner_texts() == [f"class_{number}" for number in range(40)]


def test_a_folded_chart_leaves_and_the_others_stay(show: Open) -> None:
    canvas = show(run_of(1000))
    upper(canvas, 2).focus()
    spec = run_of(1000)
    spec.charts[1] = replace(spec.charts[1], is_open=False)
    canvas.push(spec)
    assert canvas.page.locator(".nbt-title").all_inner_texts() == ["Loss", "Learning rate", "Throughput"]
    focused = canvas.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("Learning rate, curves of second")


def test_units_of_the_axis_are_written_out(show: Open) -> None:
    spec = Spec(0, 90_000, kind="relative", unit="seconds", label="relative", kinds=["step", "relative"])
    spec.chart("one", spec.series("a", np.arange(0, 90_001, 900), np.arange(101.0)))
    canvas = show(spec)
    point(canvas, 0.04)
    assert canvas.data("tip").startswith("one, 1 h 0 min 0 s: ")
    buttons = canvas.page.locator(".nbt-kinds button:visible")
    assert buttons.all_inner_texts() == ["step", "relative"]


def test_times_of_the_clock_are_in_the_zone_of_the_kernel_and_its_ticks(show: Open) -> None:
    noon = 1_767_268_800.0  # of 1 January 2026 in UTC
    axis = {"kind": "time", "unit": "clock", "label": "time", "ahead": 5400, "is_zoomed": True}
    spec = Spec(noon, noon + 100, **axis)
    times = noon + np.arange(101)
    spec.chart("one", spec.series("a", times, times - noon), spec.series("b", times[[0, 100]], [0.0, 9.0]))
    canvas = show(spec, zone="Asia/Tokyo")
    point(canvas, 0.04)
    assert "1 Jan, 13:30:04" in canvas.data("tip") and "at 1 Jan, 13:30:00" in canvas.data("tip")
    assert canvas.page.locator(".nbt-chip").inner_text() == "zoomed 1 Jan, 13:30:00–1 Jan, 13:31:40 ✕"


@pytest.mark.parametrize(
    ("attributes", "scheme", "text"),
    [
        ({"style": "--jp-ui-font-color1: #abcdef"}, "light", "rgb(171, 205, 239)"),
        ({"class": "vscode-dark", "style": "--vscode-editor-foreground: #fedcba"}, "light", "rgb(254, 220, 186)"),
        ({}, "dark", "rgb(227, 229, 232)"),
        ({}, "light", "rgb(36, 41, 47)"),
    ],
)
def test_colours_follow_the_page(show: Open, attributes: dict[str, str], scheme: str, text: str) -> None:
    canvas = show(run_of(1000), scheme=scheme)
    canvas.page.evaluate(
        "all => { for (const [k, v] of Object.entries(all)) document.body.setAttribute(k, v); }", attributes
    )
    canvas.frame()
    canvas.frame()
    assert canvas.page.locator(".nbt-canvas").evaluate("e => getComputedStyle(e).color") == text
    assert has_colour(pixels(canvas), PALETTE["evaluation"]).any()


def test_a_run_in_the_legend_is_raised_in_all_charts(show: Open) -> None:
    spec = Spec(0, 5000)
    for title in ("Loss", "Return"):
        curves = [loss_curve(5000, seed=index, scale=5 + 2 * index) for index in range(3)]
        spec.chart(title, *[spec.series("loss", *c, run=f"lr-{i}", colour=f"other{i}") for i, c in enumerate(curves)])
    canvas = show(spec)
    colours = [PALETTE[f"other{index}"] for index in range(3)]
    assert all(has_colour(pixels(canvas, chart), colour).sum() > 200 for chart in (0, 1) for colour in colours)
    canvas.page.locator(".nbt-runs .nbt-entry").nth(1).hover()
    canvas.frame()
    for chart in (0, 1):
        shown = [int(has_colour(pixels(canvas, chart), colour).sum()) for colour in colours]
        assert shown[0] == 0 and shown[1] > 200 and shown[2] == 0
    point(canvas, 0.5, 60)
    assert all(f"lr-{index} " in canvas.data("tip") for index in range(3))


# --- life -----------------------------------------------------------------------------------------


def test_a_hidden_canvas_says_so_and_does_no_work(show: Open) -> None:
    canvas = show(run_of(1000))
    canvas.page.evaluate("document.body.style.paddingTop = '5000px'")
    canvas.page.wait_for_function("sent.some(message => message.visible === false)")
    version = canvas.data("version")
    canvas.page.evaluate("([spec, data]) => push(spec, data)", canvas.encoded(run_of(900)))
    canvas.frame()
    assert canvas.data("version") == version
    canvas.page.evaluate("document.body.style.paddingTop = '0'")
    canvas.page.wait_for_function("sent.some(message => message.visible === true)")
    names = {message["view"] for message in canvas.page.evaluate("sent") if "visible" in message}
    assert len(names) == 1


def test_a_closed_canvas_hears_nothing(show: Open) -> None:
    canvas = show(run_of(1000))
    canvas.page.evaluate("stop()")
    assert canvas.page.evaluate("model.listeners.get('change:version').length") == 0
    count = len(canvas.page.evaluate("sent"))
    drag(canvas, 0.2, 0.6)
    canvas.page.set_viewport_size({"width": 700, "height": 900})
    canvas.frame()
    assert len(canvas.page.evaluate("sent")) == count


def test_without_a_kernel_the_canvas_still_zooms_what_it_has(show: Open) -> None:
    canvas = show(run_of(60_000))
    canvas.page.evaluate("void (model.send = () => { throw new Error('Cannot send'); })")
    drag(canvas, 0.25, 0.5)
    assert canvas.page.locator(".nbt-chip").is_visible()
    point(canvas, 0.0)
    assert re.search(r"step 1[45],\d{3}", canvas.data("tip"))
