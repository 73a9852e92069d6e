"""A user's choice from a printed line: names for its numbers, with a proposal, and what the pattern finds in a log."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from nbtools.errors import plural
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.shapes import numbers_in, shape_of

COUNTERS: Final = ("step", "epoch")
"""Names of the numbers that say where a line's values are drawn."""
_COUNTED: Final = {
    **dict.fromkeys(("step", "steps", "global_step", "iter", "iters", "iteration", "it", "batch", "update"), "step"),
    **dict.fromkeys(("epoch", "epochs", "ep"), "epoch"),
}
_SPLITS: Final = dict.fromkeys(
    ("val", "valid", "validation", "eval", "evaluation", "test", "dev"), "eval"
) | dict.fromkeys(("train", "training"), "train")
_WORD: Final = re.compile(r"[^\W\d_][\w-]*")
_RISING: Final = 0.8


@dataclass(frozen=True)
class Found:
    """What a pattern finds in some lines."""

    num_lines: int
    num_matched: int
    curves: Mapping[str, Sequence[float]]
    """The values of each metric, in the order of the lines."""
    counter: str
    """The name of the number that counts the steps; empty without one."""
    counts: Sequence[float]

    def __str__(self) -> str:
        of = f"of the last {plural(self.num_lines, 'line')}"
        if not self.num_matched:
            return f"No line {of} matches: nothing is drawn until one does."
        said = f"{self.num_matched:,} {of} match."
        if self.num_matched == self.num_lines > 1:
            said = f"Every line {of} matches: leave more of the text in it if that is too much."
        if not self.curves:
            return f"{said} No number is a metric, so these lines are not drawn."
        if not self.counter:
            return f"{said} No number counts the steps: the values are drawn where the line before them stands."
        falls = "; where it falls, it starts over" if any(b < a for a, b in pairwise(self.counts)) else ""
        return f"{said} {self.counter} counts from {self.counts[0]:,.0f} to {self.counts[-1]:,.0f}{falls}."


def find(pattern: Pattern, lines: Sequence[str]) -> Found:
    """Return what a pattern finds in folded lines."""
    rows = [row for line in lines if (row := pattern.values(line)) is not None]
    counter = next((name for name in COUNTERS if name in pattern.names), "")
    curves = {name: [row[name] for row in rows] for name in pattern.names if name not in (*COUNTERS, "time")}
    return Found(len(lines), len(rows), curves, counter, [row[counter] for row in rows] if counter else [])


def names_in(pattern: Pattern, line: str) -> dict[int, str]:
    """Return the names that a pattern gives to the numbers of a folded line, by their index."""
    starts = {start: index for index, (start, _, _) in enumerate(numbers_in(line))}
    spans = pattern.spans(line) or {}
    return {starts[start]: name for name, (start, _) in spans.items() if start in starts}


def propose(line: str, index: int, lines: Sequence[str]) -> dict[int, str]:
    """Return a name for a number of a folded line, and one for the number that counts, if that is clear.

    That is one with a counter's name, else one that rises in nearly all `lines` of this shape.
    """
    numbers = range(len(numbers_in(line)))
    named = {each: word for each in numbers if (word := _COUNTED.get(_word_before(line, each)))}
    found = {each: word for word in COUNTERS for each in [i for i in numbers if named.get(i) == word][:1]}
    if not found:
        shape = shape_of(line)
        rows = [[value for *_, value in numbers_in(each)] for each in lines if shape_of(each) == shape]
        rising = (each for each in numbers if _rises([row[each] for row in rows]))
        found = dict.fromkeys([*rising][:1], "step")
    return found if index in found else {**found, index: _metric(line, index)}


def _rises(values: Sequence[float]) -> bool:
    if len(values) < 3 or not all(value.is_integer() for value in values):
        return False
    return sum(b > a for a, b in pairwise(values)) >= _RISING * (len(values) - 1)


def _metric(line: str, index: int) -> str:
    start, end, _ = numbers_in(line)[index]
    words = re.findall(r"[^\W\d_]+", line[:start].lower())
    split = next((_SPLITS[word] for word in reversed(words) if word in _SPLITS), "train")
    after = _WORD.match(line[end:].lstrip())
    name = _word_before(line, index) or (after[0].lower() if after else "value")
    return f"{split}/{re.sub(r'^(?:train|val|valid|validation|eval|test|dev)[_-]', '', name)}"


def _word_before(line: str, index: int) -> str:
    """Return the word that stands before a number of a line, behind the number before; empty without one."""
    numbers = numbers_in(line)
    words = _WORD.findall(line[numbers[index - 1][1] if index else 0 : numbers[index][0]])
    return words[-1].lower() if words else ""
