"""Tables that are rotated or written again while they are read, and that two programs write at once."""

import csv
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from launched import record_launch

from nbtools.metrics.history import History
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.readers import discovery
from nbtools.metrics.readers.discovery import FoundMetrics


class Writer:
    """A program that writes a table with Python's csv."""

    def __init__(self, path: Path, fields: str = "step,loss") -> None:
        self.path, self.fields = path, fields.split(",")
        self.write("a", [self.fields])

    def write(self, mode: str, rows: Iterable[Sequence[object]]) -> None:
        with self.path.open(mode, newline="") as file:
            csv.writer(file).writerows(rows)

    def rows(self, start: int, stop: int) -> None:
        self.write("a", [[step] + [1 / (step + 1)] * (len(self.fields) - 1) for step in range(start, stop)])

    def rotate(self) -> None:
        for number in range(len(list(self.path.parent.iterdir())) - 1, 0, -1):
            Path(f"{self.path}.{number}").rename(f"{self.path}.{number + 1}")
        self.path.rename(f"{self.path}.1")
        self.write("a", [self.fields])

    def again(self) -> None:
        self.write("w", [self.fields])


class Reader:
    """The search for the curves of a run; looks for new files each time."""

    def __init__(self, folder: Path) -> None:
        self.run = folder.with_name("run")
        self.run.mkdir(exist_ok=True)
        record_launch(self.run, folder, age_s=1000)
        self.found = FoundMetrics(self.run, LogMetrics(self.run / "rank0.log"))

    def look(self, *, has_ended: bool = False) -> History:
        return self.found.history(time.time() if has_ended else None)

    def steps(self, metric: str = "train/loss", *, has_ended: bool = False) -> list[int]:
        series = self.look(has_ended=has_ended)[metric]
        assert series.values.tolist() == [1 / (step + 1) for step in series.steps.tolist()]
        return series.steps.tolist()


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_LOOK_EVERY_S", (0.0, 0.0))


def remarks(reader: Reader) -> list[str]:
    """Return what is said besides the names of the metrics."""
    return [note for note in reader.found.notes() if "train/" not in note]


@pytest.mark.parametrize("name", ["metrics.csv", "progress.txt"])
def test_no_row_of_a_table_is_lost_when_it_is_rotated(cwd: Path, name: str) -> None:
    reader, writer = Reader(cwd), Writer(cwd / name)
    writer.rows(0, 10)
    assert reader.steps() == [*range(10)]
    for first in (10, 20, 30):
        writer.rotate()
        writer.rows(first, first + 10)
        reader.look()
        assert reader.steps() == [*range(first + 10)]
    late = Reader(cwd)
    assert late.steps() == [*range(40)]
    writer.rows(40, 41)
    assert reader.steps(has_ended=True) == late.steps(has_ended=True) == [*range(41)]
    assert remarks(reader) == remarks(late) == []


def test_only_the_runs_own_rotated_files_are_read(cwd: Path) -> None:
    (writer := Writer(cwd / "metrics.csv")).rows(0, 9)
    writer.path.rename(cwd / "metrics.csv-20260131")
    assert Reader(cwd).steps() == [*range(9)]
    os.utime(cwd / "metrics.csv-20260131", (time.time() - 9000,) * 2)  # of an earlier run
    Writer(writer.path).rows(20, 30)
    assert Reader(cwd).steps() == [*range(20, 30)]


def test_a_table_that_is_cut_and_begun_again_keeps_the_rows_before(cwd: Path) -> None:
    reader, writer = Reader(cwd), Writer(cwd / "metrics.csv")
    writer.rows(0, 40)
    reader.look()
    os.truncate(writer.path, 0)  # as copytruncate of logrotate does, behind the writer
    writer.rows(40, 50)  # no header: the writer does not know
    assert reader.steps() == [*range(50)]
    for start, stop in ((30, 35), (0, 3)):  # a restart from a checkpoint, and from the beginning
        writer.again()
        writer.rows(start, stop)
        assert reader.steps() == [*range(stop)]
    assert remarks(reader) == []


def test_a_hole_that_a_writer_leaves_after_a_cut_hides_no_row(cwd: Path) -> None:
    reader, path = Reader(cwd), cwd / "metrics.csv"
    with path.open("wb") as file:  # not for appending: it goes on where it was
        file.write(b"step,loss\n" + b"".join(b"%d,%f\n" % (step, 1.0) for step in range(100)))
        file.flush()
        assert len(reader.look()["train/loss"]) == 100
        os.truncate(path, 0)
        file.write(b"100,0.5\n101,0.5\n")
        file.flush()
        assert reader.look()["train/loss"].steps.tolist() == [*range(102)]


def test_rows_of_two_programs_in_one_table_have_an_order_and_it_is_said(cwd: Path) -> None:
    reader, path = Reader(cwd), cwd / "metrics.csv"
    writers = Writer(path), Writer(path)
    for start in range(0, 50, 10):
        for writer in writers:
            writer.rows(start, start + 10)
        assert len(reader.look()["train/loss"]) == 2 * start + 20
    assert reader.look()["train/loss"].unit == "row"
    assert reader.found.notes() == [f"{path}: train/loss; counter: none, rows by order"]


def test_restarts_that_append_are_usual(cwd: Path) -> None:
    reader = Reader(cwd)
    for start in (0, 5, 8):
        Writer(cwd / "metrics.csv").rows(start, start + 9)
    assert reader.steps() == [*range(17)]
    assert remarks(reader) == []


def test_a_second_header_counts_from_there_on_and_other_rows_are_told(cwd: Path) -> None:
    reader, path = Reader(cwd), cwd / "metrics.csv"
    (one := Writer(path)).rows(0, 10)
    Writer(path, "step,loss,val_loss").rows(10, 20)  # a restart of a program that was changed
    one.rows(20, 21)
    assert reader.steps() == [*range(20)]
    assert reader.steps("eval/loss") == [*range(10, 20)]
    assert reader.found.notes()[1:] == [f"{path}: not read: a row of 2 cells below a header of 3"]
