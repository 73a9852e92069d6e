"""Components of fire, and flags of absl."""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
from typing import Any

from . import answer
from .answer import Described

DEEPEST = 3


def hook(module: Any) -> None:
    """Let fire end the program when it is called, and absl where its flags are read."""
    if module.__name__.startswith("fire"):
        module.Fire = finish_fire
    elif module.__name__ == "absl.app":
        module.run = finish_absl
    else:
        set_flag = module.FlagValues.__setitem__

        def register(self: Any, name: str, flag: Any) -> None:
            frame: Any = sys._getframe(1)
            while frame is not None and not answer.in_program(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None:
                flag._declared_at = "%s:%d" % (answer.shown_path(frame.f_code.co_filename), frame.f_lineno)
            set_flag(self, name, flag)

        module.FlagValues.__setitem__ = register
        module.FlagValues.__call__ = finish_absl


def finish_fire(component: Any = None, *args: Any, **kwargs: Any) -> None:
    """Write the parameters of a component and of its members."""

    def walk(component: Any, path: tuple[str, ...]) -> None:
        members: dict[str, Any] = component if isinstance(component, dict) else {}
        if not isinstance(component, dict) and not inspect.isroutine(component) and len(path) < DEEPEST:
            names = list(vars(component if inspect.isclass(component) else type(component)))
            members = {name: getattr(component, name) for name in names if not name.startswith("_")}
        if callable(component):
            answer.ARGUMENTS.extend(parameters_of(component, path))
        for name, member in members.items():
            if callable(member):
                answer.COMMANDS.append([*path, str(name)])
                walk(member, (*path, str(name)))

    if component is None:
        members = vars(sys.modules["__main__"]).items()
        component = {n: value for n, value in members if inspect.isfunction(value) and value.__module__ == "__main__"}
    walk(component, ())
    answer.finish("fire")


def parameters_of(function: Any, path: tuple[str, ...]) -> list[Described]:
    """Return the parameters of a function as arguments."""
    found = []
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name == "self":
            continue
        is_required = parameter.default is parameter.empty
        entries = answer.value_entries(None if is_required else parameter.default)
        named = getattr(parameter.annotation, "__name__", parameter.annotation)
        if named in answer.NAMED.values() and not entries["is_list"]:
            entries["types"] = [named]
        entries.update(name=parameter.name, flags=["--" + parameter.name], action="store", is_required=is_required)
        found.append(dict(entries, source=answer.source_of(function), command=path))
    return found


def finish_absl(*args: Any, **kwargs: Any) -> None:
    """Write the flags of the program's own modules."""
    flags = importlib.import_module("absl.flags").FLAGS
    own = list(flags.get_key_flags_for_module(sys.argv[0]))
    for name, listed in flags.flags_by_module_dict().items():
        own += listed if answer.in_program(getattr(sys.modules.get(name), "__file__", None) or name) else []
    answer.ARGUMENTS.extend(describe_flag(flag) for flag in dict.fromkeys(own))
    answer.finish("absl")


def describe_flag(flag: Any) -> Described:
    """Return one flag of absl."""
    named = flag.flag_type().replace("multi ", "")
    kind = named if named in answer.NAMED.values() else "str"
    multiple = flag.flag_type().startswith("multi") or type(flag).__name__.startswith("Multi")
    is_bool = kind == "bool" and not multiple
    choices = getattr(flag.parser, "enum_values", None) or getattr(flag.parser, "member_names", None) or ()
    messages = [answer.text_of_any(getattr(validator, "message", "")) for validator in getattr(flag, "validators", ())]
    names = {name.lower(): name for name in choices}

    def plain(item: Any) -> Any:
        return names.get(item.name.lower(), item.name) if isinstance(item, enum.Enum) else item

    is_list = isinstance(flag.default, list)
    entries = answer.default_of(list(map(plain, flag.default)) if is_list else plain(flag.default))
    flags, negative = ["--" + flag.name], ["--no" + flag.name] if is_bool else []
    flags += ["-" + flag.short_name] if flag.short_name else []
    what = "switch" if is_bool else "append" if multiple else "store"
    entries.update(name=flag.name, flags=flags, negative_flags=negative, action=what, types=[kind])
    entries.update(is_list=is_list and not multiple, truth=["true", "false"], choices=list(choices) or None)
    is_required = flag.default is None and any("must have a value" in message for message in messages)
    source = getattr(flag, "_declared_at", "")
    return dict(entries, help=answer.on_one_line(flag.help), is_required=is_required, source=source)
