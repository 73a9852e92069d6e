"""Programs of tests, and what they answer when they are asked for their arguments."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from nbtools.machine.interpreter import Interpreter, own_interpreter
from nbtools.script.arguments.arguments import Argument, ScriptArguments
from nbtools.script.arguments.ask import ask
from nbtools.script.arguments.consent import remember_consent

PYTHON = own_interpreter()
NO_PYTHON = replace(PYTHON, path=Path("/no/such/python"))


def asked(
    script: Path, module: str | None = None, *, timeout_s: float = 60, python: Interpreter = PYTHON
) -> ScriptArguments:
    """Return what a program answers, which the user lets run up to its parser."""
    remember_consent(script, True)
    return ask(script, python, script.parent, module, timeout_s)


def script_of(*arguments: Argument, parser: str = "argparse", is_complete: bool = True, **more: Any) -> ScriptArguments:
    """Return the arguments of a program that was asked."""
    return ScriptArguments(Path("train.py"), parser, arguments, is_complete=is_complete, **more)
