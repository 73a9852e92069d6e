"""Texts such as `learning_rate=1e-4`, read into values of a config's fields."""

import ast
from collections.abc import Iterable
from typing import Any

from nbtools.config import Settings
from nbtools.errors import ConfigError, shown
from nbtools.script.compat import aliases


def assigned(cls: type[Settings], texts: Iterable[str]) -> dict[str, Any]:
    """Read texts such as `learning_rate=1e-4` into values for `cls`, whose validation still has to see them.

    Text fields take what follows the `=` as it is, lists of names take names separated by commas, others take it as a
    Python literal; `none` is None. Names and words of older programs are understood.

    Raises:
        ConfigError: a text has no `=`, or an older name stands for a field that `cls` lacks.
    """
    return dict(_assignment(cls, text) for text in texts)


def names_in(text: str) -> tuple[str, ...]:
    """Read names that are separated by commas; spaces belong to the names, but not at their ends."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _assignment(cls: type[Settings], text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"{shown(text)}: has no '='; write FIELD=VALUE, such as learning_rate=1e-4")
    return value_of(cls, name, value)


def value_of(cls: type[Settings], name: str, text: str) -> tuple[str, Any]:
    """Return the field that a name means, and the value that a text means for it, which is yet to be validated.

    Raises:
        ConfigError: it is an older name for a field that `cls` lacks.
    """
    name, value = aliases.translated(cls, name, text)
    annotation = str(cls.model_fields[name].annotation) if name in cls.model_fields else "str"
    if value is None or (value in ("None", "none") and "'none'" not in annotation):
        return name, None
    if "tuple[str, ...]" in annotation:
        return name, names_in(value)
    if "str" in annotation:
        return name, value
    try:
        return name, ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return name, value  # the validation says what is wrong with it
