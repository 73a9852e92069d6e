"""Steering of a training, for any program: requests of its owner are files, which `poll` reads between two steps.

This file needs the standard library alone, and may be copied beside a program that has no nbtools:

    for name, value in steering.poll(step, values={"lr": lr}, actions=("save",)):
        if name == "save":
            save()
        else:
            optimizer.param_groups[0]["lr"] = lr = value

For the Trainer of transformers (`callbacks=[Steer()]`); its schedule keeps its shape:

    class Steer(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
            values = {"learning_rate": args.learning_rate}
            for name, value in steering.poll(state.global_step, values, ("save", "evaluate")):
                control.should_save |= name == "save"
                control.should_evaluate |= name == "evaluate"
                if name == "learning_rate":
                    args.learning_rate = value
                    lr_scheduler.base_lrs = [value] * len(lr_scheduler.base_lrs)
                    for group, shape in zip(optimizer.param_groups, lr_scheduler.lr_lambdas):
                        group["lr"] = value * shape(lr_scheduler.last_epoch)

For Lightning, with one optimizer and no schedule:

    class Steer(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            [optimizer] = trainer.optimizers
            values = {"lr": optimizer.param_groups[0]["lr"]}
            for name, value in steering.poll(trainer.global_step, values, ("save",)):
                if name == "save":
                    trainer.save_checkpoint(f"{trainer.default_root_dir}/step-{trainer.global_step}.ckpt")
                else:
                    for group in optimizer.param_groups:
                        group["lr"] = value

A request is `requests/<nanoseconds>-<random>.json` in the run directory, and appears by an atomic rename:

    {"format": 1, "action": "save", "by": "ana@box"}
    {"format": 1, "values": {"learning_rate": 0.0005, "max_steps": 2000}, "by": "ana@box"}

What was done with it is a row of `events.jsonl`. A program that nbtools has not launched gets no requests.
"""

import contextlib
import functools
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ACTIONS = "save", "evaluate", "pause", "continue", "profile"
_HOLDS = "pause", "continue"
FORMAT = 1
MOST_BYTES = 4096
_FILE = re.compile(r"[0-9]{19}-[0-9a-f]{12}\.json")
_MOST_AT_ONCE = 64
_MOST_BRACKETS = 100
"""Bounds the depth of a request: a deep one would end the training where it is copied, by a RecursionError."""
_MOST_DIGITS = 18
_LONGEST_NAME = 100
_PAUSED_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Request:
    """A file in `requests/` as rank 0 read it, and as all ranks apply it."""

    name: str
    action: str = ""
    """Empty for a request to change values."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """New values by name."""
    by: str = ""
    """User and machine, as the viewer wrote them."""
    problem: str = ""
    """Why the file is no request; empty for one."""


class Inbox:
    """The requests of a run, each taken once; for rank 0.

    Only a regular file of this user that is no link counts. Every other name is reported once, as a request with a
    problem, and never opened.
    """

    def __init__(self, run: Path, answered: Collection[str] = (), *, folder: str = "requests") -> None:
        """Leave out the requests with the names `answered`, which an earlier attempt has answered."""
        self._folder = run / folder
        self._taken = {f"{name}.json" for name in answered}

    def num_waiting(self) -> int:
        """Return the number of files that were not taken yet; 0 without a folder."""
        with contextlib.suppress(OSError), self._opened() as (_, waiting):
            return len(waiting)
        return 0

    def take(self) -> list[Request]:
        """Return the next requests, oldest first, and remove their files; at most 64, the others wait."""
        found: list[Request] = []
        with contextlib.suppress(OSError), self._opened() as (folder, waiting):
            for file in sorted(waiting)[:_MOST_AT_ONCE]:
                self._taken.add(file)
                found.append(_read(file, folder))
                with contextlib.suppress(OSError):
                    os.unlink(file, dir_fd=folder)
        return found

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[int, list[str]]]:
        """Open the folder, and list the files that were not taken yet; OSError if there is none, or if it is a link."""
        folder: int = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            names = os.listdir(folder)
            yield folder, [name for name in names if name[0] != "." and name not in self._taken]
        finally:
            os.close(folder)


def _read(file: str, folder: int) -> Request:
    name = _plain(file.removesuffix(".json"))
    if not _FILE.fullmatch(file):
        return Request(name, problem="is no name of a request")
    try:
        # A pipe or a device must not block the training, and a link may lead to another user's file.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        return Request(name, problem=f"cannot be opened: {error.strerror}")
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return Request(name, problem="is not a plain file")
        if status.st_uid != os.geteuid():
            return Request(name, problem="belongs to another user")
        if status.st_size > MOST_BYTES:
            return Request(name, problem=f"has {status.st_size:,} bytes, more than {MOST_BYTES:,}")
        return parsed(name, os.read(descriptor, MOST_BYTES))
    except OSError as error:
        return Request(name, problem=f"cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)


def parsed(name: str, data: bytes) -> Request:
    """Return the request in the content of a file."""
    if data.count(b"[") + data.count(b"{") > _MOST_BRACKETS:
        return Request(name, problem=f"has more than {_MOST_BRACKETS} brackets")
    try:
        content = json.loads(data, parse_int=lambda text: int(text) if len(text) <= _MOST_DIGITS else float(text))
        json.dumps(content, allow_nan=False)  # Python reads NaN and 1e999, too
        action, values = content.get("action", ""), content.get("values", {})
    except (ValueError, AttributeError):
        return Request(name, problem="is not a JSON object of finite numbers")
    if content.get("format") != FORMAT:
        return Request(name, problem=f"has the format {_plain(content.get('format'))}, not {FORMAT}")
    by = _plain(content.get("by", ""))
    if isinstance(values, dict) and values and not action:
        return Request(name, values=values, by=by)
    if action in ACTIONS and not values:
        return Request(name, action, by=by)
    return Request(name, by=by, problem=f"asks neither for one of {', '.join(ACTIONS)} nor for values")


def _plain(value: object) -> str:
    """Return a value as one short line without characters that control a terminal."""
    return "".join(character if character.isprintable() else "?" for character in str(value)[:_LONGEST_NAME])


def encoded(requests: Collection[Request]) -> bytes:
    """Return requests as bytes that `decoded` reads on another rank."""
    return json.dumps([asdict(request) for request in requests]).encode()


def decoded(data: bytes) -> list[Request]:
    """Return the requests that `encoded` wrote."""
    return [Request(**values) for values in json.loads(data)]


def append_rows(path: Path, rows: Collection[Mapping[str, Any]]) -> None:
    """Append rows to a file of JSON lines; OSError if the disk is full, and then none of them is there."""
    lines = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a crash or a full disk
        lines = b"\n" * is_torn + lines
        if os.write(descriptor, lines) < len(lines):  # what fits on a disk that is almost full, without an error
            os.ftruncate(descriptor, size)
            raise OSError(f"{path}: no space is left for whole rows")
    finally:
        os.close(descriptor)


def poll(
    step: int, values: Mapping[str, Any] | None = None, actions: Collection[str] = (), *, every: int = 10
) -> list[tuple[str, Any]]:
    """Return what the owner has asked for, after each step that `every` divides: actions with None, and new values.

    Every rank of a process group calls it after every step, with the same arguments: rank 0 reads the requests and
    sends them to the others, so that all change at the same step. A pause is held in here. The first look of a program
    that was restarted returns the values, and holds the pause, of the attempt before it.

    Args:
        step: completed steps.
        values: current values that may be changed, by name; JSON values. A new one is of the same kind.
        actions: those of `ACTIONS` that the program takes, beside `pause` and `continue`.
        every: steps between two looks.
    """
    folder = os.environ.get("NBTOOLS_RUN_DIR")
    if not folder or step % every:
        return []
    polled, taken, current = _polled(Path(folder)), (*actions, *_HOLDS), dict(values or {})
    changes = polled.look(step, current, taken)
    while polled.is_paused:
        time.sleep(_PAUSED_LOOK_EVERY_S)
        changes += polled.look(step, current, taken)
    return changes


class _Polled:
    """The requests to this program, as its ranks have polled them."""

    def __init__(self, run: Path) -> None:
        self._run, self._offered, self._unwritten = run, dict[str, Any](), list[dict[str, Any]]()
        send, is_main = _process_group()
        earlier = json.loads(send(json.dumps(self._rows() if is_main else []).encode()))
        self._inbox = Inbox(run, [str(row.get("request")) for row in earlier])
        self._repeated = {row["field"]: row.get("to") for row in earlier if "field" in row}
        held = [row["action"] for row in earlier if row.get("action") in _HOLDS]
        self.is_paused = held[-1:] == ["pause"]

    def look(self, step: int, values: dict[str, Any], actions: Collection[str]) -> list[tuple[str, Any]]:
        """Return the changes that were asked for since the last look; new values replace those in `values`."""
        send, is_main = _process_group()
        changes = [(name, value) for name, value in self._repeated.items() if name in values]
        self._repeated.clear()
        values.update(changes)
        shown = json.loads(json.dumps(dict(values)), parse_constant=str)  # as strict JSON holds them
        offered = {"format": FORMAT, "actions": actions, "values": shown}
        if is_main and offered != self._offered:
            hidden = self._run / f".controls.json.{os.getpid()}.tmp"
            with contextlib.suppress(OSError):  # a full disk: at the next look
                hidden.write_text(json.dumps(offered))
                hidden.replace(self._run / "controls.json")
                self._offered = offered
        rows = self._unwritten
        for request in decoded(send(encoded(self._inbox.take() if is_main else ()))):
            row = {"request": request.name, "step": step, "time": time.time(), "by": request.by}
            if refused := self._refusal(request, values, actions):
                rows.append({**row, "refused": refused})
                continue
            if request.action in _HOLDS:
                self.is_paused = request.action == "pause"
            elif request.action:
                changes.append((request.action, None))
            changes += request.values.items()
            rows += [{**row, "action": request.action}] if request.action else []
            rows += [{**row, "field": name, "from": shown[name], "to": new} for name, new in request.values.items()]
            values.update(request.values)
            shown = {**shown, **request.values}
        with contextlib.suppress(OSError):  # a full disk: at the next look
            if rows and is_main:
                append_rows(self._run / "events.jsonl", rows)
            rows.clear()
        return changes

    def _refusal(self, request: Request, values: Mapping[str, Any], actions: Collection[str]) -> str:
        """Return why a request cannot be met; empty if it can."""
        if request.problem:
            return f"requests/{request.name}: {request.problem}"
        if request.action and request.action not in actions:
            return f"{request.action}: the program takes {', '.join(actions)}"
        if request.action not in ("", *_HOLDS) and self.is_paused:
            return f"{request.action}: the training is paused; continue it first"
        for name, value in request.values.items():
            if name not in values:
                return f"{_plain(name)}: the program takes new values of {', '.join(values) or 'nothing'}"
            if (kind := _kind(values[name])) != _kind(value):
                return f"{name}={_plain(value)}: must be a {kind}, as {_plain(values[name])}"
        return ""

    def _rows(self) -> list[dict[str, Any]]:
        """Return the rows of earlier attempts of the program."""
        path, rows = self._run / "events.jsonl", []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):  # a torn row
                rows.append(json.loads(line))
        return [row for row in rows if isinstance(row, dict)]


_polled = functools.cache(_Polled)


def _kind(value: object) -> str:
    """Return the kind of a JSON value; whole and other numbers are of one kind."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


def _process_group() -> tuple[Callable[[bytes], bytes], bool]:
    """Return a function that sends bytes of rank 0 to all ranks, and whether this is rank 0."""
    torch: Any = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return lambda data: data, int(os.environ.get("RANK", "0")) == 0
    is_main = dist.get_rank() == 0
    # Such as "cpu:gloo,cuda:nccl".
    device = "cpu" if "cpu:" in dist.get_backend_config() else f"cuda:{torch.cuda.current_device()}"

    def send(data: bytes) -> bytes:
        size = torch.tensor(len(data), device=device)
        dist.broadcast(size, src=0)
        content = torch.zeros(int(size), dtype=torch.uint8, device=device)
        if is_main:
            content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(content, src=0)
        return bytes(content.tolist())

    return send, is_main
