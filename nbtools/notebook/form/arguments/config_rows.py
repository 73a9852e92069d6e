"""The keys of the config files that a program's arguments name, with changes that go into copies of the files."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from nbtools.notebook.background import Fill, Guarded
from nbtools.notebook.form.arguments.word_rows import WordRows
from nbtools.project import expanded
from nbtools.script.arguments.arguments import Argument, ScriptArguments
from nbtools.script.arguments.config_file import keys_of_config
from nbtools.script.program import Program, config_file_of
from nbtools.settings import may_be_path


class ConfigRows:
    """Rows for the keys of config files; the values that they change are a program's `config_values`."""

    def __init__(self, guarded: Guarded, own: WordRows, fill: Fill) -> None:
        """Show nothing; `own` are the rows of the arguments, and `fill` takes values of the program by field."""
        self._own, self._fill = own, fill
        self.keys = WordRows(guarded, "key", "config_values", self._take_values)
        self._files: dict[str, tuple[str, ...]] = {}
        """Config files as arguments name them, each with the flag of its argument."""
        self._main = ""

    def show(self, found: ScriptArguments, program: Program, cwd: Path) -> None:
        """Show the keys of the config files that arguments name; those of all but one have the name of their file."""
        self._files, files = {}, dict[str, tuple[Path, int]]()
        for argument in found.arguments:
            value = self._own.value(argument)
            for word in value if isinstance(value, tuple) else (value,):
                path = cwd / expanded(word) if isinstance(word, str) and may_be_path(word) else None
                changed_ns = path.stat().st_mtime_ns if path and path.is_file() else 0
                if path and changed_ns and _keys(((word, path, changed_ns),), word).arguments:
                    self._files.setdefault(word, argument.flags[:1])
                    files.setdefault(word, (path, changed_ns))
        if not files:
            self.keys.hide()
            return
        self._main = program.config_file if program.config_file in files else next(iter(files))
        keys = _keys(tuple((word, *file) for word, file in files.items()), self._main)
        changes = (word for word in program.config_values if (config_file_of(word) or program.config_file) in files)
        self.keys.show(keys, tuple(changes), keys.script.name if len(files) == 1 else "")

    def changes_beside(self, args: tuple[str, ...]) -> dict[str, Any]:
        """Return the values of a program whose arguments change to `args`: without those of configs that they no longer
        name."""
        kept = tuple(word for word in self.keys.words if _names(args, config_file_of(word) or self._main))
        is_same = self.keys.shown is None or kept == self.keys.words
        return {"args": args, **({} if is_same else self._changes(kept))}

    def _take_values(self, words: tuple[str, ...]) -> None:
        """Write the changed values of the config files into the form, and name the files among the arguments."""
        args = self._own.words
        for file in dict.fromkeys(config_file_of(word) or self._main for word in words):
            args = args if _names(args, file) else (*self._files[file], file, *args)
        self._fill({"args": args, **self._changes(words)})

    def _changes(self, words: tuple[str, ...]) -> dict[str, Any]:
        has_main = "" in map(config_file_of, words)
        return {"config_file": self._main if has_main else None, "config_values": words}


@lru_cache(maxsize=64)
def _keys(files: tuple[tuple[str, Path, int], ...], main: str) -> ScriptArguments:
    """Return the keys of config files, each with its word, path and time of change; plain ones of the main file."""
    found: list[Argument] = []
    for word, path, _ in files:
        keys = keys_of_config(path, path.name)
        for argument in keys.arguments if keys else ():
            full = f"{word}:{argument.name}"
            group = argument.group if len(files) == 1 else " · ".join(filter(None, (path.name, argument.group)))
            name, flags = (argument.name, (argument.name, full)) if word == main else (full, (full,))
            found.append(argument.replace(name=name, group=group, flags=flags))
    names = dict.fromkeys(path.name for _, path, _ in files)
    return ScriptArguments(Path(", ".join(names)), "config file", tuple(found), is_complete=True)


def _names(words: Iterable[str], file: str) -> bool:
    return any(word == file or word.endswith(f"={file}") for word in words)
