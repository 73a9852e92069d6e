"""Inputs from files, and results into files: CSV, JSON lines or lines of text, a window of rows at a time."""

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from nbtools.config import TrainConfig
from nbtools.data import tables
from nbtools.data.text_classification.codes import SEPARATOR
from nbtools.errors import ConfigError, DataError, shown
from nbtools.predict.model_process import ModelProcess
from nbtools.recipes.predict_settings import Input, PredictSettings
from nbtools.rundir.tail import printable

Form = Literal["csv", "jsonl", "text"]
_FORMS: Mapping[str, Form]
_FORMS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text", "": "text"}
_PREFIX = "prediction_"
"""Prefix of the columns with results, which follow the columns of the file."""
_AT_ONCE = 4096
"""Rows per request, which are read ahead and held in memory."""


@dataclass(frozen=True)
class InputRow:
    """A row of a file, or a line of text."""

    where: str
    given: Mapping[str, Any]
    """Values of the row by column."""
    input: Input = ""
    problem: str = ""
    """Why the row cannot be read; empty if it is sent to the model."""


Result = tuple[InputRow, dict[str, Any]]


@dataclass
class Report:
    """Counts and problems of the predicted rows."""

    num_rows: int = 0
    num_failed: int = 0
    num_noted: int = 0
    problems: list[str] = field(default_factory=list)
    """The first problems, with their positions."""


def form_of(path: Path, *, is_output: bool = False) -> Form:
    """Return how rows stand in a file, by its suffix.

    Raises:
        ConfigError: results cannot be written in this format.
    """
    suffix = tables.suffix_of(path) if not is_output else path.suffix.lower()
    if is_output and suffix not in _FORMS:
        raise ConfigError(f"{shown(path.name)}: results are written as .csv, .tsv, .jsonl or .txt")
    return _FORMS.get(suffix, "jsonl" if suffix in tables.SUFFIXES else "text")


def delimiter_for(source: Path | None, target: Path | None) -> str:
    """Return the delimiter of a table of results: a tab for .tsv, else that of the table which was read."""
    if tables.suffix_of(target or source or Path()) == ".tsv":
        return "\t"
    return tables.delimiter_of(source) if source and tables.suffix_of(source) == ".csv" else ","


def read_lines(lines: Iterable[bytes], name: str) -> Iterator[InputRow]:
    """Yield lines of text, without empty ones."""
    for number, line in enumerate(lines, start=1):
        place = f"{name}, line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            yield InputRow(place, {"input": line.decode(errors="replace").rstrip()}, problem="is not UTF-8")
            continue
        if text.strip():
            yield InputRow(place, {"input": text}, text)


def read_file(path: Path, config: TrainConfig, column: str | None) -> Iterator[InputRow]:
    """Yield the rows of a file; those that cannot be read have a `problem`.

    Args:
        column: the column with the texts; None for the one that the run was trained on, `text`, or the only one.

    Raises:
        DataError: the file is missing, malformed as a whole, or lacks the column; also while rows are read.
    """
    suffix = tables.suffix_of(path)
    try:
        if suffix in (".csv", ".tsv"):
            with tables.opened(path, is_ragged_kept=True) as (header, rows):
                name = _column(path, header, config, column)
                for where, cells in rows:
                    given = dict(zip(header, cells, strict=False))
                    if len(cells) <= len(header) and name in given:  # the last cells may be missing, not the text
                        yield _item(where, given, name, config)
                    else:
                        yield InputRow(where, given, problem=tables.ragged(cells, header))
            return
        if form_of(path) == "text":
            with tables.open_bytes(path) as file:
                yield from read_lines(tables.lines_of(path, file), str(path))
            return
        name = ""
        for where, row in tables.rows_of_tables([path]) if suffix in (".json", ".parquet") else _json_lines(path):
            if row is None:
                yield InputRow(where, {}, problem="is no JSON object")
                continue
            name = name or _column(path, list(row), config, column)
            yield _item(where, row, name, config)
    except tables.UNREADABLE as error:
        raise tables.unreadable(path, error) from None


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yield the object of each line of a file; None for a line that is not an object."""
    with tables.open_bytes(path) as file:
        for number, line in enumerate(tables.lines_of(path, file), start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError):
                row = None
            if row != {}:
                yield f"{path}, line {number}", row if isinstance(row, dict) else None


def _column(path: Path, header: list[str], config: TrainConfig, column: str | None) -> str:
    if column is None:
        usual = [name for name in (getattr(config, "text_col", None), "text", "input") if name in header]
        column = (usual or (header if len(header) == 1 else ["text"]))[0]
    return header[tables.column_index(path, column, header, "--column")]


def _item(where: str, row: Mapping[str, Any], column: str, config: TrainConfig) -> InputRow:
    if not isinstance(text := row.get(column), str):
        return InputRow(where, row, problem=f"column {column!r} holds {type(text).__name__}, not text")
    try:
        tables.check_characters(f"column {column!r}", text)
    except DataError as error:
        return InputRow(where, row, problem=str(error))
    if hasattr(config, "lang_col"):
        lang = row.get(config.lang_col or "lang")
        return InputRow(where, row, {"text": text, "lang": str(lang or "")})
    return InputRow(where, row, text)


def results(process: ModelProcess, items: Iterable[InputRow], settings: PredictSettings) -> Iterator[Result]:
    """Yield each item with its row of results, in order; one that cannot be read has `error`."""
    rest = iter(items)
    while window := list(itertools.islice(rest, _AT_ONCE)):
        answers = process.predict([item.input for item in window if not item.problem], settings)
        for item in window:
            yield item, {"error": item.problem} if item.problem else next(answers)


def write_results(
    rows: Iterable[Result], form: Form, file: IO[str], settings: PredictSettings, *, delimiter: str = ","
) -> Report:
    """Write rows of results behind the values that each was made from, and return the report.

    Text has a line for each row, an empty one for an error; a line break in a result becomes a backslash and an n.

    Raises:
        ConfigError: a row has a column that a table of the first one lacks.
    """
    report = Report()
    table: Any = None
    columns: list[str] = []
    for item, row in rows:
        report.num_rows += 1
        if why := row.get("error"):
            report.num_failed += 1
            if len(report.problems) < 5:
                report.problems.append(f"{item.where}: {why}")
        report.num_noted += "note" in row
        if form == "text":
            line = "" if why else result_line(row, settings).replace("\n", "\\n")
            print(printable(line) if file.isatty() else line, file=file)
        elif form == "jsonl":
            named = {_PREFIX + name: value for name, value in row.items()}
            print(json.dumps({**item.given, **named}, ensure_ascii=False, default=str), file=file)
        else:
            if table is None:
                columns = [*item.given, *(_PREFIX + name for name in (*settings.columns, "error"))]
                table = csv.DictWriter(file, columns, delimiter=delimiter, extrasaction="ignore")
                table.writeheader()
            if other := item.given.keys() - columns:
                raise ConfigError(f"{item.where}: has a column {min(other)!r} that the first row lacks; write .jsonl")
            cells = {_PREFIX + name: _cell(value) for name, value in row.items()}
            table.writerow({**item.given, **cells})
    return report


def result_line(row: Mapping[str, Any], settings: PredictSettings) -> str:
    """Return a row of results as text."""
    return "\t".join(_cell(row[name]) for name in settings.columns if name in row)


def _cell(value: object) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        is_clear = len(value) < 2 or not any(SEPARATOR in each for each in value)
        return SEPARATOR.join(value) if is_clear else json.dumps(value, ensure_ascii=False)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
