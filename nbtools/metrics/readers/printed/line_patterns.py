"""Forms of whole lines: pairs without punctuation, items of a list, titles."""

import re
from typing import Final

from nbtools.metrics.readers.printed.metric_words import COUNTERS, LEADING, is_measured, words_of

_VALUE: Final = r"[-+]?+\d++(?:\.\d*+)?+(?:[eE][-+]?+\d++)?+"
_PAIR: Final = re.compile(rf"\s*+([A-Za-z][\w/.-]*+)\s++(?:(?:\d++[dhms](?:\s++|$))++|({_VALUE})(?:\s++|$))")
_PAIRS: Final = re.compile(rf"(?:{_PAIR.pattern}){{4,60}}+")
_INDENTED: Final = re.compile(  # or of a group: Episode_Reward/feet_air_time: -0.01
    r"(?:\s++|(?=[A-Za-z]\w*+/))"
    rf"(?:['\"]?[^\W\d][\w ./@()-]{{0,60}}['\"]?[:=]\s*+(?:{_VALUE}|nan|inf)%?+\s?[a-z]{{0,2}}+[\s,;|}}]*+){{1,20}}"
)
_NAME: Final = r"[A-Za-z][\w/.-]*+(?: [\w/.-]++){0,3}?"
_ALIGNED: Final = re.compile(rf"\s{{2,}}{_NAME}\s{{2,}}{_VALUE}(?:\s{{2,}}{_NAME}\s++{_VALUE}){{0,8}}\s*+")
_ALIGNED_PAIR: Final = re.compile(rf"({_NAME})\s++({_VALUE})(?=\s\s|\s*$)")
_CELL: Final = rf"[A-Za-z][\w/@.-]*+(?: [A-Za-z][\w/@.-]*+){{0,2}} ({_VALUE}%?+)"
_ROW_OF_CELLS: Final = re.compile(
    rf"(\s*+(?:[^:=,|\d]{{1,60}}:\s++)?+){_CELL}(?:(?:\s{{2,}}|,\s++|\s++\|\s++){_CELL}){{1,20}}\s*+"
)
_CELL_OF_ROW: Final = re.compile(_CELL)
_WORD: Final = re.compile(r"[^\W\d_]++")
_OF_FILES: Final = words_of(
    "load loading loaded save saving saved write writing wrote read reading data dataset set file files download"
)
_ITEM: Final = re.compile(rf"\s*+[|>*•-][|>*•\s-]*+[A-Za-z][\w ./@-]{{0,60}}:\s*+{_VALUE}\s*+(?:\([-+.\deE]++\))?+\s*+")
_QUALIFIED: Final = re.compile(
    rf"\s*+([A-Za-z][^@\[\]=|]{{0,60}}?)\s*@?\[\s?([^\[\]]*=[^\[\]]*)\]\s*+=\s*+({_VALUE})\s*+"
)
_QUOTIENT: Final = re.compile(r"\.\d++%?\s?/\s?-?\d*+\.\d")
_SHARED: Final = re.compile(
    r"(?:([A-Za-z]\w*+) \()?((?:[A-Za-z]\w{0,30} )?[A-Za-z]\w{0,30})\s?/\s?"
    r"([A-Za-z]\w{0,30})((?: [A-Za-z]\w{0,30}){0,3})\)?"
    r"\s?[:=]?\s?(-?\d*\.\d++%?)\s?/\s?(-?\d*\.\d++%?)(?!\s?/)"
)
_PARENTHESIS: Final = re.compile(r"\([^()]*\)|\|")
_BETWEEN_RULES: Final = re.compile(r"\s*+([^\w\s])\1\1.*[^\w\s]{3}\s*+")
RESULTS: Final = re.compile(
    r"\W*+(?:final )?(?:test|eval|evaluation|validation) (?:results?|metrics|performance|scores?|report)(?![^(]*\d)",
    re.IGNORECASE,
)
"""`Test results (best model, epoch 2)`."""
_CAPITALS: Final = re.compile(r"[\W\d]*+[A-Z][A-Z ]{3,40}+[\W\d]*+")


def with_marked_names(text: str) -> str:
    """Return a line with a `:` after each name, if all of it is a counter and pairs without punctuation.

    `tick 3 kimg 12.1 time 2m 10s sec/tick 33.1` is such a line; durations are left out. Of two names with two values,
    each value gets its own: `Gen/Dis Loss: 0.5/0.6`, `Loss (train/val): 0.5/0.6`.
    """
    if _PAIRS.fullmatch(text):
        pairs = _PAIR.findall(text)
        if COUNTERS.get(pairs[0][0].lower(), LEADING) < 4:
            return ", ".join(f"{name}: {value}" for name, value in pairs if value)
    if text[:2] == "  " and "." in text and is_aligned(text):
        return _ALIGNED_PAIR.sub(r"\1: \2", text)
    if "." in text and (row := _ROW_OF_CELLS.fullmatch(text)):
        return _marked_cells(row[1], text[row.end(1) :])
    return _SHARED.sub(_each_with_name, text) if "/" in text and _QUOTIENT.search(text) else text


def _marked_cells(head: str, text: str) -> str:
    """Return a row of names and fractions, `ARI 0.45  batch mixing 0.39`, with a `:` after each name.

    What is measured may stand before all of them: `validation dice: spleen 0.9, left lung 0.8`.
    """
    cells = [found[0].rpartition(" ") for found in _CELL_OF_ROW.finditer(text)]
    if not all("." in value for *_, value in cells):
        return head + text
    words = head.strip().rstrip(":").split()
    if words and is_measured(words[-1]):
        return ", ".join(f"{' '.join(words)}_{name.replace(' ', '_')}: {value}" for name, _, value in cells)
    if sum(is_measured(name) for name, *_ in cells) < 2:
        return head + text
    return head + ", ".join(f"{name}: {value}" for name, _, value in cells)


def _each_with_name(found: re.Match[str]) -> str:
    head, first, second, rest, one, other = found.groups()
    rest = f" {head}" if head else rest
    alone = first if rest and first.endswith(rest) else first + rest  # Train accuracy / Test accuracy: 0.7 / 0.6
    return f"{alone}: {one}, {second}{rest}: {other}"


def qualified_value(text: str) -> tuple[str, float] | None:
    """Return name and value of a line that has in brackets what its value is of; None if it is none.

    `Average Precision (AP) @[ IoU=0.50 | area= all | maxDets=100 ] = 0.486`, of pycocotools, is such a line.
    """
    if "]" not in text or (found := _QUALIFIED.fullmatch(text)) is None:
        return None
    return "_".join(_PARENTHESIS.sub("", f"{found[1]} {found[2]}").replace("=", " ").split()), float(found[3])


def is_item(text: str) -> bool:
    """Whether a line is one item of a list: `| > grad_norm: 1.2 (1.3)`, or only pairs, indented or `group/name`."""
    return _ITEM.fullmatch(text) is not None or is_indented(text) or is_aligned(text)


def is_indented(text: str) -> bool:
    """Whether a line is one of an indented list, `    timesteps: 1000`, or `group/name: value`."""
    return _INDENTED.fullmatch(text) is not None


def is_aligned(text: str) -> bool:
    """Whether a line is one of a list in columns, `    timesteps   1000`."""
    return _ALIGNED.fullmatch(text) is not None


def is_title(text: str, *, has_numbers: bool) -> bool:
    """Whether a line may head others: `Validation:`, `>>> test of a <<<`, `--> EVAL PERFORMANCE`, `Eval begin...`."""
    is_framed = _CAPITALS.fullmatch(text) or _BETWEEN_RULES.fullmatch(text)
    if is_framed or RESULTS.match(text) or text.rstrip().endswith((":", "*")):
        return True
    words = _WORD.findall(text.lower())
    return not has_numbers and 0 < len(words) <= 6 and _OF_FILES.isdisjoint(words)
