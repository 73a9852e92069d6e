"""Plans of the lines of each shape: a line is understood once, all others of its shape by a compiled expression."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from nbtools.metrics.columns import Unit
from nbtools.metrics.curve_names import EPOCH, LEADING, split_of
from nbtools.metrics.printed import printed_tables as tables
from nbtools.metrics.printed.grammars import KNOWN_LINES, Reading, Slot, of_pattern, read_line
from nbtools.metrics.printed.measured_curves import PrintedCurve, PrintedCurves
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.shapes import DIGITS, folded, number_of, numbers_in, shape_of
from nbtools.metrics.printed.steps import Position, Statement

_MAX_LINE_CHARACTERS: Final = 4000
_MAX_UNDECODED: Final = 4
_MAX_PLANS: Final = 4000
_MAX_KINDS: Final = 1000
_NAMED: Final = (0, 1, 2, 5, EPOCH)
_RANK: Final = re.compile(r"(?:rank|RANK|Rank|default|trainer)[ _:]{0,2}(\d{1,6})[\])]")
_MAX_HEADING_WORDS: Final = 8
_FRAMED: Final = re.compile(r"([*=#-])\1\1+ .* \1\1+$")


@dataclass
class LineKind:
    """The lines of one shape: those that one statement of the program prints."""

    shape: str
    example: str
    """A folded line."""
    count: int = 0
    source: str = ""
    """The source that reads them: "pattern", "template" or "grammar"; empty if nothing does."""
    curves: tuple[str, ...] = ()
    counter: str = ""
    """The name of what counts their steps; empty if they stand at the last line with a counter."""


@dataclass(eq=False)
class LinePlan:
    """The expression that reads the lines of one shape, with a group for each number that means something."""

    kind: LineKind
    statement: Statement | None = None
    expression: re.Pattern[str] | None = None
    places: dict[str, int] = field(default_factory=dict)
    """The groups of the `counter`, what it is `of`, the `epoch`, and `num_epochs`; and of the `rank` that prints."""
    word: str = ""
    """The word before its first number, which may count if nothing does by its name."""
    curves: tuple[tuple[int, PrintedCurve], ...] = ()
    header: tables.Header | None = None
    is_border: bool = False
    is_cell: bool = False
    is_exact: bool = False
    """Whether each of its lines has a plan of its own, by the digits of its text."""
    split: str | None = None
    """The split that a heading gives to the lines without a counter that follow."""

    @property
    def is_read(self) -> bool:
        """Whether its lines say anything."""
        return self.expression is not None or self.header is not None or self.is_border or self.split is not None

    def count(self) -> None:
        """Let its first number count."""
        assert self.statement is not None
        if "counter" not in self.places:
            self.places["counter"], self.statement.counter = self.places["first"], self.word
            self.kind.counter = self.word
            for _, curve in self.curves:
                curve.is_counted = curve.has_order = True

    def add(self, numbers: Sequence[float], place: Position, end: int, attempt: int, trial: int) -> None:
        """Add the numbers of one line to its curves."""
        for group, curve in self.curves:
            curve.add(*place, numbers[group], end, attempt, trial)

    def numbers(self, lines: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return the numbers of lines of its shape."""
        if self.expression is None:
            return [()] * len(lines)
        found = self.expression.finditer("\n".join(lines) + "\n")
        return [[*map(number_of, each.groups())] for each in found]


class LinePlans:
    """The plans of all shapes of a log. Which lines are rows depends on the table header that was printed last."""

    def __init__(self, patterns: Sequence[tuple[Pattern, str]], curves: PrintedCurves) -> None:
        """Start without plans; `patterns` have their source, the first that matches reads a line."""
        self.kinds: dict[str, LineKind] = {}
        self._patterns = [*patterns, *((pattern, "grammar") for pattern in KNOWN_LINES)]
        self._exact = [pattern for pattern, _ in self._patterns if pattern.has_digits]
        self._curves = curves
        self.used = set[str]()
        """The patterns that a line matches."""
        self._every: dict[tuple[tables.Header | None, str | None], dict[str, LinePlan]] = {}
        self._statements: dict[str, Statement] = {}
        self._binary = LineKind("", "")
        """Lines that are no text; nothing of them is looked for."""
        self._below(None, None)

    def _below(self, header: tables.Header | None, split: str | None) -> None:
        """Begin the lines below this header of a table, and this split of a heading."""
        self._header, self._split = header, split
        self._plans = self._every.setdefault((header, split), {})

    def of(self, lines: Sequence[str], keys: Sequence[str]) -> Iterator[LinePlan]:
        """Yield the plan for each of the next lines, a new one if none of its shape was seen below this heading.

        `keys` are the lines with marks in the place of digits.
        """
        for line, key in zip(lines, keys, strict=True):
            plan = self._plans.get(key) or self._new(line, key)
            if plan.is_exact:  # the digits of its text matter: a pattern has some
                own = next((pattern.text for pattern in self._exact if pattern.values(folded(line))), "")
                plan = self._plans.get(f"{key}\n{own}") or self._new(line, f"{key}\n{own}")
            if plan.header is not None:
                self._below(plan.header or None, self._split)
            elif plan.split is not None or (plan.statement is not None and plan.statement.counter):
                self._below(self._header, plan.split)
            yield plan

    def _new(self, line: str, key: str) -> LinePlan:
        if len(self._plans) >= _MAX_PLANS:
            for old in [old for old, plan in self._plans.items() if not plan.is_read] or [*self._plans]:
                del self._plans[old]
        plan = self._plan(line)
        if plan.kind.source and "\n" not in key and any(each.values(plan.kind.example) for each in self._exact):
            plan = LinePlan(plan.kind, is_exact=True)
        self._plans[key] = plan
        return plan

    def _plan(self, line: str) -> LinePlan:
        if line.count("\ufffd") > _MAX_UNDECODED:
            return LinePlan(self._binary)
        text = folded(line[:_MAX_LINE_CHARACTERS])
        shape = shape_of(text)
        kind = self.kinds.get(shape) or LineKind(shape, text)
        if len(self.kinds) < _MAX_KINDS and text:
            self.kinds[shape] = kind
        if len(line) > _MAX_LINE_CHARACTERS:
            return LinePlan(kind)
        if (header := tables.header_of(text, line)) is not None:
            return LinePlan(kind, header=header)
        if not any(map(str.isdigit, line)):
            return self._of_words(kind, text)
        reading = self._reading(text)
        return self._heading(kind, text) if reading is None else self._compiled(kind, reading, text, line)

    def _of_words(self, kind: LineKind, text: str) -> LinePlan:
        """Return the plan for a line without numbers: a rule, or the heading of a split."""
        if tables.BORDER.fullmatch(text):
            return LinePlan(kind, is_border=True)
        if found := re.fullmatch(r"[|│┃] (\w{1,30})/ [|│┃](?: [|│┃])?", text):  # a section of a box
            return LinePlan(kind, split=split_of([found[1]], "train"), is_cell=True)
        return self._heading(kind, text)

    def _heading(self, kind: LineKind, text: str) -> LinePlan:
        """Return the plan for a line that is not read: the split of what follows, "" if a heading only may name one.

        It is sure below a single word, and below a line in a frame, as `***** Eval results 100 *****`.
        """
        words, is_framed = re.findall(r"[^\W\d_]+", text), _FRAMED.search(text) is not None
        is_heading = len(words) <= _MAX_HEADING_WORDS and (is_framed or not any(map(str.isdigit, text)))
        split = split_of(words, None) if is_heading else None
        return LinePlan(kind, split=split if split is None or len(words) == 1 or is_framed else "")

    def _reading(self, text: str) -> Reading | None:
        own = []
        for pattern, source in self._patterns:
            if found := of_pattern(pattern, text, source):
                own.append((source, found))
                self.used.add(pattern.text)
        first = next((found for source, found in own if source != "template"), None)
        if first is not None:
            return first
        reading = tables.box_line_of(text) or (tables.row_of(text, self._header) if self._header else None)
        reading = reading or read_line(text)
        if not own:
            return reading
        numbers = {start for start, *_ in numbers_in(text)}  # no part of a time
        found = replace(own[0][1], values=tuple(slot for slot in own[0][1].values if slot.start in numbers))
        if reading is not None and reading.values and reading.counters:
            slots = (slot for each in (*reading.values, *reading.counters) for slot in (each, each.total) if slot)
            taken = {key for slot in slots for key in (slot.end, slot.name.lower())}
            more = (slot for slot in found.values if slot.end not in taken and slot.name.lower() not in taken)
            more = (slot for slot in more if not text[: slot.start].endswith("("))  # the mean of the value before
            return replace(reading, values=(*reading.values, *more))
        counters = found.counters if all(text[each.start : each.end].isdecimal() for each in found.counters) else ()
        if reading is not None:
            values = tuple(slot for slot in reading.values if all(slot.start != each.start for each in counters))
            is_named = all(slot.name in found.head for slot in values)  # else the program puts its names together
            if len(found.values) < len(values) + (not is_named):
                return replace(reading, values=values, counters=counters, first=None) if counters else reading
        split = reading.split if reading else split_of(text.split()[:1], None)
        return replace(found, split=split, first=reading.first if reading and not found.counters else None)

    def _compiled(self, kind: LineKind, reading: Reading, text: str, line: str) -> LinePlan:
        position = _places(text, line)
        epoch = next((each for each in reading.counters if each.rank == EPOCH), None)
        others = (each for each in reading.counters if each.rank != EPOCH)
        counter = min(others, key=lambda each: each.rank, default=None)
        roles = [("counter", counter), ("of", counter.total if counter else None)]
        roles += [("epoch", epoch), ("num_epochs", epoch.total if epoch else None)]
        roles += [("", slot) for slot in reading.values]
        first = reading.first
        roles += [("first", first)] if first and all(first.start != slot.start for slot in reading.values) else []
        spans = [(position(slot.start), position(slot.end - 1) + 1, role, slot) for role, slot in roles if slot]
        if found := _RANK.search(line, 0, position(0)):
            spans.append((*found.span(1), "rank", Slot("", *found.span(1))))
        if not spans:  # a pattern of the user that names neither a metric nor a counter
            return LinePlan(kind)
        spans.sort(key=lambda span: span[:2])
        expression, at = "", 0
        plan = LinePlan(kind, is_cell=reading.is_cell)
        statement = self._statement(reading, counter, epoch, text)
        curves = []
        for group, (start, end, role, slot) in enumerate(spans):
            if start < at:
                return LinePlan(kind)
            if first is not None and first.start == slot.start:
                plan.places["first"], plan.word = group, first.name
            expression += f"{_any_digits(line[at:start])}({_any_digits(line[start:end])})"
            at = end
            if role:
                plan.places[role] = group
                continue
            heading = None if reading.counters else self._split
            split = next((each for each in (slot.split, reading.split, heading) if each is not None), None)
            is_given = reading.source == "pattern"
            curve = self._curves.named(reading.head, slot.name, split, is_given=is_given)
            curve.is_bar |= reading.is_bar
            curve.has_fraction |= not text[slot.start : slot.end].replace(",", "").isdecimal()
            curve.has_order |= reading.source != "grammar" or bool(reading.counters)
            curve.is_counted |= any(each.rank in _NAMED for each in reading.counters)
            curves.append((group, curve))
        plan.curves, plan.statement = tuple(curves), statement
        plan.expression = re.compile(expression + _any_digits(line[at:]) + "\n")
        if not plan.expression.fullmatch(line + "\n"):  # control characters, which fold otherwise
            return LinePlan(kind)
        if curves:
            kind.source = reading.source
            kind.curves = tuple(dict.fromkeys((*kind.curves, *(curve.name for _, curve in curves))))
        kind.counter = statement.counter or ""
        return plan

    def _statement(self, reading: Reading, counter: Slot | None, epoch: Slot | None, text: str) -> Statement:
        chosen = counter or epoch
        first = reading.values[0].name if reading.values else ""
        key = f"{reading.head}|{chosen.name if chosen else ''}|{reading.split}|{first}"
        if (known := self._statements.get(key)) is not None:
            return known
        is_epoch = counter is None and epoch is not None
        unit: Unit = "epoch" if is_epoch else "sample" if chosen is not None and chosen.name == "samples" else "step"
        name = None if chosen is None else chosen.name or ("" if chosen.rank == LEADING else "n/N")
        own = self._statements[key] = Statement(
            name,
            unit,
            is_given=reading.source == "pattern",
            is_evaluation=reading.split in ("eval", "test")
            and all(s.split in ("eval", "test") for s in reading.values),
            is_bar=reading.is_bar,
            is_plain=all(text[each.start : each.end].isdecimal() for each in reading.values),
            is_whole_run=chosen is not None and chosen.rank == 0,
            has_fractions=is_epoch and epoch is not None and "." in text[epoch.start : epoch.end - 1],
        )
        return own


def _any_digits(text: str) -> str:
    return DIGITS.sub(r"\\d+", re.escape(text))


def _places(text: str, line: str) -> Callable[[int], int]:
    """Return a function from a place in a folded line to that in the line itself."""
    whole = " ".join(line.split())
    start = max(whole.find(text), 0)
    num_before = len(whole[:start].replace(" ", ""))
    visible = [i for i, character in enumerate(line) if not character.isspace()]
    counts, num = [], num_before
    for character in text:
        counts.append(num)
        num += not character.isspace()
    return lambda place: visible[counts[place]]
