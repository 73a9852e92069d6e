"""`nbtools predict` with real checkpoints: files in and out, unreadable rows, wrong calls before a model is loaded."""

import csv
import io
import json
from pathlib import Path

import pytest
from fixture_types import Cli, MonkeyPatch

from nbtools.cli import predictions
from nbtools.predict.row_files import delimiter_for, result_line
from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig, TextClassificationConfig
from nbtools.recipes.predict_settings import TextClassificationPredict
from nbtools.rundir.rundir import RunDir
from nbtools.training.text_classification.predict import Predictor

from trainings import TINY, train_here, write_inputs


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=";"))


@pytest.fixture
def classifier(cpu_project: Project, monkeypatch: MonkeyPatch) -> RunDir:
    write_inputs("text_classification", cpu_project)
    config = TextClassificationConfig(**TINY["text_classification"])
    monkeypatch.chdir(cpu_project.root)
    return train_here(cpu_project, config, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    ("source", "target", "delimiter"),
    [
        ("a;b.csv", "out.csv", ";"),
        ("a;b.csv", "out.tsv", "\t"),
        ("a\tb.tsv", "out.csv", ","),
        ("a\tb.tsv", None, "\t"),
        (None, "out.TSV", "\t"),
    ],
)
def test_results_keep_the_delimiter(tmp_path: Path, source: str | None, target: str | None, delimiter: str) -> None:
    path = None if source is None else tmp_path / source
    if path is not None:
        path.write_text(f"{path.stem}\n1,2\n", encoding="utf-8")
    assert delimiter_for(path, None if target is None else tmp_path / target) == delimiter


@pytest.mark.promise("safety-predict")
def test_a_table_keeps_its_columns_and_bad_rows_say_why(classifier: RunDir, tmp_path: Path, cli: Cli) -> None:
    texts = [
        ("smed", "da"),
        ("farmer, retired", "en"),
        ("  ", "da"),
        ("tjenestepige", ""),
        ("snedker og husmand", "da"),
        ("no language", None),
        ("smed " * 60, "en"),
    ]
    table = tmp_path / "new.csv"
    with table.open("w", encoding="utf-16", newline="") as file:  # as Excel writes it
        file.write("sep=;\n")
        rows = [("id", "occ1", "lang"), *((n, *each) for n, each in enumerate(texts))]
        csv.writer(file, delimiter=";").writerows([cell for cell in row if cell is not None] for row in rows)
        file.write("7;a;b;c\n")
    out = tmp_path / "coded.csv"
    told = cli("predict", classifier.path, table, "-o", out).stderr
    found = read_csv(out)
    expected_cells = [(str(n), text, lang or "") for n, (text, lang) in enumerate(texts)]
    assert [(row["id"], row["occ1"], row["lang"]) for row in found[:7]] == expected_cells
    assert [place for place, row in enumerate(found) if row["prediction_error"]] == [2, 7]
    room = TextClassificationConfig(**TINY["text_classification"]).sequence_length - len("en[SEP]") - 2
    notes = {place: row["prediction_note"] for place, row in enumerate(found) if row["prediction_note"]}
    assert notes == {6: f"the text is cut to {room} of 300 characters"}
    assert "2 of 8 rows could not be read" in told
    assert "new.csv, line 5: holds no text" in told
    assert "new.csv, line 10: column 4: 'c' is beyond the last one, 'lang'" in told
    assert "note: 1 of 8 rows cut to what the model reads" in told
    rows = found
    read = [row for row in rows if not row["prediction_error"]]
    inputs = [{"text": row["occ1"], "lang": row["lang"]} for row in read]
    expected = list(Predictor(classifier.path).predict(inputs, TextClassificationPredict()))
    assert [row["prediction_codes"] for row in read] == ["&".join(each["codes"]) for each in expected]
    probabilities = [each["probability"] for each in expected]
    assert [float(row["prediction_probability"]) for row in read] == pytest.approx(probabilities, rel=1e-4)
    before = out.read_bytes()
    assert "exists already" in cli("predict", classifier.path, table, "-o", out, code=2).stderr
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("codes", "cell"), [(["R", "D"], "R&D"), (["R & D"], "R & D"), (["R & D", "Toys"], '["R & D", "Toys"]')]
)
def test_codes_that_hold_the_separator_stay_apart_in_a_cell(codes: list[str], cell: str) -> None:
    settings = TextClassificationPredict()
    assert result_line({name: codes if name == "codes" else "" for name in settings.columns}, settings).strip() == cell


def test_lines_of_stdin_become_json_lines(classifier: RunDir, monkeypatch: MonkeyPatch, cli: Cli) -> None:
    lines = io.TextIOWrapper(io.BytesIO("smed\n\nfarmør\n".encode() + b"\xff\n"))
    monkeypatch.setattr("sys.stdin", lines)
    printed = cli("predict", classifier.path, "-", "--json", "--top-k", "2", "--lang", "da")
    first, second, third = map(json.loads, printed.stdout.splitlines())
    assert [each["input"] for each in (first, second)] == ["smed", "farmør"]
    assert len(first["prediction_candidates"]) == 2
    assert 0 < first["prediction_probability"] <= 1
    assert third["prediction_error"] == "is not UTF-8"
    assert "1 of 3 rows could not be read" in printed.stderr


@pytest.fixture
def masked_lm(cpu_project: Project, monkeypatch: MonkeyPatch) -> RunDir:
    write_inputs("mlm_pretraining", cpu_project)
    config = MLMPretrainingConfig(**{**TINY["mlm_pretraining"], "strategy": "fsdp"})
    monkeypatch.chdir(cpu_project.root)
    return train_here(cpu_project, config, monkeypatch=monkeypatch)


def test_a_text_is_filled_by_a_model_saved_in_shards(masked_lm: RunDir, cli: Cli) -> None:
    assert [*(masked_lm.checkpoint(6) / "model").glob("shard-*")], "the model is in shards"
    printed = cli("predict", masked_lm.path, "w1 [MASK] w3", "--top-k=2", "--checkpoint", "3")
    lines = printed.stdout.splitlines()
    assert lines[0].startswith("w1 ")
    assert lines[0].endswith(" w3")
    assert lines[1].startswith("  1: ")
    assert lines[1].count(",") == 1
    assert "step-000003, on the CPU" in printed.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no input: give a text, a file, or - for stdin"),
        (["missing.csv"], "no such file"),
        (["[MASK]", "--top-k", "0"], "top_k=0: must be >= 1"),
        (["[MASK]", "--lang", "da"], "has no such field"),
        (["[MASK]", "-o", "texts/00.txt"], "exists already"),
        (["[MASK]", "-o", "out.pdf"], "results are written as"),
    ],
)
def test_a_wrong_call_is_refused_before_a_model_is_loaded(
    masked_lm: RunDir, words: list[str], said: str, monkeypatch: MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr(predictions, "ModelProcess", None)
    assert said in cli("predict", masked_lm.path, *words, code=2).stderr
