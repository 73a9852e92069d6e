"""Metrics from the log of a script that only prints them.

The reader accepts JSON lines, Python dicts (`{'loss': 2.3, 'epoch': 0.1}`, as transformers prints them) and text with
names before numbers: `loss=2.3`, `step 20 loss 2.31`, `Epoch [1/10], Step [5/100], Loss: 0.5`, the postfix of a tqdm
bar. A line counts only if it names a measured value (a loss, an accuracy, …), since logs hold many other numbers.
Nothing is executed, and the time per line is linear in its length.
"""

import ast
import functools
import math
import re
import string
import threading
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from nbtools.metrics.history import History
from nbtools.rundir.json_files import MAX_STEP, strict_number
from nbtools.rundir.tail import Tail, terminal_text

_MAX_LINE_CHARACTERS: Final = 10_000
_MAX_LITERAL_CHARACTERS: Final = 4_000
_MAX_METRICS: Final = 200
_PIECE_BYTES: Final = 64 << 10
_FIRST_LOOK_S: Final = 10.0
"""Processor time for the existing log: enough for gigabytes of text, or two hundred thousand rows ..."""
_SHARE: Final = 0.04
"""... and share of a core for later output. Beyond it, only the end of each block is read."""
_SAMPLE_BYTES: Final = 16 << 10


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MEASURED: Final = _words(
    """loss losses nll ppl perplexity bpb accuracy acc acc1 acc5 acc@1 acc@5 f1 auc auroc bleu rouge mse mae rmse
    reward score iou miou"""
)
"""A line is a row of metrics if the name of one of its numbers has one of these words ..."""
_SETTING: Final = _words(
    """weight weights scale scaling scaler coef coefficient fn function type lambda factor threshold target smoothing
    alpha beta every steps interval patience num min delta tolerance"""
)
"""... and none of these."""
_COMPANIONS: Final = _words("lr rate norm gnorm gradnorm mfu time dt throughput tok/s tokens/s tokens/sec")
"""Read beside a metric even without `=` or `:`."""
_IGNORED: Final = _words("cuda device rank local_rank pid gpu seed line port host node eta version dtype")
_SPLITS: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "eval", "evaluation", "dev"), "eval"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_MEANS: Final = _words("mean avg average")
_QUALIFIERS: Final = _MEANS.union(
    _SPLITS, _words("best final total running smoothed ema aux learning grad gradient kl")
)
_STEPS: Final = _words("step global_step train_step iteration iter itr it num_updates update batch")
_EPOCHS: Final = _words("epoch ep")
_ALIASES: Final = {
    **dict.fromkeys(("acc", "acc1", "acc@1"), "accuracy"),
    **dict.fromkeys(("gnorm", "gradnorm", "gradient_norm"), "grad_norm"),
    **dict.fromkeys(("tok/s", "tokens/s", "tokens/sec", "tok/sec", "tok_per_s", "tok_per_sec"), "tokens_per_s"),
    **dict.fromkeys(("tokens_per_sec", "tokens_per_second"), "tokens_per_s"),
    "lr": "learning_rate",
    "ppl": "perplexity",
}
_ALWAYS_TRAIN: Final = _words("learning_rate epoch mfu grad_norm tokens_per_s")
_FILLERS: Final = _words("is was at of now to")
_SOURCES: Final = (".py", ".cpp", ".cc", ".cu", ".c", ".h")
_HINTS: Final = tuple(
    word.encode() for word in _MEASURED if not any(other != word and other in word for other in _MEASURED)
)
"""Text without any of these holds no row, unless it is a dict with its step."""
_SHAPE: Final = bytes.maketrans(
    string.ascii_uppercase.encode() + b"023456789\r", string.ascii_lowercase.encode() + b"1" * 9 + b"\n"
)
"""Maps lines that differ only in numbers to the same bytes: most output comes from one repeated statement."""

_WRAPPER: Final = re.compile(r"\b(?:tensor|array|(?:(?:np|numpy|jnp)\.)?float\d\d)\(\[?", re.IGNORECASE)
_BARE_NON_FINITE: Final = re.compile(r"(?<=[\s:,\[(])(-?)(nan|inf)(?=\s*[,}\])])")
_TOKEN: Final = re.compile(
    r"""
      (?P<skip> \d++:\d\d(?::\d\d)?+(?:[.,]\d++)? | \d{4}-\d\d-\d\d T? )
    | (?P<number> [-+]?+ (?: \d{1,3}(?:,\d{3}){1,5}+(?![\d,])(?:\.\d++)?+ | \d++(?:\.\d*+)?+ | \.\d++ )
                (?:[eE][-+]?+\d++)?+ (?!\s*+\*)  # source code in a traceback: loss = 0.5 * a
                | [-+]?+ (?:nan|inf|infinity|NaN|Inf|Infinity|NAN|INF) (?![\w/.@-]) )
      (?: \s?/\s? (?P<total>\d++) (?![\w.]) )?
      (?P<unit> [A-Za-zµ%] [\w/%]*+ )?
    | (?P<word> [^\W\d] (?: [\w@/.%] | -(?=[A-Za-z]) )*+ )
    | (?P<separator> [=:] )
    | (?P<nothing> [\s'"(\[]++ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER: Final = re.compile(
    r"[-+]?+(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?+\d++)?|[-+]?+(?:nan|inf|infinity)", re.IGNORECASE
)
_KEYWORD_AFTER_DIGIT: Final = re.compile(r"\d(?:and|else|for|if|in|is|not|or)\b")


@dataclass(slots=True)
class _Reading:
    """The content of one line."""

    metrics: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    total: int | None = None
    """Steps of the epoch or of the run, if the line holds them (`Step 5/100`)."""
    epoch: float | None = None
    is_bar: bool = False
    is_measured: bool = False
    coordinates: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float, split: str | None = None) -> None:
        """Add a number under its normalised name."""
        metric, is_measured = _metric(name, split)
        self.is_measured |= is_measured
        if len(self.metrics) < _MAX_METRICS:
            self.metrics[metric] = value

    def next_step(self, previous: int | None, taken: Container[str], previous_epoch: float | None = None) -> int:
        """Return the step of this row after a row of step `previous` that has the metrics `taken`."""
        clash = any(name in taken for name in self.metrics if name != "train/epoch")
        if previous is None:
            return 1 if self.step is None else self.step
        if self.step is None:  # the last step, unless that has one of these metrics
            return previous + clash
        is_later_epoch = None not in (self.epoch, previous_epoch) and self.epoch > previous_epoch  # type: ignore[operator]
        earliest = previous + (is_later_epoch and clash)
        if self.step >= earliest:
            return self.step
        if self.total and self.epoch is not None and self.step <= self.total:  # the counter starts over in every epoch
            for epoch in (int(self.epoch) - 1, int(self.epoch)):
                if earliest <= (step := epoch * self.total + self.step) <= MAX_STEP:
                    return step
        starts_over = self.is_bar or self.epoch is not None
        return previous + clash if starts_over else self.step


class LogMetrics:
    """The metrics in a growing log, as a history. May be used from several threads."""

    def __init__(self, path: str | Path) -> None:
        self._history = History()
        self._tail = Tail(path, carriage_returns=True)
        self._lock = threading.Lock()
        self._credit_s, self._looked = 0.0, -math.inf
        self._generation = 0
        self._step: int | None = None
        self._epoch: float | None = None
        self._at_step: set[str] = set()

    @property
    def history(self) -> History:
        """The history up to the end of the log. Reads only new output, and only samples of it if it is too much."""
        with self._lock:
            now = time.monotonic()
            self._credit_s = min(self._credit_s, 0) + min(_FIRST_LOOK_S, _SHARE * (now - self._looked))
            self._looked = now
            while block := self._tail.read():
                if self._tail.generation != self._generation:
                    self._generation, self._step, self._epoch = self._tail.generation, None, None
                if self._credit_s <= 0:
                    block = self._sampled(block)
                began = time.thread_time()
                rows = bytearray()  # not a list of rows: orjson allocates kilobytes per bytes object
                for row in self._rows(block):
                    strict = {key: strict_number(value) for key, value in row.items()}
                    rows += orjson.dumps(strict, option=orjson.OPT_APPEND_NEWLINE)
                if rows:
                    self._history.extend(bytes(rows), self._generation)
                self._credit_s -= time.thread_time() - began
            return self._history

    def _sampled(self, block: bytes) -> bytes:
        """Return the last lines of a block; skipped bytes are counted."""
        start = max(block.rfind(end, 0, max(0, len(block) - _SAMPLE_BYTES)) for end in (b"\n", b"\r")) + 1
        self._history.num_unread_bytes += start
        return block[start:]

    def _rows(self, block: bytes) -> Iterator[dict[str, float]]:
        for line in _candidates(block):
            reading = _read(terminal_text(line, _MAX_LINE_CHARACTERS))
            if reading is None:
                continue
            step = reading.next_step(self._step, self._at_step, self._epoch)
            self._epoch = reading.epoch if reading.epoch is not None else self._epoch
            if step != self._step:
                self._step, self._at_step = step, set()
            self._at_step.update(reading.metrics)
            yield {"step": step, **reading.coordinates, **reading.metrics}


def _candidates(block: bytes) -> Iterator[bytes]:
    """Yield the lines that may hold a row; most of a log is skipped in large pieces."""
    start, end = 0, len(block)
    while start < end:
        stop = start + _PIECE_BYTES
        stop = end if stop >= end else (block.find(b"\n", stop) + 1 or end)
        piece = block[start:stop]
        start = stop
        shapes = piece.translate(_SHAPE).split(b"\n")
        different = set(shapes)
        if _may_hold_row(b"\n".join(different)):
            promising = {shape for shape in different if _may_hold_row(shape)}
            for shape, line in zip(shapes, piece.replace(b"\r", b"\n").split(b"\n"), strict=True):
                if shape in promising and 4 < len(line) <= _MAX_LINE_CHARACTERS and _may_hold_row(line.lower()):
                    yield line


def _may_hold_row(lowered: bytes) -> bool:
    is_dict = b"{" in lowered and (b"step" in lowered or b"iter" in lowered)
    return is_dict or any(hint in lowered for hint in _HINTS)


# --- one line -----------------------------------------------------------------------------------


def _read(text: str) -> _Reading | None:
    if len(text) > _MAX_LINE_CHARACTERS:
        return None
    literal = _literal(text)
    if literal is not None:
        return _read_dict(literal)
    return _read_prose(_WRAPPER.sub(" ", text))


def _literal(text: str) -> dict[Any, Any] | None:
    """Return the JSON object or Python dict in a line; None if there is none."""
    start, end = text.find("{"), text.rfind("}") + 1
    if start < 0 or end <= start:
        return None
    body = text[start:end]
    if "'" in body:
        body = _BARE_NON_FINITE.sub(r"'\1\2'", body)
    try:  # without double quotes and escapes, a dict of strings and numbers becomes JSON by its quotes
        content = orjson.loads(body if '"' in body or "\\" in body else body.replace("'", '"'))
    except ValueError:
        # A literal is only parsed, never evaluated; the limits keep the parser's stack and time small.
        if len(body) > _MAX_LITERAL_CHARACTERS or "\\" in body or sum(map(body.count, "([{")) > 50:
            return None
        if _KEYWORD_AFTER_DIGIT.search(body):  # Python warns about 1or 2
            return None
        try:
            content = ast.literal_eval(body)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
    return content if isinstance(content, dict) else None


def _read_dict(content: dict[Any, Any]) -> _Reading | None:
    numbers = dict(_flattened(content))
    reading = _Reading()
    is_summary = "train_runtime" in numbers  # transformers' last line: its train_loss is a mean over the run
    for name, value in numbers.items():
        lowered = name.lower()
        if lowered in _STEPS:
            if reading.step is None and value == value and 0 <= value <= MAX_STEP:
                reading.step = int(value)
        elif lowered == "samples" or (lowered == "time" and value > 1e9):
            reading.coordinates[lowered] = value
        elif lowered in _EPOCHS:
            reading.epoch = value if math.isfinite(value) else None
            reading.add("epoch", value)
        else:
            reading.add("train_mean_loss" if is_summary and lowered == "train_loss" else name, value)
    has_values = any(name != "train/epoch" for name in reading.metrics)
    return reading if has_values and (reading.is_measured or reading.step is not None) else None


def _flattened(content: dict[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    for key, value in list(content.items())[:_MAX_METRICS]:
        if not isinstance(key, str) or not key or len(key) > 200:
            continue
        name = f"{prefix}/{key}" if prefix else key
        if isinstance(value, dict) and depth < 3:
            yield from _flattened(value, name, depth + 1)
        elif isinstance(value, str):
            if len(value) <= 40 and _NUMBER.fullmatch(value):
                yield name, float(value)
        elif isinstance(value, float) or (type(value) is int and abs(value) < 2**1000):
            yield name, float(value)


def _read_prose(text: str) -> _Reading | None:
    reading = _Reading(is_bar=any(mark in text for mark in ("it/s", "s/it", "%|", "/step")))
    split: str | None = None
    words: list[str] = []
    explicit = False
    for token in _TOKEN.finditer(text):
        if token["nothing"]:
            continue
        if token["separator"]:
            explicit = bool(words)
        elif token["word"] and not explicit:
            words.append(token["word"].rstrip("./%"))
        elif token["number"]:
            name, rest = _name(words)
            split = _split_of(rest, split)
            _take(reading, name, token, explicit, split)
            words, explicit = [], False
        else:
            split = _split_of(words, split)
            words, explicit = [token["word"].rstrip("./%")] if token["word"] else [], False
    return reading if reading.is_measured else None


def _name(words: list[str]) -> tuple[str, list[str]]:
    """Split the words before a number into the number's name and what stands before that."""
    while words and words[-1].lower() in _FILLERS:
        words.pop()
    start = len(words) - 1
    while start > max(len(words) - 3, 0) and words[start - 1].lower() in _QUALIFIERS:
        if words[start].lower() in _STEPS | _EPOCHS:
            break
        start -= 1
    return "_".join(words[max(start, 0) :]), words[: max(start, 0)]


def _split_of(words: list[str], split: str | None) -> str | None:
    """The split that words such as `Validation:` give to what follows them."""
    for word in words:
        split = _SPLITS.get(word.lower(), split)
    return split


def _take(reading: _Reading, name: str, token: re.Match[str], explicit: bool, split: str | None) -> None:
    if len(token["number"]) > 40 or len(name) > 100:
        return
    value = float(token["number"].replace(",", ""))
    total = int(token["total"]) if token["total"] and len(token["total"]) < 16 else None
    lowered = name.lower()
    before = token.string[max(token.start() - 9, 0) : token.start()].rstrip()
    if lowered in _STEPS or (not name and total and (reading.is_bar or before.endswith("["))):
        if reading.step is None and 0 <= value <= MAX_STEP:
            reading.step, reading.total = int(value), total
    elif lowered in _EPOCHS:
        if math.isfinite(value):
            reading.epoch = value
            reading.add("epoch", value)
    elif name and lowered not in _IGNORED and not lowered.endswith(_SOURCES):
        tokens = _tokens(name)
        if explicit or not (_MEASURED | _COMPANIONS).isdisjoint({lowered, *tokens}):
            unit = (token["unit"] or "").lower()
            suffix = f"_{unit}" if unit in ("ms", "s") else ""
            reading.add(name + suffix, value / total if total else value, split)


@functools.lru_cache(4096)
def _tokens(name: str) -> tuple[str, ...]:
    lowered = name.lower()
    if lowered in _ALIASES:
        return (lowered,)
    spaced = name if name.isupper() else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return tuple(token for token in re.split(r"[\s_/.\-]+", spaced.lower()) if token)


@functools.lru_cache(4096)
def _metric(name: str, split: str | None) -> tuple[str, bool]:
    """`split/name` for a name as it was printed, and whether it is something that is measured."""
    tokens = _tokens(name)
    is_measured = _SETTING.isdisjoint(tokens) and not _MEASURED.isdisjoint(tokens)
    known = next((token for token in tokens if token in _SPLITS), None)
    rest = [token for token in tokens if token != known]
    plain = _ALIASES.get("_".join(rest)) or "_".join(_ALIASES.get(token, token) for token in rest) or "value"
    split = _SPLITS[known] if known else "train" if plain in _ALWAYS_TRAIN else split or "train"
    first, _, others = plain.partition("_")
    return f"{split}/{others if others and first in _MEANS and split != 'train' else plain}", is_measured
