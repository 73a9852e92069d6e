"""Rows for words: they show the values that words of a command line give, and write changed values as words."""

from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any

import ipywidgets as widgets

from nbtools.errors import ConfigError, shown
from nbtools.notebook.background import Filling, Guarded
from nbtools.notebook.rows.field_rows import INPUT_SHAPE, FieldRow, FormRow, read_values
from nbtools.notebook.rows.sections import Section, Sections
from nbtools.rundir.secret_values import MASK
from nbtools.script.arguments.arguments import Argument, ScriptArguments, is_same
from nbtools.script.arguments.command_line import CommandLine, parse_words
from nbtools.script.field import Field
from nbtools.script.intercept.hydra_ import CONFIG_GROUP
from nbtools.script.values import SHELL, element_type, is_list

_FEW = 24
"""Up to this number all arguments are shown; of more, those of the program's own file and the changed ones."""
_NUM_COLUMNS = 3
_COMMAND = "sub-command"


class WordRows:
    """Rows for the arguments of a program or the keys of a config, in sections that fold; they read and write words."""

    def __init__(self, guarded: Guarded, kind: str, name: str, on_words: Callable[[tuple[str, ...]], None]) -> None:
        """Show nothing until `show` is called.

        `kind` (`argument`, `key`) is the first word of the names of mistakes, and `name` the form's row of all words;
        `on_words` is called with them after a change of a row, even if they stay the same.
        """
        self._guarded, self._kind, self._name, self._on_words = guarded, kind, name, on_words
        self.words: tuple[str, ...] = ()
        self._line: CommandLine | None = None
        self.mistakes: dict[str, str] = {}
        """All mistakes, by names for `go_to`."""
        self._filling = Filling()
        self.rows: dict[str, FieldRow] = {}
        """The rows by the name of the argument."""
        self.sections = Sections([])
        self._commands = widgets.Dropdown(description=_COMMAND, **INPUT_SHAPE)
        self._commands.observe(guarded(self._edited), names="value")
        self.command = FormRow(Field(_COMMAND), self._commands)
        self._body = widgets.VBox(layout={"overflow": "visible"})
        self.widget = widgets.VBox([self.command.widget, self._body], layout={"overflow": "visible"})

    @property
    def shown(self) -> ScriptArguments | None:
        """The arguments that have rows; None while nothing is shown."""
        return self._line.script if self._line else None

    def go_to(self, name: str) -> bool:
        """Scroll to the row of a mistake; whether it is one of these rows."""
        if is_own := name.startswith(f"{self._kind} "):
            self.sections.go_to(name.removeprefix(f"{self._kind} "))
        elif is_own := name == _COMMAND:
            self.command.focus()
        return is_own

    def show(self, found: ScriptArguments, words: tuple[str, ...], label: str = "") -> None:
        """Show arguments with the values in words; `label` precedes the titles of the sections."""
        if is_other := found is not self.shown:
            self._draw(found, label)
        if is_other or words != self.words:
            self._fill(found, words)
        self.widget.layout.display = ""

    def hide(self) -> None:
        """Remove the rows and their mistakes."""
        self.widget.layout.display, self.mistakes, self._line = "none", {}, None

    def value(self, argument: Argument) -> Any:
        """Return the value that the words give to an argument, else its default."""
        assert self._line is not None
        return self._line.values.get(argument.name, argument.default)

    def _draw(self, found: ScriptArguments, label: str) -> None:
        self.rows = {}
        self.command.widget.layout.display = "" if found.commands else "none"
        groups: dict[str, list[FieldRow]] = {}
        for argument in found.arguments:
            line = FieldRow(_described(argument), self._guarded(self._edited), SHELL)
            self.rows[argument.name] = line
            title = " · ".join(filter(None, (label, argument.group))) or "Arguments"
            groups.setdefault(title, []).append(line)
        self.sections = Sections(_columns([Section(title, rows) for title, rows in groups.items()]))
        self._body.children = (self.sections.columns,) if self.rows else ()

    def _fill(self, found: ScriptArguments, words: tuple[str, ...]) -> None:
        self.words = words
        self._line = parse_words(found, words)
        with self._filling:
            self._commands.options = [(" ".join(path) or "none", path) for path in ((), *found.commands)]
            self.command.value = self._line.command
            for argument in found.arguments:
                shown, value = self.rows[argument.name], self.value(argument)
                shown.hide_secret(value)
                shown.value = value
        self._mark({})

    def _edited(self) -> None:
        """Write the values of the rows as words; a wrong value is marked, and its words stay unchanged."""
        if self._filling.is_on or self._line is None:
            return
        values: dict[str, Any] = {}
        wrong: dict[str, str] = {}
        for argument in filter(self._is_used, self._line.script.arguments):
            name, line = argument.name, self.rows[argument.name]
            try:
                values[name] = None if line.is_missing else line.value
                if not line.is_missing and not is_same(values[name], self.value(argument)):
                    self._line.script.written(argument, values[name])
            except ValueError as error:
                values.pop(name, None)
                wrong[name] = str(error)
        problem = ""
        try:
            self.words = tuple(self._line.edited(values, self.command.value))
        except ConfigError as error:
            problem = str(error)
        else:
            self._line = parse_words(self._line.script, self.words)
            with self._filling:
                for name in (name for name in values if values[name] is not None):
                    self.rows[name].hide_secret(values[name])
        self._mark(wrong, problem)
        self._on_words(self.words)

    def _is_used(self, argument: Argument) -> bool:
        chosen: tuple[str, ...] = self.command.value
        return argument.command == chosen[: len(argument.command)]

    def _mark(self, wrong: dict[str, str], problem: str = "") -> None:
        """Show and keep the mistakes, and mark changed values; fold what rarely changes."""
        assert self._line is not None
        wrong = {**self._line.mistakes, **wrong}
        command = wrong.pop("", "")
        self.command.mark(command)
        self.mistakes = {_COMMAND: command} if command else {}
        self.mistakes |= {f"{self._kind} {name}": why for name, why in wrong.items()}
        self.mistakes |= {self._name: problem} if problem else {}
        script, (values, _) = self._line.script, read_values(self.rows)
        changed, usual = dict[str, str](), set[str]()
        groups = [argument for argument in script.arguments if argument.group == CONFIG_GROUP]
        other_choices = [argument for argument in groups if self.value(argument) != argument.default]
        for argument in script.arguments:
            differs = values.get(argument.name, ...) != argument.default  # a wrong one differs
            if differs and not argument.is_required:
                known = MASK if argument.is_secret and argument.default else shown(argument.default, 60)
                changed[argument.name] = f"default: {argument.default_text or known}"
            elif told := _of_other_choice(argument, other_choices):
                changed[argument.name] = told
            is_own = argument.source.partition(":")[0] in script.script.name.split(", ")
            if len(script.arguments) <= _FEW or is_own or differs or argument.is_required:
                usual.add(argument.name)
        self.sections.mark(wrong, changed, usual, {a.name for a in script.arguments if not self._is_used(a)})


def _of_other_choice(field: Field, groups: Iterable[Field]) -> str:
    """Return that a key has the default of another choice than that of its config group in hydra."""
    inside = (group for group in groups if field.name.startswith(f"{group.name.replace('/', '.')}."))
    if (group := next(inside, None)) is None:
        return ""
    return f"of {group.name}={group.default}; unless it is changed here, the run has that of the new {group.name}"


def _described(argument: Argument) -> Field:
    """Return the field of a row: its note has the type and the line of the source beside the help."""
    types = ", ".join("none" if kind is NoneType else element_type(kind).__name__ for kind in argument.types)
    types += ", several as in a shell" if is_list(argument) else ""
    source = f" ({argument.source})" if argument.source else ""
    return argument.replace(help=f"{argument.help}{source}".strip(), unit=argument.unit or types)


def _columns(sections: Iterable[Section]) -> list[list[Section]]:
    """Divide sections into columns of about the same number of rows."""
    columns: list[list[Section]] = [[] for _ in range(_NUM_COLUMNS)]
    for section in sections:
        least = min(columns, key=lambda column: sum(len(each.rows) + 1 for each in column))
        least.append(section)
    return [column for column in columns if column]
