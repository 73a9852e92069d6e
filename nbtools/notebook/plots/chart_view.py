"""The live view of charts, of one run or of several: a canvas in the page, and what a saved notebook keeps of it."""

import math
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets
from IPython.core.interactiveshell import InteractiveShell

from nbtools.notebook.html_parts import THEME
from nbtools.notebook.live_view import LiveView
from nbtools.notebook.plots.canvas import Canvas
from nbtools.notebook.plots.charts import Charts, Sizes, page_sizes
from nbtools.notebook.plots.figure import WIDTH, RunFigure
from nbtools.notebook.plots.view import Choices, Options
from nbtools.notebook.widgets import Output, make_control, view_bundle

STORE_EVERY_S = 10.0
"""Least time between two updates of the static outputs."""
RENDER_EVERY_S = 60.0
"""Least time between two updates while the page draws the curves: only a saved notebook needs the picture then."""

_STYLE = f"<style>\n{Path(__file__).with_name('stored.css').read_text(encoding='utf-8')}{THEME}</style>"


class ChartView(LiveView):
    """A live view whose charts are a canvas where the page can draw it, else a picture.

    The canvas is hidden until the page answers: one that cannot load it would show an error in its place, and keeps
    the picture.

    Args:
        name: of its thread.
        text: plain text of a cell's output, the same in each execution.
        options: what the charts show until the page chooses otherwise.
    """

    def __init__(self, name: str, text: str, options: Options) -> None:
        super().__init__(name)
        self._text = text
        self._new_figure = partial(RunFigure, titled=False)
        self._choices = Choices(options)
        # Explicit width and height keep the page from jumping; hidden until the first drawing.
        shape = ipywidgets.Layout(max_width="100%", height="auto", visibility="hidden")
        height = self._new_figure().height
        self._image = ipywidgets.Image(format="png", width=WIDTH, height=height, layout=shape)
        self._canvas = Canvas(self._receive)
        self._box = ipywidgets.Box([self._canvas], layout={"display": "none", "width": "100%"})
        tip = "Weight of earlier values in the bold lines; the thin lines are the raw values"
        limits = {"value": options.smoothing, "max": 0.99, "step": 0.01, "continuous_update": False}
        self._smoothing = make_control(ipywidgets.FloatSlider, "Smoothing", width=260, label=76, tooltip=tip, **limits)
        self._smoothing.observe(self._changed, "value")
        self._png, self._stored_at, self._is_stored = b"", -math.inf, True

    @property
    @abstractmethod
    def _alt(self) -> str:
        """Return what the charts are, for readers who do not see them."""

    @abstractmethod
    def _made(self, sizes: Sizes) -> Charts:
        """Return the charts; `sizes` returns the sizes of the plot areas of a number of open ones."""

    @abstractmethod
    def _static(self) -> tuple[str, str, str]:
        """Return HTML above the picture, HTML for a page without a kernel, and HTML below the picture."""

    @abstractmethod
    def _changed(self, *_: object) -> None:
        """Draw after a choice."""

    def _receive(self, message: Mapping[str, Any]) -> None:
        """Act on a message of the canvas, perhaps on another thread."""
        with self._lock:
            self._choices.take(message)
            if self._choices.is_ready and self._box.layout.display == "none":
                self._box.layout.display, self._image.layout.display = "block", "none"
            if self._choices.is_hidden:  # a page that is left is often saved next
                self._stored_at = -math.inf
            self._changed()

    def _options(self) -> Options:
        """Return the chosen options."""
        return replace(self._choices.options, smoothing=self._smoothing.value)

    def _draw(self) -> None:
        """Draw in the canvas if a page shows it, else a picture."""
        choices = self._choices
        if not choices.is_ready:
            self._render()
        # An empty canvas has no height, and the page reports it as not visible.
        elif not choices.is_hidden or self._canvas.version == 0:
            only = choices.options.only
            sizes = partial(page_sizes, width=choices.width or WIDTH, is_whole=bool(only))
            self._canvas.show(self._made(sizes), alt=self._alt, filter=choices.filter, only=only)

    def _render(self) -> None:
        """Draw the picture; a page keeps none without a curve."""
        figure = self._new_figure()
        charts = self._made(figure.sizes)
        picture = figure.png(charts)
        self._png = picture if charts.shown else b""
        if not self._choices.is_ready:
            self._image.value, self._image.layout.visibility = picture, "visible"

    def _outputs(self) -> list[Output]:
        """Return text, picture, further text, and the widgets.

        The first three are static and show without a kernel: on GitHub, or after a restart. They are hidden as long as
        the widgets have a kernel, and are renewed now and then while what they show changes.
        """
        above, without_kernel, below = self._static()
        mark = f"{_STYLE}<div class='nbtools-panel-note'>{without_kernel}</div>"
        picture, size = {"image/png": self._png}, {"image/png": {"width": WIDTH, "height": self._new_figure().height}}
        return [
            ({"text/html": f"{above}{mark}", "text/plain": self._text}, {}),
            ({**(picture if self._png else {}), "text/plain": ""}, size if self._png else {}),
            ({**({"text/html": below} if below else {}), "text/plain": ""}, {}),
            (view_bundle(self.widget, ""), {}),
        ]

    def _store(self, *, at_once: bool = False) -> None:
        """Renew the static outputs, which a saved notebook keeps, if it is time."""
        now, is_drawn_by_page = time.monotonic(), self._choices.is_ready
        every_s = RENDER_EVERY_S if is_drawn_by_page else STORE_EVERY_S
        if not at_once and (self._is_stored or not self._displays or now - self._stored_at < every_s):
            return
        if is_drawn_by_page:
            self._render()
        if self._displays and InteractiveShell.initialized():
            self._displays.replace(self._outputs(), which=range(3))
        self._stored_at, self._is_stored = now, True
