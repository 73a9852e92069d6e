"""The rows of a program's arguments and of the config files that they name, with a note on where they come from."""

from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path

import ipywidgets as widgets

from nbtools.errors import plural
from nbtools.notebook.background import Fill, Guarded
from nbtools.notebook.form.arguments.config_rows import ConfigRows
from nbtools.notebook.form.arguments.consent_question import ConsentQuestion
from nbtools.notebook.form.arguments.program_reader import ProgramReader
from nbtools.notebook.form.arguments.word_rows import WordRows
from nbtools.notebook.kernel import answers_beside_cells
from nbtools.notebook.rows.sections import Sections
from nbtools.script.program import Program


class ArgumentRows:
    """The rows of a program's arguments, and of the keys of the config files that they name."""

    def __init__(self, root: Path, guarded: Guarded, fill: Fill, on_read: Callable[[], None]) -> None:
        """Show nothing until a program is chosen.

        After a change of a row `fill` is called with values of the program by field; `on_read` shows
        the program again, and is called from a thread when arguments have been read.
        """
        self._reader = ProgramReader(root, on_read, lambda text: guarded(partial(self._say, text))())
        self.own = WordRows(guarded, "argument", "args", lambda words: fill(self.config.changes_beside(words)))
        self.config = ConfigRows(guarded, self.own, fill)
        self._facts: list[str] = []
        self._problem = ""
        self.note = widgets.HTML()

        def on_answer() -> None:
            self._reader.forget()
            on_read()

        self.consent = ConsentQuestion(guarded, on_answer)
        parts = [self.note, self.consent.widget, self.own.widget, self.config.keys.widget]
        self.widget = widgets.VBox(parts, layout={"overflow": "visible", "display": "none"})

    @property
    def _is_shown(self) -> bool:
        return bool(self.widget.layout.display != "none")

    @property
    def mistakes(self) -> dict[str, str]:
        """All mistakes in the arguments, by names for `go_to`."""
        return {**self.own.mistakes, **self.config.keys.mistakes} if self._is_shown else {}

    @property
    def sections(self) -> list[Sections]:
        """The sections that are shown."""
        keys = [self.config.keys.sections] if self.config.keys.shown else []
        return [self.own.sections, *keys] if self._is_shown else []

    def go_to(self, name: str) -> bool:
        """Scroll to the row of a mistake; whether it is one of these rows."""
        return self.own.go_to(name) or self.config.keys.go_to(name)

    def show(self, program: Program, python: str | None, needs_torch: bool) -> Mapping[str, str]:
        """Show the arguments of a program with the values in its words; they are read in a thread.

        Returns why its interpreter cannot run it, by field; empty if it can, or before the answer.
        """
        question = self._reader.question_of(program, python, needs_torch)
        answer = self._reader.answer(question) if question else None
        found = answer.arguments if answer else None
        if question is None or answer is None or found is None or question.script is None:
            self.widget.layout.display = "none"
            return answer.mistakes if answer else {}
        if found is not self.own.shown or program.args != self.own.words:
            self._problem = ""
        self.own.show(found, program.args, "" if found.is_complete or not found.parser else "preliminary")
        self.config.show(found, program, question.cwd)
        never = self.consent.show(question.script, found, answer.consent)
        what = f"{found.script.name}: no parser"
        if found.parser:
            what = f"{plural(len(found.arguments), 'argument')} of {found.script.name} ({found.parser})"
            what += "" if found.is_complete else ", preliminary: by its source"
        self._facts = [what, *found.notes]
        if (keys := self.config.keys.shown) is not None:
            count = plural(len(keys.arguments), "key")
            self._facts += [f"{count} of {keys.script.name}; a run gets a copy with the changes"]
        self._facts += [f"starts in {question.cwd}"]
        self._facts += [f"runs in {answer.python}"] if answer.python else []
        self._say(never or self._problem)
        self.widget.layout.display = ""
        answers_beside_cells(self.widget)
        return answer.mistakes

    def _say(self, problem: str) -> None:
        """Show where the arguments come from, and a problem until another text replaces it."""
        self._problem = problem
        wrong = f"<b>{escape(problem)}</b><br>" if problem else ""
        self.note.value = f"<small>{wrong}{'<br>'.join(map(escape, self._facts))}</small>"
