"""Programs of tests that may be asked for their arguments."""

from pathlib import Path

from nbtools.machine.interpreter import own_interpreter
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.ask import ask
from nbtools.script.arguments.consent import remember_consent


def asked(script: Path, module: str | None = None, *, timeout_s: float = 60) -> ScriptArguments:
    """Return what a program answers, which the user lets run up to its parser."""
    remember_consent(script, True)
    python = own_interpreter()
    return ask(script, python.path, module=module, search=python.search, timeout_s=timeout_s)
