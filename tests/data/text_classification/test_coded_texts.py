"""CSV files: every mistake is told with file, line and column; no text on two sides; memory stays small."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from nbtools.data.corpus import Clean
from nbtools.data.text_classification.coded_texts import CodedTexts, Columns, Rows, clean_text, read_texts, split_texts
from nbtools.data.text_classification.codes import MISSING, generic_code, hisco_code
from nbtools.errors import DataError
from nbtools.recipes import TextClassificationConfig
from nbtools.recipes.text_classification import load_samples
from nbtools.script.compat.aliases import assigned

HISCO = Columns("occ1", None, None, separator="&", missing=MISSING)


def written(folder: Path, text: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows_of(table: CodedTexts) -> list[tuple[str, str, list[str]]]:
    codes = {number: code for code, number in table.numbers.items()}
    return [
        (table.text(row), table.lang(row), [codes[number] for number in table.codes(row)]) for row in range(len(table))
    ]


def test_a_file_as_occcanine_wrote_it_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'occ1,lang,code1,code2,code3\n"Smith, and  Farmer",EN,83110,61110.0,\n'
        "fisker,da,64100,,\nskipper,da,4217,?,NA\n\n",
    )
    assert rows_of(read_texts([path], replace(HISCO, clean="light"), hisco_code, 5)) == [
        ("smith, and farmer", "en", ["83110", "61110"]),
        ("fisker", "da", ["64100"]),
        ("skipper", "da", ["04217"]),
    ]


def test_several_files_make_one_table_and_chosen_columns_are_read(tmp_path: Path) -> None:
    paths = [
        written(tmp_path, "y,text,x,l\n7,one,8,en\n", "a.csv"),
        written(tmp_path, "l,x,y,text\nde,9,,two\n", "b.csv"),
    ]
    table = read_texts(paths, Columns("text", "l", ("x", "y")), generic_code, 2)
    assert rows_of(table) == [("one", "en", ["8", "7"]), ("two", "de", ["9"])]


BAD: dict[str, tuple[str | bytes, str]] = {
    "missing text column": (
        "occ,code1\na,61110\n",
        r"line 1, column 'occ1': is missing; the file has 'occ', 'code1'.*text_col",
    ),
    "missing code column": ("occ1,lang\na,en\n", r"line 1, column 'code1': is missing.*target_cols"),
    "a column twice": ("occ1,code1,code1\na,61110,61110\n", r"line 1, column 'code1': appears 2 times"),
    "no header": ("", r"line 1: is empty"),
    "no rows": ("occ1,code1\n", r"no row below the column names"),
    "empty label": ("occ1,code1\na,61110\nb,\n", r"1 of 2 rows have no code \(.*line 3, column 'code1': ''\): train"),
    "label that says missing": ("occ1,code1\nb,?\n", r"line 2, column 'code1': '\?'\).*missing_labels=\('\?', "),
    "empty text": ('occ1,code1\n"  ",61110\n', r"1 of 1 row have no text \(.*line 2, column 'occ1': '  '\): fill"),
    "unknown code": ("occ1,code1,code2\na,61110,\nb,61110,x1\n", r"line 3, column 'code2': 'x1' is not a HISCO code"),
    "too many codes": ("occ1,codes\na,61110&83110&64100\n", r"line 2, column 'codes': 3 codes; a row may have 2"),
    "short row": ("occ1,lang,code1\na,en\n", r"line 2, column 'code1': is missing in this row: it has 2 cells"),
    "long row": ("occ1,code1\na,61110\nb, and c,61110\n", r"line 3, column 3: '61110' is beyond the last one, 'code1'"),
    "latin-1": (
        "occ1,lang,code1\nm\xfcller,de,77120\n".encode("latin-1"),
        r"line 2: byte 17 \(0xfc\) is not UTF-8.*iconv",
    ),
    "latin-1 in the header": ("occ1,spr\xe5k,code1\n".encode("latin-1"), r"line 1: byte 8 \(0xe5\)"),
    "open quotation mark": ('occ1,code1\n"a,61110\nb,61110\n', r"line 3: unexpected end of data; check the quotation"),
    "NUL": ("occ1,code1\na\0b,x\n", r"line 2: holds a NUL byte"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_told_with_file_line_and_column(tmp_path: Path, name: str) -> None:
    content, said = BAD[name]
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=said) as caught:
        read_texts([path], HISCO, hisco_code, 2)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("path", "said"), [("no.csv", "No such file"), (".", "Is a directory")])
def test_a_path_that_is_no_file_is_told(tmp_path: Path, path: str, said: str) -> None:
    with pytest.raises(DataError, match=f"cannot be read: {said}"):
        read_texts([tmp_path / path], HISCO, hisco_code, 2)


def test_codes_that_no_training_row_has_are_counted_after_those_of_the_training(tmp_path: Path) -> None:
    written(tmp_path, "occ1,code1\na,83110\nb,61110\n", "train.csv")
    written(tmp_path, "occ1,code1,code2\nc,61110,\nd,64100,61110\ne,64100,04217\n", "val.csv")
    config = TextClassificationConfig(train_data=("train.csv",), val_data="val.csv")
    samples = load_samples(config, tmp_path)
    assert samples.system.codes == ("61110", "83110")
    assert [list(samples.evaluation.codes(row)) for row in range(3)] == [[0], [2, 0], [2, 3]]
    assert samples.evaluation.unseen == {"64100": 2, "04217": 1}
    assert "2 codes of the evaluation file" in samples.unseen_note
    assert "'64100' (2), '04217' (1)" in samples.unseen_note


@pytest.mark.parametrize("column", ["codes", "code1", "mine"])
@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "json"])
def test_a_column_of_lists_holds_all_codes_of_a_row(tmp_path: Path, suffix: str, column: str) -> None:
    lists = [["83110", "04217"], ["61110", "?", None], ["-1"]]
    path = tmp_path / f"data.{suffix}"

    def write(values: dict[str, list[Any]]) -> None:
        rows = pa.table(values)
        if suffix == "parquet":
            parquet.write_table(rows, path)
        else:
            found = rows.to_pylist()
            path.write_text(json.dumps(found) if suffix == "json" else "\n".join(map(json.dumps, found)))

    write({"occ1": ["a", "b", "c"], column: lists})
    columns = replace(HISCO, targets=("mine",) if column == "mine" else None)
    found = rows_of(read_texts([path], columns, hisco_code, 2))
    assert found == [("a", "unk", ["83110", "04217"]), ("b", "unk", ["61110"]), ("c", "unk", ["-1"])]
    for wrong, said in (
        ({"occ1": [["a"]], column: [["-1"]]}, "column 'occ1': holds list, not text"),
        ({"occ1": ["a"], column: [[["-1"]]]}, f"column '{column}': holds list, not text"),
        ({"occ1": ["a"], column: [[]]}, "1 of 1 row have no code"),
        ({"occ1": ["a"], column: [["61110 & 83110"]]}, "'61110 & 83110' is not a HISCO code"),
    ):
        write(wrong)
        with pytest.raises(DataError, match=said):
            read_texts([path], columns, hisco_code, 2)


ONE, TWO = ["Home & Kitchen"], ["Home", "Kitchen"]


CELLS: list[tuple[Any, dict[str, Any], list[str]]] = [
    ("Home & Kitchen", {}, ONE),
    ("Home & Kitchen", {"label_separator": "&"}, TWO),
    ("Home, Kitchen", {"label_separator": ", "}, TWO),
    ("Home|Kitchen", {"label_separator": "|"}, TWO),
    ("Home | Kitchen", {"label_separator": ""}, ["Home | Kitchen"]),
    (ONE, {}, ONE),
    (ONE, {"label_separator": "&"}, ONE),
    ([*TWO, None, ""], {}, TWO),
    ("83110 & 4217", {"formatter": "hisco"}, ["04217", "83110"]),
    ("83110;4217", {"formatter": "hisco", "label_separator": ";"}, ["04217", "83110"]),
    ("NA", {}, ["NA"]),
    ("?", {"missing_labels": ("NA",)}, ["?"]),
]


@pytest.mark.promise("safety-labels")
@pytest.mark.parametrize(
    ("suffix", "cell", "changes", "codes"),
    [
        (suffix, *row)
        for suffix in ("csv", "jsonl", "parquet")
        for row in CELLS
        if suffix != "csv" or isinstance(row[0], str)  # a CSV file has no lists
    ],
)
def test_a_cell_is_divided_only_if_asked_and_an_item_of_a_list_never(
    tmp_path: Path, suffix: str, cell: Any, changes: dict[str, Any], codes: list[str]
) -> None:
    if suffix == "csv":
        path = written(tmp_path, f'occ1,label\na,"{cell}"\nb,"{cell}"\n')
    else:
        rows = [{"occ1": text, "label": cell} for text in "ab"]
        path = written(tmp_path, "\n".join(map(json.dumps, rows)), "data.jsonl")
        if suffix == "parquet":
            parquet.write_table(pa.Table.from_pylist(rows), path := tmp_path / "data.parquet")
    config = TextClassificationConfig(dataset=str(path), target_cols=("label",), **changes)
    samples = load_samples(config, tmp_path)
    assert list(samples.system.codes) == codes
    assert sorted(samples.train.codes(0)) == list(range(len(codes)))


@pytest.mark.promise("safety-labels")
@pytest.mark.parametrize(
    ("changes", "given", "num_missing"),
    [
        ({}, ["83110", "", "?", "NA", "nan"], 4),
        ({"target_cols": ("code",)}, ["a", "", " ", "NA"], 2),
        ({"target_cols": ("code",), "missing_labels": ("NA", "-")}, ["a", "NA", "-", "?"], 2),
        ({"target_cols": ("code",), "label_separator": "&", "missing_labels": ("?",)}, ["a", "?&", "b&?"], 1),
        ({"target_cols": ("code", "lang")}, ["a", ""], 0),
    ],
)
def test_rows_without_a_code_are_counted_in_one_message_or_left_out(
    tmp_path: Path, changes: dict[str, Any], given: list[str], num_missing: int
) -> None:
    text = "\n".join(["occ1,code,lang", *(f"text {n},{cell},da" for n, cell in enumerate(given)), "more,83110,da"])
    for name in ("a.csv", "b.csv"):
        written(tmp_path, text, name)
    config = TextClassificationConfig(train_data=("a.csv",), val_data=("a.csv", "b.csv"), **changes)
    if num_missing:
        said = rf"{num_missing} of {len(given) + 1} rows have no code \(.*a\.csv, line \d.*skip_unlabelled=True"
        with pytest.raises(DataError, match=said + ".*missing_labels="):
            load_samples(config, tmp_path)
    samples = load_samples(config.replace(skip_unlabelled=True), tmp_path)
    num_kept = len(given) + 1 - num_missing
    assert (len(samples.train), len(samples.evaluation)) == (num_kept, 2 * num_kept)
    told = [note for note in samples.notes if "left out (skip_unlabelled)" in note]
    assert len(told) == (2 if num_missing else 0)


def test_nan_of_a_nullable_column_is_no_code_and_no_text(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    parquet.write_table(pa.table({"occ1": ["a", "b", "c"], "code": [1.0, float("nan"), None]}), path)
    config = TextClassificationConfig(dataset=str(path), target_cols=("code",), skip_unlabelled=True)
    assert len(load_samples(config).train) == 1
    with pytest.raises(DataError, match=r"2 of 3 rows have no text \(.*row 2, column 'code': ''; .*row 3"):
        load_samples(config.replace(text_col="code", target_cols=("occ1",)))
    with pytest.raises(DataError, match=r"3 of 3 rows have no code .*: name the columns of codes with target_cols"):
        load_samples(config.replace(missing_labels=("1.0",)))


def test_codes_that_may_be_none_or_several_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, "occ1,label\na,x\nb,y\nc,x & y\nd,NA\ne,R&D\n")
    config = TextClassificationConfig(dataset=str(path), target_cols=("label",))
    assert load_samples(config).notes == [
        "codes may mean that there is none: 'NA'; missing_labels lists spellings of none",
        "1 of 5 codes, such as 'x & y', are other codes with '&' between; each is one code here: "
        "label_separator='&' divides them",
    ]
    assert load_samples(config.replace(label_separator="&", missing_labels=("NA",), skip_unlabelled=True)).notes == [
        f"1 of 5 rows have no code ({path}, line 5, column 'label': 'NA'); they are left out (skip_unlabelled)"
    ]


def test_records_and_texts_from_before_the_fields_mean_what_they_meant() -> None:
    before = TextClassificationConfig.recorded({"dataset": "a.csv", "val_data": "v.csv", "target_cols": ["x"]})
    assert (before.columns.separator, before.columns.missing) == ("&", ("?", "NA", "NaN", "nan"))
    assert before.val_data == ("v.csv",)
    given = assigned(TextClassificationConfig, ["train_data=hf/a/b,split=train,c.csv", "val_data=hf/a/b,split=test"])
    named = TextClassificationConfig(**given)
    assert (named.train_data, named.val_data) == (("hf/a/b,split=train", "c.csv"), ("hf/a/b,split=test",))


def test_numbers_are_looked_up_in_a_key(tmp_path: Path) -> None:
    written(tmp_path, "en_hisco_text,hisco,code\nempty, ,NA\nNo title,-1,2\nMaster,4217,151\n", "key.csv")
    written(tmp_path, "occ1,code1,code2\na,2,\nb,151.0,2.0\n", "data.csv")
    config = TextClassificationConfig(train_data=("data.csv",), val_data="data.csv", key="key.csv")
    samples = load_samples(config, tmp_path)
    assert samples.system.codes == ("-1", "04217")
    assert [list(samples.train.codes(row)) for row in range(2)] == [[0], [1, 0]]
    written(tmp_path, "occ1,code1\na,2\nb,9\n", "data.csv")
    with pytest.raises(DataError, match=r"line 3, column 'code1': '9' is not in the key, which has 2 numbers"):
        load_samples(config, tmp_path)
    written(tmp_path, "number,hisco\n1,2\n", "key.csv")
    with pytest.raises(DataError, match=r"key\.csv, line 1, column 'code': is missing"):
        load_samples(config, tmp_path)
    written(tmp_path, "code,hisco,code\n1,2,3\n", "key.csv")
    with pytest.raises(DataError, match=r"key\.csv, line 1, column 'code': appears 2 times; rename one"):
        load_samples(config, tmp_path)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20).filter(clean_text)
ROW = st.tuples(TEXT, st.sampled_from(["en", "da", ""]), st.lists(st.sampled_from("abcd"), min_size=1, max_size=3))


@pytest.mark.parametrize("clean", ["none", "light"])
@settings(max_examples=50)
@given(rows=st.lists(ROW, min_size=1, max_size=8))
def test_whatever_a_csv_writer_writes_is_read(
    rows: list[tuple[str, str, list[str]]], tmp_path_factory: pytest.TempPathFactory, clean: Clean
) -> None:
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["occ1", "lang", "codes"])
        writer.writerows([text, lang, "&".join(codes)] for text, lang, codes in rows)
    table = read_texts([path], Columns("occ1", None, None, clean, separator="&"), generic_code, 4)
    read = clean_text if clean == "light" else str
    assert table.num_cleaned == sum(read(text) != text for text, _, _ in rows)
    expected = [(read(text), lang or "unk", list(dict.fromkeys(codes))) for text, lang, codes in rows]
    assert rows_of(table) == expected
    assert table.lengths().tolist() == [len(text) for text, _, _ in expected]
    assert table.lang_lengths().tolist() == [len(lang) for _, lang, _ in expected]


def a_table(rows: list[tuple[str, list[int]]]) -> CodedTexts:
    table = CodedTexts()
    for text, numbers in rows:
        table.append(text, "en", numbers)
        for number in numbers:
            table.numbers.setdefault(str(number), number)
    return table


def divided(table: CodedTexts, share: float, test_fraction: float = 0.0) -> tuple[Rows, Rows, Rows]:
    return split_texts(table, table.keys(), share, test_fraction)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([f"text {number}" for number in range(30)]), st.sets(st.integers(0, 5), min_size=1)),
        min_size=1,
        max_size=60,
    ),
    share=st.floats(0.05, 0.6),
    test_fraction=st.floats(0, 0.9),
)
def test_no_text_is_in_two_parts_and_every_held_out_code_is_trained_on(
    rows: list[tuple[str, set[int]]], share: float, test_fraction: float
) -> None:
    numbers = {number: place for place, number in enumerate(dict.fromkeys(n for _, each in rows for n in sorted(each)))}
    table = a_table([(text, [numbers[number] for number in sorted(each)]) for text, each in rows])
    train, evaluation, test = divided(table, share, test_fraction)
    held_out = np.concatenate([evaluation, test])
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(len(rows)))
    texts = [{table.text(row) for row in part.tolist()} for part in (train, evaluation, test)]
    assert len(set().union(*texts)) == sum(map(len, texts)), "the same text is in one part"
    assert bool(texts[2]) == bool(test_fraction and len(texts[1]) + len(texts[2]) > 1)
    assert train.tolist() == divided(table, share)[0].tolist(), "the training does not change"
    seen = {number for row in train.tolist() for number in table.codes(row)}
    assert {number for row in held_out.tolist() for number in table.codes(row)} <= seen


def test_which_side_a_text_is_on_hardly_depends_on_other_texts() -> None:
    rows = [(f"text {number}", [0]) for number in range(2000)]
    first = a_table(rows)
    held_out = {first.text(row) for row in np.concatenate(divided(first, 0.1, 0.5)[1:]).tolist()}
    assert 150 < len(held_out) < 250
    second = a_table([*rows[1000:][::-1], ("another", [0])])
    again = {second.text(row) for row in divided(second, 0.1)[1].tolist()}
    assert len(again ^ {text for text, _ in rows[1000:] if text in held_out}) < 10, "but for the last ones"


def test_of_few_texts_one_is_held_out_if_its_code_is_trained_on_all_the_same() -> None:
    assert [len(rows) for rows in divided(a_table([("one", [0]), ("two", [0]), ("three", [0])]), 1e-9)] == [1, 2, 0]
    train, held_out, _ = divided(a_table([("one", [0]), ("two", [1]), ("three", [1])]), 1e-9)
    assert (len(train), len(held_out)) == (2, 1)
    assert held_out[0] != 0
    assert [len(rows) for rows in divided(a_table([("one", [0]), ("one", [0])]), 0.5)] == [2, 0, 0]
