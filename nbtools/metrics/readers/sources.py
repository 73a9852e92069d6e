"""One history from several sources: files of one writer continue one another, of other sources the longest is drawn."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nbtools.metrics.columns import Series
from nbtools.metrics.history import History
from nbtools.rundir.json_files import MAX_STEP

_NUMBER: Final = re.compile(r"\d+")


@dataclass(eq=False)
class MetricSource:
    """A file, or the log."""

    name: str
    writer: str
    """Sources of one writer may continue one another, as those of restarts do."""
    changed: float
    """Unix time of its last change when it was found: that of rows without a time."""
    history: History = field(default_factory=History)
    is_asked: bool = False
    """Whether the program wrote the rows for nbtools: they go before those of another source that has hardly more."""


@dataclass
class Curves:
    """One history, and for each source the metrics that it has in it, and those of other sources instead."""

    history: History
    drawn: dict[str, list[str]]
    not_drawn: dict[str, list[str]]


def writer_of(place: Path) -> str:
    """Return a path, or the folder of files that a library names, without its numbers: `version_0`, a time of start."""
    return _NUMBER.sub("#", str(place))


def joined_sources(sources: Sequence[MetricSource]) -> Curves:
    """Return each metric from the source, or the chain of files of one writer, with the most points of it."""
    result = Curves(History(), {}, {})
    for name in dict.fromkeys(name for source in sources for name in source.history):
        having = [source for source in sources if name in source.history]
        pieces = max(_chains(having, name), key=_weight)
        for _, series, end in reversed(pieces):
            result.history.add(name, series.steps[:end], series.values[:end], series.times[:end], unit=series.unit)
        drawn = {source.name for source, _, _ in pieces}
        for source in having:
            named = result.drawn if source.name in drawn else result.not_drawn
            named.setdefault(source.name, []).append(name)
    return result


def _weight(chain: list[tuple[MetricSource, Series, int]]) -> float:
    """Return the number of points; printed values are often rounded, and may be read a row ahead of metrics.jsonl."""
    count = sum(end for _, _, end in chain)
    return count * 1.01 + 0.9 if chain[0][0].is_asked else count


def _chains(having: Iterable[MetricSource], name: str) -> list[list[tuple[MetricSource, Series, int]]]:
    """Return the curves of a metric: of each, the sources with the number of points to the next one, newest first."""
    writers: dict[str, list[list[tuple[MetricSource, Series]]]] = {}
    for member in sorted(((source, source.history[name]) for source in having), key=lambda member: _time(member, 0)):
        chains = writers.setdefault(member[0].writer, [])
        # one that began before the last row of another was written does not continue it
        chain = next((chain for chain in chains if _time(chain[-1], -1) <= _time(member, 0)), None)
        if chain is None:
            chains.append(chain := [])
        chain.append(member)
    return [_pieces(chain) for chains in writers.values() for chain in chains]


def _pieces(chain: list[tuple[MetricSource, Series]]) -> list[tuple[MetricSource, Series, int]]:
    limit, found = MAX_STEP + 1, []
    for source, series in reversed(chain):
        if end := int(series.steps.searchsorted(limit)):
            found.append((source, series, end))
            limit = int(series.steps[0])
    return found


def _time(member: tuple[MetricSource, Series], row: int) -> float:
    source, series = member
    time = float(series.times[row])
    return source.changed if math.isnan(time) else time
