"""The kernel of a notebook: whether it answers controls while a cell runs, and whether a page shows its outputs."""

from typing import Any

import ipywidgets as widgets
from IPython.core.interactiveshell import InteractiveShell


def answers_beside_cells(control: widgets.Widget) -> bool:
    """Reply to a control's messages in the subshell that received them; returns whether it answers while a cell runs.

    ipykernel 7.4 replies in the shell that used the comm last, which a running cell may block; this undoes it for one
    comm, and for those of the controls inside. The API is private: without it the control answers after the cell.
    """
    for child in getattr(control, "children", ()):
        answers_beside_cells(child)
    comm = control.comm
    if not hasattr(comm, "_reply_subshell_for"):
        return not InteractiveShell.initialized()
    comm._reply_subshell_for = lambda data, default: default
    return True


def is_attended() -> bool:
    """Whether the cell was started in a page, which shows later changes of its outputs; nbclient allows no input."""
    return parent_message().get("content", {}).get("allow_stdin") is True


def parent_message() -> dict[str, Any]:
    """Return the message that started the cell; empty outside of a kernel."""
    kernel: Any = getattr(InteractiveShell.instance(), "kernel", None) if InteractiveShell.initialized() else None
    found: dict[str, Any] = kernel.get_parent() if hasattr(kernel, "get_parent") else {}
    return found
