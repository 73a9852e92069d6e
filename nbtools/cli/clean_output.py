"""The output of `nbtools clean`: the disk space of the runs, a plan, and what was removed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from nbtools.cli.output import print_table
from nbtools.cli.parser import complain
from nbtools.errors import plural
from nbtools.launcher.checks.findings import size
from nbtools.run.records import local_time
from nbtools.run.removal.clean import CACHE, Item, Kept, RemovalPlan, leftovers
from nbtools.run.removal.disk_usage import num_bytes_in, survey
from nbtools.rundir.tail import printable


def print_stored(runs: Path) -> None:
    """Print the disk space of every run, and how to free some."""
    stored = survey(runs)
    rows = [("RUN", "STATE", "ENDED", "SIZE", "CHECKPOINTS")]
    for run in stored:
        ended = local_time(run.since) if run.state is not None and run.state.is_final else ""
        sizes = size(run.num_bytes), size(run.checkpoint_bytes)
        rows.append((run.path.name, str(run.state or run.obstacle), ended, *sizes))
    total, checkpoints = sum(run.num_bytes for run in stored), sum(run.checkpoint_bytes for run in stored)
    rows.append(("total", plural(len(stored), "run"), "", size(total), size(checkpoints)))
    print_table(rows, has_header=True)
    rest = sum(item.num_bytes for item in leftovers(runs))
    print(f"cache of prepared data: {size(num_bytes_in(runs / CACHE))}; remains of interrupted removals: {size(rest)}")
    complain(
        "nothing was removed; RUN..., --older-than 30d and --state FAILED select ended runs, --checkpoints removes "
        "only their checkpoints (not the newest, the best, and those resumed from), --cache the prepared data"
    )


def print_plan(plan: RemovalPlan) -> None:
    """Print the items of a plan, and the selected items that are kept."""
    rows = [(str(item.path.relative_to(plan.runs)), item.what, size(item.num_bytes)) for item in plan.items]
    total = (f"total: {plural(len(rows), 'item')}", "", size(plan.num_bytes))
    print_table([*rows, total] if rows else [["nothing to remove"]])
    _print_kept(plan.kept)


def print_removed(gone: Sequence[Item], kept: Iterable[Kept]) -> None:
    """Print the removed items, and the planned ones that are kept."""
    _print_kept(kept)
    print(f"removed {plural(len(gone), 'item')}, {size(sum(item.num_bytes for item in gone))}")


def _print_kept(kept: Iterable[Kept]) -> None:
    for name, why in kept:
        print(printable(f"{name} is kept: {why}"))
