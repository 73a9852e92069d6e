"""Facts of a run beside its state: each is worded here once, for the terminal, the panel and JSON."""

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from nbtools.errors import plural, shown
from nbtools.failures.evidence import last_rows
from nbtools.run.records import Records, local_time, mapping_at, recorded_arguments
from nbtools.rundir.json_files import finite, whole
from nbtools.rundir.requests.events import Event
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import one_line

_PATH = re.compile(r"(?<![\w.…])~?/(?:[^\s'\",;:()\[\]{}<>]*/)?(?=[^\s/])")
"""The folders of a path."""


def started_as(launch: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments, the working directory and the Python of a launch.json; None for what it does not name."""
    argv = found if isinstance(found := launch.get("argv"), list) else []
    is_python = bool(argv) and re.match(r"python[\d.]*$", Path(str(argv[0])).name) is not None
    cwd = launch.get("cwd")
    return {
        "arguments": recorded_arguments(launch),
        "cwd": cwd if isinstance(cwd, str) else None,
        "python": str(argv[0]) if is_python else None,
    }


def how_started(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how a run was started, name by name, from its `script` and what `started_as` returns."""
    found = {"script": told["script"], "arguments": shlex.join(told["arguments"])}
    found |= {"folder": told["cwd"], "python": told["python"]}
    return [(name, str(text or "")) for name, text in found.items()]


def origin(launch: dict[str, Any]) -> str:
    """Return what a launch.json resumes: `forked from ID at step 200: batch_size 16 -> 32`; empty if nothing."""
    if not (resumed := mapping_at(launch, "resumed_from")):
        return ""
    step, name = resumed.get("step"), resumed.get("checkpoint")
    about = "about " if resumed.get("is_estimate") is True else ""
    at = f"checkpoint {shown(name)}" if step is None else f"{about}step {step}"
    where = f"from {resumed.get('run')} at {at}"
    if not (pairs := mapping_at(resumed, "changes")):
        return f"resumed {where}"
    is_fork = pairs.keys() - {"nproc_per_node", "effective_batch"}
    return f"{'forked' if is_fork else 'resumed'} {where}: {changes(pairs)}"


def changes(pairs: Mapping[str, object]) -> str:
    """Return changes that are given as pairs of an old and a new value; those of `arguments` are appended ones."""
    known = {name: pair for name, pair in pairs.items() if isinstance(pair, Sequence) and len(pair) == 2}
    added = known.pop("arguments", None)
    told = [f"{name} {shown(pair[0], 40)} -> {shown(pair[1], 40)}" for name, pair in known.items()]
    return ", ".join(told if added is None else [*told, f"adds the arguments {one_line(str(added[1]), 200)}"])


def commit(launch: dict[str, Any]) -> str:
    """Return the commit of a launch.json, such as `3f2a91c04b + uncommitted changes (12 lines)`; empty without."""
    code = mapping_at(launch, "code")
    name = code.get("commit")
    if not isinstance(name, str) or not re.fullmatch("[0-9a-f]{40,64}", name):
        return ""
    changed = f"{'more than ' * (code.get('cut') is True)}{plural(whole(code.get('lines')) or 0, 'line')}"
    return f"{name[:10]} + uncommitted changes ({changed})" if code.get("sha256") else name[:10]


def weights(config: dict[str, Any] | None) -> dict[str, str]:
    """Return what each model of a config.json took from files, by the field that names them."""
    reports = mapping_at(config or {}, "weights").items()
    return {field: str(report["note"]) for field, report in reports if isinstance(report, dict) and "note" in report}


def stopped_by(records: Records) -> str:
    """Return by what a STOPPED run was: `on request`, `by stop_on`, or Slurm's reason."""
    if mapping_at(records.exit or {}, "stopped_on"):
        return "by stop_on"
    why = (records.exit or {}).get("why")
    return f"by Slurm: {one_line(why, 80)}" if isinstance(why, str) and why != "stopped" else "on request"


def steered(events: Iterable[Event]) -> list[tuple[str, str]]:
    """Return the answer to each request to a training: its number and its step, what was done, and the author."""
    number, found = itertools.count(1), []
    for event in events:
        mark = "" if event.refused else f"{next(number)}: "
        found.append((f"{mark}after step {event.step}", f"{event}{f' ({event.by})' if event.by else ''}"))
    return found


def notices(run: RunDir) -> list[tuple[str, str]]:
    """Return the local time and the sentence of each notice of `notify_on`, and of why one was not sent."""
    rows = last_rows(run.notices)
    return [(local_time(finite(row.get("time"))), one_line(str(row.get("sentence")), 500)) for row in rows]


def steps(step: int | None, total: int | None) -> str:
    """Return a step, and the number of steps where that is known: `20/400`; empty without a step."""
    return "" if step is None else f"{step}/{total}" if total else f"{step}"


def time_limit(left_s: float, *, is_early: bool) -> str:
    """Return when a job ends by its time limit, and whether before the last step."""
    return f"ends in {timedelta(seconds=round(max(0.0, left_s)))}{', before the training' * is_early}"


def without_folders(text: str) -> str:
    """Return a text for other people: of each path only its last part."""
    return _PATH.sub("…/", text)
