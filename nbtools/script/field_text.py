"""Text that stands for a value, such as the `1e-4` of `learning_rate=1e-4`, parsed by the type of a config field."""

import ast
import re
from collections.abc import Iterable
from typing import Any

from pydantic.fields import FieldInfo

from nbtools.script.source import PARSING

_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(?:,|\Z)')
_PLAIN_NAME = re.compile(r'(?!["\s])[^,]+(?<!\s)')


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
    try:
        digits = re.sub(r"\d", lambda digit: str(int(digit[0])), text)
        with PARSING:
            return ast.literal_eval({"true": "True", "false": "False"}.get(text, digits))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
