"""Text with names before numbers, read from left to right."""

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nbtools.metrics.readers.printed.line_content import Counter, Reading
from nbtools.metrics.readers.printed.line_patterns import (
    RESULTS,
    is_aligned,
    is_indented,
    is_item,
    is_title,
    qualified_value,
    with_marked_names,
)
from nbtools.metrics.readers.printed.metric_words import (
    COMPANIONS,
    COUNTERS,
    EPOCHS,
    IGNORED,
    LEADING,
    MEANS,
    MEASURED,
    RATE,
    RATES,
    SOURCES,
    SPLITS,
    UNNAMED,
    is_counter,
    is_measured,
    is_setting,
    is_time,
    metric_of,
    parts_of,
    split_of,
    split_words,
    words_of,
)
from nbtools.metrics.readers.printed.strip_noise import NO_ROW, PATH, without_noise
from nbtools.rundir.json_files import MAX_STEP

_OBJECT: Final = re.compile(r"\b[A-Z]\w{1,60}\([a-z_]\w{0,60}=['\"\w.-]{1,60}+, [a-z_]")
"""An object as Python shows it: `Namespace(lr=0.1, epochs=3`."""
_PERCENT: Final = re.compile(r"\d{1,3}%(?:\|[^|]*+\|| [━─╸╺]++)")
_TOKEN: Final = re.compile(
    r"""
      (?P<duration> (?:\d++[dhm]\ ?){1,3}+\d++(?:\.\d++)?[ms](?!\w) )  # 1m 2s
    | (?P<range> \d++-(?=\d++[a-z]) | (?<=\[)\d++-(?=\d++\]) )  # 1-50batch, Batch [0-100]
    | (?P<number> [-+]?+ (?: \d{1,3}(?:,\d{3}){1,5}+(?!\d|,\d)(?:\.\d++)?+ | \d++(?:\.\d*+)?+ | \.\d++ )
                (?:[eE][-+]?+\d++)?+ (?!\s*+\*\s*+[^\s\d])  # source code in a traceback: loss = 0.5 * a
                | [-+]?+ (?:nan|inf|infinity|NaN|Inf|Infinity|NAN|INF) (?![\w/.@-]) )
      (?: (?:\s?/|\s++of(?=\s)) \s{0,6}+ (?P<total>\d++) (?!\w|\.\d) )?
      (?P<unit> [A-Za-zµ%] [\w/%]*+ | (?:/[a-z]{1,6}+)++(?!\w|\s*+[=:])
        | \ (?:[a-z]{3,8}+/s(?:ec)?+|ms|s(?:ec(?:ond)?s?)?+)(?![\w/]|\s*+[=:]?+\s*+[-+.\d]) )?
    | (?P<word> [^\W\d] (?: [\w@/.%] | '(?=s\b) | -(?=[A-Za-z]|\d{1,2}(?![\w.])) )*+ )
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
_COUNTED_AFTER: Final = re.compile(
    r"\ ((?:step|iteration|iter|update|batch|epoch)(?:s|es)?)\b(\s*+[:=]?\s*+\d)?", re.IGNORECASE
)
_THINGS_AFTER: Final = re.compile(r" [a-z]{3,20}s\b(?!\s*+[=:])")
_EPOCH_AND_STEP: Final = re.compile(r"\s*+\d++\|\d++\|\s*+[A-Za-z]")  # 2|63|Loss: 1.2
_MEMBER: Final = re.compile(r"\W*+(client|worker|actor|agent|site)[ _#]*+(\d{1,3})(?=[\s:|\])])[\])]?", re.IGNORECASE)
_RESUMES: Final = re.compile(
    r"\bresum(?:e[sd]?|ing)\b(?!\s?[:=])|\b(?:restor|load|continu)(?:ed|ing)\b.{0,80}?\b(?:from|checkpoint|ckpt|after|at)\b",
    re.IGNORECASE,
)
_CHANGE_AFTER: Final = re.compile(r"\s?(?:->|-->|=>|→)\s?[-+]?\d")
_AT: Final = re.compile(r"@ ?$")  # Eval @ 5000 steps: return 1.5
_SENTENCE_AFTER: Final = re.compile(r" [A-Z]")
_EPOCHS_PER_S: Final = re.compile(r"epochs?/s|s/epoch")
_NAME_ENDS: Final = re.compile(r"\)\s?[:=]")
_LIST_AFTER: Final = re.compile(r"\s*+\[")
_VALUE_AFTER: Final = re.compile(r"(?=[\s:])\s*+:?+\s*+[-+]?+\d*+\.\d")
_END_OF_CELL: Final = re.compile(r"\s*+(?:[|,]|$)")
_BEST: Final = words_of("best better improved")
_END: Final = re.compile(r"\b(?:end|finish|done|complete|took|time|summary|result|test|val|eval)", re.IGNORECASE)
_SUBJECT: Final = re.compile(r"\bfor ([A-Za-z][\w-]{1,20}):\s*+$")  # Evaluation results for bbox:
_RATIOS: Final = words_of("per each every")
_KINDS: Final = words_of("set dataset subset domain task")
_NO_NUMBER: Final = re.compile(r"\D*+")
_LABEL: Final = re.compile(r"[^|\[\u2500-\u259f\u27e6]*+")
_PLACES: Final = words_of("on at after")
_NO_NAMES: Final = words_of(
    "in to from at took of than with after is by for version until within and or a an the over x"
)
_TIMES: Final = frozenset(("ms", "s", "sec", "min", "h"))
_SECONDS: Final = ("s", "sec", "secs", "second", "seconds")
_OF_BAR: Final = re.compile(r"<[\d:?]|\dit \[|%")
"""Signs of a bar with `it/s`; the line of a logger has none."""
_BARS: Final = re.compile(r"%\||━━|[\u2580-\u259f]{2}|\[[=>#.-]{6}")


@dataclass(slots=True)
class _State:
    """The state while the tokens of a line are read from left to right."""

    reading: Reading
    split: str | None = None
    """The split of the numbers that follow."""
    metric_split: str | None = None
    """The split of the metrics that follow: `val loss 0.2, acc 0.9`."""
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
    num_of_splits: int = 0
    """Numbers among them whose names are of a split: `valid_1's l2: 8798.76`, `train-gamma-deviance:0.2`."""
    leading: list[int] = field(default_factory=list)
    """Whole numbers without a name at the beginning of the line."""
    is_rank: bool = False
    outer: list[str] = field(default_factory=list)
    """Words before a bracket: `f1-score (micro avg)  0.7`."""
    has_settings: bool = False
    """Whether a bracket holds settings: `Normalizer: (iou: 0.07)`."""
    is_tag: bool = False
    """Whether a bracket began the line: `[Callback] lr = 0.1`."""
    kind: str = ""
    """The subject of all values of the line: `Test (EMA): ...`, `set=alpaca ...`."""
    segment: list[str] = field(default_factory=list)
    """Further words of the first name between two bars: `i2t R@1 26.1 R@5 53.5 | t2i R@1 14.4`."""
    is_segment_new: bool = False
    """Whether no number has come since."""
    listed: list[str] = field(default_factory=list)
    """Name of the numbers of a list: `dice [0.6, 0.7]`."""
    place: int = 0
    """The place of a number in the list."""
    subject: list[str] = field(default_factory=list)
    """Name of a value that follows a counter: `loss after iteration 100: 2.1`."""
    counted: str = ""
    """The word behind a number that says what it counts: `loss after 100 steps: 2.1`."""
    previous: str = ""
    """Name of the number before, for `loss train: 2.1, val: 2.2`."""
    last: list[str] = field(default_factory=list)
    """Words that name the fraction before, for a second one: `D(G(z)): 0.23 / 0.06`."""
    slashed: list[str] = field(default_factory=list)
    """These words, behind the `/`."""
    samples: int = 0
    """Number of samples seen, which counts where nothing else does."""
    sign: str = ""
    """The separator before the number: `=` or `:`."""
    num_settings: int = 0
    """Names with a `=` of numbers that count nothing."""


def read_text(text: str) -> Reading:
    """Return what a line of text says."""
    has_speed = ("it/s" in text or "s/it" in text) and _OF_BAR.search(text) is not None
    reading = Reading(is_bar=has_speed or _BARS.search(text) is not None)
    plain = without_noise(text.replace("\t", "  "))
    if reading.is_bar:
        label = _LABEL.match(plain)[0]  # type: ignore[index]
        if label == plain:  # without a bar: 16/16 - 0s - 2ms/step - loss: 0.5
            label = _NO_NUMBER.match(plain)[0]  # type: ignore[index]
        reading.label = label.rstrip(" 0123456789%./(").rstrip(": ")
        plain = _PERCENT.sub(" | ", plain)
    if (qualified := qualified_value(plain)) is not None:
        name, value = qualified
        reading.add(name, value, "eval")
        reading.is_measured = True
        return reading.finish()
    plain = PATH.sub("file", plain)  # epoch=0-step=86.ckpt gives neither a name nor a number
    state = _State(reading)
    if member := _MEMBER.match(plain):
        state.kind, plain = f"{member[1]}_{member[2]}", plain[member.end() :]
    _scan(state, with_marked_names(plain))
    is_counted = bool(reading.counters) or reading.epoch is not None
    is_measured_too = state.num_values > 1 and reading.is_measured  # ts=12:00 level=info event=train loss=0.5 auc=0.8
    is_configuration = state.num_others > (6 if is_counted else 4 if is_measured_too else 2)
    if (reading._named and NO_ROW.search(plain)) or is_configuration or _OBJECT.search(plain):
        return Reading()
    if _RESUMES.search(plain) is not None:
        reading.resumes = True
        reading._named.clear()  # resuming from last.pt (val loss 1.64)
    _conclude(state, plain)
    return reading.finish()


def _scan(state: _State, text: str) -> None:
    """Take the tokens of a text, from left to right."""
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup if not token["number"] else "number"
        if kind in ("nothing", "range", "gap"):
            state.has_gap |= kind == "gap"
            continue
        if kind == "word" and state.has_gap and not state.is_explicit:
            _drop_words(state)
        state.has_gap = False
        if kind == "separator":
            state.words, state.subject = state.words or state.subject, []
            state.is_explicit, state.sign = bool(state.words), token[0]
            if not state.words and state.num_numbers == len(state.leading) == 1:
                state.is_rank = token[0] == ":"
        elif kind == "open":
            _open(state, token[0])
        elif kind == "close":
            _close(state, token[0], text[token.end() : token.end() + 1])
        elif kind == "word" and token[0] == state.counted:
            state.counted = ""
        elif kind == "word" and not state.is_explicit:
            state.words.append(_word(token))
            if not state.reading._named and token[0].lower() in _BEST:
                state.kind = "best"
        elif kind == "number":
            _take(state, token)
        else:
            state.num_others += state.is_explicit
            state.segment = [] if token[0] == "|" else state.segment
            slashed = state.last if token[0] == "/" else []
            if kind == "word" and state.is_explicit and state.words and state.words[-1].lower() in _KINDS:
                state.kind = _word(token)
            if kind == "word" and state.is_explicit and len(state.words) < 4:  # vs random: win rate 0.9
                state.segment = [word for word in state.words if word.lower() not in SPLITS]
                state.is_segment_new = True
            elif token[0] == "," and state.is_segment_new:  # head: Default, loss=0.5
                state.segment = []
            _drop_words(state)
            state.words, state.slashed = ([_word(token)] if kind == "word" else []), slashed
    _drop_words(state)


def _open(state: _State, bracket: str) -> None:
    state.depth += 1
    state.is_tag = not (state.words or state.num_numbers or state.reading.counters)
    state.outer = [*state.words]
    state.has_settings = state.is_explicit and bracket == "(" and is_setting("_".join(state.words))
    state.listed, state.place = ([*state.words] if bracket == "[" else []), 0


def _close(state: _State, bracket: str, following: str) -> None:
    state.depth -= 1
    state.listed, state.has_settings = [], False
    if not state.num_numbers and len(state.words) == 2 and state.words[0].lower() in SPLITS:
        state.kind = state.words.pop()
    is_end_of_tag = state.is_tag and not state.num_numbers and bracket == "]"
    if is_end_of_tag or (not state.is_explicit and following not in " :=[()"):
        _drop_words(state)


def _conclude(state: _State, plain: str) -> None:
    """Say what the line is, now that all of it is read."""
    reading = state.reading
    reading.split = reading.split or (state.split if not reading._named else None)
    reading.has_settings = state.num_settings > 0
    reading.is_indented = is_indented(plain)
    reading.is_aligned = is_aligned(plain)
    _finish_counters(state, plain)
    # A line that counts itself and gives values after : or =, or several fractions, is a row, whatever their names.
    if any(counter.preference < 4 for counter in reading.counters):
        reading.is_measured |= state.num_values > 0 or len(state.loose) > (1 if "|" in plain else 2)
    if reading.is_measured and (reading.counters or reading.epoch is not None or reading.split):
        for name, value, split, full in state.loose:
            reading.add(name, value, split, full=full)
    # So is the bar of a training with values, as a bar shows what a program measures: D=0.69, G=0.71
    reading.is_measured |= reading.is_bar and state.num_values > 0 and "epoch" in reading.label.lower()
    # So is one that begins with a count, if all of them are of a split: [10]  valid_1's l2: 8798.76
    reading.is_measured |= len(state.leading) == 1 and state.num_values == state.num_of_splits > 0
    is_rate = RATE in reading.named and (
        state.num_numbers - (reading.epoch is not None) == 1
        or all(name == RATE or is_time(name) or name == "train/grad_norm" for name in reading.named)
    )
    is_value = state.num_values > 0 or reading.is_measured
    reading.is_item = bool(reading._named) and not reading.counters and (is_rate or (is_value and is_item(plain)))
    if reading._named and reading.epoch is not None and state.split and not reading.is_measured and plain[-1:] == ":":
        reading._named.clear()  # Epoch 1 - Evaluation time (seconds): 2.1 - Train metrics:
        reading.split = state.split
    if reading._named:
        return
    num_counts = len(reading.counters) + (reading.epoch is not None)
    reading.begins_epoch = reading.epoch is not None and num_counts == state.num_numbers and not _END.search(plain)
    stripped = plain.strip()
    if state.kind == "best" and stripped.endswith(":"):
        reading.is_heading, reading.label = True, "best"
    elif is_title(plain, has_numbers=num_counts < state.num_numbers) and (reading.split or "summary" in plain.lower()):
        reading.is_heading = True
        reading.subject = subject[1] if (subject := _SUBJECT.search(plain)) else ""
        reading.epoch = None if RESULTS.match(plain) else reading.epoch


def _word(token: re.Match[str]) -> str:
    return token[0] if token[0].lower() in COUNTERS else token[0].rstrip("./%")


def _drop_words(state: _State) -> None:
    if (split := split_of(state.words, None)) is not None:
        state.split = state.metric_split = split
    state.words, state.is_explicit = [], False


class _Number(NamedTuple):
    """A number of the line, with the words that name it."""

    text: str
    value: float
    total: int | None
    """After a slash: `3/10`."""
    unit: str
    is_whole: bool
    words: list[str]
    is_explicit: bool
    outer: list[str]
    """Words before the bracket in which it is."""
    is_phrase: bool
    """Whether the words of the bracket do not name it: `loss after (iteration 100): 2.1`."""
    short: str
    full: str
    rest: list[str]
    named: list[str]
    """The words without those of splits."""

    @property
    def is_metric(self) -> bool:
        return bool(self.named) and is_measured(self.short)


def _take(state: _State, token: re.Match[str]) -> None:
    """Take a number: as a count, as the value of a metric, or not at all."""
    text = token["number"]
    is_alone = len(state.words) == 1 and _END_OF_CELL.match(token.string, token.end())
    if text.lstrip("+-")[:1] in "niNI" and not (state.is_explicit or is_alone or _has_value(state.words)):
        state.words.append(text)  # a word of a phrase: number of nan iterations
        return
    if state.depth and state.words and not state.is_explicit and _NAME_ENDS.match(token.string, token.end()):
        return  # FID (10k): 47.9
    is_part = bool(state.words) and not state.is_explicit and state.words[-1].lower() in _ARTICLES
    if is_part and _NAME_AFTER.match(token.string, token.end()):
        return  # accuracy on the 10000 test images: 81
    if _CHANGE_AFTER.match(token.string, token.end()):  # val loss 0.46 -> 0.43, which was told above
        _drop_words(state)
        return
    number = _named_number(state, token)
    is_first = not state.num_numbers
    state.num_numbers += 1
    if len(text) > 40 or len(number.full) > 100 or state.has_settings:
        return
    _follow_splits(state, number)
    is_counted = state.reading.epoch is not None or bool(state.reading.counters)
    if _counts(state, number, token, is_first=is_first):
        named = state.reading._named
        if not is_counted and all(is_whole and not is_measured(name) for name, *_, is_whole in named):
            named.clear()  # what counts the loops around the first counter: Run: 01, Epoch: 05
        return
    is_counter_within = number.is_metric and number.is_whole and not number.is_explicit and number.total is None
    if is_counter_within and _VALUE_AFTER.match(token.string, token.end()):
        state.reading.counters.append(Counter(LEADING, int(number.value)))  # Train loss 20: 0.69
        state.words = number.words
        return
    is_amount = number.is_explicit and number.is_whole and not number.is_metric
    if is_amount and _THINGS_AFTER.match(token.string, token.end()):
        return  # replay buffer: 7440 positions
    _add(state, number)


def _named_number(state: _State, token: re.Match[str]) -> _Number:
    """Return a number with the words that name it, which are then used up."""
    text, unit = token["number"], (token["unit"] or "").strip()
    if text[-1:] == "." and _SENTENCE_AFTER.match(token.string, token.end()):
        text = text[:-1]  # Scheduled epochs: 10. LR stepped per epoch.
    words, is_explicit, outer = state.words, state.is_explicit, state.outer
    state.words, state.is_explicit, state.outer = [], False, []
    if state.slashed and not words and "." in text:
        words, is_explicit = [*state.slashed, "2"], True
    state.last = words if is_explicit and "." in text else []
    if not words and unit in RATES and not state.reading.is_bar:
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
    named = [word for word in words if word.lower() not in SPLITS]
    if token["total"] and state.depth > 0 and words and words[-1].lower() in SPLITS:
        named = []  # INFO Test: [3/10]
    value = float(text.replace(",", ""))
    total = int(token["total"]) if token["total"] and len(token["total"]) < 16 else None
    is_whole = value == value and abs(value) <= MAX_STEP and value == int(value) and "." not in text and "e" not in text
    value *= 1000 if unit in ("k", "K") else 1
    short, full, rest = split_words(tuple(words), is_explicit)
    if not is_whole and is_counter(short) and is_measured(full):
        short = full  # loss (batch)=1.25
    return _Number(text, value, total, unit, is_whole, words, is_explicit, outer, is_phrase, short, full, rest, named)


def _follow_splits(state: _State, number: _Number) -> None:
    """Note the splits that the words before a number name, for it and for what follows."""
    reading = state.reading
    if (before := split_of(number.rest if number.named else number.words, None)) is not None:
        state.split = state.metric_split = before
    if reading.split is None and not reading._named:
        reading.split = split_of([] if number.is_metric else number.words, state.split)
    if number.is_metric:
        state.metric_split = split_of(number.words, state.metric_split)


def _counts(state: _State, number: _Number, token: re.Match[str], *, is_first: bool) -> bool:
    """Take a number that counts steps or epochs, tells how many there are, or is a rank; return whether it does."""
    reading, words, total, unit = state.reading, number.words, number.total, number.unit.lower()
    is_best = state.kind == "best"
    counted = _COUNTED_AFTER.match(token.string, token.end()) if number.is_whole else None
    # Training (300 / 600 Steps)
    if counted and total and not counted[2] and not number.is_explicit and not number.is_metric:
        state.counted = counted[1]
        return reading.count("epoch" if counted[1].lower() == "epochs" else counted[1], number.value, total)
    if counted and counted[1].lower() == "epochs" and re.search(r"train\w* for$", " ".join(words), re.IGNORECASE):
        reading.num_epochs = int(number.value)  # Start training for 5 epochs
        return True
    if counted and (words[-1:] in (["after"], ["at"]) or _AT.search(token.string, 0, token.start())):
        state.subject, state.counted = words[:-1], counted[1]  # loss after 100 steps: 2.1
        # 41.2 mIoU at 500 iter is the best
        return words[-1:] == ["at"] or reading.count(counted[1], number.value, total)
    if (unit in COUNTERS and number.is_whole and not is_best) or unit in EPOCHS:  # 1epoch, 50batch
        return reading.count(unit, number.value, total) or True
    if not number.named and number.is_whole:
        if total is not None and _is_progress(state, token, number.value, total):
            reading.counters.append(Counter(UNNAMED, int(number.value), total))
            return True
        if words and is_first and number.is_explicit and _LIST_AFTER.match(token.string, token.end()):  # Train: 3 [1/9]
            reading.epoch = number.value
            return True
        if not words and total is None and state.num_numbers == len(state.leading) + 1 <= 2 and not unit:
            state.leading.append(int(number.value))
            return True
    if number.short.lower() == "rank" and number.is_whole and total is None:
        reading.rank = int(number.value)
        return True
    tokens = parts_of(number.full)
    if number.named and number.is_whole and tokens and _announces(reading, tokens, int(number.value)):
        return True
    name = number.short if number.is_explicit or not number.named else number.named[-1]
    if is_counter(name) and not _RATIOS.isdisjoint(word.lower() for word in words[-2:-1]):
        return True  # tokens per step: 524288
    if is_best or not number.named or unit in _TIMES or not reading.count(name, number.value, total, unit=unit):
        return False
    prior = next((words[:i] for i, word in enumerate(words) if word.lower() in ("at", "after")), [])
    state.subject = number.outer if number.is_phrase else prior
    return True


def _add(state: _State, number: _Number) -> None:
    """Add a number as a metric, if its name is that of one, or explicit."""
    reading, short, full, words = state.reading, number.short, number.full, number.words
    lowered = short.lower()
    if (lowered[:5] == "best_" or state.kind == "best") and is_counter(lowered.removeprefix("best_")):
        return
    if not number.is_explicit and [word.lower() for word in number.rest[-1:]] == ["from"]:
        return  # Start training from score -6.3
    if not words or lowered in IGNORED or lowered.endswith(SOURCES) or not (number.named or number.is_explicit):
        return
    if [*map(str.lower, number.named)] == ["samples"] and number.is_explicit and number.is_whole and number.value > 0:
        state.samples = int(number.value)
        return
    state.is_segment_new = False
    state.num_settings += number.is_explicit and state.sign == "="
    if lowered in MEANS and state.previous:  # Loss 0.5 (avg 0.6)
        short = full = f"mean_{state.previous}"
    if not number.named:  # loss train: 2.1, val: 2.2
        reading.is_measured |= not number.is_whole
        if metric_of("_".join([*words, state.previous]), None) in reading.named:
            state.previous = ""  # Loss: 1.9, Train: 0.5, Test: 0.4
        short = full = "_".join([*words, state.previous]).strip("_")
    else:
        state.previous = metric_of(short, None).partition("/")[2] if number.is_metric else ""
    if state.kind and not short.lower().startswith(state.kind.lower()):
        short, full = f"{state.kind}_{short}", f"{state.kind}_{full}"
    if number.is_explicit or not (MEASURED | COMPANIONS).isdisjoint({lowered, *parts_of(short)}):
        unit = number.unit.lower()
        suffix = "_ms" if unit == "ms" else "_s" if unit in _SECONDS else ""
        split = state.metric_split if is_measured(short) else state.split
        if number.is_explicit and not number.is_whole:
            state.num_values += 1
            if state.leading:
                state.num_of_splits += not SPLITS.keys().isdisjoint(parts_of("_".join(words)))
        if own := [word for word in number.rest if word.lower() not in SPLITS]:
            state.segment = own
        elif state.segment and short == full:
            full = "_".join([*state.segment, full])
        value, is_whole = number.value / (number.total or 1), number.is_whole and not number.total
        reading.add(short + suffix, value, split, full=full + suffix, is_whole=is_whole)
    elif not (number.is_whole or number.total) and number.unit in ("", "%") and number.named[-1] not in _NO_NAMES:
        state.loose.append((short, number.value, state.split, full))


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


def _is_progress(state: _State, token: re.Match[str], value: float, total: int) -> bool:
    """Whether `3/10` without a name counts: in brackets, in a bar, or alone in its cell."""
    before = token.string[: token.start()].rstrip()
    return value <= total + 1 and (state.depth > 0 or state.reading.is_bar or not before or before[-1] in "|,:-]")


def _finish_counters(state: _State, plain: str) -> None:
    """Give numbers without a name their meaning: of two, the first counts the loops around the second."""
    reading = state.reading
    unnamed = [counter for counter in reading.counters if counter.preference == UNNAMED]
    reading.is_of_epochs = reading.is_bar and _EPOCHS_PER_S.search(plain) is not None
    if len(unnamed) == 2 and not reading.is_bar and reading.epoch is None:
        reading.counters.remove(unnamed[0])
        reading.epoch, reading.num_epochs = float(unnamed[0].value), unnamed[0].total
    if reading.is_bar and len(state.leading) == 2 and _EPOCH_AND_STEP.match(plain):
        reading.epoch = float(state.leading[0])
        reading.counters.append(Counter(COUNTERS["step"], state.leading[1]))
    if state.samples and not reading.counters and reading.epoch is None and reading.is_measured:
        reading.counters.append(Counter(COUNTERS["episode"], state.samples))
    if not state.leading or reading.is_bar:
        return
    if len(state.leading) == 2 and reading.epoch is None and reading._named:  # loading x.npy ... (5000, 64): a shape
        reading.epoch = float(state.leading[0])
        reading.counters.append(Counter(LEADING, state.leading[1]))
    elif not reading.counters and reading.epoch is None and reading._named:
        reading.counters.append(Counter(LEADING, state.leading[0]))
    elif state.is_rank and any(counter.preference < 4 for counter in reading.counters):
        reading.rank = state.leading[0]
