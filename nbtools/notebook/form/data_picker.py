"""The data of a form: the project's files in a list, the first rows of the chosen one, and a row per column to name."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from types import NoneType
from typing import Any

import ipywidgets as widgets

from nbtools.data import data_files, hub, project_files
from nbtools.data.first_rows import FirstRows, first_rows
from nbtools.errors import DataError, message_of, plural
from nbtools.launcher.checks.findings import size
from nbtools.notebook.background import Background, Fill, Filling, Guarded
from nbtools.notebook.rows.field_rows import FieldRow
from nbtools.notebook.widgets import button
from nbtools.recipes import Recipe
from nbtools.script.field import Field, fields_of

COLUMN = "column"
"""Name of the row of the option behind the dataset that names its column, of a recipe without a field for it."""
_NUM_ROWS = 5
_LONGEST_CELL = 160
_MOST_COLUMNS = 12
_MOST_LISTED = 8


class FileList:
    """Files of the project to choose from, with a button that looks for them again."""

    def __init__(
        self,
        first: str,
        find: Callable[[], project_files.ProjectFiles],
        on_choice: Callable[[str], None],
        *,
        hint: Callable[[bool], str],
        label: Callable[[str], str] = str,
    ) -> None:
        """List the names that `find` returns with their `label` below a `first` entry, whose value is empty.

        `on_choice` is called with the chosen name; `hint` returns a sentence, told whether there is any file.
        """
        self._first, self._find, self._hint, self._label = first, find, hint, label
        self._filling = Filling()
        self.names: tuple[str, ...] = ()
        self._list = widgets.Select(description="file", style={"description_width": "40px"}, layout={"width": "auto"})
        again = button("Look again", "refresh", "Look for files of the project", self.look)
        self._note = widgets.HTML()
        self.widget = widgets.VBox([self._list, widgets.HBox([again, self._note])])
        self._list.observe(lambda change: None if self._filling.is_on else on_choice(change.new), names="value")
        self.look()

    @property
    def value(self) -> str:
        """The chosen name; empty for the first entry."""
        return self._list.value or ""

    def look(self) -> None:
        """List the files of the project."""
        found = self._find()
        self.names = tuple(found.names)
        ends = "" if found.is_complete else " The search ended early: type the path of a file that is not listed."
        self._note.value = f"<small>{escape(self._hint(bool(found.names)) + ends)}</small>"
        self.show(self.value)

    def show(self, name: str) -> None:
        """Mark a name as chosen, without a call; one that is not listed is added."""
        known = [(self._first, ""), *((self._label(each), each) for each in self.names)]
        if name and name not in self.names:
            known.append((f"… {name}", name))
        with self._filling:
            self._list.options = known
            self._list.value = name
            self._list.rows = min(max(len(known), 2), _MOST_LISTED)


class DataPicker:
    """Lists data files; a choice fills in the dataset and a guess of its columns."""

    def __init__(self, root: Path, recipe: Recipe, fill: Fill, on_read: Callable[[], None], guarded: Guarded) -> None:
        """List the files below the project's `root`, whose columns are guessed for `recipe`.

        `fill` takes values by field after a choice of a file or column; `on_read` is called from a thread when the
        first rows are read.
        """
        self._root, self._recipe, self._fill = root, recipe, fill
        self._answers = Background(self._read, on_read)
        self._filling = Filling()
        self.unguessed: str | None = None
        """The chosen file, until its columns are guessed."""
        self._files = FileList(
            recipe.source(recipe.config_class(), None).name,
            lambda: project_files.find_data(root, has_text=recipe.reads_text),
            lambda name: guarded(partial(self._choose, name))(),
            hint=lambda is_any: "" if is_any else f"No data file in {root.name}/: put a table there, and look again.",
            label=self._labelled,
        )
        self._files.widget.layout = {"flex": "1 1 300px", "max_width": "460px"}
        self._preview = widgets.HTML(layout={"flex": "3 1 420px", "min_width": "0"})
        self._defaults = {name: field.default for name, field in fields_of(recipe.config_class).items()}
        guessed = recipe.guess_columns(FirstRows((), ())) if recipe.guess_columns else {}
        self.column_fields = tuple(name for name in guessed if name in self._defaults)
        """Fields of the config that name columns."""
        self._dataset: str | None = None
        field = Field(COLUMN, (str, NoneType), help="Column of the text; none for text, or the only column of text.")
        self.row = FieldRow(field, lambda change: guarded(partial(self._name_column, self.row.value))())
        wrapped = {"flex_flow": "row wrap", "overflow": "visible"}
        self.widget = widgets.HBox([self._files.widget, self._preview], layout=wrapped).add_class("nbtools-data")

    def _labelled(self, name: str) -> str:
        path = self._root / name
        return f"{name}/  folder of text" if path.is_dir() else f"{name}  {size(path.stat().st_size)}"

    # A thread that shows other rows may set list and column before these callbacks run: they get what was chosen.

    def _choose(self, name: str) -> None:
        self.unguessed = name or None
        columns = {} if name else {column: self._defaults[column] for column in self.column_fields}
        self._fill({"dataset": hub.with_options(name, {}) if name else None, **columns})

    def _name_column(self, column: str | None) -> None:
        name, options = _split(self._dataset)
        if not self._filling.is_on and name and column != options.get(COLUMN):
            self._fill({"dataset": hub.with_options(name, {COLUMN: column} if column else {})})

    def _read(self, dataset: str) -> FirstRows | DataError:
        try:
            return first_rows(dataset, self._root)
        except Exception as error:  # noqa: BLE001 - the thread continues with the next file
            return DataError(message_of(error))

    def show(self, dataset: str | None, values: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Show the first rows of `dataset`, with the columns that `values` name.

        Returns the columns of a table, and for a file that was chosen in the list the guessed values of fields.
        """
        self._dataset = dataset
        name, options = _split(dataset)
        is_file = self._is_file(name)
        if self._files.value != name:
            self._files.show(name)
        answer = self._answers.answer(hub.with_options(name, {})) if is_file else None
        found = answer[0] if answer else None
        guessed: dict[str, Any] = {}
        if self.unguessed is not None and (found is not None or self.unguessed != name):
            self.unguessed = None
            guessed = self._guessed(name, found) if isinstance(found, FirstRows) else {}
        columns = tuple(column for column in found.columns if column) if isinstance(found, FirstRows) else ()
        self._follow(options.get(COLUMN), columns)
        if isinstance(found, FirstRows):
            named = {role: value for role, value in values.items() if value is not None}
            named = {**self._recipe.usual_columns(found.columns), **named}
            named = {column: role for role, value in named.items() for column in _names(value)}
            named |= {options[COLUMN]: "text"} if COLUMN in options else {}
            self._preview.value = _table(found, named) if found.columns else _lines(found)
        else:
            self._preview.value = "<small>reading the first rows</small>" if is_file and answer is None else ""
        return columns, guessed

    def _is_file(self, name: str) -> bool:
        """Whether the dataset is a file, whose first rows can be read without a walk through folders."""
        with suppress(OSError, ValueError):  # a path with NUL
            path = data_files.dataset_path(hub.with_options(name, {}), self._root)
            return name in self._files.names or path.is_file()
        return False

    def _guessed(self, name: str, found: FirstRows) -> dict[str, Any]:
        """Return the dataset and a guess of its columns."""
        guess = self._recipe.guess_columns(found) if found.columns and self._recipe.guess_columns else {}
        column = guess.get(COLUMN)
        named = (each for each in self.column_fields if guess.get(each) is not None or self._defaults[each] is None)
        dataset = hub.with_options(name, {COLUMN: str(column)} if column else {})
        return {"dataset": dataset, **{each: guess.get(each) for each in named}}

    def _follow(self, column: str | None, columns: tuple[str, ...]) -> None:
        with self._filling:
            self.row.offer(columns or None)
            if self.row.value != column:
                self.row.value = column


def _split(dataset: str | None) -> tuple[str, dict[str, str]]:
    """Return the name of a dataset and the options behind it; none of a text that is malformed."""
    with suppress(DataError):
        return hub.split_options(dataset or "")
    return "", {}


def _names(value: Any) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()


def _cut(value: Any) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…")


def _table(found: FirstRows, named: Mapping[str, str]) -> str:
    columns = sorted(found.columns, key=lambda name: name not in named)[:_MOST_COLUMNS]
    columns = [name for name in found.columns if name in columns]
    roles = {name: f"<small>{escape(role)}</small>" for name, role in named.items()}
    marks = dict.fromkeys(named, " class=nbtools-named")
    head = "".join(f"<th{marks.get(name, '')}>{_cut(name)}{roles.get(name, '')}</th>" for name in columns)
    rows = ("".join(f"<td>{_cut(row.get(name))}</td>" for name in columns) for row in found.rows[:_NUM_ROWS])
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    left = len(found.columns) - len(columns)
    more = [plural(left, "column") + " not shown"] if left else []
    more += [f"the first of {plural(found.num_files, 'file')}"] if found.num_files > 1 else []
    if found.lacks_names:
        more.append("the first line looks like a row: it is read as names of columns, so add a line of names")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div>{table}</div><small>{', '.join(more)}</small>"


def _lines(found: FirstRows) -> str:
    lines = "".join(f"<p>{_cut(row[''])}</p>" for row in found.rows[:_NUM_ROWS])
    more = f"<small>the first of {plural(found.num_files, 'file')}</small>" if found.num_files > 1 else ""
    return f"<div>{lines}</div>{more}"
