"""The script of a form: its name, whose text stands in the file, and how that differs from the form."""

from collections.abc import Callable
from pathlib import Path

import ipywidgets as widgets

from nbtools.config import Launch, TrainConfig
from nbtools.errors import ConfigError, HandEditedError, ScriptError
from nbtools.notebook.rows.field_rows import INPUT_SHAPE, FormRow
from nbtools.project import Project, check_name, file_digest
from nbtools.rundir.secret_values import shown_masked
from nbtools.script.field import Field
from nbtools.script.program import Program
from nbtools.script.script import Script, differences, parse_script, write_script

Contents = tuple[TrainConfig | Program, Launch]
_MOST_NAMED = 6


class ScriptRow:
    """The row of the script's name; it knows which texts of that file are the form's own.

    Those are the ones that the form wrote, loaded or matched at its start; any other text is the user's.
    """

    def __init__(self, project: Project, label: str, name: str, on_edit: Callable[[object], None]) -> None:
        self.project, self.label = project, label
        self._digests: dict[Path, str] = {}
        self.input = widgets.Text(value=name, description=label, placeholder="name of the script", **INPUT_SHAPE)
        self.input.observe(on_edit, names="value")
        self.row = FormRow(Field(label), self.input)

    @property
    def name(self) -> str:
        """Name of the script; InvalidNameError if it cannot be used."""
        return check_name(self.input.value.strip())

    @property
    def path(self) -> Path:
        """Path of the script; InvalidNameError as for `name`."""
        return self.project.script(self.name)

    @property
    def target(self) -> Path | None:
        """Path of the script; None without a valid name."""
        try:
            return self.path
        except ConfigError:
            return None

    def remember(self, path: Path) -> None:
        """Take the text at `path` for the form's own."""
        if path.is_file():
            self._digests[path] = file_digest(path)

    def matches(self, values: Contents) -> bool:
        """Whether the script has these values."""
        return (path := self.target) is not None and path.exists() and _compared(path, values)[1] == []

    def must_ask(self, values: Contents) -> bool:
        """Whether writing these values would lose values or text that are not the form's.

        A script with the same values is not rewritten, so nothing is lost.
        """
        path = self.path
        if not path.exists() and not path.is_symlink():
            return False
        script, differing = _compared(path, values)
        if script is None or not differing:
            return script is None
        return path.is_symlink() or self._digests.get(path) != file_digest(path) or script.hand_edited

    def write(self, values: Contents, overwrite: bool) -> Path:
        """Write the script, unless it has these values; HandEditedError if a text of the user's would be lost."""
        path = self.path
        if not overwrite and self.must_ask(values):
            raise HandEditedError(
                f"{path}: has values or text that this form did not write ({self.in_words(values)}); "
                "form.write(overwrite=True) replaces it, form.load() loads its values into the form"
            )
        script, differing = _compared(path, values)
        # One that an earlier nbtools wrote lacks fields that the recipe has now.
        if overwrite or differing or script is None or (script.lacks and not script.hand_edited):
            write_script(values[0], self.name, values[1], project=self.project, overwrite=True)
        self.remember(path)
        return path

    def in_words(self, values: Contents) -> str:
        """Return the differences between the script and the form in words, with both values."""
        path = self.path
        script, differing = _compared(path, values)
        if script is None:
            return "it is not a script that nbtools could read back"
        words = [f"it is a link to {path.readlink()}"] if path.is_symlink() else []
        return "; ".join([*words, *differing]) or "no value differs, only comments or layout"

    def show(self, values: Contents | None) -> dict[str, str]:
        """Show how the script differs from the form, whose `values` are None while some are wrong.

        Returns the error of the name, by the name of the row.
        """
        words = mistake = ""
        try:
            words = _state_in_words(self.path, values)
        except ConfigError as error:
            mistake = str(error).partition(": ")[2]
        self.row.field = self.row.field.replace(help=words)
        self.row.mark(mistake)
        return {self.label: mistake} if mistake else {}


def _compared(path: Path, values: Contents) -> tuple[Script | None, list[str]]:
    """Return the script at `path`, None if it cannot be read, and its differences from the form in words."""
    try:
        script = parse_script(path)
    except ScriptError:
        return None, []
    if type(script.content) is not type(values[0]):
        found = [("recipe", type(script.content).__name__, type(values[0]).__name__)]
    else:
        found = [*differences(script.content, values[0]), *differences(script.launch, values[1])]
    masked = ((name, shown_masked(there, 60), shown_masked(here, 60)) for name, there, here in found)
    words = [f"{name} is {there} in the script, {here} in the form" for name, there, here in masked]
    return script, words[:_MOST_NAMED] + ([f"{len(words) - _MOST_NAMED} more"] if len(words) > _MOST_NAMED else [])


def _state_in_words(path: Path, values: Contents | None) -> str:
    """Return in one line how the script at `path` differs from the form."""
    where = f"scripts/{path.name}"
    if not path.exists():
        return f"{where} is not written yet"
    try:
        script = parse_script(path)
    except ScriptError as error:
        return f"cannot be read back: {str(error).replace(str(path), where)}"
    differing = [] if values is None else _compared(path, values)[1]
    state = "exists" if values is None else "has these values"
    words = f"{where}: {'; '.join(differing)}" if differing else f"{where} {state}"
    words += "; it was edited by hand" if script.hand_edited else ""
    return words + (f"; it does not name {', '.join(script.lacks[:4])}" if script.lacks else "")
