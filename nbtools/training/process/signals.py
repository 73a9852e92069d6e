"""Signals of a training process: stop requests, and the death of the agent or the rank."""

import atexit
import ctypes
import functools
import multiprocessing.queues
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from torch._utils import ExceptionWrapper

from nbtools.training import PARENT_PID
from nbtools.training.process.device import is_under_torchrun

_PR_SET_PDEATHSIG = 1


def die_with_agent() -> None:
    """Let the kernel kill this rank when torchrun's agent ends (Linux only); no other process would.

    Only under torchrun: a background process of a shell must outlive that shell.
    """
    if not is_under_torchrun() or sys.platform != "linux":
        return
    _die_with_parent()
    if os.getppid() != PARENT_PID:  # it died before the call
        raise SystemExit("torchrun's agent has ended")


def loader_worker_init() -> Callable[[int], None]:
    """Return a `worker_init_fn` that lets DataLoader workers end with this rank, neither earlier nor later.

    torchrun signals the whole process group of a rank, as a terminal and Slurm do. The rank needs its workers until
    the end of its step.
    """
    is_leaving = multiprocessing.RawValue("b", 0)
    # Runs before multiprocessing's exit handler, which sends SIGTERM to the remaining children and waits for them.
    atexit.register(setattr, is_leaving, "value", 1)
    return functools.partial(_stay_with_rank, is_leaving)


def _stay_with_rank(is_leaving: Any, worker_id: int) -> None:
    def obey(number: int, frame: FrameType | None) -> None:
        if is_leaving.value:
            os._exit(0)

    signal.signal(signal.SIGTERM, obey)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        _die_with_parent()  # torch's own check takes up to 5 s

    def send_error(results: Any, error: Exception, batch: tuple[int, object]) -> None:
        where = f"in DataLoader worker process {worker_id}"
        results.put((batch[0], ExceptionWrapper(where=where)))  # type: ignore[no-untyped-call]

    # By default, what keeps a batch from the rank, such as a full /dev/shm, is printed, and the rank waits for ever.
    setattr(multiprocessing.queues.Queue, "_on_queue_feeder_error", send_error)  # noqa: B010 - typed as static
    rank = multiprocessing.parent_process()
    if rank is not None and not rank.is_alive():  # it died before the call
        os._exit(1)


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class StopRequest:
    """SIGTERM and SIGINT as a flag: a handler that did more could interrupt a save."""

    def __init__(self) -> None:
        self.requested = False
        self.at: float | None = None
        """Monotonic time of the first request; None without one."""
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        if is_under_torchrun():
            return  # the process ends now: a late signal must not kill it
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested, self.at = True, self.at or time.monotonic()
