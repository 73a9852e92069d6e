"""The codec: values as texts and back, of a recipe's fields and by what the library that parses a program's accepts."""

import ast
import json
import re
from collections.abc import Iterable
from types import NoneType
from typing import Any, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from nbtools.script.field import Field
from nbtools.script.source import PARSING

NONE_TEXTS = {"hydra": "null", "config file": "null", "jsonargparse": "null", "LightningCLI": "null"} | dict.fromkeys(
    ("tyro", "constants", "fire"), "None"
)
"""How None is written, by parser; the other parsers have no word for it."""
TRUE, FALSE = ("true", "yes", "on", "t", "y", "1"), ("false", "no", "off", "f", "n", "0")
_PYTHON = ("constants", "fire")
_PLAIN = re.compile(r"[A-Za-z_/.][\w/.\-]*", re.ASCII)
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(?:,|\Z)')
_PLAIN_NAME = re.compile(r'(?!["\s])[^,]+(?<!\s)')
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


def _evaluated(text: str, otherwise: Any = None) -> Any:
    """Return the value of a Python literal; `otherwise` if the text is none."""
    try:
        with PARSING:
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return otherwise


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


# --- recipes --------------------------------------------------------------------------------------


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text; a name keeps inner spaces and loses outer ones.

    As in CSV, a name with a comma stands in double quotes, and a double quote in these is doubled.
    """
    found = _NAME.finditer(text)
    return tuple(each[2] or each[1].replace('""', '"') for each in found if each[1] is not None or each[2])


def join_names(names: Iterable[str]) -> str:
    """Return the text that `split_names` reads as these names."""
    quoted = (name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"' for name in names)
    return ", ".join(quoted)


def parse_field(text: str, field: FieldInfo | None) -> Any:
    """Return the value that a text stands for; the config's validation still has to check it.

    Text fields take the text unchanged, lists of names take comma-separated names, every other field takes a Python
    literal, in the digits of any script, as `float` reads them. `None` and `none` mean None, `true` and `false` are
    Python's. Text that is no literal is returned unchanged, so that the validation can name it; so is the text of a
    name that the config lacks (`field` is None).
    """
    annotation = "str" if field is None else str(field.annotation)
    if text in ("None", "none") and "'none'" not in annotation:
        return None
    if "tuple[str, ...]" in annotation:
        return split_names(text)
    if "str" in annotation:
        return text
    digits = re.sub(r"\d", lambda digit: str(int(digit[0])), text)
    return _evaluated({"true": "True", "false": "False"}.get(text, digits), text)
