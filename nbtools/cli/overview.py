"""The output of bare `nbtools`: active runs, the last that ended and why, GPUs, and the next commands to type."""

import contextlib
import time
from collections.abc import Sequence

from nbtools import __version__
from nbtools.cli.output import bar, print_lines, print_table
from nbtools.cli.parser import complain
from nbtools.errors import NbtoolsError, ProjectError, duration
from nbtools.machine.devices import devices
from nbtools.project import find_project
from nbtools.run.listing import Rows, RunRow, cells
from nbtools.run.run import remaining_s
from nbtools.run.state import RunState
from nbtools.rundir.names import LATEST

_NUM_ACTIVE, _NUM_ENDED, _LONGEST_WHY = 10, 5, 120
_FAILED = RunState.FAILED, RunState.LOST
_HELP = "nbtools --help", "all commands"
_NEW = "nbtools new mlm_pretraining tiny --preset cpu_demo", "write a script that trains in a minute on a CPU"


def print_overview() -> None:
    """Print the overview of the project of this folder, or how to make one."""
    try:
        project = find_project()
    except ProjectError as error:
        complain(str(error), 0)
        _print_part("Next", [("nbtools recipes", "list the recipes"), _NEW, _HELP])
        return
    print_lines(f"nbtools {__version__}: {project.root}", "bold")
    rows = Rows(project.runs.resolve())
    listed = rows.every()
    active = [row for row in reversed(listed) if not row.is_final]
    active.sort(key=lambda row: row.state != RunState.RUNNING)  # then those in the queue, in their order
    ended = sorted((row for row in listed if row.is_final), key=lambda row: row.ended_at or 0.0, reverse=True)
    _print_part("Active", [_active(rows, row) for row in active[:_NUM_ACTIVE]], len(active))
    _print_part("Ended last", [_ended(rows, row) for row in ended[:_NUM_ENDED]], len(ended))
    rows.save()
    _print_part("GPUs", [(str(gpu.index), str(gpu)) for gpu in devices()])
    scripts = sorted(project.scripts.glob("*.py"), key=lambda path: path.stat().st_mtime)
    launch = ("nbtools launch scripts/SCRIPT.py", "start another run")
    if scripts:
        launch = (f"nbtools launch scripts/{scripts[-1].name}", "start the newest script in the background")
    has_saved = bool(ended and rows.run(ended[0].id).checkpoints)
    commands = _commands(active, ended, listed[0].id if listed else "", has_saved)
    _print_part("Next", [*commands, launch if scripts or listed else _NEW, _HELP])


def _active(rows: Rows, row: RunRow) -> tuple[str, ...]:
    row, left_s = rows.completed(row), None
    with contextlib.suppress(NbtoolsError, OSError):  # just removed
        left_s = remaining_s(rows.run(row.id))
    done = (row.step or 0) / row.total_steps if row.total_steps else 0.0
    progress = f"{bar(done, 10)} {min(done, 1.0):4.0%}" if row.total_steps else f"step {row.step or 0}"
    facts = ("" if row.loss is None else f"loss {row.loss:.4g}", row.problem)
    left = "" if left_s is None else f"{duration(left_s)} left"
    return row.id, row.state, progress, left, " · ".join(filter(None, facts))


def _ended(rows: Rows, row: RunRow) -> tuple[str, ...]:
    row = rows.completed(row)
    _, step, loss, _ = cells(row)
    why = row.problem or " · ".join(filter(None, (step and f"step {step}", loss and f"loss {loss}")))
    with contextlib.suppress(NbtoolsError, OSError):
        if row.state in _FAILED and (failure := rows.run(row.id).failure) is not None:
            why = failure.headline[:_LONGEST_WHY]
    return row.id, row.state, "" if row.ended_at is None else f"{duration(time.time() - row.ended_at)} ago", why


def _commands(active: Sequence[RunRow], ended: Sequence[RunRow], newest: str, has_saved: bool) -> list[tuple[str, str]]:
    commands: list[tuple[str, str]] = []
    if active:
        run = LATEST if active[0].id == newest else active[0].id
        commands.append((f"nbtools watch {run}", "its progress; Ctrl-C leaves it running"))
        commands.append((f"nbtools stop {run}", "save a checkpoint and end it"))
    if ended:
        run, has_failed = LATEST if ended[0].id == newest else ended[0].id, ended[0].state in _FAILED
        if has_failed or not active:
            commands.append((f"nbtools show {run}", "show the whole failure" if has_failed else "all about it"))
        if ended[0].state == RunState.SUCCEEDED and not active:
            commands.append((f"nbtools plot {run} -o curves.png", "draw its curves"))
        elif ended[0].state != RunState.SUCCEEDED and ended[0].recipe and has_saved:
            commands.append((f"nbtools resume {run}", "continue from its newest checkpoint"))
    return commands


def _print_part(title: str, table: Sequence[tuple[str, ...]], count: int = 0) -> None:
    if table:
        more = f" ({len(table)} of {count}; nbtools runs lists all)" if count > len(table) else ""
        print_lines(f"\n{title}{more}", "bold")
        print_table([("", *row) for row in table])
