"""Follows a script from its first statement to its parser, on the syntax tree alone: nothing of it is executed."""

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtools.script.arguments import folding
from nbtools.script.arguments.modules import Modules, SourceModule
from nbtools.script.arguments.values import (
    Class,
    Deferred,
    EnumMember,
    External,
    File,
    Function,
    Instance,
    Method,
    Module,
    Namespace,
    Scope,
    Unknown,
    is_literal,
)

MOST_STEPS = 60_000
"""Expressions and statements that are followed; scripts reach their parser after a few thousand."""
_DEEPEST_CALL = 24
_MOST_ROUNDS = 500


class ParserReached(Exception):
    """The command line is parsed here: what follows does not change the arguments."""


class TooLong(Exception):
    """The script takes more steps than are followed."""


class Returned(Exception):
    """A function returns."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _LoopControl(Exception):
    """A `break` or a `continue`."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends


class _Raised(Exception):
    """The script raises an exception."""


class Calls:
    """What a call of something outside of the source means; `argparse` and its relatives derive from this."""

    def call_external(self, path: str, call: "Call") -> Any:
        """Return the value of a call of something outside of the source."""
        raise NotImplementedError

    def call_method(self, receiver: Any, name: str, call: "Call") -> Any:
        """Return the value of a call of a parser's method."""
        raise NotImplementedError

    def instance_of(self, cls: Class, call: "Call") -> Any:
        """Return an object of a class whose base is outside of the source; None if it is a plain one."""
        raise NotImplementedError

    def library_of(self, decorator: Any) -> str:
        """Return the parsing library that a decorator belongs to; empty for none."""
        raise NotImplementedError

    def attribute(self, receiver: Any, name: str) -> Any:
        """Return an attribute of a parser; None if it has none of this name."""
        raise NotImplementedError


class Call:
    """One call: its arguments, and where it stands."""

    def __init__(
        self, node: ast.Call, scope: Scope, args: list[Any], keywords: dict[str, Any], *, is_whole: bool
    ) -> None:
        self.node = node
        self.scope = scope
        self.args = args
        self.keywords = keywords
        self.is_whole = is_whole
        """Whether all of its arguments are listed: no `*` nor `**` of something unknown."""

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by its position or its name."""
        return self.args[position] if position < len(self.args) else self.keywords.get(name, default)

    @property
    def where(self) -> str:
        """The file and line of the call."""
        return self.scope.module.where(self.node)


class Interpreter:
    """Follows the statements of a script and of the modules that it imports."""

    def __init__(self, modules: Modules, calls: Calls) -> None:
        self.modules = modules
        self.calls = calls
        self.conditions: list[str] = []
        """Tests on the way to the present statement whose result is unknown."""
        self.loops: list[str] = []
        """Loops around the present statement over something unknown."""
        self.entered: set[ast.AST] = set()
        """Functions that were called."""
        self._steps = 0
        self._stack: list[ast.AST] = []
        self._scopes: dict[Path, Scope] = {}

    # --- modules --------------------------------------------------------------------------------------

    def run_script(self) -> None:
        """Follow the script as Python would run it."""
        scope = Scope(self.modules.script, {"__name__": "__main__", "__file__": str(self.modules.script.path)})
        self._scopes[self.modules.script.path] = scope
        self._branch(self.modules.script.tree.body, scope)

    def run_rest(self) -> None:
        """Follow the modules that were imported and not needed yet, then the functions that nothing has called."""
        for scope in list(self._scopes.values()):
            for value in list(scope.names.values()):
                if isinstance(value, Deferred) and (found := self.modules.parse(value.path)) and not found.is_foreign:
                    self.scope_of(found)
        for scope in list(self._scopes.values()):
            if not scope.module.is_foreign:
                for value in list(scope.names.values()):
                    if isinstance(value, Function) and value.node not in self.entered and mentions_parser(value.node):
                        self.call_function(value, Call(NO_CALL, scope, [], {}, is_whole=False))

    def scope_of(self, module: SourceModule) -> Scope:
        """Return the names of a module; its statements are followed at the first time."""
        known = self._scopes.get(module.path)
        if known is None:
            known = self._scopes[module.path] = Scope(
                module, {"__name__": module.path.stem, "__file__": str(module.path)}
            )
            if module.is_foreign:
                known.pending = _bindings(module.tree.body)
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
        return self._member(scope, value.name, value.external)

    def _member(self, scope: Scope, name: str, external: str) -> Any:
        found = self._in_scope(scope, name)
        if found is not None:
            return self.force(found[0])
        folder = scope.module.path.parent
        if scope.module.path.name == "__init__.py":
            for path in (folder / f"{name}.py", folder / name / "__init__.py"):
                if path.is_file():
                    return self.force(Deferred(path, None, external))
        return External(external) if scope.module.is_foreign else Unknown()

    def _in_scope(self, scope: Scope, name: str) -> tuple[Any] | None:
        if name not in scope.names and (statements := scope.pending.pop(name, None)):
            for statement in statements:
                self.statement(statement, scope)
        return (scope.names[name],) if name in scope.names else None

    # --- statements -----------------------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        """Follow statements in order."""
        for statement in statements:
            self.statement(statement, scope)

    def statement(self, node: ast.stmt, scope: Scope) -> None:
        """Follow one statement."""
        self._step()
        match node:
            case ast.Expr(value=value):
                self.value(value, scope)
            case ast.Assign(targets=targets, value=value):
                result = self.value(value, scope)
                for target in targets:
                    self._assign(target, result, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self.value(value, scope), scope)
            case ast.AugAssign(target=target, op=op, value=value):
                left, right = self.value(target, scope), self.value(value, scope)
                self._assign(target, folding.binary(op, left, right, Unknown(node, scope)), scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.names[node.name] = self._function(node, scope)
            case ast.ClassDef():
                self._class(node, scope)
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.If():
                self._if(node, scope)
            case ast.For() | ast.AsyncFor():
                self._for(node, scope)
            case ast.While(body=body, test=test):
                self.value(test, scope)
                with self._unsure(self.loops, scope.module.where(node)):
                    self._branch(body, scope)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.value(item.context_expr, scope)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, value, scope)
                self.block(node.body, scope)
            case ast.Try():
                self._try(node, scope)
            case ast.Return(value=returned):
                raise Returned(None if returned is None else self.value(returned, scope))
            case ast.Break() | ast.Continue():
                raise _LoopControl(ends=isinstance(node, ast.Break))
            case ast.Raise():
                raise _Raised
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        scope.names.pop(target.id, None)
            case ast.Match(cases=cases):
                for case in cases:
                    with self._unsure(self.conditions, scope.module.where(node)):
                        self._branch(case.body, scope)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooLong

    @contextmanager
    def _unsure(self, where: list[str], text: str) -> Iterator[None]:
        where.append(text)
        try:
            yield
        finally:
            where.pop()

    def _branch(self, statements: Iterable[ast.stmt], scope: Scope) -> Returned | None:
        """Follow statements that may not be executed; return what they end with."""
        try:
            self.block(statements, scope)
        except Returned as returned:
            return returned
        except (_LoopControl, _Raised):
            return Returned(Unknown())
        return None

    def _if(self, node: ast.If, scope: Scope) -> None:
        test = folding.truth(self.value(node.test, scope))
        if test is not None:
            self.block(node.body if test else node.orelse, scope)
            return
        before = {name: value for name, value in scope.names.items() if is_literal(value)}
        with self._unsure(self.conditions, ast.unparse(node.test)):
            first = self._branch(node.body, scope)
            middle = {name: scope.names[name] for name in scope.names if is_literal(scope.names[name])}
            second = self._branch(node.orelse, scope)
        for name, value in middle.items():  # what the branches leave different is known only to the program
            now = scope.names.get(name)
            changed = name in before and not folding.same(before[name], value) and folding.same(now, value)
            if changed or (node.orelse and is_literal(now) and not folding.same(now, value)):
                scope.names[name] = Unknown(ast.Name(name), scope)
        if first is not None and second is not None:
            known = [item for item in (first, second) if item.value is not None and not isinstance(item.value, Unknown)]
            raise known[0] if known else first
        for item in (first, second):
            if item is not None and item.value is not None and not isinstance(item.value, Unknown):
                scope.names.setdefault(_MAYBE, item.value)

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        items = self.items(self.value(node.iter, scope))
        if items is None or len(items) > _MOST_ROUNDS:
            self._assign(node.target, Unknown(node.target, scope), scope)
            with self._unsure(self.loops, scope.module.where(node)):
                self._branch(node.body, scope)
        else:
            for item in items:
                self._assign(node.target, item, scope)
                try:
                    self.block(node.body, scope)
                except _LoopControl as control:
                    if control.ends:
                        break
        self.block(node.orelse, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        try:
            self.block(node.body, scope)
        except _Raised:
            for handler in node.handlers[:1]:
                self.block(handler.body, scope)
        for handler in node.handlers:
            for statement in handler.body:  # whether `import x` succeeded is known only to the program
                if isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Name):
                    known = scope.names.get(target.id)
                    if known is None or is_literal(known):
                        scope.names[target.id] = Unknown(target, scope)
        self.block(node.orelse, scope)
        self.block(node.finalbody, scope)

    def _assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope.names[name] = value
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                items = self.items(value)
                known = items is not None and len(items) == len(elements)
                for number, element in enumerate(elements):
                    self._assign(element, items[number] if known and items else Unknown(element, scope), scope)
            case ast.Attribute(value=owner, attr=name):
                receiver = self.value(owner, scope)
                if isinstance(receiver, Instance) or hasattr(receiver, "attributes"):
                    receiver.attributes[name] = value
                elif isinstance(receiver, Class):
                    receiver.body.names[name] = value
            case ast.Subscript(value=owner, slice=index):
                receiver, key = self.value(owner, scope), self.value(index, scope)
                if isinstance(receiver, dict) and is_literal(key) and isinstance(key, int | str):
                    receiver[key] = value

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Function:
        kind = library = ""
        for decorator in node.decorator_list:
            value = self.value(decorator, scope)
            name = value.path if isinstance(value, External) else ""
            kind = name if name in ("property", "staticmethod", "classmethod") else kind
            library = library or self.calls.library_of(value)
        return Function(node, scope, kind=kind, library=library)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        for decorator in node.decorator_list:
            self.value(decorator, scope)
        bases = tuple(self.value(base, scope) for base in node.bases)
        body = Scope(scope.module, parent=scope)
        scope.names[node.name] = cls = Class(node, scope, bases, body)
        if scope.module.is_foreign:
            body.pending = _bindings(node.body)
        else:
            self._branch(node.body, body)
        body.owner = cls

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                path = self.modules.find(whole, scope.module)
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

    # --- expressions ----------------------------------------------------------------------------------

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Return what an expression stands for."""
        self._step()
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(name, scope, node)
            case ast.Attribute(value=owner, attr=name):
                return self.attribute(self.value(owner, scope), name, node, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.NamedExpr(target=target, value=value):
                result = self.value(value, scope)
                self._assign(target, result, scope)
                return result
            case ast.Await(value=value) | ast.Starred(value=value):
                return self.value(value, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = folding.truth(self.value(test, scope))
                return Unknown(node, scope) if chosen is None else self.value(body if chosen else orelse, scope)
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                return self._sequence(node, elements, scope)
            case ast.Dict(keys=keys, values=values):
                return self._dict(node, keys, values, scope)
            case ast.Subscript(value=owner, slice=index):
                return folding.subscript(self.value(owner, scope), self.value(index, scope), Unknown(node, scope))
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = [None if part is None else self.value(part, scope) for part in (lower, upper, step)]
                return slice(*parts) if is_literal(parts) else Unknown(node, scope)
            case ast.BinOp(left=left, op=op, right=right):
                return folding.binary(op, self.value(left, scope), self.value(right, scope), Unknown(node, scope))
            case ast.UnaryOp(op=op, operand=operand):
                return folding.unary(op, self.value(operand, scope), Unknown(node, scope))
            case ast.BoolOp(op=op, values=values):
                return self._bool(node, isinstance(op, ast.And), values, scope)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return folding.comparison(op, self.value(left, scope), self.value(right, scope), Unknown(node, scope))
            case ast.JoinedStr(values=parts):
                return self._joined(node, parts, scope)
            case ast.Lambda():
                return Function(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, scope)
        return Unknown(node, scope)

    def _name(self, name: str, scope: Scope, node: ast.AST) -> Any:
        current: Scope | None = scope
        while current is not None:
            if (found := self._in_scope(current, name)) is not None:
                value = found[0]
                if isinstance(value, Deferred):
                    value = self.force(value)
                    current.names[name] = value
                return Unknown(node, scope) if isinstance(value, Unknown) and value.node is None else value
            current = current.parent
        return External(name) if hasattr(builtins, name) else Unknown(node, scope)

    def attribute(self, receiver: Any, name: str, node: ast.AST | None, scope: Scope | None) -> Any:
        """Return an attribute of a value."""
        unknown = Unknown(node, scope)
        match receiver:
            case External(path):
                return External(f"{path}.{name}")
            case Module(module_scope, module_name):
                found = self._member(module_scope, name, f"{module_name}.{name}")
                return unknown if isinstance(found, Unknown) and found.node is None else found
            case Instance(cls, attributes):
                if name in attributes:
                    return attributes[name]
                found = self.class_attribute(cls, name, receiver)
                return unknown if found is None else found[0]
            case Class():
                if name in ("__name__", "__qualname__"):
                    return receiver.node.name
                if receiver.is_enum:
                    members = {member.name: member for member in self.members(receiver)}
                    found = members.get(name)
                    if name == "__members__":
                        return members
                    if found is not None:
                        return found
                found = self.class_attribute(receiver, name, None)
                return unknown if found is None else found[0]
            case EnumMember():
                return {"name": receiver.name, "value": receiver.value}.get(name, unknown)
            case Namespace(parser):
                default = parser.default_of(name)
                return default if is_literal(default) and default else unknown
            case Function(node=ast.FunctionDef(name=function)) if name == "__name__":
                return function
            case File():
                return Method(receiver, name)
            case Function(library=library) if library:
                return External(f"{library}.{name}")
            case _Super(cls, instance):
                for owner in cls.ancestors[1:]:
                    if name in owner.body.names:
                        found = owner.body.names[name]
                        if isinstance(found, Function):
                            return Function(found.node, found.scope, owner, instance, found.kind)
                return External(f"object.{name}") if isinstance(instance, Instance | None) else Method(instance, name)
        if (found := self.calls.attribute(receiver, name)) is not None:
            return found
        if isinstance(receiver, str | list | tuple | dict | set | int | float):
            return Method(receiver, name)
        return unknown

    def class_attribute(self, cls: Class, name: str, receiver: Any) -> tuple[Any] | None:
        for owner in cls.ancestors:
            found = self._in_scope(owner.body, name)
            if found is None:
                continue
            value = self.force(found[0])
            if isinstance(value, Function):
                bound = None if value.kind == "staticmethod" else cls if value.kind == "classmethod" else receiver
                value = Function(value.node, value.scope, owner, bound, value.kind, value.library)
                if value.kind == "property" and receiver is not None:
                    value = self.call_function(value, Call(NO_CALL, owner.body, [], {}, is_whole=True))
            return (value,)
        return None

    def members(self, cls: Class) -> list[EnumMember]:
        """Return the members of an enumeration, in order."""
        found: list[EnumMember] = []
        for owner in reversed(cls.ancestors):
            for statement in owner.node.body:
                if isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Name):
                    value = self.value(statement.value, owner.scope)
                    is_auto = isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func).endswith(
                        "auto"
                    )
                    if is_auto:
                        value = target.id.lower() if cls.derives_from("StrEnum") else len(found) + 1
                    found.append(EnumMember(cls, target.id, value))
        return found

    def items(self, value: Any) -> list[Any] | None:
        """Return what iterating over a value gives; None if it is not known."""
        if isinstance(value, list | tuple | set | frozenset | dict | str):
            return list(value)
        if isinstance(value, Class) and value.is_enum:
            return list(self.members(value))
        return None

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set, elements: list[ast.expr], scope: Scope) -> Any:
        found: list[Any] = []
        for element in elements:
            value = self.value(element, scope)
            if isinstance(element, ast.Starred):
                items = self.items(value)
                if items is None:
                    return Unknown(node, scope)
                found += items
            else:
                found.append(value)
        return tuple(found) if isinstance(node, ast.Tuple) else found

    def _dict(self, node: ast.Dict, keys: list[ast.expr | None], values: list[ast.expr], scope: Scope) -> Any:
        found: dict[Any, Any] = {}
        for key_node, value_node in zip(keys, values, strict=True):
            value = self.value(value_node, scope)
            if key_node is None:
                if not isinstance(value, dict):
                    return Unknown(node, scope)
                found.update(value)
                continue
            key = self.value(key_node, scope)
            if isinstance(key, list | dict | set | Namespace):
                return Unknown(node, scope)
            found[key] = value
        return found

    def _bool(self, node: ast.BoolOp, is_and: bool, values: list[ast.expr], scope: Scope) -> Any:
        result: Any = None
        for operand in values:
            result = self.value(operand, scope)
            test = folding.truth(result)
            if test is None:
                return Unknown(node, scope)
            if test is not is_and:
                return result
        return result

    def _joined(self, node: ast.JoinedStr, parts: list[ast.expr], scope: Scope) -> Any:
        texts = []
        for part in parts:
            if isinstance(part, ast.FormattedValue):
                value = self.value(part.value, scope)
                if not is_literal(value) or part.format_spec is not None or part.conversion not in (-1, 115):
                    return Unknown(node, scope)
                texts.append(str(value))
            else:
                texts.append(str(self.value(part, scope)))
        return "".join(texts)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope) -> Any:
        inner = Scope(scope.module, parent=scope)
        found: list[Any] = []
        pairs: dict[Any, Any] = {}

        def rounds(number: int) -> bool:
            if number == len(node.generators):
                if isinstance(node, ast.DictComp):
                    pairs[self.value(node.key, inner)] = self.value(node.value, inner)
                else:
                    found.append(self.value(node.elt, inner))
                return True
            generator = node.generators[number]
            items = self.items(self.value(generator.iter, inner))
            if items is None or len(items) > _MOST_ROUNDS:
                return False
            for item in items:
                self._assign(generator.target, item, inner)
                tests = [folding.truth(self.value(test, inner)) for test in generator.ifs]
                if None in tests or (all(tests) and not rounds(number + 1)):
                    return False
            return True

        try:
            is_known = rounds(0)
        except TypeError:  # a key that cannot be one
            is_known = False
        return Unknown(node, scope) if not is_known else pairs if isinstance(node, ast.DictComp) else found

    # --- calls ----------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return self._super(node, scope)
        function = self.value(node.func, scope)
        args: list[Any] = []
        keywords: dict[str, Any] = {}
        is_whole = True
        for argument in node.args:
            value = self.value(argument, scope)
            if isinstance(argument, ast.Starred):
                items = self.items(value)
                is_whole = is_whole and items is not None
                args += items or ()
            else:
                args.append(value)
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict):
                keywords.update({str(key): item for key, item in value.items()})
            else:
                is_whole = False
        return self.call(function, Call(node, scope, args, keywords, is_whole=is_whole))

    def _super(self, node: ast.Call, scope: Scope) -> Any:
        current: Scope | None = scope
        while current is not None and current.owner is None:
            current = current.parent
        if current is None or current.owner is None:
            return Unknown(node, scope)
        return _Super(current.owner, current.receiver)

    def call(self, function: Any, call: Call) -> Any:
        """Return the value of a call."""
        match function:
            case Function():
                return self.call_function(function, call)
            case Class():
                return self._create(function, call)
            case External("globals" | "locals" | "vars") if not call.args:
                return Unknown(call.node, call.scope)
            case External("setattr") if len(call.args) == 3 and isinstance(call.args[0], Instance):
                call.args[0].attributes[str(call.args[1])] = call.args[2]
                return None
            case External("getattr") if len(call.args) >= 2 and isinstance(call.args[1], str):
                return self.attribute(call.args[0], call.args[1], call.node, call.scope)
            case External("list" | "tuple" | "sorted" | "set" | "reversed" | "enumerate" | "zip" | "map" as name):
                return self._iterated(name, call)
            case External(path):
                return self.calls.call_external(path, call)
            case Method(receiver, name) if isinstance(receiver, str | list | tuple | dict | set | int | float):
                return folding.method(receiver, name, call.args, call.keywords, Unknown(call.node, call.scope))
            case Method(receiver, name):
                return self.calls.call_method(receiver, name, call)
        return self.calls.call_external("", call)

    def _iterated(self, name: str, call: Call) -> Any:
        lists = [self.items(argument) for argument in call.args]
        if name == "map" and len(call.args) == 2 and lists[1] is not None:
            return [
                self.call(call.args[0], Call(call.node, call.scope, [item], {}, is_whole=True)) for item in lists[1]
            ]
        if name == "map" or any(items is None for items in lists) or not call.is_whole:
            return Unknown(call.node, call.scope)
        return folding.iterated(
            name, [items for items in lists if items is not None], call.keywords, Unknown(call.node, call.scope)
        )

    def _create(self, cls: Class, call: Call) -> Any:
        if cls.is_enum:
            members = [member for member in self.members(cls) if call.args and member.value == call.args[0]]
            return members[0] if members else Unknown(call.node, call.scope)
        instance = self.calls.instance_of(cls, call)
        instance = Instance(cls) if instance is None else instance
        is_plain = isinstance(instance, Instance) or getattr(instance, "cls", None) is not None
        found = self.class_attribute(cls, "__init__", instance) if is_plain else None
        if found and isinstance(found[0], Function):
            self.call_function(found[0], call)
        elif isinstance(instance, Instance):  # a dataclass, or a class of settings
            instance.attributes.update(call.keywords)
        return instance

    def call_method_of(self, instance: Any, cls: Class, name: str, call: Call) -> tuple[Any] | None:
        """Call a method that the source defines for a class; None if it defines none."""
        found = self.class_attribute(cls, name, instance)
        return None if found is None else (self.call(found[0], call),)

    def call_function(self, function: Function, call: Call) -> Any:
        """Follow the statements of a function."""
        node = function.node
        if function.library:
            self.calls.call_external(function.library, call)
        if len(self._stack) >= _DEEPEST_CALL or self._stack.count(node) > 1:
            return Unknown(call.node, call.scope)
        scope = Scope(function.scope.module, parent=function.scope, owner=function.owner, receiver=function.receiver)
        if isinstance(function.scope.owner, Class):  # a class body is no scope for its methods
            scope.parent = function.scope.parent
        self._bind(node.args, function, call, scope)
        self._stack.append(node)
        self.entered.add(node)
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, scope)
            self.block(node.body, scope)
        except Returned as returned:
            maybe = scope.names.get(_MAYBE)
            is_known = returned.value is not None and not isinstance(returned.value, Unknown)
            return returned.value if is_known or maybe is None else maybe
        except (_LoopControl, _Raised):
            return Unknown(call.node, call.scope)
        finally:
            self._stack.pop()
        return scope.names.get(_MAYBE)

    def _bind(self, parameters: ast.arguments, function: Function, call: Call, scope: Scope) -> None:
        args = ([] if function.receiver is None else [function.receiver]) + call.args
        names = [*parameters.posonlyargs, *parameters.args]
        defaults = dict(zip(reversed(names), reversed(parameters.defaults), strict=False))
        defaults |= {
            name: value for name, value in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True) if value
        }
        keywords = dict(call.keywords)
        for number, name in enumerate((*names, *parameters.kwonlyargs)):
            if number < len(names) and number < len(args):
                value = args[number]
            elif name.arg in keywords:
                value = keywords.pop(name.arg)
            elif name in defaults and call.is_whole:
                value = self.value(defaults[name], function.scope)
            else:
                value = Unknown(ast.Name(name.arg), scope)
            scope.names[name.arg] = value
        if parameters.vararg:
            scope.names[parameters.vararg.arg] = tuple(args[len(names) :]) if call.is_whole else Unknown(None, scope)
        if parameters.kwarg:
            scope.names[parameters.kwarg.arg] = keywords if call.is_whole else Unknown(None, scope)


@dataclass(frozen=True)
class _Super:
    """What `super()` returns."""

    cls: Class
    receiver: Any


_MAYBE = "(returned in a branch)"
NO_CALL = ast.Call(ast.Name("unknown"), [], [], lineno=1)
_PARSER_WORDS = ("ArgumentParser", "parse_args", "parse_known_args", "add_argument", "parse_args_into_dataclasses")


def mentions_parser(node: ast.AST) -> bool:
    """Whether a function names a parser or one of its methods."""
    return any(getattr(inner, "attr", getattr(inner, "id", "")) in _PARSER_WORDS for inner in ast.walk(node))


def _bindings(statements: Iterable[ast.stmt]) -> dict[str, list[ast.stmt]]:
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
                _merge(found, _bindings([*body, *orelse]))
            case ast.Try(body=body, handlers=handlers, orelse=orelse):
                _merge(found, _bindings([*body, *orelse]) or _bindings([s for h in handlers for s in h.body]))
        for name in names:
            found.setdefault(name, []).append(statement)
    return found


def _merge(found: dict[str, list[ast.stmt]], more: Mapping[str, list[ast.stmt]]) -> None:
    for name, statements in more.items():
        found.setdefault(name, []).extend(statements)
