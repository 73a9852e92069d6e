"""Values as words of a command line, and back, by what the library that parses them accepts."""

import ast
import json
import re
from types import NoneType
from typing import Any, get_args, get_origin

import yaml

from nbtools.script.field import Field
from nbtools.script.source import PARSING

NONE_TEXTS = {"hydra": "null", "config file": "null", "jsonargparse": "null", "LightningCLI": "null"} | dict.fromkeys(
    ("tyro", "constants", "fire"), "None"
)
"""How None is written, by parser; the other parsers have no word for it."""
TRUE, FALSE = ("true", "yes", "on", "t", "y", "1"), ("false", "no", "off", "f", "n", "0")
_PYTHON = ("constants", "fire")
_PLAIN = re.compile(r"[A-Za-z_/.][\w/.\-]*", re.ASCII)
_YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "none", "y", "n", "nan", "inf", ".nan", ".inf", "~"}


def element_type(kind: Any) -> Any:
    """Return the type of a list's elements; the type itself if it is no list."""
    return get_args(kind)[0] if get_origin(kind) is tuple else kind


def is_list(field: Field) -> bool:
    """Whether the values of a field are tuples."""
    return any(get_origin(kind) is tuple for kind in field.types)


def to_text(value: Any, parser: str, truth: tuple[str, str]) -> str:
    """Return the text of a value for a parser, given its texts of `truth`; ValueError if it has none for the value."""
    if value is None:
        if parser not in NONE_TEXTS:
            raise ValueError("None cannot be written on a command line")
        return NONE_TEXTS[parser]
    if isinstance(value, bool):
        return truth[not value]
    if isinstance(value, tuple | list):
        if parser == "absl":
            return ",".join(to_text(item, parser, truth) for item in value)
        return f"[{','.join(_quoted(item, parser, truth) for item in value)}]"
    if parser in _PYTHON and isinstance(value, str):
        return _as_python(value, parser)
    if parser in ("hydra", "config file") and isinstance(value, str):
        return _quoted(value, parser, truth)
    return str(value)


def _as_python(value: str, parser: str) -> str:
    """Return the text of a string for a parser that evaluates what is a Python literal."""
    if parser == "constants" and "=" in value:
        raise ValueError("a configurator splits its words at =; leave it out")
    is_plain = _PLAIN.fullmatch(value) and value not in ("True", "False", "None")
    if is_plain or (parser == "constants" and _evaluated(value) is None and "None" not in value):
        return value
    return repr(value)


def _evaluated(text: str) -> Any:
    try:
        with PARSING:
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _quoted(value: Any, parser: str, truth: tuple[str, str]) -> str:
    """Return the text of a value in a language in which strings may need quotes."""
    if not isinstance(value, str):
        return to_text(value, parser, truth)
    if _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS and not _is_number(value) and parser != "fire":
        return value
    if parser == "hydra":  # a backslash is only read as one in front of a quote
        escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
        return f"'{escaped}'"
    return json.dumps(value, ensure_ascii=False)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def from_text(text: str, field: Field, parser: str, truth: tuple[str, str]) -> Any:
    """Return the value that a text stands for; ValueError if it stands for none of the field's types and choices."""
    if NoneType in field.types and text == NONE_TEXTS.get(parser, "\0"):
        return None
    kinds = [kind for kind in field.types if kind is not NoneType]
    for kind in kinds:
        if get_origin(kind) is tuple and (found := _list_of(text, kind, parser, truth)) is not None:
            return found
    for choice in field.choices or ():
        if choice is not None and text == to_text(choice, parser, truth):
            return choice
    if parser in _PYTHON and isinstance(quoted := _evaluated(text), str):
        return quoted
    if parser in ("hydra", "config file") and text[:1] in ("'", '"'):
        return _unquoted(text, parser)
    for kind in sorted(map(element_type, kinds), key=[bool, int, float, str].index):
        try:
            return _of_type(text, kind, truth)
        except ValueError:
            continue
    raise ValueError(f"{text!r} is no value of {field.name}")


def _of_type(text: str, kind: Any, truth: tuple[str, str]) -> Any:
    if kind is not bool:
        return kind(text)
    if truth[1] == "":  # bool("False") is True
        return bool(text)
    if text in truth:
        return text == truth[0]
    if text.lower() in TRUE + FALSE:
        return text.lower() in TRUE
    raise ValueError(text)


def _unquoted(text: str, parser: str) -> str:
    if parser == "hydra" and len(text) > 1 and text[0] == text[-1]:
        return re.sub(rf"(\\*)({text[0]}|$)", lambda found: found[1][: len(found[1]) // 2] + found[2], text[1:-1])
    return str(_loaded(text))


def _list_of(text: str, kind: Any, parser: str, truth: tuple[str, str]) -> tuple[Any, ...] | None:
    inner = element_type(kind)
    if parser == "absl":
        return tuple(_of_type(part, inner, truth) for part in text.split(",")) if text else ()
    found = _loaded(text)
    if not isinstance(found, list):
        return None
    return tuple(item if isinstance(item, inner) else _of_type(str(item), inner, truth) for item in found)


def _loaded(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
