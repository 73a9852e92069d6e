"""Text larger than memory: documents and counts that wait on disk give what they would give in memory."""

import hashlib
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st

from nbtools.training.text import disk_buffer
from nbtools.training.text.disk_buffer import Spool, WordCounts, save_pieces

DOCUMENTS = ["one", "", "two lines\nof text", "ß \U0001d518 \ud800", "last"]


def test_documents_come_back_as_they_were_and_as_often_as_asked(tmp_path: Path) -> None:
    with Spool(iter(DOCUMENTS), tmp_path) as spooled:
        assert spooled.lengths_N.tolist() == [len(document) for document in DOCUMENTS]
        everything = np.ones(len(DOCUMENTS), dtype=bool)
        for _ in range(2):
            assert list(spooled.texts(everything)) == DOCUMENTS
        assert list(spooled.texts(np.array([False, True, False, True, False]))) == [DOCUMENTS[1], DOCUMENTS[3]]
        assert list(tmp_path.iterdir()) == [], "the file has no name, so that nothing can be left behind"


def test_documents_that_cannot_be_read_leave_nothing_open(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "one"
        raise OSError("torn off")

    with pytest.raises(OSError, match="torn off"):
        Spool(broken(), tmp_path)


@examples(50)
@given(st.lists(st.lists(st.text(st.characters(codec=None), min_size=1, max_size=3))), st.sampled_from([1, 3, 1000]))
def test_words_that_wait_on_disk_are_counted_like_those_in_memory(texts: list[list[str]], number: int) -> None:
    """Two words at once in memory: the counts of a word come to the disk again and again."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(disk_buffer, "_MOST_WORDS", 2)
        with WordCounts(Path(folder)) as counts:
            for words in texts:
                counts.add(words)
            assert not [*Path(folder).iterdir()], "the file has no name, so that nothing can be left behind"
            found = counts.most_common(number)
    expected = sorted(Counter(chain.from_iterable(texts)).items(), key=lambda item: (-item[1], item[0]))
    assert found == [word for word, _ in expected[:number]]


def test_a_disk_that_is_full_of_words_is_an_error_of_the_disk() -> None:
    with WordCounts() as counts:
        counts._on_disk.execute("PRAGMA max_page_count = 4")
        counts.add(f"word {number}" for number in range(9_000))
        with pytest.raises(OSError, match="full"):
            counts.most_common(1)


@examples(50)
@given(st.lists(st.one_of(st.text(), st.integers(), st.none(), st.lists(st.text()))))
def test_a_name_is_that_of_the_whole_list_and_needs_one_item_at_a_time(content: list[object]) -> None:
    named = disk_buffer.content_name(item for item in content)
    assert named == hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


@pytest.mark.parametrize("lengths", [[], [0], [3], [5, 0, 100_000, 1]])
@pytest.mark.parametrize("dtype", [np.int32, np.uint16])
def test_an_array_saved_in_pieces_has_the_bytes_of_one_saved_whole(
    tmp_path: Path, lengths: list[int], dtype: type[np.generic]
) -> None:
    pieces = [np.arange(length, dtype=np.int64) % 50_000 for length in lengths]
    assert save_pieces(tmp_path / "pieces.npy", iter(pieces), dtype) == sum(lengths)
    whole = io.BytesIO()
    np.save(whole, np.concatenate([np.array([], dtype=dtype), *pieces]).astype(dtype))
    assert (tmp_path / "pieces.npy").read_bytes() == whole.getvalue()


@pytest.mark.parametrize(("most", "every"), [(10**9, 1), (1000, 1), (999, 2), (334, 3), (5, 167)])
def test_a_sample_of_a_part_is_spread_over_it(tmp_path: Path, most: int, every: int) -> None:
    with Spool([f"{number:05}" for number in range(222)], tmp_path) as documents:
        whole = list(documents.part(0))
        assert len(whole) == 200
        assert list(documents.part(0, most=most)) == whole[every - 1 :: every]


MEASURED = """
import sys
from pathlib import Path

from nbtools.recipes import MLMPretrainingConfig
from nbtools.training import mlm_pretraining  # what a rank has loaded by then
from nbtools.training.mlm_pretraining.masking import Masking, unigram_log_probabilities
from nbtools.training.mlm_pretraining.dataset import open_tokenized, tokenize

def peak_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))

before = peak_mib()
config = MLMPretrainingConfig(dataset=sys.argv[1], min_words=5, vocab_size=10_000)
folder = tokenize(Path(sys.argv[2]), config).folder
text = open_tokenized(folder, 128)
masking = Masking.of(text, 0.15, seed=0)
unigram_log_probabilities(text.train, masking.maskable_ids, masking.vocab_size)
print(before, peak_mib(), len(text.train) + len(text.evaluation) + len(text.test))
"""


def write_text(path: Path, num_bytes: int) -> None:
    """Words as unevenly frequent as those of a language, with a long tail: millions of different ones."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        while file.tell() < num_bytes:
            words = (f"w{number:x}" for number in (rng.zipf(1.2, 100_000) % 5_000_000).tolist())
            file.write(" ".join(word + ".\n\n" if at % 97 == 0 else word for at, word in enumerate(words)))


@pytest.mark.promise("guide-M12")
@pytest.mark.slow
def test_a_text_many_times_larger_is_tokenized_in_little_more_memory_than_importing_takes(tmp_path: Path) -> None:
    """30 MB here; 1 GB needs no more (measured: 57 MiB beyond the imports), as everything passes in pieces."""
    file = tmp_path / "text.txt"
    write_text(file, 30_000_000)
    program = [sys.executable, "-c", MEASURED, str(file), str(tmp_path / "cache")]
    answer = subprocess.run(program, capture_output=True, text=True, check=True, timeout=800)
    before, peak, num_rows = map(int, answer.stdout.splitlines()[-1].split())
    assert num_rows > 45_000
    assert peak - before < 100, f"{peak} MiB at most, {before} before the text was opened"
    assert peak < 500 or before > 400, "the builds of torch for GPUs take more before anything is read"
