"""Command lines of tyro."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from typing import Any

from .answer import Described, finish
from .argparse_ import describe_action, describe_parser

KINDS = {"INT": "int", "FLOAT": "float", "STR": "str", "PATH": "str", "BOOL": "bool"}
CONVERTERS: dict[str, Any] = {"bool": {"True": True, "False": False}.__getitem__, "int": int, "float": float}


def hook(module: Any) -> None:
    """Let tyro end the program when it is called."""
    extras = importlib.import_module("tyro.extras")

    def reached(f: Any, *args: Any, **kwargs: Any) -> None:
        warnings.simplefilter("ignore")
        allowed = inspect.signature(extras.get_parser).parameters
        parser = extras.get_parser(f, **{name: kwargs[name] for name in kwargs if name in allowed})
        describe_parser(parser, (), describe_tyro)
        finish("tyro")

    module.cli = reached


def describe_tyro(action: Any, parser: Any) -> Described:
    """Return one argument, its types and its default by its metavar and its help, the only places of both."""
    argument = describe_action(action, parser)
    shown = re.search(r"\((?:default|default if \w+): (.*)\)$", argument["help"])
    argument["name"] = argument["flags"][0].lstrip("-").replace("-", "_") if argument["flags"] else argument["name"]
    argument["help"] = re.sub(r"\s*\((default|required|optional|repeatable).*\)$", "", argument["help"])
    if argument["action"] == "switch":
        return argument
    metavar = str(action.metavar or "")
    choices = [choice for braces in re.findall(r"\{([^{}\[\]]*)\}", metavar) for choice in braces.split(",")]
    found = list(dict.fromkeys(kind for word, kind in KINDS.items() if re.search(r"\b%s\b" % word, metavar)))
    found += ["bool"] if set(choices) >= {"True", "False"} else []
    kept = [choice for choice in choices if not {"None", "True", "False", *KINDS}.issuperset(choice.split())]
    argument.update(
        choices=kept or None,
        is_optional="None" in choices,
        types=found or ([] if kept else ["str"]),
        nargs=None if argument["nargs"] == 1 else argument["nargs"],
        is_required=bool(action.required),
    )
    if shown is not None:
        text = shown.group(1)
        is_list = argument["nargs"] is not None and text != "None"
        default: Any = [value_of_word(word, found) for word in text.split()] if is_list else value_of_word(text, found)
        argument.update(default=default, default_text="")
    return argument


def value_of_word(word: str, types: list[str]) -> Any:
    """Return the value of one of the types that a word stands for; else the word itself."""
    for kind, convert in CONVERTERS.items():
        try:
            if kind in types:
                return convert(word)
        except (KeyError, ValueError):
            pass
    return None if word == "None" else word
