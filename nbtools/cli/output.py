"""The terminal output: tables, a followed log, a line of progress; all without control characters."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from itertools import zip_longest
from typing import Any

from nbtools.failures.failure import Failure
from nbtools.run.records import local_time
from nbtools.run.run import Run
from nbtools.run.state import waiting_for
from nbtools.rundir.media import MediaItem
from nbtools.rundir.tail import Tail, terminal_text

_NUM_FRAMES, _NUM_POINTS, _LONGEST_CELL = 4, 12, 60
"""Limits of printed media: frames of a text, points of a chart, characters of a table cell."""
_LONGEST_ETA_S = 1e8
_QUIET_INTERVAL_S = 10.0
_FOLLOWED_BYTES = 1 << 20
"""Least time between two progress lines if stdout is not a terminal, since every line stays."""


def printable(text: str) -> str:
    """Return text without control characters: it cannot move the cursor or change colours."""
    return terminal_text(text.encode(errors="backslashreplace"))


def print_table(rows: Iterable[Iterable[str]]) -> None:
    """Print rows in aligned columns; rows may differ in length."""
    rows = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())


def print_runs(lines: Iterable[tuple[str, ...]]) -> None:
    """Print one line per run, from what `run_line` returns."""
    print_table([("RUN", "STATE", "STEP", "LOSS", "STARTED"), *lines])


def print_run(summary: dict[str, Any]) -> None:
    """Print one run in full, from what `Run.summary` returns."""
    code = "" if summary["returncode"] is None else f" (exit code {summary['returncode']})"
    facts: list[tuple[str, Any]] = [
        ("run", summary["id"]),
        ("state", f"{summary['state']} {summary['waiting_for']}".rstrip() + code),
        ("restarts", summary["restarts"] or None),
        ("script", summary["script"]),
        ("started", local_time(summary["started_at"])),
        ("ended", local_time(summary["ended_at"])),
        ("origin", summary["origin"]),
        ("step", _steps(summary["step"], summary["total_steps"])),
        *((name, _number(value)) for name, value in summary["metrics"].items()),
        ("checkpoints", " ".join(f"{saved['name']}{' (best)' * saved['best']}" for saved in summary["checkpoints"])),
        *((f"rank {rank['rank']}", f"step {rank['step']}, {rank['phase']}") for rank in summary["ranks"]),
    ]
    print_table([(name, str(value)) for name, value in facts if value not in (None, "")])
    for straggler in summary["stragglers"]:
        print(printable(straggler["message"]))
    for found in summary.get("stacks", ()):
        print(f"\n--- rank {found['rank']} (pid {found['pid']})\n{printable(found['text'])}")
    failure = Failure.from_json(summary["failure"])
    if failure is not None:
        headline, *lines = [*failure.lines, *failure.other_lines]
        paragraphs = [headline, *(f"  {line}" for line in lines), "", failure.traceback or ""]
        print(printable("\n" + "\n".join(paragraphs)).rstrip())


def print_media_item(item: MediaItem) -> None:
    """Print a sample, a table, the last frames of a text, or the last points of a chart."""
    print(f"\n--- {printable(item.title).replace(chr(10), ' ')} ({item.name}, step {item.step:,})")
    if item.kind == "text":
        print(printable(item.text))
    elif item.kind == "table":
        print_table([map(_brief, row) for row in (item.columns, *item.rows)])
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


def _brief(cell: str) -> str:
    return cell if len(cell) <= _LONGEST_CELL else cell[: _LONGEST_CELL - 1] + "…"


def follow(run: Run, num_lines: int) -> None:
    """Print the last lines of rank 0's log, then new lines until the run has ended."""
    tail = Tail(run.files.log)
    tail.skip_to_end(_FOLLOWED_BYTES)
    before: deque[bytes] = deque(maxlen=num_lines)
    while block := tail.read():
        before.extend(block.removesuffix(b"\n").split(b"\n")[-num_lines:])
    for line in before:
        print(terminal_text(line), flush=True)
    while True:
        has_ended = run.state.is_final  # checked first, so that the next read is complete
        while block := tail.read():
            print(terminal_text(block.removesuffix(b"\n")), flush=True)
        if has_ended:
            break
        time.sleep(0.3)
    if tail.partial:
        print(terminal_text(tail.partial), flush=True)


def watch(run: Run, refresh_s: float = 1.0) -> None:
    """Print the status line until the run has ended: in place on a terminal, else as separate lines."""
    is_terminal = sys.stdout.isatty()
    shown, shown_at = "", 0.0
    while True:
        has_ended = run.state.is_final
        line = status_line(run)
        if line != shown and (is_terminal or has_ended or time.monotonic() - shown_at >= _QUIET_INTERVAL_S):
            if is_terminal:
                print(f"\r\033[K{line[: os.get_terminal_size().columns - 1]}", end="", flush=True)
            else:
                print(line, flush=True)
            shown, shown_at = line, time.monotonic()
        if has_ended:
            if is_terminal:
                print()
            return
        time.sleep(refresh_s)


def status_line(run: Run) -> str:
    """Return one line: state, fraction done, step, losses, remaining time."""
    state, step, total = run.state, run.step, run.total_steps
    parts = [f"{run.id} {state} {waiting_for(run.records)}".rstrip()]
    if total:
        done = min(step / total, 1.0)
        parts.append(f"{'█' * round(20 * done):░<20} {done:4.0%}")
    parts.append(f"step {_steps(step, total)}")
    parts += [f"{name} {_number(value)}" for name, value in run.metrics.items() if name.endswith("/loss")]
    seconds_per_step, _ = run.own_history.pace()  # without the pause between the parent and the resume
    if total and seconds_per_step and not state.is_final:
        left_s = max(0, total - step) * seconds_per_step
        if left_s < _LONGEST_ETA_S:
            parts.append(f"ETA {timedelta(seconds=round(left_s))}")
    return printable("  ".join(parts))


def _steps(step: int, total: int | None) -> str:
    return f"{step}/{total}" if total else str(step)


def _number(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
