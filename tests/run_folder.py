"""A run directory written by hand, as the processes of a run would write it."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir


@contextmanager
def held(run: RunDir) -> Iterator[None]:
    """Hold the lock of a run, as its supervisor does."""
    lock = acquire_lock(run.lock)
    assert lock is not None
    yield
    os.close(lock)


class RunFolder:
    """A run of two ranks; `launch` are further values of launch.json. It is active from `start` to `end`."""

    def __init__(self, files: RunDir, started: float, total_steps: int = 100, **launch: Any) -> None:
        self.files, self.started = files, started
        for folder in (files.ranks, files.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        info = {"name": "tiny", "script": "/p/scripts/tiny.py", "recipe": "mlm_pretraining", "time": started}
        write_json(files.launch, {**info, "args": [], "launch": {"nproc_per_node": 2}, **launch})
        write_json(files.config, {"config": {}, "derived": {"total_steps": total_steps}})
        self._lock: int | None = None

    def start(self) -> None:
        self._lock = acquire_lock(self.files.lock)
        assert self._lock is not None
        self.files.log.touch()

    def end(self, returncode: int = 0, failure: Any = None, stopped: bool = False, at: float | None = None) -> None:
        content = {"returncode": returncode, "stopped": stopped, "failure": failure, "time": at or time.time()}
        write_json(self.files.exit, content)
        self.release()

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def row(self, step: int, at: float, **metrics: Any) -> None:
        """Write a row; `train_loss` is the metric `train/loss`."""
        self.write([{"step": step, "time": at, **{name.replace("_", "/", 1): each for name, each in metrics.items()}}])

    def rows(
        self, first: int, last: int, name: str = "train/loss", value: float | str = 2.0, every_s: float = 0.5
    ) -> None:
        steps = range(first, last + 1)
        self.write([{"step": step, "time": self.started + every_s * step, name: value} for step in steps])

    def write(self, rows: list[dict[str, Any]]) -> None:
        with self.files.metrics.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def say(self, text: str) -> None:
        with self.files.log.open("a") as log:
            log.write(text)

    def beat(self, rank: int, step: int, phase: str = "forward", age_s: float = 0.0) -> None:
        content = {"rank": rank, "pid": 1, "host": "h", "step": step, "phase": phase, "time": time.time() - age_s}
        write_json(self.files.heartbeat(rank), content)

    def restart(self, attempt: int, checkpoint: str | None, at: float | None = None, **failure: Any) -> None:
        step = None if checkpoint is None else int(checkpoint.removeprefix("step-"))
        saved = {"checkpoint": checkpoint, "checkpoint_step": step}
        line = {"format": 1, "attempt": attempt, **saved, "failure": failure}
        with self.files.attempts.open("a") as file:
            file.write(json.dumps({**line, "time": time.time() if at is None else at}) + "\n")

    def checkpoint(self, step: int, loss: float | None = None, at: float | None = None) -> None:
        folder = self.files.checkpoint(step)
        folder.mkdir(exist_ok=True)
        metrics, files = {} if loss is None else {"eval/loss": loss}, {"state.pt": {"bytes": 1, "sha256": "0"}}
        content = {"step": step, "time": time.time() if at is None else at, "metrics": metrics, "files": files}
        write_json(folder / "manifest.json", content)
