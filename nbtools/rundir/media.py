"""Samples and charts of a run: texts, tables, text frames, and curves over another axis than steps.

Rank 0 appends one line per showing to `media/NAME.jsonl` in the run directory:

    {"step": 100, "time": 1769868153.2, "kind": "text", "title": "A sample", "text": "once upon a time"}
    {"step": 100, "time": …, "kind": "table", "title": "…", "columns": ["text", "true"], "rows": [["smith", "83110"]]}
    {"step": 100, "time": …, "kind": "frames", "title": "…", "frames": ["____", "_nce", "once"]}
    {"step": 100, "time": …, "kind": "frames", "title": "…", "frames": ["..\\n.@", "..\\n@."], "keeps_lines": true}
    {"step": 100, "time": …, "kind": "series", "title": "…", "x_label": "episode", "y_label": "return",
     "x": [1, 2, 3], "lines": {"unseen goals": [0.5, 2.0, 6.9]}}

Any program may write such lines into `$NBTOOLS_RUN_DIR/media/`. Readers skip lines of an unknown kind.
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nbtools.errors import ConfigError, shown
from nbtools.rundir.atomic import append_descriptor
from nbtools.rundir.json_files import finite, strict_number, whole
from nbtools.rundir.tail import end_of

Kind = Literal["text", "table", "frames", "series"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LARGEST_BYTES = 4 * 2**20
"""Most bytes that are read from the end of a file."""
_LONGEST_TEXT, _LONGEST_CELL, _LONGEST_TITLE, _LONGEST_LABEL = 20_000, 1000, 200, 80
_MOST_ROWS, _MOST_COLUMNS, _MOST_LINES, _MOST_POINTS = 1000, 50, 20, 100_000


@dataclass(frozen=True)
class MediaItem:
    """One showing of a sample or chart; its kind decides which fields hold values."""

    kind: Kind
    title: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    frames: tuple[str, ...] = ()
    keeps_lines: bool = False
    """Whether each frame is a drawing in fixed-width characters, not running text."""
    x_label: str = ""
    y_label: str = ""
    x: tuple[float, ...] = ()
    lines: Mapping[str, tuple[float, ...]] | None = None
    name: str = ""
    """Stem of the file that the item was read from."""
    step: int = 0
    time: float = 0.0


def text(title: str, text: str) -> MediaItem:
    """Return a media item with a text."""
    return MediaItem("text", title, text=text)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> MediaItem:
    """Return a table; its cells are converted to text."""
    return MediaItem("table", title, columns=tuple(columns), rows=tuple(tuple(map(str, row)) for row in rows))


def frames(title: str, frames: Sequence[str], *, keep_lines: bool = False) -> MediaItem:
    """Return the successive states of a text, such as a text that is being unmasked.

    With `keep_lines`, each is shown line by line in fixed-width characters, as a drawing such as a map needs.
    """
    return MediaItem("frames", title, frames=tuple(frames), keeps_lines=keep_lines)


def series(
    title: str, x: Sequence[float], lines: Mapping[str, Sequence[float]], *, x_label: str, y_label: str
) -> MediaItem:
    """Return curves over another axis than optimizer steps, such as the return of each episode."""
    named = {name: tuple(map(float, values)) for name, values in lines.items()}
    return MediaItem("series", title, x_label=x_label, y_label=y_label, x=tuple(map(float, x)), lines=named)


def append(folder: Path, name: str, step: int, item: MediaItem) -> None:
    """Append a showing to `folder`/NAME.jsonl.

    Raises:
        ConfigError: the name is not lower-case letters, digits and underscores.
        OSError: the file could not be written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name {shown(name)}: write it in lower-case letters, digits and underscores")
    line = json.dumps(_content(item, step=step, time=time.time()), ensure_ascii=False, allow_nan=False)
    folder.mkdir(exist_ok=True)
    with os.fdopen(append_descriptor(folder / f"{name}.jsonl"), "ab") as file:
        file.write(line.encode("utf-8", "replace") + b"\n")


def names(folder: Path) -> list[str]:
    """Return the names of the items in a run's folder, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.jsonl") if _NAME.fullmatch(path.stem) and path.is_file())


def read(folder: Path, name: str) -> list[MediaItem]:
    """Return the showings in the last 4 MiB of an item's file, oldest first.

    Lines that are incomplete, malformed or of an unknown kind are skipped.
    """
    return [item for line in _lines(folder, name) if (item := _parsed(name, line))]


def latest(folder: Path) -> list[MediaItem]:
    """Return the newest showing of every item."""
    found = []
    for name in names(folder):
        showings = (_parsed(name, line) for line in reversed(_lines(folder, name)))
        found += [next((showing for showing in showings if showing is not None), None)]
    return [item for item in found if item is not None]


def to_json(item: MediaItem) -> dict[str, Any]:
    """Return an item as its file holds it, with its name."""
    return _content(item, name=item.name, step=item.step, time=item.time)


def _content(item: MediaItem, **first: object) -> dict[str, Any]:
    fields = ("kind", "title", *_FIELDS[item.kind])
    strict: dict[str, Any] = _strict({**first, **{field: getattr(item, field) for field in fields}})
    return strict


def _lines(folder: Path, name: str) -> list[bytes]:
    """Return the complete lines in the last 4 MiB of a file."""
    data = end_of(folder / f"{name}.jsonl", _LARGEST_BYTES + 1)
    lines = data.split(b"\n")[:-1]  # the last one may be incomplete
    return lines[1:] if len(data) > _LARGEST_BYTES else lines


def _parsed(name: str, line: bytes) -> MediaItem | None:
    try:
        absent: dict[str, Any] = {"title": name, "keeps_lines": False, "x_label": "", "y_label": ""}
        content = absent | json.loads(line)
        title, step, at = _text(content["title"], _LONGEST_TITLE), whole(content["step"]), finite(content["time"])
        fields = {field: read(content[field]) for field, read in _FIELDS[content["kind"]].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if step is None or at is None:
        return None
    return MediaItem(content["kind"], title, **fields, name=name, step=step, time=at)


def _items(value: object, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value[:most]


def _text(value: object, longest: int) -> str:
    """Return a plain value as text that UTF-8 can encode."""
    if isinstance(value, list | dict):
        raise TypeError("not a text")
    return str(value)[:longest].encode("utf-8", "replace").decode()


def _cells(row: object) -> tuple[str, ...]:
    return tuple(_text(cell, _LONGEST_CELL) for cell in _items(row, _MOST_COLUMNS))


def _frames(value: object) -> tuple[str, ...]:
    if not value:
        raise ValueError("no frames")
    return tuple(_text(frame, _LONGEST_TEXT) for frame in _items(value, _MOST_ROWS))


def _numbers(values: object) -> tuple[float, ...]:
    return tuple(float(value) for value in _items(values, _MOST_POINTS))


def _label(value: object) -> str:
    return _text(value, _LONGEST_LABEL)


def _curves(lines: Mapping[str, object]) -> dict[str, tuple[float, ...]]:
    return {_label(name): _numbers(values) for name, values in list(lines.items())[:_MOST_LINES]}


_FIELDS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "text": {"text": lambda value: _text(value, _LONGEST_TEXT)},
    "table": {"columns": _cells, "rows": lambda rows: tuple(map(_cells, _items(rows, _MOST_ROWS)))},
    "frames": {"frames": _frames, "keeps_lines": lambda value: value is True},
    "series": {"x_label": _label, "y_label": _label, "x": _numbers, "lines": _curves},
}
"""The fields of each kind, and how they are read from JSON."""


def _strict(value: Any) -> Any:
    """Replace numbers that strict JSON cannot hold."""
    if isinstance(value, float):
        return strict_number(value)
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value
