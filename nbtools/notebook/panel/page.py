"""The JavaScript side of a panel: scrolling, position in a log, copying, saves."""

from pathlib import Path

import anywidget
import traitlets

_HERE = Path(__file__).parent


class Page(anywidget.AnyWidget):
    """A widget without a picture; its script acts on the panel around it."""

    # As text: anywidget keeps a widget alive for each path, to reload it when the file changes.
    _esm = (_HERE / "page.js").read_text(encoding="utf-8")
    _css = (_HERE / "page.css").read_text(encoding="utf-8")
    is_sought = traitlets.Bool(False).tag(sync=True)
    """Whether the page scrolls to the panel once the panel is visible."""
