"""Commands of click and typer."""

from __future__ import annotations

import inspect
from typing import Any, Tuple

from . import answer
from .answer import Described


def hook(module: Any) -> None:
    """Let commands end the program when they are called."""
    for cls in list(vars(module).values()):
        if inspect.isclass(cls) and "main" in vars(cls):
            setattr(cls, "main", lambda self, *args, **kwargs: finish_click(self))  # noqa: B010


def finish_click(command: Any) -> None:
    """Write the parameters of a command."""

    def walk(command: Any, path: Tuple[str, ...]) -> None:
        source = answer.source_of(command.callback)
        for parameter in command.params:
            if getattr(parameter, "expose_value", True) and "completion" not in (parameter.name or ""):
                answer.ARGUMENTS.append(dict(describe_click(parameter), command=list(path), source=source))
        inner = getattr(command, "commands", None) or {}
        answer.NEEDS_COMMAND.extend([list(path)] if inner and not command.invoke_without_command else [])
        for name, other in inner.items():
            answer.COMMANDS.append([*path, name])
            walk(other, (*path, name))

    walk(command, ())
    modules = {cls.__module__.split(".")[0] for cls in type(command).__mro__}
    answer.finish("typer" if "typer" in modules else "click")


def describe_click(parameter: Any) -> Described:
    """Return one parameter."""
    type_of, default = getattr(parameter, "type", None), parameter.default
    parts = {getattr(part, "name", "text") for part in getattr(type_of, "types", ())}  # of click.Tuple
    named = parts.pop() if len(parts) == 1 else getattr(type_of, "name", "text")
    kind = {"integer": "int", "float": "float", "boolean": "bool"}.get(named.replace(" range", ""), "str")
    choices = getattr(type_of, "choices", None)
    if type_of is None:  # typer keeps the annotation
        kinds, found, *_ = answer.annotated(getattr(parameter.type_descriptor, "annotation", str))
        kind, choices = (kinds or ["str"])[0], found or None
    is_flag, is_argument = bool(getattr(parameter, "is_flag", False)), parameter.param_type_name == "argument"
    const: Any = True
    what, nargs = "append" if getattr(parameter, "multiple", False) else "store", parameter.nargs
    if getattr(parameter, "count", False):
        what, kind, nargs = "count", "int", 1
    elif is_flag:
        given = answer.as_plain(getattr(parameter, "flag_value", True))
        what, nargs = "switch", 1
        kind = answer.NAMED.get(type(given), "bool")
        const = given if answer.fits_json(given) and given is not None else True
    is_computed = callable(default) and not inspect.isclass(default)
    entries = answer.default_of(None if is_computed else default)
    entries.update({"default_text": answer.source_of(default)} if is_computed else {})
    if is_flag and kind == "bool" and entries == {"default": None}:
        entries["default"] = False
    usual: Any = "?" if is_argument and not parameter.required else None
    found_choices = None if choices is None else answer.choices_of(choices)
    flags, negative = [] if is_argument else list(parameter.opts), list(parameter.secondary_opts)
    entries.update(name=parameter.name, flags=flags, negative_flags=negative, action=what, types=[kind], const=const)
    entries.update(nargs={1: usual, -1: "*"}.get(nargs, nargs), truth=["true", "false"], choices=found_choices)
    return dict(entries, help=answer.on_one_line(getattr(parameter, "help", "")), is_required=bool(parameter.required))
