"""The forms in which libraries print metrics: `name: value`, dicts and JSON, bars, `[i/n]`; each exact or not read."""

import re
from dataclasses import dataclass, replace
from typing import Final

from nbtools.metrics.curve_names import COUNTERS, EPOCH, LEADING, UNNAMED, split_of
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
_ARROW: Final = re.compile(r"\s*(?:[-=]+>|→)\s*")
_OF: Final = ("/", "of", "out of", "|of|")
_AFTER: Final = re.compile(
    r"\s?(%)|([A-Za-zµ][\w/µ]*)|\s(ms|s|secs?|seconds|mins?|minutes|h|hours?|[KMGT]i?B|[a-z]+/s(?:ec)?)\b"
)
_GLUED: Final = re.compile(r"^[A-Za-zµ%][\w/%]*")
"""The unit of the number before."""
_OBJECT: Final = re.compile(r"[\w.]+\(\w+=|\(\w+\): |Average ")
"""An object, such as `Namespace(lr=0.1)`, or a module of a model."""
_PIPED: Final = re.compile(r"(\d+)\|(\d+)\|(?=[^\W\d])")
"""The epoch and the step of torchtune: `1|20|Loss: 2.31`."""
_LIST: Final = re.compile(r"(?:np\.float\d\d\(|\)?,? ?(?:(?:np\.|numpy\.)?float\d\d\()?)$")
_IN_NAME: Final = re.compile(r"[A-Za-z_@]\d+\w*(?:/(?=[A-Za-z])|[:='\"@(]|\s[:=]|\s(?=[(\[]?[-+.]?\d)|-\d+\b)")
"""The digits of a name, as in `Acc@1 71.5`."""
_BAR: Final = re.compile(r"%\|[^|]*\| *\d|\d/\d+ \[[^\]]*(?:it/s|s/it|\?)|\d+/\d+ [\[━╸╺─]{1}|step/s|ms/step")
_SAMPLES: Final = re.compile(r"Train Epoch: #? ?\d+ \[\d+/\d+ \(\d+%\)\]|loss: \S+ +\[ ?\d+/\d+\]$")
_TRAINING: Final = re.compile(r"(?:(?:train\w*|epochs?|steps?|iter\w*|progress|E)\b[\s:|\[]*|\d+\W*)*", re.IGNORECASE)
_NO_ROW: Final = re.compile(r"(?:improved|decreased|increased|sav(?:ed|ing)|load(?:ed|ing)|resum)", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_FIRST_WORD: Final = re.compile(r"^\W*([^\W\d_]{3,})\b(?=\W* [^\W\d_])")
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
    is_cell: bool = False
    """Whether it is one line of a box, which ends with a border and is a row as a whole."""
    rank: Slot | None = None


def read_line(line: str) -> Reading | None:
    """Return what a folded line says; None if it is none of the forms."""
    if _OBJECT.match(line):
        return None
    parts = varying_parts(line)
    values: list[Slot] = []
    counters: list[Slot] = []
    rank: Slot | None = None
    context: list[str] = []
    head: list[str] | None = None
    split = first_split(line)
    at, first, num_loose, listed = 0, 0, 0, ("", 0)
    before: tuple[str, Slot, bool] | None = None  # the number before, as long as it may be that of `3/10`
    is_bar = _BAR.search(line) is not None
    bar_at = line.find("%|") if is_bar else -1
    is_after_unread = False
    if piped := _PIPED.match(line):
        counters = [Slot("epoch", *piped.span(1), rank=EPOCH), Slot("step", *piped.span(2), rank=1)]
        at = first = piped.end()
    for i, (start, end, is_number) in enumerate(parts):
        if start < at or (is_number and _IN_NAME.match(line, max(start - 1, 0))):
            continue
        gap, text = line[at:start], line[start:end]
        if at > first:
            gap = _GLUED.sub(" ", gap)
        follows = line[end : parts[i + 1][0] if i + 1 < len(parts) else len(line)]
        ended, at = at, end
        if not is_number:
            before, listed = None, ("", 0)
            num_loose += len(_WORD.findall(gap)) if not gap.strip().endswith((":", "=", "[", "<")) else 0
            continue
        is_whole = text.replace(",", "").isdecimal()
        if _ARROW.fullmatch(gap) and values and values[-1].end == ended:  # the best one so far: 0.5 --> 0.4
            values.pop()
            continue
        slot = Slot("", start, end)
        if before is not None and is_whole and gap.strip() in _OF:
            name, counted, is_explicit = before
            before = None
            if counters and counters[-1].start == counted.start:
                counters[-1] = replace(counters[-1], total=slot)
            elif rank_of(name) is not None or not name or not is_explicit:
                counters.append(replace(counted, rank=UNNAMED, total=slot))
            continue
        before = None
        opened = _OPEN.search(gap)
        label = gap[: opened.start()] if opened else gap
        if listed[0] and _LIST.fullmatch(gap) and values and not is_whole:
            name, num = listed
            values.append(Slot(f"{name}_{num}", start, end, values[-1].split))
            listed = (name, num + 1)
            continue
        listed = ("", 0)
        equals = _EQUALS.search(label)
        is_explicit = equals is not None and bool(label[: equals.start()].strip())
        label = (label[: equals.start()] if equals is not None else label).rstrip(" \"'")
        pieces = _CUT.split(label)
        words = pieces[-1].replace("(", " ").replace(")", " ").replace("#", " ").split()
        others = " ".join(pieces[:-1]).split()
        split = split_of([word.strip("():") for word in others], split)
        context += others
        name = " ".join(words)
        if gap.rstrip().endswith("(") and not is_explicit and values and not _WRAPPER.search(gap):
            if split in ("eval", "test") and all(c.rank == UNNAMED for c in counters) and follows[:1] == ")":
                values[-1] = Slot(values[-1].name, start, end, split)  # of a loop, the mean is the result
            continue  # the mean in Loss 0.5 (0.4)
        if line.startswith("%|", end):
            continue
        is_cell = gap.startswith(" | ") and follows[:2] in (" |", "")
        ranked = rank_of(name)
        is_leading = not name and not counters and not values and not line[:start].strip(" [(#")
        is_of_split = bool(words) and split_of(words[-1:], None) is not None and re.match(r":? \[", follows)
        unit = found[0].strip() if (found := _AFTER.match(line, end)) else None
        if ranked is None and name.lower() in ("rank", "local_rank", "gpu") and is_whole:
            rank = slot
        elif ranked is not None and (is_whole or ranked == EPOCH) and not (text.endswith(".") and is_explicit):
            split = split_of([word.strip("():") for word in words], split)
            if any(counter.rank == ranked == EPOCH for counter in counters):  # (best: 0.5 at epoch 3)
                del values[-1:]
                continue
            counters.append(replace(slot, name=words[-1].lower().partition("(")[0] if words else "", rank=ranked))
            before = (name, slot, is_explicit)
        elif is_of_split and is_whole:
            split = split_of(words[-1:], split)
            counters.append(replace(slot, name="epoch", rank=EPOCH))
        elif is_whole and re.match(r"\s?/\s?\d| (?:out )?of \d", line[end:]):
            before = (name, slot, is_explicit)
            split = split_of(words, split)
            if not is_explicit or "[" in gap or rank_of(name) is not None or split_of(words[-1:], None):
                before = ("", slot, False)
            context += words
        elif is_leading and is_whole and re.match(r"\]?:?\s+[^\s\d]", line[end:]) and line[:start].strip() in ("", "["):
            counters.append(replace(slot, rank=LEADING))
        elif (
            (start > bar_at or not is_whole)
            and not (is_after_unread and re.match(r" [^\W\d]", gap))
            and _is_metric(words, unit, is_whole=is_whole, is_explicit=is_explicit or is_cell)
        ):
            values.append(Slot(_with(name, values, context), start, end, split))
            if split_of(words, split) not in (split, "train"):
                split = ""  # val acc 0.7 loss 0.5
            listed = (values[-1].name, 1) if opened and "[" in opened[0] else ("", 0)
            context.append("")
        else:
            num_loose += len(words)
            context += words
            is_after_unread = True
            continue
        is_after_unread = False
        if head is None and (values or counters):
            head = _WORD.findall(line[:bar_at]) if bar_at > 0 else [word for word in context if word]
    num_loose += len(_WORD.findall(line[at:]))
    counters = _meaning(counters, is_bar=is_bar)
    if not values and not counters:
        return None
    label = line[: parts[0][0]]
    if not values and is_bar and not _TRAINING.fullmatch(line[: line.find("%|")] if "%|" in line else label):
        return None
    if num_loose > _MAX_LOOSE_WORDS or (_NO_ROW.search(line) and not counters):
        return None
    if not values and (num_loose > 4 or all(counter.rank in (UNNAMED, LEADING) for counter in counters)) and not is_bar:
        return None
    head = head or []
    context = [word for word in context if word]
    if not is_bar and split_of([word.strip("():") for word in context[len(head) :]], None):
        head = context  # validation loss at iteration 100 on test set
    if line.startswith("* ") and split is None:
        split = "eval"
    if _SAMPLES.search(line):
        counters = [replace(each, name="samples") if each.rank == UNNAMED else each for each in counters]
    kinds = "".join(sorted({counter.name[:2] for counter in counters}))
    return Reading(
        tuple(values), tuple(counters), "grammar", " ".join([*head, kinds]).lower(), split or None, is_bar, rank=rank
    )


def first_split(line: str) -> str | None:
    """Return the split that the first word of a folded line names."""
    return split_of(_FIRST_WORD.findall(line), None)


def read_known(line: str) -> Reading | None:
    """Return what one of the known lines says."""
    known = KNOWN_LINES if line.startswith("Average ") else ()
    return next((r for pattern in known if (r := of_pattern(pattern, line, "grammar"))), None)


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
        elif not word.startswith(("total_", "time")) or "/" in name:
            values.append(Slot(name, *span))
    return Reading(tuple(values), tuple(counters), source, pattern.text)


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
    parts = re.split(r"[/_]", last)
    rank = COUNTERS.get(
        last, COUNTERS.get(parts[-1]) if len(parts) == 2 and parts[0] in ("train", "trainer", "training") else None
    )
    if rank is None or any(map(_TOTALS.fullmatch, words[:-1])):
        return None
    return rank


def _is_metric(words: list[str], unit: str | None, *, is_whole: bool, is_explicit: bool) -> bool:
    """Whether the words before a number name it as a measured value."""
    if not words or len(words) > _MAX_NAME_WORDS or not re.search(r"[^\W\d_]", words[-1]):
        return False
    if words[-1].lower() in ("eta", "v_num", "seed", "pid", "port", "line", "rank", "device", "cuda", "time_elapsed"):
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
