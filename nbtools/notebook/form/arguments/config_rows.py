"""The keys of the config file that a program's arguments name, with changes that go into a copy of the file."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from nbtools.notebook.background import Fill, Guarded
from nbtools.notebook.form.arguments.word_rows import WordRows
from nbtools.project import expanded
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.config_file import keys_of_config
from nbtools.script.program import Program, names_file
from nbtools.settings import may_be_path


class ConfigRows:
    """Rows for the keys of a config file; the values that they change are a program's `config_values`."""

    def __init__(self, guarded: Guarded, own: WordRows, fill: Fill) -> None:
        """Show nothing; `own` are the rows of the arguments, and `fill` takes values of the program by field."""
        self._own, self._fill = own, fill
        self.keys = WordRows(guarded, "key", "config_values", self._take_values)
        self._file, self._flags = "", tuple[str, ...]()
        """The config file as an argument names it, and the flag of that argument."""

    def show(self, found: ScriptArguments, program: Program, cwd: Path) -> None:
        """Show the keys of the config file that an argument names: of several, that of the program, else the first."""
        files = dict[str, tuple[ScriptArguments, tuple[str, ...]]]()
        for argument in found.arguments:
            value = self._own.value(argument)
            for word in value if isinstance(value, tuple) else (value,):
                path = cwd / expanded(word) if isinstance(word, str) and may_be_path(word) else None
                keys = _keys(path, path.stat().st_mtime_ns) if path and path.is_file() else None
                if keys is not None and keys.arguments:
                    files.setdefault(word, (keys, argument.flags[:1]))
        if not files:
            self.keys.hide()
            return
        self._file = program.config_file if program.config_file in files else next(iter(files))
        keys, self._flags = files[self._file]
        self.keys.show(keys, program.config_values if self._file == program.config_file else (), keys.script.name)

    def changes_beside(self, args: tuple[str, ...]) -> dict[str, Any]:
        """Return the values of a program whose arguments change to `args`: without those of a config that they no
        longer name."""
        is_named = any(names_file(word, self._file) for word in args)
        is_same = is_named or self.keys.shown is None or not self.keys.words
        return {"args": args, **({} if is_same else {"config_file": None, "config_values": ()})}

    def _take_values(self, words: tuple[str, ...]) -> None:
        """Write the changed values of the config file into the form, and name the file among the arguments."""
        args = self._own.words
        if words and not any(names_file(word, self._file) for word in args):
            args = (*self._flags, self._file, *args)
        self._fill({"args": args, "config_file": self._file if words else None, "config_values": words})


@lru_cache(maxsize=64)
def _keys(path: Path, changed_ns: int) -> ScriptArguments | None:
    return keys_of_config(path, path.name)
