"""Tells from a metric's name whether a smaller or a greater value is better, and whether it is a time or a memory."""

import re
from typing import Literal

_LOWER = re.compile(r"(?:loss|losses|nll|ppl|perplexity|bpb|error|err|mse|mae|rmse|wer|cer)\d*")
_HIGHER = re.compile(
    r"(?:accuracy|acc|precision|recall|f|auc|auroc|bleu|rouge|meteor|exact|match|reward|return|score|iou|miou|dice"
    r"|mfu|throughput)\d*"
)
_NEITHER = re.compile(
    r"unigram|bigram|majority|human|best|self|copy|discriminator|generator|adversarial|judge|weight|scale|rate|norm"
    r"|epoch|wait|memory"
)
"""Levels to compare with, losses of opponents, settings, and measures whose goal depends on the task."""
_PACE = re.compile(r"(?:_per_|/)s(?:ec|econd)?$")


def direction_of(name: str) -> Literal["lower", "higher"] | None:
    """Return whether lower or higher values of a metric are better; None if unknown, as for a rate."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    if any(map(_NEITHER.fullmatch, words)):
        return None
    if any(map(_LOWER.fullmatch, words)):
        return "lower"
    return "higher" if any(map(_HIGHER.fullmatch, words)) or _PACE.search(name.lower()) else None


_COSTS = re.compile(
    r"(?:.*[_/])?(?:times?|timing|wall|elapsed|eta|duration|runtime|m?s|sec|seconds?|speed|throughput|[wutif]ps"
    r"|mem|memory|[gm]b)(?:[_/].*)?|data|.*[_/]cost"
)
"""Names of times, speeds and memory by one of their parts; `cost` alone is a loss."""


def is_cost(name: str) -> bool:
    """Whether a metric or a group of them is of what a step takes, in time or memory."""
    return _COSTS.fullmatch(name) is not None
