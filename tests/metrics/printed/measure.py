"""How many curves of a program are right at first sight.

A program is a folder with its sources and `expected.json`: the script; the `curves` that a researcher wants, each with
words of its name, its splits, and the accepted pairs of axis and values; in `also`, curves that may be drawn; in
`never`, in words, the numbers that are no curve.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtools.metrics.printed.log import LogMetrics
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
    """Whether a name has a word of the curve."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    return any(word in plain for word in curve["names"])


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


def measure(folder: Path, scratch: Path) -> tuple[int, Reading]:
    """Run a program and read what it printed; return the number of expected curves beside what was drawn."""
    script, log = run_program(folder, scratch)
    expected = json.loads((folder / "expected.json").read_text())
    for curve in expected["curves"] + expected["also"]:
        for accept in curve["accept"]:
            accept["values"] = [float(value) for value in accept["values"]]
    templates = templates_of(imported_files(script, script.parent))
    return len(expected["curves"]), compare(LogMetrics(log, templates=templates), expected)
