"""How many curves of a program are right at first sight, and after the clicks of a simulated user.

A program is a folder with its sources and `expected.json`: the script; the `curves` that a researcher wants, each with
words of its name, its splits, and the accepted pairs of axis and values; in `also`, curves that may be drawn; in
`never`, in words, the numbers that are no curve. A click gives one number of one kind of line a role.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtools.errors import ConfigError
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.shapes import folded, numbers_in, shape_of
from nbtools.metrics.printed.templates import imported_files, templates_of

PROGRAMS = Path(__file__).parent / "programs"
SPLITS = {
    "eval": ("val", "valid", "validation", "vali", "eval", "dev", "cv"),
    "test": ("test",),
    "train": ("train", "tr"),
}


@dataclass
class Reading:
    """What was drawn of a log, compared with what was expected; curves are numbered as in `expected.json`."""

    right: dict[int, str] = field(default_factory=dict)
    partly: dict[int, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    """Name of a drawn curve -> what is wrong with it."""
    beside: dict[str, str] = field(default_factory=dict)
    """Name of a drawn curve that is neither wrong nor as wanted -> why: by order, another name, a counter."""


@dataclass
class Measured:
    """One program: at first sight, and after clicks."""

    name: str
    num_curves: int
    first: Reading
    after: Reading
    clicks: dict[int, int]
    """Number of a curve -> clicks that made it right."""
    unread: list[str]
    patterns: list[str]

    def __str__(self) -> str:
        total = sum(self.clicks.values())
        lines = [
            f"{self.name}: {len(self.first.right)}/{self.num_curves} at first sight, {len(self.after.right)}/"
            f"{self.num_curves} after {total} clicks (at most {max(self.clicks.values(), default=0)} for one curve), "
            f"{len(self.first.wrong)} wrong, then {len(self.after.wrong)}"
        ]
        for when, reading in (("first", self.first), ("after", self.after)):
            for what, names in (("wrong", reading.wrong), ("beside", reading.beside)):
                lines += [f"    {when} {what}: {name}: {why}" for name, why in names.items()]
        lines += [f"    missing after clicks: {name}" for name in self.unread]
        return "\n".join([*lines, *(f"    clicked: {text}" for text in self.patterns)])


def run_program(folder: Path, scratch: Path) -> tuple[Path, Path]:
    """Run a copy of a program; returns its script and what it printed."""
    home, log = scratch / folder.name, scratch / f"{folder.name}.log"
    shutil.copytree(folder, home, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    script = home / json.loads((home / "expected.json").read_text())["script"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    with log.open("wb") as file:
        command = [sys.executable, script.name]
        subprocess.run(command, cwd=home, env=environment, stdout=file, stderr=file, check=True, timeout=300)
    return script, log


def split_of(name: str) -> str:
    words = "".join(c.lower() if c.isalnum() else " " for c in name).split()
    return next((split for split, known in SPLITS.items() if any(word in known for word in words)), "")


def _points(steps: Any, values: Any) -> dict[int, float]:
    return dict(zip(map(int, steps), map(float, values), strict=True))  # of two rows of a step the later one counts


def _equal(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))


def _is_part(drawn: dict[int, float], wanted: dict[int, float]) -> bool:
    return all(step in wanted and _equal(value, wanted[step]) for step, value in drawn.items())


def _fits(name: str, curve: dict[str, Any]) -> bool:
    """Whether a name has a word of the curve, or the standard name of an abbreviation."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    standard = {"ppl": "perplexity", "lr": "learningrate", "gnorm": "gradnorm", "acc": "accuracy", "acc1": "accuracy"}
    return any(word in plain or standard.get(word, word) in plain for word in curve["names"])


def _verdict(name: str, series: Any, curve: dict[str, Any], accept: dict[str, Any]) -> tuple[int, str] | None:
    """Return how a drawn curve is of an expected one; None if it has other values. 0: right, 1: partly, 2: beside."""
    points, wanted = _points(series.steps, series.values), _points(accept["steps"], accept["values"])
    shown, unit = list(wanted.values()), series.unit
    is_whole = len(points) == len(shown) and all(map(_equal, points.values(), shown))
    is_placed = unit == accept["unit"] and _is_part(points, wanted)
    if not is_whole and not is_placed:
        return None
    if not is_placed and unit != "row":
        return 4, f"steps: {unit} {list(points)[:6]}, wanted {accept['unit']} {list(wanted)[:6]}"
    if (split := split_of(name)) not in curve["splits"]:
        return 3 if split else 2, f"split: wanted {curve['splits'][0] or 'none'}"  # a plain name states none
    if not _fits(name, curve):
        return 2, f"under another name than {'/'.join(curve['names'])}"
    return (2, "by order") if not is_placed else (0, "") if is_whole else (1, "")


def compare(log: LogMetrics, expected: dict[str, Any]) -> Reading:
    """Compare the curves of a log with the expected ones."""
    reading = Reading()
    for name, series in log.poll().items():
        found = (5, -1, "")
        for number, curve in [*enumerate(expected["curves"]), *((-1, curve) for curve in expected["also"])]:
            for accept in curve["accept"]:
                verdict = _verdict(name, series, curve, accept)
                if verdict and (verdict[0], number < 0) < (found[0], found[1] < 0):
                    found = (verdict[0], number, verdict[1])
        rank, number, why = found
        values = [float(value) for value in series.values]
        if rank == 0 and number >= 0:
            reading.right.setdefault(number, name)
        elif rank == 1:
            reading.partly[number] = name
        elif rank == 2:
            reading.beside[name] = why
        elif rank == 5 and name.rpartition("/")[2] in ("epoch", "step") and values == sorted(values):
            reading.beside[name] = "a counter"
        elif rank > 2:
            constant = "a constant" if len(set(values)) == 1 else f"values {values[:6]}"
            reading.wrong[name] = why or f"{constant} at {series.unit} {list(map(int, series.steps[:6]))}"
    return reading


def _lines(log: Path) -> dict[str, list[str]]:
    """Return the folded lines of each shape; numbers may be padded."""
    shapes: dict[str, list[str]] = {}
    for text in log.read_text(encoding="utf-8").replace("\r", "\n").split("\n"):
        if (line := folded(text)) and numbers_in(line):
            shapes.setdefault(shape_of(line).replace(" #", "#"), []).append(line)
    return shapes


def _slots(lines: list[str]) -> Iterator[tuple[int, list[float]]]:
    columns = [[number[2] for number in numbers_in(line)] for line in lines]
    for index in range(min(map(len, columns))):
        yield index, [column[index] for column in columns]


def _rising(lines: list[str]) -> list[int]:
    """Return the indices of the numbers that may count."""
    return [i for i, values in _slots(lines) if len(set(values)) > 1 and all(v == v // 1 for v in values)]


def _counters(shapes: dict[str, list[str]], home: str) -> Iterator[tuple[str, dict[int, str], int]]:
    """Yield shape, roles and clicks of what may count the rows of a shape: nothing new, its own numbers, a heading."""
    yield home, {}, 0
    found = []
    for shape, lines in shapes.items():
        own = _rising(lines)
        found += [(shape, {i: role}, 1) for i in own for role in ("step", "epoch", "sample")]
        found += [(shape, {i: "epoch", j: "step"}, 1 + (shape == home)) for i in own for j in own if i != j]
    # numbers of the line itself come first, then lines that say the word
    yield from sorted(
        found, key=lambda each: (each[0] != home, not any(r in each[0].lower() for r in each[1].values()))
    )


def _named(lines: list[str], curves: list[dict[str, Any]]) -> dict[int, int]:
    """Return which number of a kind of line shows which curve."""
    found: dict[int, int] = {}
    for index, values in _slots(lines):
        for number, curve in enumerate(curves):
            shown = [a["values"] for a in curve["accept"] if len(a["values"]) == len(values)]
            if number not in found.values() and any(all(map(_equal, each, values)) for each in shown):
                found.setdefault(index, number)
    return found


def click(log: Path, expected: dict[str, Any], templates: list[str], before: Reading) -> tuple[Any, ...]:
    """Give numbers roles as a user would who sees which curves lack; returns reading, clicks per curve and patterns.

    What a kind of line already draws stays in its pattern. The counter of a kind of line is clicked once.
    """
    shapes, patterns, clicks, curves = _lines(log), [], {}, expected["curves"]
    titles = [f"{curve['splits'][0]}/{curve['names'][0]}".strip("/") for curve in curves]
    titles = [title if titles.index(title) == n else f"{title}_{n}" for n, title in enumerate(titles)]
    roles = {shape: _named(lines, curves) for shape, lines in shapes.items()}
    names = {shape: {index: titles[number] for index, number in found.items()} for shape, found in roles.items()}
    reading = before
    for shape in shapes:
        lacking = [number for number in roles[shape].values() if number not in reading.right]
        best, best_patterns, price = reading, patterns, 0
        for where, counters, cost in _counters(shapes, shape) if lacking else ():
            if set(counters) & set(names[where]):
                continue
            added = {shape: names[shape], where: {**names[where], **counters}}
            try:
                texts = [Pattern.of(shapes[each][0], named).text for each, named in added.items() if named]
            except ConfigError:  # the text of the line does not tell its numbers apart, and the user is told so
                continue
            tried = compare(LogMetrics(log, patterns=[*patterns, *texts], templates=templates), expected)
            if (len(tried.right), -len(tried.wrong)) > (len(best.right), -len(best.wrong)):
                best, best_patterns, price = tried, [*patterns, *texts], cost
            if all(n in best.right for n in lacking):
                break
        for position, number in enumerate(n for n in lacking if n in best.right):
            clicks[number] = 1 + (price if position == 0 else 0)
        reading, patterns = best, best_patterns
    return reading, clicks, patterns


def measure(folder: Path, scratch: Path) -> Measured:
    """Run a program and read what it printed."""
    script, log = run_program(folder, scratch)
    expected = json.loads((folder / "expected.json").read_text())
    for curve in expected["curves"] + expected["also"]:
        for accept in curve["accept"]:
            accept["values"] = [float(value) for value in accept["values"]]
    templates = templates_of(imported_files(script, script.parent))
    first = compare(LogMetrics(log, templates=templates), expected)
    after, clicks, patterns = click(log, expected, templates, first)
    names = [
        f"{curve['splits'][0]}/{curve['names'][0]}"
        for n, curve in enumerate(expected["curves"])
        if n not in after.right
    ]
    return Measured(folder.name, len(expected["curves"]), first, after, clicks, names, patterns)
