"""Training and evaluation samples of text_classification: CSV files or generated occupations, split, with classes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nbtools.data.text_classification import codes, occupations
from nbtools.data.text_classification.coded_texts import CodedTexts, Columns, Rows, read_key, read_texts, split_texts
from nbtools.data.text_classification.codes import CodeSystem, Formatter
from nbtools.errors import shown


@dataclass(frozen=True)
class Samples:
    """Training and evaluation rows. The tables hold classes: indices into `system.codes`."""

    system: CodeSystem
    train: CodedTexts
    train_rows: Rows
    evaluation: CodedTexts
    evaluation_rows: Rows


def read_samples(
    files: Sequence[Path],
    columns: Columns,
    formatter: Formatter,
    max_codes: int,
    *,
    val_file: Path | None = None,
    key_file: Path | None = None,
    validation_share: float = 0.1,
) -> Samples:
    """Read the samples from CSV files, or generate occupations without any; the result depends on the files alone.

    Without `val_file`, `validation_share` of the training texts is held out. `key_file` maps numbers in the data to
    codes.

    Raises:
        DataError: a file is missing or malformed, or one of the two parts is empty.
    """
    parse: Callable[[str], str] = codes.hisco_code if formatter == "hisco" else codes.generic_code
    if key_file is not None:
        parse = functools.partial(_looked_up, parse, read_key(key_file))
    if files:
        table = read_texts(files, columns, parse, max_codes)
    else:
        table = CodedTexts()
        for row in occupations.rows():
            numbers = [table.numbers.setdefault(code, len(table.numbers)) for code in row.codes]
            table.append(row.text, row.lang, numbers)
    rows: tuple[Rows, Rows]
    if val_file is None:
        evaluation, rows = table, split_texts(table, validation_share)
    else:
        evaluation = read_texts([val_file], columns, parse, max_codes, known=table.numbers)
        rows = np.arange(len(table)), np.arange(len(evaluation))
    system = CodeSystem.of(formatter, table.numbers, max_codes)
    classes = [system.classes[code] for code in table.numbers]
    for each in (table,) if evaluation is table else (table, evaluation):
        each.renumber(classes)
    return Samples(system, table, rows[0], evaluation, rows[1])


def _looked_up(form: Callable[[str], str], key: Mapping[str, str], cell: str) -> str:
    number = cell.strip().removesuffix(".0")
    if number not in key:
        raise ValueError(f"{shown(cell)} is not in the key, which has {len(key)} numbers; correct it or extend the key")
    return form(key[number])
