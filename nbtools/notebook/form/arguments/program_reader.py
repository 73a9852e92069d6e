"""Reads the arguments of a program in threads: what is known without running it, and what it answers if it may run."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from nbtools.errors import NbtoolsError
from nbtools.machine.interpreter import Interpreter, interpreter_for
from nbtools.notebook.background import Background
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.ask import TIME_LIMIT_S, ask, known_arguments
from nbtools.script.arguments.consent import consent_to
from nbtools.script.program import Program


@dataclass(frozen=True)
class ProgramQuestion:
    """A program whose arguments are to be read, and the time of its file."""

    script: Path | None
    """None for a module that is not in `cwd`."""
    module: str | None
    cwd: Path
    python: str | None
    needs_torch: bool
    changed_ns: int


@dataclass(frozen=True)
class ProgramAnswer:
    """A program's arguments and interpreter."""

    arguments: ScriptArguments | None
    """None if its file cannot be read."""
    cwd: Path
    python: str = ""
    """The interpreter that runs it, with its torch."""
    mistakes: dict[str, str] = field(default_factory=dict)
    """Why that interpreter cannot run it, by field."""
    consent: bool | None = None
    """Whether the user lets the program run up to its parser; None if that was not asked."""


class ProgramReader:
    """Keeps the answer to the newest question."""

    def __init__(self, root: Path, on_read: Callable[[], None], tell: Callable[[str], None]) -> None:
        """Call `on_read` from a thread after each answer; `tell` says that a program is asked, and nothing after."""
        self._root, self._tell = root, tell
        self._known, self._told = Background(self._look, on_read), Background(self._ask, on_read)

    def answer(self, program: Program, python: str | None, needs_torch: bool) -> ProgramAnswer | None:
        """Return the arguments that are known, or those that the program told; None until they are read, and if its
        file or its working directory does not exist."""
        cwd, path = program.folder(self._root) or Path.cwd(), program.file(self._root)
        if not cwd.is_dir() or (path is None and program.module is None) or (path is not None and not path.is_file()):
            return None
        changed_ns = path.stat().st_mtime_ns if path else 0
        question = ProgramQuestion(path, program.module, cwd, python, needs_torch, changed_ns)
        if (known := self._known.answer(question)) is None:
            return None
        (answer,) = known
        found = answer.arguments
        if answer.consent and found is not None and found.can_ask and not found.is_complete:
            (found,) = self._told.answer(question) or (found,)
        return replace(answer, arguments=found)

    def forget(self) -> None:
        """Read again what is known, as after the user's consent."""
        self._known.forget()

    def _interpreter(self, question: ProgramQuestion, *, may_run: bool) -> Interpreter:
        where, needs_torch = question.script or question.cwd / "-", question.needs_torch
        return interpreter_for(where, question.python, self._root, needs_torch=needs_torch, may_run=may_run)

    def _look(self, question: ProgramQuestion) -> ProgramAnswer:
        """Read what is known of a program without running it."""
        python, mistakes, cwd = None, {}, question.cwd
        consent = consent_to(question.script or cwd / "-")
        try:
            python = self._interpreter(question, may_run=consent is True)
            if question.needs_torch:
                python.torch_text("version.py")
        except NbtoolsError as error:
            mistakes["python"] = str(error)
        if question.script is not None:
            found = known_arguments(question.script, python, cwd, question.module)
            return ProgramAnswer(found, cwd, "" if python is None else str(python), mistakes, consent)
        if python is not None and (python.is_own or consent is True):
            why = Program(module=question.module, cwd=str(cwd)).why_missing(self._root, python)
            mistakes |= {"module": why} if why else {}
        return ProgramAnswer(None, cwd, mistakes=mistakes)

    def _ask(self, question: ProgramQuestion) -> ScriptArguments:
        """Run a program up to its parser, and tell so until it answers."""
        assert question.script is not None
        self._tell(f"asking {question.script.name}, for at most {TIME_LIMIT_S:.0f} s")
        try:
            python = self._interpreter(question, may_run=True)
            return ask(question.script, python, question.cwd, question.module)
        except (NbtoolsError, OSError) as error:
            seen = self._look(question).arguments or ScriptArguments(question.script, "")
            return replace(seen, notes=(str(error), *seen.notes))
        finally:
            self._tell("")
