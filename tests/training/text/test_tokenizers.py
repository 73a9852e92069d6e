"""Texts in batches on all cores: the ids of one call per text, in little memory, and safe to fork afterwards."""

import copy
import functools
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import unchanged_texts
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.trainers import UnigramTrainer, WordPieceTrainer
from transformers import AutoTokenizer, CanineTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from unchanged_texts import NAMES, TEXTS

from nbtools.data.corpus import SpecialTokens
from nbtools.training.text import tokenizers
from nbtools.training.text.tokenizers import byte_tokenizer, encode_all, train_tokenizer

SPECIAL = [*NAMES.values()]
DOCUMENTS = [
    *TEXTS.values(),
    "",
    " ",
    "\r\n\r\n",
    "👩‍👩‍👧 family 🏳️‍🌈 e\u0301 ﬁ",
    "<s>written</s> <mask> by <pad>hand<unk>",
    "ends in a space ",
    "字" * 300,
    "\0\ud7ff\ue000",
    *(f"document {number} " * (number % 7) for number in range(200)),
]


def byte_level() -> PreTrainedTokenizerFast:
    return unchanged_texts.byte_level(TEXTS.values(), 500)


def word_pieces() -> PreTrainedTokenizerFast:
    """A tokenizer as BERT's, which lower-cases."""
    backend = Tokenizer(WordPiece(unk_token="<unk>"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(
        TEXTS.values(), WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **NAMES)


def splitting() -> PreTrainedTokenizerFast:
    """A tokenizer that reads special tokens written in a text as plain text."""
    return PreTrainedTokenizerFast(tokenizer_object=byte_level().backend_tokenizer, split_special_tokens=True, **NAMES)


def own_call() -> PreTrainedTokenizerFast:
    """A tokenizer whose class encodes in its own way, as some of the hub's do."""

    class Reversing(PreTrainedTokenizerFast):
        def _encode_plus(self, text: str, **more: object) -> object:
            return super()._encode_plus(text[::-1], **more)

    return Reversing(tokenizer_object=byte_level().backend_tokenizer, **NAMES)


def pieces() -> PreTrainedTokenizerFast:
    """A tokenizer as T5's and XLM-RoBERTa's, whose vocabulary holds the special tokens as likely pieces."""
    backend = Tokenizer(Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    alphabet = sorted(set("".join(TEXTS.values())) - set(" "))
    options = {"special_tokens": SPECIAL, "unk_token": "<unk>", "initial_alphabet": alphabet, "show_progress": False}
    backend.train_from_iterator(TEXTS.values(), UnigramTrainer(vocab_size=600, **options))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **NAMES)


def merging() -> PreTrainedTokenizerFast:
    """A tokenizer with merges that spell a special token, as some versions of Llama 2's."""
    alphabet = {letter: number for number, letter in enumerate(sorted(set("".join(DOCUMENTS))))}
    vocabulary = {**alphabet, **{token: len(alphabet) + place for place, token in enumerate(["</", "s>", *SPECIAL])}}
    merges = [("<", "/"), ("s", ">"), ("</", "s>")]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocabulary, merges, unk_token="<unk>")), **NAMES)


@pytest.mark.promise("safety-text")
@pytest.mark.parametrize("reads", ["text", "tokens"])
@pytest.mark.parametrize("make", [byte_level, word_pieces, splitting, own_call, CanineTokenizer])
def test_batches_have_the_ids_of_one_call_per_text(
    make: type, reads: SpecialTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "_BATCH_CHARACTERS", 1000)
    made = make()
    plain = copy.deepcopy(made)
    options = {"add_special_tokens": False, "verbose": False}
    options |= {"split_special_tokens": True} if reads == "text" else {}
    expected = [plain(text, **options)["input_ids"] for text in DOCUMENTS]
    assert [list(ids) for ids in encode_all(DOCUMENTS, made, "model", reads)] == expected
    assert any(len(ids) > 16 for ids in expected)


@pytest.mark.promise("safety-special")
@pytest.mark.parametrize("make", [byte_level, word_pieces, pieces, merging])
def test_special_tokens_in_a_text_are_characters_and_the_tokenizer_stays_as_it_is(make: type) -> None:
    made = make()
    before = made.backend_tokenizer.to_str(), made.backend_tokenizer.encode_special_tokens
    controls = set(made.all_special_ids) - {made.unk_token_id}
    plain = [text for text in DOCUMENTS if not any(name in text for name in SPECIAL)]
    written = ["<s>old</s>", "x</s>y<pad>z <mask>", "</s>", "a < /s> b"]
    for ids, text in zip(encode_all(written, made, "model"), written, strict=True):
        assert not controls & set(ids)
        if make in (pieces, merging):  # the others have no decoder here
            assert made.decode(ids).replace(" ", "") == text.replace(" ", "")
    found = [list(ids) for ids in encode_all(plain, made, "model")]
    assert (made.backend_tokenizer.to_str(), made.backend_tokenizer.encode_special_tokens) == before
    assert found == [made(text, add_special_tokens=False)["input_ids"] for text in plain]
    assert controls & set(chain.from_iterable(encode_all(written, made, "model", "tokens")))


@pytest.mark.parametrize("level", ["chars", "words"])
def test_a_vocabulary_built_here_has_the_ids_of_its_tokenizer(level: str) -> None:
    made = train_tokenizer(level, TEXTS.values(), 300)
    documents = [text for text in DOCUMENTS if "<" not in text]
    expected = [made(text, add_special_tokens=False)["input_ids"] for text in documents]
    assert [list(ids) for ids in encode_all(documents, made, level)] == expected


@functools.cache
def saved_bytes() -> PreTrainedTokenizerBase:
    with tempfile.TemporaryDirectory() as folder:
        byte_tokenizer(TEXTS.values(), 400).save_pretrained(folder)
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        return loaded


@given(st.text() | st.lists(st.sampled_from([*DOCUMENTS, "[MASK]", " [MASK]", "[SEP]", "\n", "a"])).map("".join))
def test_any_text_comes_back_from_a_saved_byte_level_tokenizer(text: str) -> None:
    made = saved_bytes()
    (ids,) = encode_all([text], made, "byte_bpe")
    assert not set(ids) & set(made.all_special_ids)
    assert made.decode(ids).encode() == text.encode()
    if not any(name in text for name in made.all_special_tokens):
        assert made(text)["input_ids"] == [*ids, made.sep_token_id]


def test_a_mask_between_bytes_takes_the_space_of_the_word_that_it_hides() -> None:
    made = saved_bytes()
    shown, whole = (made.convert_ids_to_tokens(made(f"a {word} of")["input_ids"]) for word in ("[MASK]", "the"))
    assert shown == ["[MASK]" if token == "Ġthe" else token for token in whole]
    assert "[MASK]" in shown
    assert made.unk_token is None and len(made) == 400


def test_memory_does_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "_BATCH_CHARACTERS", 2**17)
    made = byte_level()

    def peak(num_documents: int) -> int:
        texts: Iterator[str] = ("so it goes, on and on. " * 2000 for _ in range(num_documents))
        tracemalloc.start()
        for ids in encode_all(texts, made, "model"):
            assert len(ids) > 1000
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(24) < 1.5 * peak(6)


FORK = """
import os, sys
sys.path[:0] = {path!r}
from test_tokenizers import byte_level, encode_all

def alone(given):  # in a process that has not encoded anything yet
    os.environ.pop("TOKENIZERS_PARALLELISM", None)
    if given:
        os.environ["TOKENIZERS_PARALLELISM"] = given
    made = byte_level()
    for _ in range(2):
        list(encode_all(["one", "two"] * 50, made, "model"))
    pid = os.fork()
    if pid == 0:  # as a loading process of the training
        if given != "true":  # a user's own choice, which a child that tokenizes could not survive
            made(["one", "two"] * 50)
        os._exit(0)
    print(os.waitpid(pid, 0)[1], os.environ["TOKENIZERS_PARALLELISM"], flush=True)
    os._exit(0)

for given in ("", "true", "false", "0"):
    pid = os.fork()
    if pid == 0:
        alone(given)
    os.waitpid(pid, 0)
"""


@pytest.mark.slow
def test_a_process_forks_after_it_without_a_warning_and_the_users_choice_stays() -> None:
    program = FORK.format(path=[str(Path(__file__).parent), *sys.path])
    done = subprocess.run(  # Python 3.12 warns of every fork beside threads
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0 No\n0 true\n0 false\n0 0\n", "")
