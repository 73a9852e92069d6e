"""One history from several sources: files of one writer continue one another, of other sources the longest is drawn."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nbtools.metrics.columns import Series
from nbtools.metrics.history import History
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.readers.counted_rows import CountedRows
from nbtools.metrics.readers.reader import Reader
from nbtools.rundir.json_files import MAX_STEP
from nbtools.user_config import read_user_config, update_user_config

_NUMBER: Final = re.compile(r"\d+")
_ROTATED: Final = re.compile(r"(\.(?:csv|jsonl|json|log|ndjson|tsv|txt))[.-]\d[\d._-]*$")
_CHOICES: Final = "counters"
_FEW: Final = 3
"""Rows from which on a column that never changes is a setting."""


@dataclass(eq=False)
class MetricSource:
    """A file, or a log."""

    name: str
    writer: str
    """Sources of one writer may continue one another, as those of restarts do."""
    changed: float
    """Unix time of its last change when it was found: that of rows without a time."""
    history: History = field(default_factory=History)
    reader: Reader | LogMetrics | None = None
    is_asked: bool = False
    """Whether the program wrote the rows for nbtools: they go before those of another source that has hardly more."""
    failure: str = ""
    choices: Mapping[str, bool] = field(default_factory=dict)
    """Metric -> whether the user wants it from this file, as far as that was said."""

    def poll(self, *, is_complete: bool) -> History:
        """Read new rows; an error of the reader is kept as `failure`, and no row is read after it."""
        try:
            if self.reader is not None and not self.failure:
                self.history = self.reader.poll(is_complete=is_complete)
        except Exception as error:  # noqa: BLE001 - a file of another program never breaks reading a run
            self.failure = f"{type(error).__name__}: {error}"
        return self.history

    @property
    def rows(self) -> CountedRows | None:
        """The rows of a table; None where the format says what counts."""
        return self.reader.rows if isinstance(self.reader, Reader) else None

    @property
    def note(self) -> str:
        """Why rows are not read; "" if they are."""
        return self.failure or (self.reader.note if self.reader is not None else "")

    def draws(self, name: str) -> bool:
        """Whether a metric is drawn: as the user chose, else unless it is a setting.

        A setting is a column of a table that only repeats one number that is not zero, and is no result by its name.
        """
        if name in self.choices:
            return self.choices[name]
        values, is_result = self.history[name].values, "loss" in name or name.startswith(("eval/", "test/"))
        is_table = self.rows is not None and not is_result
        return not (is_table and len(values) >= _FEW and bool(values[0]) and bool((values == values[0]).all()))

    def time(self, name: str, row: int) -> float:
        """Return the time of a row of a metric."""
        time = float(self.history[name].times[row])
        return self.changed if math.isnan(time) else time


def file_choices(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return what the user chose for the files of a project's runs, by their `kind_of_file`.

    `""` has the column that counts the rows, "" for their order; a metric has whether it is drawn.
    """
    chosen = read_user_config(_CHOICES).get(str(run_dir.parent.parent))
    found = chosen.items() if isinstance(chosen, dict) else ()
    return {kind: own for kind, own in found if isinstance(own, dict)}


def set_file_choice(run_dir: Path, name: str, choice: Mapping[str, Any]) -> None:
    """Remember choices for the files of a name, as `file_choices` returns them; None for the usual one."""

    def change(choices: dict[str, Any]) -> None:
        of_project = choices.setdefault(str(run_dir.parent.parent), {})
        own = {**file_choices(run_dir).get(kind_of_file(name), {}), **choice}
        of_project[kind_of_file(name)] = {key: value for key, value in own.items() if value is not None}

    update_user_config(_CHOICES, change)


def kind_of_file(name: str) -> str:
    """Return the name of a file without the folder and numbers, which differ from run to run."""
    return writer_of(Path(Path(name).name))


@dataclass
class Curves:
    """One history, and for each source the metrics that it has in it, and those of other sources instead."""

    history: History
    drawn: dict[str, list[str]]
    not_drawn: dict[str, list[str]]


def writer_of(place: Path) -> str:
    """Return a path, or the folder of files that a library names, without its numbers: `version_0`, a time of start.

    What a rotation has left, such as `metrics.csv.1`, is of the writer of the file.
    """
    return _NUMBER.sub("#", _ROTATED.sub(r"\1", str(place)))


def joined_sources(sources: Sequence[MetricSource]) -> Curves:
    """Return each metric from the source, or the chain of files of one writer, with the most points of it."""
    result = Curves(History(), {}, {})
    for name in dict.fromkeys(name for source in sources for name in source.history):
        having = [source for source in sources if name in source.history]
        wanted = [source for source in having if source.draws(name)]
        if not wanted:
            for source in having:
                result.not_drawn.setdefault(source.name, []).append(name)
            continue
        chains: list[list[MetricSource]] = []
        for source in sorted(wanted, key=lambda source: source.time(name, 0)):
            # one that began before the last row of another was written does not continue it
            before = [chain for chain in chains if chain[-1].time(name, -1) <= source.time(name, 0)]
            chain = next((chain for chain in before if chain[0].writer == source.writer), [])
            chains += [] if chain else [chain]
            chain.append(source)
        pieces = max((_pieces(chain, name) for chain in chains), key=_weight)
        for _, series, end in reversed(pieces):
            columns = series.steps[:end], series.values[:end], series.times[:end]
            result.history.add(name, *columns, unit=series.unit)
        drawn = {source.name for source, _, _ in pieces}
        for source in having:
            named = result.drawn if source.name in drawn else result.not_drawn
            named.setdefault(source.name, []).append(name)
    result.history.num_unread_bytes = sum(source.history.num_unread_bytes for source in sources)
    return result


def _weight(pieces: list[tuple[MetricSource, Series, int]]) -> float:
    """Return the number of points; printed values are often rounded, and may be read a row ahead of metrics.jsonl.

    Points that are counted go before those that have only an order.
    """
    (source, series, _), count = pieces[0], sum(end for _, _, end in pieces)
    weight = count * 1.01 + 0.9 if source.is_asked else count
    return weight * 1e-9 if series.unit == "row" else weight


def _pieces(chain: Sequence[MetricSource], name: str) -> list[tuple[MetricSource, Series, int]]:
    """Return the sources of a curve, the newest first, each with the number of points before the next one."""
    limit, found = MAX_STEP + 1, []
    for source, series in ((source, source.history[name]) for source in reversed(chain)):
        if end := int(series.steps.searchsorted(limit)):
            found.append((source, series, end))
            limit = int(series.steps[0])
    return found
