"""Training and evaluation samples of text_classification: CSV files or generated occupations, split, with classes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nbtools.data import data_files, split
from nbtools.data.text_classification import codes, occupations
from nbtools.data.text_classification.coded_texts import CodedTexts, Rows, code_notes, read_key, read_texts, split_texts
from nbtools.errors import DataError, plural, shown

_MOST_NAMED = 10


@dataclass(frozen=True)
class Samples:
    """Training, evaluation and test rows. The tables hold classes: indices into `system.codes`.

    In the evaluation table, classes beyond them are the codes in `unseen`.
    """

    system: codes.CodeSystem
    train: CodedTexts
    train_rows: Rows
    evaluation: CodedTexts
    evaluation_rows: Rows
    test_rows: Rows
    """Rows of `evaluation` that are held out for the test."""
    data: split.DataDigest
    is_seen: npt.NDArray[np.bool_]
    """Whether the text of each row of the evaluation's own files is trained on, too; empty without such files."""
    table_notes: Sequence[str] = ()
    """Sentences on texts that occur more than once, and on codes that may be none or several."""

    @property
    def notes(self) -> list[str]:
        """Sentences on rows that were left out, repeated texts, unusual codes, and the evaluation's own files."""
        tables = {id(table): table for table in (self.train, self.evaluation)}.values()
        omitted = [(table.unlabelled, len(table) + len(table.unlabelled)) for table in tables if table.unlabelled]
        skipped = [f"{rows.told(total)}; they are left out (skip_unlabelled)" for rows, total in omitted]
        total, seen = len(self.is_seen), int(self.is_seen.sum())
        overlap = f"{seen:,} of {plural(total, 'text')} of val_data are trained on, too: they have scores of their own"
        return [*filter(None, [*skipped, *self.table_notes, overlap * bool(seen), self.unseen_note])]

    @property
    def unseen_note(self) -> str:
        """A sentence on the evaluation's codes that no training row has; empty without any."""
        if not (unseen := self.evaluation.unseen):
            return ""
        names = ", ".join(f"{shown(code)} ({count:,})" for code, count in list(unseen.items())[:_MOST_NAMED])
        more = f" and {len(unseen) - _MOST_NAMED:,} more" if len(unseen) > _MOST_NAMED else ""
        return (
            f"{plural(len(unseen), 'code')} of the evaluation file (rows) are in no training row, so the model "
            f"cannot predict them, and each counts as its error: {names}{more}"
        )


def read_samples(config: Any, root: Path | None = None, system: codes.CodeSystem | None = None) -> Samples:
    """Read the samples that a `TextClassificationConfig` names, from `root`, or generate occupations without any.

    The result depends on the files alone. Without files to evaluate on, `validation_share` of the training texts is
    held out, and `test_fraction` of these for the test. A pretrained model's `system` has more codes than the data.

    Raises:
        DataError: a file is missing or malformed, one of the two parts is empty, or `system` lacks a code.
    """
    files = [source for name in config.files for source in data_files.sources_of(name, root)]
    val_files = [source for name in config.val_files for source in data_files.sources_of(name, root)]
    parse: Callable[[str], str] = codes.hisco_code if config.spelling == "hisco" else codes.generic_code
    if config.key is not None:
        parse = functools.partial(_looked_up, parse, read_key(data_files.dataset_path(config.key, root)))
    columns, max_codes, share = config.columns, config.max_codes, config.validation_share
    known = None if system is None else {**system.classes}
    if files:
        table = read_texts(files, columns, parse, max_codes, known=known)
    else:
        table = CodedTexts(known or {}, None if known is None else len(known))
        for row in occupations.rows():
            numbers = [table.numbers.setdefault(code, len(table.numbers)) for code in row.codes]
            table.append(row.text, row.lang, numbers)
    if lacking := [*table.unseen]:
        raise DataError(
            f"{plural(len(lacking), 'code')} of the data, such as {', '.join(lacking[:5])}, are not in the key of "
            f"{config.model_name}; a copy of it without the key gives its encoder alone, with new heads"
        )
    keys, is_seen = table.keys(), np.zeros(0, dtype=np.bool_)  # keys once: half a minute for ten million rows
    if not val_files:
        evaluation = table
        parts, rule = split_texts(table, keys, share, config.test_fraction), f"{split.RULE}, share {share}"
    else:
        evaluation = read_texts(val_files, columns, parse, max_codes, known=table.numbers)
        parts, rule = (np.arange(len(table)), np.arange(len(evaluation)), np.arange(0)), ""
        is_seen = np.isin(evaluation.keys(), keys)
    system = system or codes.CodeSystem.of(config.spelling, table.numbers, max_codes)
    classes = [system.classes[code] for code in table.numbers]
    read = (table,) if evaluation is table else (table, evaluation)
    for each in read:
        each.renumber([*classes, *range(len(classes), len(classes) + len(each.unseen))])
    digest = split.digest_of(piece for each in read for piece in each.pieces())
    data = split.DataDigest(digest, " and ".join(plural(len(each), "row") for each in read), rule)
    notes = [split.repeated_note(keys, "text"), *code_notes(table.numbers, columns)]
    return Samples(system, table, parts[0], evaluation, *parts[1:], data, is_seen, notes)


def _looked_up(form: Callable[[str], str], key: Mapping[str, str], cell: str) -> str:
    number = cell.strip().removesuffix(".0")
    if number not in key:
        raise ValueError(f"{shown(cell)} is not in the key, which has {len(key)} numbers; correct it or extend the key")
    return form(key[number])
