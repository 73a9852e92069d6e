"""The forms in which libraries print metrics: `name: value`, dicts and JSON, bars, `[i/n]`; each exact or not read."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from nbtools.metrics.curve_names import COUNTERS, EPOCH, LEADING, SPLITS, UNNAMED, counter_of, split_of
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.shapes import varying_parts

_TOTALS: Final = re.compile(r"total|max|num|number|of|per|every|n_?|next|last|best|from|for|size|limit|log|save")
_STOPS: Final = re.compile(
    r"a|after|and|at|by|for|from|in|is|of|on|over|per|than|the|to|took|was|with|best|saved|into|current|reached|since"
)
_OPEN: Final = re.compile(r"(?:(?:tensor|array|(?:np\.|numpy\.)?float\d\d)\(|[\[({\"'$~≈ ])*+$")
_WRAPPER: Final = re.compile(r"(?:tensor|array|(?:np\.|numpy\.)?float\d\d)\($")
_EQUALS: Final = re.compile(r"\s*(?:[:=]+>?|->)\s*$")
_CUT: Final = re.compile(r"[,;|{}\[\]\"'<>*\t•·]|\s[-–—~]+\s|[.!?]\s|[:=]+\s?|->|^[-–—>)%.\s]+|\)\s+(?=\w+$)|\.\.+")
_OF_SPLIT: Final = re.compile(rf"(\w+)\(({'|'.join(SPLITS)})\)$", re.IGNORECASE)
"""The counter of a split, as `Epoch(val)`."""
_OF: Final = ("/", "of", "out of", "|of|")
_TOTAL_FOLLOWS: Final = re.compile(r"\s?/\s?\d++(?!/)| (?:out )?of \d")
_AFTER: Final = re.compile(
    r"\s?(%)|([A-Za-zµ][\w/µ]*)|\s(ms|s|secs?|seconds|mins?|minutes|h|hours?|[KMGT]i?B|[a-z]+/s(?:ec)?)\b"
)
_GLUED: Final = re.compile(r"^/?[A-Za-zµ%][\w/%]*")
"""The unit of the number before."""
_OBJECT: Final = re.compile(r"[\w.]+\(\w+=|\(\w+\): |Average ")
"""An object, such as `Namespace(lr=0.1)`, or a module of a model."""
_PIPED: Final = re.compile(r"(\d+)\|(\d+)\|(?=[^\W\d])")
"""The epoch and the step of torchtune: `1|20|Loss: 2.31`."""
_LIST: Final = re.compile(r"(?:np\.float\d\d\(|\)?,? ?(?:(?:np\.|numpy\.)?float\d\d\()?)$")
_IN_NAME: Final = re.compile(
    r"[A-Za-z_@]\d+\w*(?:/(?=[A-Za-z])|[:='\"@(]|\s[:=]|\s(?=[(\[]?[-+.]?\d)|-\d+\b)"
    r"|[\s,;(]\d{1,4}(?:_\w{1,40}|(?![hms]:)[A-Za-z]{1,4})[:=] ?[-+.]?\d"
)
"""The digits of a name, as in `Acc@1 71.5`, `3px: 0.9` and `16_h1=0.5`."""
_ARGUMENT: Final = re.compile(r"([A-Za-z_]\w*)\((\d)[^()]{0,12}\)\s?[:=]")
"""A name with a number in brackets, as `CSI(5 mm/h) = 0.31`."""
_REMARK: Final = re.compile(r"(?<=\w)\s?\([^()\d]*[^\W\d]\s[^\W\d][^()\d]*\)$")
"""Words in brackets behind a name, as `train loss (weighted over clients): 0.9`."""
_BAR: Final = re.compile(r"%\|[^|]*\| *\d|\d/\d+ \[[^\]]*(?:it/s|s/it|\?)|\d+/\d+ [\[━╸╺─]{1}|step/s|ms/step")
_SAMPLES: Final = re.compile(r"Train Epoch: #? ?\d+ \[ ?\d+/\d+ \(\d+%\)\]|loss: \S+ +\[ ?\d+/ ?\d+\]$")
CHANGE: Final = re.compile(r"\s*(?:-+>|=+>|→|to\b)\s*")
"""Text between an old value and a new one, neither of which is a row: `validation loss decreased (inf --> 0.71)`."""
_TRAINING: Final = re.compile(r"(?:(?:train\w*|epochs?|steps?|iter\w*|progress|E)\b[\s:|\[]*|\d+\W*)*", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_FIRST_WORD: Final = re.compile(r"^\W*([^\W\d_]{3,})\b(?=\W* [^\W\d_])")
_REMAINING: Final = ("eta", "remaining", "left", "time_left", "time_elapsed")
NO_METRICS: Final = (*_REMAINING, "ep", "v_num", "seed", "pid", "port", "line", "rank", "device", "cuda")
_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}")
_MAX_NAME_WORDS: Final = 5
_MAX_LOOSE_WORDS: Final = 9

_SUMMARY: Final = "Average {} @[ IoU={} | area={} | maxDets={:>3} ] = {{eval/{}_{}_{}_{}}}"
KNOWN_LINES: Final = tuple(
    Pattern(_SUMMARY.format(name, iou, area, most, short, iou.replace(":", "-"), area.strip(), most))
    for name, short in (("Precision (AP)", "AP"), ("Recall (AR)", "AR"))
    for iou in ("0.50:0.95", "0.50", "0.75")
    for area in (" all", " small", "medium", " large")
    for most in (1, 10, 100, 300, 1000)
)
"""Lines of libraries that no grammar reads: the summary of pycocotools."""


@dataclass(frozen=True)
class Slot:
    """A number of a folded line: what it is, and where it stands; one that counts has a rank, and perhaps a total."""

    name: str
    start: int
    end: int
    split: str | None = None
    rank: int = -1
    total: "Slot | None" = None


@dataclass(frozen=True)
class Reading:
    """The meaning of a line: its metrics, its counters, and what stands before them."""

    values: tuple[Slot, ...]
    counters: tuple[Slot, ...] = ()
    source: str = "grammar"
    head: str = ""
    """The words before the first number: lines with other words are another statement."""
    split: str | None = None
    """The last split that its words name, for its counter."""
    is_bar: bool = False
    first: Slot | None = None
    """The first number, if nothing counts by its name: it may, if it rises evenly."""
    is_cell: bool = False
    """Whether it is one line of a box, which ends with a border and is a row as a whole."""


def read_line(line: str) -> Reading | None:
    """Return what a folded line says; None if it is none of the forms."""
    return None if _OBJECT.match(line) else LineScan(line).reading()


class Number:
    """A number of a line, with what stands before it."""

    def __init__(self, line: str, span: tuple[int, int], gap: str, follows: str) -> None:
        """Take the words of a name from the gap since the number before; `follows` is the gap to the next one."""
        self.slot, self.gap, self.follows = Slot("", *span), gap, follows
        self.text = line[slice(*span)]
        self.is_whole = self.text.replace(",", "").isdecimal()
        label = _OPEN.sub("", gap, count=1)
        self.is_listed = "[" in gap[len(label) :]
        equals = _EQUALS.search(label)
        self.is_explicit = equals is not None and bool(label[: equals.start()].strip())
        label = _REMARK.sub("", (label[: equals.start()] if equals is not None else label).rstrip(" \"'"))
        pieces = _CUT.split(_OF_SPLIT.sub(r"\2, \1", label))
        self.words = pieces[-1].replace("(", " ").replace(")", " ").replace("#", " ").split()
        self.others = " ".join(pieces[:-1]).split()
        """The words before those of its name."""
        self.name = " ".join(self.words)
        self.rank = rank_of(self.name)


class LineScan:
    """The numbers of a line from the left: each is what the first of the forms says that knows it."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.values: list[Slot] = []
        self.counters: list[Slot] = []
        self.split = split_of(_FIRST_WORD.findall(line), None)
        self.is_bar = _BAR.search(line) is not None
        self.bar_at = line.find("%|") if self.is_bar else -1
        self.before: Slot | None = None
        """The number before, as long as it may be that of `3/10`."""
        self.listed = ("", 0)
        """The name of a list and the number of values that it has so far."""
        self.context: list[str] = []
        self.head: list[str] | None = None
        self.num_loose = 0
        self.first: Number | None = None
        self._scan()

    def _scan(self) -> None:
        line, at = self.line, 0
        parts = varying_parts(line)
        if piped := _PIPED.match(line):
            self.counters = [Slot("epoch", *piped.span(1), rank=EPOCH), Slot("step", *piped.span(2), rank=1)]
            at = piped.end()
        first = at
        of_names = {found.start(2) for found in _ARGUMENT.finditer(line) if rank_of(found[1]) is None}
        for i, (start, end, is_number) in enumerate(parts):
            if start < at or (is_number and (start in of_names or _IN_NAME.match(line, max(start - 1, 0)))):
                continue
            gap = _GLUED.sub(" ", line[at:start]) if at > first else line[at:start]
            at = end
            if is_number:
                follows = line[end : parts[i + 1][0] if i + 1 < len(parts) else len(line)]
                self._take(Number(line, (start, end), gap, follows))
                continue
            self.before, self.listed = None, ("", 0)
            self.num_loose += len(_WORD.findall(gap)) if not gap.strip().endswith((":", "=", "[", "<")) else 0
        self.num_loose += len(_WORD.findall(line[at:]))

    def _take(self, number: Number) -> None:
        self.first = self.first or number
        if any(form(self, number) for form in _CONTINUED):
            return
        self.split = split_of(number.others, self.split)
        self.context += number.others
        if any(form(self, number) for form in _NAMED):
            if self.head is None and (self.values or self.counters):
                before_bar = _WORD.findall(self.line[: self.bar_at])
                self.head = before_bar if self.bar_at > 0 else [*self.context]
            return
        self.num_loose += len(number.words)
        self.context += number.words

    def reading(self) -> Reading | None:
        """Return what the line says; None if it is prose, or has neither a value nor a counter."""
        line, values, split, head, is_bar = self.line, self.values, self.split, self.head or [], self.is_bar
        counters = _meaning(self.counters, is_bar=is_bar)
        first = next((start for start, _, _ in varying_parts(line)), 0)
        label = line[: self.bar_at if self.bar_at >= 0 else first]
        if not values and (not counters or (is_bar and not _TRAINING.fullmatch(label))):
            return None
        if self.num_loose > _MAX_LOOSE_WORDS:
            return None
        is_uncertain = self.num_loose > 4 or all(counter.rank in (UNNAMED, LEADING) for counter in counters)
        if not values and is_uncertain and not is_bar:
            return None
        if line.startswith("* ") and split is None:
            split = "eval"
        if _SAMPLES.search(line):
            counters = [replace(each, name="samples") if each.rank == UNNAMED else each for each in counters]
        inner = [counter for counter in counters if counter.rank != EPOCH] or counters
        kinds = "".join(sorted({counter.name or "n" for counter in inner}))
        said = " ".join([*head, kinds]).lower()
        own = self.first
        is_open = own and not counters and own.is_whole and own.words
        one = replace(own.slot, name=own.words[-1].lower()) if own and is_open else None
        return Reading(tuple(values), tuple(counters), "grammar", said, split or None, is_bar, one)


Form = Callable[[LineScan, Number], bool]
"""Takes a number of a line if it is of this form, and returns whether it is."""


def _total(scan: LineScan, number: Number) -> bool:
    """The 10 of `3/10`."""
    before, scan.before = scan.before, None
    if before is None or not number.is_whole or number.gap.strip() not in _OF:
        return False
    if scan.counters and scan.counters[-1].start == before.start:
        scan.counters[-1] = replace(scan.counters[-1], total=number.slot)
    elif before.rank == UNNAMED:
        scan.counters.append(replace(before, total=number.slot))
    return True


def _listed(scan: LineScan, number: Number) -> bool:
    """A further value of a list: `dice [0.5, 0.7]`."""
    (name, count), scan.listed = scan.listed, ("", 0)
    if not name or number.is_whole or not _LIST.fullmatch(number.gap):
        return False
    scan.values.append(replace(number.slot, name=f"{name}_{count}", split=scan.values[-1].split))
    scan.listed = (name, count + 1)
    return True


def _mean(scan: LineScan, number: Number) -> bool:
    """The mean in `Loss 0.5 (0.4)`; of a loop of an evaluation, it is the result."""
    gap = number.gap
    if number.is_explicit or not scan.values or not gap.rstrip().endswith("(") or _WRAPPER.search(gap):
        return False
    is_loop = scan.split in ("eval", "test") and all(counter.rank == UNNAMED for counter in scan.counters)
    if is_loop and number.follows[:1] == ")":
        scan.values[-1] = replace(number.slot, name=scan.values[-1].name, split=scan.split)
    return True


def _counter(scan: LineScan, number: Number) -> bool:
    """A number with the name of a counter."""
    if number.rank is None or (number.text.endswith(".") and number.is_explicit):
        return False
    if number.follows[:1].isalpha():  # step: 3ms, step:10K
        return True
    if not number.is_whole and number.rank != EPOCH:
        return False
    scan.split = split_of(number.words, scan.split)
    scan.before = replace(number.slot, name=number.words[-1].lower().partition("(")[0], rank=number.rank)
    scan.counters.append(scan.before)
    return True


def _epoch_of_split(scan: LineScan, number: Number) -> bool:
    """The epoch of `Train: 3 [ 50/100]`."""
    last = split_of(number.words[-1:], None)
    if last is None or not number.is_whole or not re.match(r":? \[", number.follows):
        return False
    scan.split = last
    scan.counters.append(replace(number.slot, name="epoch", rank=EPOCH))
    return True


def _first_of_two(scan: LineScan, number: Number) -> bool:
    """The 3 of `3/10`, which counts unless another word says what it is."""
    is_date = number.gap.endswith("/")
    if is_date or not number.is_whole or not _TOTAL_FOLLOWS.match(scan.line, number.slot.end):
        return False
    scan.split = split_of(number.words, scan.split)
    is_other = number.is_explicit or (number.words and scan.values)  # patience 1/5
    counts = not is_other or "[" in number.gap or split_of(number.words[-1:], None) is not None
    scan.before = replace(number.slot, rank=UNNAMED) if counts else number.slot
    scan.context += number.words
    return True


def _leading(scan: LineScan, number: Number) -> bool:
    """A number at the beginning of a line, before a word."""
    is_first = scan.line[: number.slot.start].strip() in ("", "[")
    if not is_first or not number.is_whole or not re.match(r"\]?:?\s+[^\s\d]", scan.line[number.slot.end :]):
        return False
    scan.counters.append(replace(number.slot, rank=LEADING))
    return True


def _value(scan: LineScan, number: Number) -> bool:
    """A number whose words name a measured value."""
    if CHANGE.fullmatch(number.follows) or (number.slot.start <= scan.bar_at and number.is_whole):
        return False
    is_cell = number.gap.startswith(" | ") and number.follows[:2] in (" |", "")
    unit = found[0].strip() if (found := _AFTER.match(scan.line, number.slot.end)) else None
    if not is_metric(number.words, unit, is_whole=number.is_whole, is_explicit=number.is_explicit or is_cell):
        return False
    name = _with(number.name, scan.values, scan.context)
    scan.values.append(replace(number.slot, name=name, split=scan.split))
    if split_of(number.words, scan.split) not in (scan.split, "train"):
        scan.split = ""  # val acc 0.7 loss 0.5
    scan.listed = (name, 1) if number.is_listed else ("", 0)
    return True


_CONTINUED: Final[tuple[Form, ...]] = (_total, _listed)
"""Forms in which a number belongs to the one before."""
_NAMED: Final[tuple[Form, ...]] = (*(_mean, _counter, _epoch_of_split), *(_first_of_two, _leading, _value))
"""Forms in which the words before a number say what it is."""


def of_pattern(pattern: Pattern, line: str, source: str) -> Reading | None:
    """Return what a folded line says by a pattern; None if it does not match."""
    spans = pattern.spans(line)
    if spans is None:
        return None
    totals = {name[6:].rstrip("s"): Slot(name, *span) for name, span in spans.items() if name.startswith("total_")}
    values, counters = [], []
    for name, span in spans.items():
        word = name.lower()
        if word in COUNTERS:
            counters.append(Slot(word, *span, rank=COUNTERS[word], total=totals.get(word.rstrip("s"))))
        elif "/" in name or not (word.startswith(("total_", "time")) or (word in NO_METRICS and source != "pattern")):
            values.append(Slot(name, *span))
    words = _PLACEHOLDER.sub("", pattern.text[: pattern.text.rindex("}") + 1])  # what follows may be " (best)" or ""
    return Reading(tuple(values), tuple(counters), source, pattern.text if source == "pattern" else words)


def rank_of(name: str) -> int | None:
    """Return the rank of a counter's name; None if it counts nothing."""
    words = name.lower().replace("#", "").strip("/").split()
    if not words or len(words) > 4:
        return None
    last = words[-1].partition("(")[0] or words[-1]
    first, _, second = last.partition("/")
    last = first if second.startswith(("max", "total", "num")) else last
    if (rank := COUNTERS.get("_".join(words[-2:]))) is not None:
        return rank
    if any(map(_TOTALS.fullmatch, words[:-1])):
        return None
    if not last.endswith("s") and counter_of(last) == "epoch":  # Epoche, época
        return EPOCH
    return COUNTERS.get(last, COUNTERS.get(re.sub(r"^train(?:er|ing)?[/_](?=[^/_]+$)", "", last)))


def is_metric(words: list[str], unit: str | None, *, is_whole: bool, is_explicit: bool) -> bool:
    """Whether the words before a number name it as a measured value."""
    if not words or len(words) > _MAX_NAME_WORDS or not re.search(r"[^\W\d_]", words[-1]):
        return False
    if words[-1].lower() in NO_METRICS:
        return False
    if is_explicit:
        return "\\" not in words[-1] and not words[-1].endswith((".py", ".cc", ".cpp"))
    if unit not in (None, "%") or len(words) > 3 or _STOPS.fullmatch(words[-1].lower()):
        return False
    return not is_whole or "@" in words[-1] or bool(re.fullmatch(r"[a-z]+_\w+|mfu|ppl|PPL", words[-1]))


def _with(name: str, values: list[Slot], context: list[str]) -> str:
    """Return a name, with the words before it if the line has it already: `Train: loss 0.5 | Val: loss 0.6`."""
    if all(value.name != name for value in values):
        return name
    before = next((word for word in reversed(context) if word.strip("():")), "")
    full = f"{before.strip('():')} {name}".strip()
    taken = {value.name for value in values}
    return full if full not in taken else next(n for i in range(1, 99) if (n := f"{full}_{i}") not in taken)


def _meaning(counters: list[Slot], *, is_bar: bool) -> list[Slot]:
    """Give counters without a name their meaning: of two, the first counts the epochs around the second."""
    unnamed = [counter for counter in counters if counter.rank == UNNAMED]
    if len(unnamed) == 2 and not is_bar and all(counter.rank != EPOCH for counter in counters):
        first = unnamed[0]
        counters = [replace(each, name="epoch", rank=EPOCH) if each is first else each for each in counters]
    if any(counter.rank < LEADING for counter in counters):
        counters = [counter for counter in counters if counter.rank != LEADING]
    return counters
