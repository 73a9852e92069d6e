"""Datasets of the hub: which one a name means, which column is read, and what is said when nothing can be read.

The hub itself is out of reach: `load_dataset` reads local files, or is told what to give.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from nbtools.data import corpus
from nbtools.data.hub import HubDataset, named
from nbtools.errors import ConfigError, DataError, LaunchError
from nbtools.launcher.preflight import preflight
from nbtools.launcher.step_count import schedule
from nbtools.project import Project
from nbtools.recipes import RECIPES, MLMPretrainingConfig
from nbtools.script.script import write_script
from nbtools.training.text import hub
from nbtools.training.text.tokenized import tokenize

datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"]
TEXTS = [" ".join(WORDS[(number * step) % 7] for step in range(20)) + f" text{number}" for number in range(60)]
Load = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


@pytest.fixture
def hub_has(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[dict[str, Any]]], list[Any]]:
    """Let every dataset of the hub have these rows; returns the calls that were made."""

    def have(rows: list[dict[str, Any]]) -> list[Any]:
        calls: list[Any] = []

        def load_dataset(*args: Any, **options: Any) -> Any:
            calls.append((args, options))
            found = datasets.Dataset.from_list(rows)
            return found.to_iterable_dataset() if options["streaming"] else found

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return calls

    return have


# --- names ---


@pytest.mark.parametrize(
    ("dataset", "path", "config", "most"),
    [
        ("imdb", "stanfordnlp/imdb", None, None),
        ("hf", "allenai/c4", "en", 500_000),
        ("hf/Salesforce/wikitext:wikitext-2-raw-v1", "Salesforce/wikitext", "wikitext-2-raw-v1", None),
        ("hf/roneneldan/TinyStories", "roneneldan/TinyStories", None, None),
    ],
)
def test_a_name_means_a_dataset_of_the_hub(dataset: str, path: str, config: str | None, most: int | None) -> None:
    assert named(dataset) == HubDataset(dataset, path, config, most)


@pytest.mark.parametrize("dataset", [None, "texts", "imdb.txt", "./imdb", "data/hf", "/data/hf/a"])
def test_everything_else_is_a_path(dataset: str | None) -> None:
    assert named(dataset) is None


@pytest.mark.parametrize("dataset", ["hf/", "hf/a/b/c", "hf/a b", "hf/a/b:", "hf/../../x", "hf/a/b:c:d", "hf/a\nb"])
def test_a_name_that_the_hub_cannot_have_is_refused_by_the_config(dataset: str) -> None:
    with pytest.raises(ConfigError, match=r"a dataset of the Hugging Face hub is named hf/OWNER/NAME"):
        MLMPretrainingConfig(dataset=dataset)


def test_what_is_downloaded_is_said_beforehand(project: Project) -> None:
    recipe = RECIPES["mlm_pretraining"]
    config = MLMPretrainingConfig(dataset="hf", max_samples=250_000)
    source = recipe.source(config, None)
    assert source.files == ()
    assert source.name == "allenai/c4 (en) from the Hugging Face hub, a download of its first 250,000 documents"
    assert "first 500,000 documents" in recipe.source(config.replace(max_samples=None), None).name
    assert recipe.source(MLMPretrainingConfig(dataset="imdb"), None).name.endswith("a download of all its documents")
    whole = recipe.source(config.replace(streaming=False), None).name
    assert whole.endswith("a download of all its files, of which its first 250,000 documents are taken")
    assert recipe.count_samples(config, None, ()) is None
    assert schedule(config, 1) is None
    script = write_script(config, "large", project=project)
    (finding,) = [found for found in preflight(script, gpus=()).findings if found.subject == "dataset"]
    assert finding.text == f"{source.name}; the training counts its samples"


def test_without_the_package_nothing_is_launched(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", without_datasets(sys.modules["importlib.util"].find_spec))
    script = write_script(MLMPretrainingConfig(dataset="imdb"), "large", project=project)
    with pytest.raises(LaunchError, match=r"dataset='imdb': downloading needs the package datasets"):
        preflight(script, gpus=())


def without_datasets(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda name, *more: None if name == "datasets" else real(name, *more)


# --- texts ---


@pytest.mark.promise("guide-M2", "guide-M17")
@pytest.mark.parametrize("streaming", [True, False])
def test_the_library_is_asked_for_name_config_and_streaming(hub_has: Callable[..., list[Any]], streaming: bool) -> None:
    calls = hub_has([{"text": text, "label": 0} for text in TEXTS])
    dataset = named("hf/owner/name:part")
    assert dataset is not None
    assert list(hub.texts(dataset, streaming=streaming)) == TEXTS
    assert calls == [(("owner/name", "part"), {"split": "train", "streaming": streaming})]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_files_are_read_as_the_hub_has_them(tmp_path: Path, suffix: str, streaming: bool) -> None:
    """A folder of files is what a dataset of the hub is: the library's own loading, with nothing replaced."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    rows = datasets.Dataset.from_list([{"number": number, "body": text} for number, text in enumerate(TEXTS)])
    write = {"jsonl": rows.to_json, "parquet": rows.to_parquet, "csv": rows.to_csv}[suffix]
    write(str(folder / f"train.{suffix}"))
    assert list(hub.texts(HubDataset("hf/local", str(folder)), streaming=streaming)) == TEXTS


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"url": "a", "text": "b", "timestamp": "c"}, "text"),
        ({"title": "a", "text": None}, "text"),
        ({"label": 1, "sentence": "b"}, "sentence"),
    ],
)
def test_the_column_of_text_is_found(row: dict[str, Any], column: str) -> None:
    assert hub.text_column(row, HubDataset("hf/a/b", "a/b")) == column


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"premise": "a", "hypothesis": "b"},
            r"several columns of text \(premise, hypothesis\) and none called 'text'",
        ),
        ({"audio": [1, 2], "label": 3}, r"no text, only audio, label"),
    ],
)
def test_no_column_or_several_are_named(row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=rf"dataset='hf/a/b': a/b has {said}"):
        hub.text_column(row, HubDataset("hf/a/b", "a/b"))


def test_a_missing_text_is_empty_and_one_that_is_no_text_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [{"text": "a"}, {"text": None}, {"text": ["b"]}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
    texts = hub.texts(HubDataset("hf/a/b", "a/b"))
    assert [next(texts), next(texts)] == ["a", ""]
    with pytest.raises(DataError, match="column 'text' of a/b holds list beside text"):
        next(texts)


# --- failures ---


def test_a_missing_package_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # Python's own way to say: not there
    with pytest.raises(DataError, match=r"needs the package datasets, which is not installed: bash scripts/lab\.sh"):
        next(hub.texts(HubDataset("imdb", "stanfordnlp/imdb")))


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_hub_that_cannot_be_reached_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    def load_dataset(*_: Any, **__: Any) -> Iterator[dict[str, str]]:
        if when == "at once":
            raise ConnectionError("Couldn't reach 'allenai/c4' on the Hub\nand more")
        return torn()

    def torn() -> Iterator[dict[str, str]]:
        yield {"text": "a"}
        raise TimeoutError("Couldn't reach 'allenai/c4' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    dataset = named("hf")
    assert dataset is not None
    with pytest.raises(DataError) as caught:
        list(hub.texts(dataset))
    said = str(caught.value)
    assert said.startswith("dataset='hf': allenai/c4 (en) cannot be read from the Hugging Face hub (")
    assert "Couldn't reach 'allenai/c4' on the Hub); check its name and the network" in said
    assert "dataset=PATH" in said


def test_a_dataset_without_the_split_or_config_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "only to test on"}))
    for config in (None, "other"):
        with pytest.raises(DataError, match=r"cannot be read from the Hugging Face hub \(ValueError: "):
            next(hub.texts(HubDataset("hf/a/b", str(tmp_path), config)))


# --- into the cache ---


def tokenized(tmp_path: Path, **more: Any) -> Path:
    values = {"dataset": "hf", "min_words": 5, "vocab_size": 50, **more}
    return tokenize(tmp_path / "cache", MLMPretrainingConfig().model_copy(update=values))


def test_what_was_downloaded_becomes_what_the_same_texts_in_files_become(
    hub_has: Callable[..., list[Any]], tmp_path: Path
) -> None:
    hub_has([{"text": text} for text in ["too short", "", *TEXTS]])
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{number:03}.txt").write_text(text)
    assert tokenized(tmp_path) == tokenized(tmp_path, dataset=str(tmp_path / "texts"))


def test_it_is_downloaded_once(hub_has: Callable[..., list[Any]], tmp_path: Path) -> None:
    calls = hub_has([{"text": text} for text in TEXTS])
    first = tokenized(tmp_path)
    assert tokenized(tmp_path) == first
    assert len(calls) == 1
    assert tokenized(tmp_path, vocab_size=8) != first
    assert tokenized(tmp_path, dataset="hf/other/one") == first, "the same texts are the same folder"
    assert len(calls) == 3
    for file in (first, first / "tokenizer"):
        for path in [path for path in file.iterdir() if path.is_file()]:
            path.unlink()
    (first / "tokenizer").rmdir()
    first.rmdir()
    assert tokenized(tmp_path) == first, "what the note names may have been removed"
    assert len(calls) == 4


def test_no_more_documents_are_taken_than_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def rows() -> Iterator[dict[str, str]]:
        for number, text in enumerate(["too short", *TEXTS]):
            taken.append(number)
            yield {"text": text}

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows())
    folder = tokenized(tmp_path, max_samples=10)
    separators = sum(int((np.load(folder / f"{name}.npy") == 2).sum()) for name in ("train", "eval", "test"))
    assert separators == 10
    assert len(taken) == 11, "the one that is too short does not count"


def test_max_samples_takes_the_beginning_of_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{number:03}.txt").write_text(text)
    path = str(tmp_path / "texts")
    folder = tokenized(tmp_path, dataset=path, max_samples=10)
    tokens = {name: np.load(folder / f"{name}.npy") for name in ("train", "eval", "test")}
    config = MLMPretrainingConfig(dataset=path, max_samples=10, batch_size=1, sequence_length=8)
    counted = schedule(config, 1)
    assert counted is not None
    assert counted.num_train_samples == len(tokens["train"]) // 8
    assert counted.num_eval_samples == len(tokens["eval"]) // 8
    assert sum(map(len, tokens.values())) == sum(corpus.num_words(text) + 1 for text in TEXTS[:10])


def test_importing_the_training_does_not_load_the_library() -> None:
    assert isinstance(hub, ModuleType)
    assert "datasets" not in vars(hub)
