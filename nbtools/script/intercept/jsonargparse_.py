"""Parsers of jsonargparse, and Lightning's command line with them."""

from __future__ import annotations

import enum
import inspect
from typing import Any

from .answer import ARGUMENTS, COMMANDS, NEEDS_COMMAND, Described, annotated, finish
from .argparse_ import describe_action, is_argument

NOT_ARGUMENTS = ("_ActionPrintConfig", "_ActionHelpClassPath", "ActionHelpClassPath", "ShtabAction")
"""Actions that answer a question."""


def hook(module: Any) -> None:
    """Let parsers end the program where the command line is read."""

    def reached(self: Any, args: Any = None, *rest: Any, **kwargs: Any) -> None:
        is_lightning = any("lightning" in cls.__module__ for cls in type(self).__mro__)
        describe_jsonargparse(self, ())
        finish("LightningCLI" if is_lightning else "jsonargparse")

    module.ArgumentParser.parse_args = reached


def describe_jsonargparse(parser: Any, path: tuple[str, ...]) -> None:
    """Add what a parser declares to the answer."""
    others = [action for action in parser._actions if type(action).__name__ not in NOT_ARGUMENTS]
    for action in others:
        if hasattr(action, "_name_parser_map"):
            NEEDS_COMMAND.extend([list(path)] if action.required else [])
            for command, inner in action._name_parser_map.items():
                COMMANDS.append([*path, command])
                describe_jsonargparse(inner, (*path, command))
            continue
        if not is_argument(action) or any(other.dest.startswith(action.dest + ".") for other in others):
            continue  # the whole of a nested group
        found = describe_action(action, parser)
        if getattr(action, "_typehint", None) is not None:
            annotate(found, action._typehint, action)
        found["flags"] = [flag for flag in found["flags"] if not flag.endswith("+")]
        found.update(command=list(path), group=action.dest.rpartition(".")[0])
        if type(action).__name__ == "ActionConfigFile":
            found.update(default=None, default_text="", types=["str"], action="append")  # each adds to those before it
        if found["action"] == "store" and found["types"] == ["bool"]:
            found["truth"] = ["true", "false"]
        found["is_required"] = action.dest in getattr(parser, "required_args", ()) or found["is_required"]
        ARGUMENTS.append(found)


def annotate(found: Described, annotation: Any, action: Any) -> None:
    """Add what the annotation of an argument tells."""
    kinds, choices, is_list, is_optional = annotated(annotation)
    default = found["default"]
    if choices and not is_list and inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        choices = [member.name for member in annotation]
        default = action.default.name if isinstance(action.default, enum.Enum) else default
    is_list = is_list and len(kinds) == 1 and isinstance(default, (list, type(None)))
    found.update(default=default, choices=choices or None, types=kinds or ([] if choices else ["str"]))
    found.update(is_optional=is_optional, nargs=None, is_list=is_list)
