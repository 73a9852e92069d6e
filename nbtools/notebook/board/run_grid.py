"""The list of runs in the page: a table whose headers sort it; board.js shows it, and sends the user's actions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

_HERE = Path(__file__).parent


class RunGrid(anywidget.AnyWidget):
    """Shows HTML of `RunLines`; `receive` is called with each message, perhaps on another thread."""

    # As text: anywidget keeps a widget alive for each path, to reload it when the file changes.
    _esm = (_HERE / "board.js").read_text(encoding="utf-8")
    _css = (_HERE / "board.css").read_text(encoding="utf-8")
    list = traitlets.Unicode("").tag(sync=True)
    menu = traitlets.Unicode("").tag(sync=True)

    def __init__(self, receive: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self.on_msg(lambda _, content, buffers: receive(content) if isinstance(content, dict) else None)
