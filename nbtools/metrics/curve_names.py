"""Names of curves, `split/name`, from the names that programs give to their numbers."""

import functools
import re
from typing import Final

SPLITS: Final = {
    **dict.fromkeys(("train", "training", "learn", "entrenamiento"), "train"),
    **dict.fromkeys(("val", "vali", "valid", "validation", "validate", "validating"), "eval"),
    **dict.fromkeys(("eval", "evaluation", "evaluating", "dev"), "eval"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_ALIASES: Final = {
    **dict.fromkeys(("acc", "acc1", "acc@1"), "accuracy"),
    **dict.fromkeys(("gnorm", "gradnorm", "gradient_norm"), "grad_norm"),
    **dict.fromkeys(("tok/s", "tokens/s", "tokens/sec", "tok/sec", "tok_per_s", "tok_per_sec"), "tokens_per_s"),
    **dict.fromkeys(("tokens_per_sec", "tokens_per_second"), "tokens_per_s"),
    **dict.fromkeys(("lr", "l.r"), "learning_rate"),
    "ppl": "perplexity",
    **{f"top-{k}": f"top{k}" for k in (1, 5)},
    **dict.fromkeys(("verlust", "perte", "perdita"), "loss"),
    **dict.fromkeys(("genauigkeit", "exactitud"), "accuracy"),
    "lernrate": "learning_rate",
}
_ALWAYS_TRAIN: Final = frozenset({"learning_rate", "epoch", "mfu", "grad_norm", "tokens_per_s"})
_NUMBERED: Final = re.compile(r"(?:_?\d{1,3})?(?:'s)?$")  # the end of a numbered split: valid_1's auc
_CAPITAL: Final = re.compile(r"(?<=[a-z]{2})(?=[A-Z])|(?<=[a-z])(?=[A-Z][a-z])")


def split_of(words: list[str], split: str | None) -> str | None:
    """Return the split that words such as `Validation:` give to what follows them."""
    for word in words:
        split = SPLITS.get(_NUMBERED.sub("", word.lower()), split)
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
def metric_of(name: str, split: str | None, *, is_full: bool = False) -> str:
    """Return `split/name` for a name as it was printed; the number of a split (`valid_1`) only if `is_full`."""
    tokens = parts_of(name)
    known = next((token for token in tokens if token in SPLITS), None)
    rest = [
        token
        for i, token in enumerate(tokens)
        if token != known
        and token not in tokens[i - 1 : i]  # loss[loss=1.2]
        and (is_full or not (token.isdigit() and i and tokens[i - 1] == known))
    ]
    plain = _ALIASES.get("_".join(rest)) or "_".join(_ALIASES.get(token, token) for token in rest) or "value"
    split = SPLITS[known] if known else "train" if plain in _ALWAYS_TRAIN else split or "train"
    return f"{split}/{without_mean(plain) if split != 'train' else plain}"


def without_mean(plain: str) -> str:
    """Return a name without a leading `avg_`: an evaluation has one value, which is a mean."""
    first, _, others = plain.partition("_")
    return others if others and first in ("mean", "avg", "average") else plain
