"""The report: one file that requests nothing, keeps paths and hosts to itself, and answers zoom, log and fold."""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import Cli
from pages import serious
from PIL import Image
from run_folder import RunFolder
from waiting import eventually
from widget_tree import every

from nbtools.errors import ConfigError
from nbtools.notebook.comparison.report import report, report_html
from nbtools.notebook.panel.panel import LivePlot
from nbtools.notebook.plots.canvas import Canvas
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.rundir import media
from nbtools.rundir.json_files import write_json
from nbtools.rundir.requests.events import Event, append_events
from nbtools.rundir.rundir import RunDir

Make = Callable[..., Run]
HOSTILE = "</script><script>alert(1)</script>"


@pytest.fixture
def make(project: Project) -> Make:
    """Make an ended run of five noisy metrics."""

    def make_run(name: str, seed: int = 0, num_rows: int = 3000, **values: Any) -> Run:
        files = RunDir.create(project.runs, name)
        files.lock.touch()
        run = RunFolder(
            files, 1.7e9, name=name, recipe="none", host="secrethost", cwd="/secret/folder", args=["--lr", "/secret/a"]
        )
        write_json(files.config, {"config": values, "derived": {"total_steps": num_rows}})
        names = ["train/loss", "eval/loss", "train/grad_norm", "train/learning_rate", "train/tokens_per_s"]
        noise = np.random.default_rng(seed).random((num_rows, 5))
        noise[:300] = 1.0
        steps = ({"step": i + 1, "time": 1.7e9 + i} for i in range(num_rows))
        run.write([step | dict(zip(names, row, strict=True)) for step, row in zip(steps, noise.tolist(), strict=True)])
        append_events(files, [Event("1", 9, 1.0, "ana@secrethost", field="learning_rate", before="1", after="2")])
        media.append(files.media, "texts", num_rows, media.text("Sampled", HOSTILE))
        write_json(files.finished, {"why": "completed", "step": num_rows, "metrics": {}})
        return Run(files.path)

    return make_run


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Open a report; nothing is requested but the file, and nothing goes wrong in it."""
    asked: list[str] = []
    page = browser.new_page(viewport={"width": 1300, "height": 1200}, accept_downloads=True)
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: asked.append(str(error)))
    page.on("console", lambda said: asked.append(said.text) if said.type == "error" else None)

    def open_report(text: str) -> Any:
        (tmp_path / "report.html").write_text(text)
        page.goto((tmp_path / "report.html").as_uri())
        page.locator(".nbt-chart canvas").first.wait_for()
        page.locator("#canvas[data-version]").wait_for(state="attached")
        return page

    yield open_report
    page.close()
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []


def test_a_report_says_what_became_of_runs_and_where_they_part(make: Make) -> None:
    first, second = make("a", 0, learning_rate=0.1), make("b", 1, learning_rate=0.2)
    text = report_html(first, second)
    assert re.search(r"<p>Run a succeeded after .* at step 3,000", text)
    assert re.search(r"<p>b differs from a from step 301 on: (train|eval)/loss 0\.\d+ there, 0\.\d+ here", text)
    assert "learning_rate" in text and f"nbtools launch --again {second.id}" in text
    assert len(text) < 1_000_000
    assert "b has the values of a up to step 3,000" in report_html(first, make("b", 0))


def test_paths_hosts_and_markup_stay_out(make: Make) -> None:
    one, other = (make(name, data=f"/secret/{name}/texts.txt", note=HOSTILE) for name in "ab")
    for refs in ([one], [one, other]):
        assert not re.search("secret|<script>alert", text := report_html(*refs))
        assert "--lr …/a" in text and "after step 9" in text and "…/texts.txt" in text and "&lt;script&gt;alert" in text
        assert "secret" in report_html(*refs, details=True)


def test_the_page_zooms_to_what_is_there_and_saves_csv(make: Make, opened: Callable[[str], Any]) -> None:
    run = make("a")
    page = opened(report_html(run))
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert serious(page, None, "color-contrast", "label") == [], scheme
    assert page.locator(".nbt-chart").count() == 4
    limits = page.get_by_label("Limits of y of Loss")
    limits.fill("-1 to 2.5")
    limits.press("Enter")
    page.get_by_title("Loss in full size").click()
    assert page.locator(".nbt-chart").count() == 1 and limits.input_value() == "-1 to 2.5"
    limits.fill("")
    page.get_by_title("Loss in full size").click()
    assert limits.input_value() == ""
    chart = page.locator(".nbt-chart", has_text="Loss")
    box = chart.locator("canvas").last.bounding_box()
    for x, action in ((58, page.mouse.down), (70, page.mouse.up)):
        page.mouse.move(box["x"] + x, box["y"] + 100)
        action()
    page.locator("#canvas[data-zoomed]").wait_for(state="attached")
    assert page.locator(".nbt-chip").is_visible()
    image = np.asarray(Image.open(io.BytesIO(chart.screenshot())).convert("RGB")).astype(int)
    rows = np.nonzero((abs(image[40:180] - [0x3F, 0x90, 0xDA]).sum(axis=2) < 30).any(axis=1))[0] + 40
    assert 100 < rows.max() < 140, "the first values are all 1, now in the middle of the axis"
    chart.get_by_text("log", exact=True).click()
    page.locator(".nbt-filter").fill("grad*")
    page.get_by_text("Loss", exact=True).locator("visible=true").first.wait_for(state="hidden")
    with page.expect_download() as saved:
        page.get_by_role("button", name="csv").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0] == "run,metric,step,value" and lines[1].startswith('"","train/grad_norm",1')


def test_the_menu_has_the_browser_save_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, str]] = []
    monkeypatch.setattr(Canvas, "send", lambda _, content, buffers=None: sent.append(content))
    panel = LivePlot(run := make("a", num_rows=20))
    next(each for each in every(panel.widget) if getattr(each, "description", "") == "Report").click()
    eventually(lambda: sent)
    assert sent[0]["file"] == f"{run.id}.html" and sent[0]["text"].startswith("<!doctype html>")
    panel.close()


def test_a_terminal_writes_it_and_names_a_wrong_file(make: Make, tmp_path: Path, cli: Cli) -> None:
    run = make("a", num_rows=20)
    cli("plot", run.id, "-o", tmp_path / "r.html")
    assert "--details: is for a report" in cli("plot", run.id, "-o", tmp_path / "r.png", "--details", code=2).stderr
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    with pytest.raises(ConfigError, match=r"must end in \.html"):
        report(run, path=tmp_path / "r.pdf")
