"""Groups of metrics that share a chart, and the names of charts and curves."""

import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np

from nbtools.metrics.direction import is_cost

# Names of the same quantity in different programs.
_THROUGHPUT = "tokens_per_s", "samples_per_s", "tokens_per_second", "samples_per_second"
_GROUPS = {"lr": "learning_rate", **dict.fromkeys(_THROUGHPUT, "throughput")}
TITLES = {
    "loss": "Loss",
    "return": "Return",
    "scores": "Scores",
    "learning_rate": "Learning rate",
    "throughput": "Throughput",
    "grad_norm": "Gradient norm",
    "copy_rate": "Copied from the training texts",
    "self_bleu": "Self-BLEU",
}
_SCORES = re.compile(r"(?:.*_)?(?:accuracy|precision|recall|f1|exact|unique)(?:_.*)?")
"""Shares between 0 and 1, higher is better; one panel holds them all."""
_RETURNS = re.compile(r"(?:.*_)?return(?:_.*)?")
_BASELINE = re.compile(r"(unigram|bigram|majority|human)_(loss|accuracy|copy_rate|self_bleu)|return_best")
"""A context-free model's value, a human one, or the best possible one: drawn as a level, not as a curve."""
_OUTSIDE = re.compile(r"(oracle|ngram)_loss")
"""The loss of generated text under an external likelihood, drawn beside the model's own loss."""
_IN_WORDS = "train/data_wait", "train/peer_wait", "system/peak_memory_gb"
"""Metrics that a panel shows beside the progress bar, not as a chart."""
_MOST_CURVES = 5
"""Most curves of a chart; a group with more metrics, or with labels that need more room, has further charts."""
_LABEL_ROOM = 378.0
"""Width of the plot area in pixels by which groups are divided, independent of the page."""
_SPLITS = ("train", "eval", "val", "valid", "validation", "test")


def grouped(history: Mapping[str, Sized]) -> list[tuple[str, list[str]]]:
    """Return the metrics by panel: the usual panels first, times, speeds and memory last."""
    groups: dict[str, list[str]] = {}
    for name in history:
        group = group_of(name)
        is_final_test = name.startswith("test/") and len(history[name]) == 1  # a number, not a curve
        if group != "epoch" and name not in _IN_WORDS and len(history[name]) and not is_final_test:
            groups.setdefault(group, []).append(name)
    order = {group: index for index, group in enumerate(TITLES)}
    shown = sorted(groups.items(), key=lambda item: order.get(item[0], len(order) + is_cost(item[0])))
    return [(group, _in_order(names)) for group, names in shown]


def _in_order(names: list[str]) -> list[str]:
    """Order training, evaluation, baselines; of many curves only two come before the baselines."""
    ordered = sorted(names, key=lambda name: ("train", "eval", "baseline").index(kind_of(name)))
    curves = [name for name in ordered if kind_of(name) != "baseline"]
    return [*curves[:2], *(name for name in ordered if name not in curves), *curves[2:]]


def divided(group: str, names: Sequence[str]) -> list[list[str]]:
    """Divide a group into the metrics of each of its charts: as few of like size as can label every curve."""
    parts = [list(names)]
    for most in range(_MOST_CURVES, 1, -1):
        parts = [part.tolist() for part in np.array_split(np.array(names, object), -(-len(names) // most))]
        room = legend_room(TITLES.get(group, group) + ", 1 of 9" * (len(parts) > 1), _LABEL_ROOM)
        if all(legend_width(labels_of(part, group)) <= room for part in parts):
            break
    return parts


def legend_room(title: str, width: float) -> float:
    """Return the pixels beside a chart's title; `width` is that of the plot area."""
    return width + 24 - 7.2 * len(title)


def legend_width(texts: Iterable[str]) -> float:
    """Return about the pixels that a legend with these entries needs."""
    return sum(35 + 6.2 * len(text) for text in texts) - 13


def _split(name: str) -> tuple[str, str]:
    """Split `eval/loss` or `eval_loss` into ("eval", "loss"); without a split the first part is empty."""
    for separator in ("/", "_"):
        split, found, rest = name.partition(separator)
        if found and split.lower() in _SPLITS:
            return split.lower(), rest
    return "", name


def section_of(name: str) -> str:
    """Return the part of a metric's name before a slash, if it is no split; empty without one."""
    section, slash, _ = _split(name)[1].partition("/")
    return section if slash else ""


def group_of(name: str) -> str:
    """Return the group of a metric: those of a run that share a chart."""
    rest = _split(name)[1].lower()
    if found := _BASELINE.fullmatch(rest):
        rest = found[2] or rest
    if _RETURNS.fullmatch(rest):
        return "return"
    if _OUTSIDE.fullmatch(rest):
        return "loss"
    return "scores" if _SCORES.fullmatch(rest) else _GROUPS.get(rest, rest)


def kind_of(name: str) -> Literal["train", "eval", "baseline"]:
    """Return how to draw a metric."""
    split, rest = _split(name)
    return "baseline" if _BASELINE.fullmatch(rest) else "eval" if split in _SPLITS[1:] else "train"


def labels_of(names: Sequence[str], group: str) -> list[str]:
    """Return the legend's name of each metric in the panel of its group; the whole name if two had the same."""
    labels = [label_of(name, group) for name in names]
    return [name if labels.count(label) > 1 else label for name, label in zip(names, labels, strict=True)]


def label_of(name: str, group: str) -> str:
    """Return the legend's name of a metric in the panel of its group, if no other one there has the same."""
    split, rest = _split(name)
    if (found := _BASELINE.fullmatch(rest) or _OUTSIDE.fullmatch(rest)) and found[1]:
        return found[1]
    if group in ("scores", "return"):
        words = [word for word in rest.split("_") if word != group]
        return " ".join((*((split,) if split == "train" or not words else ()), *words))
    if group == "throughput":
        return rest.replace("_per_second", "/s").replace("_per_s", "/s")
    return split if group == "loss" or split in _SPLITS[1:] else ""


def matches(text: str, patterns: Sequence[str]) -> bool:
    """Whether a metric or group matches one of the patterns, as a whole or from its part after the split on.

    A pattern without a wildcard matches a part of the name.
    """
    texts = text, _split(text)[1]
    wide = [pattern if set(pattern) & set("*?[") else f"*{pattern}*" for pattern in patterns]
    return any(fnmatchcase(each.lower(), pattern.lower()) for pattern in wide for each in texts)
