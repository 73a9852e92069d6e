"""`scripts/NAME.sh`: an executable shell script that runs a training with torchrun."""

import shlex
from pathlib import Path

from nbtools.config import Launch
from nbtools.errors import HandEditedError
from nbtools.project import Project, check_name
from nbtools.script.script import put_in_place
from nbtools.script.torchrun import by_hand, variables


def shell_text(name: str, launch: Launch) -> str:
    """Return a shell script that runs `scripts/NAME.py` with torchrun from any working directory.

    Raises:
        InvalidNameError: `name` is not a plain identifier.
    """
    check_name(name)
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables(launch).items())
    return f"""#!/usr/bin/env bash
# Trains scripts/{name}.py here and now. Arguments override its values; paths start from the project's folder.
set -eu
CDPATH='' cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")/.."
command -v torchrun >/dev/null || PATH="$PWD/.venv/bin:$PATH"
{exports}exec {shlex.join(by_hand(f"scripts/{name}.py", launch))} "$@"
"""


def check_shell_script(path: Path, text: str) -> None:
    """Refuse to replace a shell script with other content.

    Raises:
        HandEditedError: the file has other content, or is a link or not a file.
    """
    if path.is_symlink() or (path.exists() and (not path.is_file() or path.read_bytes() != text.encode())):
        raise HandEditedError(f"{path}: exists with other content; overwrite=True (--force) replaces it")


def write_shell_script(project: Project, name: str, launch: Launch, *, overwrite: bool = False) -> Path:
    """Write `scripts/NAME.sh`, executable, and return its path; one with the same content is left alone.

    Raises:
        HandEditedError: the file has other content and `overwrite` is not set.
        ProjectError: the file cannot be written.
    """
    path, text = project.script(name).with_suffix(".sh"), shell_text(name, launch)
    if not overwrite:
        check_shell_script(path, text)
    put_in_place(path, text.encode(), mode=0o755)
    return path
