"""The patterns of a run's printed lines: those of its launch, unless the user has decided since, and its source's."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtools.metrics.printed.log import LogMetrics
from nbtools.rundir.json_files import finite, read_json
from nbtools.rundir.rundir import RunDir
from nbtools.user_config import decided_for

_CONFIG = "curves"


def curve_patterns(launch: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts of the patterns that count for a run with this launch.json: the user's newest decision."""
    decided = decided_for(_CONFIG, str(launch.get("root")), str(launch.get("script")))
    is_newer = (finite(decided.get("time")) or 0.0) > (finite(launch.get("time")) or 0.0)
    return _texts((decided if is_newer else launch).get("curves"))


def curves_at_launch(own: Sequence[str], root: str, script: str) -> list[str]:
    """Return the patterns to record for a launch: those of its program, and what the user decided for its script.

    A decision that was written into the launcher script counts no more: the script may have been changed since.
    """
    decided = decided_for(_CONFIG, root, script)
    return [*dict.fromkeys([*(() if decided.get("in_script") else _texts(decided.get("curves"))), *own])]


def log_metrics(run: RunDir, launch: Mapping[str, Any], log: Path | None = None) -> LogMetrics:
    """Return the metrics in rank 0's log of a run, or in another `log` of it."""
    templates: Iterable[str] = ()
    with contextlib.suppress(OSError):
        templates = _texts((read_json(run.templates) or {}).get("templates"))
    times = run.log_times if log is None else None
    return LogMetrics(log or run.log, times, patterns=curve_patterns(launch), templates=templates)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()
