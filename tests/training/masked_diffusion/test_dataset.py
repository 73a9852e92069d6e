"""From text, prompts and answers to sequences: nothing is lost or leaks, and what is wrong is named with its place."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from nbtools.cli.commands import main
from nbtools.data import prepared
from nbtools.data.masked_diffusion.pairs import Pair, read_pairs, split_pairs
from nbtools.errors import ConfigError, DataError
from nbtools.launcher.checks.step_count import schedule
from nbtools.project import Project
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.training.masked_diffusion import baselines
from nbtools.training.masked_diffusion.dataset import cached_data, cached_pairs, open_cached, open_sequences, prepare
from nbtools.training.masked_diffusion.sequences import Sequences
from nbtools.training.text.tokenizers import EOS, MASK, UNKNOWN, encoder, train_tokenizer


def documents(number: int = 40) -> list[str]:
    return [f"Document {n} says:\n\n{'so it goes, ' * (5 + n % 7)}and ends with {n * n}." for n in range(number)]


@pytest.fixture
def text(project: Project) -> Path:
    """A folder of documents, each with a number that no other has."""
    folder = project.root / "texts"
    folder.mkdir()
    for number, document in enumerate(documents()):
        (folder / f"{number:02}.txt").write_text(document)
    return folder


def stream(folder: Path, name: str) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder / prepared.TOKENIZER)
    return str(tokenizer.decode(np.load(folder / name).tolist(), clean_up_tokenization_spaces=False))


# --- tokenizers -----------------------------------------------------------------------------------


@given(st.text(max_size=60))
def test_characters_are_cut_as_the_tokenizer_cuts_them_and_come_back(written: str) -> None:
    tokenizer = train_tokenizer("chars", ["abc \n\té字😀\r\0"], 100)
    fast = list(encoder(tokenizer, "chars")(written))
    assert len(fast) == len(written)
    known = "".join(c for c in written if c in "abc \n\té字😀\r\0")
    ids = list(encoder(tokenizer, "chars")(known))
    assert tokenizer(known)["input_ids"] == ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == known


def test_the_mask_is_the_last_of_the_vocabulary_and_the_rarest_tokens_are_unknown() -> None:
    for level, written in (("chars", "aaaa bbb cc d"), ("words", "aa aa aa bb bb cc dd")):
        tokenizer = train_tokenizer(level, [written], 6)
        ids = tokenizer.get_vocab()
        assert len(tokenizer) == 6
        assert (ids[EOS], ids[UNKNOWN], ids[MASK]) == (0, 1, 5) == (0, 1, tokenizer.mask_token_id)
        assert encoder(tokenizer, level)(written)[-1] == ids[UNKNOWN]
        assert tokenizer.eos_token_id == tokenizer.pad_token_id == 0


# --- prepared folders -----------------------------------------------------------------------------


def test_a_prepared_folder_holds_every_document_once_on_one_side(text: Path, tmp_path: Path) -> None:
    metadata = prepare(str(text), tmp_path / "made", vocab_size=200)
    parts = {name: stream(tmp_path / "made", name) for name in (prepared.TRAIN, prepared.VALIDATION, prepared.TEST)}
    for document in documents():
        assert sum((EOS + part).count(EOS + document + EOS) for part in parts.values()) == 1
    held_out = len(parts[prepared.VALIDATION]) + len(parts[prepared.TEST])
    assert 0.03 < held_out / len(parts[prepared.TRAIN]) < 0.2
    lengths = [metadata.num_train_tokens, metadata.num_val_tokens, metadata.num_test_tokens]
    assert lengths == [len(np.load(tmp_path / "made" / name)) for name in parts]
    content = json.loads((tmp_path / "made" / "metadata.json").read_text())
    assert content == asdict(metadata)
    assert content["num_train_tokens"] == len(np.load(tmp_path / "made" / "train_data.npy"))
    vocabulary = json.loads((tmp_path / "made" / "vocab.json").read_text())
    assert len(vocabulary) == content["vocab_size"] == max(vocabulary.values()) + 1
    assert vocabulary[MASK] == content["vocab_size"] - 1


def test_sequences_do_not_overlap_and_hold_the_stream_in_order(text: Path, tmp_path: Path) -> None:
    prepare(str(text), tmp_path / "made", vocab_size=200)
    opened = open_sequences(tmp_path / "made", 16)
    flat = np.load(tmp_path / "made" / "train_data.npy")
    assert opened.train.tokens_NT.shape == (len(flat) // 16, 16)
    assert (opened.train.tokens_NT.reshape(-1) == flat[: len(flat) // 16 * 16]).all()
    assert (opened.train.starts_N == 0).all()
    assert opened.eos_id == 0


def test_the_command_makes_what_the_training_counts(
    text: Path, project: Project, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(project.root)
    assert main(["prepare", "texts", "--out", "made", "--tokenizer", "words", "--vocab-size", "30"]) == 0
    said = capsys.readouterr().out
    config = MaskedDiffusionConfig(dataset="made", sequence_length=16, batch_size=4)
    counted = schedule(config, 2, root=project.root)
    assert counted is not None
    opened = open_sequences(project.root / "made", 16)
    sizes = counted.num_train_samples, counted.num_eval_samples, counted.num_test_samples
    assert sizes == (len(opened.train), len(opened.evaluation), len(opened.test))
    assert len(opened.test) > 0
    assert said.startswith("made: ")
    assert "30 different ones (words)" in said
    assert main(["prepare", "texts", "--out", "made"]) == 2
    assert "exists, or is not a folder" in capsys.readouterr().err
    assert main(["prepare", "nowhere", "--out", "other"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["prepare", "texts", "--out", "other", "--tokenizer", "no such"]) == 2
    assert "neither a folder nor a hub id" in capsys.readouterr().err
    assert not (project.root / "other").exists()
    assert not [path for path in project.root.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["$(touch p)", "a b'c", "-dash", "ü\u3000字"])
def test_the_folder_is_called_as_it_was_asked_for(text: Path, project: Project, monkeypatch: Any, name: str) -> None:
    monkeypatch.chdir(project.root)
    before = {path.name for path in project.root.iterdir()}
    assert main(["prepare", "texts", f"--out={name}"]) == 0
    assert {path.name for path in project.root.iterdir()} - before == {name}


def test_the_cache_is_found_again_by_content(text: Path, project: Project) -> None:
    def made(tokenizer: Any = "chars", vocab_size: int = 100) -> Path:
        config = MaskedDiffusionConfig(dataset=str(text), tokenizer=tokenizer, vocab_size=vocab_size, min_words=1)
        return cached_data(project.runs, config).folder

    first = made()
    written = (first / prepared.TRAIN).stat().st_mtime_ns
    assert made() == first
    assert (first / prepared.TRAIN).stat().st_mtime_ns == written
    assert len({first, made("words"), made(vocab_size=16)}) == 3
    (text / "00.txt").write_text("other words here, and enough of them.")
    assert made() != first


@pytest.mark.promise("safety-old-data")
def test_a_folder_of_an_older_program_is_refused_for_its_leak(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    for name in (prepared.TRAIN, prepared.VALIDATION):
        np.save(folder / name, np.zeros((10, 4096), dtype=np.int64))
    (folder / prepared.METADATA).write_text('{"vocab_size": 68, "sequence_length": 4096}')
    with pytest.raises(DataError, match=r"was not made by nbtools prepare.*overlap.*nbtools prepare TEXT"):
        open_sequences(folder, 64)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (prepared.METADATA, b"{", "metadata.json: cannot be read"),
        (
            prepared.METADATA,
            b'{"made_by": "nbtools prepare", "tokenizer": "chars"}',
            "vocab_size is None; field required",
        ),
        (prepared.TRAIN, b"\x93NUMPY", "train_data.npy: cannot be read"),
        (prepared.VALIDATION, None, "has no val_data.npy"),
        ("tokenizer/tokenizer.json", b"{}", "tokenizer: cannot be read"),
    ],
)
def test_a_damaged_folder_is_refused_by_the_name_of_the_file(
    text: Path, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    prepare(str(text), tmp_path / "made", vocab_size=100)
    if content is None:
        (tmp_path / "made" / name).unlink()
    else:
        (tmp_path / "made" / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        open_sequences(tmp_path / "made", 16)


def test_arrays_that_do_not_fit_their_metadata_or_hold_objects_are_refused(text: Path, tmp_path: Path) -> None:
    prepare(str(text), tmp_path / "made", vocab_size=100)
    for wrong in (np.zeros(5, dtype=np.uint8), np.array([{}, []], dtype=object)):
        np.save(tmp_path / "made" / prepared.TRAIN, wrong, allow_pickle=True)
        with pytest.raises(DataError, match=r"train_data.npy: (does not match|cannot be read)"):
            open_sequences(tmp_path / "made", 16)


def test_text_that_is_too_little_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="empty"):
        prepare(str(tmp_path / "empty.txt"), tmp_path / "made", vocab_size=16)
    (tmp_path / "one.txt").write_text("one document")
    with pytest.raises(DataError, match="at least two"):
        prepare(str(tmp_path / "one.txt"), tmp_path / "made", vocab_size=16)
    assert not (tmp_path / "made").exists()


@given(
    st.integers(2, 9),
    st.lists(st.lists(st.integers(0, 8), min_size=8, max_size=8), min_size=1, max_size=9),
    st.integers(0, 7),
)
def test_pairs_counted_in_pieces_are_those_of_a_whole_table(vocab_size: int, rows: list[list[int]], start: int) -> None:
    """Against a dense table of all pairs, with pieces of one or two rows."""
    tokens_NT = np.array(rows, dtype=np.int32) % vocab_size
    starts_N = np.arange(len(rows)) * start % 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "_TOKENS_AT_ONCE", 16)
        counted = baselines.Frequencies(Sequences(tokens_NT, starts_N), vocab_size)
    single_V, pairs_VV = np.ones(vocab_size), np.zeros((vocab_size, vocab_size))
    for tokens_T, begin in zip(tokens_NT.tolist(), starts_N.tolist(), strict=True):
        for place in range(begin, 8):
            single_V[tokens_T[place]] += 1
            if place:
                pairs_VV[tokens_T[place - 1], tokens_T[place]] += 1
    unigram_V = single_V / single_V.sum()
    kinds_V1 = np.maximum((pairs_VV > 0).sum(1, keepdims=True), 1)
    expected_VV = (pairs_VV + kinds_V1 * unigram_V) / (pairs_VV.sum(1, keepdims=True) + kinds_V1)
    before, token = np.indices((vocab_size, vocab_size))
    assert counted.unigram_V == pytest.approx(unigram_V)
    assert counted.bigram(before, token) == pytest.approx(expected_VV)


# --- prompts and answers --------------------------------------------------------------------------


def lines(path: Path, number: int = 30) -> Path:
    content = [{"prompt": f"what is {n} + 1? ", "answer": str(n + 1)} for n in range(number)]
    path.write_text("\n".join(json.dumps(line) for line in content) + "\n\n")
    return path


@pytest.mark.parametrize("pad_to", ["longest", "sequence_length"])
def test_an_answer_follows_its_prompt_and_one_eos_or_as_many_as_fill_the_row(tmp_path: Path, pad_to: Any) -> None:
    file = lines(tmp_path / "pairs.jsonl")
    config = MaskedDiffusionConfig(sequence_length=24, pad_to=pad_to)
    folder, remark = cached_pairs(tmp_path, [file], config)
    opened = open_cached(folder, config)
    assert remark == ""
    tokenizer = opened.tokenizer
    seen = set()
    for part in (opened.train, opened.evaluation, opened.test):
        for row, start in enumerate(part.starts_N):
            tokens_T = part.rows(np.array([row]))[0]
            assert len(tokens_T) == part.lengths_N[row]
            prompt = tokenizer.decode(tokens_T[:start].tolist(), clean_up_tokenization_spaces=False)
            answer, *rest = tokenizer.decode(tokens_T[start:].tolist()).split(EOS)
            assert prompt == f"what is {int(answer) - 1} + 1? "
            assert rest == [""] * (24 - start - len(answer) if pad_to == "sequence_length" else 1)
            seen.add(answer)
    assert len(seen) == 30
    assert (len(opened.evaluation), len(opened.test)) == (2, 1)


def test_pairs_that_are_too_long_are_left_out_and_told(tmp_path: Path) -> None:
    file = lines(tmp_path / "pairs.jsonl")
    _, remark = cached_pairs(tmp_path, [file], MaskedDiffusionConfig(sequence_length=17))
    assert remark == "21 of 30 pairs are longer than 17 tokens and left out"
    with pytest.raises(DataError, match=r"none of 30 pairs fits into 16 tokens"):
        cached_pairs(tmp_path, [file], MaskedDiffusionConfig(sequence_length=16))


def test_a_prompt_is_never_on_both_sides_whatever_the_order() -> None:
    found = [Pair(f"p{n % 20}", f"a{n}", n) for n in range(100)]
    train, evaluation, test = split_pairs(found, 10, lambda _: 0)
    assert test == []
    assert not {pair.prompt for pair in train} & {pair.prompt for pair in evaluation}
    assert len(train) + len(evaluation) == 100
    assert len({pair.prompt for pair in evaluation}) == 2
    assert {pair.line for pair in split_pairs(found[::-1], 10, lambda _: 0)[1]} == {pair.line for pair in evaluation}
    halves = split_pairs(found, 10, lambda _: 0, 0.5)
    assert halves[0] == train
    assert [len({pair.prompt for pair in part}) for part in halves] == [18, 1, 1]
    assert {pair.line for part in halves[1:] for pair in part} == {pair.line for pair in evaluation}
    with pytest.raises(DataError, match="at least two are needed"):
        split_pairs([Pair("p", "a", 1), Pair("p", "b", 2)], 10, lambda _: 0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": "a"', "not JSON"),
        (b'["a", "b"]', "not an object"),
        (b'{"prompt": "a"}', "has no 'answer'"),
        (b'{"prompt": "", "answer": "b"}', "'prompt' is empty"),
        (b'{"prompt": "a", "answer": " \\n"}', "'answer' is empty"),
        (b'{"prompt": "a", "answer": 3}', "'answer' is 3, not text"),
        (b'{"prompt": "a", "answer": "\\ud800"}', "'answer' holds half of a surrogate pair"),
        (b'{"prompt": "\xe9", "answer": "b"}', r"byte 12 \(0xe9\) is not UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_what_to_write(tmp_path: Path, line: bytes, said: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_bytes(b'{"prompt": "a", "answer": "b"}\n\n' + line + b'\n{"prompt": "a", "answer": "b"}\n')
    with pytest.raises(DataError, match=rf"pairs\.jsonl, line 3: {said}"):
        list(read_pairs(file))


def test_a_file_without_pairs_is_refused_in_form_and_training(project: Project) -> None:
    file = project.root / "pairs.jsonl"
    file.write_text("\n\n")
    with pytest.raises(DataError, match="empty"):
        cached_pairs(project.runs, [file], MaskedDiffusionConfig())
    with pytest.raises(DataError, match="empty"):
        schedule(MaskedDiffusionConfig(dataset="pairs.jsonl"), 1, root=project.root)
    lines(file)
    counted = schedule(
        MaskedDiffusionConfig(dataset="pairs.jsonl", sequence_length=24, batch_size=4), 1, root=project.root
    )
    assert counted is not None
    assert (counted.num_train_samples, counted.num_eval_samples, counted.num_test_samples) == (27, 2, 1)


def test_a_model_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    config = MaskedDiffusionConfig(model_name=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="tokenizer cannot be loaded"):
        cached_pairs(tmp_path, [lines(tmp_path / "p.jsonl")], config)
