"""The exceptions that nbtools raises, and functions for texts in messages and displays."""

import difflib
import html
import unicodedata
from collections.abc import Callable, Iterable

Say = Callable[[str], None]
"""Prints a line, or keeps it."""
_UNITS = (86400, "d", 3600, "{}h"), (3600, "h", 60, "{:02d}m"), (60, "m", 1, "{:02d}s")
"""Seconds and name of each unit of a duration, and seconds and shape of the unit behind it."""


def shown(value: object, limit: int = 80) -> str:
    """Return the `repr` of a given value for a message, cut if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # an integer of more than 4300 digits, say
        return f"({type(value).__name__}: {error})"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def did_you_mean(given: str, known: Iterable[object], *, most: int = 1) -> str:
    """Return the most similar known words as a question: `did you mean launch?`; empty if none is similar."""
    near = difflib.get_close_matches(given[:80], map(str, known), n=most)
    return f"did you mean {', '.join(near)}?" if near else ""


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 run`, `2,000 processes`."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def needs_package(what: str, name: str) -> str:
    """Return what to do about a package that is not installed."""
    how = f"bash scripts/lab.sh --setup-only installs it (or pip install {name})"
    return f"{what} needs the package {name}, which is not installed: {how}"


def duration(seconds: float) -> str:
    """Return a duration in at most two units: 45s, 2m30s, 1h05m, 3d4h."""
    seconds = max(round(seconds), 0)
    for length, unit, part, shape in _UNITS:
        if seconds >= length:
            count, rest = divmod(seconds // part, length // part)
            return f"{count}{unit}{shape.format(rest) if rest else ''}"
    return f"{seconds}s"


def literal(text: str) -> str:
    """Escape a text for HTML, quotes included; characters that hide or reorder others become escapes."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    seen = (c if c in "\n\t" or unicodedata.category(c) not in hidden else ascii(c)[1:-1] for c in text)
    return html.escape("".join(seen))


def html_table(rows: Iterable[Iterable[str]]) -> str:
    """Return rows of plain text as an HTML table; every cell is escaped."""
    cells = ("".join(f"<td style='text-align:left'>{literal(cell)}</td>" for cell in row) for row in rows)
    return f"<table class='mathjax_ignore tex2jax_ignore'>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def message_of(error: BaseException) -> str:
    """Return the message of an error, with its type unless it is one of ours, whose messages stand alone."""
    return str(error) if isinstance(error, NbtoolsError) else f"{type(error).__name__}: {error}"


class NbtoolsError(Exception):
    """Base class of all errors that nbtools raises. Messages say what was given, what is allowed, and what to do."""

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows instead of a traceback: the message contains the next step."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(NbtoolsError, ValueError):
    """A field of a config or of `Launch` has a value that is not allowed."""


class InvalidNameError(ConfigError):
    """A name cannot be used for a script or a run."""


class ProjectError(NbtoolsError):
    """The project root cannot be found, or its folders cannot be written."""


class ScriptError(NbtoolsError, ValueError):
    """A script is missing, does not parse, or cannot be read back as a config."""


class NotPlainError(ScriptError):
    """A script does more than assign literal values: it can be launched, but not read back as a config."""


class HandEditedError(ScriptError):
    """Writing would overwrite a script that was edited by hand."""


class LaunchError(NbtoolsError, RuntimeError):
    """A run cannot be started with these arguments; nothing was started."""


class RunNotFoundError(NbtoolsError, LookupError):
    """No run, or more than one, has this id or prefix."""


class RunFailed(NbtoolsError, RuntimeError):
    """A run ended as FAILED or LOST while `Run.wait` waited for it."""


class FormatError(NbtoolsError, OSError):
    """A file of a run directory was written by a newer nbtools: handled as any other file that cannot be read."""


class CheckpointError(NbtoolsError):
    """A checkpoint is missing, incomplete or damaged."""


class DataError(NbtoolsError, ValueError):
    """The training data is missing, empty or malformed."""


class DivergedError(NbtoolsError):
    """A training cannot continue: its gradients or weights are not finite."""
