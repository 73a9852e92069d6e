"""Python's parser for sources and literals, in any thread."""

import ast
import threading
import warnings
from pathlib import Path
from typing import Any, Final

_PARSING: Final = threading.Lock()
"""Held while `ast` makes a tree: Python 3.11 counts the depth of the trees of all threads together, and raises
SystemError if two are made at once, as by launches in threads."""


def syntax_tree(source: str | bytes, path: str | Path = "<unknown>") -> ast.Module:
    """Return the syntax tree of a source, without Python's warnings of it; the errors are those of `ast.parse`."""
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as an invalid "\d" in a string
        return ast.parse(source, str(path))


def literal_value(text: str, otherwise: Any = None) -> Any:
    """Return the value of a Python literal; `otherwise` if the text is none."""
    try:
        with _PARSING:
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return otherwise
