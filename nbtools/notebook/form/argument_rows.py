"""Rows for the arguments that a program declares: they read and write the words of its command line."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from html import escape
from pathlib import Path
from types import NoneType
from typing import Any

import ipywidgets as widgets

from nbtools.errors import ConfigError, NbtoolsError, plural, shown
from nbtools.machine.interpreter import Interpreter, interpreter_for
from nbtools.notebook.background import Background, Filling, Guarded
from nbtools.notebook.form.field_rows import INPUT_SHAPE, FieldRow, FormRow
from nbtools.notebook.form.sections import Section, Sections
from nbtools.notebook.kernel import answers_beside_cells
from nbtools.notebook.widgets import button
from nbtools.project import expanded
from nbtools.rundir.secret_values import MASK
from nbtools.script.arguments.arguments import Argument, ScriptArguments, is_same
from nbtools.script.arguments.ask import TIME_LIMIT_S, ask, known_arguments
from nbtools.script.arguments.command_line import CommandLine, parse_words
from nbtools.script.arguments.config_file import keys_of_config
from nbtools.script.arguments.consent import consent_to, remember_consent, repository_of, why_never
from nbtools.script.field import Field
from nbtools.script.intercept.hydra_ import CONFIG_GROUP
from nbtools.script.program import Program, config_file_of
from nbtools.script.values import element_type, is_list
from nbtools.settings import may_be_path

_FEW = 24
"""Up to this number all arguments are shown; of more, those of the program's own file and the changed ones."""
_NUM_COLUMNS = 3
_COMMAND = "sub-command"
_NAMES_PATH = re.compile(r"data|dir|path|file|folder|root|config|out|save|log|ckpt|checkpoint|train|val|test")
_IS_PATH = re.compile(r"(?:^|[-_.])(?:dir|path|file|folder|root|out|output)$")
"""Names of arguments whose value is a path if it looks like one, and always."""
_WHY_ASK = (
    "A program knows its arguments best: it runs up to its parser, which then answers instead of parsing, in a process "
    f"of its own, with its Python, without GPUs, offline, and for at most {TIME_LIMIT_S:.0f} s. The code above the "
    "parser is executed as you, with your environment; files of the project cannot be changed. Until then the rows are "
    "preliminary: what its source tells at a glance."
)


@dataclass(frozen=True)
class _Question:
    """A program whose arguments are to be read, and the time of its file."""

    script: Path | None
    """None for a module that is not in `cwd`."""
    module: str | None
    cwd: Path
    python: str | None
    needs_torch: bool
    changed_ns: int


@dataclass(frozen=True)
class _Answer:
    """A program's arguments and interpreter, found without running the program."""

    arguments: ScriptArguments | None
    """None if its file cannot be read."""
    python: str = ""
    """The interpreter that runs it, with its torch."""
    mistakes: Mapping[str, str] = field(default_factory=dict)
    """Why that interpreter cannot run it, by field."""
    consent: bool | None = None
    """Whether the user lets the program run up to its parser; None if that was not asked."""


class WordRows:
    """Rows for the arguments of a program or the keys of a config, in sections that fold; they read and write words."""

    def __init__(self, guarded: Guarded, kind: str, name: str, on_words: Callable[[tuple[str, ...]], None]) -> None:
        """Show nothing until `show` is called.

        `kind` (`argument`, `key`) is the first word of the names of mistakes, and `name` the form's row of all words;
        `on_words` is called with them after a change of a row, even if they stay the same.
        """
        self._guarded, self._kind, self._name, self._on_words = guarded, kind, name, on_words
        self.shown: ScriptArguments | None = None
        self.words: tuple[str, ...] = ()
        self._line: CommandLine | None = None
        self.mistakes: dict[str, str] = {}
        """All mistakes, by names for `go_to`."""
        self._filling = Filling()
        self.rows: dict[str, FieldRow] = {}
        """The rows by the name of the argument."""
        self.sections = Sections([], [], set())
        text = f"Words that are none of these {kind}s, kept as they are."
        rest = Field(f"other words of {name}", (tuple[str, ...],), (), help=text)
        self.rest = FieldRow(rest, guarded(self._edited_rest), is_command=True)
        self.command = widgets.Dropdown(description=_COMMAND, **INPUT_SHAPE)
        self.command.observe(guarded(self._edited), names="value")
        self._command_row = FormRow(Field(_COMMAND), self.command)
        self._body = widgets.VBox(layout={"overflow": "visible"})
        self.widget = widgets.VBox([self._command_row.widget, self._body], layout={"overflow": "visible"})

    def go_to(self, name: str) -> bool:
        """Scroll to the row of a mistake; whether it is one of these rows."""
        if is_own := name.startswith(f"{self._kind} "):
            self.sections.go_to(name.removeprefix(f"{self._kind} "))
        elif line := {_COMMAND: self.command, self.rest.field.name: self.rest}.get(name):
            line.focus()
        return is_own or line is not None

    def show(self, found: ScriptArguments, words: tuple[str, ...], label: str = "") -> None:
        """Show arguments with the values in words; `label` precedes the titles of the sections."""
        if is_other := found is not self.shown:
            self._draw(found, label)
        if is_other or words != self.words:
            self._fill(words)
        self.widget.layout.display = ""

    def hide(self) -> None:
        """Remove the rows and their mistakes."""
        self.widget.layout.display, self.mistakes, self.shown = "none", {}, None

    def _draw(self, found: ScriptArguments, label: str) -> None:
        self.shown, self.rows = found, {}
        with self._filling:
            self.command.options = [(" ".join(path) or "none", path) for path in ((), *found.commands)]
        self._command_row.widget.layout.display = "" if found.commands else "none"
        groups: dict[str, list[FieldRow]] = {}
        for argument in found.arguments:
            line = FieldRow(_described(argument), self._guarded(self._edited), is_argument=True)
            self.rows[argument.field.name] = line
            title = " · ".join(filter(None, (label, argument.field.group))) or "Arguments"
            groups.setdefault(title, []).append(line)
        self.sections = Sections([], _columns([Section(title, rows) for title, rows in groups.items()]), set())
        self._body.children = (self.sections.columns, self.rest.widget) if self.rows else ()

    def _fill(self, words: tuple[str, ...]) -> None:
        assert self.shown is not None
        self.words = words
        line = self._line = parse_words(self.shown, words)
        with self._filling:
            self.command.value = line.command
            self.rest.value = tuple(line.rest)
            for argument in self.shown.arguments:
                shown, value = self.rows[argument.field.name], self.value(argument)
                shown.hide_secret(value)
                shown.value = value
        self._mark({})

    def value(self, argument: Argument) -> Any:
        """Return the value that the words give to an argument, else its default."""
        assert self._line is not None
        return self._line.values.get(argument.field.name, argument.field.default)

    def _edited(self) -> None:
        """Write the values of the rows as words; a wrong value is marked, and its words stay unchanged."""
        if self._filling.is_on or self.shown is None or self._line is None:
            return
        values: dict[str, Any] = {}
        wrong: dict[str, str] = {}
        for argument in filter(self._is_used, self.shown.arguments):
            name, line = argument.field.name, self.rows[argument.field.name]
            try:
                values[name] = None if line.is_missing else line.value
                if not line.is_missing and not is_same(values[name], self.value(argument)):
                    self.shown.written(argument, values[name])
            except (ValueError, ConfigError) as error:
                values.pop(name, None)
                wrong[name] = str(error)
        problem = ""
        try:
            self.words = tuple(self._line.edited(values, self.command.value))
        except ConfigError as error:
            problem = str(error)
        else:
            self._line = parse_words(self.shown, self.words)
            with self._filling:
                self.rest.value = tuple(self._line.rest)
                for name in (name for name in values if values[name] is not None):
                    self.rows[name].hide_secret(values[name])
        self._mark(wrong, problem)
        self._on_words(self.words)

    def _edited_rest(self) -> None:
        """Put the words of the last row in place of those that no argument takes."""
        if self._filling.is_on or self._line is None:
            return
        words, wrong = self.words, ""
        try:
            words = tuple(self._line.with_rest(self.rest.value))
        except ValueError as error:
            wrong = str(error)
        self.mistakes.pop(self.rest.field.name, None)
        self.mistakes |= {self.rest.field.name: wrong} if wrong else {}
        self.rest.mark(wrong)
        self._on_words(words)

    def _is_used(self, argument: Argument) -> bool:
        chosen: tuple[str, ...] = self.command.value
        return argument.command == chosen[: len(argument.command)]

    def _mark(self, wrong: dict[str, str], problem: str = "") -> None:
        """Show and keep the mistakes, and mark changed values; fold what rarely changes."""
        assert self.shown is not None and self._line is not None
        wrong = {**self._line.mistakes, **wrong}
        command = wrong.pop("", "")
        self._command_row.mark(command)
        self.mistakes = {_COMMAND: command} if command else {}
        self.mistakes |= {f"{self._kind} {name}": why for name, why in wrong.items()}
        self.mistakes |= {self._name: problem} if problem else {}
        self.rest.mark()
        changed, usual = dict[str, str](), set[str]()
        is_long = len(self.shown.arguments) > _FEW
        unused = {a.field.name for a in self.shown.arguments if not self._is_used(a)}
        for argument in self.shown.arguments:
            field, line = argument.field, self.rows[argument.field.name]
            try:
                differs = line.value != field.default
            except ValueError:
                differs = True
            if differs and not field.is_required:
                known = MASK if field.is_secret and field.default else shown(field.default, 60)
                changed[field.name] = f"default: {field.default_text or known}"
            is_own = field.source.partition(":")[0] in self.shown.script.name.split(", ")
            if not is_long or is_own or differs or field.is_required:
                usual.add(field.name)
        self.sections.use(usual, unused)
        self.sections.mark(wrong, changed)


class ArgumentRows:
    """The rows of a program's arguments, and of the keys of the config file that one of them names."""

    def __init__(
        self,
        root: Path,
        guarded: Guarded,
        outer: Sections,
        fill: Callable[[dict[str, Any]], None],
        on_read: Callable[[], None],
    ) -> None:
        """Show nothing until a program is chosen; the box of the sections `outer` finds arguments too.

        After a change of a row `fill` is called with values of the program by field; `on_read` shows
        the program again, and is called from a thread when arguments have been read.
        """
        self._root, self._guarded, self._outer, self._fill_in = root, guarded, outer, fill
        self._read, self._show_again = Background(self._answer, on_read), on_read
        self._told = Background(self._asked, on_read)
        self._question: _Question | None = None
        self._python = self._problem = ""
        self.own = WordRows(guarded, "argument", "args", self._take_words)
        self.config = WordRows(guarded, "key", "config_values", self._take_values)
        self._configs: dict[str, tuple[str, ...]] = {}
        """Config files as arguments name them, each with the flag of its argument."""
        self._main = ""
        self._note = widgets.HTML()
        self._allow = button("Allow", "check", "Let forms run the programs of this project up to their parser")
        self._allow.on_click(guarded(lambda: self._decide(True)))
        self._refuse = button("Not now", "times", "Run nothing; the rows stay preliminary")
        self._refuse.on_click(guarded(lambda: self._decide(False)))
        self._why = widgets.HTML(layout={"flex": "1 1 0"})
        self._consent = widgets.HBox(
            [self._why, self._allow, self._refuse], layout={"align_items": "center", "display": "none"}
        )
        self.widget = widgets.VBox(
            [self._note, self._consent, self.own.widget, self.config.widget],
            layout={"overflow": "visible", "display": "none"},
        )

    @property
    def mistakes(self) -> dict[str, str]:
        """All mistakes in the arguments, by names for `go_to`."""
        return {} if self.widget.layout.display else {**self.own.mistakes, **self.config.mistakes}

    def go_to(self, name: str) -> bool:
        """Scroll to the row of a mistake; whether it is one of these rows."""
        return self.own.go_to(name) or self.config.go_to(name)

    def show(self, program: Program, python: str | None, needs_torch: bool) -> Mapping[str, str]:
        """Show the arguments of a program with the values in its words; they are read in a thread.

        Returns why its interpreter cannot run it, by field; empty if it can, or before the answer.
        """
        self._question = self._asked_of(program, python, needs_torch)
        answer = self._read.answer(self._question) if self._question is not None else None
        found = None
        if self._question is not None and answer is not None:
            self._python, found = answer[0].python, answer[0].arguments
            if answer[0].consent and found is not None and found.can_ask and not found.is_complete:
                (found,) = self._told.answer(self._question) or (found,)
        mistakes = answer[0].mistakes if answer else {}
        if found is None:
            self.widget.layout.display = "none"
            self._outer.join(None)
            return mistakes
        assert self._question is not None and answer is not None
        if found is not self.own.shown or program.args != self.own.words:
            self._problem = ""
        self.own.show(found, program.args, "" if found.is_complete or not found.parser else "preliminary")
        self._show_config(found, program)
        chosen = [each for each in found.arguments if each.field.group == CONFIG_GROUP]
        others = [each.field for each in chosen if self.own.value(each) != each.field.default]
        for argument in found.arguments:
            value = self.own.value(argument)
            told = _not_found(argument, value, self._question.cwd) or _of_other_choice(argument, value, others)
            self.own.rows[argument.field.name].tell(told)
        self._outer.join(self.own.sections)
        self.own.sections.join(self.config.sections if self.config.shown else None)
        self._offer(found, answer[0].consent)
        self._say()
        self.widget.layout.display = ""
        answers_beside_cells(self.widget)
        return mistakes

    def _show_config(self, found: ScriptArguments, program: Program) -> None:
        """Show the keys of the config files that arguments name; those of all but one have the name of their file."""
        assert self._question is not None
        self._configs, files = {}, dict[str, tuple[Path, int]]()
        for argument in found.arguments:
            value = self.own.value(argument)
            for word in value if isinstance(value, tuple) else (value,):
                path = self._question.cwd / expanded(word) if isinstance(word, str) and may_be_path(word) else None
                changed_ns = path.stat().st_mtime_ns if path and path.is_file() else 0
                if path and changed_ns and _keys(((word, path, changed_ns),), word).arguments:
                    self._configs.setdefault(word, argument.flags[:1])
                    files.setdefault(word, (path, changed_ns))
        if not files:
            self.config.hide()
            return
        self._main = program.config_file if program.config_file in files else next(iter(files))
        keys = _keys(tuple((word, *file) for word, file in files.items()), self._main)
        changes = (word for word in program.config_values if (config_file_of(word) or program.config_file) in files)
        self.config.show(keys, tuple(changes), keys.script.name if len(files) == 1 else "")

    def _take_words(self, words: tuple[str, ...]) -> None:
        """Write the words of the arguments into the form, without values of a config that they no longer name."""
        kept = tuple(word for word in self.config.words if _names(words, config_file_of(word) or self._main))
        is_same = self.config.shown is None or kept == self.config.words
        self._fill_in({"args": words, **({} if is_same else self._changes(kept))})

    def _take_values(self, words: tuple[str, ...]) -> None:
        """Write the changed values of the config files into the form, and name the files among the arguments."""
        args = self.own.words
        for file in dict.fromkeys(config_file_of(word) or self._main for word in words):
            args = args if _names(args, file) else (*self._configs[file], file, *args)
        self._fill_in({"args": args, **self._changes(words)})

    def _changes(self, words: tuple[str, ...]) -> dict[str, Any]:
        has_main = "" in map(config_file_of, words)
        return {"config_file": self._main if has_main else None, "config_values": words}

    def _asked_of(self, program: Program, python: str | None, needs_torch: bool) -> _Question | None:
        cwd, path = program.folder(self._root) or Path.cwd(), program.file(self._root)
        if not cwd.is_dir() or (path is None and program.module is None) or (path is not None and not path.is_file()):
            return None
        changed_ns = path.stat().st_mtime_ns if path else 0
        return _Question(path, program.module, cwd, python, needs_torch, changed_ns)

    def _interpreter(self, question: _Question, *, may_run: bool) -> Interpreter:
        program, needs_torch = question.script or question.cwd / "-", question.needs_torch
        return interpreter_for(program, question.python, self._root, needs_torch=needs_torch, may_run=may_run)

    def _answer(self, question: _Question) -> _Answer:
        python, mistakes = None, {}
        consent = consent_to(question.script or question.cwd / "-")
        try:
            python = self._interpreter(question, may_run=consent is True)
            if question.needs_torch:
                python.torch_text("version.py")
        except NbtoolsError as error:
            mistakes["python"] = str(error)
        if question.script is None:
            module = Program(module=question.module, cwd=str(question.cwd))
            may_ask = python is not None and (python.is_own or consent is True)
            if python is not None and may_ask and (why := module.why_missing(self._root, python)):
                mistakes["module"] = why
            return _Answer(None, mistakes=mistakes)
        try:
            path, search = (python.path, python.search) if python else (question.cwd, ())
            found = known_arguments(question.script, path, question.cwd, module=question.module, search=search)
        except (NbtoolsError, OSError):  # the form names what is wrong with the file
            found = None
        return _Answer(found, "" if python is None else str(python), mistakes, consent)

    def _say(self, problem: str | None = None) -> None:
        """Show where the arguments come from, and a problem until another text replaces it."""
        found, keys = self.own.shown, self.config.shown
        self._problem = self._problem if problem is None else problem
        if found is None:
            return
        count = plural(len(found.arguments), "argument")
        what = f"{count} of {found.script.name} ({found.parser})" if found.parser else f"{found.script.name}: no parser"
        what += "" if found.is_complete or not found.parser else ", preliminary: by its source"
        lines = [what, *found.notes]
        if keys is not None:
            lines += [f"{plural(len(keys.arguments), 'key')} of {keys.script.name}; a run gets a copy with the changes"]
        lines += [f"starts in {self._question.cwd}"] if self._question is not None else []
        lines += [f"runs in {self._python}"] if self._python else []
        wrong = f"<b>{escape(self._problem)}</b><br>" if self._problem else ""
        self._note.value = f"<small>{wrong}{'<br>'.join(map(escape, lines))}</small>"

    # --- asking ---

    def _offer(self, found: ScriptArguments, consent: bool | None) -> None:
        """Ask the user whether the program may be asked, until it is allowed; once refused, in a sentence."""
        assert self._question is not None and self._question.script is not None
        wants = found.can_ask and not found.is_complete and not consent
        never = why_never(self._question.script) if wants else ""
        what = f"Forms may run the programs of {repository_of(self._question.script)} up to their parser, as you?"
        self._why.value = f"<b>{escape(what)}</b> <small>{escape(_WHY_ASK) if consent is None else ''}</small>"
        self._refuse.layout.display = "" if consent is None else "none"
        self._consent.layout.display = "" if wants and not never else "none"
        self._problem = never or self._problem

    def _decide(self, is_allowed: bool) -> None:
        """Remember the user's answer; the program is asked if it may be."""
        if self._question is not None and self._question.script is not None:
            remember_consent(self._question.script, is_allowed)
            self._read.forget()
            self._show_again()

    def _asked(self, question: _Question) -> ScriptArguments:
        """Ask a program, and show the time until it answers."""
        assert question.script is not None
        is_done = threading.Event()
        threading.Thread(target=self._tell_time, args=(question.script.name, is_done), daemon=True).start()
        try:
            python = self._interpreter(question, may_run=True)
            return ask(question.script, python.path, question.cwd, module=question.module, search=python.search)
        except (NbtoolsError, OSError) as error:
            seen = self.own.shown or ScriptArguments(question.script, "")
            return replace(seen, notes=(str(error), *seen.notes))
        finally:
            is_done.set()

    def _tell_time(self, name: str, is_done: threading.Event) -> None:
        """Show how long the program has been asked, each second."""
        started = time.monotonic()
        while not is_done.wait(1.0):
            text = f"asking {name} … {time.monotonic() - started:.0f} s of at most {TIME_LIMIT_S:.0f} s"
            self._guarded(partial(self._say, text))()
        self._guarded(partial(self._say, ""))()


def _not_found(argument: Argument, value: Any, cwd: Path) -> str:
    """Return that the path which an argument has is not there from the folder in which the program starts."""
    if not isinstance(value, str) or argument.field.is_secret or "://" in value or not may_be_path(value):
        return ""
    name = argument.field.name.lower()
    is_file = _NAMES_PATH.search(name) and ("/" in value or Path(value).suffix)
    is_path = is_file or _IS_PATH.search(name) or value.startswith(("/", "./", "../", "~/")) or value.endswith("/")
    if not is_path or os.path.lexists(cwd / expanded(value)):
        return ""
    return f"{value}: not found" if expanded(value).is_absolute() else f"paths start in {cwd}: {value} not found there"


def _of_other_choice(argument: Argument, value: Any, groups: Iterable[Field]) -> str:
    """Return that a key has the default of another choice than that of its config group in hydra."""
    inside = (group for group in groups if argument.field.name.startswith(f"{group.name.replace('/', '.')}."))
    if value != argument.field.default or (group := next(inside, None)) is None:
        return ""
    return f"of {group.name}={group.default}; unless it is changed here, the run has that of the new {group.name}"


def _described(argument: Argument) -> Field:
    """Return the field of a row: its note has the type and the line of the source beside the help."""
    field = argument.field
    types = ", ".join("none" if kind is NoneType else element_type(kind).__name__ for kind in field.types)
    types += ", several as in a shell" if is_list(field) else ""
    source = f" ({field.source})" if field.source else ""
    return field.replace(help=f"{field.help}{source}".strip(), unit=field.unit or types)


@lru_cache(maxsize=64)
def _keys(files: tuple[tuple[str, Path, int], ...], main: str) -> ScriptArguments:
    """Return the keys of config files, each with its word, path and time of change; plain ones of the main file."""
    found: list[Argument] = []
    for word, path, _ in files:
        keys = keys_of_config(path, path.name)
        for argument in keys.arguments if keys else ():
            field, full = argument.field, f"{word}:{argument.field.name}"
            group = field.group if len(files) == 1 else " · ".join(filter(None, (path.name, field.group)))
            name, flags = (field.name, (field.name, full)) if word == main else (full, (full,))
            found.append(replace(argument, field=field.replace(name=name, group=group), flags=flags))
    names = dict.fromkeys(path.name for _, path, _ in files)
    return ScriptArguments(Path(", ".join(names)), "config file", tuple(found), is_complete=True)


def _names(words: Iterable[str], file: str) -> bool:
    return any(word == file or word.endswith(f"={file}") for word in words)


def _columns(sections: Iterable[Section]) -> list[list[Section]]:
    """Divide sections into columns of about the same number of rows."""
    columns: list[list[Section]] = [[] for _ in range(_NUM_COLUMNS)]
    for section in sections:
        least = min(columns, key=lambda column: sum(len(each.rows) + 1 for each in column))
        least.append(section)
    return [column for column in columns if column]
