"""Names of curves, `split/name`, from the names that programs give to their numbers."""

import functools
import re
from typing import Final

SPLITS: Final = {
    **dict.fromkeys(("train", "training", "learn"), "train"),
    **dict.fromkeys(("val", "vali", "valid", "validation", "validate", "validating"), "eval"),
    **dict.fromkeys(("eval", "evaluation", "evaluating", "dev"), "eval"),
    **dict.fromkeys(("test", "testing"), "test"),
}
COUNTERS: Final = {
    **dict.fromkeys(("global_step", "train_step", "num_updates", "total_timesteps", "num_timesteps", "env_step"), 0),
    **dict.fromkeys(("step", "timesteps", "training_step", "global_iter", "current_steps", "env_steps"), 1),
    **dict.fromkeys(("iteration", "iter", "iters", "itr", "it", "update", "updates"), 2),
    **dict.fromkeys(("batch", "minibatch", "batch_idx", "samples", "consumed_samples"), 3),
    **dict.fromkeys(("episode", "round"), 5),
    "epoch": 9,
}
"""Names of counters: one of the whole run before one that starts over; `n/N` and a leading number come between."""
UNNAMED: Final = 4
LEADING: Final = 6
EPOCH: Final = 9
_ALIASES: Final = {
    **dict.fromkeys(("acc", "acc1", "acc@1"), "accuracy"),
    **dict.fromkeys(("gnorm", "gradnorm", "gradient_norm"), "grad_norm"),
    **dict.fromkeys(("tok/s", "tokens/s", "tokens/sec", "tok/sec", "tok_per_s", "tok_per_sec"), "tokens_per_s"),
    **dict.fromkeys(("tokens_per_sec", "tokens_per_second"), "tokens_per_s"),
    **dict.fromkeys(("lr", "l.r"), "learning_rate"),
    "ppl": "perplexity",
    **{f"top-{k}": f"top{k}" for k in (1, 5)},
}
_ALWAYS_TRAIN: Final = frozenset({"learning_rate", "epoch", "mfu", "grad_norm", "tokens_per_s"})
"""Quantities of the optimizer's step also in the row of an evaluation."""
_OF_OPTIMIZER: Final = re.compile(
    r"(?!(?:.*_)?(?:best|min|lowest)(?:_|$))(?:[!-~]*_)?"
    r"(?:loss(?:es)?|lr|learning_rate|grad(?:ient)?|throughput|per_s(?:ec|econd)?)(?:_.*)?"
)
"""Names that are of the optimizer's step if no split is named; every other name then has no split."""
_NUMBERED: Final = re.compile(r"(?:_?\d{1,3})?(?:'s)?$")  # the end of a numbered split: valid_1's auc
_MEAN: Final = re.compile(r"^(?:mean|avg|average)_(?=.)")
"""Words that an evaluation's metric need not have: it has one value, which is a mean."""
_CAPITAL: Final = re.compile(r"(?<=[a-z]{2})(?=[A-Z])|(?<=[a-z])(?=[A-Z][a-z])")


def counter_of(word: str) -> str | None:
    """Return the counter that a word names, also in the plural; the epoch is almost the same word in many languages."""
    word = word.lower()
    if re.fullmatch(r"[eé]po[ckq][a-z]{0,3}", word):
        return "epoch"
    return next((each for each in (word, word.removesuffix("s")) if each in COUNTERS), None)


def split_of(words: list[str], split: str | None) -> str | None:
    """Return the split that words such as `Validation:` give to what follows them."""
    for word in words:
        split = SPLITS.get(_NUMBERED.sub("", word.strip("():").lower().rpartition("-")[2]), split)  # [meta-val]
    return split


@functools.lru_cache(4096)
def parts_of(name: str) -> tuple[str, ...]:
    """Return the words of a name, in lower case."""
    lowered = name.lower()
    if lowered in _ALIASES:
        return (lowered,)
    spaced = name if name.isupper() else _CAPITAL.sub("_", name)
    return tuple(token for token in re.split(r"[\s_/.:()\-]+", spaced.lower().replace("'s", "")) if token)


@functools.lru_cache(4096)
def metric_of(name: str, split: str | None) -> str:
    """Return `split/name` for a name as it was printed; the name alone if neither it nor `split` says the split.

    With "" for the split it is open even for a loss. The number of a split (`valid_1`) is left out.
    """
    tokens = parts_of(name)
    known = next((token for token in tokens if token in SPLITS), None)
    rest = [
        token
        for i, token in enumerate(tokens)
        if token != known
        and token not in tokens[i - 1 : i]  # loss[loss=1.2]
        and not (token.isdigit() and i and tokens[i - 1] == known)
    ]
    plain = _ALIASES.get("_".join(rest)) or "_".join(_ALIASES.get(token, token) for token in rest) or "value"
    if known:
        split = SPLITS[known]
    elif plain in _ALWAYS_TRAIN or (split is None and _OF_OPTIMIZER.fullmatch(plain)):
        split = "train"
    if not split:
        return f"{plain}_value" if plain in ("step", "unit") else plain  # the first columns of a history's table
    return f"{split}/{plain if split == 'train' else _MEAN.sub('', plain)}"


def curve_of(name: str, curves: dict[str, str], split: str | None = None) -> str:
    """Return the curve of a column or tag of a file, and keep it in `curves`; two of them are never one curve."""
    if name not in curves:
        curve, taken = metric_of(name, split), curves.values()
        names = (curve, name, *(f"{name}_{number}" for number in range(2, len(curves) + 3)))
        curves[name] = next(each for each in names if each not in taken)
    return curves[name]
