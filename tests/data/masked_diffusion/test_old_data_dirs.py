"""Folders of an older program: their text is found again, and prepared without its leak."""

import json
import random
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.cli.commands import main
from nbtools.data.masked_diffusion.old_data_dirs import joined, older_texts, write_older_texts
from nbtools.data.masked_diffusion.prepared import METADATA, TRAIN, VALIDATION, VOCABULARY
from nbtools.errors import DataError
from nbtools.training.masked_diffusion.dataset import open_text

BEGIN, END, PAD, MASK = 1, 2, 0, 126336
TEXT = "".join(f"Line {number} of {number * number}:\n\tit says {number % 7}\u00e9.\n" for number in range(400))


def older_folder(folder: Path, text: str, length: int, seed: int = 0) -> Path:
    """Write what the older program writes: windows that overlap by half, begin with <BOS> and have lost their end."""
    ids = {character: number for number, character in enumerate(sorted(set(text)), start=3)}
    starts = list(range(0, len(text) - length + 1, length // 2))
    starts += [len(text) - length] if len(text) % (length // 2) else []
    rows = [[BEGIN, *(ids[character] for character in text[start : start + length - 1])] for start in starts]
    windows: npt.NDArray[np.int64] = np.array(rows)
    held_out = random.Random(seed).sample(range(len(windows)), max(1, len(windows) // 10))
    folder.mkdir()
    np.save(folder / TRAIN, np.delete(windows, held_out, axis=0))
    np.save(folder / VALIDATION, windows[held_out])
    special = {"<PAD>": PAD, "<BOS>": BEGIN, "<EOS>": END, "<MASK>": MASK}
    names = {"pad_token": PAD, "bos_token": BEGIN, "eos_token": END, "mask_token": MASK}
    characters = {str(number): character for character, number in ids.items()}
    content = {"char_to_id": ids | special, "id_to_char": characters, "vocab_size": len(ids) + 4, **names}
    (folder / VOCABULARY).write_text(json.dumps(content, indent=2))
    sizes = {"sequence_length": length, "vocab_size": len(ids) + 4, "train_samples": len(rows) - len(held_out)}
    (folder / METADATA).write_text(json.dumps(sizes | names, indent=2))
    return folder


@pytest.mark.parametrize("length", [128, 1000, 4096])
def test_the_text_comes_back_from_windows_that_overlap_in_any_order(tmp_path: Path, length: int) -> None:
    texts, num_repeated = older_texts(older_folder(tmp_path / "old", TEXT, length))
    assert (texts, num_repeated) == ([TEXT[:-1]], 0)  # no window had the last character


def test_repeated_text_is_said_to_be_shorter_perhaps(tmp_path: Path) -> None:
    folder, target = older_folder(tmp_path / "old", TEXT[:3000] + "-" * 300 + TEXT[3000:6000], 64), tmp_path / "texts"
    target.mkdir()
    said = write_older_texts(folder, target)
    assert re.search(r"; [1-9] windows repeat another: repeated text may be shorter than it was$", said)


@given(st.text("ab \n", min_size=1, max_size=200), st.integers(2, 12), st.randoms())
def test_no_piece_of_a_repetitive_text_is_lost_or_invented(text: str, stride: int, randoms: random.Random) -> None:
    windows = [text[start : start + 2 * stride] for start in range(0, max(len(text) - 2 * stride, 0) + 1, stride)]
    shuffled = list(windows)
    randoms.shuffle(shuffled)
    texts = joined(shuffled, stride)
    covered = text[: (len(windows) - 1) * stride + 2 * stride]
    halves = {covered[start : start + stride] for start in range(0, len(covered), stride)}
    assert all(half in "\0".join(texts) for half in halves)
    assert sum(map(len, texts)) <= len(covered)


@pytest.mark.promise("safety-old-data")
def test_prepare_from_old_splits_the_text_of_a_data_dir_folder_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = older_folder(tmp_path / "old", TEXT, 256)
    with pytest.raises(DataError, match=r"nbtools prepare --from-old old --out old_new"):
        open_text(old, 64)
    assert main(["prepare", "--from-old", str(old), "--out", str(tmp_path / "new")]) == 0
    assert f"{len(TEXT) - 1:,} characters in 1 piece" in capsys.readouterr().err
    opened = open_text(tmp_path / "new", 64)
    parts = [np.load(tmp_path / "new" / name).tolist() for name in (TRAIN, VALIDATION)]
    lines = [set(opened.tokenizer.decode(part).splitlines()) for part in parts]
    shared = {line for line in lines[0] & lines[1] if line.startswith("Line ")}
    assert not shared, "no line is trained on and evaluated on"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (VOCABULARY, "[]", "is not a JSON object"),
        (VOCABULARY, "{", "cannot be read"),
        (VOCABULARY, '{"the": 3}', "its token 'the' is not a character"),
        (VOCABULARY, '{"a": 3}', "is not in vocab.json"),
        (TRAIN, "x", "cannot be read"),
        (METADATA, None, "is no data_dir folder of an older program"),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    old = older_folder(tmp_path / "old", TEXT, 256)
    (old / name).unlink()
    if content is not None:
        (old / name).write_text(content)
    with pytest.raises(DataError, match=said):
        older_texts(old)


def test_prepare_takes_either_a_text_or_an_old_folder(tmp_path: Path) -> None:
    for words in ([], [str(tmp_path), "--from-old", str(tmp_path)]):
        with pytest.raises(SystemExit):
            main(["prepare", *words, "--out", str(tmp_path / "new")])
