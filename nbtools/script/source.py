"""Python source that a user wrote: read within bounds, decoded and parsed, and never executed."""

import ast
from importlib.util import decode_source
from pathlib import Path

from nbtools.errors import ScriptError
from nbtools.parsing import syntax_tree
from nbtools.rundir.tail import open_regular

LARGEST_SOURCE_BYTES = 4 * 2**20


def read_source(path: Path) -> bytes:
    """Return the bytes of a source file; ScriptError if there is none, it is no file (a pipe would block), it is too
    large or cannot be read."""
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST_SOURCE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", error)
        raise ScriptError(f"{path}: cannot be read: {reason}; give the path of a file") from None
    if len(data) > LARGEST_SOURCE_BYTES:
        raise ScriptError(f"{path}:1: larger than {LARGEST_SOURCE_BYTES} bytes, so it is no program")
    return data


def parse_source(path: Path, data: bytes) -> ast.Module:
    """Return the syntax tree of a source file; ScriptError if it is not Python, not in the encoding that it names, or
    nested too deeply."""
    try:
        return syntax_tree(decode_source(data), path)
    except SyntaxError as error:
        raise ScriptError(f"{path}:{error.lineno or 1}: not Python: {error.msg}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ScriptError(f"{path}:{line}: not Python: byte {error.start} is not {error.encoding}") from None
    except (ValueError, LookupError) as error:  # NUL bytes, up to Python 3.11; `# coding: hex`
        raise ScriptError(f"{path}:1: not Python: {error}") from None
    except (RecursionError, MemoryError):
        raise ScriptError(f"{path}:1: nested too deeply to be read") from None


def keywords_of(call: ast.AST | None) -> dict[str | None, ast.expr]:
    """Return the keywords of a call; none of anything else."""
    return {keyword.arg: keyword.value for keyword in call.keywords} if isinstance(call, ast.Call) else {}


def start_folder(script: Path, module: str | None) -> Path:
    """Return the folder that is first in `sys.path`: that of the script, or the one that holds the module."""
    return script.absolute().parents[0 if module is None else module.count(".") + (script.name == "__main__.py")]
