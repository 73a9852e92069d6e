"""The content of one printed line: metrics, counters and the split that it names.

Accepted are JSON, Python dicts and text with names before numbers. Nothing is executed, and the time is linear in the
length of the line.
"""

import re
from typing import Any, Final

from nbtools.metrics.readers.printed.dicts import dict_in, flattened
from nbtools.metrics.readers.printed.line_content import Reading
from nbtools.metrics.readers.printed.metric_words import LEADING, SPLITS, is_measured, parts_of
from nbtools.metrics.readers.printed.named_numbers import read_text

MAX_LINE_CHARACTERS: Final = 10_000

_RANK: Final = re.compile(
    r"\s*+(?:(?:\[?\d{4}-\d\d-\d\d[ T][\d:,.]++\]?[\s|:-]*+(?:info|debug|warning)?+[\s|:-]*+)?+"
    r"(?:\[(?:rank|default|trainer|worker|gpu|cuda:|process)[ _]?(\d{1,6})\]:?"
    r"|\[?(?:rank|gpu|process)[ _]?(\d{1,6})\]?\s*+[:|])"
    r"|\[\d++,(\d{1,6})\]<std(?:out|err)>:"
    r"|\[?\d{4}-\d\d-\d\d[ T][\d:,.]++\]?[\s|:-]*+(?:info|debug|warning)?+[\s|:-]*+(?:\[[\w./]++:\d++\])?+"
    r"\s*+\((\d{1,6})/\d{1,6}\)\s(?=.*(?:epoch|batch|step|iter)))",
    re.IGNORECASE,
)


def read_line(text: str) -> Reading | None:
    """Return what a line says; None if there is neither a metric nor a counter, split or total in it."""
    if len(text) > MAX_LINE_CHARACTERS:
        return None
    rank = _RANK.match(text)
    if rank:
        text = text[rank.end() :]
    content, start = dict_in(text)
    reading = read_text(text) if content is None else _read_dict(content, text[:start])
    if rank:
        reading.rank = int(next(group for group in rank.groups() if group))
    has_counter = bool(reading.counters) or reading.epoch is not None
    says = has_counter or reading.is_heading or reading.is_item or reading.total_steps or reading.num_epochs
    return reading if says or reading.is_row else None


def _read_dict(content: dict[Any, Any], before: str) -> Reading:
    numbers = {name: (value, is_whole) for name, value, is_whole in flattened(content)}
    reading = read_text(before) if before.strip() else Reading()
    if not any(counter.preference < LEADING for counter in reading.counters):
        reading._named.clear()  # else it is a row that continues: iter 50/152 total: 0.92 {'loss_box': 0.2}
    reading.metrics.clear()
    reading.is_measured = False
    is_summary = "train_runtime" in numbers  # transformers' last line: its train_loss is a mean over the run
    for name, (value, is_whole) in numbers.items():
        lowered = name.lower()
        if lowered in ("time", "timestamp") and value > 1e9:
            reading.coordinates["time"] = value
        elif not reading.count(name, value, None):
            mean = is_summary and lowered == "train_loss"
            reading.add("train_mean_loss" if mean else name, value, reading.split, is_whole=is_whole)
    reading.is_measured |= any(counter.preference < 3 for counter in reading.counters)
    splits = [not is_whole and parts_of(name)[:1] for name, (_, is_whole) in numbers.items()]
    reading.is_measured |= len(splits) > 1 and all(tokens and tokens[0] in SPLITS for tokens in splits)
    has_texts = any(isinstance(value, str) for value in content.values())
    if has_texts and not any(is_measured(name) for name in numbers):
        reading.counters.clear()  # a config: {'dataset': 'cifar10', 'timesteps': 1000}
        reading._named.clear()
    if not reading._named:
        reading.is_measured = False
    return reading.finish()
