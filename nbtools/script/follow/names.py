"""Names of a script: where an import leads, and what the statements of modules bind."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbtools.script.follow.calls import Calls, Returned, TooLong
from nbtools.script.follow.modules import Modules, SourceModule
from nbtools.script.follow.values import Class, Deferred, External, Module, Scope, Unknown

MOST_STEPS = 60_000
"""Expressions and statements that are followed; scripts reach their parser after a few thousand."""


class Names:
    """Resolves names to what they stand for; the first of the three parts of `Follower`."""

    def __init__(self, modules: Modules, calls: Calls) -> None:
        self.modules = modules
        self.calls = calls
        self.conditions: list[str] = []
        """Tests on the way to the present statement whose result is unknown."""
        self.loops: list[str] = []
        """Loops around the present statement over something unknown."""
        self.entered: set[ast.AST] = set()
        """Functions that were called."""
        self.steps = 0
        self.stack: list[ast.AST] = []
        self.scopes: dict[Path, Scope] = {}

    def statement(self, node: ast.stmt, scope: Scope) -> None:
        """Follow one statement."""
        raise NotImplementedError

    def branch(self, statements: Iterable[ast.stmt], scope: Scope) -> Returned | None:
        """Follow statements that may not be executed; return what they end with."""
        raise NotImplementedError

    def attribute(self, receiver: Any, name: str, node: ast.AST | None, scope: Scope | None) -> Any:
        """Return an attribute of a value."""
        raise NotImplementedError

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
                    self.branch(module.tree.body, known)
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

    def resolve(self, value: Any, importer: SourceModule) -> Any:
        """Return the class or function behind an external name, read from the installed package; itself if none."""
        if not isinstance(value, External):
            return value
        parts = value.path.split(".")
        for end in range(len(parts) - 1, 0, -1):
            path = self.modules.find(".".join(parts[:end]), importer, foreign=True)
            if path is not None and path.suffix == ".py":
                found: Any = Deferred(path, parts[end], value.path)
                for name in parts[end + 1 :]:
                    found = self.attribute(self.force(found), name, None, None)
                found = self.force(found)
                return value if isinstance(found, Unknown) else found
        return value

    def resolve_bases(self, cls: Class) -> None:
        """Replace the bases of a class that are installed packages' by their source, and so on."""
        cls.bases = tuple(self.resolve(base, cls.scope.module) for base in cls.bases)
        for base in cls.bases:
            if isinstance(base, Class):
                self.resolve_bases(base)

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
        return self.member(scope, value.name, value.external)

    def member(self, scope: Scope, name: str, external: str) -> Any:
        """Return what a module binds to a name, or its sub-module of this name."""
        found = self.in_scope(scope, name)
        if found is not None:
            return self.force(found[0])
        folder = scope.module.path.parent
        if scope.module.path.name == "__init__.py":
            for path in (folder / f"{name}.py", folder / name / "__init__.py"):
                if path.is_file():
                    return self.force(Deferred(path, None, external))
        return External(external) if scope.module.is_foreign else Unknown()

    def in_scope(self, scope: Scope, name: str) -> tuple[Any] | None:
        """Return what a scope itself binds to a name; None if it binds nothing."""
        if name not in scope.names and (statements := scope.pending.pop(name, None)):
            for statement in statements:
                self.statement(statement, scope)
        return (scope.names[name],) if name in scope.names else None

    def step(self) -> None:
        """Count a step."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TooLong


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
