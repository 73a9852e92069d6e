"""The panel, with real widgets and real run directories; a browser looks at it in tests/browser."""

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from curves import charts
from ipywidgets import Button, FloatSlider, ToggleButton
from ipywidgets.widgets.widget import _instances
from launched import PROGRAMS, agent
from matplotlib.figure import Figure
from nbclient import NotebookClient
from run_folder import RunFolder
from waiting import eventually
from widget_tree import every, html_in

from nbtools.cli import doctor
from nbtools.errors import RunNotFoundError
from nbtools.failures.failure import Failure
from nbtools.machine.processes import members, removed_runs
from nbtools.notebook import html_parts
from nbtools.notebook.panel import html
from nbtools.notebook.panel.panel import LivePlot
from nbtools.notebook.panel.snapshot import ShownRun, Snapshot, log_of, stamp_of, take_snapshot
from nbtools.notebook.panel.tabs import SYSTEM, TITLES
from nbtools.notebook.plots.metric_names import grouped
from nbtools.notebook.plots.view import view_of
from nbtools.run.ranks.stacks import RankStacks
from nbtools.run.ranks.stragglers import stragglers
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir import media
from nbtools.rundir.heartbeat import RankHeartbeat, read_heartbeats
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.requests.events import Event, append_events
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir
from nbtools.steering import append_rows

Show = Callable[..., LivePlot]
HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", r"$\frac{1}{2}$", "' onclick='x"]


def made(runs: Path, run_id: str, **launch: Any) -> RunFolder:
    return RunFolder(RunDir(runs / run_id), time.time() - 60, **launch)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    run = made(tmp_path, "2026-01-31_142233_tiny")
    run.start()
    yield run
    run.release()


@pytest.fixture
def show(kept: Callable[[LivePlot], LivePlot]) -> Show:
    """Open panels that are closed at the end."""

    def open_panel(folder: RunFolder | Run, *, is_refreshed: bool = False, **options: Any) -> LivePlot:
        panel = kept(LivePlot(folder.files.path, **{"refresh_s": 0.05, **options}))
        if is_refreshed:
            panel.refresh()
        return panel

    return open_panel


@pytest.mark.promise("fault-22")
@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_the_duration_of_a_run_is_right_although_the_clock_was_set(
    folder: RunFolder, show: Show, jump_s: float
) -> None:
    content = {"returncode": 0, "stopped": False, "failure": None, "time": folder.started + jump_s}
    write_json(folder.files.exit, {**content, "duration_s": 61.5})
    folder.release()
    panel = show(folder, is_refreshed=True)
    assert "elapsed 1m02s" in panel._widgets.words.progress.value


def threads(panel: LivePlot) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"LivePlot({panel.run.id!r}")]


def ended(show: Show, folder: RunFolder) -> LivePlot:
    """Open the panel of an ended run, and wait for its last look."""
    panel = show(folder)
    eventually(lambda: threads(panel) == [])
    return panel


def words(panel: LivePlot) -> str:
    return html_in(panel.widget)


def image(panel: LivePlot) -> bytes:
    return bytes(panel._image.value)


# --- life ---


def test_a_row_that_is_written_appears_without_a_call(folder: RunFolder, show: Show) -> None:
    panel = show(folder)
    eventually(lambda: image(panel)[:4] == b"\x89PNG")
    before = image(panel)
    folder.rows(1, 20)
    eventually(lambda: image(panel) != before and "step 20 of 100" in words(panel))
    assert (panel._canvas.version, panel._canvas.data) == (0, b""), "the page never answered"


def test_the_thread_ends_on_close_and_the_run_goes_on(folder: RunFolder, show: Show) -> None:
    before = set(_instances)
    panel = show(folder)
    assert len(threads(panel)) == 1 and threads(panel)[0].daemon
    panel.close()
    assert threads(panel) == []
    assert panel.run.state is RunState.RUNNING
    panel.close()
    panel.refresh()
    assert set(_instances) <= before, "the kernel keeps no model of a closed panel"


def test_nothing_is_drawn_or_sent_while_nothing_changes(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 50)
    panel = show(folder, refresh_s=60.0, is_refreshed=True)
    changes: list[object] = []
    panel._image.observe(changes.append, "value")
    for _ in range(20):
        panel.refresh()
    assert changes == []
    folder.beat(0, 51)
    panel.refresh()
    assert "rank 0 · step 51" in words(panel)
    assert changes == [], "a heartbeat changes words, not the picture"
    folder.rows(51, 51)
    panel.refresh()
    assert len(changes) == 1


def test_smoothing_redraws_a_live_run_and_a_finished_one(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 20, value=2.0)
    folder.rows(21, 40, value=9.0)
    panel = show(folder, is_refreshed=True)
    for is_final in (False, True):
        if is_final:
            folder.end()
            eventually(lambda: threads(panel) == [])
        before = image(panel)
        panel._smoothing.value = 0.1
        eventually(lambda before=before: image(panel) != before)  # type: ignore[misc]
        panel._smoothing.value = 0.6
        eventually(lambda before=before: image(panel) == before)  # type: ignore[misc]


def test_two_panels_do_not_disturb_each_other_and_a_last_draw_shows_the_end(folder: RunFolder, show: Show) -> None:
    first, second = show(folder), show(folder)
    folder.rows(1, 30)
    eventually(lambda: all("step 30 " in words(panel) for panel in (first, second)))
    first.close()
    folder.rows(31, 40)
    eventually(lambda: "step 40 " in words(second))
    folder.rows(41, 50)
    folder.end()
    eventually(lambda: threads(second) == [])
    assert "Succeeded" in words(second) and "step 50 of 100" in words(second)


def test_a_panel_opened_before_the_first_line_waits(folder: RunFolder, show: Show) -> None:
    folder.files.config.unlink()
    folder.files.log.unlink()
    panel = show(folder)
    eventually(lambda: "Queued" in words(panel) and image(panel)[:4] == b"\x89PNG")
    assert "(no output yet)" in words(panel)
    folder.files.log.write_text("hello from rank 0\n")
    eventually(lambda: "Running" in words(panel) and "hello from rank 0" in words(panel))


def test_what_comes_before_the_first_step_is_ticked_off(folder: RunFolder, show: Show) -> None:
    folder.files.config.unlink()
    folder.files.log.unlink()
    panel = show(folder, refresh_s=60.0)

    def listed() -> list[bool]:
        panel.refresh()
        return [label.startswith("done: ") for label in re.findall(r"<li [^>]*aria-label='([^']*)'", words(panel))]

    assert listed() == [False, False, False, False]
    folder.files.log.touch()
    folder.beat(0, 0, "data")
    assert listed() == [True, False, False, False]
    folder.beat(1, 0, "data")
    assert listed() == [True, True, False, False]
    write_json(folder.files.config, {"config": {}, "derived": {"total_steps": 100}})
    assert listed() == [True, True, True, False]
    folder.rows(1, 1)
    assert listed() == []


def test_what_goes_wrong_while_looking_is_shown_passes_and_is_never_printed(
    folder: RunFolder, show: Show, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.rows(1, 10)
    folder.rows(1, 10, name="日本/\u202eloss", value="NaN")
    panel = show(folder)
    eventually(lambda: "step 10 " in words(panel))
    hidden = folder.files.checkpoints.with_name("hidden")
    folder.files.checkpoints.rename(hidden)
    folder.files.checkpoints.write_text("not a folder")
    newer = folder.files.path / "config.tmp"
    config = folder.files.config.read_text()
    newer.write_text(json.dumps({"format": 99}))
    newer.replace(folder.files.config)
    eventually(lambda: "update nbtools" in words(panel))
    folder.files.config.write_text(config)
    folder.files.checkpoints.unlink()
    hidden.rename(folder.files.checkpoints)
    eventually(lambda: "update nbtools" not in words(panel))
    assert len(threads(panel)) == 1
    folder.end(1)
    eventually(lambda: threads(panel) == [])
    assert capfd.readouterr() == ("", "")


# --- words ---


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_literally(tmp_path: Path, show: Show, text: str) -> None:
    name = "2026-01-31_142233_" + text.replace("/", "_")
    folder = made(tmp_path, name, script=f"/p/{text.replace('/', '_')}.py", resumed_from={"run": text, "step": 3})
    folder.start()
    folder.files.log.write_text(f"a line with {text}\n")
    folder.rows(1, 3, name=text)
    folder.beat(0, 3, phase=text)
    folder.end(1, {"rank": 1, "host": text, "message": f"ValueError: {text}", "traceback": f"Traceback\n  {text}\n"})
    panel = show(folder, is_refreshed=True)
    shown = words(panel)
    eventually(lambda: threads(panel) == [])
    for tag in ("<img", "<script", "</script"):
        assert tag not in shown
    assert shown.count(html.literal(text)) >= 5 and "onclick='" not in shown


def test_a_failure_names_the_rank_the_message_and_the_end_of_the_traceback(folder: RunFolder, show: Show) -> None:
    trace = "Traceback (most recent call last):\n" + "".join(f"  line {i}\n" for i in range(300)) + "ValueError: boom"
    folder.end(1, {"rank": 1, "host": "node7", "exitcode": 1, "message": "ValueError: boom", "traceback": trace})
    shown = words(ended(show, folder))
    for part in ("Failed", "rank 1", "ValueError: boom", "line 299", "102 more lines above", str(folder.files.log)):
        assert part in shown
    assert "<b style='font-size:15px'>ValueError: boom</b><div>rank 1 on node7</div>" in shown, "the exception is first"
    assert "line 1\n" not in shown
    killed = html.failure(Failure(1, "h", None, "SIGKILL", "killed by SIGKILL", None), "/r/rank0.log")
    assert "SIGKILL" in killed and "<pre" not in killed, "without a traceback"


def test_the_thread_of_a_lost_run_ends_although_an_option_changes_at_its_last_look(
    folder: RunFolder, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_looks, look = 0, LivePlot._look_guarded

    def look_and_wake(panel: LivePlot) -> None:
        nonlocal num_looks
        look(panel)
        num_looks += 1
        if num_looks == 5:
            panel._wake.set()

    monkeypatch.setattr(LivePlot, "_look_guarded", look_and_wake)
    folder.rows(1, 5)
    folder.release()
    panel = show(folder)
    eventually(lambda: threads(panel) == [])
    assert num_looks == 6 and "Lost" in words(panel)


def test_every_state_has_a_sign_and_a_word() -> None:
    assert len({html_parts.STATES[state][0] for state in RunState}) == len(RunState)
    assert all(state.value.capitalize() in html.header("name", "id", state) for state in RunState)


def test_titles_lead_with_the_name_and_keep_the_id_and_the_commit(folder: RunFolder, show: Show) -> None:
    code = {"commit": "3f2a91c04b" + 30 * "0", "lines": 12, "sha256": 64 * "a"}
    info = json.loads(folder.files.launch.read_text())
    write_json(folder.files.launch, {**info, "name": "second <try>", "code": code})
    folder.rows(1, 3)
    panel = show(folder, is_refreshed=True)
    header = panel._widgets.words.header.value
    assert 0 < header.index("second &lt;try&gt;") < header.index(folder.files.id) < header.index("Running")
    assert "commit 3f2a91c04b + uncommitted changes (12 lines)" in header
    view = view_of(Run(folder.files.path))
    assert view.title == "second <try>" and view.subtitle.startswith(f"{folder.files.id} · running · step 3")


def executed(*sources: str, **options: Any) -> list[Any]:
    """Execute cells as a program does, and return them with their outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=300, kernel_name="python3", store_widget_state=False, **options).execute()
    return list(notebook.cells)


class Gate:
    """Holds the reading of all rows by panels until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, read = threading.Event(), ShownRun.read_rows
        monkeypatch.setattr(ShownRun, "read_rows", lambda shown: self.opened.wait(20) and read(shown))


def long_run(folder: RunFolder) -> None:
    """Write 30,000 rows with a spike in the middle, and end the run."""
    with folder.files.metrics.open("w") as file:
        for step in range(1, 30_001):
            row = {"step": step, "time": folder.started + step, "train/loss": 99.0 if step == 15_000 else 5 / step}
            file.write(json.dumps(row) + "\n")


def highest(panel: LivePlot) -> float:
    """Return the upper limit of the first chart in the picture."""
    return charts(panel._shown.view(panel._options())).shown[0].y[1]


def test_a_long_run_first_shows_its_ends_and_says_so_while_all_rows_are_read(
    folder: RunFolder, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_run(folder)
    gate = Gate(monkeypatch)
    panel = show(folder)
    eventually(lambda: bool(panel._png))
    said = "the curves show the first and the last rows; all are being read"
    assert said in panel._widgets.words.header.value and "step 30,000" in panel._widgets.words.progress.value
    assert not panel.run.rows.is_read and highest(panel) < 10, "the spike in the middle is not known"
    panel._smoothing.value = 0.0  # the panel is not locked while rows are read
    first = panel._png
    gate.opened.set()
    eventually(lambda: said not in panel._widgets.words.header.value and panel._png != first)
    assert highest(panel) > 99 and panel.run.rows.is_read
    whole = show(folder, smoothing=0.0, is_refreshed=True)
    assert panel._png == whole._png


def test_a_long_run_that_was_opened_before_is_whole_at_once(
    folder: RunFolder, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_run(folder)
    show(folder).refresh()
    gate = Gate(monkeypatch)
    panel = show(folder)
    eventually(lambda: bool(panel._png))
    assert highest(panel) > 99 and "being read" not in panel._widgets.words.header.value
    assert not panel.run.rows.is_read
    folder.rows(30_001, 30_001)
    lagging = show(folder)
    eventually(lambda: bool(lagging._png))
    assert "the newest rows are being read" in lagging._widgets.words.header.value
    gate.opened.set()
    eventually(lambda: "being read" not in lagging._widgets.words.header.value)
    assert lagging.run.history.last_step == 30_001


def test_a_notebook_that_a_program_executes_stores_all_rows(folder: RunFolder) -> None:
    long_run(folder)
    folder.end()
    cells = executed(f"import nbtools as nt\nnt.LivePlot({str(folder.files.path)!r})")
    words, picture = cells[0].outputs[:2]
    assert "being read" not in words.data["text/html"] and "image/png" in picture.data


def test_the_use_of_the_gpu_is_told_beside_the_bar_and_what_is_in_words_takes_no_chart(folder: RunFolder) -> None:
    folder.rows(1, 3)
    for name, value in (("train/data_wait", 0.03), ("train/peer_wait", 0.12), ("system/peak_memory_gb", 12.34)):
        folder.rows(1, 3, name, value)
    assert [name for name, _ in grouped(Run(folder.files.path).history)] == ["loss"]
    folder.rows(1, 3, "train/mfu", 0.412)
    facts = take_snapshot(Run(folder.files.path), RunState.RUNNING)
    assert "MFU 41% · peak 12.3 GB" in html.progress(facts, None, None, "RUNNING")


def test_what_slows_a_training_is_told_below_the_bar_and_its_phases_are_bars_also_of_the_zoomed_steps(
    folder: RunFolder, show: Show
) -> None:
    folder.rows(1, 3)
    for rank, seconds in enumerate(({"data": 1, "forward": 6, "waiting": 13}, {"data": 14, "forward": 6})):
        rows = [{"step": step, "seconds": seconds} for step in (1, 2)]
        rows.append({"step": 3, "seconds": {"forward": 8, "evaluation": 8}})
        folder.files.phases(rank).write_text("".join(json.dumps(row) + "\n" for row in rows))
    panel = show(folder, is_refreshed=True)
    slow = "Rank 1 waits for data 50% of the time, the others 4%: its disk or its loader is slow; raise num_workers."
    assert slow in plain(panel._widgets.words.progress.value)
    panel._widgets.tabs.widget.selected_index = SYSTEM
    panel.refresh()
    system = panel._widgets.tabs.system
    assert f"Time of each rank {slow} rank 0 36% 46% 14% rank 1 50% 36% 14%" in plain(system.value)
    assert "aria-label='rank 1: data 50%, forward 36%, evaluation 14%'" in system.value
    panel._choices.take({"zoom": [2.5, 3.5]})
    panel.refresh()
    zoomed = plain(system.value).partition("In steps 2 to 4 ")[2]
    assert zoomed.startswith("Evaluation takes 50% of the time on all ranks") and "rank 1 50% 50%" in zoomed
    assert panel.run.phases(3, 3)[0]["evaluation"] == 8
    for zoom in (None, [1.5, 2.5], [0.5, 1.5]):  # out, and into another part, which is moved
        panel._choices.take({"zoom": zoom})
        panel.refresh()
    parts = plain(system.value).split("In steps ")[1:]
    assert [part[:6] for part in parts] == ["2 to 4", "0 to 2"], "the part that was shown before stays"


def test_another_program_s_mfu_is_drawn_and_not_taken_for_a_share(folder: RunFolder) -> None:
    folder.rows(1, 3, "train/mfu", 41.2)
    assert [name for name, _ in grouped(Run(folder.files.path).history)] == ["mfu"]
    assert list(take_snapshot(Run(folder.files.path), RunState.RUNNING).use) == []


@pytest.mark.promise("guide-M10")
def test_the_remaining_time_follows_the_recent_rate(folder: RunFolder) -> None:
    folder.rows(1, 60, every_s=0.5)
    facts = take_snapshot(Run(folder.files.path), RunState.RUNNING)
    assert facts.seconds_per_step == pytest.approx(0.5) and facts.last_row is not None
    assert facts.remaining_s(facts.last_row) == pytest.approx(20.0)
    assert facts.remaining_s(facts.last_row + 1000) == pytest.approx(19.5), "waits for the step under way, no longer"


def test_right_after_a_resume_the_rate_is_this_runs_own(tmp_path: Path) -> None:
    parent = made(tmp_path, "2026-01-31_142233_parent")
    parent.started -= 100_000
    parent.rows(1, 50, every_s=30.0)
    child = made(tmp_path, "2026-01-31_152233_child", resumed_from={"run": parent.files.id, "step": 50})
    child.rows(51, 52, every_s=0.25)
    run = Run(child.files.path)
    assert len(run.history["train/loss"]) == 52
    assert take_snapshot(run, RunState.RUNNING).seconds_per_step == pytest.approx(0.25)


def on_nodes(num_ranks: int, per_node: int, *late: int) -> str:
    """The strip of ranks on several nodes, where those in `late` are a step behind for a minute."""
    found = [
        RankHeartbeat(rank, 1, f"n{rank // per_node}", 9 if rank in late else 10, "backward", 940 if late else 999)
        for rank in range(num_ranks)
    ]
    return html.ranks(found, stragglers(found, 1000.0, 0.5), 1000.0, True, per_node)


def plain(markup: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


def test_ranks_of_several_nodes_name_theirs() -> None:
    words = plain(on_nodes(4, 2, 3))
    assert words.startswith("rank 0 on node 0 (n0) · step 10 · backward · 1m ago rank 1 on node 0 (n0)")
    assert "rank 3 on node 1 (n1) · step 9 · backward · silent for" in words


def test_of_a_thousand_ranks_the_straggler_is_named_and_the_others_counted() -> None:
    shown = on_nodes(1000, 8, 777)
    assert len(shown) < 10_000
    words = plain(shown)
    assert "rank 777 on node 97 (n97) · step 9 · backward · silent for 1m" in words
    assert words.endswith("of 1,000 ranks on 125 nodes, steps 9 to 10")
    assert "of 1,000 ranks on 125 nodes, all at step 10" in plain(on_nodes(1000, 8))


@pytest.mark.parametrize(("job_s", "is_early"), [(3600, False), (600, True)])
def test_a_job_that_ends_before_the_training_is_said_in_amber(job_s: float, is_early: bool) -> None:
    said = html.progress(Snapshot(step=5, total_steps=10), 60.0, 1800.0, "RUNNING", job_s)
    assert f"the job ends in {'10m, before the training' if is_early else '1h'}" in plain(said)
    assert ("--jp-warn-color0" in said) is is_early


def test_a_straggler_that_was_stopped_or_killed_is_told_as_such(folder: RunFolder, show: Show) -> None:
    held = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        held.send_signal(signal.SIGSTOP)
        for rank in (0, 1):
            folder.beat(rank, 40, "backward", age_s=60)
        identity = ProcessIdentity.of(held.pid).to_json()
        beat = {"rank": 1, "step": 40, "phase": "backward", "time": time.time() - 60}
        write_json(folder.files.heartbeat(1), {**beat, **identity})
        panel = show(folder)
        eventually(lambda: ", stopped (state T)</b>" in words(panel))
        assert "rank 1 silent for" in panel._widgets.words.header.value
        assert words(panel).count("silent") == 2, "in the header, and at the rank"
    finally:
        held.kill()
        held.wait()
    eventually(lambda: ", gone</b>" in words(panel))


def test_the_stacks_button_shows_every_rank_the_straggler_first_and_open(
    supervised: Callable[..., Run], show: Show
) -> None:
    run = supervised(*agent(PROGRAMS / "hangs.py", "announce"))
    eventually(lambda: len(read_heartbeats(run.files)) == 2, 60)
    panel = show(run)
    eventually(lambda: "silent" in words(panel) and not panel._widgets.buttons.stacks.disabled, 60)
    panel._widgets.buttons.stacks.click()
    eventually(lambda: "Stacks of 2 of 2 ranks" in panel._widgets.note.value, 60)
    shown = panel._widgets.taken.value
    assert shown.count("in hang_here") == 2 and shown.count("<details open>") == 1
    assert shown.index("<details open>") < shown.index("rank 1 (pid") < shown.index("rank 0 (pid")
    eventually(lambda: not panel._widgets.buttons.stacks.disabled)
    run.stop(timeout_s=1)
    eventually(lambda: panel._widgets.buttons.stacks.disabled, 60)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_stacks_are_shown_literally(text: str) -> None:
    shown = html.stacks([RankStacks(0, 7, f"File '{text}', line 1 in {text}\n" + "x" * 10_000, True)], {0})
    assert shown.count(html.literal(text)) == 2
    assert text not in shown or text == html.literal(text)
    assert len(shown) < 5000


def test_only_the_end_of_a_flood_of_output_is_read_and_shown(folder: RunFolder, show: Show) -> None:
    line = b"x" * 99 + b"\n"
    with folder.files.log.open("wb") as file:
        file.write(b"y" * 10_000_000 + b"\n")
        for _ in range(50):
            file.write(line * 10_000)
        file.write(b"\x1b[31mlast\x1b[0m line \xff\n")
    panel = show(folder, refresh_s=60.0, is_refreshed=True)
    assert "last line" in words(panel) and len(words(panel)) < 60_000
    with folder.files.log.open("ab") as file:
        file.write(b"z" * 10_000_000)
    began = time.thread_time()
    panel.refresh()
    assert time.thread_time() - began < 0.5


@pytest.mark.promise("fault-10")
def test_damaged_and_dropped_rows_are_told(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 3)
    with folder.files.metrics.open("a") as file:
        file.write('{"step": 4, "train/lo\n{"step": 5, "time": 1.0, "train/loss": 2.0, "dropped": 7}\n')
    panel = show(folder)
    eventually(lambda: "1 damaged lines" in words(panel) and "7 metric rows could not be written" in words(panel))


@pytest.mark.promise("fault-13")
@pytest.mark.parametrize("name", ["train/loss", HOSTILE[0]])
def test_values_that_are_not_finite_are_an_alert_in_words(folder: RunFolder, show: Show, name: str) -> None:
    folder.rows(1, 9, name=name)
    panel = show(folder)
    eventually(lambda: "step 9 of 100" in words(panel))
    assert "not finite" not in words(panel)
    folder.rows(10, 12, name=name, value="NaN")
    eventually(lambda: f"{html.literal(name)} is not finite since step 10" in words(panel))
    eventually(lambda: "role='alert'" in panel._widgets.words.losses.value)
    folder.rows(13, 13, name=name)
    eventually(lambda: f"{html.literal(name)}: 3 values not finite, first at step 10" in words(panel))


def test_of_many_metrics_that_are_not_finite_a_few_are_named(folder: RunFolder, show: Show) -> None:
    for index in range(9):
        folder.rows(1, 2, name=f"layer{index}/norm", value="Infinity")
    panel = show(folder)
    eventually(lambda: "layer3/norm is not finite since step 1\nand 5 more metrics" in words(panel))


# --- the queue, restarts, coming back ---


def test_a_queued_run_says_what_it_waits_for_and_can_be_cancelled(
    folder: RunFolder, tmp_path: Path, show: Show
) -> None:
    folder.files.log.unlink()
    before = made(tmp_path, "2026-01-31_132233_<b>before")
    before.start()
    info = json.loads(folder.files.launch.read_text())
    write_json(folder.files.launch, {**info, "after": str(before.files.path)})
    try:
        panel = show(folder)
        eventually(lambda: "<b>Queued after &lt;b&gt;before</b>" in panel._widgets.words.header.value)
        assert "waiting for its processes" not in panel._widgets.words.header.value
        assert panel._widgets.buttons.stop.description == "Cancel" and not panel._widgets.buttons.stop.disabled
        before.end()
        eventually(lambda: "<b>Queued</b>" in panel._widgets.words.header.value)
        folder.files.log.touch()
        eventually(lambda: "Running" in panel._widgets.words.header.value)
        assert panel._widgets.buttons.stop.description == "Stop"
    finally:
        before.release()


@pytest.mark.parametrize(("name", "is_told"), [("tiny", False), ("folder_tiny", False), ("lr_b", True)])
def test_the_script_stands_below_a_name_that_does_not_tell_it(
    tmp_path: Path, show: Show, name: str, is_told: bool
) -> None:
    folder = made(tmp_path, "2026-01-31_142233_run", name=name)
    folder.end()
    panel = show(folder, is_refreshed=True)
    assert ("tiny.py" in panel._widgets.words.header.value) is is_told


def test_a_page_keeps_no_picture_before_the_first_metric(folder: RunFolder, show: Show) -> None:
    panel = show(folder, is_refreshed=True)
    assert panel._outputs()[1] == ({"text/plain": ""}, {})
    assert bytes(panel._image.value).startswith(b"\x89PNG"), "shown where anywidget is missing"
    folder.rows(1, 5)
    panel.refresh()
    assert panel._outputs()[1][0]["image/png"].startswith(b"\x89PNG")
    folder.files.metrics.unlink()
    folder.end(1)
    failed = show(folder, is_refreshed=True)
    assert "image/png" not in failed._outputs()[1][0]


def test_a_removed_run_directory_is_told_with_the_command_that_ends_its_processes(
    folder: RunFolder, show: Show
) -> None:
    folder.rows(1, 5)
    folder.beat(0, 5)
    panel = show(folder, is_refreshed=True)
    marks = {RUN_ID_VARIABLE: folder.files.id, RUN_DIR_VARIABLE: str(folder.files.path)}
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **marks}) as process, contextlib.ExitStack() as ended:
        ended.callback(process.kill)  # a failure waits for no sleep
        eventually(lambda: bool(members(folder.files)))
        picture = panel._png
        folder.release()
        shutil.rmtree(folder.files.path)
        said = f"its run directory was removed; its processes still run: stop them with kill {process.pid}"
        eventually(lambda: said[1:] in words(panel))
        widgets = panel._widgets
        assert "Lost since its run directory was removed" in widgets.words.header.value
        eventually(
            lambda: not widgets.trouble.value + widgets.words.ranks.value and "Error" not in widgets.words.failure.value
        )
        assert (widgets.buttons.stop.layout.display, widgets.buttons.again.layout.display) == ("", "none")
        assert panel._png == picture, "the curves stay"
        with pytest.raises(RunNotFoundError, match=f"{folder.files.id}: {said}"):
            LivePlot(panel.run)
        assert panel.run.failure is not None and panel.run.failure.message == said
        assert folder.files.path in [run.path for run in removed_runs()]
        told = [finding for finding in doctor._removed_runs() if folder.files.id in finding.text]
        assert [finding.next_step for finding in told] == [f"kill {process.pid}"]
        panel.run.stop()
    panel._changed()
    eventually(lambda: "stop them" not in words(panel))
    assert folder.files.path not in [run.path for run in removed_runs()]


def test_a_panel_keeps_calm_while_a_failed_run_starts_again(folder: RunFolder, show: Show) -> None:
    info = json.loads(folder.files.launch.read_text())
    write_json(folder.files.launch, {**info, "launch": {"nproc_per_node": 2, "max_restarts": 3}})
    panel = show(folder)
    headers: list[str] = []
    panel._widgets.words.header.observe(lambda change: headers.append(change["new"]), "value")
    folder.rows(1, 60)
    folder.checkpoint(50, 3.0)
    eventually(lambda: "step 60 of 100" in words(panel))
    failure = {"rank": 1, "host": None, "message": "killed by SIGKILL", "signal": "SIGKILL"}
    write_json(folder.files.finished, {"why": "failed", "step": 60, "metrics": {}, "failure": failure, "time": 1.0})
    eventually(lambda: panel._shown.stamp == (RunState.RUNNING, *stamp_of(panel.run)))
    folder.restart(1, "step-000050", **failure)
    folder.files.finished.unlink()
    eventually(lambda: "attempt 2 of 4 · restarted at step 50: rank 1: killed by SIGKILL" in words(panel))
    with folder.files.metrics.open("a") as file:
        for step in range(51, 56):
            row = {"step": step, "time": time.time(), "attempt": 2, "train/loss": 1.0}
            file.write(json.dumps(row) + "\n")
    eventually(lambda: "step 55 of 100" in words(panel))
    assert len(threads(panel)) == 1
    assert not panel._widgets.buttons.stop.disabled and panel._widgets.tabs.checkpoints.start.disabled
    assert headers
    assert all("Running" in header for header in headers)
    folder.end()
    eventually(lambda: threads(panel) == [])
    assert "Succeeded" in words(panel) and "attempt 2 of 4" in words(panel)


def test_requests_are_numbered_lines_on_every_chart(folder: RunFolder) -> None:
    folder.rows(1, 60)
    done = [Event("a", 20, 1.0, action="save"), Event("b", 30, 2.0, refused="no"), Event("c", 40, 3.0, action="pause")]
    append_events(folder.files, [*done, Event("d", 40, 4.0, field="learning_rate", before=0.1, after=0.2)])
    assert {tuple(chart.cuts) for chart in charts(view_of(Run(folder.files.path))).shown} == {((20, "1"), (40, "2, 3"))}


def test_a_training_is_steered_from_its_row(folder: RunFolder, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Run, "steer", lambda run, *actions, **values: asked.append((actions, values)) or "done")
    folder.rows(1, 10)
    panel = show(folder)
    row = panel._widgets.steer
    assert row.widget.layout.display == row.in_menu.layout.display == "none", "it takes no requests yet"
    write_json(folder.files.process, {**(read_json(folder.files.process) or {}), "role": "supervisor"})
    eventually(lambda: row.in_menu.layout.display == "")
    assert row.widget.layout.display == "none", "a program has no row"
    write_json(folder.files.controls, {"actions": ["save", "pause", "continue"], "values": {"learning_rate": 0.1}})
    eventually(lambda: row.widget.layout.display == "")
    shown = [name for name, button in row.buttons.items() if button.layout.display == ""]
    assert (shown, row.in_menu.layout.display) == (["save", "pause"], "none")
    assert row.changes.placeholder.startswith("learning_rate=0.1 notify_on.")
    row.buttons["save"].click()
    eventually(lambda: "done" in panel._widgets.note.value)
    typed = "'notify_on.values=a < 2, b > 3' notify_on.no_improvement=True"
    row.changes.value = f"'learning_rate=0.5' 'eval_every= 7' {typed}"
    row.apply.click()
    eventually(lambda: len(asked) == 2)
    conditions = {"values": ("a < 2", "b > 3"), "no_improvement": 20}
    assert asked == [(("save",), {}), ((), {"learning_rate": 0.5, "eval_every": 7, "notify_on": conditions})]
    rows = [row, show(folder)._widgets.steer]
    write_json(folder.files.launch, {**(read_json(folder.files.launch) or {}), "launch": {"notify_on": {"nan": True}}})
    eventually(lambda: all("notify_on.nan=True" in str(each.changes.tooltip) for each in rows))
    append_rows(folder.files.notices, [{"conditions": {"stalled_min": 9, "values": ["train/loss < 2"]}}])
    eventually(lambda: all("notify_on.stalled_min=9" in each.changes.tooltip for each in rows))
    assert [one.is_limit for one in charts(view_of(Run(folder.files.path))).shown[0].series].count(True) == 1
    append_events(folder.files, [Event("a", 10, 1.0, by="ana@box", action="pause")])
    eventually(lambda: row.buttons["continue"].layout.display == "")
    assert "paused by ana@box after step 10" in words(panel)
    folder.end()
    eventually(lambda: row.widget.layout.display == "none")


def test_a_page_that_may_is_told_of_alarms_notices_and_the_end(
    folder: RunFolder, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rows(1, 3)
    panel, sent = show(folder), list[dict[str, Any]]()
    monkeypatch.setattr(panel._widgets.page, "send", sent.append)
    for permission, said in (("denied", "does not allow this page"), ("missing", "https or localhost")):
        panel._hear_page({"permission": permission})
        eventually(lambda said=said: said in panel._widgets.note.value)  # type: ignore[misc]
    folder.files.notices.write_text('{"time": 1, "kind": "x > 1", "sentence": "x is 2"}\n')
    panel._hear_page({"permission": "granted"})
    eventually(lambda: "The browser tells the end of the run" in panel._widgets.note.value)
    folder.rows(4, 4, value="NaN")
    eventually(lambda: len(sent) == 1)
    with folder.files.notices.open("a") as file:
        file.write(f'{{"time": {time.time() + 1}, "kind": "x > 1", "sentence": "x is 3"}}\n')
    eventually(lambda: len(sent) == 3)
    folder.end()
    eventually(lambda: threads(panel) == [])
    texts = [one["text"] for one in sent]
    assert texts[:3] == ["train/loss is not finite since step 4", "x is 3", "train/loss is not finite since step 4"]
    assert (sent[-1]["kind"], sent[-1]["run"]) == ("ended", folder.files.id) and "tiny succeeded" in texts[-1]


def test_a_restart_is_a_thin_line_on_the_curves(folder: RunFolder) -> None:
    folder.rows(1, 60)
    folder.restart(1, None)
    folder.restart(2, "step-000020")
    folder.restart(3, "step-000050")
    assert [x for x, _ in charts(view_of(Run(folder.files.path))).shown[0].cuts] == [20, 50]


STOP_LOG = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
ValueError: a rank's own, caught and printed
step 299
W1121 04:02:03.1 123 torch/distributed/elastic/agent/server/api.py:765] Received 15 death signal, shutting down workers
W1121 04:02:03.2 123 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 124 closing signal SIGTERM
saved step-000305
Traceback (most recent call last):
  File "/venv/torch/distributed/run.py", line 1032, in <module>
    main()
    ^^^^^^
  File "/venv/torch/distributed/elastic/multiprocessing/api.py", line 86, in _terminate_process_handler
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 123 got signal: 15

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/torch/distributed/run.py", line 1028, in main
torch.distributed.elastic.multiprocessing.api.SignalException: Process 123 got signal: 15
"""


def test_after_a_stop_the_log_ends_in_what_the_ranks_said(folder: RunFolder, show: Show) -> None:
    folder.files.log.write_text(STOP_LOG)
    run = Run(folder.files.path)
    assert log_of(run, 12, is_stopped=True) == [*STOP_LOG.splitlines()[:4], "saved step-000305"]
    assert log_of(run, 12, is_stopped=False) == STOP_LOG.splitlines()[-12:]
    folder.files.log.write_text("".join(f"step {i}\n" for i in range(30)) + STOP_LOG)
    assert len(log_of(run, 12, is_stopped=True)) == 12
    folder.end(1, stopped=True)
    shown = words(ended(show, folder))
    assert "Stopped" in shown and "saved step-000305" in shown and "SignalException" not in shown


# --- acting ---


def test_checkpoints_are_offered_newest_first_with_their_loss(folder: RunFolder, show: Show) -> None:
    folder.checkpoint(35, None)
    folder.checkpoint(200, 3.25)
    panel = show(folder)
    eventually(lambda: len(panel._widgets.tabs.checkpoints.choice.options) == 3)
    panel._widgets.tabs.checkpoints.choice.index = 1
    folder.checkpoint(400, 3.0)
    eventually(lambda: len(panel._widgets.tabs.checkpoints.choice.options) == 4)
    labels = [label for label, _ in panel._widgets.tabs.checkpoints.choice.options]
    assert labels == ["latest verified", "step 400 · eval loss 3 · best", "step 200 · eval loss 3.25", "step 35"]
    tell(panel, mark=35)
    assert panel._widgets.tabs.index == TITLES.index("Checkpoints")
    assert panel._widgets.tabs.checkpoints.choice.value.step == 35
    copies = panel._widgets.tabs.checkpoints.copies.value
    assert "Copy path" in copies and "checkpoint=&#x27;step-000035&#x27;)" in copies
    tell(panel, mark=200)
    tell(panel, mark="none")
    # A choice survives a new checkpoint.
    eventually(lambda: getattr(panel._widgets.tabs.checkpoints.choice.value, "step", None) == 200)
    assert panel._widgets.tabs.checkpoints.start.disabled, "a running run is not resumed"
    folder.end()
    eventually(lambda: not panel._widgets.tabs.checkpoints.start.disabled)
    assert panel._widgets.buttons.stop.disabled


def test_an_edit_during_an_action_is_taken_after_it_and_a_late_click_is_not(
    folder: RunFolder, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, stopped = threading.Event(), list[str]()
    monkeypatch.setattr(Run, "stop", lambda run: go_on.wait(60) and (stopped.append(run.id) or "it was stopped"))
    panel = show(folder)
    eventually(lambda: not panel._widgets.buttons.stop.disabled)
    for _ in range(2):
        panel._widgets.buttons.stop.click()
        assert panel._widgets.buttons.stop.disabled and "Stopping…" in panel._widgets.note.value, "at once"
    panel._widgets.tabs.log.editor.keep(["loss {train/loss}"])
    go_on.set()
    eventually(lambda: "it was stopped\n1 pattern " in panel._widgets.note.value)
    assert stopped == [folder.files.id]


def test_a_resume_that_cannot_be_is_explained(folder: RunFolder, show: Show) -> None:
    folder.checkpoint(200, 3.25)
    folder.end()
    panel = show(folder)
    eventually(lambda: not panel._widgets.tabs.checkpoints.start.disabled)
    with warnings.catch_warnings():
        panel._widgets.tabs.checkpoints.start.click()
        eventually(lambda: "Resuming…" not in panel._widgets.note.value, 60)
    assert "launch it again" in panel._widgets.note.value and panel.run.id == folder.files.id
    eventually(lambda: not panel._widgets.tabs.checkpoints.start.disabled)


def test_a_resumed_run_that_ended_before_its_first_checkpoint_can_be_resumed(
    folder: RunFolder, show: Show, tmp_path: Path
) -> None:
    folder.end(1)
    alone = ended(show, folder)._widgets.tabs.checkpoints
    assert alone.start.disabled and alone.choice.options[0][0] == "no checkpoint"
    child = made(tmp_path, "2026-01-31_152233_tiny", resumed_from={"run": folder.files.id, "step": 200})
    child.end(1)
    listed = show(child)._widgets.tabs.checkpoints
    eventually(lambda: not listed.start.disabled)
    assert listed.choice.options[0][0] == "latest of the parent"


def resumed_as(child: RunFolder, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let a resume, which would start torchrun, return this run with a warning; returns the calls."""
    asked: list[Any] = []

    def resume(run: Run, checkpoint: Any = None, *, changes: Any = (), args: Any = ()) -> Run:
        asked.append((run.id, checkpoint, changes))
        child.start()
        warnings.warn("a warning of the launch", stacklevel=1)
        return Run(child.files.path)

    monkeypatch.setattr("nbtools.notebook.panel.panel.resume", resume)
    return asked


@pytest.mark.parametrize("typed", ["", "learning_rate=1e-4"])
def test_a_resume_or_a_fork_is_shown_in_the_panel_and_says_what_it_changed(
    folder: RunFolder, tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    folder.rows(1, 200)
    folder.checkpoint(200, 3.25)
    folder.end()
    panel = show(folder)
    listed = panel._widgets.tabs.checkpoints
    assert listed.changes.disabled == listed.choice.disabled
    eventually(lambda: not listed.start.disabled and not listed.changes.disabled and threads(panel) == [])
    origin = {"run": folder.files.id, "checkpoint": "step-000200", "step": 200}
    origin |= {"changes": {"learning_rate": [0.001, 0.0001]}} if typed else {}
    child = made(tmp_path, "2026-01-31_152233_tiny_2", resumed_from=origin)
    asked = resumed_as(child, monkeypatch)
    try:
        listed.choice.index, listed.changes.value = 0 if typed else 1, typed
        listed.start.click()
        eventually(lambda: f"as {child.files.id}" in words(panel))
        found = [(run, checkpoint and checkpoint.step, changes) for run, checkpoint, changes in asked]
        assert found == [(folder.files.id, None, {"learning_rate": 1e-4}) if typed else (folder.files.id, 200, {})]
        assert "a warning of the launch" in words(panel) and listed.changes.value == ""
        child.rows(201, 230)
        eventually(lambda: "step 230 of 100" in words(panel))
        told, changed = "forked" if typed else "resumed", ": learning_rate 0.001 -> 0.0001" * bool(typed)
        assert html.literal(f"{told} from {folder.files.id} at step 200{changed}") in panel._widgets.words.header.value
        eventually(lambda: not panel._widgets.buttons.stop.disabled)
        child.end()
        eventually(lambda: threads(panel) == [] and "Succeeded" in words(panel))
    finally:
        child.release()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("learning_rate=-1", "learning_rate=-1.0: must be &gt; 0"),
        ("learning_rat=1e-4", "did you mean learning_rate?"),
        ("learning_rate", "&#x27;learning_rate&#x27;: has no &#x27;=&#x27;"),
        ("dataset='my texts", "No closing quotation"),
        ("batch_size=16 num_heads=2", "are of a model with num_heads=4"),
        ("dataset=<img/src=x/onerror=alert(1)>, learning_rate=x", "learning_rate"),
    ],
)
def test_changes_are_checked_while_they_are_typed(folder: RunFolder, show: Show, typed: str, said: str) -> None:
    folder.checkpoint(200, 3.25)
    folder.end()
    panel = show(folder)
    controls = panel._widgets.tabs.checkpoints
    eventually(lambda: not controls.start.disabled)
    controls.changes.value = typed
    assert said in controls.changing.value
    assert "<img" not in controls.changing.value and controls.start.disabled
    panel.refresh()
    assert controls.start.disabled, "and stays so at the next look"
    controls.changes.value = "learning_rate=1e-4 dataset='my texts'"
    told = "Resume writes a new script: learning_rate 0.001 -> 0.0001, dataset None -> 'my texts'"
    assert html.literal(told) in controls.changing.value
    assert not controls.start.disabled
    controls.changes.value = " "
    assert controls.changing.value == "" and not controls.start.disabled


def test_a_checkpoint_chosen_during_a_run_says_when_it_can_start(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 230)
    folder.checkpoint(200, 3.25)
    panel = show(folder)
    controls = panel._widgets.tabs.checkpoints
    eventually(lambda: len(controls.choice.options) == 2)
    assert controls.changing.value == ""
    controls.choice.value = controls.choice.options[1][1]
    assert "can start once this run has ended" in controls.changing.value
    folder.end()
    eventually(lambda: not controls.start.disabled and controls.changing.value == "")


def test_a_stored_notebook_keeps_the_picture_of_a_run_that_ended_after_the_cell(folder: RunFolder) -> None:
    folder.rows(1, 20)
    cells = executed(
        "from nbtools.notebook.panel.panel import LivePlot",
        f"panel = LivePlot({str(folder.files.path)!r}, refresh_s=0.1)\npanel",
        "import time\nwhile panel._thread is not None: time.sleep(0.05)",
        on_cell_executed=lambda cell, cell_index, **_: folder.end() if cell_index == 1 else None,
    )
    above, picture, shown, controls = cells[1].outputs
    assert shown.data == {"text/plain": ""}, "nothing: this run has no media"
    assert "Succeeded" in above.data["text/html"]
    assert above.data["text/plain"] == "a panel of a run", "the same in each execution"
    assert set(picture.data) == {"image/png", "text/plain"} and picture.metadata["image/png"]["width"] == 900
    assert "application/vnd.jupyter.widget-view+json" in controls.data


def test_every_control_has_a_name_and_a_tooltip(folder: RunFolder, show: Show) -> None:
    found = every(show(folder).widget)
    controls = [each for each in found if isinstance(each, Button | ToggleButton | FloatSlider)]
    assert len(controls) > 8
    assert all(control.description and control.tooltip for control in controls)


def test_a_stamp_changes_with_each_file_and_not_otherwise(folder: RunFolder) -> None:
    run = Run(folder.files.path)
    seen = [stamp_of(run)]
    for change in (
        lambda: folder.rows(1, 1),
        lambda: folder.beat(0, 1),
        lambda: folder.checkpoint(200, 1.0),
        lambda: folder.files.log.write_text("x"),
        lambda: folder.restart(1, None),
        lambda: folder.end(),
    ):
        assert stamp_of(run) == seen[-1]
        change()
        assert stamp_of(run) not in seen
        seen.append(stamp_of(run))


# --- the canvas ---


def tell(panel: LivePlot, **message: Any) -> None:
    """Send a message as the page does."""
    panel._canvas._handle_custom_msg(message, [])


def drawn(panel: LivePlot) -> dict[str, Any]:
    """What the page was told last."""
    return dict(panel._canvas.spec)


def steps(panel: LivePlot) -> list[float]:
    """The steps of the first curve."""
    canvas = panel._canvas
    curve = drawn(panel)["charts"][0]["series"][0]
    return np.frombuffer(canvas.data, "<f8", curve["n"], curve["at"][0]).tolist()


def test_the_canvas_replaces_the_picture_once_the_page_answers(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 20)
    panel = show(folder)
    eventually(lambda: image(panel)[:4] == b"\x89PNG")
    canvas, box, picture = panel._canvas, panel._box, panel._image
    assert (canvas.version, box.layout.display, picture.layout.display) == (0, "none", None)
    first = panel._png
    tell(panel, ready=True, width=900)
    eventually(lambda: canvas.version > 0)
    assert (box.layout.display, picture.layout.display) == ("block", "none")
    folder.rows(21, 40)
    eventually(lambda: bool(drawn(panel)) and steps(panel)[-1] == 40)
    assert panel._png == first == image(panel), "no picture is made meanwhile"
    folder.end()
    eventually(lambda: threads(panel) == [])
    assert panel._png != first, "but one at the end"
    version = canvas.version
    tell(panel, zoom=[10, 20])
    assert canvas.version == version + 1, "an ended run is zoomed, too"
    assert drawn(panel)["x"]["limits"] == (10, 20)
    assert [x for x in steps(panel) if 10 <= x <= 20] == list(range(10, 21))


def test_a_hidden_canvas_gets_nothing_until_it_is_seen_again(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 20)
    panel = show(folder, refresh_s=60.0, is_refreshed=True)
    tell(panel, ready=True, width=900)
    tell(panel, visible=False, view="a")
    panel.refresh()
    version = panel._canvas.version
    folder.rows(21, 40)
    panel.refresh()
    assert panel._canvas.version == version
    tell(panel, visible=True, view="a")
    panel.refresh()
    assert steps(panel)[-1] == 40


@pytest.mark.parametrize("why", ["left", "saved"])
def test_a_page_that_is_left_or_saved_has_the_picture_of_that_moment(folder: RunFolder, show: Show, why: str) -> None:
    folder.rows(1, 20)
    panel = show(folder, refresh_s=60.0)
    panel._displays.append(("words", "picture", "samples", "widgets"))
    tell(panel, ready=True, width=900)
    panel.refresh()
    panel._stored_at, earlier = time.monotonic(), panel._png  # as after a renewal
    folder.rows(21, 40)
    panel.refresh()
    assert panel._png == earlier, "a picture a minute while the page draws"
    if why == "left":
        tell(panel, visible=False, view="a")
    else:
        panel._widgets.page._handle_custom_msg({"saving": True}, [])
    eventually(lambda: panel._png != earlier)
    later = panel._png
    folder.rows(41, 60)
    panel.refresh()
    assert panel._png == later, "once, not for every row of a page in the background"


def test_an_empty_canvas_that_is_not_seen_gets_its_first_charts(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 20)
    folder.end()
    panel = ended(show, folder)
    tell(panel, visible=False, view="a")
    tell(panel, ready=True)
    assert steps(panel)[-1] == 20
    tell(panel, zoom=[5, 10])
    assert drawn(panel)["x"]["limits"] == (5, 10)


def test_metrics_name_the_charts_that_are_open(folder: RunFolder, show: Show) -> None:
    for name in ("train/loss", "train/grad_norm", "gate/depth"):
        folder.rows(1, 20, name)
    panel = show(folder, refresh_s=60.0, metrics=("gate/*",))
    tell(panel, ready=True, width=900)

    def opened() -> list[str]:
        panel.refresh()
        return [chart["key"] for chart in drawn(panel)["charts"] if chart["open"]]

    assert opened() == ["gate/depth"]
    tell(panel, filter="grad*")
    assert opened() == ["grad_norm"]
    tell(panel, open=["loss"], is_open=True)
    assert opened() == ["loss", "grad_norm"]


def test_messages_beside_refreshes_leave_one_consistent_state(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 500)
    panel = show(folder, refresh_s=0.0)
    tell(panel, ready=True, width=900)
    senders = [
        threading.Thread(target=lambda k=k: [tell(panel, zoom=[k, 100 + i]) for i in range(20)])  # type: ignore[misc]
        for k in range(3)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    panel.refresh()
    assert drawn(panel)["x"]["limits"] == panel._choices.options.span
    assert min(steps(panel)) <= panel._choices.options.span[0] + 1  # type: ignore[index]


# --- samples and charts of the training ---


def test_a_live_panel_shows_what_comes_without_drawing_the_curves_again(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 20)
    panel = show(folder)
    eventually(lambda: bool(panel._image.value))
    picture = panel._image.value
    media.append(folder.files.media, "sample", 5, media.text("A sample", "once upon a time"))
    eventually(lambda: "once upon a time" in words(panel))
    assert panel._image.value is picture


def test_the_static_outputs_of_an_ended_run_have_its_samples(folder: RunFolder, show: Show) -> None:
    media.append(folder.files.media, "unmasked", 5, media.frames("Unmasked", ["░░░░", "░nce", "once"]))
    folder.end()
    panel = show(folder, is_refreshed=True)
    shown = panel._outputs()[2][0]
    assert "Unmasked" in shown["text/html"] and "widget" not in "".join(shown)


# --- what stays of a panel ---


@pytest.mark.promise("safety-panels")
def test_a_panel_of_an_ended_run_keeps_its_picture_and_no_figure_or_curves(folder: RunFolder, show: Show) -> None:
    folder.rows(1, 50)
    folder.rows(51, 100, value=9.0)
    folder.end()
    panel = ended(show, folder)
    assert image(panel)[:4] == b"\x89PNG"
    assert panel.run.rows._written.num_rows == 0
    gc.collect()
    assert not any(type(found) is Figure for found in gc.get_objects())
    before = image(panel)
    panel._smoothing.value = 0.1  # draws it again
    eventually(lambda: image(panel) != before)


@pytest.mark.promise("safety-panels")
def test_a_closed_panel_leaves_nothing(folder: RunFolder) -> None:
    folder.rows(1, 100)

    def closed() -> LivePlot:
        panel = LivePlot(folder.files.path, refresh_s=0.05)
        eventually(lambda: image(panel)[:4] == b"\x89PNG")
        panel.close()
        assert (panel._png, panel._displays) == (b"", [])
        return panel

    left = [weakref.ref(closed())]
    gc.collect()
    assert [each() for each in left] == [None]


def test_a_panel_that_is_shown_before_its_thread_has_looked_shows_the_state(
    folder: RunFolder, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rows(1, 20)
    monkeypatch.setattr(LivePlot, "_start", lambda self: None)
    panel, shown = show(folder), []
    monkeypatch.setattr(panel._displays, "show", shown.extend)
    panel._ipython_display_()
    (words, _), (picture, _), *_ = shown
    assert "step 20 of 100" in words["text/html"]
    assert "image/png" in picture


@pytest.mark.promise("safety-page")
def test_a_notebook_saved_during_a_run_keeps_a_static_picture_of_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rows(1, 20)
    cells = executed(
        "import nbtools as nt\nfrom nbtools.notebook.plots import chart_view\nchart_view.STORE_EVERY_S = 0.2",
        f"panel = nt.LivePlot({str(folder.files.path)!r}, refresh_s=0.1)\npanel",
        "import time\ndef is_stored():\n    with panel._lock:\n"
        "        return panel._stored_at > 0 and panel._is_stored and 'step 20 of 100' in panel._static()[0]\n"
        "while not is_stored(): time.sleep(0.05)",
    )
    words, picture, _, widgets = cells[1].outputs
    assert "step 20 of 100" in words.data["text/html"]
    said = "Training was not affected. To see it live, run <code>import nbtools as nt; nt.LivePlot(&quot;"
    assert words.data["text/html"].count(f"{said}{folder.files.id}&quot;)</code>") == 1
    assert "image/png" in picture.data
    assert "application/vnd.jupyter.widget-view+json" in widgets.data
