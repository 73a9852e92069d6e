"""The script on disk compared with the form: differences, authorship, and the question before it is replaced."""

from collections.abc import Callable
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.config import Launch, TrainConfig
from nbtools.errors import ScriptError
from nbtools.notebook.background import Guarded
from nbtools.notebook.widgets import button
from nbtools.project import file_digest
from nbtools.rundir.secret_values import shown_masked
from nbtools.script.program import Program
from nbtools.script.script import Script, differences, parse_script


class KnownScripts:
    """Digests of the scripts that a form wrote, loaded or matched at its start; any other text is the user's."""

    def __init__(self) -> None:
        self._digests: dict[Path, str] = {}

    def remember(self, path: Path) -> None:
        if path.is_file():
            self._digests[path] = file_digest(path)

    def must_ask(self, path: Path, content: TrainConfig | Program, launch: Launch) -> bool:
        """Whether writing these values would lose values or text at `path` that are not the form's.

        A script with the same values is not rewritten, so nothing is lost.
        """
        if not path.exists() and not path.is_symlink():
            return False
        found = differs(path, content, launch)
        if not found:
            return found is None
        return path.is_symlink() or self._digests.get(path) != file_digest(path) or parse_script(path).hand_edited


def differs(path: Path, content: TrainConfig | Program, launch: Launch) -> list[tuple[str, Any, Any]] | None:
    """Return (field, value in the script, value in the form) per difference; None for an unreadable script."""
    if (script := _parsed(path)) is None:
        return None
    if type(script.content) is not type(content):
        return [("recipe", type(script.content).__name__, type(content).__name__)]
    return [*differences(script.content, content), *differences(script.launch, launch)]


def is_outdated(path: Path) -> bool:
    """Whether an earlier nbtools wrote the script at `path`, without fields that the recipe has now."""
    script = _parsed(path)
    return script is not None and bool(script.lacks) and not script.hand_edited


def _parsed(path: Path) -> Script | None:
    with suppress(ScriptError):
        return parse_script(path)
    return None


def in_words(path: Path, content: TrainConfig | Program, launch: Launch) -> str:
    """Return the differences between the script at `path` and the form in words, with both values."""
    found = differs(path, content, launch)
    if found is None:
        return "it is not a script that nbtools could read back"
    words = [f"it is a link to {path.readlink()}"] if path.is_symlink() else []
    for name, there, here in found[:6]:
        words.append(f"{name} is {shown_masked(there, 60)} in the script, {shown_masked(here, 60)} in the form")
    if len(found) > 6:
        words.append(f"{len(found) - 6} more")
    return "; ".join(words) or "no value differs, only comments or layout"


def state_in_words(path: Path, values: tuple[TrainConfig | Program, Launch] | None) -> str:
    """Return in one line how the script at `path` differs from the form; `values` is None while some are wrong."""
    where = f"scripts/{path.name}"
    if not path.exists():
        return f"{where} is not written yet"
    try:
        script = parse_script(path)
    except ScriptError as error:
        return f"cannot be read back: {str(error).replace(str(path), where)}"
    edited = script.hand_edited
    lacks = f"; it does not name {', '.join(script.lacks[:4])}" if script.lacks else ""
    if values is None:
        return f"{where} exists" + (", edited by hand" if edited else "")
    found = differs(path, *values) or []
    if not found:
        return f"{where} has these values" + (" and was edited by hand" if edited else "") + lacks
    names = ", ".join(name for name, _, _ in found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
    return f"{where} {'was edited by hand and ' if edited else ''}has another {names}{lacks}"


class OverwriteQuestion:
    """Asks before the user's text is replaced: overwrite it, keep it, or load it into the form."""

    def __init__(self, guarded: Guarded) -> None:
        """Run every answer under the form's error boundary `guarded`."""
        self._text = widgets.HTML()
        self._overwrite = button("Overwrite", "check", "Replace the script", style="warning")
        self._keep = button("Keep", "times", "Leave the script unchanged")
        self._load = button("Load into form", "upload", "Load the script's values into the form instead")
        self.widget = widgets.VBox([self._text, widgets.HBox([self._overwrite, self._keep, self._load])])
        self.widget.add_class("nbtools-question")
        self._on_overwrite: Callable[[], object] = self.close
        self._on_load: Callable[[], object] = self.close
        self._overwrite.on_click(guarded(lambda: self._answer(self._on_overwrite)))
        self._keep.on_click(guarded(self.close))
        self._load.on_click(guarded(lambda: self._answer(self._on_load)))
        self.close()

    def _answer(self, action: Callable[[], object]) -> None:
        self.close()
        action()

    def ask(self, path: Path, words: str, on_overwrite: Callable[[], object], on_load: Callable[[], object]) -> None:
        """Show the question about `path`; `words` describe its difference from the form."""
        self._on_overwrite, self._on_load = on_overwrite, on_load
        name = f"<code>scripts/{escape(path.name)}</code>"
        self._text.value = f"<p><b>{name} has values or text that this form did not write.</b> {escape(words)}.</p>"
        self.widget.layout.display = ""

    def close(self) -> None:
        """Hide the question, unanswered or answered."""
        self.widget.layout.display = "none"
