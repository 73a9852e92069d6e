"""Charts in a page: a picture, and a canvas that takes its place where the page can draw it."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets

from nbtools.notebook.html_parts import PICTURE
from nbtools.notebook.plots.canvas import Canvas
from nbtools.notebook.plots.charts import Charts, Size, page_sizes
from nbtools.notebook.plots.figure import WIDTH
from nbtools.notebook.plots.view import Choices, X


class LiveCharts:
    """The widgets of a picture and of a canvas.

    The canvas is hidden until the page answers: one that cannot load it would show an error in its place, and keeps
    the picture.

    Args:
        lock: held while `choices` change and `changed` is called, perhaps on another thread.
        changed: called after a message of the page.
        height: of the picture in CSS pixels.
    """

    def __init__(self, lock: threading.RLock, changed: Callable[[], None], x: X, height: int) -> None:
        self.choices = Choices(x=x)
        self._lock, self._changed = lock, changed
        # Explicit width and height keep the page from jumping; hidden until the first drawing.
        layout = ipywidgets.Layout(max_width="100%", height="auto", visibility="hidden")
        self.image = ipywidgets.Image(format="png", width=WIDTH, height=height, layout=layout).add_class(PICTURE)
        self.canvas = Canvas(self._receive)
        self.box = ipywidgets.Box([self.canvas], layout=ipywidgets.Layout(display="none", width="100%"))

    @property
    def is_empty(self) -> bool:
        """Whether no charts were sent to the canvas; it then has no height, and the page reports it as not visible."""
        return self.canvas.version == 0

    def sizes(self, num_open: int) -> list[Size]:
        """Return the sizes of the plot areas of this number of open charts in the canvas."""
        return page_sizes(num_open, self.choices.width or WIDTH)

    def show(self, charts: Charts, alt: str) -> None:
        """Send charts to the canvas."""
        self.canvas.show(charts, alt=alt, filter=self.choices.filter)

    def show_picture(self, png: bytes) -> None:
        """Show a picture, unless the canvas is shown."""
        if not self.choices.is_ready:
            self.image.value, self.image.layout.visibility = png, "visible"

    def _receive(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self.choices.take(message)
            if self.choices.is_ready and self.box.layout.display == "none":
                self.box.layout.display, self.image.layout.display = "block", "none"
            self._changed()
