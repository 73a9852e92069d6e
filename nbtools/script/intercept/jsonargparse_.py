"""Parsers of jsonargparse, and Lightning's command line with them."""

from __future__ import annotations

import enum
import inspect
from typing import Any

from .answer import Described, annotated, finish
from .argparse_ import describe_action, describe_parser

NOT_ARGUMENTS = ("_ActionPrintConfig", "_ActionHelpClassPath", "ActionHelpClassPath", "ShtabAction")
"""Actions that answer a question."""


def hook(module: Any) -> None:
    """Let parsers end the program where the command line is read."""

    def reached(self: Any, args: Any = None, *rest: Any, **kwargs: Any) -> None:
        is_lightning = any("lightning" in cls.__module__ for cls in type(self).__mro__)
        describe_parser(self, (), describe_jsonargparse)
        finish("LightningCLI" if is_lightning else "jsonargparse")

    module.ArgumentParser.parse_args = reached


def describe_jsonargparse(action: Any, parser: Any) -> Described:
    """Return one argument; nothing for a question, and for the whole of a nested group."""
    others = [other for other in parser._actions if type(other).__name__ not in NOT_ARGUMENTS]
    if action not in others or any(other.dest.startswith(action.dest + ".") for other in others):
        return {}
    found = describe_action(action, parser)
    if getattr(action, "_typehint", None) is not None:
        annotate(found, action._typehint, action)
    found["flags"] = [flag for flag in found["flags"] if not flag.endswith("+")]
    if type(action).__name__ == "ActionConfigFile":
        found.update(default=None, default_text="", types=["str"], action="append")  # each adds to those before it
    if found["action"] == "store" and found["types"] == ["bool"]:
        found["truth"] = ["true", "false"]
    is_required = action.dest in getattr(parser, "required_args", ()) or found["is_required"]
    return dict(found, group=action.dest.rpartition(".")[0], is_required=is_required)


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
