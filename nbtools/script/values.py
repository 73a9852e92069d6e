"""The codec: `from_text` reads the value of a field in a language, and `to_text` writes it.

A language is that of a parser of programs (`argparse`, `tyro`, ...), of a recipe's flags and `--set` (`FLAGS`), of a
form (`FORM`), or of a form's rows for the arguments of a program (`SHELL`).
"""

import json
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from types import NoneType
from typing import Any, get_args, get_origin

import yaml

from nbtools.errors import shown
from nbtools.parsing import literal_value
from nbtools.script.field import Field

FLAGS, FORM, SHELL = "flags", "form", "shell"
TYPED = (FORM, SHELL)
"""Languages of texts that a person types into a form: an empty one is None, and 1e3 is a whole number."""
NONE_TEXTS = dict.fromkeys(("hydra", "config file", "jsonargparse", "LightningCLI"), "null")
NONE_TEXTS |= dict.fromkeys(("tyro", "constants", "fire", FLAGS), "None") | dict.fromkeys(TYPED, "")
"""How None is written, by language; other parsers have no word for it."""
TRUTHS = dict.fromkeys(("true", "yes", "on", "t", "y", "1"), True)
TRUTHS |= dict.fromkeys(("false", "no", "off", "f", "n", "0"), False)
PYTHONS_TRUTH = "True", "False"
_PYTHON = ("constants", "fire")
_LISTS = ("absl", FLAGS, *TYPED)
"""Languages in which a list is a text that is divided into those of its elements; a YAML list in others."""
_PLAIN = re.compile(r"(?!\.\d)[A-Za-z_/.][\w/.\-]*", re.ASCII)
_QUOTED = re.compile(r"('|\")(?:\\.|(?!\1|\\).)*\1", re.DOTALL)
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(?:,|\Z)')
_PLAIN_NAME = re.compile(r'(?!["\s])[^,]+(?<!\s)')
_YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "none", "y", "n", "~"}
_YAML_WORDS |= {"nan", "inf", "infinity", ".nan", ".inf"}


def element_type(kind: Any) -> Any:
    """Return the type of a list's elements, without its bounds; the type itself if it is no list."""
    inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
    return getattr(inner, "__origin__", inner)


def is_list(field: Field) -> bool:
    """Whether the values of a field are tuples."""
    return any(get_origin(kind) is tuple for kind in field.types)


def to_text(value: Any, language: str, truth: tuple[str, str] = PYTHONS_TRUTH) -> str:
    """Return the text of a value, given the texts of `truth`; ValueError if the language has none for the value."""
    if value is None:
        if language not in NONE_TEXTS:
            raise ValueError("None cannot be written on a command line")
        return NONE_TEXTS[language]
    if isinstance(value, bool):
        return truth[not value]
    if isinstance(value, tuple | list):
        if language in _LISTS:
            join = {"absl": ",".join, SHELL: shlex.join}.get(language, join_names)
            return join([to_text(item, language, truth) for item in value])
        return f"[{','.join(_quoted(item, language, truth) for item in value)}]"
    if language in _PYTHON and isinstance(value, str):
        return _as_python(value, language)
    if language in ("hydra", "config file") and isinstance(value, str):
        return _quoted(value, language, truth)
    return str(value)


def _as_python(value: str, language: str) -> str:
    """Return the text of a string for a parser that evaluates what is a Python literal."""
    if language == "constants" and "=" in value:
        raise ValueError("a configurator splits its words at =; leave it out")
    is_plain = _PLAIN.fullmatch(value) and value not in ("True", "False", "None")
    if is_plain or (language == "constants" and literal_value(value) is None and "None" not in value):
        return value
    return repr(value)


def _quoted(value: Any, language: str, truth: tuple[str, str]) -> str:
    """Return the text of a value in a language in which strings may need quotes."""
    if not isinstance(value, str):
        return to_text(value, language, truth)
    if _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS and language != "fire":
        return value
    if language == "hydra":  # a backslash is only read as one in front of a quote
        escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
        return f"'{escaped}'"
    return json.dumps(value, ensure_ascii=False)


def from_text(text: str, field: Field, language: str, truth: tuple[str, str] = PYTHONS_TRUTH) -> Any:
    """Return the value that a text stands for.

    Raises:
        ValueError: it stands for none of the field's types and choices; the message says what is allowed. Flags return
            such a text, or the Python literal that it is: the validation of the config names the value.
    """
    kinds = [kind for kind in field.types if kind is not NoneType]
    if _is_none(text, field, language, is_text=str in kinds):
        return None
    for kind in kinds:
        if get_origin(kind) is tuple and (found := _list_of(text, kind, language, truth)) is not None:
            return found
    for choice in field.choices or ():
        if choice is not None and text == to_text(choice, language, truth):
            return choice
    if language in _PYTHON and isinstance(quoted := literal_value(text), str):
        return quoted
    if language in ("hydra", "config file") and text[:1] in ("'", '"'):
        return _unquoted(text, language)
    read = _number if language in (FLAGS, *TYPED) and str not in kinds else _of_type
    known = [bool, int, float, str]
    for kind in sorted(filter(known.__contains__, map(element_type, kinds)), key=known.index):
        with suppress(ValueError):
            return read(text, kind, truth)
    if language == FLAGS:
        return literal_value(text, text)
    what = ", or ".join([*allowed_values(field), *(["leave it empty"] if NoneType in field.types else [])])
    stripped = text.strip()
    raise ValueError(f"{shown(stripped, 60)} is not {what}" if stripped else f"is empty; give {what}")


def allowed_values(field: Field) -> list[str]:
    """Return what the text of a value may be, in words."""
    kinds = set(map(element_type, field.types))
    named = {float: "a number such as 5e-4", int: "a whole number such as 1_000", bool: "true or false", str: "a text"}
    choices = [str(choice) for choice in field.choices or () if choice is not None]
    kind = [words for kind, words in named.items() if kind in kinds][:1]
    return [*kind, *([f"one of {', '.join(choices)}"] if len(choices) > 1 else choices)]


def _is_none(text: str, field: Field, language: str, *, is_text: bool) -> bool:
    if language == FLAGS:
        return text in ("None", "none") and text not in (field.choices or ())
    if language in TYPED and not is_text:  # a space may divide labels
        text = text.strip()
        text = "" if text.lower() == "none" else text
    return NoneType in field.types and text == NONE_TEXTS.get(language, "\0")


def _of_type(text: str, kind: Any, truth: tuple[str, str]) -> Any:
    if kind is not bool:
        return kind(text)
    if truth[1] == "":  # bool("False") is True
        return bool(text)
    if text in truth:
        return text == truth[0]
    if text.strip().lower() in TRUTHS:
        return TRUTHS[text.strip().lower()]
    raise ValueError(text)


def _number(text: str, kind: Any, truth: tuple[str, str]) -> Any:
    """Return the value of a number or truth value as people write them: 1e3 is a whole number too."""
    if kind is not int or text.strip().lstrip("+-").replace("_", "").isdigit():  # a float rounds beyond 2**53
        return _of_type(text, kind, truth)
    if not (number := float(text)).is_integer():
        raise ValueError(text)
    return int(number)


def _unquoted(text: str, language: str) -> str:
    if language == "hydra" and len(text) > 1 and text[0] == text[-1]:
        return re.sub(rf"(\\*)({text[0]}|$)", lambda found: found[1][: len(found[1]) // 2] + found[2], text[1:-1])
    return str(_loaded(text))


def _list_of(text: str, kind: Any, language: str, truth: tuple[str, str]) -> tuple[Any, ...] | None:
    inner = element_type(kind)
    if language in _LISTS:
        split = shlex.split if language == SHELL else split_names
        text = text.strip("()[] ") if language == FLAGS and inner is not str else text  # a Python literal
        parts = (text.split(",") if text else ()) if language == "absl" else split(text)
        return tuple(from_text(part, Field("", (inner,)), language, truth) for part in parts)
    if language == "hydra":  # its quotes are none of YAML's
        text = _QUOTED.sub(lambda item: json.dumps(_unquoted(item[0], language), ensure_ascii=False), text)
    found = _loaded(text)
    if not isinstance(found, list):
        return None
    return tuple(item if isinstance(item, inner) else _of_type(str(item), inner, truth) for item in found)


def _loaded(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


# --- names ----------------------------------------------------------------------------------------


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
