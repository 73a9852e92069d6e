"""The output: tables, a followed log, progress. A terminal gets colours and wrapped lines, other outputs plain lines.

Text of users and programs goes through `printable`, so it cannot control the terminal.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from nbtools.cli.parser import wrapped
from nbtools.errors import duration
from nbtools.failures.failure import Failure
from nbtools.run import facts
from nbtools.run.listing import RunRow, cells, job_limit
from nbtools.run.ranks.phases import shares_in_words
from nbtools.run.records import local_time
from nbtools.run.run import SILENT_S, Run, remaining_s
from nbtools.run.slurm_job import ends_too_early
from nbtools.run.state import waiting_for
from nbtools.rundir.media import MediaItem
from nbtools.rundir.requests.events import Event
from nbtools.rundir.rundir import name_of
from nbtools.rundir.secret_values import secrets_of, without_secrets
from nbtools.rundir.tail import Tail, one_line, printable, terminal_text

if TYPE_CHECKING:
    from rich.console import Console

    from nbtools.launcher.checks.findings import Finding

_Row = TypeVar("_Row")
_NUM_FRAMES, _NUM_POINTS, _LONGEST_CELL = 4, 12, 60
"""Limits of printed media: frames of a text, points of a chart, characters of a table cell."""
_LONGEST_ETA_S = 1e8
_QUIET_INTERVAL_S = 10.0
"""Least time between two progress lines if stdout is not a terminal, since every line stays."""
_FOLLOWED_BYTES = 1 << 20
_LEAST_ROOM, _LONGEST_BAR = 20, 20
"""Characters for the last column of a table, which else goes below its row, and of a bar or a small curve."""
_STYLES = {
    **dict.fromkeys(("RUNNING", "nbtools"), "cyan"),
    **dict.fromkeys(("SUCCEEDED", "ok"), "green"),
    **dict.fromkeys(("QUEUED", "STOPPED", "warn"), "yellow"),
    **dict.fromkeys(("FAILED", "LOST", "problem"), "bold red"),
}
"""Style of a cell by its first word."""


def terminal() -> "Console | None":
    """Return the terminal at stdout; None for a pipe, a file and TERM=dumb, which get plain lines."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    from rich.console import Console  # only here: a script that reads the output does not pay for the import

    return Console(
        color_system=None if os.environ.get("NO_COLOR") else "auto", markup=False, highlight=False, emoji=False
    )


def print_table(rows: Iterable[Iterable[str]], *, has_header: bool = False) -> None:
    """Print rows in aligned columns; rows may differ in length. On a terminal the last column wraps within itself."""
    table = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip_longest(*table, fillvalue="")]
    if (console := terminal()) is None:
        for row in table:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
        return
    from rich.text import Text

    if (excess := sum(widths[:-1]) + 2 * len(widths[:-1]) - console.width) > 0:  # what is longer has a line of its own
        widest = widths.index(max(widths[:-1]))
        widths[widest] = max(min(_LEAST_ROOM // 2, widths[widest]), widths[widest] - excess)
    indent, between = sum(widths[:-1]) + 2 * len(widths[:-1]), ""
    if console.width - indent < min(_LEAST_ROOM, *(widths or [0])[-1:]):
        indent, between = 4, "\n    "
    lines, room = [], max(console.width - indent, _LEAST_ROOM // 2)
    for number, row in enumerate(table):
        *fixed, last = [*row, *[""] * (len(widths) - len(row))]
        line = Text()
        for column, (cell, width) in enumerate(zip(fixed, widths, strict=False)):
            line.append(f"{cell:<{width}}  ", _style(cell))
            if len(cell) > width:
                line.rstrip()
                line.append(f"\n{'':{sum(widths[: column + 1]) + 2 * (column + 1)}}")
        if between and last:
            line.rstrip()
        below = f"\n{'':{indent}}".join(wrapped(last, room))
        line.append(between + below if last else "", _style(last))
        line.rstrip()
        if has_header and number == 0:
            line.stylize("bold")
        lines.append(line)
    if lines:
        console.print(Text("\n").join(lines), soft_wrap=True)


def _style(cell: str) -> str:
    return _STYLES.get(cell.partition(" ")[0], "")


def print_lines(text: str, style: str = "") -> None:
    """Print lines of text; on a terminal, what of a line does not fit stands below it, two columns to the right."""
    console = terminal()
    for line in printable(text).split("\n"):
        if console is None:
            print(line)
        else:
            margin = line[: len(line) - len(line.lstrip())] + "  "
            lines = wrapped(line, console.width, subsequent_indent=margin)
            console.print("\n".join(lines), style=style, soft_wrap=True)


def print_findings(findings: "Iterable[Finding]", title: str = "") -> None:
    """Print the findings of a check, each with its next step."""
    if terminal() is None:
        print("\n".join(filter(None, [title, *map(printable, map(str, findings))])))
        return
    rows = [((one.level, one.subject, one.text), ("", "", one.next_step and f"-> {one.next_step}")) for one in findings]
    if title:
        print_lines(title, "bold")
    print_table(row for pair in rows for row in pair if any(row))


def print_runs(rows: Iterable[RunRow]) -> None:
    """Print one line per run, with its name if the id lacks it, its tags, and what an active run waits for."""
    lines = [["RUN", "STATE", "STEP", "LOSS", "DURATION", "AGE", ""]]
    for row in rows:
        age = "" if row.started_at is None else duration(time.time() - row.started_at)
        name = row.name if row.name != name_of(row.id) else ""
        notes = (name, ", ".join(row.tags), row.problem, "" if row.recipe else one_line(row.script, _LONGEST_CELL))
        lines.append([row.id, *cells(row), age, " · ".join(filter(None, notes))])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if (console := terminal()) is not None and sum(widths) - widths[-1] + 2 * len(widths) > console.width:
        lines = [[*line[:5], line[-1]] for line in lines]  # the id tells when a run was started
    print_table(lines, has_header=True)


def print_run(summary: dict[str, Any]) -> None:
    """Print one run in full, from what `Run.summary` returns."""
    code, own = summary["returncode"], (summary["failure"] or {}).get("exitcode")
    is_told_apart = own is not None and own > 0 and own != code
    said = f" (exit code {own}, torchrun's {code})" if is_told_apart else "" if code is None else f" (exit code {code})"
    said = f" {summary['why_stopped']}" if summary["why_stopped"] else said  # its exit code would look like a failure
    silent = duration(silent_s) if (silent_s := summary["silent_s"] or 0.0) >= SILENT_S else ""
    rows: list[tuple[str, Any]] = [
        ("name", summary["name"]),
        ("run", summary["id"]),
        ("tags", ", ".join(summary["tags"])),
        ("note", summary["note"]),
        ("state", f"{summary['state']} {summary['waiting_for']}".rstrip() + said),
        ("stopped on", summary["stopped_on"]),
        ("job", _job(summary)),
        ("restarts", summary["restarts"] or None),
        *facts.how_started(summary),
        ("code", summary["code"]),
        ("started", local_time(summary["started_at"])),
        ("ended", local_time(summary["ended_at"])),
        ("origin", summary["origin"]),
        ("repeats", summary.get("reproduced", "").removeprefix("repeats ")),
        ("again", summary.get("again")),
        *((f"weights ({field})", note) for field, note in summary["weights"].items()),
        ("step", facts.steps(summary["step"], summary["total_steps"])),
        *((name, _number(value)) for name, value in summary["metrics"].items()),
        ("output", silent and f"none for {silent}; nbtools show RUN --stacks shows where it is"),
        *(("curves", line) for line in summary["curves"]),
        *(("steered", " ".join(pair)) for pair in facts.steered(filter(None, map(Event.from_json, summary["events"])))),
        *(("notice", line) for line in summary["notices"]),
        ("checkpoints", " ".join(map(_checkpoint, summary["checkpoints"]))),
        *(("shared", line) for line in summary["shared"]),
        ("not saved", summary["unsaved"]),
        ("outputs", summary["outputs"]),
        *((f"rank {rank['rank']}", f"step {rank['step']}, {rank['phase']}") for rank in summary["ranks"]),
        *((f"time of rank {each['rank']}", shares_in_words(each)) for each in summary["phases"]),
    ]
    print_table([(name, str(value)) for name, value in rows if value not in (None, "")])
    for node, command in summary["join"].items():  # a line of its own, to be copied
        print(printable(f"on machine {node}, run there: {command}"))
    for sentence in filter(None, (summary["slow"], *(straggler["message"] for straggler in summary["stragglers"]))):
        print_lines(sentence, "yellow")
    for found in summary.get("stacks", ()):
        print_lines(f"\n--- rank {found['rank']} (pid {found['pid']})\n{found['text']}")
    failure = Failure.from_json(summary["failure"])
    if failure is not None:
        headline, *lines = [*failure.lines, *failure.other_lines]
        print_lines(f"\n{headline}", "bold red")
        print_lines("\n".join([*(f"  {line}" for line in lines), "", failure.traceback or ""]).rstrip())


def print_media_item(item: MediaItem) -> None:
    """Print a sample, a table, the last frames of a text, or the last points of a chart."""
    print(f"\n--- {printable(item.title).replace(chr(10), ' ')} ({item.name}, step {item.step:,})")
    if item.kind == "text":
        print(printable(item.text))
    elif item.kind == "table":
        print_table([[one_line(cell, _LONGEST_CELL) for cell in row] for row in (item.columns, *item.rows)])
    elif item.kind == "frames":
        between = "\n" if item.keeps_lines else " "
        first = max(0, len(item.frames) - _NUM_FRAMES)
        for number, frame in enumerate(item.frames[first:], first + 1):
            print(f"[{number}/{len(item.frames)}]{between}{printable(frame)}")
    else:
        rows = [(item.x_label or "x", *(lines := item.lines or {}))]
        for index in range(max(0, len(item.x) - _NUM_POINTS), len(item.x)):
            values = (f"{line[index]:.4g}" if index < len(line) else "" for line in lines.values())
            rows.append((f"{item.x[index]:g}", *values))
        print_table(rows)


def follow(run: Run, num_lines: int) -> None:
    """Print the last lines of rank 0's log, then new lines until the run has ended."""
    tail, secrets = Tail(run.files.log), secrets_of(run.files)
    tail.skip_to_end(_FOLLOWED_BYTES)

    def show(lines: bytes) -> None:
        print(without_secrets(terminal_text(lines), secrets), flush=True)

    if earlier := b"".join(iter(tail.read, b"")):
        show(b"\n".join(earlier.removesuffix(b"\n").split(b"\n")[-num_lines:]))
    while True:
        has_ended = run.state.is_final  # checked first, so that the next read is complete
        while block := tail.read():
            show(block.removesuffix(b"\n"))
        if has_ended:
            break
        time.sleep(0.3)
    if tail.partial:
        show(tail.partial)


def watch(run: Run, refresh_s: float = 1.0) -> None:
    """Show the progress until the run has ended: two lines, drawn again in place, on a terminal; else one line each."""
    last, shown_at = "", 0.0
    with contextlib.ExitStack() as stack:
        if (console := terminal()) is not None:
            from rich.live import Live
            from rich.text import Text

            live = stack.enter_context(Live(console=console, auto_refresh=False))
        while True:
            has_ended = run.state.is_final
            is_due = has_ended or time.monotonic() - shown_at >= _QUIET_INTERVAL_S
            if console is not None:
                first, second = status_lines(run, console.width)
                shown = Text(f"{first}\n{second}", no_wrap=True, overflow="ellipsis")
                for state, style in _STYLES.items():
                    shown.highlight_words([f" {state} "], style)
                live.update(shown, refresh=True)
            elif is_due and (line := "  ".join(status_lines(run))) != last:
                print(line, flush=True)
                last, shown_at = line, time.monotonic()
            if has_ended:
                return
            time.sleep(refresh_s)


def status_lines(run: Run, width: int = 160) -> list[str]:
    """Return two lines: state, fraction done and remaining time; step, losses and rate."""
    state, step, total, left_s = run.state, run.step, run.total_steps, remaining_s(run)
    first = [f"{run.id} {state}"]
    if total:
        first.append(f"{min(step / total, 1.0):4.0%}")
    if left_s is not None and left_s < _LONGEST_ETA_S:
        first.append(f"ETA {timedelta(seconds=round(left_s))}")
    if total and (room := min(_LONGEST_BAR, width - len("  ".join(first)) - 2)) > 4:
        first.insert(1, bar(step / total, room))
    values, (pace, _) = run.metrics, run.own_history.pace()
    second = [waiting_for(run.records), f"step {facts.steps(step, total)}"]
    second += [f"{name} {_number(value)}" for name, value in values.items() if name.endswith("/loss")]
    if not state.is_final:
        second += ["" if not pace else f"{1 / pace:.3g} steps/s" if pace < 1 else f"{pace:.3g} s/step", job_limit(run)]
    second = [part for part in second if part]
    return [printable("  ".join(first)), printable("  ".join(second))]


def with_bar(rows: Iterator[_Row], total: int | None) -> Iterator[_Row]:
    """Return rows that show on a terminal, while they are read, their share of all, or how fast they are."""
    if not sys.stderr.isatty():
        return rows
    from rich.console import Console
    from rich.progress import track

    return iter(track(rows, "rows", total, console=Console(stderr=True), transient=True, show_speed=True))


def bar(done: float, width: int) -> str:
    """Return a bar that is full to this fraction."""
    return f"{'█' * round(width * min(max(done, 0.0), 1.0)):░<{width}}"


def _job(summary: dict[str, Any]) -> str:
    if (job := summary["job"]) is None:
        return ""
    left_s, words = job["time_left_s"], " ".join(str(job[name]) for name in ("id", "state", "nodes") if job[name])
    if left_s is None:
        return words
    return f"{words}, {facts.time_limit(left_s, is_early=ends_too_early(left_s, summary['eta_s']))}"


def _checkpoint(saved: Mapping[str, Any]) -> str:
    """Return the name of a checkpoint, and its step if the name is not made of it."""
    is_plain = saved["step"] is None or saved["name"].startswith("step-")
    step = "" if is_plain else f" ({'about ' * saved.get('is_estimate', False)}step {saved['step']:,})"
    return f"{saved['name']}{step}{' (best)' * saved['best']}"


def _number(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
