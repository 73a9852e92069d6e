"""Whether the kernel answers widget messages while a cell runs."""

import ipywidgets as widgets
from IPython.core.interactiveshell import InteractiveShell


def answers_beside_cells(control: widgets.Widget) -> bool:
    """Let a control's messages go where the front end sent them, a subshell, and not to the thread a cell blocks.

    ipykernel 7.4 sends replies to the shell that used the comm last; this undoes it for one comm. It is private API:
    without it the control answers once the cell is done.
    """
    comm = control.comm
    if not hasattr(comm, "_reply_subshell_for"):
        return not InteractiveShell.initialized()
    comm._reply_subshell_for = lambda data, default: default
    return True
