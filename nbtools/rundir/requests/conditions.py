"""The conditions of `notify_on` of a running run, which its owner may change by a request.

A process of the supervisor takes the request, whatever the program is, and records its answer in ranks/notices.jsonl.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtools.errors import shown
from nbtools.rundir.json_files import content_of, finite, kept, whole
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import end_of, objects_in

NOTIFY_ON = "notify_on."
"""Start of the names of conditions, where they stand beside the values of a training."""
_FLAGS, _NUMBERS = ("nan", "ended", "failed"), ("no_improvement", "loss_above", "time_budget_h", "stalled_min")
NONE_SET: Mapping[str, Any] = {**dict.fromkeys(_FLAGS, False), **dict.fromkeys(_NUMBERS), "values": []}
_LIMIT = re.compile(r"(.+) ([<>]) ([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,2})?)")
_ALLOWED = (
    f"{', '.join(_FLAGS)} are True or False, {', '.join(_NUMBERS)} a positive number or None, "
    "and values a list of limits such as 'eval/loss < 0.5'"
)
_MOST_BYTES = 64 * 1024


def limits_in(settings: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return metric, sign and number of each limit of `notify_on`, as launch.json has it; what is none is left out."""
    given = settings.get("values")
    found = [_LIMIT.fullmatch(str(text)) for text in (given if isinstance(given, Sequence) else ())]
    return [(one[1], one[2], one[3]) for one in found if one]


def conditions_of(run: RunDir) -> dict[str, Any]:
    """Return all conditions of a run as they are in force: those of the launch, or as its owner has changed them."""
    launched = content_of(run.launch).get("launch")
    given = launched.get("notify_on") if isinstance(launched, dict) else None
    return {**NONE_SET, **(kept(_last_in, run.notices) or (given if isinstance(given, dict) else {}))}


def _last_in(path: Path) -> dict[str, Any]:
    changed = [row.get("conditions") for row in objects_in(end_of(path, _MOST_BYTES))]
    return next((found for found in reversed(changed) if isinstance(found, dict)), {})


def why_wrong(changes: Mapping[str, Any]) -> str:
    """Return why changes of conditions, from a file, cannot be taken; empty if they can."""
    for name, value in changes.items():
        number = whole(value) if name == "no_improvement" else finite(value)
        is_right = name in _NUMBERS and (value is None or (number or 0) > 0)
        is_right |= name in _FLAGS and isinstance(value, bool)
        is_right |= name == "values" and isinstance(value, list | tuple) and len(limits_in(changes)) == len(value)
        if not is_right:
            return f"{shown(name)}={shown(value)}: is no condition of notify_on; {_ALLOWED}"
    return "" if changes else "it names no condition of notify_on"
