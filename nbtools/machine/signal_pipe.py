"""Signals as data, for a process whose main loop waits for them."""

import contextlib
import os
import select
import signal


class Signals:
    """Signals as data: `wait` returns the signals received since the last call.

    The Python handlers do nothing. CPython's C-level handler writes each signal's number into a pipe, and `wait`
    selects on it: no signal is lost between two waits, no system call is interrupted, and children inherit neither a
    mask nor an ignored signal.
    """

    HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in self.HANDLED:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launching process may have blocked some

    def wait(self, timeout_s: float) -> set[int]:
        """Return the signals received since the last call; wait at most `timeout_s` for the first one."""
        select.select([self._read], [], [], max(0.0, timeout_s))
        with contextlib.suppress(BlockingIOError):
            return set(os.read(self._read, 4096))
        return set()


def asks_to_stop(came: set[int]) -> bool:
    """Whether one of these signals asks the process to stop."""
    return bool(came & {signal.SIGTERM, signal.SIGINT})
