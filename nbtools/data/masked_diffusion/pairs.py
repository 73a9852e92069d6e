"""Prompts and their answers, from a .jsonl file of {"prompt": ..., "answer": ...} lines. No torch."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbtools.data import corpus
from nbtools.errors import DataError, plural

_EVALUATION_SHARE = 0.1
_LONGEST_LINE = 16 * 2**20


@dataclass(frozen=True)
class Pair:
    """One line of the file."""

    prompt: str
    answer: str
    line: int
    """Counted from 1."""


def read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a file in their order; blank lines are left out.

    Raises:
        DataError: a line is not such an object, or one of its texts is missing or empty; file and line are named.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if len(line) > _LONGEST_LINE:
                    raise DataError(f"{path}, line {number}: longer than {_LONGEST_LINE:,} bytes; cut it up")
                if line.strip():
                    yield _parsed(path, number, line)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _parsed(path: Path, number: int, line: bytes) -> Pair:
    where, wanted = f"{path}, line {number}", 'write {"prompt": "...", "answer": "..."}'
    try:
        content = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: byte {error.start} (0x{error.object[error.start]:02x}) is not UTF-8; convert the file, for "
            f"instance with: iconv -f latin1 -t utf-8 {path.name}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({str(error)[:80]}); {wanted}") from None
    if not isinstance(content, dict):
        raise DataError(f"{where}: not an object; {wanted}")
    for name in ("prompt", "answer"):
        if name not in content:
            raise DataError(f"{where}: has no {name!r}; {wanted}")
        if not isinstance(content[name], str):
            raise DataError(f"{where}: {name!r} is {json.dumps(content[name])[:40]}, not text; {wanted}")
        if not content[name].strip():
            raise DataError(f"{where}: {name!r} is empty; {wanted}")
        if any("\ud800" <= character <= "\udfff" for character in content[name]):
            raise DataError(f"{where}: {name!r} holds half of a surrogate pair, which is no character; {wanted}")
    return Pair(content["prompt"], content["answer"], number)


def split_pairs(
    pairs: list[Pair], length: int, num_tokens: Callable[[Pair], int], test_fraction: float = 0.0
) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Divide the pairs that leave room for an end-of-text token in `length` for training, evaluation and test.

    A tenth of the prompts, at least one, is held out with all its pairs, `test_fraction` of them for the test. Prompts
    are chosen by hash, so that the choice depends neither on the order nor on what else is in the file.

    Raises:
        DataError: no pair fits, or all have the same prompt, so that none could be held out.
    """
    fitting = [pair for pair in pairs if num_tokens(pair) < length]
    if not fitting:
        raise DataError(
            f"none of {len(pairs)} pairs of prompt and answer fits into {length} tokens (sequence_length); raise it"
        )
    prompts = {pair.prompt for pair in fitting}
    if len(prompts) < 2:
        raise DataError(
            f"{plural(len(prompts), 'different prompt')}: at least two are needed, one of them to "
            "evaluate on; give more pairs"
        )
    ranked = sorted(prompts, key=lambda prompt: hashlib.sha256(prompt.encode()).digest())
    held_out = ranked[: max(1, round(_EVALUATION_SHARE * len(prompts)))]
    num_test = corpus.num_for_test(len(held_out), test_fraction)
    parts = prompts.difference(held_out), set(held_out[num_test:]), set(held_out[:num_test])
    train, evaluation, test = ([pair for pair in fitting if pair.prompt in part] for part in parts)
    return train, evaluation, test
