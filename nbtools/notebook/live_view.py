"""The one live view: thread, lock, outputs and actions of a panel, a board and a playground."""

import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable

import ipywidgets

from nbtools.errors import message_of
from nbtools.notebook.widgets import Displays, Output, close_tree


class LiveView:
    """A view with one daemon thread, which assigns traits of widgets and never prints.

    Callbacks of widgets may run on another thread (a subshell) beside a busy cell: one lock guards what they share.
    """

    widget: ipywidgets.Widget
    """The whole view as one widget, to place into another."""

    def __init__(self, name: str) -> None:
        self._thread_name = name
        self._lock, self._wake = threading.RLock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._actions: list[Callable[[], str]] = []  # the first one runs
        self._displays = Displays()

    @abstractmethod
    def _outputs(self) -> list[Output]:
        """Return the outputs of a cell: the static ones, which need no kernel, and the widgets."""

    def _ipython_display_(self) -> None:
        with self._lock:
            self._displays.show(self._outputs())

    @abstractmethod
    def _work(self) -> None:
        """Follow what the view shows; set `_thread` to None under the lock at the end."""

    def _start(self) -> None:
        """Have the thread look at once; start it unless it runs or the view is closed."""
        with self._lock:
            self._wake.set()
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._work, name=self._thread_name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread and remove the widgets; the runs continue."""
        with self._lock:
            self._is_closed, thread = True, self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)
        close_tree(self.widget)

    def _act(self, doing: str, action: Callable[[], str]) -> None:
        """Say `doing` at once, and run `action` in a thread, after those that run or wait.

        What it returns and its warnings are said, or its error.
        """
        with self._lock:
            self._actions.append(action)
            self._tell(doing)
            self._offer()
            if len(self._actions) == 1:
                threading.Thread(target=self._run_actions, name=doing, daemon=True).start()

    @property
    def _is_acting(self) -> bool:
        with self._lock:  # until the buttons are enabled again
            return bool(self._actions)

    def _run_actions(self) -> None:
        said, is_wrong = list[str](), False
        while True:
            try:
                with warnings.catch_warnings(record=True) as warned:  # a thread must not print them
                    warnings.simplefilter("always")
                    said.append(self._actions[0]())
                said += [str(warning.message) for warning in warned]
            except Exception as error:  # noqa: BLE001 - one that leaves a thread is lost, or printed into another cell
                said, is_wrong = [*said, message_of(error)], True
            with self._lock:
                del self._actions[0]
                if not self._is_closed:
                    self._tell("\n".join(said), is_wrong=is_wrong)
                    self._look_again()
                if not self._actions:
                    return

    def _tell(self, text: str, *, is_wrong: bool = False) -> None:
        """Show what an action does or did."""

    def _offer(self) -> None:
        """Enable the buttons that apply, none while an action runs."""

    def _look_again(self) -> None:
        """Show the effect of an action."""
