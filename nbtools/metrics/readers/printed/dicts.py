"""JSON objects and Python dicts in a line. Nothing is executed."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

from nbtools.metrics.readers.printed.line_content import MAX_METRICS

_MAX_LITERAL_CHARACTERS: Final = 4_000
_BARE_NON_FINITE: Final = re.compile(r"(?<=[\s:,\[(])(-?)(nan|inf)(?=\s*[,}\])])")
_NUMBER: Final = re.compile(
    r"[-+]?+(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?+\d++)?|[-+]?+(?:nan|inf|infinity)", re.IGNORECASE
)
_KEYWORD_AFTER_DIGIT: Final = re.compile(r"\d(?:and|else|for|if|in|is|not|or)\b")


def dict_in(text: str) -> tuple[dict[Any, Any] | None, int]:
    """Return the JSON object or Python dict in a line and where it begins; None if there is none."""
    start, end = text.find("{"), text.rfind("}") + 1
    if start < 0 or end <= start:
        return None, 0
    body = text[start:end]
    if "'" in body:
        body = _BARE_NON_FINITE.sub(r"'\1\2'", body)
    try:  # without double quotes and escapes, a dict of strings and numbers becomes JSON by its quotes
        content = orjson.loads(body if '"' in body or "\\" in body else body.replace("'", '"'))
    except ValueError:
        # A literal is only parsed, never evaluated; the limits keep the parser's stack and time small.
        if len(body) > _MAX_LITERAL_CHARACTERS or "\\" in body or sum(map(body.count, "([{")) > 50:
            return None, 0
        if _KEYWORD_AFTER_DIGIT.search(body):  # Python warns about 1or 2
            return None, 0
        try:
            content = ast.literal_eval(body)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None, 0
    return (content, start) if isinstance(content, dict) else (None, 0)


def flattened(content: dict[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float, bool]]:
    """Yield the numbers in a dict and in those in it, with their names and whether they are whole."""
    for key, value in list(content.items())[:MAX_METRICS]:
        if not isinstance(key, str) or not key or len(key) > 200:
            continue
        name = f"{prefix}/{key}" if prefix else key
        if isinstance(value, dict) and depth < 3:
            yield from flattened(value, name, depth + 1)
        elif isinstance(value, str):
            if len(value) <= 40 and _NUMBER.fullmatch(value):
                yield name, float(value), value.isdigit()
        elif isinstance(value, float) or (type(value) is int and abs(value) < 2**1000):
            yield name, float(value), isinstance(value, int)
