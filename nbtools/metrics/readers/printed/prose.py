"""Text with names before numbers, read from left to right."""

import re
from dataclasses import dataclass, field
from typing import Final

from nbtools.metrics.readers.printed.forms import is_backward, is_item, is_title, qualified_value, with_names_first
from nbtools.metrics.readers.printed.names import (
    COMPANIONS,
    COUNTERS,
    EPOCHS,
    IGNORED,
    LEADING,
    MEASURED,
    RATES,
    SOURCES,
    SPLITS,
    UNNAMED,
    is_counter,
    is_measured,
    metric_of,
    parts_of,
    split_of,
    split_words,
    words_of,
)
from nbtools.metrics.readers.printed.plain import plain_text
from nbtools.metrics.readers.printed.reading import Counter, Reading
from nbtools.rundir.json_files import MAX_STEP

_PERCENT: Final = re.compile(r"\d{1,3}%\|[^|]*+\|")
_TOKEN: Final = re.compile(
    r"""
      (?P<range> \d++-(?=\d++[a-z]) | (?<=\[)\d++-(?=\d++\]) )  # 1-50batch, Batch [0-100]
    | (?P<number> [-+]?+ (?: \d{1,3}(?:,\d{3}){1,5}+(?!\d|,\d)(?:\.\d++)?+ | \d++(?:\.\d*+)?+ | \.\d++ )
                (?:[eE][-+]?+\d++)?+ (?!\s*+\*\s*+[^\s\d])  # source code in a traceback: loss = 0.5 * a
                | [-+]?+ (?:nan|inf|infinity|NaN|Inf|Infinity|NAN|INF) (?![\w/.@-]) )
      (?: \s?/\s{0,6}+ (?P<total>\d++) (?![\w.]) )?
      (?P<unit> [A-Za-zµ%] [\w/%]*+ | (?:/[a-z]{1,6}+)++(?!\w|\s*+[=:])
        | \ (?:[a-z]{3,8}+/s(?:ec)?+|ms|s(?:ec(?:ond)?s?)?+)(?![\w/]|\s*+[=:]?+\s*+[-+.\d]) )?
    | (?P<word> [^\W\d] (?: [\w@/.%] | '(?=s\b) | -(?=[A-Za-z]) )*+ )
    | (?P<separator> [=:] )
    | (?P<open> [(\[] )
    | (?P<close> [)\]] )
    | (?P<gap> \ {2,}+ )
    | (?P<nothing> [ '"] )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ARTICLES: Final = words_of("the of on")
_NAME_AFTER: Final = re.compile(r"(?:\ [a-z]{1,20}){1,4}+\s?+[:=]")
_VALUE_AFTER: Final = re.compile(r"(?=[\s:])\s*+:?+\s*+[-+]?+\d*+\.\d")
_BEST: Final = words_of("best better improved")
_KINDS: Final = words_of("set dataset subset domain task")
_LABEL: Final = re.compile(r"[^|\[\u2500-\u259f\u27e6]*+")
_PLACES: Final = words_of("on at after")
_NO_NAMES: Final = words_of(
    "in to from at took of than with after is by for version until within and or a an the over x"
)
_TIMES: Final = frozenset(("ms", "s", "sec", "min", "h"))
_SECONDS: Final = ("s", "sec", "secs", "second", "seconds")
_BARS: Final = re.compile(r"it/s|s/it|%\||/step|━━|[\u2580-\u259f]{2}|\[[=>#.-]{6}")


@dataclass(slots=True)
class _Prose:
    """The state while the tokens of a line are read from left to right."""

    reading: Reading
    split: str | None = None
    """Of what follows."""
    metric_split: str | None = None
    """The same for metrics: `val loss 0.2, acc 0.9`."""
    words: list[str] = field(default_factory=list)
    is_explicit: bool = False
    has_gap: bool = False
    """Whether several spaces stand before the token: they end a name."""
    depth: int = 0
    num_numbers: int = 0
    loose: list[tuple[str, float, str | None, str]] = field(default_factory=list)
    """Names and fractions without anything between them: `recon 268.78 kl 25.62 loss 281.59`."""
    num_others: int = 0
    """Names with something else than a number: `optimizer=Adam`."""
    num_values: int = 0
    """Numbers with a fraction and an explicit name."""
    leading: list[int] = field(default_factory=list)
    """Whole numbers without a name at the beginning of the line."""
    is_rank: bool = False
    outer: list[str] = field(default_factory=list)
    """Words before a bracket: `f1-score (micro avg)  0.7`."""
    groups: list[list[str]] = field(default_factory=list)
    """The same for each open bracket: `train[loss=0.7, acc=0.9]`."""
    is_tag: bool = False
    """Whether a bracket began the line: `[Callback] lr = 0.1`."""
    kind: str = ""
    """What all values of the line are of: `Test (EMA): ...`, `set=alpaca ...`."""
    listed: list[str] = field(default_factory=list)
    """Name of the numbers of a list: `dice [0.6, 0.7]`."""
    place: int = 0
    """Of a number in the list."""
    subject: list[str] = field(default_factory=list)
    """Name of a value that follows a counter: `loss after iteration 100: 2.1`."""
    previous: str = ""
    """Name of the number before, for `loss train: 2.1, val: 2.2`."""


def read_prose(text: str) -> Reading:
    reading = Reading(is_bar=_BARS.search(text) is not None)
    plain = plain_text(text.replace("\t", "  "))
    if reading.is_bar:
        reading.label = _LABEL.match(plain)[0].rstrip(" 0123456789%./(").rstrip(": ")  # type: ignore[index]
        plain = _PERCENT.sub(" | ", plain)
    if (qualified := qualified_value(plain)) is not None:
        name, value = qualified
        reading.add(name, value, "eval")
        reading.is_measured = True
        return reading.finish()
    original, plain = plain, with_names_first(plain)
    state = _Prose(reading)
    for token in _TOKEN.finditer(plain):
        kind = token.lastgroup if not token["number"] else "number"
        if kind in ("nothing", "range", "gap"):
            state.has_gap |= kind == "gap"
            continue
        if kind == "word" and state.has_gap and not state.is_explicit:
            _drop_words(state)
        state.has_gap = False
        if kind == "separator":
            state.words, state.subject = state.words or state.subject, []
            state.is_explicit = bool(state.words)
            if not state.words and state.num_numbers == len(state.leading) == 1:
                state.is_rank = token[0] == ":"
        elif kind in ("open", "close"):
            state.depth += 1 if kind == "open" else -1
            if kind == "open":
                state.is_tag = not (state.words or state.num_numbers or reading.counters)
                state.outer = [*state.words]
                state.listed, state.place = ([*state.words] if token[0] == "[" else []), 0
                state.groups.append([] if state.is_explicit else state.outer)
            elif state.groups:
                state.groups.pop()
            state.listed = state.listed if kind == "open" else []
            if kind == "close" and not state.num_numbers and len(state.words) == 2 and state.words[0].lower() in SPLITS:
                state.kind = state.words.pop()
            if kind == "close" and state.is_tag and not state.num_numbers and token[0] == "]":
                _drop_words(state)
            if kind == "close" and not state.is_explicit and plain[token.end() : token.end() + 1] not in " :=[()":
                _drop_words(state)
        elif kind == "word" and not state.is_explicit:
            state.words.append(_word(token))
            if not reading._named and token[0].lower() in _BEST:
                state.kind = "best"
        elif kind == "number":
            _take(state, token)
        else:
            state.num_others += state.is_explicit
            if kind == "word" and state.is_explicit and state.words and state.words[-1].lower() in _KINDS:
                state.kind = _word(token)
            _drop_words(state)
            state.words = [_word(token)] if kind == "word" else []
    _drop_words(state)
    if (state.num_others > 2 and not reading.counters and reading.epoch is None) or plain.lstrip().startswith(
        "Namespace("
    ):
        return Reading()  # a configuration
    reading.split = reading.split or (state.split if not reading._named else None)
    _finish_counters(state)
    if reading.is_measured and (reading.counters or reading.epoch is not None):
        for name, value, split, full in state.loose:
            reading.add(name, value, split, full=full)
    # A line that counts itself and gives values after : or = is a row, whatever their names.
    reading.is_measured |= state.num_values > 0 and any(counter.preference < 4 for counter in reading.counters)
    reading.is_measured |= state.num_values > 1 and is_backward(original)
    is_rate = state.num_numbers - (reading.epoch is not None) == 1 and reading.named == {"train/learning_rate"}
    is_value = state.num_values > 0 or reading.is_measured
    reading.is_item = bool(reading._named) and not reading.counters and (is_rate or (is_value and is_item(plain)))
    stripped = plain.strip()
    if not reading._named and state.kind == "best" and stripped.endswith(":"):
        reading.is_heading, reading.label = True, "best"
    elif not reading._named and is_title(plain) and (reading.split or "summary" in stripped.lower()):
        reading.is_heading = True
        if "metrics" in stripped or "summary" in stripped:
            reading.label = "summary"
    return reading.finish()


def _word(token: re.Match[str]) -> str:
    return token[0] if token[0].lower() in COUNTERS else token[0].rstrip("./%")


def _drop_words(state: _Prose) -> None:
    if (split := split_of(state.words, None)) is not None:
        state.split = state.metric_split = split
    state.words, state.is_explicit = [], False


def _take(state: _Prose, token: re.Match[str]) -> None:
    reading, text = state.reading, token["number"]
    if text.lstrip("+-")[:1] in "niNI" and not (state.is_explicit or _has_value(state.words)):
        state.words.append(text)  # a word of a phrase: number of nan iterations
        return
    unit = (token["unit"] or "").strip()
    words, is_explicit, outer = state.words, state.is_explicit, state.outer
    state.words, state.is_explicit, state.outer = [], False, []
    if not words and unit in RATES and not reading.is_bar:
        words, is_explicit = [unit], True
    if state.listed and not state.place and words == state.listed:
        state.place = 1
    elif state.listed and not words and state.place and "." in text:
        words, is_explicit, state.place = [*state.listed, f"{state.place}"], True, state.place + 1
    is_phrase = len(words) > len(outer) > 0 == state.depth and not is_explicit and is_measured(outer[-1])
    if is_phrase and not is_measured(words[-1]) and not is_counter(words[-1]):
        words = outer
    if not state.num_numbers and not is_explicit and words and _PLACES.issuperset(word.lower() for word in words):
        words = []  # on 200: loss 0.5
    if words and not is_explicit and words[-1].lower() in _ARTICLES and _NAME_AFTER.match(token.string, token.end()):
        state.words = words  # accuracy on the 10000 test images: 81
        return
    short, full, rest = split_words(tuple(words), is_explicit)
    named = [word for word in words if word.lower() not in SPLITS]
    if token["total"] and state.depth > 0 and words and words[-1].lower() in SPLITS:
        named = []  # INFO Test: [3/10]
    is_first = not state.num_numbers
    state.num_numbers += 1
    if len(text) > 40 or len(full) > 100:
        return
    value = float(text.replace(",", ""))
    total = int(token["total"]) if token["total"] and len(token["total"]) < 16 else None
    is_whole = value == value and abs(value) <= MAX_STEP and value == int(value) and "." not in text and "e" not in text
    is_metric = bool(named) and is_measured(short)
    if (before := split_of(words if not named else rest, None)) is not None:
        state.split = state.metric_split = before
    if reading.split is None and not reading._named:
        reading.split = split_of([] if is_metric else words, state.split)
    if is_metric:
        state.metric_split = split_of(words, state.metric_split)
    if unit in ("k", "K"):
        value *= 1000
    if (state.kind != "best" and (is_whole and unit.lower() in COUNTERS)) or unit.lower() in EPOCHS:  # 1epoch, 50batch
        reading.count(unit, value, total)
        return
    if not named and is_whole:
        if total is not None and _is_progress(state, token, value, total):
            reading.counters.append(Counter(UNNAMED, int(value), total))
            return
        if words and is_first and is_explicit:  # Train: 3 [...]
            reading.epoch = value
            return
        if not words and total is None and state.num_numbers == len(state.leading) + 1 <= 2 and not unit:
            state.leading.append(int(value))
            return
    if short.lower() == "rank" and is_whole and total is None:
        reading.rank = int(value)
        return
    if named and is_whole and (tokens := parts_of(full)) and _announces(reading, tokens, int(value)):
        return
    if (
        state.kind != "best"
        and named
        and unit.lower() not in _TIMES
        and reading.count(short if is_explicit else named[-1], value, total)
    ):
        prior = next((words[:i] for i, word in enumerate(words) if word.lower() in ("at", "after")), [])
        state.subject = outer if is_phrase else prior
        return
    if is_metric and is_whole and not is_explicit and total is None and _VALUE_AFTER.match(token.string, token.end()):
        reading.counters.append(Counter(LEADING, int(value)))  # Train loss 20: 0.69
        state.words = words
        return
    lowered = short.lower()
    if lowered.startswith("best_") and is_counter(lowered[5:]):
        return
    if not words or lowered in IGNORED or lowered.endswith(SOURCES) or (not named and not is_explicit):
        return
    if not named:  # loss train: 2.1, val: 2.2
        reading.is_measured |= not is_whole
        if metric_of("_".join([*words, state.previous]), None) in reading.named:
            state.previous = ""  # Loss: 1.9, Train: 0.5, Test: 0.4
        short = full = "_".join([*words, state.previous]).strip("_")
    else:
        state.previous = metric_of(short, None).partition("/")[2] if is_metric else ""
    if state.kind and not short.lower().startswith(state.kind.lower()):
        short, full = f"{state.kind}_{short}", f"{state.kind}_{full}"
    if is_explicit or not (MEASURED | COMPANIONS).isdisjoint({lowered, *parts_of(short)}):
        suffix = "_ms" if unit.lower() == "ms" else "_s" if unit.lower() in _SECONDS else ""
        split = state.metric_split if is_measured(short) else state.split
        value = value / total if total else value
        state.num_values += is_explicit and not is_whole
        group = state.groups[-1] if state.groups else []
        if words[: len(group)] != group:
            full = "_".join([*group, full])
        reading.add(short + suffix, value, split, full=full + suffix, is_whole=is_whole and not total)
    elif not is_whole and unit in ("", "%") and not total and named and named[-1].lower() not in _NO_NAMES:
        state.loose.append((short, value, state.split, full))


def _announces(reading: Reading, tokens: tuple[str, ...], value: int) -> bool:
    """Take the number of all steps or epochs: `Total optimization steps = 60`, `Num Epochs = 3`."""
    if tokens[-1] in ("steps", "iterations", "iters") and {"total", "max"} & {*tokens}:
        reading.total_steps = value
    elif tokens[-1] == "epochs" and len(tokens) > 1:
        reading.num_epochs = value
    else:
        return False
    return True


def _has_value(words: list[str]) -> bool:
    """Whether the last word is that of a metric, so that `nan` after it is its value."""
    return bool(words) and (is_measured(words[-1]) or not COMPANIONS.isdisjoint(parts_of(words[-1])))


def _is_progress(state: _Prose, token: re.Match[str], value: float, total: int) -> bool:
    """Whether `3/10` without a name counts: in brackets, in a bar, or alone in its cell."""
    before = token.string[: token.start()].rstrip()
    return value <= total and (state.depth > 0 or state.reading.is_bar or not before or before[-1] in "|,:-]")


def _finish_counters(state: _Prose) -> None:
    """Give numbers without a name their meaning: of two, the first counts the loops around the second."""
    reading = state.reading
    unnamed = [counter for counter in reading.counters if counter.preference == UNNAMED]
    if len(unnamed) == 2 and not reading.is_bar and reading.epoch is None:
        reading.counters.remove(unnamed[0])
        reading.epoch, reading.num_epochs = float(unnamed[0].value), unnamed[0].total
    if not state.leading or reading.is_bar:
        return
    if len(state.leading) == 2 and reading.epoch is None:
        reading.epoch = float(state.leading[0])
        reading.counters.append(Counter(LEADING, state.leading[1]))
    elif not reading.counters and reading.epoch is None and reading._named:
        reading.counters.append(Counter(LEADING, state.leading[0]))
    elif state.is_rank and any(counter.preference < 4 for counter in reading.counters):
        reading.rank = state.leading[0]
