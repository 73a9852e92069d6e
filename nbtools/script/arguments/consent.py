"""Whether this user lets forms run the programs of a repository up to their parser, and which repository that is."""

import os
import tempfile
from pathlib import Path
from typing import Any

from nbtools.errors import ConfigError
from nbtools.user_config import read_user_config, update_user_config

_NAME = "consent"


def repository_of(script: Path) -> Path | None:
    """Return the folder to which a consent applies: the script's repository, else its folder.

    None if that would be the home folder, `/` or a folder for temporary files, which hold other people's files too.
    """
    script = Path(os.path.realpath(script))
    never = {Path.home().resolve(), Path("/"), Path("/tmp"), Path("/var/tmp"), Path(tempfile.gettempdir()).resolve()}
    above = [folder for folder in script.parents if folder not in never]
    found = next((folder for folder in above if (folder / ".git").exists()), script.parent)
    return None if found in never else found


def consent_to(script: Path) -> bool | None:
    """Return what the user has answered for the repository of a script; None if it was not asked, or has moved."""
    root = repository_of(script)
    answer = read_user_config(_NAME).get(str(root))
    if root is None or not isinstance(answer, dict) or answer.get("owner") != os.getuid() or why_never(script):
        return None
    return answer.get("allowed") is True


def remember_consent(script: Path, allowed: bool) -> None:
    """Keep the user's answer for the repository of a script; ConfigError if there can be none, or it cannot be kept."""
    if why := why_never(script):
        raise ConfigError(why)
    entry: Any = {"owner": os.getuid(), "allowed": allowed}
    update_user_config(_NAME, lambda content: content.update({str(repository_of(script)): entry}))


def why_never(script: Path) -> str:
    """Return why a script is not run whatever the answer is; empty if it may be."""
    root = repository_of(script)
    if root is None:
        return f"{script.name}: not run, since {script.parent} is no project; move it into a folder of its own"
    for path in (script, root):
        try:
            if path.stat().st_uid != os.getuid():
                return f"{script.name}: not run, since {path} belongs to another user; copy it to run it as you"
        except OSError as error:
            return f"{path}: cannot be read: {error.strerror}"
    return ""
