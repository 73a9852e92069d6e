"""Files of a program that change while they are searched, between any two calls of the operating system.

Each call on a path of the tree is counted; before the n-th one the tree is changed for real, or that call fails as on
the file systems of clusters. The search returns what is left, and finds the rest at the next look. A change is tried at
every second call, the next one at the others: so each call meets half of them.
"""

import contextlib
import errno
import itertools
import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launched import record_launch

from nbtools.metrics.history import History
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.readers import reader as reading
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.metrics.readers.tabular import TableFile
from nbtools.metrics.readers.tensorboard import EventFile
from nbtools.metrics.readers.wandb_offline import WandbFile
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoints, newest_whole
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import Tail

CALLS = ("open", "stat", "lstat", "fstat", "scandir", "listdir", "pread", "read")
ERRORS = (errno.ENOENT, errno.EACCES)
CURVES = {
    "eval/loss": "work/metrics.csv",
    "train/loss": "work/log.txt",
    "train/grad_norm": "work/events.out.tfevents.1",
    "reward": "work/wandb/run-1/run-1.wandb",
    "accuracy": "work/checkpoint-4/trainer_state.json",
    "train/learning_rate": "runs/b/ranks/x/attempt_0/1/stdout.log",
}
CHECKPOINTS = {"work/checkpoint-4", "work/last.pt", "work/parallel/global_step4"}
Change = Callable[[Path], object]
IN_PLACE: dict[str, Change] = {
    "empty": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "grown": lambda path: path.write_bytes(path.read_bytes() * 2),
}
REPLACED: dict[str, Change] = {
    "gone": lambda path: None,
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "link to itself": lambda path: path.symlink_to(path),
}


@contextlib.contextmanager
def changed(path: Path, kind: str, aside: Path) -> Iterator[None]:
    """Change a file, or what stands at a path, until the block ends."""
    if kind in REPLACED and path.parent.is_dir():
        was_there = os.path.lexists(path)
        if was_there:
            path.rename(aside)
        REPLACED[kind](path)
        yield
        if os.path.lexists(path):
            path.rmdir() if path.is_dir() else path.unlink()
        if was_there:
            aside.rename(path)
    elif kind in IN_PLACE and path.is_file():
        content, status = path.read_bytes(), path.stat()
        IN_PLACE[kind](path)
        yield
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        yield


class Calls:
    """Counts the calls on paths of a tree; before the n-th, `act` changes its path, or raises."""

    def __init__(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree, self.num, self.at, self.name = str(tree), 0, 0, ""
        self.act: Change = print
        self.real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            monkeypatch.setattr(os, name, self.counted(name))

    def counted(self, name: str) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            self.before(path, name)
            found = self.real[name](path, *args, **options)
            return Entries(found, self) if name == "scandir" else found

        return call

    def before(self, path: Any, name: str) -> None:
        """Count a call, and act if it is the n-th."""
        if self.at < 0:
            return
        place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fsdecode(path)  # noqa: PTH115
        if place.startswith(self.tree):
            self.num, self.name = self.num + 1, name
            if self.num == self.at:
                self.at = -1  # also for the calls of `act`
                self.act(Path(place))


class Entries:
    """Entries of a folder; their methods are counted, too, since some file systems do not tell the kind of an entry."""

    def __init__(self, entries: Any, calls: Calls) -> None:
        self.entries, self.calls = entries, calls
        self.close = entries.close

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator["Entry"]:
        return (Entry(entry, self.calls) for entry in self.entries)


class Entry:
    """One of them."""

    def __init__(self, entry: "os.DirEntry[str]", calls: Calls) -> None:
        self.entry, self.calls = entry, calls
        self.name, self.path, self.inode = entry.name, entry.path, entry.inode

    def __fspath__(self) -> str:
        return self.path

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**options: Any) -> Any:
            self.calls.before(self.path, name)
            return getattr(self.entry, name)(**options)

        return call


# --- a program's files ---------------------------------------------------------------------------


def of_field(number: int, data: bytes) -> bytes:
    key = number << 3 | 2
    return bytes([key] if key < 128 else [key & 127 | 128, key >> 7]) + bytes([len(data)]) + data


def event_file() -> bytes:
    """A scalar as TensorBoard writes it; no reader needs its checksums."""
    value = of_field(1, b"grad_norm") + b"\x15" + struct.pack("<f", 1.5)
    data = b"\x09" + struct.pack("<d", time.time()) + b"\x10\x03" + of_field(5, of_field(1, value))
    return struct.pack("<QI", len(data), 0) + data + bytes(4)


def wandb_file() -> bytes:
    """A row as wandb writes it."""
    items = (("_step", b"3"), ("_timestamp", b"1"), ("reward", b"0.5"))
    rows = b"".join(of_field(1, of_field(2, key.encode()) + of_field(16, text)) for key, text in items)
    data = of_field(2, rows)
    return b":W&B\xe1\xbe\x00" + bytes(4) + struct.pack("<HB", len(data), 1) + data


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A run, the run beside it, and all kinds of files that the program of the run wrote."""
    started, runs, work = time.time() - 60, tmp_path / "tree/runs", tmp_path / "tree/work"
    state = {"global_step": 4, "log_history": [{"step": 4, "accuracy": 0.5}]}
    files: dict[Path, str | bytes] = {
        runs / "a/launch.json": json.dumps({"cwd": "/nonexistent", "args": [], "time": started - 100}),
        runs / "a/exit.json": json.dumps({"time": started - 50}),
        runs / "a/rank0.log": "x\n",
        runs / "a/rank0.times.jsonl": f"[2,{started - 90:.1f},1]\n",
        runs / "b/launch.json": json.dumps({"time": started, "cwd": str(work), "args": ["--output_dir", "parallel"]}),
        runs / "b/rank0.times.jsonl": f"[2,{started + 1:.1f},1]\n",
        runs / "b/ranks/x/attempt_0/1/stdout.log": "step 3 lr 0.5 loss 9.0\nstep 4 lr 0.4 loss 8.0\n",
        work / "metrics.csv": "step,val_loss\n3,1.5\n",
        work / "log.txt": '{"step": 3, "train_loss": 2.5}\n',
        work / "events.out.tfevents.1": event_file(),
        work / "wandb/run-1/run-1.wandb": wandb_file(),
        work / "checkpoint-4/trainer_state.json": json.dumps(state),
        work / "checkpoint-4/model.safetensors": struct.pack("<Q", 2) + b"{}",
        work / "parallel/global_step4/mp_rank_00_model_states.pt": "x",
        work / "parallel/global_step4/zero_pp_rank_0.pt": "x",
        work / "last.pt": "x",
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (started + 5, started + 5))
    return tmp_path / "tree"


class Search:
    """The search for the curves and the checkpoints of the run, with what it keeps between its looks."""

    def __init__(self, tree: Path) -> None:
        self.run = RunDir(tree / "runs/b")
        self.metrics = FoundMetrics(self.run.path, LogMetrics(self.run.log, self.run.log_times))
        self.checkpoints = ForeignCheckpoints(self.run.path)
        self.ended: float = json.loads(self.run.launch.read_text())["time"] + 90

    def look(self, *, has_ended: bool = False) -> tuple[set[str], set[str]]:
        """Return the names of the curves and of the checkpoints, of a look without the pause since the last one."""
        self.metrics._next_look = self.checkpoints._looked = float("-inf")
        ended = self.ended if has_ended else None
        curves, saved = {*self.metrics.history(ended)}, self.checkpoints.look(ended)
        assert self.metrics.notes()
        newest_whole(saved)
        return curves, {f"work/{one.name}" for one in saved}


def test_the_files_of_the_tree_are_all_found(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(tree, monkeypatch)
    assert Search(tree).look() == (set(CURVES), CHECKPOINTS)
    assert calls.num > 100


@pytest.mark.parametrize(("turn", "kind"), [*enumerate([*IN_PLACE, *REPLACED])])
def test_a_path_that_changes_before_any_call_stops_no_search(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int, kind: str
) -> None:
    calls = Calls(tree, monkeypatch)
    for number in itertools.count(1 + turn % 2, 2):
        search = Search(tree)
        with contextlib.ExitStack() as change:
            calls.num, calls.at = 0, number
            calls.act = lambda path: change.enter_context(changed(path, kind, tmp_path / "aside"))
            assert search.look()[0] <= CURVES.keys()
            is_past, calls.at = calls.at > 0, -1
        if is_past:
            break
        assert search.look() == (set(CURVES), CHECKPOINTS), number
    assert number > 100


@pytest.mark.parametrize("has_ended", [False, True], ids=["running", "ended"])
def test_a_call_that_fails_once_loses_no_other_file(
    tree: Path, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    calls, failed = Calls(tree, monkeypatch), list[Path]()

    def fail(path: Path) -> None:
        failed.append(path)
        error = ERRORS[(number + has_ended) % 2]
        raise OSError(error, os.strerror(error), str(path))

    for number in itertools.count(1):
        search = Search(tree)
        calls.num, calls.at, calls.act = 0, number, fail
        search.look(has_ended=has_ended)
        if calls.at >= 0:
            break
        curves, saved = search.look(has_ended=has_ended)
        lost = [tree / path for path in {CURVES[name] for name in CURVES.keys() - curves} | CHECKPOINTS - saved]
        assert has_ended or not lost, number
        at = failed[-1]  # a last look may lose what it could not read
        assert all(path.is_relative_to(at) or at.is_relative_to(path) for path in lost), (number, at, lost)
    assert number > 100


@pytest.mark.parametrize("cwd", ["a\0b", "\ud800", "work", ""], ids=ascii)
@pytest.mark.parametrize("line", ['{"a": 1}', "[1]", '[1, "x"]', "[" * 199, "[1, 1e999, 1]", "null"])
def test_records_that_another_program_damaged_stop_no_search(
    tree: Path, monkeypatch: pytest.MonkeyPatch, cwd: str, line: str
) -> None:
    monkeypatch.chdir(tree)  # a relative path would be taken for one of this process
    (tree / "runs/b/rank0.times.jsonl").write_text(line + "\n")
    search = Search(tree)
    record_launch(search.run.path, cwd, "--output_dir", "parallel", age_s=60)
    assert search.look() == ({"train/learning_rate", "train/loss"}, set())


@pytest.mark.parametrize("log", ["rank0.log", "ranks/x/attempt_0/1/stdout.log"])
def test_a_log_that_cannot_be_read_hides_no_other_curve_and_is_named(
    tree: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    path, calls = tree / "runs/b" / log, Calls(tree, monkeypatch)

    def fail(place: Path) -> None:
        calls.at = calls.num + 1
        if place == path and calls.name == "open":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    calls.at, calls.act = 1, fail
    search = Search(tree)
    assert len(search.look()[0]) >= 5
    assert f"{path}: not read: Permission denied" in search.metrics.notes()
    calls.at = -1
    assert search.look()[0] == set(CURVES)
    assert not any("not read" in note for note in search.metrics.notes())


@pytest.mark.promise("safety-bounded")
def test_a_hole_larger_than_a_disk_holds_up_no_reader(tmp_path: Path) -> None:
    """A sparse file of a terabyte: read byte by byte, it would take hours; a row behind the hole still counts."""
    path = tmp_path / "x.jsonl"
    history, table, log = History(), TableFile(path), LogMetrics(path)
    path.write_bytes(b'{"step": 1, "time": 1.0, "train/loss": 2.0}\n')
    os.truncate(path, 1 << 40)
    tail = Tail(path)
    for steps in ([1], [1, 2]):
        history.follow(tail)
        assert [*history["train/loss"].steps] == steps
        printed = log.poll()
        assert [*table.poll()["train/loss"].steps] == steps
        with path.open("ab") as file:
            file.write(b'\n{"step": 2, "time": 1.0, "train/loss": 1.0}\n')
    assert [*printed["train/loss"].steps] == [1, 2]
    os.truncate(path, 0)
    os.truncate(path, 1 << 40)
    events = EventFile(path)
    assert (len(events.poll()), events.note) == (0, "zeros from byte 0 on, where a record should begin")


@pytest.mark.promise("safety-bounded")
@pytest.mark.parametrize("kind", ["events", "wandb"])
def test_too_many_records_for_one_look_are_told_and_read_at_the_next(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader: Any = EventFile(tmp_path / "file") if kind == "events" else WandbFile(tmp_path / "file")
    if kind == "events":
        event = b"\x09" + struct.pack("<d", 1.0)
        (tmp_path / "file").write_bytes((struct.pack("<QI", len(event), 0) + event + bytes(4)) * 800_000)
    else:
        block = b"\0\0\0\0\0\0\1" * 4681 + b"\0"
        (tmp_path / "file").write_bytes((b":W&B\xe1\xbe\x00" + block[7:]) + block * 20)
    monkeypatch.setattr(reading, "_LOOK_S", -1.0)
    reader.poll()
    assert "MB of it are not read yet" in reader.note
    monkeypatch.setattr(reading, "_LOOK_S", 600.0)
    reader.poll()
    assert reader.note == ""
