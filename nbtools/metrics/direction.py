"""Direction of a metric by its name: whether a smaller or a greater value is better."""

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
