"""Rows of fields: one `Field` each, with a label, an input, and its unit and help or its error.

Numbers are text inputs: a bounded number widget clamps silently, while a wrong text stays on the screen beside its
error. Only core widgets, so that VS Code and Colab show the same form.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import NoneType
from typing import Any, get_origin

import ipywidgets as widgets

from nbtools.notebook.background import Callback
from nbtools.notebook.html_parts import THEME
from nbtools.notebook.widgets import Output, answers_beside_cells, note_widget, row, view_bundle
from nbtools.rundir.secret_values import is_secret, masked, unmasked
from nbtools.script.field import Field
from nbtools.script.values import FORM, SHELL, from_text, to_text

LABEL_WIDTH = "204px"
INPUT_SHAPE = {
    "style": {"description_width": LABEL_WIDTH},
    "layout": {"width": "auto", "flex": "1 1 340px", "max_width": "420px"},
}

NONE = ""
"""Value of the choice "none"; a drop-down with the value None is blank."""

_HERE = Path(__file__).parent
STYLE = f"<style>{_HERE.joinpath('form.css').read_text(encoding='utf-8')}{THEME}</style>"
# A form is two outputs: a sentence, then the widgets. JupyterLab and Jupyter Notebook show widgets without a kernel as
# broken links, and those of an earlier kernel as "model not found". There, and only then, the sentence is shown.
_WITHOUT_KERNEL = f"<style>\n{_HERE.joinpath('without_kernel.css').read_text(encoding='utf-8')}</style>"


class FormRow:
    """The row of one field: an input, and beside it its unit and help, its earlier value, or its error."""

    def __init__(self, field: Field, line: widgets.DOMWidget, *others: widgets.DOMWidget) -> None:
        """Put the input `line`, a note and others side by side; on a narrow page the note wraps below the input."""
        self.field, self._input = field, line
        self.note = note_widget()
        """The text beside the input."""
        self._line = self.widget = row(line, self.note, *others)
        self.mark()

    @property
    def value(self) -> Any:
        """The value that the row shows."""
        return self._input.value

    @value.setter
    def value(self, value: Any) -> None:
        self._input.value = value

    def focus(self) -> None:
        """Scroll to the input, which then takes the keys."""
        self._input.focus()

    def mark(self, mistake: str = "", was: str = "") -> None:
        """Show the error of the value, or else its earlier value, its unit and its help."""
        for name, is_so in (("nbtools-wrong", bool(mistake)), ("nbtools-changed", bool(was) and not mistake)):
            (self._line.add_class if is_so else self._line.remove_class)(name)
        before = f"<mark>{escape(was)}</mark> " if was else ""
        before += f"<i>{escape(self.field.unit)}</i> " if self.field.unit else ""
        self.note.value = f"<b>{escape(mistake)}</b>" if mistake else before + escape(self.field.help)


class FieldRow(FormRow):
    """The row of one `Field`: parses text into a value, shows the value or its error.

    A value that was set and not edited since is returned as the same object, even if the text box shows it
    differently (a newline in a path, the last digit of a float).
    """

    def __init__(
        self, field: Field, on_edit: Callback, language: str = FORM, *, num_lines: int = 1, is_command: bool = False
    ) -> None:
        """Make the row of `field`; `on_edit` is called after every edit, with an argument to ignore.

        Args:
            language: how a list is written: with commas, or as in a shell.
            num_lines: height of the input; a value of several lines of text.
            is_command: whether the value is the words of a command, written as in a shell, with secrets masked.
        """
        self._language = SHELL if is_command else language
        self._on_edit, self._num_lines, self._is_command = on_edit, num_lines, is_command
        self._given: tuple[Any, Any] | None = None
        self._declared = field
        given, line = self._drawn(field)
        super().__init__(field, line)
        self._input = given

    def _draw(self, field: Field) -> None:
        self.field = field
        self._input, line = self._drawn(field)
        self._line.children = (line, self.note)
        answers_beside_cells(self.widget)
        self.mark()

    def _drawn(self, field: Field) -> tuple[widgets.DOMWidget, widgets.DOMWidget]:
        """Return a new input, and the line in which it stands with its label."""
        self._options = _options_of(field)
        given = self._make_input(field)
        given.observe(self._on_edit, names="value")
        # A Checkbox puts its own description to the right of the box, out of the column of labels.
        if not isinstance(given, widgets.Checkbox):
            return given, given
        label = widgets.HTML(escape(field.name), layout={"width": LABEL_WIDTH, "margin": "0 8px 0 0"})
        label.add_class("nbtools-label")
        return given, widgets.HBox([label, given], layout={**INPUT_SHAPE["layout"], "margin": "2px"})

    def offer(self, choices: tuple[Any, ...] | None) -> None:
        """Offer `choices` in place of typing, such as the columns of a table; None for what the field declares."""
        field = self._declared
        if choices is not None:
            is_several = any(get_origin(kind) is tuple for kind in field.types)
            options = choices if is_several or NoneType not in field.types else (None, *choices)
            field = field.replace(choices=options, types=field.types if is_several else ())
        if field.choices == self.field.choices and field.types == self.field.types:
            return
        try:
            value = self.value
        except ValueError:
            value = field.default
        self._draw(field)
        self.value = value

    def hide_secret(self, value: Any) -> None:
        """Show `value` as dots if it looks secret, and what follows it; a page never gets it as plain text."""
        texts = [text for text in (value if isinstance(value, tuple) else [value]) if isinstance(text, str)]
        is_shown = isinstance(self._input, widgets.Text) and not isinstance(self._input, widgets.Password)
        if is_shown and any(is_secret(self.field.name, text) for text in texts):
            self._draw(self.field.replace(is_secret=True))
            self.value = value

    def _make_input(self, field: Field) -> widgets.DOMWidget:
        source = f" ({field.source})" if field.source else ""
        shared = {"description": field.name, "tooltip": f"{field.name}: {field.help}{source}", **INPUT_SHAPE}
        if self._options is not None:
            options = [(_label(field, option), _entry(option)) for option in self._options]
            return widgets.Dropdown(options=options, **shared)
        if field.choices and any(get_origin(kind) is tuple for kind in field.types):
            return widgets.SelectMultiple(options=field.choices, rows=min(len(field.choices), 4), **shared)
        if field.types == (bool,):
            return widgets.Checkbox(indent=False, tooltip=shared["tooltip"], layout={"width": "auto"})
        if self._num_lines > 1:
            return widgets.Textarea(rows=self._num_lines, **shared)
        empty = field.default_text or ("none" if NoneType in field.types else "")
        if field.is_secret:
            return widgets.Password(placeholder=empty, **shared)
        if field.choices:
            words = [word for word in field.choices if isinstance(word, str)]
            return widgets.Combobox(options=words, placeholder=empty, **shared)
        # A text may be a path, which is looked up when it is written to its end: with Enter, or in the next input.
        return widgets.Text(placeholder=empty, continuous_update=str not in field.types, **shared)

    @property
    def value(self) -> Any:
        """The value that the row shows; ValueError if the text is no value of the field's type, and the message says
        what is allowed."""
        entry = self._input.value
        if self._given is not None and self._given[1] == entry:
            return self._given[0]
        if isinstance(self._input, widgets.Dropdown):
            return None if entry == NONE else entry
        if isinstance(self._input, widgets.SelectMultiple):
            return None if not entry and NoneType in self.field.types else entry
        if not isinstance(self._input, widgets.Text):
            return entry
        if self.is_missing:
            raise ValueError("is required")
        value = from_text(entry, self.field, self._language)
        return tuple(unmasked(value, self._given[0] if self._given else ())) if self._is_command else value

    @value.setter
    def value(self, value: Any) -> None:
        written = to_text(masked(value) if self._is_command else value, self._language)
        entry = written if isinstance(self._input, widgets.Text) else _entry(value)
        if isinstance(self._input, widgets.SelectMultiple):
            entry = value or ()
            self._input.options = (*self._input.options, *(item for item in entry if item not in self._input.options))
        if self._options is not None:
            known = [(_label(self.field, option), _entry(option)) for option in self._options]
            known += [] if entry in dict(known).values() else [(_label(self.field, value), entry)]
            if known != [*self._input.options]:
                self._input.options = known
        self._given = (value, entry)  # first: setting the input calls `on_edit`, which reads the value
        self._input.value = entry

    @property
    def is_missing(self) -> bool:
        """Whether a value must be given and is not."""
        return self.field.is_required and not str(self._input.value).strip()

    def type_in(self, entry: Any) -> None:
        """Enter a text, or choose an option, as a person would."""
        self._input.value = entry


def form_outputs(form: widgets.Widget, static: str, text: str) -> list[Output]:
    """Return the outputs of a form: HTML and plain text for a page without a kernel, and the widgets."""
    page = f"{_WITHOUT_KERNEL}<div class='nbtools-no-kernel'>{static}</div>"
    return [({"text/html": page, "text/plain": text}, {}), (view_bundle(form), {})]


def read_values(rows: Mapping[str, FormRow]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of rows by name, and why the texts of the others are no values."""
    values: dict[str, Any] = {}
    mistakes: dict[str, str] = {}
    for name, line in rows.items():
        try:
            values[name] = line.value
        except ValueError as error:
            mistakes[name] = str(error)
    return values, mistakes


def _options_of(field: Field) -> tuple[Any, ...] | None:
    """Return all allowed values if they are few."""
    if field.is_closed:
        return field.choices
    is_truth = {*field.types} - {NoneType} == {bool}
    return (True, False, None) if is_truth and (NoneType in field.types or field.default is None) else None


def _label(field: Field, option: Any) -> str:
    if option is not None:
        return str(option)
    return f"not set ({field.default_text})" if field.default_text else "none"


def _entry(option: Any) -> Any:
    return NONE if option is None else option


class GPUField(FormRow):
    """The row of `Launch.gpus`: CPU only, the first GPUs, or GPUs chosen by index."""

    def __init__(self, field: Field, gpus: Sequence[tuple[int, str]], on_edit: Callable[[object], None]) -> None:
        """Offer `gpus`, pairs of an index and a label; `on_edit` is called as by `FieldRow`."""
        modes, tooltip = [("CPU only", "cpu"), ("first GPUs, or the CPU", "auto")], f"gpus: {field.help}"
        self._mode = widgets.Dropdown(description="gpus", options=modes, tooltip=tooltip, **INPUT_SHAPE)
        self._boxes: dict[int, widgets.Checkbox] = {}
        self._choice = widgets.VBox(layout={"margin": f"0 0 0 calc({LABEL_WIDTH} + 12px)", "display": "none"})
        self._on_edit = on_edit
        self._given: tuple[int, ...] = ()
        there = f"{len(gpus)} on this machine" if gpus else "none on this machine: the CPU is used"
        super().__init__(field.replace(help=there), self._mode)
        self.widget = widgets.VBox([self._line, self._choice], layout={"overflow": "visible"})
        for index, label in gpus:
            self._add_box(index, label)
        self._mode.observe(self._fold, names="value")
        self._mode.observe(on_edit, names="value")

    def _add_box(self, index: int, label: str) -> None:
        box = widgets.Checkbox(description=label, indent=False, layout={"width": "auto"})
        box.observe(self._on_edit, names="value")
        self._boxes[index] = box
        self._choice.children = tuple(self._boxes.values())
        if len(self._boxes) == 1:
            self._mode.options = [*self._mode.options, ("the GPUs ticked below", "chosen")]

    def _fold(self, _: object) -> None:
        self._choice.layout.display = "" if self._mode.value == "chosen" else "none"

    @property
    def value(self) -> tuple[int, ...] | None:
        """GPU indices, including absent GPUs; () for CPU only; None for the first GPUs, or the CPU without GPUs;
        ValueError if no GPU is ticked."""
        if self._mode.value != "chosen":
            return () if self._mode.value == "cpu" else None
        chosen = {index for index, box in self._boxes.items() if box.value}
        if not chosen:
            raise ValueError("tick at least one GPU, or choose CPU only")
        return self._given if chosen == {*self._given} else tuple(sorted(chosen))  # their order is that of the ranks

    @value.setter
    def value(self, value: tuple[int, ...] | None) -> None:
        self._given = value or ()
        for index in value or ():
            if index not in self._boxes:
                self._add_box(index, f"GPU {index}: not on this machine")
        for index, box in self._boxes.items():
            box.value = index in (value or ())
        self._mode.value = "chosen" if value else "auto" if value is None else "cpu"
