"""What text_classification trains and evaluates on: CSV files or generated occupations, divided, with their classes."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nbtools.data import corpus, tables
from nbtools.data.tables import Columns, Rows, Table
from nbtools.data.text_classification import codes, occupations
from nbtools.data.text_classification.codes import CodeSystem
from nbtools.errors import shown

if TYPE_CHECKING:
    from nbtools.recipes import TextClassificationConfig


@dataclass(frozen=True)
class Samples:
    """What to train and to evaluate on. Tables hold classes: the places of the codes in `system.codes`."""

    system: CodeSystem
    train: Table
    train_rows: Rows
    evaluation: Table
    evaluation_rows: Rows


def read_samples(config: "TextClassificationConfig", root: Path | None = None) -> Samples:
    """Read the data that `config` names, or generate it; always the same for the same files.

    Raises:
        DataError: a file is missing or malformed, or too little is left on one side.
    """
    if not config.files:
        table = Table()
        for row in occupations.rows():
            numbers = [table.numbers.setdefault(code, len(table.numbers)) for code in row.codes]
            table.append(row.text, row.lang, numbers)
    else:
        paths = [corpus.resolve(name, root) for name in config.files]
        columns = Columns(config.text_col, config.lang_col, config.target_cols)
        spell = _speller(config, root)
        table = tables.read(paths, columns, spell, config.max_codes)
    rows: tuple[Rows, Rows]
    if config.val_data is None:
        evaluation, rows = table, tables.split(table, config.validation_share)
    else:
        path = corpus.resolve(config.val_data, root)
        evaluation = tables.read([path], columns, spell, config.max_codes, known=table.numbers)
        rows = np.arange(len(table)), np.arange(len(evaluation))
    system = CodeSystem.of(config.spelling, table.numbers, config.max_codes)
    classes = [system.classes[code] for code in table.numbers]
    for each in (table,) if evaluation is table else (table, evaluation):
        each.renumber(classes)
    return Samples(system, table, rows[0], evaluation, rows[1])


def _speller(config: "TextClassificationConfig", root: Path | None) -> Callable[[str], str]:
    """Return what brings a code of the data into its form; it raises ValueError for what is none."""
    form = codes.hisco_code if config.spelling == "hisco" else codes.generic_code
    if config.key is None:
        return form
    return functools.partial(_looked_up, form, tables.read_key(corpus.resolve(config.key, root)))


def _looked_up(form: Callable[[str], str], key: Mapping[str, str], cell: str) -> str:
    number = cell.strip().removesuffix(".0")
    if number not in key:
        raise ValueError(f"{shown(cell)} is not in the key, which has {len(key)} numbers; correct it or extend the key")
    return form(key[number])
