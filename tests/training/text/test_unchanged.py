"""A user's text goes through the tokenizers of the recipes and comes back character by character."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from unchanged_texts import NAMES, SPECIAL, TEXTS, byte_level, write_texts

from nbtools.cli.commands import main
from nbtools.data import corpus, prepared
from nbtools.recipes import LLMGANConfig, MaskedDiffusionConfig, MLMPretrainingConfig, TextClassificationConfig
from nbtools.recipes.llm_gan import load_stories
from nbtools.recipes.text_classification import load_samples
from nbtools.training.llm_gan.dataset import tokenize_stories
from nbtools.training.masked_diffusion.dataset import cached_data, cached_pairs, open_sequences
from nbtools.training.mlm_pretraining.dataset import tokenize
from nbtools.training.text.tokenizers import separator_of
from nbtools.training.text_classification.dataset import Augmentation, CharacterDataset

WHOLE = "".join(TEXTS.values())
SCRIPTS = [
    "Les élèves naïfs ont reçu une leçon où l'œuvre coûte 5 €, déjà !\n",
    "В начале было слово, и слово это знал каждый ребёнок.\n",
    "كان يا ما كان في قديم الزمان، ولدٌ صغيرٌ يحبّ القراءة.\n",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。\n",
    "सभी मनुष्यों को गौरव और अधिकारों के विषय में स्वतन्त्रता है 👩‍👩‍👧 🏳️‍🌈\n",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with a byte-level tokenizer, as RoBERTa's, built on other text."""
    byte_level(["the tiger burns bright, == and not"], 400).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


PREPARED = (prepared.TRAIN, prepared.VALIDATION, prepared.TEST)


def decoded(tokenizer: PreTrainedTokenizerBase, *parts: Path) -> list[str]:
    """Return the documents in files of token ids."""
    documents = []
    for part in parts:
        ids = np.load(part)
        for piece in np.split(ids, np.flatnonzero(ids == separator_of(tokenizer)) + 1):
            if len(piece):
                documents.append(tokenizer.decode(piece[:-1].tolist(), clean_up_tokenization_spaces=False))
    return documents


def is_whole(documents: list[str]) -> bool:
    """Whether documents, in some order, are the sections of all texts."""
    sections = list(corpus.documents(str(write_texts(Path.cwd() / "again")), 5))
    return "".join(sections) == WHOLE and Counter(documents) == Counter(sections)


@pytest.mark.promise("safety-text")
def test_characters_of_code_verse_tables_and_mathematics_come_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    made = cached_data(tmp_path / "cache", MaskedDiffusionConfig(dataset=str(folder)), say=said.append).folder
    tokenizer = AutoTokenizer.from_pretrained(made / prepared.TOKENIZER)
    assert is_whole(decoded(tokenizer, *(made / name for name in PREPARED)))
    assert said == ["note: the byte order mark of 1 file is left out"]


@pytest.mark.promise("safety-text")
def test_prepare_keeps_every_character_and_records_how_the_text_was_cleaned(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for clean in ("none", "light"):
        made = tmp_path / clean
        assert main(["prepare", str(folder), "--out", str(made), "--clean", clean]) == 0
        assert prepared.read_prepared_metadata(made).clean == clean
        documents = decoded(open_sequences(made, 16).tokenizer, *(made / name for name in PREPARED))
        assert ("".join(documents).count("  ") > 0) is (clean == "none")
        if clean == "none":
            assert is_whole(documents)


@pytest.mark.promise("safety-text")
def test_a_pretrained_tokenizer_gets_the_text_unchanged_in_both_recipes(
    folder: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    made = cached_data(tmp_path / "cache", MaskedDiffusionConfig(dataset=str(folder), model_name=model)).folder
    diffusion = decoded(tokenizer, *(made / name for name in PREPARED))
    made = tokenize(tmp_path / "cache", MLMPretrainingConfig(dataset=str(folder), model_name=model)).folder
    masked = decoded(tokenizer, *(made / name for name in PREPARED))
    assert is_whole(diffusion)
    assert Counter(masked) == Counter(diffusion)


CHAT = (
    "{% for message in messages %}<s>{{ message.role }}\n{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
PAIRS = [(f"strike <s>{number}</s> = ", f"x</s>y<pad>z {number} </s>") for number in range(20)]
PAIRS += [(f" {name}\r\n", text) for name, text in TEXTS.items()]


def split(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Return the ids of prompts and answers in a folder of pairs, without the end-of-text token."""
    found = []
    for part in ("train", "eval", "test"):
        flat, offsets = np.load(folder / f"{part}.npy"), np.load(folder / f"{part}_offsets.npy")
        starts = np.load(folder / f"{part}_starts.npy")
        for start, end, length in zip(offsets[:-1], offsets[1:], starts, strict=True):
            found.append((flat[start : start + length].tolist(), flat[start + length : end - 1].tolist()))
    return found


@pytest.mark.promise("safety-special")
@pytest.mark.parametrize("kind", ["plain", "template", "messages"])
def test_special_tokens_in_pairs_are_text_and_those_of_the_template_are_ids(
    model: str, tmp_path: Path, kind: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = None if kind == "plain" else CHAT
    tokenizer.save_pretrained(model)
    roles = ("user", "assistant")
    chats = [{"messages": [{"role": r, "content": t} for r, t in zip(roles, pair, strict=True)]} for pair in PAIRS]
    rows = chats if kind == "messages" else [{"prompt": prompt, "answer": answer} for prompt, answer in PAIRS]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    config = MaskedDiffusionConfig(dataset=str(path), model_name=model, sequence_length=32_768)
    folder, remark = cached_pairs(tmp_path / "cache", [path], config)
    found = split(folder)
    around = ("", "") if kind == "plain" else ("<s>user\n", "</s><s>assistant\n")
    decoded = [tuple(tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in pair) for pair in found]
    assert sorted(decoded) == sorted((around[0] + prompt + around[1], answer) for prompt, answer in PAIRS)
    controls = [] if kind == "plain" else [0, 2, 0]
    assert remark == ""
    for prompt, answer in found:
        assert [number for number in prompt if number < 5] == controls
        assert [number for number in answer if number < 5] == []
    asked = MaskedDiffusionConfig.recorded(config.model_dump(exclude={"special_tokens"}))
    assert asked.special_tokens == "tokens"
    other, remark = cached_pairs(tmp_path / "cache", [path], asked)
    assert other != folder and {2, 1} <= {number for _, answer in split(other) for number in answer}
    written = sum(text.count(name) for pair in PAIRS for text in pair for name in tokenizer.all_special_tokens)
    said = f"{written} special tokens written in the text became control tokens of the model; special_tokens='text'"
    assert f"{said} reads them as characters" in remark


@pytest.mark.promise("safety-special")
def test_a_text_that_a_template_wrote_gets_its_ids_if_asked_and_they_are_counted(
    folder: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = sum(map(SPECIAL.count, NAMES.values()))
    said: list[str] = []
    diffusion = MaskedDiffusionConfig(dataset=str(folder), model_name=model, special_tokens="tokens")
    masked = MLMPretrainingConfig(dataset=str(folder), model_name=model, special_tokens="tokens")
    made = cached_data(tmp_path / "cache", diffusion, say=said.append).folder
    others = [tokenize(tmp_path / "cache", masked, say=said.append).folder for _ in range(2)]
    for files in ([made / name for name in PREPARED], sorted(others[0].glob("*.npy"))):
        assert {0, 1, 2, 4} <= set(np.concatenate([np.load(file) for file in files]).tolist())
    notes = [remark for remark in said if "special" in remark]
    assert len(notes) == 3 and all(note.startswith(f"note: {written} special tokens written") for note in notes)
    assert cached_data(tmp_path / "cache", diffusion.replace(special_tokens="text")).folder != made
    assert tokenize(tmp_path / "cache", masked.replace(special_tokens="text")).folder != others[0]


@pytest.mark.promise("safety-text")
def test_the_word_level_tokenizer_loses_case_whitespace_and_rare_words_alone_and_says_so(
    folder: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    made = tokenize(
        tmp_path / "cache", MLMPretrainingConfig(dataset=str(folder), vocab_size=200), say=said.append
    ).folder
    tokenizer = AutoTokenizer.from_pretrained(made / "tokenizer")
    parts = [np.load(made / name) for name in PREPARED]
    ids = np.concatenate(parts)
    text = ids[ids != separator_of(tokenizer)]
    found = Counter(tokenizer.convert_ids_to_tokens(text.tolist()))
    unknown = found.pop("[UNK]")
    sections = list(corpus.documents(str(folder), 5))
    wanted = Counter(word for section in sections for word in corpus.words(section))
    assert not found - wanted
    assert (wanted - found).total() == unknown
    assert said[-1].startswith(f"note: {unknown:,} of {len(ids):,} tokens (")
    assert "vocab_size" in said[-1]


@pytest.mark.promise("safety-text")
def test_byte_level_bpe_keeps_five_scripts_and_code_and_knows_every_token(folder: Path, tmp_path: Path) -> None:
    for number, text in enumerate(SCRIPTS):
        (folder / f"{number}.txt").write_text(text * 9)
    config = MLMPretrainingConfig(dataset=str(folder), tokenizer="byte_bpe", vocab_size=600, special_tokens="tokens")
    made = {kind: tokenize(tmp_path / "cache", config.replace(tokenizer=kind)).folder for kind in ("byte_bpe", "words")}
    tokenizer = AutoTokenizer.from_pretrained(made["byte_bpe"] / prepared.TOKENIZER)
    documents = decoded(tokenizer, *(made["byte_bpe"] / name for name in PREPARED))
    assert Counter(documents) == Counter(corpus.documents(str(folder), 5))
    metadata = {kind: prepared.read_prepared_metadata(path) for kind, path in made.items()}
    assert (metadata["byte_bpe"].tokenizer, metadata["byte_bpe"].num_special_tokens) == ("byte_bpe", 0)
    assert metadata["byte_bpe"].num_unknown_tokens == 0 < metadata["words"].num_unknown_tokens


def test_light_cleaning_of_a_config_from_before_is_what_it_was_and_is_counted(folder: Path, tmp_path: Path) -> None:
    old = MLMPretrainingConfig.recorded({"dataset": str(folder)})
    assert (old.clean, MaskedDiffusionConfig.recorded({}).clean) == ("light", "light")
    left_out = corpus.LeftOut()
    documents = list(corpus.documents(str(folder), clean=old.clean, left_out=left_out))
    kept = "\n".join(documents)
    assert "  " not in kept and "==" not in kept and "\n42\n" not in kept and "\r" not in kept
    assert "Tyger Tyger, burning bright,\nIn the forests" in kept
    assert left_out.num_characters == len(WHOLE.replace("\r\n", "\n")) - sum(map(len, documents))
    assert f"clean='light' left out {left_out.num_characters:,} characters" in " ".join(left_out.notes(1))


def test_a_caches_folder_of_cleaned_text_is_not_that_of_unchanged_text(folder: Path, tmp_path: Path) -> None:
    made = {
        tokenize(tmp_path / "cache", MLMPretrainingConfig(dataset=str(folder), clean=clean)).folder
        for clean in ("none", "light")
    }
    assert len(made) == 2


def test_rare_characters_beyond_the_vocabulary_are_counted_and_told(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = MaskedDiffusionConfig(dataset=str(folder), vocab_size=40)
    made = cached_data(tmp_path / "cache", config, say=said.append).folder
    num_unknown = sum(int((np.load(made / name) == 1).sum()) for name in PREPARED)
    assert num_unknown == prepared.read_prepared_metadata(made).num_unknown_tokens > 0
    assert f"note: {num_unknown:,} of " in said[-1]


def write_csv(path: Path, header: list[str], rows: list[list[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.mark.promise("safety-text")
def test_cells_of_a_csv_file_come_back_from_the_characters_of_a_classifier(tmp_path: Path) -> None:
    rows = [[text, f" {name} ", "a"] for name, text in TEXTS.items()]
    write_csv(tmp_path / "data.csv", ["text", "lang", "code"], rows)
    config = TextClassificationConfig(dataset=str(tmp_path / "data.csv"), text_col="text", formatter="generic")
    samples = load_samples(config)
    assert samples.train.num_cleaned == 0
    dataset = CharacterDataset(samples.train, np.arange(len(rows)), Augmentation(0, 0.0, 0.0), 10**6, 1)
    inputs_BT, _ = dataset[0, np.arange(len(rows)), 200_000]
    texts = ["".join(map(chr, row[row != 0][1:-1].tolist())) for row in inputs_BT.numpy()]
    assert texts == [f"{name}[SEP]{text}" for name, text in TEXTS.items()]
    light = load_samples(TextClassificationConfig.recorded(config.model_dump(exclude={"clean"})))
    assert light.train.num_cleaned == len(rows)
    assert light.train.text(5).startswith("the tyger tyger tyger, burning bright, in the forests")


@pytest.mark.promise("safety-text")
def test_cells_of_a_csv_file_come_back_from_the_tokens_of_the_llm_gan(tmp_path: Path) -> None:
    rows = [[f"  {name}\n\tby an author ", text] for name, text in TEXTS.items()]
    write_csv(tmp_path / "data.csv", ["title", "human_story"], rows)
    values: dict[str, Any] = {"max_chars": 100_000, "min_chars": 1, "sequence_length": 512, "prompt_length": 64}
    config = LLMGANConfig(dataset=str(tmp_path / "data.csv"), tokenizer="chars", **values)
    said: list[str] = []
    parts = load_stories(config, None, said.append)
    stories = [story for part in parts for story in part]
    assert sorted(story.text for story in stories) == sorted(TEXTS.values())
    assert {story.prompt for story in stories} == {f"title: {row[0]}" for row in rows}
    assert said == []
    data = tokenize_stories(config, *parts[:2], say=said.append, test=parts[2])
    tokens = {number: token for token, number in data.tokenizer.get_vocab().items()}
    ends = {data.alphabet.eos_id, data.alphabet.pad_id}
    texts = [row for part in (data.train, data.evaluation, data.test) for row in part.texts_NT.tolist()]
    decoded = ["".join(tokens[number] for number in row if number not in ends) for row in texts]
    assert decoded == [story.text[:512] for story in stories]
    num_cut = sum(len(text) > 512 for text in TEXTS.values())
    assert said == [f"note: {num_cut} of 6 texts are longer than sequence_length; their end is cut"]
    light = load_stories(LLMGANConfig.recorded(config.model_dump(exclude={"clean"})), None, said.append)
    assert "title: verse.txt by an author" in {story.prompt for part in light for story in part}
    assert "changed the spaces of 6 of 6 texts" in said[-1]


@pytest.mark.promise("safety-text")
def test_prompts_and_answers_come_back_from_the_tokens_of_pairs(tmp_path: Path) -> None:
    pairs = [(f" {name}\r\n", text) for name, text in TEXTS.items()]
    lines = [json.dumps({"prompt": prompt, "answer": text}) for prompt, text in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    config = MaskedDiffusionConfig(dataset=str(tmp_path / "pairs.jsonl"), sequence_length=32_768)
    folder, remark = cached_pairs(tmp_path / "cache", [tmp_path / "pairs.jsonl"], config)
    tokenizer = AutoTokenizer.from_pretrained(folder / prepared.TOKENIZER)
    found = decoded(tokenizer, *(folder / f"{part}.npy" for part in ("train", "eval", "test")))
    assert (sorted(found), remark) == (sorted(prompt + text for prompt, text in pairs), "")
    _, remark = cached_pairs(tmp_path / "cache", [tmp_path / "pairs.jsonl"], config.replace(vocab_size=40))
    assert "tokens" in remark and "vocab_size" in remark
