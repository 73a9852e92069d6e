"""A user's choice from a printed line: names for its numbers, with a proposal, and what the pattern finds in a log."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nbtools.errors import plural
from nbtools.metrics.curve_names import COUNTERS, EPOCH, metric_of, split_of
from nbtools.metrics.printed.grammars import read_line
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.shapes import numbers_in, shape_of


@dataclass(frozen=True)
class Found:
    """The values of each metric of a pattern and of its counter, in the order of the lines that it matches."""

    num_lines: int
    num_matched: int
    curves: Mapping[str, Sequence[float]]
    counter: str
    """Empty if no number counts."""
    counts: Sequence[float]

    def __str__(self) -> str:
        of = f"of the last {plural(self.num_lines, 'line')}"
        if not self.num_matched:
            return f"No line {of} matches: nothing is drawn until one does."
        said = f"{self.num_matched:,} {of} match."
        if self.num_matched == self.num_lines > 1:
            said = f"Every line {of} matches: keep more of the text in it if that is too much."
        if not self.curves:
            return f"{said} No number is a metric: these lines are not drawn."
        if not self.counter:
            return f"{said} No number counts: the values are drawn where the line before them stands."
        falls = "; where it falls, it starts over" if any(b < a for a, b in pairwise(self.counts)) else ""
        return f"{said} {self.counter} counts from {self.counts[0]:,.0f} to {self.counts[-1]:,.0f}{falls}."


def find(pattern: Pattern, lines: Sequence[str]) -> Found:
    """Return what a pattern finds in folded lines."""
    rows = [row for line in lines if (row := pattern.values(line)) is not None]
    counter = min((name for name in pattern.names if name in COUNTERS), key=lambda name: COUNTERS[name], default="")
    drawn = (name for name in pattern.names if name not in (*COUNTERS, "time") and not name.startswith("total_"))
    curves = {name: [row[name] for row in rows] for name in drawn}
    return Found(len(lines), len(rows), curves, counter, [row[counter] for row in rows] if counter else [])


def names_in(line: str, patterns: Sequence[Pattern]) -> dict[int, str]:
    """Return the names of the numbers of a folded line, by their index: a pattern's, else those of a known form."""
    starts = {start: index for index, (start, _, _) in enumerate(numbers_in(line))}
    for pattern in patterns:
        if (spans := pattern.spans(line)) is not None:
            return {starts[start]: name for name, (start, _) in spans.items() if start in starts}
    if (reading := read_line(line)) is None:
        return {}
    counters = sorted(reading.counters, key=lambda counter: -counter.rank)  # of several steps, the best comes last
    named: dict[str, int] = {}
    for each in counters:
        name = "epoch" if each.rank == EPOCH else "step"
        named |= {name: each.start} | ({f"total_{name}": each.total.start} if each.total else {})
    named |= {metric_of(slot.name, slot.split or reading.split): slot.start for slot in reading.values}
    return {starts[start]: name for name, start in named.items()}


def metric_at(line: str, index: int) -> str:
    """Return a name for a number of a folded line: that of a known form, else the word between it and the last one."""
    known, numbers = names_in(line, ()).get(index, ""), numbers_in(line)
    start, before = numbers[index][0], numbers[index - 1][1] if index else 0
    words, own = (re.findall(r"[^\W\d_][\w/]*", text) for text in (line[:start], line[before:start]))
    return known if known not in ("", *COUNTERS) else metric_of(own[-1] if own else "value", split_of(words, None))


def counters_in(line: str, lines: Sequence[str]) -> dict[int, str]:
    """Return the numbers of a folded line that count, by a known form, else the one that rises in nearly all `lines`
    of this shape."""
    if found := {index: name for index, name in names_in(line, ()).items() if name in COUNTERS}:
        return found
    shape = shape_of(line)
    rows = [[value for *_, value in numbers_in(each)] for each in lines if shape_of(each) == shape]
    rising = [index for index in range(len(numbers_in(line))) if _rises([row[index] for row in rows])]
    return dict.fromkeys(rising[:1], "step")


def _rises(values: Sequence[float]) -> bool:
    is_whole = len(values) > 2 and all(value.is_integer() for value in values)
    return is_whole and sum(b > a for a, b in pairwise(values)) >= 0.8 * (len(values) - 1)
