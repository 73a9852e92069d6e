"""`nbtools predict`: rows of a file, lines of stdin or one text through a trained model."""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO

from nbtools.cli.output import with_bar
from nbtools.data import tables
from nbtools.data.text_classification.codes import SEPARATOR
from nbtools.errors import ConfigError, shown
from nbtools.launcher.resume import config_of
from nbtools.predict import row_files
from nbtools.predict.model_process import ModelProcess
from nbtools.project import expanded
from nbtools.recipes.predict_settings import PREDICT_SETTINGS, PredictSettings, settings_of
from nbtools.run.run import Run
from nbtools.rundir.atomic import write_file
from nbtools.rundir.tail import one_line, printable
from nbtools.script.compat.aliases import assigned

_SETTING = "setting:"
"""First part of the name that a setting has among the arguments of the command line."""


def prediction_fields() -> dict[str, str]:
    """Return the settings of all recipes' predictions, with what each means in which recipe."""
    helps: dict[str, dict[str, list[str]]] = {}
    for key, cls in PREDICT_SETTINGS.items():
        for name, info in cls.model_fields.items():
            helps.setdefault(name, {}).setdefault(info.description or "", []).append(key)
    return {
        name: " ".join(f"{text} ({', '.join(keys)})" for text, keys in texts.items()) for name, texts in helps.items()
    }


def predict(run: Run, arguments: argparse.Namespace) -> row_files.Report:
    """Predict for a text, a file's rows or the lines of stdin (`-`), and print or write the results.

    Raises:
        ConfigError: there is no input, a setting is wrong, or `out` exists or cannot be written.
        DataError: the file cannot be read.
        NbtoolsError: as `ModelProcess`.
    """
    config = config_of(run)
    settings = settings_of(config)
    given = {name: value for name, value in vars(arguments).items() if value is not None and name.startswith(_SETTING)}
    values = (f"{name.removeprefix(_SETTING)}={value}" for name, value in given.items())
    settings = settings.replace(**assigned(type(settings), values))
    source: str | None = arguments.source
    path = _file_named(source)
    if source is None and settings.needs_input:
        raise ConfigError(f"no input: give a text, a file, or - for stdin. {settings.input_help}")
    target = None if arguments.out is None else expanded(arguments.out).absolute()
    if target is not None and os.path.lexists(target) and not arguments.overwrite:
        raise ConfigError(f"{target}: exists already; name another file with -o, or replace it with --overwrite")
    form: row_files.Form = "text" if path is None else row_files.form_of(path)
    form = "jsonl" if arguments.json else form if target is None else row_files.form_of(target, is_output=True)
    total = None if path is None else _num_lines(path)

    items: Iterator[row_files.InputRow] = iter([row_files.InputRow("the input", {"input": source or ""}, source or "")])
    if path is not None:
        items = row_files.read_file(path, config, arguments.column)
        items = chain(list(islice(items, 1)), items)  # a wrong column or file is an error before the model is loaded
    elif source == "-":
        items = row_files.read_lines(sys.stdin.buffer, "stdin")

    device, trust_remote_code = arguments.device, arguments.trust_remote_code
    with ModelProcess(run, arguments.checkpoint, device=device, trust_remote_code=trust_remote_code) as process:
        print(one_line(f"nbtools: {run.id}, {process.checkpoint.name}, on {process.device}"), file=sys.stderr)
        rows = row_files.results(process, items, settings)
        if target is None and source != "-" and path is None and form == "text":
            return _print_one(rows, settings)
        # On a terminal the rows themselves show the progress.
        rows = rows if target is None and sys.stdout.isatty() else with_bar(rows, total)
        delimiter = row_files.delimiter_for(path, target)
        write = partial(row_files.write_results, rows, form, settings=settings, delimiter=delimiter)
        return write(sys.stdout) if target is None else _write_file(target, write)


def _write_file(target: Path, write: Callable[[IO[str]], row_files.Report]) -> row_files.Report:
    report = row_files.Report()

    def fill(hidden: Path) -> None:
        nonlocal report
        newline = "" if row_files.form_of(target, is_output=True) == "csv" else "\n"
        with hidden.open("w", encoding="utf-8", errors="backslashreplace", newline=newline) as file:
            report = write(file)

    try:
        write_file(target, fill)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror or error}") from error
    return report


def _file_named(source: str | None) -> Path | None:
    """Return the file that an argument names; None for a text, stdin or nothing."""
    if source in (None, "-"):
        return None
    try:
        path = expanded(str(source))
        if path.is_file():
            return path
    except (OSError, ValueError):  # a long text
        return None
    if tables.suffix_of(path) in (*tables.SUFFIXES, ".txt") and not str(source).strip().count(" "):
        raise ConfigError(f"{shown(source)}: no such file; a text may not look like the name of a table")
    return None


def _num_lines(path: Path) -> int | None:
    """Return the lines of a file for a progress bar; None where there is none."""
    if not sys.stderr.isatty() or tables.suffix_of(path) == ".parquet":
        return None
    with contextlib.suppress(*tables.UNREADABLE), tables.open_bytes(path) as file:  # `read_file` reports it
        return sum(chunk.count(b"\n") for chunk in iter(partial(file.read, 1 << 20), b""))
    return None


def _print_one(rows: Iterable[row_files.Result], settings: PredictSettings) -> row_files.Report:
    """Print the result for one text, with its candidates and their probabilities."""
    report = row_files.Report()
    for item, row in rows:
        report = row_files.write_results([(item, row)], "text", io.StringIO(), settings)
        if report.num_failed:
            continue
        print("\n".join(map(printable, row_files.result_line(row, settings).splitlines())))
        kinds = {"sets": row.get("sets", ()), "alone": row.get("candidates", ())}
        for name, candidates in [*enumerate(row.get("masks", ()), start=1), *kinds.items()]:
            named = ((each.get("codes") or [each.get("token", each.get("code"))], each) for each in candidates)
            listed = [f"{SEPARATOR.join(words)} {each['probability']:.3f}" for words, each in named]
            if listed:
                print(printable(f"  {name}: {', '.join(listed)}"))
    return report
