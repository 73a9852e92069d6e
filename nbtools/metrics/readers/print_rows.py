"""Prints the losses of a user's script, and the metrics that are named, as JSON lines until its standard input ends.

`python -m nbtools.metrics.readers.print_rows RUN_DIR [METRIC ...]`: a process without numpy reads them, for `stop_on`.
"""

import select
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import orjson

from nbtools.metrics.columns import Series
from nbtools.metrics.history import History
from nbtools.metrics.printed.run_patterns import log_metrics
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.rundir.json_files import strict_number
from nbtools.rundir.rundir import RunDir, launch_of
from nbtools.rundir.tail import Tail

_POLL_S = 1.0


def new_rows(history: History, seen: dict[str, Series], names: Collection[str] = ()) -> bytes:
    """Return the rows of losses that `seen` does not have yet, in the order of their steps, as JSON lines.

    Metrics of these `names` are returned, too. A restart replaces rows: they are new from the first one on that
    differs.
    """
    rows: dict[int, dict[str, object]] = {}
    for name in history:
        if "loss" in name.lower() or name in names:
            series = history[name]
            first = _num_equal(series, seen[name]) if name in seen else 0
            seen[name] = series
            columns = (column[first:].tolist() for column in (series.steps, series.times, series.values))
            for step, at, value in zip(*columns, strict=True):
                rows.setdefault(step, {"step": step, "time": strict_number(at)})[name] = strict_number(value)
    return b"".join(orjson.dumps(rows[step], option=orjson.OPT_APPEND_NEWLINE) for step in sorted(rows))


def _num_equal(series: Series, before: Series) -> int:
    num = min(len(series), len(before))
    values, others = series.values[:num], before.values[:num]
    differ = (series.steps[:num] != before.steps[:num]) | ~np.isclose(values, others, rtol=0, atol=0, equal_nan=True)
    return int(differ.argmax()) if differ.any() else num


def main() -> None:
    """Print the rows of one run."""
    run, seen, is_over = RunDir(Path(sys.argv[1])), dict[str, Series](), False
    written, tail = History(), Tail(run.metrics)
    found = FoundMetrics(run.path, log_metrics(run, launch_of(run.path)), written)
    while True:
        written.follow(tail)
        sys.stdout.buffer.write(new_rows(found.history(None), seen, sys.argv[2:]))
        sys.stdout.buffer.flush()
        if is_over:
            break
        is_over = bool(select.select([sys.stdin], [], [], _POLL_S)[0])  # one more look: all was written before the end


if __name__ == "__main__":
    main()
