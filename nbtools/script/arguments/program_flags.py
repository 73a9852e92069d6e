"""The resume of a program, the folders that it writes to, and its epochs, by the names of its arguments."""

import re
from collections.abc import Sequence
from types import NoneType
from typing import Final

from nbtools.rundir.program_files.written_files import names_folder
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.resume_arguments import CHECKPOINT, flag_name

_EPOCHS: Final = r"(?:(?:num|n|max|num_train)_)?epochs"
_RESUME: Final = (
    "resume_from_checkpoint", "ckpt_path", "resume_from", "resume_path", "resume_checkpoint", "resume_ckpt", "resume",
    "auto_resume",
)  # fmt: skip
"""Names of arguments that resume, the least ambiguous first."""
_MAY_RESUME: Final = ("load_checkpoint", "checkpoint_path", "load_ckpt", "load", "checkpoint", "ckpt")
"""Names that may also be those of initial weights, or of where to save: no restart uses them unasked."""


def guessed_resume(args: Sequence[str], declared: ScriptArguments | None, *, is_asked: bool = False) -> tuple[str, ...]:
    """Return the words that probably resume a program, by exact names of its arguments; () if none has such a name.

    Args:
        args: its words of this launch; a flag among them counts even if nothing is declared.
        declared: its arguments.
        is_asked: whether the user sees the words before they are used: then `_MAY_RESUME` counts, too.
    """
    arguments = [one for one in (declared.arguments if declared else ()) if one.flags]
    known = {flag_name(one.flags[0]).rpartition(".")[2]: one for one in arguments}
    given = {flag_name(word).rpartition(".")[2]: word for word in args if word[:1] == "-" or "=" in word}
    for name in (*_RESUME, *(_MAY_RESUME if is_asked else ())):
        if declared and name in known:
            argument, kinds = known[name], set(known[name].types) - {NoneType}
            is_switch, is_number = kinds == {bool}, bool(kinds) and kinds <= {int, float}
            takes_another = argument.is_closed or is_number or (name in _MAY_RESUME and (is_switch or argument.default))
            if not takes_another:
                return tuple(declared.written(argument, is_switch or CHECKPOINT))
        elif name in given:
            flag, equals, _ = given[name].partition("=")
            return (f"{flag}={CHECKPOINT}",) if equals else (flag, CHECKPOINT)
    return ()


def num_epochs(args: Sequence[str], declared: ScriptArguments | None) -> int | None:
    """Return the number of epochs in a program's words, such as `--max-epochs 3`, else its default; None if unknown."""
    words = " ".join(args).replace("-", "_")
    if given := re.findall(rf"(?:^|[ .])_*{_EPOCHS}[ =](\d+)(?!\S)", words):
        return int(given[-1])
    arguments = declared.arguments if declared else ()
    named = (one for one in arguments if re.fullmatch(_EPOCHS, one.name.rpartition(".")[2]))
    return next((one.default for one in named if type(one.default) is int), None)


def default_folders(args: Sequence[str], declared: ScriptArguments | None) -> list[str]:
    """Return the flags that `args` leave out and whose default may be a folder, each followed by it."""
    given, found = {word.partition("=")[0] for word in args}, list[str]()
    for argument in declared.arguments if declared else ():
        flags, default = argument.flags, argument.default
        if flags and given.isdisjoint(flags) and isinstance(default, str) and names_folder(flags[0]):
            found += [flags[0], default]
    return found
