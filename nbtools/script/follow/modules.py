"""The modules that a script imports: found as Python would find them, and parsed when something needs them."""

import ast
import os.path
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from nbtools.errors import ScriptError
from nbtools.script.source import parse_source, read_source

MOST_MODULES = 400
"""Modules that are parsed for one script."""
_FILLS = r"^[ \t].{0,200}\b%s(?:\[.{1,200}\]\s*=(?!=)|\.(?:add|append|extend|insert|setdefault|update)\()"
_ROOT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")


class SourceModule:
    """A parsed module."""

    def __init__(self, path: Path, label: str, source: bytes, *, is_foreign: bool) -> None:
        self.path = path
        self._source = source
        self.label = label
        """Name for messages: the path below the repository or below site-packages."""
        try:
            self.tree = parse_source(path, source)
        except (RecursionError, MemoryError):
            raise ScriptError(
                f"{path}:1: nested too deeply to be read; simplify it, or pass its arguments as plain text"
            ) from None
        self.is_foreign = is_foreign
        """Whether the module belongs to an installed package, not to the repository."""
        self._fills: dict[str, bool] = {}

    def where(self, node: ast.AST | None) -> str:
        """Return the file and line of a node."""
        return f"{self.label}:{getattr(node, 'lineno', 1)}"

    @property
    def source(self) -> str:
        """The text of the module."""
        return self._source.decode(errors="replace")

    def fills(self, name: str) -> bool:
        """Whether a line of a program's own module, indented as in a function, changes the list or dict of a name."""
        if name not in self._fills:
            found = not self.is_foreign and re.search(_FILLS % re.escape(name), self.source, re.MULTILINE)
            self._fills[name] = bool(found)
        return self._fills[name]

    @cached_property
    def _lines(self) -> list[str]:
        return self.source.splitlines()

    def comment(self, node: ast.stmt) -> str:
        """Return the comment beside a statement, or the lines of comments above it."""
        end = (node.end_lineno or node.lineno) - 1
        beside = self._lines[end].encode()[node.end_col_offset :].decode(errors="replace").strip()
        if beside.startswith("#"):
            return beside.lstrip("# ")
        above = []
        for line in reversed(self._lines[: node.lineno - 1]):
            if not line.strip().startswith("#"):
                break
            above.append(line.strip("# "))
        return " ".join(reversed(above))


class Modules:
    """Finds and parses the modules of one script."""

    def __init__(self, script: Path, module: str | None = None, search: Sequence[Path] = ()) -> None:
        """Note where the modules of a program are searched; the arguments are as for `arguments_of`."""
        depth = 0 if module is None else module.count(".") + (script.name == "__main__.py")
        start = script.absolute().parents[depth]
        packages = (start, *start.parents)
        outside = next((folder for folder in packages if not (folder / "__init__.py").exists()), start)
        marked = (p for p in (outside, *outside.parents) if any((p / mark).exists() for mark in _ROOT_MARKS))
        repository = next(marked, outside)
        self.start = start
        """The first folder of `sys.path` when the script runs."""
        self.repository = repository
        self._own = list(dict.fromkeys((start, outside, repository, repository / "src")))
        self._search = [path for path in map(Path, search) if path.is_absolute() and path not in self._own]
        self._parsed: dict[Path, SourceModule | None] = {}
        self.unread: list[str] = []
        """Messages about modules that could not be parsed."""
        self.script = self._load(script.absolute())

    def _load(self, path: Path) -> SourceModule:
        source = read_source(path)
        own = next((root for root in self._own if path.is_relative_to(root)), None)
        root = own or next((root for root in self._search if path.is_relative_to(root)), path.parent)
        foreign = own is None or "site-packages" in path.parts
        if foreign:
            root = next((root for root in self._search if path.is_relative_to(root)), root)
        module = SourceModule(path, path.relative_to(root).as_posix(), source, is_foreign=foreign)
        self._parsed[path] = module
        return module

    def parse(self, path: Path) -> SourceModule | None:
        """Return the module in a file; None if it cannot be parsed or too many were."""
        if path not in self._parsed:
            if len(self._parsed) >= MOST_MODULES:
                return None
            self._parsed[path] = None
            try:
                return self._load(path)
            except ScriptError as error:
                self.unread.append(str(error))
        return self._parsed[path]

    def add_folder(self, folder: str) -> None:
        """Search a folder that the script adds to `sys.path`, unless it has installed packages."""
        path = Path(os.path.normpath(folder))
        if path.is_absolute() and path.is_dir() and path not in self._own and "site-packages" not in path.parts:
            self._own.insert(0, path)

    def find(self, name: str, importer: SourceModule, level: int = 0, *, foreign: bool = False) -> Path | None:
        """Return the file or the folder of a module; None if it is not in the repository.

        `name` has no dots of a relative import, of which there are `level`; `foreign` searches installed packages, too.
        """
        parts = [part for part in name.split(".") if part]
        if level:
            roots = [importer.path.parents[min(level, len(importer.path.parents)) - 1]]
        else:
            if parts and parts[0] in sys.stdlib_module_names and module_file(self.start, parts[:1]) is None:
                return None
            roots = (self._search if importer.is_foreign else self._own) + (self._search if foreign else [])
        for root in roots:
            if found := module_file(root, parts):
                return found
        return None


def module_file(root: Path, parts: Sequence[str]) -> Path | None:
    """Return the file of a module below a folder, its folder if it is a package without `__init__.py`, or None."""
    folder = root.joinpath(*parts)
    if not parts:
        return next((path for path in (folder / "__init__.py", folder) if path.exists()), None)
    for path in (folder / "__init__.py", folder.with_name(f"{folder.name}.py")):
        if path.is_file():
            return path
    return folder if folder.is_dir() and not folder.name.startswith(".") else None


def bindings(statements: Iterable[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Return the statements of a module by the names that they bind; branches count as if all were taken."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        names: list[str] = []
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names = [alias.asname or alias.name.split(".")[0] for alias in aliases]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                names = [name]
            case ast.If(body=body, orelse=orelse):
                _merge(found, bindings([*body, *orelse]))
            case ast.Try(body=body, handlers=handlers, orelse=orelse):
                _merge(found, bindings([*body, *orelse]) or bindings([s for h in handlers for s in h.body]))
        for name in names:
            found.setdefault(name, []).append(statement)
    return found


def _merge(found: dict[str, list[ast.stmt]], more: Mapping[str, list[ast.stmt]]) -> None:
    for name, statements in more.items():
        found.setdefault(name, []).extend(statements)
