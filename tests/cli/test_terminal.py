"""A terminal of 80 columns gets colours, lines that fit, and progress in place; all else gets plain lines."""

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Cli, MonkeyPatch
from run_folder import RunFolder

from nbtools.cli.commands import main
from nbtools.cli.output import status_lines
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

HOSTILE = "\x1b[2J\x1b]0;evil\x07\u202eok"
Terminal = Callable[..., str]


@pytest.fixture
def terminal(project: Project, monkeypatch: MonkeyPatch) -> Terminal:
    """Run `nbtools WORDS` on a pseudo terminal of 80 columns and return what it wrote, control sequences included.

    `seen` and `then`: call `then` when `seen` has been written.
    """
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.root / "cache"))
    monkeypatch.chdir(project.root)

    def call(*words: str, seen: bytes = b"", then: Callable[[], None] = lambda: None) -> str:
        ours, theirs = os.openpty()
        written = bytearray()

        def read() -> None:
            is_due = bool(seen)
            while True:
                try:
                    data = os.read(ours, 1 << 16)
                except OSError:  # the other end is closed
                    return
                written.extend(data)
                if is_due and seen in written:
                    is_due = False
                    then()

        reader = threading.Thread(target=read)
        reader.start()
        with monkeypatch.context() as patch, os.fdopen(theirs, "w") as stream:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            with contextlib.suppress(SystemExit):
                main(words)
        reader.join()
        os.close(ours)
        return written.decode().replace("\r\n", "\n")

    return call


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


def same_age(text: str) -> str:
    """Return a text with one age in place of ages of minutes, which grow."""
    return re.sub(r"[0-9]m[0-9]{2}s", "2m00s", text)


def add_run(
    project: Project, name: str, number: int, *, loss: float = 1.0, returncode: int = 0, **labels: object
) -> RunDir:
    files = RunDir(project.runs / f"2026-01-31_1422{number:02d}_{name}")
    RunFolder(files, time.time() - 100 + number, total_steps=400, name=name)
    files.lock.touch()
    write_json(files.finished, {"why": "completed", "step": 100 * number, "metrics": {"train/loss": loss}})
    failure = {"rank": 1, "message": f"ValueError: {HOSTILE} " + "the text is long " * 8, "traceback": "x = 1"}
    record = {"returncode": returncode, "time": time.time() - 50 + number, "duration_s": 10.0 - number}
    write_json(files.exit, {**record, **({"failure": failure} if returncode else {})})
    if labels:
        write_json(files.labels, labels)
    return files


def start_run(project: Project) -> tuple[RunDir, Callable[[], None]]:
    """Return a live run, and what ends it."""
    now = time.time()
    run = RunFolder(RunDir(project.runs / "2026-01-31_150000_live"), now - 60, total_steps=400, name="live")
    run.start()
    run.say("started\n")
    rows = {step: {"train/loss": 5 / step, "eval/loss": 2.0} for step in range(1, 201)}
    run.write([{"step": step, "time": now - 200 + step, **values} for step, values in rows.items()])
    return run.files, run.end


@pytest.mark.promise("terminal")
def test_a_terminal_has_colours_unless_it_is_dumb_or_no_color_is_set(
    project: Project, terminal: Terminal, monkeypatch: MonkeyPatch, cli: Cli
) -> None:
    add_run(project, "good", 1)
    add_run(project, "bad", 2, returncode=1)
    coloured = terminal("runs")
    assert "\x1b[1;31mFAILED" in coloured and "\x1b[32mSUCCEEDED" in coloured
    assert "\x1b" not in terminal("runs", "--json") and "\x1b" not in terminal("show", "latest", "--json")
    monkeypatch.setenv("NO_COLOR", "1")
    assert same_age(terminal("runs")).splitlines() == plain(same_age(coloured))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    dumb = terminal("runs")
    assert same_age(cli("runs").stdout) == same_age(dumb), "a pipe gets what a dumb terminal gets"
    assert "\x1b" not in dumb and "FAILED" in dumb


@pytest.mark.promise("terminal")
def test_every_line_fits_into_80_columns(project: Project, terminal: Terminal, monkeypatch: MonkeyPatch) -> None:
    add_run(project, "x" * 64, 1, returncode=1, tags=["a tag of some length"] * 3)
    add_run(project, "mlm_pretraining", 2)
    for words in (["runs"], ["recipes"], ["recipes", "--presets"], [], ["show", "x" * 64], ["lanch"], ["clean"]):
        lines = plain(terminal(*words))
        too_long = [line for line in lines if len(line) > 80 and "x" * 64 not in line]
        assert lines and not too_long, (words, too_long)
    monkeypatch.setenv("COLUMNS", "3")
    assert "ModernBERT-base" in terminal("recipes", "--presets"), "a window of a few columns is no error"
    monkeypatch.setenv("COLUMNS", "80")
    first, second, *_ = plain(terminal("recipes"))
    assert second.strip() and second.index(second.split()[0]) == first.index("Pretrain"), "a hanging indent"


@pytest.mark.promise("safety-terminal")
def test_a_terminal_never_gets_the_control_characters_of_a_run(project: Project, terminal: Terminal) -> None:
    add_run(project, "bad", 1, returncode=1, tags=[HOSTILE], note=HOSTILE)
    for words in (
        ["runs"],
        ["show", "latest"],
        ["watch", "latest"],
        ["wait", "latest"],
        [],
        ["show", HOSTILE],
        [HOSTILE],
    ):
        text = terminal(*words)
        assert text
        assert "\x07" not in text and "evil\x07" not in text and "\x1b]0" not in text and "\u202e" not in text, words
        assert "\x1b[2J" not in text, words


@pytest.mark.promise("source")
def test_show_diff_prints_a_patch_and_no_control_characters(
    project: Project, terminal: Terminal, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run = add_run(project, "good", 1)
    assert plain(terminal("show", "latest", "--diff")) == [
        f"nbtools: {run.path.name}: no uncommitted changes are recorded"
    ]
    diff = f"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\r\n+{HOSTILE}\n".encode()
    run.source.write_bytes(diff)
    assert main(["show", "latest", "--diff"]) == 0
    assert capsysbinary.readouterr().out == diff
    text = terminal("show", "latest", "--diff")
    assert "+++ b/x.py" in text and "\x1b" not in text and "\x07" not in text and "\u202e" not in text


@pytest.mark.promise("terminal")
def test_the_overview_says_what_runs_what_ended_why_and_what_to_type(project: Project, terminal: Terminal) -> None:
    assert "nbtools new mlm_pretraining tiny" in terminal()
    add_run(project, "good", 1, loss=0.25)
    assert "nbtools plot latest -o curves.png" in terminal()
    bad = add_run(project, "bad", 2, returncode=1)
    assert not any("nbtools resume" in line for line in plain(terminal())), "it saved no checkpoint"
    (saved := bad.checkpoints / "step-000010").mkdir(parents=True)
    write_json(saved / "manifest.json", {"step": 10, "time": 1.0, "files": {"state.pt": {}}})
    run, end = start_run(project)
    shown = plain(terminal())
    active = next(line for line in shown if run.id in line)
    assert "RUNNING" in active and " 50%" in active and "3m20s left" in active
    assert any("rank 1: ValueError" in line for line in shown) and any("loss 0.25" in line for line in shown)
    assert any("nbtools watch latest" in line for line in shown)
    assert any("nbtools resume 2026-01-31_142202_bad" in line for line in shown)
    end()
    assert not any("nbtools watch" in line for line in plain(terminal()))


def test_the_overview_says_how_to_make_a_project(tmp_path: Path, monkeypatch: MonkeyPatch, cli: Cli) -> None:
    monkeypatch.delenv("NBTOOLS_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    said = cli()
    assert "no project found" in said.stderr and "nbtools new" in said.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("terminal")
def test_watch_redraws_two_lines_with_eta_loss_and_rate(project: Project, terminal: Terminal) -> None:
    run, end = start_run(project)
    text = terminal("watch", "latest", "--refresh", "0.02", seen=b"s/step", then=end)
    first, second = plain(text)[:2]
    assert first.startswith(f"{run.id} RUNNING") and " 50%  ETA 0:03:20" in first
    assert "step 200/400" in second and "1 s/step" in second
    assert "train/loss 0.025 " in second
    assert max(map(len, plain(text))) <= 80
    assert "\x1b[1A" in text, "drawn again in place"
    assert "SUCCEEDED" in plain(text)[-2] and "\x1b[?25h" in text, "the cursor is shown again"


def test_watch_off_a_terminal_prints_one_line_per_look(project: Project, cli: Cli) -> None:
    run, end = start_run(project)
    assert "ETA 0:03:20" in status_lines(Run(run))[0]
    end()
    (line,) = cli("watch", "latest").stdout.splitlines()
    assert line.startswith(f"{run.id} SUCCEEDED") and "step 200/400" in line and "\x1b" not in line


def test_runs_are_sorted_by_loss_step_duration_and_name(project: Project, cli: Cli) -> None:
    for number, (name, loss) in enumerate([("c", 2.0), ("a", float("nan")), ("b", 1.0)], start=1):
        add_run(project, name, number, loss=loss if loss == loss else "NaN")  # type: ignore[arg-type]

    def listed(*words: str) -> str:
        return "".join(run["name"] for run in json.loads(cli("runs", "--json", *words).stdout))

    assert [listed(), listed("--sort", "loss"), listed("--sort", "name")] == ["bac", "bca", "abc"]
    assert [listed("--sort", "step"), listed("--sort", "duration"), listed("--sort", "loss", "-n", "1")] == [
        "bac",
        "cab",
        "b",
    ]
