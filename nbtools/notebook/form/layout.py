"""The parts of a form and their layout: the data first, then columns of sections, and the launch bar below them."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.config import COMMANDS, Launch, NotifyOn, Slurm, StopOn, TrainConfig
from nbtools.data import project_files
from nbtools.errors import InvalidNameError
from nbtools.notebook.background import Callback, Fill, Guarded
from nbtools.notebook.form.arguments.argument_rows import ArgumentRows
from nbtools.notebook.form.data_picker import COLUMN, DataPicker, FileList
from nbtools.notebook.form.field_list import WHERE, FieldList, row_name
from nbtools.notebook.form.script_row import ScriptRow
from nbtools.notebook.rows.field_rows import STYLE, FieldRow
from nbtools.notebook.rows.sections import Section, Sections, SettingFinder
from nbtools.project import check_name, plain_name
from nbtools.recipes import Recipe
from nbtools.script.program import Program

PROGRAM = "A program of yours", "Train with a script or module of this project, unchanged, with its arguments."
"""Title and summary of the form of a program."""


class FormLayout:
    """The rows of one form in sections, with the data of a recipe or the arguments of a program."""

    def __init__(
        self,
        recipe: Recipe | None,
        fields: FieldList,
        script: ScriptRow,
        on_edit: Callback,
        guarded: Guarded,
        fill: Fill,
    ) -> None:
        """Lay out `fields`; `on_edit` is called after a choice of data, and `fill` with values by row."""
        root = script.project.root
        title, summary = (recipe.title, recipe.summary) if recipe else PROGRAM
        self._heading = widgets.HTML(f"{STYLE}<h3>{escape(title)}</h3><p>{escape(summary)}</p>")
        self._fields, self._script = fields, script
        self.data = DataPicker(root, recipe, fill, on_edit, guarded) if recipe and recipe.guess_columns else None
        self._columns: tuple[str, ...] = ()
        """The columns of the chosen table."""
        self.arguments = None if recipe else ArgumentRows(root, guarded, fill, on_edit)
        self.sections = self._of_program(root) if recipe is None else self._of_recipe(recipe)
        self._finder = SettingFinder()

    def _section(self, title: str, names: Iterable[str], *above: widgets.DOMWidget) -> Section:
        return Section(title, [self._fields.rows[name] for name in names], *above)

    def _of_launch(self) -> list[Section]:
        processes = [name for name in Launch.model_fields if name not in ("cluster", "stop_on", "notify_on", *COMMANDS)]
        return [
            self._section("Processes and devices", [WHERE, *processes]),
            self._section("Slurm job", Slurm.model_fields),
            self._section("Stop on", StopOn.model_fields),
            self._section("At the end", ["on_end"]),
            self._section("Notify on", [*(row_name(NotifyOn, name) for name in NotifyOn.model_fields), "notify_with"]),
        ]

    def _of_program(self, root: Path) -> Sections:
        find, hint = partial(project_files.find_programs, root), "Files with a main part or a parser."
        files = FileList("the path below", find, self._choose_program, hint=lambda _: hint)
        listed = files.widget.add_class("nbtools-data")
        listed.layout.max_width = "620px"
        processes, *others = self._of_launch()
        return Sections([[processes], others], [self._section("Program", Program.model_fields, listed)])

    def _of_recipe(self, recipe: Recipe) -> Sections:
        own = [name for name in recipe.config_class.model_fields if name not in TrainConfig.model_fields]
        data = self._section("Data", [name for name in recipe.data_fields if name in own])
        if self.data is not None:
            rows = [*data.rows[:1], *([] if self.data.column_fields else [self.data.row]), *data.rows[1:]]
            data = Section("Data", rows, self.data.widget)
        model = self._section("Model", [name for name in own if name not in recipe.data_fields])
        return Sections([[model], [self._section("Training", TrainConfig.model_fields)], self._of_launch()], [data])

    def arranged(self, head: list[widgets.DOMWidget], below: list[widgets.DOMWidget]) -> widgets.VBox:
        """Return the whole form: a title, rows above the sections, the sections, and what stands below them."""
        arguments = [self.arguments.widget] if self.arguments else []
        sections = (self.sections.first, self._finder.widget, *arguments, self.sections.columns)
        form = widgets.VBox([self._heading, widgets.GridBox(head).add_class("nbtools-columns"), *sections, *below])
        form.layout.overflow = "visible"
        return form.add_class("nbtools-form")

    def show_data(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Show the first rows of the data that `values` name; return guesses for a file that was chosen."""
        if self.data is None:
            return {}
        named = {name: values.get(name) for name in self.data.column_fields}
        self._columns, guessed = self.data.show(values.get("dataset"), named)
        for name in self.data.column_fields:
            line = self._fields.rows[name]
            assert isinstance(line, FieldRow)
            line.offer(self._columns or None)
        return guessed

    def mark(self, wrong: Mapping[str, str], was: Mapping[str, str]) -> None:
        """Show in each row its error, or else its earlier value; columns to choose from are shown without unfolding."""
        columns = {COLUMN, *(self.data.column_fields if self.data else ())}
        usual, unused = self._fields.usual, self._fields.unused
        usual, unused = (usual | columns, unused) if self._columns else (usual, unused | {COLUMN})
        self.sections.mark(wrong, was, usual, unused)
        self._finder.use(self.sections, *(self.arguments.sections if self.arguments else ()))

    def go_to(self, name: str) -> None:
        """Scroll to the row of a mistake."""
        self._finder.text.value = ""
        if name == self._script.label:
            self._script.row.focus()
        elif not (self.arguments and self.arguments.go_to(name)):
            self.sections.go_to(name)

    def _choose_program(self, path: str) -> None:
        """Fill in the path of a program, and a name after it."""
        if not path:
            return
        script = self._fields.rows["script"]
        assert isinstance(script, FieldRow)
        script.type_in(path)
        with suppress(InvalidNameError):
            self._script.input.value = check_name(f"run_{plain_name(Path(path).stem).replace('-', '_')}")
