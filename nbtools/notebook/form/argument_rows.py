"""Rows for the arguments that a program declares: they read and write the words of its command line."""

import shlex
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from types import NoneType
from typing import Any

import ipywidgets as widgets

from nbtools.config import Launch
from nbtools.errors import ConfigError, NbtoolsError, plural, shown
from nbtools.machine.interpreter import Interpreter, interpreter_for
from nbtools.notebook.background import Background
from nbtools.notebook.form.fields import INPUT_SHAPE, FieldRow, row
from nbtools.notebook.form.overwrite import button
from nbtools.notebook.form.sections import Section, Sections
from nbtools.notebook.subshell import answers_beside_cells
from nbtools.rundir.secret_values import MASK, masked
from nbtools.script.arguments.arguments import Argument, ScriptArguments
from nbtools.script.arguments.ask import TIME_LIMIT_S, ask
from nbtools.script.arguments.command_line import CommandLine, parse_words
from nbtools.script.arguments.declared import arguments_of
from nbtools.script.arguments.texts import element_type, is_list
from nbtools.script.field import Field
from nbtools.script.program import Program

Guarded = Callable[[Callable[[], object]], Callable[..., None]]
_FEW = 24
"""So many arguments are all shown; of more, those of the program's own file and those that differ."""
_NUM_COLUMNS = 3
_WHY_ASK = (
    "Runs the program up to its parser, which answers instead of parsing: in a process of its own with the program's "
    f"Python, without GPUs, offline, and for at most {TIME_LIMIT_S:.0f} s. The code above the parser is executed, "
    "in a temporary folder with copies of the small files of the working directory and links to the rest: files there "
    "are not changed by Python's own functions, but new ones in its folders are real."
)


@dataclass(frozen=True)
class _Question:
    """A program whose arguments are read, in the state of its file."""

    script: Path
    module: str | None
    cwd: Path
    python: str | None
    needs_torch: bool
    changed_ns: int


@dataclass(frozen=True)
class _Answer:
    """What is known of a program without running it."""

    arguments: ScriptArguments | None
    """None if its file cannot be read."""
    python: str = ""
    """The interpreter that runs it, with its torch."""
    mistake: str = ""
    """Why that interpreter cannot run it."""


class ArgumentRows:
    """A row for each argument of a program, in sections that fold; a change of a row changes the words."""

    def __init__(
        self, root: Path, guarded: Guarded, on_words: Callable[[tuple[str, ...]], None], on_read: Callable[[], None]
    ) -> None:
        """Show nothing until a program is chosen.

        Args:
            root: the project's root.
            guarded: error boundary of the form, for callbacks.
            on_words: is called with the words after a change of a row.
            on_read: is called from a thread when the arguments of a program have been read.
        """
        self._root, self._guarded, self._on_words = root, guarded, on_words
        self._read = Background(self._answer, on_read)
        self._asked: dict[_Question, ScriptArguments] = {}
        self._question: _Question | None = None
        self._shown: ScriptArguments | None = None
        self._words: tuple[str, ...] = ()
        self._line: CommandLine | None = None
        self._python = self._problem = ""
        self._is_filling = self._is_asking = False
        self._rows: dict[str, FieldRow] = {}
        self._sections: Sections | None = None
        self._note = widgets.HTML()
        self._ask = button("Ask the script", "comment", _WHY_ASK)
        self._ask.on_click(guarded(self._start_asking))
        self._command = widgets.Dropdown(description="sub-command", **INPUT_SHAPE)
        self._command.observe(guarded(self._edited), names="value")
        self._body = widgets.VBox(layout={"overflow": "visible"})
        head = widgets.HBox([self._ask, self._note], layout={"align_items": "center"})
        self.widget = widgets.VBox(
            [head, row(self._command), self._body], layout={"overflow": "visible", "display": "none"}
        )

    @property
    def fields(self) -> dict[str, FieldRow]:
        """The rows by the name of the argument."""
        return self._rows

    def show(self, program: Program, launch: Launch) -> str:
        """Show the arguments of a program with the values in its words; they are read in a thread.

        Returns why its interpreter cannot run it; empty if it can, or that is not known yet.
        """
        self._question = self._asked_of(program, launch)
        answer = self._read.answer(self._question) if self._question is not None else None
        found = None
        if self._question is not None and answer is not None:
            self._python = answer[0].python
            found = self._asked.get(self._question, answer[0].arguments)
        if found is None:
            self.widget.layout.display = "none"
            return answer[0].mistake if answer else ""
        if found is not self._shown:
            self._draw(found)
            self._fill(program.args)
        elif program.args != self._words:
            self._fill(program.args)
        self._say()
        self.widget.layout.display = ""
        answers_beside_cells(self.widget)
        return answer[0].mistake if answer else ""

    def _asked_of(self, program: Program, launch: Launch) -> _Question | None:
        cwd = program.folder(self._root) or self._root
        path = program.file(self._root, [cwd])
        if path is None or not path.is_file():
            return None
        return _Question(
            path, program.module, cwd, launch.python, launch.torchrun is not False, path.stat().st_mtime_ns
        )

    def _interpreter(self, question: _Question) -> Interpreter:
        return interpreter_for(question.script, question.python, self._root, needs_torch=question.needs_torch)

    def _answer(self, question: _Question) -> _Answer:
        python, mistake = None, ""
        try:
            python = self._interpreter(question)
            if question.needs_torch:
                python.torch_text("version.py")
        except NbtoolsError as error:
            mistake = str(error)
        try:
            search = python.search if python else ()
            found = arguments_of(question.script, module=question.module, search=search)
        except (NbtoolsError, OSError):  # the form names what is wrong with the file
            found = None
        return _Answer(found, "" if python is None else str(python), mistake)

    # --- the rows ---

    def _draw(self, found: ScriptArguments) -> None:
        """Make the rows of a program's arguments."""
        self._shown, self._rows = found, {}
        self._is_filling = True
        try:
            self._command.options = [(" ".join(path) or "none", path) for path in ((), *found.commands)]
        finally:
            self._is_filling = False
        self._command.layout.display = "" if found.commands else "none"
        groups: dict[str, list[FieldRow]] = {}
        for argument in found.arguments:
            line = FieldRow(_described(argument), self._guarded(self._edited), is_argument=True)
            self._rows[argument.field.name] = line
            groups.setdefault(argument.field.group or "Arguments", []).append(line)
        sections = [Section(title, rows) for title, rows in groups.items()]
        self._sections = Sections([], _columns(sections), set())
        bar = [self._sections.bar] if len(self._rows) > _FEW else []
        self._body.children = (*bar, self._sections.columns) if self._rows else ()
        self._ask.layout.display = "" if found.can_ask else "none"
        self._say()

    def _say(self, problem: str | None = None) -> None:
        """Tell what is known of the arguments, and a problem until it is replaced by another or by an empty text."""
        found = self._shown
        self._problem = self._problem if problem is None else problem
        if found is None:
            return
        count = plural(len(found.arguments), "argument")
        what = f"{count} of {found.script.name} ({found.parser})" if found.parser else f"{found.script.name}: no parser"
        lines = [f"{what}{'' if found.is_complete or not found.parser else ', perhaps not all'}", *found.notes]
        lines += [f"runs in {self._python}"] if self._python else []
        rest = masked(self._line.rest) if self._line is not None else []
        lines += [f"kept in args as they are: {shlex.join(rest)}"] if rest else []
        wrong = f"<b>{escape(self._problem)}</b><br>" if self._problem else ""
        self._note.value = f"<small>{wrong}{'<br>'.join(map(escape, lines))}</small>"

    def _fill(self, words: tuple[str, ...]) -> None:
        """Show the values that stand in the words of a command line."""
        assert self._shown is not None
        self._words = words
        line = self._line = parse_words(self._shown, words)
        self._is_filling = True
        try:
            self._command.value = line.command
            for argument in self._shown.arguments:
                name = argument.field.name
                self._rows[name].value = line.values.get(name, argument.field.default)
                self._rows[name].hide_secret()
        finally:
            self._is_filling = False
        self._mark({})
        self._say("")

    def _edited(self) -> None:
        """Write the values of the rows as words; a wrong value is marked and leaves the words as they are."""
        if self._is_filling or self._shown is None or self._line is None:
            return
        values: dict[str, Any] = {}
        wrong: dict[str, str] = {}
        used = [argument for argument in self._shown.arguments if self._is_used(argument)]
        for argument in used:
            name = argument.field.name
            try:
                values[name] = self._rows[name].value
            except ValueError as error:
                wrong[name] = str(error)
        problem = ""
        if not wrong:
            try:
                words = tuple(self._line.edited(values, self._command.value))
            except ConfigError as error:
                problem = str(error)
            else:
                self._words, self._line = words, parse_words(self._shown, words)
                self._on_words(words)
                self._is_filling = True
                try:
                    for name in values:
                        self._rows[name].hide_secret()
                finally:
                    self._is_filling = False
        self._mark(wrong)
        self._say(problem or (f"not taken over: {plural(len(wrong), 'wrong value')}" if wrong else ""))

    def _is_used(self, argument: Argument) -> bool:
        chosen: tuple[str, ...] = self._command.value
        return argument.command == chosen[: len(argument.command)]

    def _mark(self, wrong: dict[str, str]) -> None:
        """Show errors and changed values; fold what rarely changes."""
        assert self._shown is not None and self._sections is not None
        changed, usual = dict[str, str](), set[str]()
        is_long = len(self._shown.arguments) > _FEW
        unused = {a.field.name for a in self._shown.arguments if not self._is_used(a)}
        for argument in self._shown.arguments:
            field, line = argument.field, self._rows[argument.field.name]
            try:
                differs = line.value != field.default
            except ValueError:
                differs = True
            if differs and not field.is_required:
                known = MASK if field.is_secret and field.default else shown(field.default, 60)
                changed[field.name] = f"default: {field.default_text or known}"
            is_own = field.source.startswith(f"{self._shown.script.name}:")
            if not is_long or is_own or differs or field.is_required:
                usual.add(field.name)
        self._sections.use(usual, unused)
        self._sections.mark(wrong, changed)

    # --- asking ---

    def _start_asking(self) -> None:
        if self._is_asking or self._question is None:
            return
        self._is_asking, self._ask.disabled = True, True
        self._say(f"asking {self._question.script.name} …")
        threading.Thread(target=self._asking, args=(self._question,), name="nbtools-ask", daemon=True).start()

    def _asking(self, question: _Question) -> None:
        try:
            python = self._interpreter(question)
            found = ask(question.script, python.path, question.cwd, module=question.module, search=python.search)
            self._asked[question] = found
        except (NbtoolsError, OSError) as error:
            self._guarded(partial(self._say, str(error)))()
            return
        finally:
            self._is_asking, self._ask.disabled = False, False
        self._guarded(partial(self._show_answer, question))()

    def _show_answer(self, question: _Question) -> None:
        if question == self._question:
            self._draw(self._asked[question])
            self._fill(self._words)


def _described(argument: Argument) -> Field:
    """Return the field of a row: its note has the type and the line of the source beside the help."""
    field = argument.field
    types = ", ".join("none" if kind is NoneType else element_type(kind).__name__ for kind in field.types)
    types += ", several as in a shell" if is_list(field) else ""
    source = f" ({field.source})" if field.source else ""
    return field.replace(help=f"{field.help}{source}".strip(), unit=field.unit or types)


def _columns(sections: Iterable[Section]) -> list[list[Section]]:
    """Divide sections into columns of about the same number of rows."""
    columns: list[list[Section]] = [[] for _ in range(_NUM_COLUMNS)]
    for section in sections:
        least = min(columns, key=lambda column: sum(len(each.rows) + 1 for each in column))
        least.append(section)
    return [column for column in columns if column]
