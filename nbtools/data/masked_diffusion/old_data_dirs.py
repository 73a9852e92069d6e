"""The text in a `data_dir` folder of an older program, put together again from its windows.

Such a folder has train_data.npy and val_data.npy (rows of character ids), vocab.json and metadata.json. Its windows
overlap by half and were divided at random, so that most of the validation was trained on; the text can be split again.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nbtools.data.masked_diffusion.prepared import METADATA, TRAIN, VALIDATION, VOCABULARY
from nbtools.errors import DataError, plural, shown

_SPECIAL = ("bos_token", "eos_token", "pad_token", "mask_token")


def is_older(folder: Path) -> bool:
    """Whether a folder has the files of an older program."""
    with contextlib.suppress(OSError):  # a name that is too long
        return all((folder / name).is_file() for name in (TRAIN, VALIDATION, METADATA, VOCABULARY))
    return False


def write_older_texts(folder: Path, target: Path) -> str:
    """Write the text of a folder into files in `target`, and return a sentence on what was found.

    Raises:
        DataError: see `older_texts`.
    """
    texts, num_repeated = older_texts(folder)
    for number, text in enumerate(texts):
        (target / f"{number:06}.txt").write_bytes(text.encode())
    found = f"{sum(map(len, texts)):,} characters in {plural(len(texts), 'piece')}"
    repeated = f"; {num_repeated:,} windows repeat another: repeated text may be shorter than it was"
    return f"{folder}: {found}, from overlapping windows{repeated if num_repeated else ''}"


def older_texts(folder: Path) -> tuple[list[str], int]:
    """Return the text of a folder, in pieces where windows are missing, and the number of windows that repeat another.

    How often a window is repeated in a row cannot be known, since the windows are in no order.

    Raises:
        DataError: it is no such folder, or its tokens are not characters.
    """
    if not is_older(folder):
        names = ", ".join((TRAIN, VALIDATION, METADATA, VOCABULARY))
        raise DataError(f"{shown(str(folder))}: is no data_dir folder of an older program, which has {names}")
    characters, special = _vocabulary(folder)
    rows: list[str] = []
    length = 0
    for name in (TRAIN, VALIDATION):
        try:
            ids_NT = np.load(folder / name, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{folder / name}: cannot be read ({str(error)[:80]}); prepare from the text") from None
        if ids_NT.ndim != 2 or ids_NT.dtype.kind not in "iu":
            raise DataError(f"{folder / name}: holds no rows of token ids; prepare from the text: nbtools prepare TEXT")
        length = ids_NT.shape[1]
        for ids_T in ids_NT.tolist():
            kept = [number for number in ids_T if number not in special]
            unknown = next((number for number in kept if number not in characters), None)
            if unknown is not None:
                raise DataError(f"{folder / name}: id {unknown} is not in {VOCABULARY}; prepare from the text")
            rows.append("".join(characters[number] for number in kept))
    windows = [row for row in rows if row]
    return joined(windows, length // 2), len(windows) - len(set(windows))


def _vocabulary(folder: Path) -> tuple[dict[int, str], set[int]]:
    """Return the character of each id, and the ids of special tokens."""
    try:
        contents = [json.loads((folder / name).read_text(encoding="utf-8")) for name in (VOCABULARY, METADATA)]
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder}: {VOCABULARY} or {METADATA} cannot be read ({str(error)[:80]})") from None
    if not all(isinstance(content, dict) for content in contents):
        raise DataError(f"{folder}: {VOCABULARY} or {METADATA} is not a JSON object; prepare from the text")
    known: Mapping[str, Any] = contents[0].get("char_to_id", contents[0])
    special = {content[name] for content in contents for name in _SPECIAL if isinstance(content.get(name), int)}
    characters = {number: token for token, number in known.items() if number not in special} if known else {}
    wrong = next((token for token in characters.values() if len(token) != 1), None)
    if wrong is not None or not characters:
        why = f"its token {shown(wrong)} is not a character" if wrong else "is empty"
        raise DataError(f"{folder / VOCABULARY}: {why}; prepare from the text: nbtools prepare TEXT --out FOLDER")
    return characters, special


def joined(windows: list[str], stride: int) -> list[str]:
    """Join windows of a text, given in any order; each begins `stride` characters after the one before.

    What two windows share is kept once. The last window may begin earlier; one that fits nowhere starts a new text.
    """
    windows = list(dict.fromkeys(windows))
    overlap = max(map(len, windows), default=0) - stride
    if overlap <= 0:
        return windows
    starts = Counter(window[:overlap] for window in windows)
    ends = Counter(window[stride:] for window in windows)
    by_start = {window[:overlap]: window for window in windows}
    texts: list[str] = []
    used: set[str] = set()
    firsts = [window for window in windows if not ends[window[:overlap]]]
    for first in [*firsts, *windows]:  # the second time: what follows several windows, or only itself
        if first in used:
            continue
        pieces = [first[overlap:] if ends[first[:overlap]] and used else first]
        while first not in used:
            used.add(first)
            end = first[stride:]
            if starts[end] == ends[end] == 1 and by_start[end] not in used:
                first = by_start[end]
                pieces.append(first[overlap:])
        texts.append("".join(pieces))
    return _merged([text for text in texts if text], overlap)


def _merged(texts: list[str], overlap: int) -> list[str]:
    """Append each text to the one whose end it begins in."""
    result: list[str] = []
    for text in sorted(texts, key=len, reverse=True):
        for place, earlier in enumerate(result):
            at = earlier.find(text[:overlap]) if len(text) > overlap else -1
            if at >= 0 and text.startswith(earlier[at:]):
                result[place] = earlier + text[len(earlier) - at :]
                break
            if text in earlier:
                break
        else:
            result.append(text)
    return result
