"""What a training shows beside its curves: texts, tables, a text as it changes, small curves of their own.

One file for each, `exhibits/NAME.jsonl` in the run directory, and one line a showing, appended by rank 0:

    {"step": 100, "time": 1769868153.2, "kind": "text", "title": "A sample", "text": "once upon a time"}
    {"step": 100, "time": …, "kind": "table", "title": "…", "columns": ["text", "true"], "rows": [["smith", "83110"]]}
    {"step": 100, "time": …, "kind": "frames", "title": "…", "frames": ["____", "_nce", "once"]}
    {"step": 100, "time": …, "kind": "series", "title": "…", "x_label": "episode", "y_label": "return",
     "x": [1, 2, 3], "lines": {"unseen goals": [0.5, 2.0, 6.9]}}

Any program may write such lines into `$NBTOOLS_RUN_DIR/exhibits/`. Readers skip what they do not understand.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nbtools.errors import ConfigError, shown
from nbtools.rundir import strict_number

Kind = Literal["text", "table", "frames", "series"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LARGEST_BYTES = 4 * 2**20
"""Of a file, only so much of its end is read."""
_LONGEST_TEXT = 20_000
_MOST_ROWS = 1000


@dataclass(frozen=True)
class Exhibit:
    """One showing. Which of the fields hold something depends on the kind."""

    kind: Kind
    title: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    frames: tuple[str, ...] = ()
    x_label: str = ""
    y_label: str = ""
    x: tuple[float, ...] = ()
    lines: Mapping[str, tuple[float, ...]] | None = None
    name: str = ""
    """Of its file; known when it was read."""
    step: int = 0
    time: float = 0.0


def text(title: str, text: str) -> Exhibit:
    """A text."""
    return Exhibit("text", title, text=text)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Exhibit:
    """A table; its cells are shown as text."""
    return Exhibit("table", title, columns=tuple(columns), rows=tuple(tuple(str(cell) for cell in row) for row in rows))


def frames(title: str, frames: Sequence[str]) -> Exhibit:
    """A text as it changes, such as one that is being unmasked."""
    return Exhibit("frames", title, frames=tuple(frames))


def series(
    title: str, x: Sequence[float], lines: Mapping[str, Sequence[float]], *, x_label: str, y_label: str
) -> Exhibit:
    """Curves over something else than steps, such as the return of each episode."""
    named = {name: tuple(float(value) for value in values) for name, values in lines.items()}
    return Exhibit("series", title, x_label=x_label, y_label=y_label, x=tuple(float(value) for value in x), lines=named)


_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "table": ("columns", "rows"),
    "frames": ("frames",),
    "series": ("x_label", "y_label", "x", "lines"),
}


def append(folder: Path, name: str, step: int, exhibit: Exhibit) -> None:
    """Append a showing to `folder`/NAME.jsonl.

    Raises:
        ConfigError: the name is not lower-case letters, digits and underscores.
        OSError: it could not be written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"exhibit {shown(name)}: name it in lower-case letters, digits and underscores")
    content: dict[str, Any] = {"step": step, "time": time.time(), "kind": exhibit.kind, "title": exhibit.title}
    content |= {field: getattr(exhibit, field) for field in _FIELDS[exhibit.kind]}
    line = json.dumps(_strict(content), ensure_ascii=False, allow_nan=False)
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.jsonl").open("ab") as file:
        file.write(line.encode("utf-8", "replace") + b"\n")


def names(folder: Path) -> list[str]:
    """Return the names of the exhibits in a run's folder, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.jsonl") if _NAME.fullmatch(path.stem) and path.is_file())


def read(folder: Path, name: str) -> list[Exhibit]:
    """Return the newest showings of an exhibit, oldest first: those in the last 4 MiB of its file.

    What is torn, malformed or of an unknown kind is left out.
    """
    path = folder / f"{name}.jsonl"
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - _LARGEST_BYTES, 0))
            data = file.read(_LARGEST_BYTES)
    except OSError:
        return []
    lines = data.split(b"\n")[:-1]  # the last one may still be written
    if size > _LARGEST_BYTES:
        lines = lines[1:]
    found = (_parsed(name, line) for line in lines)
    return [exhibit for exhibit in found if exhibit is not None]


def latest(folder: Path) -> list[Exhibit]:
    """Return the newest showing of every exhibit."""
    return [showings[-1] for name in names(folder) if (showings := read(folder, name))]


def _parsed(name: str, line: bytes) -> Exhibit | None:
    try:
        content = json.loads(line)
        kind, step, at = content["kind"], int(content["step"]), float(content["time"])
        title = str(content.get("title", name))[:200]
        known: dict[str, Any] = {"kind": kind, "title": title, "name": name, "step": step, "time": at}
        if kind == "text":
            return Exhibit(**known, text=str(content["text"])[:_LONGEST_TEXT])
        if kind == "table":
            rows = tuple(tuple(_cell(cell) for cell in row) for row in content["rows"][:_MOST_ROWS])
            return Exhibit(**known, columns=tuple(map(_cell, content["columns"])), rows=rows)
        if kind == "frames":
            return Exhibit(
                **known, frames=tuple(str(frame)[:_LONGEST_TEXT] for frame in content["frames"][:_MOST_ROWS])
            )
        if kind == "series":
            lines = {str(key)[:80]: _numbers(values) for key, values in content["lines"].items()}
            x_label, y_label = (str(content.get(label, ""))[:80] for label in ("x_label", "y_label"))
            return Exhibit(**known, x_label=x_label, y_label=y_label, x=_numbers(content["x"]), lines=lines)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        pass
    return None


def _cell(value: object) -> str:
    return str(value)[:1000]


def _numbers(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values[:100_000])


def _strict(value: Any) -> Any:
    """Replace what JSON has no word for, as everywhere in a run directory."""
    if isinstance(value, float):
        return strict_number(value)
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
