"""The words that resume a program: with a checkpoint among its arguments, and back."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CHECKPOINT: Final = "{checkpoint}"
"""Placeholder in `Program.resume`, a whole argument or a part, for the path of a checkpoint."""


def takes_path(words: Sequence[str]) -> bool:
    """Whether resume arguments contain a checkpoint's path; else the program finds the checkpoint itself."""
    return any(CHECKPOINT in word for word in words)


def with_checkpoint(args: Sequence[str], words: Sequence[str], checkpoint: Path) -> list[str]:
    """Return the arguments of a program with its resume arguments, which replace the same arguments.

    Resume arguments precede a `--`, after which all words are positional. The word after a flag that takes a value is
    that value, also `epoch=3.ckpt`: such words are keys only for a program with `key=value` resume arguments.
    """
    is_by_flags = any(map(_is_flag, words))
    names = {flag_name(word) for word in words if (_is_flag(word) if is_by_flags else _is_key(word))}
    valued = {flag_name(one) for one, two in itertools.pairwise((*words, "-x")) if "=" in one or not _is_flag(two)}
    end = args.index("--") if "--" in args else len(args)
    kept: list[str] = []
    is_value = False
    for word in args[:end]:
        is_flag, is_named = _is_flag(word), flag_name(word) in names
        is_same = is_named if is_flag else is_value or (not is_by_flags and _is_key(word) and is_named)
        kept += [] if is_same else [word]
        is_value = is_flag and is_same and "=" not in word and flag_name(word) in valued
    return [*kept, *(word.replace(CHECKPOINT, str(checkpoint)) for word in words), *args[end:]]


def flag_name(word: str) -> str:
    """Return the name of a flag or key: `resume_from` for `--resume-from=x`."""
    return word.partition("=")[0].lstrip("-+~").replace("-", "_").lower()


def _is_flag(word: str) -> bool:
    """Whether a word is a flag and not a negative number."""
    return re.match(r"--?[A-Za-z]", word) is not None


def _is_key(word: str) -> bool:
    """Whether a word is a `key=value` argument, as in hydra."""
    return re.match(r"[+~]*[A-Za-z_][\w.]*=", word) is not None
