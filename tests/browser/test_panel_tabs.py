"""The tabs, the menu and the buttons of a panel, pressed as a person would, at two widths and in both themes."""

import json
import time
from typing import Any

import pytest
from pages import choose_checkpoint, eventually, see, show

from nbtools.rundir import media
from nbtools.rundir.json_files import write_json

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def config_of(run: Any, **values: Any) -> None:
    derived = {"total_steps": 2000, "num_parameters": 1_200_000}
    content = {"recipe": "mlm_pretraining", "config": values, "overridden": {}, "derived": derived}
    write_json(run.files.config, content)


def filled(run: Any) -> Any:
    now = time.time()
    config_of(run, batch_size=16, learning_rate=0.001, epochs=3)
    run.train(5, 900, now - 3600)
    media.append(run.files.media, "sample", 400, media.text("A sample", "once upon a time there was\na loss that fell"))
    with run.files.system.open("a") as file:
        for at in range(60):
            gpus = [{"index": 0, "use_percent": 90 + at % 7, "memory_bytes": 12e9, "power_w": 300 + at}]
            row = {"time": now - 600 + 10 * at, "cpu_percent": 30 + at % 11, "rss_bytes": 2.1e9, "gpus": gpus}
            file.write(json.dumps(row) + "\n")
    return run


ALLOWED = """() => {
  window.told = [];
  window.Notification = class {
    static permission = "granted";
    static requestPermission = async () => "granted";
    constructor(title, { body }) { window.told.push([title, body]); }
  };
}"""
"""A browser that allows notifications and keeps what they say."""


def test_every_tab_shows_its_part_of_the_run_at_two_widths(notebook: Any, record: Any) -> None:
    run = filled(record("mlm_tiny"))
    notebook.page.set_viewport_size({"width": 1600, "height": 1300})
    panel = show(notebook, "tabs.ipynb", run.files)
    panel.locator(".nbt-chart").first.wait_for()
    parts = {
        "Samples": "once upon a time",
        "Log": "step 900 of 2,000",
        "Checkpoints": "not checked",
        "Config": "Differs from the default",
        "System": "GPU power",
    }
    see(panel, parts["Samples"])  # samples come first where there are some
    for width in (1600, 900):
        notebook.page.set_viewport_size({"width": width, "height": 1300})
        for tab, text in parts.items():
            panel.get_by_role("tab", name=tab).click()
            see(panel, text)
            notebook.shoot(f"tabs-{width}-{tab.lower()}", panel)
    panel.get_by_role("button", name="Menu").click()
    panel.get_by_role("button", name="Stacks").wait_for()
    notebook.shoot("tabs-menu", panel)

    # Notifications: one of a kind, once the browser allows them.
    page, clicked = notebook.page, panel.get_by_role("button", name="Notify")
    clicked.click()
    see(panel, "does not allow this page to show notifications")
    page.evaluate(ALLOWED)
    clicked.click()
    see(panel, "The browser tells the end of the run")
    run.write([{"step": 905, "time": time.time(), "train/loss": "NaN"}])
    with run.files.notices.open("a") as file:
        for _ in range(2):
            file.write(json.dumps({"time": time.time(), "kind": "x > 1", "sentence": "x is 2, above 1"}) + "\n")
    said = ["Notifications arrive: this is a test", "train/loss is not finite since step 905", "x is 2, above 1"]
    eventually(lambda: {*said} <= {text for _, text in page.evaluate("told")}, "the test, an alarm and a notice")
    see(panel, "step 905 of 2,000")
    texts = [text for _, text in page.evaluate("told")]
    assert [texts.count(text) for text in said] == [1, 1, 1]

    # A click on a checkpoint's mark.
    loss = panel.locator(".nbt-chart", has=page.locator(".nbt-title", has_text="Loss")).locator("canvas[role=img]")
    loss.scroll_into_view_if_needed()
    box = loss.bounding_box()
    page.mouse.click(box["x"] + 56 + (box["width"] - 72) * 400 / 905, box["y"] + box["height"] - 28)
    panel.get_by_role("tab", name="Checkpoints", selected=True).wait_for()
    see(panel, "Copy the call that tries its model")
    assert "step\xa0400" in panel.get_by_label("Continue from").evaluate("e => e.selectedOptions[0].textContent")
    panel.get_by_role("button", name="Copy path").click()
    see(panel, "Copied")
    assert notebook.mistakes == []


def test_the_log_stays_at_its_end_or_where_it_is_read(notebook: Any, record: Any) -> None:
    run = record("talks")
    run.train(5, 5, time.time() - 60)
    run.files.log.write_text("".join(f"line {number}\n" for number in range(200)))
    panel = show(notebook, "log.ipynb", run.files)
    box = panel.locator(".nbt-log")

    def bottom_is_seen(text: str) -> bool:
        line = box.get_by_text(text, exact=True)
        if line.count() == 0:
            return False
        outer, inner = box.bounding_box(), line.bounding_box()
        return bool(outer["y"] <= inner["y"] <= outer["y"] + outer["height"] - inner["height"] / 2)

    eventually(lambda: bottom_is_seen("line 199"), "the newest line is in view")
    with run.files.log.open("a") as log:
        log.writelines(f"line {number}\n" for number in range(200, 260))
    eventually(lambda: bottom_is_seen("line 259"), "the box follows")
    box.hover()
    notebook.page.mouse.wheel(0, -1500)
    first = """box => [...box.querySelectorAll('[data-line]')]
      .find(line => line.getBoundingClientRect().bottom > box.getBoundingClientRect().top).textContent"""
    eventually(lambda: not bottom_is_seen("line 259"), "the reader has scrolled up")
    notebook.page.wait_for_timeout(500)
    read = box.evaluate(first)
    with run.files.log.open("a") as log:
        log.writelines(f"line {number}\n" for number in range(260, 320))
    eventually(lambda: box.get_by_text("line 319", exact=True).count() == 1, "new lines arrive")
    assert box.evaluate(first) == read
    panel.get_by_placeholder("Search the log").fill("LINE 31")
    see(panel, "11 lines of the last 320")
    assert box.locator("mark").count() == box.locator("[data-line]").count() == 11, "the other lines are hidden"
    notebook.shoot("log-search", panel)
    assert notebook.mistakes == []


def test_a_failure_can_be_copied_launched_again_and_resumed(notebook: Any, record: Any) -> None:
    run, now = record("breaks"), time.time()
    run.train(5, 600, now - 2500)
    failure = {"rank": 1, "host": "node", "exitcode": 1, "message": "ValueError: boom", "traceback": "Traceback: boom"}
    run.end(returncode=1, failure={**failure, "where": "scripts/tiny.py:33 in train: loss.backward()", "step": 600})
    notebook.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel = show(notebook, "breaks.ipynb", run.files)
    see(panel, "ValueError: boom")
    panel.locator(".nbt-chart").first.wait_for()
    notebook.shoot("breaks", panel)
    panel.get_by_role("button", name="Copy", exact=True).first.click()
    eventually(
        lambda: "Traceback: boom" in notebook.page.evaluate("navigator.clipboard.readText()"), "the failure is copied"
    )
    panel.get_by_role("button", name="Launch again").click()
    see(panel, "/breaks.py: the script of")
    panel.get_by_role("button", name="Resume").click()
    see(panel, "no checkpoint to resume from")
    panel.get_by_role("tab", name="Checkpoints").click()
    choose_checkpoint(panel, "step 400")
    panel.get_by_role("button", name="Verify").click()
    see(panel, "✕ damaged")
    see(panel, "0 of 3 checkpoints whole")
    notebook.shoot("damaged", panel)
    panel.get_by_role("button", name="Start").click()
    see(panel, "state.pt: is missing")
    assert notebook.mistakes == []
