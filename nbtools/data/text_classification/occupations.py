"""Generated occupational descriptions, as clerks wrote them into parish registers and censuses, and their codes.

The default data of text_classification: titles in three languages within the phrases of their time, many misspelt, some
with two occupations. The codes are after HISCO, the Historical International Standard Classification of Occupations
(van Leeuwen, Maas and Miles 2002), abridged: for demonstrations, not for research.
"""

import csv
import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

NUM_ROWS = 4800
"""Number of distinct descriptions of `rows`."""


@dataclass(frozen=True)
class Row:
    """An occupational description with its language and codes."""

    text: str
    lang: str
    codes: tuple[str, ...]


_Entry = Mapping[str, str]
"""A row of occupations.csv: code, relative frequency, and the titles in each language, with "|" between synonyms."""

_LANGS = ("en", "da", "de")
_TWO_CODES_SHARE = 0.15
_MISSPELT_SHARE = 0.5


@functools.cache
def entries() -> Sequence[_Entry]:
    """Return the occupations with their codes."""
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


@functools.cache
def _words(kind: str) -> Mapping[str, Any]:
    """Return the `phrases`, `places` or conjunctions (`and`) of each language, or letters that sound `alike`."""
    return orjson.loads(Path(__file__).with_suffix(".json").read_bytes())[kind]  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=4)
def rows(seed: int = 0, num_rows: int = NUM_ROWS) -> tuple[Row, ...]:
    """Return `num_rows` descriptions that all differ; a pure function of the seed."""
    random_ = random.Random(seed)
    found: dict[str, Row] = {}
    while len(found) < num_rows:
        row = _row(random_)
        found.setdefault(row.text, row)
    return tuple(found.values())


def _row(random_: random.Random) -> Row:
    lang = _LANGS[int(random_.random() * len(_LANGS))]
    first = _draw(random_)
    codes, text = [first["code"]], _phrase(random_, first, lang)
    is_work = not first["code"].startswith("-")
    if is_work and random_.random() < _TWO_CODES_SHARE:
        second = _draw(random_)
        while second["code"] == first["code"] or second["code"].startswith("-"):
            second = _draw(random_)
        codes.append(second["code"])
        text = _one_of(random_, _words("and")[lang]).format(_title(random_, first, lang), _title(random_, second, lang))
    if random_.random() < _MISSPELT_SHARE:
        for _ in range(1 + int(random_.random() * 2)):
            text = _misspelt(random_, text)
    return Row(" ".join(text.split()), lang, tuple(codes))


def _draw(random_: random.Random) -> _Entry:
    place = random_.random() * sum(int(entry["frequency"]) for entry in entries())
    for entry in entries():
        place -= int(entry["frequency"])
        if place < 0:
            return entry
    return entries()[-1]


def _title(random_: random.Random, entry: _Entry, lang: str) -> str:
    return _one_of(random_, entry[lang].split("|"))


def _phrase(random_: random.Random, entry: _Entry, lang: str) -> str:
    title = _title(random_, entry, lang)
    if entry["code"] in ("-1", "-2"):
        return title if random_.random() < 0.3 else ", ".join((title, _one_of(random_, _words("places")[lang])))
    return _one_of(random_, _words("phrases")[lang]).format(title, place=_one_of(random_, _words("places")[lang]))


def _misspelt(random_: random.Random, text: str) -> str:
    """Make one spelling mistake: a letter dropped, doubled, replaced by one that sounds alike, or swapped."""
    at = int(random_.random() * (len(text) - 1))
    kind = int(random_.random() * 4)
    letter, before, after = text[at], text[:at], text[at + 1 :]
    if letter == " ":
        return text
    if kind == 0:
        return (before + after).strip() or text
    if kind == 1:
        return before + letter + letter + after
    if kind == 2:
        return before + str(_words("alike").get(letter, letter)) + after
    return before + after[0] + letter + after[1:] if after[0] != " " else text


def _one_of(random_: random.Random, options: Sequence[str]) -> str:
    return options[int(random_.random() * len(options))]
