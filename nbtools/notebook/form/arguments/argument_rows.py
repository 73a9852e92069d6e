"""The rows of a program's arguments and config files, where they come from, and the question whether it may run."""

from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path

import ipywidgets as widgets

from nbtools.errors import plural
from nbtools.notebook.background import Fill, Guarded
from nbtools.notebook.form.arguments.config_rows import ConfigRows
from nbtools.notebook.form.arguments.program_reader import ProgramReader
from nbtools.notebook.form.arguments.word_rows import WordRows
from nbtools.notebook.rows.sections import Sections
from nbtools.notebook.widgets import answers_beside_cells, button
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.ask import TIME_LIMIT_S
from nbtools.script.arguments.consent import remember_consent, repository_of, why_never
from nbtools.script.program import Program

_WHY_ASK = (
    "A program knows its arguments best: it runs up to its parser, which then answers instead of parsing, in a process "
    f"of its own, with its Python, without GPUs, offline, and for at most {TIME_LIMIT_S:.0f} s. The code above the "
    "parser is executed as you, with your environment; files of the project cannot be changed. Until then the rows are "
    "preliminary: what its source tells at a glance."
)


class ConsentQuestion:
    """Asks the user until it is allowed; once refused, in a sentence."""

    def __init__(self, guarded: Guarded, on_answer: Callable[[], None]) -> None:
        """Show nothing; `on_answer` is called after the user's answer was remembered."""
        self._on_answer = on_answer
        self._script: Path | None = None
        allow, refuse = guarded(lambda: self._decide(True)), guarded(lambda: self._decide(False))
        self.allow = button("Allow", "check", "Let forms run the programs of this project up to their parser", allow)
        self.refuse = button("Not now", "times", "Run nothing; the rows stay preliminary", refuse)
        self.why = widgets.HTML(layout={"flex": "1 1 0"})
        layout = {"align_items": "center", "display": "none"}
        self.widget = widgets.HBox([self.why, self.allow, self.refuse], layout=layout)

    def show(self, found: ScriptArguments, consent: bool | None) -> str:
        """Ask about a script, unless it has told its arguments; return why it may never be run, or an empty string."""
        self._script = script = found.script
        wants = found.can_ask and not found.is_complete and not consent
        never = why_never(script) if wants else ""
        what = f"Forms may run the programs of {repository_of(script)} up to their parser, as you?"
        self.why.value = f"<b>{escape(what)}</b> <small>{escape(_WHY_ASK) if consent is None else ''}</small>"
        self.refuse.layout.display = "" if consent is None else "none"
        self.widget.layout.display = "" if wants and not never else "none"
        return never

    def _decide(self, is_allowed: bool) -> None:
        if self._script is not None:
            remember_consent(self._script, is_allowed)
            self._on_answer()


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
        answer = self._reader.answer(program, python, needs_torch)
        found = answer.arguments if answer else None
        if answer is None or found is None:
            self.widget.layout.display = "none"
            return answer.mistakes if answer else {}
        if found is not self.own.shown or program.args != self.own.words:
            self._problem = ""
        self.own.show(found, program.args, "" if found.is_complete or not found.parser else "preliminary")
        self.config.show(found, program, answer.cwd)
        never = self.consent.show(found, answer.consent)
        what = f"{found.script.name}: no parser"
        if found.parser:
            what = f"{plural(len(found.arguments), 'argument')} of {found.script.name} ({found.parser})"
            what += "" if found.is_complete else ", preliminary: by its source"
        self._facts = [what, *found.notes]
        if (keys := self.config.keys.shown) is not None:
            count = plural(len(keys.arguments), "key")
            self._facts.append(f"{count} of {keys.script.name}; a run gets a copy with the changes")
        self._facts += [f"starts in {answer.cwd}", *([f"runs in {answer.python}"] if answer.python else [])]
        self._say(never or self._problem)
        self.widget.layout.display = ""
        answers_beside_cells(self.widget)
        return answer.mistakes

    def _say(self, problem: str) -> None:
        """Show where the arguments come from, and a problem until another text replaces it."""
        self._problem = problem
        wrong = f"<b>{escape(problem)}</b><br>" if problem else ""
        self.note.value = f"<small>{wrong}{'<br>'.join(map(escape, self._facts))}</small>"
