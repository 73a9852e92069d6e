"""Generated occupational descriptions, as clerks wrote them into parish registers and censuses, and their codes.

The default data of text_classification: titles in three languages within the phrases of their time, many misspelt, some
with two occupations. The codes are after HISCO, the Historical International Standard Classification of Occupations
(van Leeuwen, Maas and Miles 2002), abridged: for demonstrations, not for research.
"""

import functools
import random
from dataclasses import dataclass

NUM_ROWS = 4800
"""Number of distinct descriptions of `rows`."""


@dataclass(frozen=True)
class Row:
    """An occupational description with its language and codes."""

    text: str
    lang: str
    codes: tuple[str, ...]


# Code, relative frequency, and the titles in English, Danish and German; "|" stands between synonyms.
_TITLES: tuple[tuple[str, int, str, str, str], ...] = (
    ("61110", 8, "farmer|yeoman", "gaardmand|gaardejer", "bauer|landwirt"),
    ("61115", 6, "cottager|smallholder", "husmand|boelsmand", "kätner"),
    ("62120", 6, "farm servant|ploughman", "tjenestekarl|bondekarl", "knecht"),
    ("99910", 7, "labourer|labouring man", "arbejdsmand", "arbeiter"),
    ("99920", 5, "day labourer", "daglejer", "tagelöhner"),
    ("54020", 6, "housemaid|domestic servant", "tjenestepige|husjomfru", "dienstmagd"),
    ("83110", 5, "blacksmith|smith", "smed|grovsmed", "schmied"),
    ("95410", 5, "carpenter|house carpenter", "tømrer|tømmermand", "zimmermann"),
    ("80110", 5, "shoemaker|cordwainer", "skomager", "schuhmacher"),
    ("79100", 5, "tailor", "skrædder", "schneider"),
    ("75400", 5, "weaver|hand loom weaver", "væver", "weber"),
    ("95120", 4, "bricklayer", "murer", "maurer"),
    ("81120", 3, "cabinet maker|joiner", "snedker", "tischler"),
    ("77610", 3, "baker|bread baker", "bager", "bäcker"),
    ("77310", 3, "butcher", "slagter", "fleischer"),
    ("77120", 3, "miller|corn miller", "møller", "müller"),
    ("98135", 5, "sailor|seaman|mariner", "matros|sømand", "matrose"),
    ("04217", 3, "ship captain|master mariner", "skipper|skibsfører", "schiffskapitän"),
    ("64100", 4, "fisherman", "fisker", "fischer"),
    ("41025", 5, "merchant|shopkeeper|grocer", "købmand|høker", "kaufmann|krämer"),
    ("51030", 2, "innkeeper|publican", "kromand|værtshusholder", "gastwirt"),
    ("98620", 3, "coachman|carter", "kusk|vognmand", "kutscher|fuhrmann"),
    ("13320", 3, "schoolmaster|teacher", "skolelærer|degn", "lehrer"),
    ("14120", 2, "clergyman|vicar", "sognepræst", "pfarrer"),
    ("06105", 2, "physician|medical doctor", "læge", "arzt"),
    ("07310", 2, "midwife", "jordemoder", "hebamme"),
    ("07110", 2, "sick nurse|hospital nurse", "sygeplejerske", "krankenschwester"),
    ("33110", 2, "bookkeeper|accounts keeper", "bogholder", "buchhalter"),
    ("39310", 2, "office clerk|clerk", "kontorist", "schreiber"),
    ("58340", 4, "soldier|private in the army", "soldat|landsoldat", "musketier"),
    ("58220", 2, "constable|policeman", "politibetjent", "polizist"),
    ("71105", 3, "coal miner|miner", "bjergmand", "bergmann"),
    ("56010", 2, "washerwoman|laundress", "vaskekone", "wäscherin"),
    ("62740", 2, "gardener", "gartner", "gärtner"),
    ("-1", 3, "not given|unknown", "ukendt", "unbekannt"),
    ("-2", 3, "no occupation|without work", "uden erhverv", "ohne beruf"),
    ("-3", 4, "wife|widow|daughter", "hustru|enke", "ehefrau|witwe"),
)

CODES: tuple[str, ...] = tuple(sorted(code for code, *_ in _TITLES))
"""Every code that a description can have."""

_LANGS = ("en", "da", "de")
_PHRASES = {
    "en": (
        "{}", "{}", "{}", "{} in {place}", "{} of {place}", "{} at {place}", "a {}", "former {}", "{}, {place}",
        "master {}", "lives as {}", "{} his own account", "journeyman {}", "retired {}", "{} for wages",
    ),
    "da": (
        "{}", "{}", "{}", "{} i {place}", "{} paa {place}", "forhen {}", "{}, {place}", "lever som {}", "{}s lærling",
        "arbejder som {}", "afskediget {}", "{} ved {place}", "ernærer sig som {}",
    ),
    "de": (
        "{}", "{}", "{}", "{} in {place}", "{} zu {place}", "ehemaliger {}", "{}, {place}", "lebt als {}", "{}geselle",
        "{}meister", "arbeitet als {}", "{} aus {place}",
    ),
}  # fmt: skip
_PLACES = {
    "en": ("york", "the parish", "hull", "leeds", "st mary", "kent", "this town", "the mill", "oldham", "the hall"),
    "da": ("aarhus", "sognet", "odense", "ribe", "byen", "godset", "viborg", "møllen", "thisted", "holmen"),
    "de": ("altona", "kiel", "der stadt", "husum", "dem gut", "lübeck", "flensburg", "dem dorf", "bremen", "stade"),
}
_AND = {"en": ("{} and {}", "{} & {}", "{}, also {}"), "da": ("{} og {}", "{} & {}"), "de": ("{} und {}", "{} u. {}")}
_ALIKE = {
    "a": "e", "e": "a", "i": "y", "y": "i", "o": "u", "u": "o", "c": "k", "k": "c", "s": "z", "z": "s", "v": "w",
    "w": "v", "d": "t", "t": "d", "b": "p", "p": "b", "m": "n", "n": "m", "g": "k", "f": "v", "æ": "e", "ø": "o",
    "ä": "e", "ö": "o", "ü": "u",
}  # fmt: skip
_TWO_CODES_SHARE = 0.15
_MISSPELT_SHARE = 0.5


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
    codes, text = [first[0]], _phrase(random_, first, lang)
    is_work = not first[0].startswith("-")
    if is_work and random_.random() < _TWO_CODES_SHARE:
        second = _draw(random_)
        while second[0] == first[0] or second[0].startswith("-"):
            second = _draw(random_)
        codes.append(second[0])
        text = _one_of(random_, _AND[lang]).format(_title(random_, first, lang), _title(random_, second, lang))
    if random_.random() < _MISSPELT_SHARE:
        for _ in range(1 + int(random_.random() * 2)):
            text = _misspelt(random_, text)
    return Row(" ".join(text.split()), lang, tuple(codes))


def _draw(random_: random.Random) -> tuple[str, int, str, str, str]:
    place = random_.random() * sum(entry[1] for entry in _TITLES)
    for entry in _TITLES:
        place -= entry[1]
        if place < 0:
            return entry
    return _TITLES[-1]


def _title(random_: random.Random, entry: tuple[str, int, str, str, str], lang: str) -> str:
    return _one_of(random_, tuple(str(entry[2 + _LANGS.index(lang)]).split("|")))


def _phrase(random_: random.Random, entry: tuple[str, int, str, str, str], lang: str) -> str:
    title = _title(random_, entry, lang)
    if entry[0] in ("-1", "-2"):
        return title if random_.random() < 0.3 else f"{title}, {_one_of(random_, _PLACES[lang])}"
    return _one_of(random_, _PHRASES[lang]).format(title, place=_one_of(random_, _PLACES[lang]))


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
        return before + _ALIKE.get(letter, letter) + after
    return before + after[0] + letter + after[1:] if after[0] != " " else text


def _one_of(random_: random.Random, options: tuple[str, ...]) -> str:
    return options[int(random_.random() * len(options))]
