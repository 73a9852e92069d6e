"""The user's own decisions, kept for all projects: JSON files in a folder of the user's, never in a project."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbtools.errors import ConfigError
from nbtools.rundir.json_files import kept, read_json, write_json
from nbtools.rundir.lock import locked_folder


def config_folder() -> Path:
    """Return `$NBTOOLS_CONFIG_DIR`, else `nbtools` in `$XDG_CONFIG_HOME`, else `~/.config/nbtools`."""
    if own := os.environ.get("NBTOOLS_CONFIG_DIR"):
        return Path(own).expanduser()
    shared = Path(os.environ.get("XDG_CONFIG_HOME", ""))  # its standard has relative paths ignored
    return (shared if shared.is_absolute() else Path.home() / ".config") / "nbtools"


def read_user_config(name: str) -> dict[str, Any]:
    """Return the content of the file NAME.json; empty if there is none, or if it belongs to another user."""
    with contextlib.suppress(OSError):
        return kept(_own_content, config_folder() / f"{name}.json") or {}
    return {}


def _own_content(path: Path) -> dict[str, Any] | None:
    content = read_json(path) if path.stat().st_uid == os.getuid() else None
    return content and {key: value for key, value in content.items() if key != "format"}


def decided_for(name: str, root: str, script: str) -> dict[str, Any]:
    """Return what the file NAME.json has of a script of the project at `root`; empty if that is nothing, or damaged."""
    found = read_user_config(name).get(root)
    decision = found.get(script) if isinstance(found, dict) else None
    return decision if isinstance(decision, dict) else {}


def update_user_config(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the content of the file NAME.json, which only the user can read; other processes' changes are kept.

    Raises:
        ConfigError: the folder or the file cannot be written.
    """
    folder = config_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked_folder(folder):
            path = folder / f"{name}.json"
            content = (_own_content(path) if path.exists() else None) or {}  # not the kept one: it is changed
            change(content)
            write_json(path, content, mode=0o600)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written: {error.strerror or error}; change its permissions, or set NBTOOLS_CONFIG_DIR"
        ) from None
