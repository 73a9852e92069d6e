"""The heartbeat that each rank writes."""

import contextlib
import faulthandler
import os
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

from nbtools.rundir.atomic import append_descriptor
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir
from nbtools.training.process.device import is_under_torchrun
from nbtools.training.process.signals import StopRequest

_BEAT_EVERY_S = 1.0


class Phase(NamedTuple):
    """Current phase of a rank."""

    name: str
    step: int
    """Completed optimizer steps."""
    since: float
    """Unix time at which the phase began."""
    nth: int
    """Number of phases since the last step: equal for all ranks at the same place in the loop."""


class StacksOnSignal:
    """Makes a signal write the Python stacks of all threads into a file.

    faulthandler does so in the signal handler itself, so it works for a rank that waits in a collective, too.
    """

    def __init__(self, path: Path) -> None:
        self.number: int | None = None
        """The signal; None if it already has a handler, or the disk is full."""
        if signal.getsignal(signal.SIGUSR2) not in (signal.SIG_DFL, signal.SIG_IGN):
            return
        with contextlib.suppress(OSError):
            self._file = append_descriptor(path)
            faulthandler.register(signal.SIGUSR2, file=self._file, all_threads=True, chain=False)
            self.number = int(signal.SIGUSR2)

    def close(self) -> None:
        """Unregister the handler, except under torchrun: the process ends now, and a late signal would kill it."""
        if self.number is not None and not is_under_torchrun():
            faulthandler.unregister(self.number)
            os.close(self._file)
        self.number = None


class HeartbeatWriter:
    """Writes the phase of this rank once a second, if it changed.

    `time` is when the phase began, not when it was written: it shows since when a rank hangs, and where.
    """

    def __init__(self, files: RunDir, rank: int, stop: StopRequest) -> None:
        self.phase = Phase("start", 0, time.time(), 1)
        """Replaced as a whole, so that the thread reads it without a lock."""
        self._files = files
        self._rank = rank
        self._stop = stop
        self._written: Phase | None = None
        self._identity = ProcessIdentity.of(os.getpid())
        self._stacks = StacksOnSignal(files.stacks(rank))
        self._closing = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def enter(self, name: str, step: int) -> None:
        """Begin a phase; the thread writes it."""
        nth = self.phase.nth + 1 if self.phase.step == step else 1
        self.phase = Phase(name, step, time.time(), nth)

    def close(self) -> None:
        """Write the last phase and end the thread."""
        self._closing.set()
        self._thread.join()
        self._write()
        self._stacks.close()

    def _beat(self) -> None:
        while not self._closing.wait(_BEAT_EVERY_S):
            self._write()
            if self._stop.requested and self._peer_died():
                # torchrun stops this rank because of that one. On GPUs a collective that waits for it does not end.
                os._exit(1)

    def _write(self) -> None:
        current = self.phase
        if current is self._written:
            return
        content = {"rank": self._rank, **self._identity.to_json(), "step": current.step, "phase": current.name}
        content |= {"nth": current.nth, "time": current.since, "stacks_signal": self._stacks.number}
        with contextlib.suppress(OSError):  # a full disk must not end a training
            write_json(self._files.heartbeat(self._rank), content)
            self._written = current

    def _peer_died(self) -> bool:
        beats = [read_json(path) or {} for path in self._files.ranks.glob("*.heartbeat.json")]
        peers = [ProcessIdentity.from_json(beat) for beat in beats if beat.get("phase") != "done"]
        return any(peer and peer.is_here and not peer.is_alive() for peer in peers)
