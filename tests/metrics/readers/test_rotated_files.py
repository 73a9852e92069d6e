"""Tables that are rotated or written again while they are read, and that two programs write at once."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbtools.metrics.history import History
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.readers import discovery
from nbtools.metrics.readers.discovery import FoundMetrics

WRITER = """
import csv, os, sys
path, fields = sys.argv[1], sys.argv[2].split(",")

def opened(mode="a", header=True):
    file = open(path, mode, newline="")
    writer = csv.DictWriter(file, fields)
    if header:
        writer.writeheader()
    file.flush()
    return file, writer

file, writer = opened()
for line in sys.stdin:
    word, *numbers = line.split()
    if word == "rows":
        for step in range(*map(int, numbers)):
            writer.writerow({fields[0]: step, **dict.fromkeys(fields[1:], 1 / (step + 1))})
    elif word == "rotate":
        file.close()
        for number in range(3, 0, -1):
            if os.path.exists(f"{path}.{number}"):
                os.rename(f"{path}.{number}", f"{path}.{number + 1}")
        os.rename(path, f"{path}.1")
        file, writer = opened(header=numbers != ["0"])
    elif word == "again":
        file.close()
        file, writer = opened("w")
    elif word == "cut":  # as copytruncate of logrotate does, behind the writer
        file.flush()
        os.truncate(path, 0)
    file.flush()
    print("done", flush=True)
"""


class Writer:
    """A process that writes a table as it is told to, a command at a time."""

    def __init__(self, program: str, *args: object) -> None:
        command = [sys.executable, "-c", program, *map(str, args)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *commands: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        for command in commands:
            print(command, file=self.process.stdin, flush=True)
            assert self.process.stdout.readline() == "done\n"

    def close(self) -> None:
        with self.process:
            self.process.communicate(timeout=60)
        assert self.process.returncode == 0


class Reader:
    """The search for the curves of a run; looks for new files each time."""

    def __init__(self, folder: Path) -> None:
        self.run = folder.with_name("run")
        self.run.mkdir(exist_ok=True)
        self.cwd, self.found = str(folder), FoundMetrics(self.run, LogMetrics(self.run / "rank0.log"))

    def look(self, *, has_ended: bool = False) -> History:
        now = time.time()
        return self.found.history(self.cwd, (), now - 1000, now if has_ended else None)

    def steps(self, metric: str = "train/loss", *, has_ended: bool = False) -> list[int]:
        series = self.look(has_ended=has_ended)[metric]
        assert series.values.tolist() == [1 / (step + 1) for step in series.steps.tolist()]
        return series.steps.tolist()


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_LOOK_EVERY_S", (0.0, 0.0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"


@contextlib.contextmanager
def writers(num: int, path: Path, fields: str = "step,loss") -> Iterator[list[Writer]]:
    """Start processes that write one file, one after another."""
    found = []
    for _ in range(num):
        found.append(Writer(WRITER, path, fields))
        found[-1]("rows 0 0")  # it has written its header
    try:
        yield found
    finally:
        for writer in found:
            writer.close()


def remarks(reader: Reader) -> list[str]:
    """Return what is said besides the names of the metrics."""
    return [note for note in reader.found.notes() if "train/" not in note]


@pytest.mark.parametrize("has_header", [1, 0], ids=["header in each", "one header"])
@pytest.mark.parametrize("name", ["metrics.csv", "progress.txt"])
def test_no_row_of_a_table_is_lost_when_it_is_rotated(folder: Path, has_header: int, name: str) -> None:
    reader, path = Reader(folder), folder / name
    with writers(1, path) as (write,):
        write("rows 0 10")
        assert reader.steps() == [*range(10)]
        write("rows 10 20", f"rotate {has_header}", "rows 20 30")
        assert reader.steps() == [*range(30)]
        write("rows 30 40", f"rotate {has_header}", "rows 40 50")
        assert reader.steps() == reader.steps(has_ended=True) == [*range(50)]
    assert remarks(reader) == []


def test_a_table_that_is_cut_and_begun_again_keeps_the_rows_before(folder: Path) -> None:
    reader, path = Reader(folder), folder / "metrics.csv"
    with writers(1, path) as (write,):
        write("rows 0 40")
        reader.look()
        write("cut", "rows 40 50")  # no header: the writer does not know
        assert reader.steps() == [*range(50)]
        write("again", "rows 30 35")  # a restart from a checkpoint
        assert reader.steps() == [*range(35)]
        write("again", "rows 0 3")
        assert reader.steps() == [0, 1, 2]
    assert remarks(reader) == []


def test_a_hole_that_a_writer_leaves_after_a_cut_hides_no_row(folder: Path) -> None:
    reader, path = Reader(folder), folder / "metrics.csv"
    with path.open("wb") as file:  # not for appending: it goes on where it was
        file.write(b"step,loss\n" + b"".join(b"%d,%f\n" % (step, 1.0) for step in range(100)))
        file.flush()
        assert len(reader.look()["train/loss"]) == 100
        os.truncate(path, 0)
        file.write(b"100,0.5\n101,0.5\n")
        file.flush()
        assert reader.look()["train/loss"].steps.tolist() == [*range(102)]


def test_rows_of_two_programs_in_one_table_have_an_order_and_it_is_said(folder: Path) -> None:
    reader, path = Reader(folder), folder / "metrics.csv"
    with writers(2, path) as (one, other):
        for start in range(0, 50, 10):
            one(f"rows {start} {start + 10}")
            other(f"rows {start} {start + 10}")
            assert len(reader.look()["train/loss"]) == 2 * start + 20
    assert reader.look()["train/loss"].unit == "row"
    assert reader.found.notes() == [f"{path}: train/loss; counter: none, rows by order"]


def test_restarts_that_append_are_usual(folder: Path) -> None:
    reader, path = Reader(folder), folder / "metrics.csv"
    for start in (0, 5, 8):
        with writers(1, path) as (write,):
            write(f"rows {start} {start + 9}")
    assert reader.steps() == [*range(17)]
    assert remarks(reader) == []


def test_tables_of_different_columns_in_one_file_are_told_apart_by_their_number(folder: Path) -> None:
    reader, path = Reader(folder), folder / "metrics.csv"
    with writers(1, path) as (one,), writers(1, path, "step,val_loss,val_accuracy") as (other,):
        for start in range(0, 30, 10):
            one(f"rows {start} {start + 10}")
            other(f"rows {start + 9} {start + 10}")
    assert reader.steps() == [*range(30)]
    assert reader.steps("eval/loss") == reader.steps("eval/accuracy") == [9, 19, 29]
    assert len(reader.look()) == 3
    assert remarks(reader) == []


def test_rows_that_two_headers_fit_are_not_read(folder: Path) -> None:
    reader, path = Reader(folder), folder / "metrics.csv"
    with writers(1, path) as (one,):
        one("rows 0 10")
        with writers(1, path, "step,val_loss") as (other,):
            one("rows 10 20")
            other("rows 0 5")
    assert reader.steps() == [*range(10)]
    assert list(reader.look()) == ["train/loss"]
    assert remarks(reader) == [
        f"{path}: not read: the rows below a second header of 2 columns: write them into another file"
    ]
