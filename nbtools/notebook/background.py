"""Callbacks of widgets, and computations that take seconds, in a thread: counts of the data, Slurm's answer."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from nbtools.errors import message_of

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Fill = Callable[[dict[str, Any]], None]
"""Shows values in the rows of a form."""
Callback = Callable[..., None]
"""A function that a widget calls with an argument."""
Guarded = Callable[[Callable[[], object]], Callback]
"""Wraps a callback of a widget or a thread: the callbacks run one at a time, and an exception becomes a message."""
_PATIENCE_S = 0.05


def guarded_by(say: Callable[[str], object], lock: AbstractContextManager[Any] | None = None) -> Guarded:
    """Return what wraps callbacks: an exception is said, and makes no traceback in an unrelated cell."""

    def wrap(action: Callable[[], object]) -> Callback:
        def run(*_: object) -> None:
            with lock or nullcontext():
                try:
                    action()
                except Exception as error:  # noqa: BLE001 - front ends do not show errors of callbacks
                    say(message_of(error))

        return run

    return wrap


class Filling:
    """A context in which widgets are set by the program, so that their callbacks do nothing."""

    is_on = False

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *_: object) -> None:
        self.is_on = False


class Background(Generic[Question, Answer]):
    """Keeps the answer to the newest question; questions that are replaced before their turn are not computed."""

    def __init__(
        self, compute: Callable[[Question], Answer], on_answer: Callable[[], None], settle_s: float = 0.0
    ) -> None:
        """Compute answers by `compute`, which raises nothing, and call `on_answer` from the thread after each.

        A question is computed once no other one has come for `settle_s`.
        """
        self._compute, self._on_answer, self._settle_s = compute, on_answer, settle_s
        self._lock = threading.Lock()
        self._arrived, self._asked = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted: Question | None = None
        self._known: tuple[Question, Answer] | None = None

    def answer(self, wanted: Question) -> tuple[Answer] | None:
        """Return the answer in a tuple; None until it is known."""
        with self._lock:
            if self._known is None or self._known[0] != wanted:
                if self._wanted != wanted:
                    self._asked.set()
                self._wanted = wanted
                self._arrived.clear()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="nbtools-form", daemon=True)
                    self._thread.start()
        # A cached answer arrives at once, without a flicker.
        self._arrived.wait(_PATIENCE_S)
        with self._lock:
            return (self._known[1],) if self._known and self._known[0] == wanted else None

    def forget(self) -> None:
        """Compute the next answer again, also to the same question."""
        with self._lock:
            self._known = None

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted = self._wanted
                if wanted is None:
                    self._thread = None
                    return
                self._asked.clear()
            if self._settle_s and self._asked.wait(self._settle_s):
                continue
            found = self._compute(wanted)
            with self._lock:
                self._known = (wanted, found)
                if self._wanted == wanted:
                    self._wanted = None
                    self._arrived.set()
            self._on_answer()
