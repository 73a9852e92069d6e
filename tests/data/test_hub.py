"""Datasets of the hub: which one a name means, which column is read, and what is said when nothing can be read.

The hub itself is out of reach: `load_dataset` reads local files, or is told what to give.
"""

import hashlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import validate_repo_id
from transformers import BertConfig, BertForMaskedLM

from nbtools.data import corpus, tables
from nbtools.data.hub import HubDataset, named
from nbtools.errors import ConfigError, DataError
from nbtools.launcher.checks.step_count import schedule
from nbtools.launcher.preflight import preflight
from nbtools.project import Project
from nbtools.recipes import RECIPES, LLMGANConfig, MaskedDiffusionConfig, MLMPretrainingConfig, TextClassificationConfig
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import write_script
from nbtools.training.masked_diffusion.dataset import cached_data, prepare
from nbtools.training.mlm_pretraining.dataset import tokenize
from nbtools.training.text.tokenizers import word_tokenizer

from trainings import TINY, by_hand, train_here

datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"]
TEXTS = [" ".join(WORDS[(number * step) % 7] for step in range(20)) + f" text{number}" for number in range(60)]
Load = Callable[..., Any]


def read(dataset: HubDataset, *, streaming: bool = True) -> Iterator[str]:
    return tables.texts_of([tables.rows_of_tables([dataset], streaming=streaming)], dataset.column)


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


@pytest.mark.parametrize("name", ["/", "a/..", "../..", ".a/b", "a/b-", "a/b--c", "a..b", "a/b.git", "n" * 97])
@pytest.mark.parametrize("change", ["", "a", "_"])
def test_names_follow_the_rules_of_the_hub_s_own_client(name: str, change: str) -> None:
    for path in (name, f"{name}{change}", f"{change}{name}", name.replace(".", change), name.replace("-", change)):
        try:
            validate_repo_id(path)
        except HFValidationError:
            with pytest.raises(DataError, match=re.escape(f"dataset='hf/{path}"[:100]) + "(.|\n)*letter, a digit or _"):
                named(f"hf/{path}")
        else:
            assert named(f"hf/{path}") == HubDataset(f"hf/{path}", path)
            assert named(f"hf/{path}:en--x,split=test") is not None, "the rules are of names only"


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
    assert whole.endswith("a download of all its files, of which its first 250,000 documents are used")
    assert recipe.count_samples(config, None) is None
    assert schedule(config, 1) is None
    script = write_script(config, "large", project=project)
    (finding,) = [found for found in preflight(script, gpus=()).findings if found.subject == "dataset"]
    assert finding.text.startswith(f"{source.name}; the training counts its samples; evaluations measure at most 2,000")


def test_without_the_package_nothing_is_launched(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "datasets" else real(name))
    script = write_script(MLMPretrainingConfig(dataset="imdb"), "large", project=project)
    (problem,) = preflight(script, gpus=()).problems
    assert "dataset='imdb': downloading needs the package datasets" in problem


def test_options_behind_a_name_choose_split_column_and_revision() -> None:
    found = named("hf/owner/name:part,revision=v1.0,split=validation,column=body")
    assert found is not None
    values = (found.path, found.config, found.split, found.column, found.revision)
    assert values == ("owner/name", "part", "validation", "body", "v1.0")
    assert found.title().startswith("owner/name (part, split validation, v1.0) from the Hugging Face hub, ")
    assert named("data/a,b.csv,column=body") is None
    with pytest.raises(
        ConfigError, match=r"split= belongs to a dataset of the Hugging Face hub .* name the file or fold"
    ):
        MLMPretrainingConfig(dataset="data.csv,split=test")


# --- texts ---


@pytest.mark.promise("guide-M2", "guide-M17")
@pytest.mark.parametrize("streaming", [True, False])
def test_the_library_is_asked_for_name_config_and_streaming(hub_has: Callable[..., list[Any]], streaming: bool) -> None:
    calls = hub_has([{"text": text, "label": 0} for text in TEXTS])
    dataset = named("hf/owner/name:part")
    assert dataset is not None
    assert list(read(dataset, streaming=streaming)) == TEXTS
    assert calls.pop() == (("owner/name", "part"), {"split": "train", "streaming": streaming, "revision": None})
    dataset = named("hf/owner/name,column=text,split=test[:7],revision=v1")
    assert dataset is not None
    assert list(read(dataset)) == TEXTS[:7]
    assert calls == [(("owner/name", None), {"split": "test", "streaming": True, "revision": "v1"})]


def shards(folder: Path, **splits: list[str]) -> Path:
    """Parquet files by split, as repositories of the hub have them."""
    (folder / "data").mkdir(parents=True)
    for split, texts in splits.items():
        rows = datasets.Dataset.from_list([{"number": number, "body": text} for number, text in enumerate(texts)])
        rows.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
    return folder


@pytest.mark.parametrize("streaming", [True, False])
def test_a_split_and_a_part_of_one_are_read_by_the_real_library(tmp_path: Path, streaming: bool) -> None:
    folder = str(shards(tmp_path / "repository", train=TEXTS[10:], test=TEXTS[:10]))
    for split, expected in (("test", TEXTS[:10]), ("train[:5]", TEXTS[10:15]), ("train[50%:]", TEXTS[35:])):
        assert list(read(HubDataset("hf/local", folder, split=split), streaming=streaming)) == expected
    with pytest.raises(DataError, match=r"\(ValueError: .*validation"):
        next(read(HubDataset("hf/local", folder, split="validation"), streaming=streaming))


# --- failures ---


def test_a_missing_package_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # Python's own way to say: not there
    with pytest.raises(DataError, match=r"needs the package datasets, which is not installed: bash scripts/lab\.sh"):
        next(read(HubDataset("imdb", "stanfordnlp/imdb")))


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
        list(read(dataset))
    said = str(caught.value)
    assert said.startswith("dataset='hf': allenai/c4 (en) cannot be read from the Hugging Face hub (")
    assert "Couldn't reach 'allenai/c4' on the Hub); check its name and the network" in said
    assert "dataset=PATH" in said


# --- into the cache ---


def tokenized(tmp_path: Path, **more: Any) -> Path:
    values = {"dataset": "hf", "min_words": 5, "vocab_size": 50, **more}
    return tokenize(tmp_path / "cache", MLMPretrainingConfig().model_copy(update=values)).folder


def in_files(folder: Path) -> str:
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number:03}.txt").write_text(text)
    return str(folder)


def test_what_was_downloaded_becomes_what_the_same_texts_in_files_become(
    hub_has: Callable[..., list[Any]], tmp_path: Path
) -> None:
    hub_has([{"text": text} for text in ["too short", "", *TEXTS]])
    assert tokenized(tmp_path) == tokenized(tmp_path, dataset=in_files(tmp_path / "texts"))


def test_it_is_downloaded_once(hub_has: Callable[..., list[Any]], tmp_path: Path) -> None:
    calls = hub_has([{"text": text} for text in TEXTS])
    first = tokenized(tmp_path)
    assert tokenized(tmp_path) == first
    assert len(calls) == 1
    assert tokenized(tmp_path, vocab_size=8) != first
    assert tokenized(tmp_path, dataset="hf/other/one") == first, "the same texts are the same folder"
    assert len(calls) == 3
    bytes_of = {kind: tokenized(tmp_path, vocab_size=300, tokenizer=kind) for kind in ("words", "byte_bpe")}
    assert len({*bytes_of.values()}) == 2
    calls.pop(), calls.pop()
    shutil.rmtree(first)
    assert tokenized(tmp_path) == first, "what the note names may have been removed"
    assert len(calls) == 4


# --- commits ---


def cached_repository(cache: Path, kind: str, name: str, commit: str, files: Path) -> None:
    """Put files into the hub's cache as a download of the branch main does: blobs, a snapshot of links, a ref."""
    folder = cache / repo_folder_name(repo_id=name, repo_type=kind)
    for part in ("blobs", "refs", f"snapshots/{commit}"):
        (folder / part).mkdir(parents=True)
    for file in files.iterdir():
        blob = folder / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (folder / "snapshots" / commit / file.name).symlink_to(Path("../../blobs") / blob.name)
    (folder / "refs" / "main").write_text(commit)


def test_the_commits_of_model_and_dataset_are_in_config_json(
    hub_has: Callable[..., list[Any]], cpu_project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = word_tokenizer(TEXTS, 80)
    tokenizer.save_pretrained(tmp_path / "model")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained(tmp_path / "model")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "README.md").write_text("# Rows\n")
    cache, commits = tmp_path / "hub", {"owner/bert": "ab" * 20, "owner/rows": "cd" * 20}
    cached_repository(cache, "model", "owner/bert", commits["owner/bert"], tmp_path / "model")
    cached_repository(cache, "dataset", "owner/rows", commits["owner/rows"], tmp_path / "rows")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = scan_cache_dir(cache)
    assert not found.warnings, "it is laid out as the hub's own client does"
    assert {repo.repo_id: repo.refs["main"].commit_hash for repo in found.repos} == commits
    hub_has([{"text": text} for text in TEXTS])
    values = {"dataset": "hf/owner/rows", "model_name": "owner/bert", "max_steps": 1, "dropout": 0.0}
    config = MLMPretrainingConfig(**{**TINY["mlm_pretraining"], **values})

    def recorded(config: MLMPretrainingConfig) -> Any:
        files = train_here(cpu_project, config, monkeypatch=monkeypatch)
        return json.loads(files.config.read_text())["derived"].get("hub_commits")

    assert recorded(config) == commits
    (cache / "datasets--owner--rows" / "refs" / "main").write_text("ef" * 20)  # another program's download
    assert recorded(config) == commits, "a run that reuses the tokenized text has the commit that it was read from"
    local = config.replace(dataset="hf/owner/elsewhere", model_name=str(tmp_path / "model"))
    assert recorded(local) is None, "a local model has none, and what the cache does not tell is not invented"


def test_a_changed_tokenizer_of_a_local_model_tokenizes_again(
    hub_has: Callable[..., list[Any]], tmp_path: Path
) -> None:
    hub_has([{"text": text} for text in TEXTS])
    made = []
    for size in (8, 9):
        word_tokenizer(TEXTS, size).save_pretrained(tmp_path / "model")
        made.append(tokenized(tmp_path, model_name=str(tmp_path / "model")))
    assert made[0] != made[1]


@pytest.mark.parametrize("name", ["imdb", "hf"])
def test_a_name_of_the_hub_that_is_also_a_path_is_asked_about(
    hub_has: Callable[..., list[Any]], project: Project, name: str
) -> None:
    calls = hub_has([{"text": text} for text in TEXTS])
    (project.root / name).mkdir()
    said = rf"dataset='{name}': {name} is a file or folder here, and .*: write \./{name} or hf/(stan|allenai/c4:en)"
    diffusion = MaskedDiffusionConfig(dataset=name)
    for key, config in (
        ("masked_diffusion", diffusion),
        ("text_classification", TextClassificationConfig(dataset=name)),
        ("llm_gan", LLMGANConfig(dataset=name)),
    ):
        with pytest.raises(DataError, match=said):
            RECIPES[key].source(config, project.root)
    with pytest.raises(DataError, match=said):
        cached_data(project.runs, diffusion, project.root)
    assert calls == []
    (project.root / name).rmdir()
    prepare(None, project.root / name, tokenizer="chars", vocab_size=50, min_words=1, clean="none")
    assert [file.parent.name for file in RECIPES["masked_diffusion"].source(diffusion, project.root).files] == [
        name
    ] * 2
    assert schedule(diffusion, 1, root=project.root) is not None, "a prepared folder comes first, as in the training"
    mlm = MLMPretrainingConfig(dataset=name)
    assert "Hugging Face hub" in RECIPES["mlm_pretraining"].source(mlm, project.root).name


ONE_READER = """
import datasets
from nbtools.errors import DataError
from nbtools.recipes import LLMGANConfig, TextClassificationConfig
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.worker import run
from nbtools.training.llm_gan.dataset import text_data
from nbtools.training.text_classification import train as classification

def train(worker, config):
    rows = [{"human_story": f"once upon a time {number}"} for number in range(30)]

    def load_dataset(*args, **options):
        assert worker.is_main
        if not rows:
            raise ConnectionError("the hub is down")
        return datasets.Dataset.from_list(rows)

    datasets.load_dataset = load_dataset
    assert worker.sum([len(text_data(worker, config).train.texts_NT)])[0] > 2
    rows.clear()
    try:
        classification.train(worker, TextClassificationConfig(dataset="hf/a/b"))
    except DataError as error:
        (worker.files.path / f"told-{worker.rank}").write_text(str(error))

run(train, Flags(LLMGANConfig(dataset="hf/a/b,split=train[:30]", min_chars=5)))
"""


@pytest.mark.slow
def test_one_rank_reads_the_hub_for_all_and_its_error_is_that_of_all(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunDir.create(cpu_project.runs, "reads")
    monkeypatch.setenv("NBTOOLS_RUN_DIR", str(files.path))
    with by_hand(cpu_project) as start:
        start.script.write_text(ONE_READER)
        codes, log = start.ended(start.script)
    assert codes == [0, 0], log
    said = {(files.path / f"told-{rank}").read_text() for rank in range(2)}
    assert len(said) == 1 and "the hub is down" in said.pop()


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(DataError, match="has column= twice; keep one"):
        named("hf/a/b,column=a,split=test,column=b")


def test_no_more_documents_are_taken_than_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def rows() -> Iterator[dict[str, str]]:
        for number, text in enumerate(["too short", *TEXTS]):
            taken.append(number)
            yield {"text": text}

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows())
    folder = tokenized(tmp_path, max_samples=10)
    separators = sum(int((np.load(folder / f"{name}_data.npy") == 2).sum()) for name in ("train", "val", "test"))
    assert separators == 10
    assert len(taken) == 11, "the one that is too short does not count"


def test_max_samples_takes_the_beginning_of_a_file_too(tmp_path: Path) -> None:
    path = in_files(tmp_path / "texts")
    folder = tokenized(tmp_path, dataset=path, max_samples=10)
    tokens = {name: np.load(folder / f"{name}_data.npy") for name in ("train", "val", "test")}
    config = MLMPretrainingConfig(dataset=path, max_samples=10, batch_size=1, sequence_length=8)
    counted = schedule(config, 1)
    assert counted is not None
    sizes = counted.num_train_samples, counted.num_eval_samples
    assert sizes == (len(tokens["train"]) // 8, len(tokens["val"]) // 8)
    assert sum(map(len, tokens.values())) == sum(corpus.num_words(text) + 1 for text in TEXTS[:10])
