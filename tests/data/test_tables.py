"""Tables of all kinds: the same rows from each, a column of text, and errors with the place of what is wrong."""

import csv
import datetime
import decimal
import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbtools.data import corpus, data_files, tables
from nbtools.data.masked_diffusion.pairs import has_pairs
from nbtools.errors import DataError
from nbtools.launcher.checks.step_count import schedule
from nbtools.launcher.preflight import preflight
from nbtools.project import Project
from nbtools.recipes import LLMGANConfig, MaskedDiffusionConfig, MLMPretrainingConfig, TextClassificationConfig
from nbtools.recipes.llm_gan import load_stories
from nbtools.recipes.text_classification import load_samples
from nbtools.script.script import write_script
from nbtools.training.masked_diffusion.dataset import cached_data, open_cached
from nbtools.training.mlm_pretraining.dataset import tokenize

parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `data` is not installed")
pyarrow = pytest.importorskip("pyarrow")

TEXTS = [f'line one, "{number}"\r\n  line two\t; |{"so it goes " * (number % 5)} 字 👩‍👩‍👧' for number in range(40)]
ROWS: list[dict[str, Any]] = [{"number": number, "text": text} for number, text in enumerate(TEXTS)]


def write_csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], object]] = {
    ".jsonl": lambda path, rows: path.write_text("\n\n".join(map(json.dumps, rows))),
    ".ndjson": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows))),
    ".json": lambda path, rows: path.write_text(json.dumps(rows, indent=1)),
    ".lines.json": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows))),
    ".parquet": lambda path, rows: parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7),
    ".csv": write_csv,
    ".tsv": lambda path, rows: write_csv(path, rows, "\t"),
}


def written(folder: Path, suffix: str, rows: list[dict[str, Any]] = ROWS, name: str = "data") -> Path:
    """Write rows as a file of this kind."""
    plain = folder / f"{name}{suffix.removesuffix('.gz')}"
    WRITERS[suffix.removesuffix(".gz")](plain, rows)
    if not suffix.endswith(".gz"):
        return plain
    packed = plain.with_name(plain.name + ".gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return packed


@pytest.mark.promise("safety-text")
@pytest.mark.parametrize("suffix", [*WRITERS, ".jsonl.gz", ".csv.gz", ".tsv.gz"])
def test_each_kind_of_table_gives_its_texts_character_by_character(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path, suffix)
    assert list(corpus.documents(str(path))) == TEXTS
    with tables.opened(path) as (header, rows):
        assert (header, [list(cells) for _, cells in rows]) == (
            ["number", "text"],
            [[str(number), text] for number, text in enumerate(TEXTS)],
        )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_form_and_training_count_the_same_rows_of_a_table(project: Project, suffix: str) -> None:
    name = written(project.root, suffix, [{"id": 7, "body": text, "title": "x"} for text in TEXTS]).name
    mlm = MLMPretrainingConfig(dataset=f"{name},column=body", sequence_length=8, batch_size=1, min_words=3)
    counted = schedule(mlm, 1, root=project.root)
    folder = tokenize(project.runs, mlm, project.root).folder
    assert counted is not None
    sizes = [len(np.load(folder / f"{part}_data.npy")) // 8 for part in ("train", "val", "test")]
    assert sizes == [counted.num_train_samples, counted.num_eval_samples, counted.num_test_samples]
    diffusion = MaskedDiffusionConfig(dataset=f"{name},column=body", sequence_length=8, batch_size=1)
    counted = schedule(diffusion, 1, root=project.root)
    opened = open_cached(cached_data(project.runs, diffusion, project.root).folder, diffusion)
    assert counted is not None and not opened.has_pairs
    sizes = [len(opened.train), len(opened.evaluation), len(opened.test)]
    assert sizes == [counted.num_train_samples, counted.num_eval_samples, counted.num_test_samples]
    script = write_script(mlm, "table", project=project)
    (finding,) = [found for found in preflight(script, gpus=()).findings if found.subject == "dataset"]
    assert finding.text.startswith(f"{name},column=body: 1 file, ")


def test_a_folder_of_shards_is_read_in_order_and_two_kinds_are_refused(tmp_path: Path) -> None:
    for shard in (1, 0):
        written(tmp_path, ".parquet", ROWS[20 * shard : 20 * shard + 20], f"train-{shard}")
    assert list(corpus.documents(str(tmp_path))) == TEXTS
    written(tmp_path, ".json", name="dataset_infos")
    with pytest.raises(DataError, match=r"has tables of 2 kinds \(\.json \.parquet\); name one file"):
        data_files.files_in(tmp_path)
    (tmp_path / "README.txt").write_text("text")
    with pytest.raises(DataError, match=r"holds text files \(README\.txt, \.\.\.\) and tables \(train-0\.parquet, "):
        data_files.files_in(tmp_path)


def test_a_folder_of_texts_and_json_is_one_of_texts(tmp_path: Path) -> None:
    written(tmp_path, ".json", name="metadata")
    (tmp_path / "a.txt").write_text("text")
    assert data_files.files_in(tmp_path) == [tmp_path / "a.txt"]


def test_hidden_shards_are_not_read_and_those_of_two_splits_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".ipynb_checkpoints").mkdir()
    written(tmp_path / ".ipynb_checkpoints", ".csv", name="train-0-checkpoint")
    kept = written(tmp_path, ".csv", name="train-0")
    assert data_files.files_in(tmp_path) == [kept]
    (tmp_path / "deep").mkdir()
    written(tmp_path / "deep", ".csv", name="Validation_1")
    with pytest.raises(DataError, match=r"tables of 2 splits \((deep/Validation_1|train-0)\.csv, .*name one file"):
        data_files.files_in(tmp_path)


def test_a_column_that_the_first_row_leaves_open_is_asked_for(tmp_path: Path) -> None:
    path = str(written(tmp_path, ".jsonl", [{"title": "t1", "body": None}, {"title": "t2", "body": "long"}]))
    with pytest.raises(DataError, match=r"line 1: several columns of text \(title, body\).*,column=title"):
        list(corpus.documents(path))
    left_out = corpus.LeftOut()
    assert list(corpus.documents(f"{path},column=body", left_out=left_out)) == ["long"]
    assert left_out.notes(1) == ["1 of 2 rows left out: no text in the column"]
    assert tables.text_column("row 1", {"title": "a", "text": None}) == "text"
    for key in ("body", "text"):
        later = str(written(tmp_path, ".jsonl", [{"title": "t1"}, {"title": "t2", key: "long"}], "later"))
        with pytest.raises(DataError, match=rf"line 3: column '{key}' holds text and is not in the first row; .*title"):
            list(corpus.documents(later))
        assert list(corpus.documents(f"{later},column={key}")) == ["long"]
    written(tmp_path, ".jsonl", [{"title": "t"}] * 1001, "none")
    with pytest.raises(
        DataError, match=r"none\.jsonl, line 1: the first row has no column 'body', .* the 1,000th; name"
    ):
        list(corpus.documents(str(tmp_path / "none.jsonl,column=body")))


def test_a_key_of_a_later_row_is_a_column(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"human_story": f"once upon a time {n}"} for n in range(30)]
    rows[7]["genre"] = "fable"
    stories = load_stories(LLMGANConfig(dataset=str(written(tmp_path, ".jsonl", rows)), min_chars=5))
    assert [story.prompt for part in stories for story in part if story.prompt] == ["genre: fable"]


def test_columns_of_parquet_that_are_two_of_one_name_or_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.parquet"
    parquet.write_table(pyarrow.table([["a"], ["b"]], names=["text", "text"]), path)
    with pytest.raises(DataError, match=r"column 'text': appears 2 times; rename one"):
        list(corpus.documents(str(path)))
    path = written(tmp_path, ".parquet", [{"a": 1}], "numbers")
    with pytest.raises(DataError, match=r"numbers\.parquet, row 1: has no column of text, only 'a': int; give a table"):
        list(corpus.documents(str(path)))


def test_a_value_that_python_lacks_is_an_error_unless_its_column_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "dates.parquet"
    dates = pyarrow.array([10**13], pyarrow.timestamp("s"))
    parquet.write_table(pyarrow.table({"text": ["a text"], "date": dates}), path)
    with pytest.raises(DataError, match=r"dates\.parquet, rows 1 to 1: a value cannot be read \(.*,column=NAME"):
        list(corpus.documents(str(path)))
    assert list(corpus.documents(f"{path},column=text")) == ["a text"]
    config = MaskedDiffusionConfig(dataset=f"{path},column=text")
    assert data_files.tables_in(config.dataset or "") and not has_pairs([path], "text")


def test_cells_may_be_as_long_as_lines_and_tsv_has_tabs(tmp_path: Path) -> None:
    path, before = tmp_path / "long.tsv", csv.field_size_limit()
    path.write_text("a,b,c,d\ttext\n1,2,3,4\t" + "x" * 1_000_001 + "\n")
    found = [(len(text), csv.field_size_limit()) for text in corpus.documents(f"{path},column=text")]
    assert sum(length for length, _ in found) == 1_000_001
    assert {limit for _, limit in found} == {before}, "the limit of other code stays"
    path.write_text("text\n" + "x" * (16 * 2**20 + 1) + "\n")
    with pytest.raises(DataError, match=r"line 2: longer than 16,777,216 bytes; split it"):
        list(corpus.documents(str(path)))


TWO, NOTHING, DATA = '{"a": "x", "b": "y"}', "nothing of the kind", {"data": [{"text": "x"}]}
SHAPE = r" \(write the objects alone, one per line"
WRONG: list[tuple[str, str | bytes, str]] = [
    ("two.jsonl", TWO, r"two\.jsonl, line 1: several columns of text \(a, b\) and none .* ,column=a"),
    ("two.jsonl,column=c", TWO, r"line 1: the first row has no column 'c', only 'a', 'b'; .* ,column=a"),
    ("mixed.jsonl", '{"a": "x"}\n\n{"a": 1}', r"mixed\.jsonl, line 3: column 'a' holds int beside text"),
    ("half.jsonl", r'{"a": "\ud800"}', r"half\.jsonl, line 1: column 'a' holds half of a surrogate pair"),
    (
        "cut.jsonl.gz",
        gzip.compress(TWO.encode(), mtime=0)[:-9],
        r"cut\.jsonl\.gz: cannot be read: Compressed file ended",
    ),
    ("bad.parquet", NOTHING, r"bad\.parquet: cannot be read as Parquet"),
    ("bad.jsonl.gz", NOTHING, r"bad\.jsonl\.gz: cannot be read"),
    ("bad.csv.gz", NOTHING, r"bad\.csv\.gz: cannot be read"),
    ("bad.json", '[{"a": "x"}', r"bad\.json: not JSON"),
    ("list.json", '[{"a": "x"}, "y"]', r"list\.json, row 2: not an object"),
    ("text.txt,column=a", NOTHING, r"text\.txt is text without columns; leave out ,column=a"),
    ("pretty.jsonl", json.dumps([{"text": "x"}], indent=1), r"line 1: not JSON in one line \(a list over several"),
    ("object.json", json.dumps(DATA, indent=1), r"line 1: not JSON in one line \(a list over"),
    ("line.json", json.dumps(DATA), "only 'data': list" + SHAPE),
    ("columns.json", '{"text": {"0": "x"}}', "only 'text': dict" + SHAPE),
    ("index.csv", ",a,b\n0,x,longer\n", r"several columns of text \(a, b\) and none .*,column=b\Z"),
    ("twice.csv", "text,text\na,b\n", r"column 'text': appears 2 times; rename one"),
]


@pytest.mark.parametrize(("dataset", "content", "said"), WRONG)
def test_what_cannot_be_read_is_named_with_the_choices(
    tmp_path: Path, dataset: str, content: str | bytes, said: str
) -> None:
    (tmp_path / dataset.partition(",")[0]).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=said):
        list(corpus.documents(dataset, root=tmp_path))


def test_parquet_without_its_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, ".parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # Python's own way to say: not there
    with pytest.raises(DataError, match=r"data\.parquet: reading Parquet needs the package pyarrow.*lab\.sh"):
        list(corpus.documents(str(path)))


def test_a_column_that_is_not_read_may_hold_anything(tmp_path: Path) -> None:
    extra = [datetime.datetime(2026, 1, 2), datetime.date(2026, 1, 2), decimal.Decimal("1.5"), b"x", {"a": 1}, [1]]
    rows = [{"text": f"once upon {n}", "code1": n % 2, **{f"c{k}": v for k, v in enumerate(extra)}} for n in range(30)]
    path = written(tmp_path, ".parquet", rows)
    assert sum(map(len, load_stories(LLMGANConfig(dataset=str(path), min_chars=5)))) == 30
    codes = TextClassificationConfig(dataset=str(path), text_col="text", formatter="generic")
    assert len(load_samples(codes).train) == 30
    for name in ("c0", "c3", "c4"):
        with pytest.raises(DataError, match=rf"data\.parquet, row 1, column '{name}': holds \w+, not text"):
            load_stories(LLMGANConfig(dataset=str(path), prompt_cols=(name,), min_chars=5))
        with pytest.raises(DataError, match=rf"data\.parquet, row 1, column '{name}': holds \w+, not text"):
            load_samples(codes.replace(text_col=name))


def test_half_of_a_surrogate_pair_is_named_with_its_row_and_column(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": f"once {n} \U0001f600", "code1": n % 2} for n in range(30)]
    rows[4]["text"] = "once \ud800 more"
    path = str(written(tmp_path, ".jsonl", rows))
    said = r"data\.jsonl, line 9, column 'text' holds half of a surrogate pair, which is not a character; correct it"
    with pytest.raises(DataError, match=said):
        load_stories(LLMGANConfig(dataset=path, min_chars=5))
    with pytest.raises(DataError, match=said):
        load_samples(TextClassificationConfig(dataset=path, text_col="text", formatter="generic"))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl.gz"])
def test_recipes_with_several_columns_read_the_shards_of_a_folder_in_order(tmp_path: Path, suffix: str) -> None:
    rows = [{"title": f"t{n}", "text": f"once upon a time {n}", "code1": n % 3} for n in range(40)]
    whole = written(tmp_path, suffix, rows, "whole")
    for shard in (1, 0):
        columns = ["code1", "text", "title"] if shard else list(rows[0])
        part = [{name: row[name] for name in columns} for row in rows[20 * shard : 20 * shard + 20]]
        (tmp_path / "shards").mkdir(exist_ok=True)
        written(tmp_path / "shards", suffix, part, f"train-{shard}")
    gan, codes = LLMGANConfig(min_chars=5), TextClassificationConfig(text_col="text", formatter="generic")
    found = []
    with pytest.raises(DataError, match=r"leave out ,column="):
        load_stories(gan.replace(dataset=f"{whole},column=text"))
    for name in (whole, tmp_path / "shards"):
        samples = load_samples(codes.replace(dataset=str(name)))
        texts = [samples.train.text(row) for row in range(len(samples.train))]
        assert texts == [row["text"] for row in rows]
        found.append((load_stories(gan.replace(dataset=str(name))), samples.train_rows.tolist(), samples.system.codes))
    assert found[0] == found[1]
    counted = schedule(codes.replace(dataset="shards", max_steps=4, batch_size=2), 1, root=tmp_path)
    assert counted is not None and counted.num_train_samples == len(found[0][1])
    written(tmp_path / "shards", suffix, [{"title": "t", "body": "b", "code1": 1}], "train-2")
    with pytest.raises(
        DataError, match=r"train-2\..*: has the columns 'title', 'body', 'code1' and .*train-0.* need the"
    ):
        load_stories(gan.replace(dataset=str(tmp_path / "shards")))
    with pytest.raises(
        DataError, match=r"train-2\..*, line 1, column 'text': is missing; the file has 'title', 'body'"
    ):
        load_samples(codes.replace(dataset=str(tmp_path / "shards")))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text")
    with pytest.raises(DataError, match=r"texts': a text folder; this recipe reads tables: \.parquet \.jsonl"):
        load_stories(gan.replace(dataset=str(tmp_path / "texts")))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_shard_without_the_column_of_text_is_named(tmp_path: Path, suffix: str) -> None:
    written(tmp_path, suffix, [{"text": "one"}], "train-0")
    written(tmp_path, suffix, [{"body": "two"}], "train-1")
    with pytest.raises(DataError, match=r"train-1.*: the first row has no column 'text', only 'body'; all files of a"):
        list(corpus.documents(str(tmp_path)))


def test_the_index_of_pandas_is_no_column_of_text_and_binary_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.csv").write_text(",body\n0,one\n1,two\n")
    assert list(corpus.documents(str(tmp_path / "index.csv"))) == ["one", "two"]
    path = written(tmp_path, ".parquet", [{"text": b"one"}])
    with pytest.raises(DataError, match=r"only 'text': bytes \(decode it and write strings\); give a table with text"):
        list(corpus.documents(str(path)))


def test_the_name_of_the_only_column_is_said_unless_it_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("once\nupon\n")
    (tmp_path / "b.csv").write_text("text\nupon\n")
    left_out = corpus.LeftOut()
    assert list(corpus.documents(str(tmp_path / "a.csv"), left_out=left_out)) == ["upon"]
    assert left_out.notes(1) == ["the first line of a.csv, 'once', is the name of its column; add one if it is text"]
    for name in ("a.csv,column=once", "b.csv"):
        left_out = corpus.LeftOut()
        assert list(corpus.documents(str(tmp_path / name), left_out=left_out)) == ["upon"]
        assert left_out.notes(1) == []


ENCODINGS = [
    ("utf-16", b""),
    ("utf-16-le", b"\xff\xfe"),
    ("utf-16-be", b"\xfe\xff"),
    ("utf-32", b""),
    ("utf-8-sig", b""),
]


@pytest.mark.promise("safety-encoding")
@pytest.mark.parametrize(("encoding", "mark"), ENCODINGS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv.gz", ".jsonl", ".json", ".txt"])
def test_a_byte_order_mark_says_the_encoding(tmp_path: Path, suffix: str, encoding: str, mark: bytes) -> None:
    texts = [f"læge {number} 字 👩" * 400 for number in range(40)]
    path = tmp_path / f"data{suffix}"
    if suffix == ".txt":
        path.write_text("\n\n".join(texts))
    else:
        path = written(tmp_path, suffix, [{"text": text} for text in texts])
    with tables.open_bytes(path) as file:
        content = mark + file.read().decode().encode(encoding)
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    assert "".join(corpus.documents(str(path))) == ("\n\n" if suffix == ".txt" else "").join(texts)


@pytest.mark.promise("safety-encoding")
@pytest.mark.parametrize("name", ["data.csv", "data.txt", "data.jsonl"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "text\nsmed\n".encode("utf-16-le"),
            r"in UTF-16LE, without a byte order mark; .*iconv -f utf-16le -t utf-8 data",
        ),
        ("text\nsmed\n".encode("utf-16-be"), r"in UTF-16BE, .*iconv -f utf-16be -t utf-8 data"),
        ("text\nsmed\n".encode("utf-16")[:-1], r"is marked as UTF-16 but damaged .*; write it again"),
    ],
)
def test_text_in_utf_16_without_its_mark_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        list(corpus.documents(str(tmp_path / name)))


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ('"occ1, as written";hisco\nsmed;1\n', ["occ1, as written", "hisco"]),
        ('"a, ""b"", c\nd";hisco\nsmed;1\n', ['a, "b", c\nd', "hisco"]),
        ("occ1, as written;hisco\nung, god smed;1\nkusk;2\n", ["occ1, as written", "hisco"]),
        ("title, a, b;hisco\nkusk;2\nsmed;1\n", ["title, a, b", "hisco"]),
        ("text,code;hisco\nsmed,1\nkusk; tjener,2\n", ["text", "code;hisco"]),
        ("sep=;\na,b;c\n1;2\n", ["a,b", "c"]),
        ('"SEP=|"\r\na,b|c\r\n1|2\r\n', ["a,b", "c"]),
        ("a\tb, c\n1\t2\n", ["a", "b, c"]),
        ("one\n1\n", ["one"]),
    ],
)
def test_a_delimiter_is_found_outside_of_quotes_and_by_the_rows_below(
    tmp_path: Path, content: str, header: list[str]
) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content.encode())
    with tables.opened(path) as (names, rows):
        assert names == header
        places = [place for place, cells in rows if len(cells) == len(names)]
    assert places[-1] == f"{path}, line {len(content.splitlines())}"


@pytest.mark.parametrize("first", ["boats, boats and a pier .", 'he said "no" and "never" .', '"no" he said , twice'])
@pytest.mark.parametrize("config", [LLMGANConfig(min_chars=5), TextClassificationConfig()])
def test_a_file_of_lines_is_no_table_unless_its_first_line_names_columns(
    tmp_path: Path, config: LLMGANConfig | TextClassificationConfig, first: str
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text(f"{first}\nsmall boats at sea\n")
    load: Callable[[Any], object] = load_stories if isinstance(config, LLMGANConfig) else load_samples
    with pytest.raises(DataError, match=r"lines\.txt: a \.txt file is no table.*reads tables with a column of texts"):
        load(config.replace(dataset=str(path)))
    path.write_text("text\tcode1\n" + "".join(f"small boats {n}\t61110\n" for n in range(9)), encoding="utf-16")
    assert load(config.replace(dataset=str(path), text_col="text"))


@pytest.mark.promise("safety-encoding")
def test_a_line_or_list_that_is_too_long_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_LONGEST_LINE", 50)
    monkeypatch.setattr(tables, "_LARGEST_LIST", 100)
    file = io.BytesIO(b"short\n" + b"x" * 10_000)
    with pytest.raises(DataError, match=r"a\.csv, line 2: longer than 50 bytes; split it"):
        list(tables.lines_of(Path("a.csv"), file))
    assert file.tell() == 6 + 51
    for suffix in (".csv", ".jsonl.gz", ".lines.json"):
        with pytest.raises(DataError, match=r"line \d: longer than 50 "):
            list(corpus.documents(str(written(tmp_path, suffix, [{"text": "x" * 60}]))))
    with pytest.raises(DataError, match=r"data\.json: a list of more than 100 bytes, .*write one JSON object per line"):
        list(corpus.documents(str(written(tmp_path, ".json"))))
