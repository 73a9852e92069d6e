"""The shape of a printed line: its text without what a logger puts before it, with `#` in the place of its numbers."""

import re
from typing import Final

NUMBER: Final = (
    r"(?:(?<![\w.])[-+])?(?:[1-9]\d{0,2}(?:,\d{3})++(?!,?\d)(?:\.\d++)?+|\d{1,40}+(?:\.(?!\.)\d{0,40}+)?+|(?<!\d)\.\d{1,40}+)"
    r"(?:[eE][-+]?\d{1,4}+)?+|(?<![\w.])[-+]?(?:nan|NaN|NAN|inf|Infinity)(?!\w)"
)
"""A number as programs print it: `1,024`, `-0.5`, `1.`, `2e-05`, `nan`."""
_CLOCK: Final = r"\d{1,3}:\d\d(?::\d\d)?+(?:[.,]\d++)?+(?:\s[AaPp][Mm](?=\s))?+(?:Z|[+-]\d\d:?\d\d)?+(?![\w:])"
_DATE: Final = (
    r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/.]\d\d[-/.]\d\d(?:\d\d)?+|\d\d[-/]\d\d|\d{8}|[IWEFD]?\d{4}"
    r"|[A-Z][a-z]{2}\s\d\d?|\d\d?\s[A-Z][a-z]{2}(?:\s\d{4})?+)"
)
_WHEN: Final = rf"(?:{_DATE},?[T_ ]{_CLOCK}|{_CLOCK}|\d{{4}}-\d\d-\d\d(?!\d))"
_LEVEL: Final = r"(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|SUCCESS|debug|info|warning|error)\b"
_PLACE: Final = r"[\w./-]{1,100}(?:\.(?:py|cc|cpp):\d++(?::\w++)?|:[A-Za-z_<][\w<>]{0,60}:\d++)"
_RANK: Final = r"(?:rank|RANK|Rank|default|trainer|GPU|gpu)[ _:]{0,2}\d{1,6}"
_MARK: Final = re.compile(
    rf"""(?: [\s|:>,]++ | -++(?=\s)
    | \[[^\[\]]{{0,60}}?{_DATE},?[T_ ]{_CLOCK}[^\[\]]{{0,60}}\](?::|(?=\s|\[|$))    # [01/01 10:00:00 d2.utils.events]:
    | \[?\(?{_WHEN}\)?\](?::|(?=\s|\[|$))
    | [A-Za-z_]\w*\.[\w.]{{1,80}}:\d{{1,5}}(?=\s-\s)
    | {_WHEN}(?=[\s|,\]]|$)
    | \(\w{{1,60}}\spid=\d{{1,10}}(?:,\sip=[\d.]++)?\)
    | [\[(]{_RANK}[\])]:?
    | \[{_LEVEL}\|{_WHEN}\](?=\s) | \[\d{{1,5}}(?:,\d{{1,5}})?\]<std(?:out|err)>:
    | {_LEVEL}:[\w.]{{1,60}}:(?!:)
    | [\[(]?{_LEVEL}[\])]?(?:\s*+\|\s*+[\w.]{{1,60}}\s*+\|(?=\s))?+(?![\w=])
    | [\[(]?{_PLACE}[\])]?(?=[\s\]:|-]|$) | \(\w{{1,60}}:\d{{1,6}}\)(?=\s{_LEVEL})
    | \d{{2,20}}\s{_PLACE}\]                                      # absl: the thread, the file and the line
    | \[[A-Za-z_][\w.]{{0,60}}\](?=\s?[-:|]?\s?\[?(?:{_LEVEL}|{_WHEN}))
    | [A-Za-z_][\w.]{{0,60}}(?=\s*+[-|:]\s*+{_LEVEL}[\s:|\]-])
    | \[{_PLACE}(?::\w++)?\] | [\w.]{{3,80}}:\d{{1,6}}\s>>(?=\s)
    )""",
    re.VERBOSE,
)
ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]{0,4096}+(?:\x07|\x1b\\)?|[ -/]*+[0-~])")
_BAR: Final = r"(?<=%)\|[^|]*+\||\[[=>.#-]{5,}+\]|[━╸╺─█▏▎▍▌▋▊▉░]{3,}+(?:\s(?=[━╸╺─]))?+[━╸╺─█▏▎▍▌▋▊▉░]*+"
_PART: Final = re.compile(
    rf"(?P<bar>{_BAR})|(?P<time>(?<![\w.])(?:{_DATE},?[T_ ])?+{_CLOCK}|(?<![\w.])\d{{4}}-\d\d-\d\d(?!\w))"
    rf"|(?P<name>(?<=[A-Za-z_])\d++(?=\s?[:=]|[A-Za-z_]))|(?P<number>{NUMBER})"
)
DIGITS: Final = re.compile(r"[0-9](?<![A-Za-z_@0-9][0-9])[0-9]*")
"""Digits that are no part of a name. The digit comes before the look behind it: four times as fast."""
_PREFIX_CHARACTERS: Final = 400


def folded(line: str) -> str:
    """Return a line without colours and a logger's prefix (time, level, place, rank); white space is one blank."""
    text = " ".join((ANSI.sub("", line) if "\x1b" in line else line).split())
    start, head = 0, text[:_PREFIX_CHARACTERS]
    while found := _MARK.match(head, start):
        start = found.end()
    # a sign or a row of a table, unless a logger's mark is before
    while start and text[start - 1 : start] in "-|>," and not text[:start].strip("-|>, "):
        start -= 1
    return (text[start:].strip() if text[:start].strip("-|>,: ") else text) or text


def numbers_in(line: str) -> list[tuple[int, int, float]]:
    """Return start, end and value of each number of a folded line. Digits of a name (`acc1:`), times are none."""
    return [(start, end, number_of(line[start:end])) for start, end, is_number in varying_parts(line) if is_number]


def number_of(text: str) -> float:
    """Return the value of a printed number."""
    return float(text.replace(",", ""))


def shape_of(line: str) -> str:
    """Return a folded line with `#` for each number, time and bar."""
    return _PART.sub(lambda found: found[0] if found.lastgroup == "name" else "#", line)


def varying_parts(line: str) -> list[tuple[int, int, bool]]:
    """Return start and end of what differs between lines of one shape, and whether each is a number."""
    parts = ((*found.span(), found.lastgroup) for found in _PART.finditer(line))
    return [(start, end, kind == "number") for start, end, kind in parts if kind != "name"]
