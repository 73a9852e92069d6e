"""Forms of whole lines: pairs without punctuation, numbers before their names, items of a list, titles."""

import re
from typing import Final

from nbtools.metrics.readers.printed.names import COUNTERS, LEADING, words_of

_VALUE: Final = r"[-+]?+\d++(?:\.\d*+)?+(?:[eE][-+]?+\d++)?+"
_PAIR: Final = re.compile(rf"\s*+([A-Za-z][\w/.-]*+)\s++(?:(?:\d++[dhms](?:\s++|$))++|({_VALUE})(?:\s++|$))")
_PAIRS: Final = re.compile(rf"(?:{_PAIR.pattern}){{4,60}}+")
_BACKWARD: Final = re.compile(rf"({_VALUE})\s++([A-Za-z][\w/]*+(?:\ \w++)?+)\s*+(?:,|$)")
_BACKWARDS: Final = re.compile(rf"\s*+\d++:?\s++(?:{_VALUE},\s++)?(?:{_BACKWARD.pattern}\s*+){{3,60}}+")
_INDENTED: Final = re.compile(
    rf"\s++(?:['\"]?[^\W\d][\w ./@()-]{{0,60}}['\"]?[:=]\s*+(?:{_VALUE}|nan|inf)%?+\s?[a-z]{{0,2}}+[\s,;|}}]*+){{1,20}}"
)
_WORD: Final = re.compile(r"[^\W\d_]++")
_OF_FILES: Final = words_of(
    "load loading loaded save saving saved write writing wrote read reading data dataset set file files download"
)
_ITEM: Final = re.compile(rf"\s*+[|>*•-][|>*•\s-]*+[A-Za-z][\w ./@-]{{0,60}}:\s*+{_VALUE}\s*+(?:\([-+.\deE]++\))?+\s*+")
_QUALIFIED: Final = re.compile(
    rf"\s*+([A-Za-z][^@\[\]=|]{{0,60}}?)\s*@?\[\s?([^\[\]]*=[^\[\]]*)\]\s*+=\s*+({_VALUE})\s*+"
)
_PARENTHESIS: Final = re.compile(r"\([^()]*\)|\|")
_CAPITALS: Final = re.compile(r"[\W\d]*+[A-Z][A-Z ]{3,40}+[\W\d]*+")


def is_backward(text: str) -> bool:
    """Whether a line has a counter and then numbers before their names: `12: 884.7 loss, 0.001 rate, 3 images`."""
    return _BACKWARDS.fullmatch(text) is not None


def with_names_first(text: str) -> str:
    """Return a line with a `:` after each name, if all of it is backward, or a counter and pairs without punctuation.

    `tick 3 kimg 12.1 time 2m 10s sec/tick 33.1` are such pairs; durations are left out.
    """
    if is_backward(text):
        return _BACKWARD.sub(r"\2: \1, ", text)
    if _PAIRS.fullmatch(text):
        pairs = _PAIR.findall(text)
        if COUNTERS.get(pairs[0][0].lower(), LEADING) < 4:
            return ", ".join(f"{name}: {value}" for name, value in pairs if value)
    return text


def qualified_value(text: str) -> tuple[str, float] | None:
    """Return name and value of a line that has in brackets what its value is of; None if it is none.

    `Average Precision (AP) @[ IoU=0.50 | area= all | maxDets=100 ] = 0.486`, of pycocotools, is such a line.
    """
    if "]" not in text or (found := _QUALIFIED.fullmatch(text)) is None:
        return None
    return "_".join(_PARENTHESIS.sub("", f"{found[1]} {found[2]}").replace("=", " ").split()), float(found[3])


def is_item(text: str) -> bool:
    """Whether a line is one item of a list: `| > grad_norm: 1.2 (1.3)`, or indented and only has pairs."""
    return _ITEM.fullmatch(text) is not None or _INDENTED.fullmatch(text) is not None


def is_title(text: str, *, has_numbers: bool) -> bool:
    """Whether a line may head others: `Validation:`, `*** Test ***`, `--> EVAL PERFORMANCE`, `Eval begin...`."""
    if text.rstrip().endswith((":", "*")) or _CAPITALS.fullmatch(text) is not None:
        return True
    words = _WORD.findall(text.lower())
    return not has_numbers and 0 < len(words) <= 6 and _OF_FILES.isdisjoint(words)
