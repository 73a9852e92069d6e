"""The names in a script's modules: what its scopes and imports bind; a module is followed when something needs it."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbtools.script.follow.calls import Calls, LoopControl, Raised, Returned, TooLong
from nbtools.script.follow.modules import Modules, SourceModule, bindings
from nbtools.script.follow.values import Deferred, External, Module, Scope, Unknown

_LONGEST_SETUP = 4000
"""Bytes of a module that is followed where it is imported, for what it adds to `sys.path`."""
_MOST_STEPS = 60_000
"""Expressions and statements that are followed; scripts reach their parser after a few thousand."""
MOST_LOADED = 60
"""Modules that are followed for a registry; it is unknown if there are more."""


class ModuleNames(ABC):
    """The names that the modules of a script bind, and the state of following it."""

    def __init__(self, modules: Modules, calls: Calls) -> None:
        self.modules = modules
        self.calls = calls
        self.conditions: list[str] = []
        """Tests on the way to the present statement whose result is unknown."""
        self.loops: list[str] = []
        """Loops around the present statement over something unknown."""
        self.entered: set[ast.AST] = set()
        """Functions whose calls were followed."""
        self.steps = 0
        self.stack: list[ast.AST] = []
        self.scopes: dict[Path, Scope] = {}
        self._imports_unknown = False
        """Whether a module was imported whose name is known only to the program."""
        self._is_loading = False

    @abstractmethod
    def block(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        """Follow statements in order."""

    def _branch(self, statements: Iterable[ast.stmt], scope: Scope) -> Returned | None:
        """Follow statements that may not be executed; return what they end with."""
        try:
            self.block(statements, scope)
        except Returned as returned:
            return returned
        except (LoopControl, Raised):
            return Returned(Unknown())
        return None

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                path = self.modules.find(whole, scope.module)
                if path and path.suffix == ".py" and b"sys.path" in path.read_bytes()[:_LONGEST_SETUP]:
                    self.force(Deferred(path, None, whole))  # other imports need the folders that it adds
                bound = External(whole) if path is None else Deferred(path, None, whole)
                scope.names[alias.asname or whole] = bound
            return
        name, level = node.module or "", node.level
        path = self.modules.find(name, scope.module, level)
        for alias in node.names:
            external = f"{name}.{alias.name}".strip(".")
            if path is None:
                scope.names[alias.asname or alias.name] = External(external)
            elif alias.name != "*":
                scope.names[alias.asname or alias.name] = Deferred(path, alias.name, external)
            elif (module := self.modules.parse(path) if path.suffix == ".py" else None) is not None:
                names = self.scope_of(module).names
                scope.names.update({key: value for key, value in names.items() if not key.startswith("_")})

    def scope_of(self, module: SourceModule) -> Scope:
        """Return the names of a module; its statements are followed at the first time."""
        known = self.scopes.get(module.path)
        if known is None:
            known = self.scopes[module.path] = Scope(
                module, {"__name__": module.path.stem, "__file__": str(module.path)}
            )
            if module.is_foreign:
                known.pending = bindings(module.tree.body)
            else:
                with self._outside():
                    self._branch(module.tree.body, known)
        return known

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """Leave the conditions around an import."""
        kept = self.conditions, self.loops
        self.conditions, self.loops = [], []
        try:
            yield
        finally:
            self.conditions, self.loops = kept

    def force(self, value: Any) -> Any:
        """Return what a name stands for, parsing the module that an import names."""
        if not isinstance(value, Deferred):
            return value
        if value.path.suffix != ".py":
            inner = self.modules.find(value.name or "", self.modules.script) if value.name else None
            for suffix in (f"{value.name}.py", f"{value.name}/__init__.py"):
                if value.name and (value.path / suffix).is_file():
                    inner = value.path / suffix
            return self.force(Deferred(inner, None, value.external)) if inner else External(value.external)
        module = self.modules.parse(value.path)
        if module is None:
            return External(value.external)
        scope = self.scope_of(module)
        if value.name is None:
            return Module(scope, value.external)
        return self._member(scope, value.name, value.external)

    def _member(self, scope: Scope, name: str, external: str) -> Any:
        """Return what a module binds to a name, or its sub-module of this name."""
        found = self._in_scope(scope, name)
        is_itself = found is not None and found[0] == Deferred(scope.module.path, name, external)
        if found is not None and not is_itself:
            return self.force(found[0])
        folder = scope.module.path.parent
        if scope.module.path.name == "__init__.py":
            for path in (folder / f"{name}.py", folder / name / "__init__.py"):
                if path.is_file():
                    return self.force(Deferred(path, None, external))
        return External(external) if scope.module.is_foreign else Unknown()

    def _in_scope(self, scope: Scope, name: str) -> tuple[Any] | None:
        """Return what a scope itself binds to a name; None if it binds nothing."""
        if name not in scope.names and (statements := scope.pending.pop(name, None)):
            self.block(statements, scope)
        if name not in scope.names:
            return None
        is_shared = scope.parent is None or scope.is_class_body
        return (self._filled(name, scope.names[name]) if is_shared else scope.names[name],)

    def _step(self) -> None:
        """Count one followed statement or call."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise TooLong

    def load(self, most: int) -> None:
        """Follow the modules of the repository that were imported and not needed yet, and those that they import."""
        if self._is_loading:
            return
        self._is_loading, first, count = True, len(self.scopes), -1
        while count < len(self.scopes):
            count = len(self.scopes)
            for scope in list(self.scopes.values()):
                for name, value in list(scope.names.items()) if not scope.module.is_foreign else ():
                    if isinstance(value, Deferred) and len(self.scopes) < first + most:
                        scope.names[name] = self.force(value)
        self._imports_unknown = self._imports_unknown or len(self.scopes) >= first + most
        self._is_loading = False

    def _filled(self, name: str, value: Any) -> Any:
        """Return a list or a dict after the imports that may fill it, as decorators fill a registry; unknown if one of
        these imports is."""
        if isinstance(value, dict | list) and any(s.module.fills(name) for s in self.scopes.values()):
            self.load(MOST_LOADED)
            return Unknown(ast.Name(name)) if self._imports_unknown else value
        return value
