"""Which files the `dataset` of a config names, and which paths are refused with what to do."""

from pathlib import Path

import pytest
from split_corpus import read_documents

from nbtools.data import corpus, data_files
from nbtools.errors import DataError
from nbtools.recipes import LLMGANConfig, MLMPretrainingConfig, TextClassificationConfig
from nbtools.recipes.llm_gan import load_stories
from nbtools.recipes.text_classification import load_samples
from nbtools.training.mlm_pretraining.dataset import tokenize

TEXTS = [f'line one, "{number}"\r\n  line two\t; |{"so it goes " * (number % 5)} 字' for number in range(40)]


def test_a_relative_path_starts_from_the_project_root_and_not_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "text.txt").write_text("The quick brown fox.\n\n" * 40)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert data_files.dataset_path("text.txt") == tmp_path / "text.txt"
    assert read_documents("text.txt")
    monkeypatch.chdir("/")
    assert read_documents("text.txt", root=tmp_path)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dataset '.*/none': no such file or folder; give a text file, a table"):
        read_documents(str(tmp_path / "none"))


def test_a_missing_table_is_named_with_what_its_recipe_reads_and_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").touch()
    with pytest.raises(DataError) as error:
        data_files.sources_of("jobz.csv", tmp_path)
    assert "text" not in str(error.value).partition("no such")[2]
    assert str(error.value).endswith(") or a folder of tables; did you mean jobs.csv?")


def test_a_folder_without_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.docx").touch()
    with pytest.raises(DataError, match=r"no \.txt file in this folder or below"):
        read_documents(str(tmp_path))


@pytest.mark.parametrize("dataset", ["a\0b", "x" * 10_000, "/dev/zero", "$(touch p)", "a\nb", "\ud800"])
def test_a_hostile_path_is_a_clear_error(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_documents(dataset, root=tmp_path)
    assert len(str(caught.value)) < 400
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_folder_that_are_not_read_are_said_and_txt_is_read_in_any_case(tmp_path: Path) -> None:
    for name in ("a.txt", "B.TXT", "c.md", "deep/d.txt.gz", ".hidden/e.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"words of {name}\n\n" * 30)
    left_out = corpus.LeftOut()
    found = list(corpus.documents(str(tmp_path), left_out=left_out))
    assert "".join(found) == "words of B.TXT\n\n" * 30 + "words of a.txt\n\n" * 30
    assert left_out.notes(1) == ["2 files of other types left out: c.md, deep/d.txt.gz"]
    said: list[str] = []
    config = MLMPretrainingConfig(dataset=str(tmp_path), min_words=1, sequence_length=8, batch_size=1)
    tokenize(tmp_path / "cache", config, say=said.append)
    assert "note: 2 files of other types left out: c.md, deep/d.txt.gz" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.jsonl.zst", "compressed with Zstandard, which is not read; unpack it, or save it as text and tables"),
        ("a.jsonl.xz", "compressed with xz, which is not read"),
        ("a.csv.bz2", "compressed with bzip2, which is not read"),
        ("a.csv.zip", "a ZIP archive, which is not read"),
        ("a.tar.gz", "a tar archive, which is not read"),
        ("a.xlsx", "an Excel workbook, which is not read"),
        ("a.arrow", "an Arrow file, which is not read"),
    ],
)
def test_a_file_that_is_neither_text_nor_a_table_is_called_what_it_is(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    configs = LLMGANConfig(dataset=name), TextClassificationConfig(dataset=name)
    for read in (
        lambda: list(corpus.documents(name, root=tmp_path)),
        lambda: load_stories(configs[0], tmp_path),
        lambda: load_samples(configs[1], tmp_path),
    ):
        with pytest.raises(DataError, match=said):
            read()


def test_a_folder_of_save_to_disk_is_refused_with_what_to_do(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"text": TEXTS})
    made.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": made}).save_to_disk(str(tmp_path / "dict"))
    for name, part in (("one", ""), ("dict", r'\["train"\]')):
        with pytest.raises(
            DataError, match=rf"a folder of save_to_disk, .*/{name}'\){part}\.to_parquet\(.*hf/OWNER/NAME"
        ):
            list(corpus.documents(str(tmp_path / name)))
    datasets.load_from_disk(str(tmp_path / "one")).to_parquet(str(tmp_path / "one.parquet"))
    assert list(corpus.documents(str(tmp_path / "one.parquet"))) == TEXTS


@pytest.mark.parametrize(
    ("dataset", "meant"),
    [
        ("roneneldan/TinyStories", "hf/roneneldan/TinyStories"),
        ("https://huggingface.co/datasets/roneneldan/TinyStories", "hf/roneneldan/TinyStories"),
        ("https://huggingface.co/datasets/roneneldan/TinyStories/tree/main", "hf/roneneldan/TinyStories"),
        ("hf://datasets/roneneldan/TinyStories", "hf/roneneldan/TinyStories"),
        ("texts/missing.txt", None),
        ("missing", None),
        ("here/missing", None),
    ],
)
def test_a_missing_path_that_may_be_a_dataset_of_the_hub_says_its_spelling(
    tmp_path: Path, dataset: str, meant: str | None
) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(DataError, match="no such file or folder; give") as error:
        list(corpus.documents(dataset, root=tmp_path))
    end = f"; a dataset of the Hugging Face hub is named {meant}" if meant else "a folder of .txt files"
    assert str(error.value).endswith(end)
