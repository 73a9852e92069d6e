"""Follows a script from its first statement to its parser, on the syntax tree alone: nothing of it is executed."""

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from nbtools.script.follow import folding
from nbtools.script.follow.calls import NO_CALL, Call, LoopControl, Raised, Returned, Super
from nbtools.script.follow.expressions import MOST_ROUNDS, Expressions
from nbtools.script.follow.names import bindings
from nbtools.script.follow.values import (
    Class,
    Deferred,
    External,
    Function,
    Instance,
    Method,
    Scope,
    Unknown,
    is_literal,
)

_DEEPEST_CALL = 24


class Follower(Expressions):
    """Follows the statements of a script, of the functions that it calls and of the modules that it imports."""

    def run_script(self) -> None:
        """Follow the script as Python would run it."""
        scope = Scope(self.modules.script, {"__name__": "__main__", "__file__": str(self.modules.script.path)})
        self.scopes[self.modules.script.path] = scope
        self.branch(self.modules.script.tree.body, scope)

    def run_rest(self) -> None:
        """Follow the modules that were imported and not needed yet, then the functions that nothing has called."""
        for scope in list(self.scopes.values()):
            for value in list(scope.names.values()):
                if isinstance(value, Deferred) and (found := self.modules.parse(value.path)) and not found.is_foreign:
                    self.scope_of(found)
        for scope in list(self.scopes.values()):
            if not scope.module.is_foreign:
                for value in list(scope.names.values()):
                    if isinstance(value, Function) and value.node not in self.entered and mentions_parser(value.node):
                        self.call_function(value, Call(NO_CALL, scope, [], {}, is_whole=False))

    # --- statements -----------------------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        """Follow statements in order."""
        for statement in statements:
            self.statement(statement, scope)

    def statement(self, node: ast.stmt, scope: Scope) -> None:
        """Follow one statement."""
        self.step()
        match node:
            case ast.Expr(value=value):
                self.value(value, scope)
            case ast.Assign(targets=targets, value=value):
                result = self.value(value, scope)
                for target in targets:
                    self.assign(target, result, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.value(value, scope), scope)
            case ast.AugAssign(target=target, op=op, value=value):
                left, right = self.value(target, scope), self.value(value, scope)
                self.assign(target, folding.binary(op, left, right, Unknown(node, scope)), scope)
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
                    self.branch(body, scope)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.value(item.context_expr, scope)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, value, scope)
                self.block(node.body, scope)
            case ast.Try():
                self._try(node, scope)
            case ast.Return(value=returned):
                raise Returned(None if returned is None else self.value(returned, scope))
            case ast.Break() | ast.Continue():
                raise LoopControl(ends=isinstance(node, ast.Break))
            case ast.Raise():
                raise Raised
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        scope.names.pop(target.id, None)
            case ast.Match(cases=cases):
                for case in cases:
                    with self._unsure(self.conditions, scope.module.where(node)):
                        self.branch(case.body, scope)

    @contextmanager
    def _unsure(self, where: list[str], text: str) -> Iterator[None]:
        where.append(text)
        try:
            yield
        finally:
            where.pop()

    def branch(self, statements: Iterable[ast.stmt], scope: Scope) -> Returned | None:
        """Follow statements that may not be executed; return what they end with."""
        try:
            self.block(statements, scope)
        except Returned as returned:
            return returned
        except (LoopControl, Raised):
            return Returned(Unknown())
        return None

    def _if(self, node: ast.If, scope: Scope) -> None:
        test = folding.truth(self.value(node.test, scope))
        if test is not None:
            self.block(node.body if test else node.orelse, scope)
            return
        before = {name: value for name, value in scope.names.items() if is_literal(value)}
        with self._unsure(self.conditions, ast.unparse(node.test)):
            first = self.branch(node.body, scope)
            middle = {name: scope.names[name] for name in scope.names if is_literal(scope.names[name])}
            second = self.branch(node.orelse, scope)
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
        if items is None or len(items) > MOST_ROUNDS:
            self.assign(node.target, Unknown(node.target, scope), scope)
            with self._unsure(self.loops, scope.module.where(node)):
                self.branch(node.body, scope)
        else:
            for item in items:
                self.assign(node.target, item, scope)
                try:
                    self.block(node.body, scope)
                except LoopControl as control:
                    if control.ends:
                        break
        self.block(node.orelse, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        try:
            self.block(node.body, scope)
        except Raised:
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

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind a value to a name, an attribute or an element."""
        match target:
            case ast.Name(id=name):
                scope.names[name] = value
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                items = self.items(value)
                known = items is not None and len(items) == len(elements)
                for number, element in enumerate(elements):
                    self.assign(element, items[number] if known and items else Unknown(element, scope), scope)
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
            body.pending = bindings(node.body)
        else:
            self.branch(node.body, body)
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

    # --- calls ----------------------------------------------------------------------------------------

    def called(self, node: ast.Call, scope: Scope) -> Any:
        """Return the value of a call."""
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
        return Super(current.owner, current.receiver)

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

    def call_function(self, function: Function, call: Call) -> Any:
        """Follow the statements of a function."""
        node = function.node
        if function.library:
            self.calls.call_external(function.library, call)
        if len(self.stack) >= _DEEPEST_CALL or self.stack.count(node) > 1:
            return Unknown(call.node, call.scope)
        scope = Scope(function.scope.module, parent=function.scope, owner=function.owner, receiver=function.receiver)
        if isinstance(function.scope.owner, Class):  # a class body is no scope for its methods
            scope.parent = function.scope.parent
        self._bind(node.args, function, call, scope)
        self.stack.append(node)
        self.entered.add(node)
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, scope)
            self.block(node.body, scope)
        except Returned as returned:
            maybe = scope.names.get(_MAYBE)
            is_known = returned.value is not None and not isinstance(returned.value, Unknown)
            return returned.value if is_known or maybe is None else maybe
        except (LoopControl, Raised):
            return Unknown(call.node, call.scope)
        finally:
            self.stack.pop()
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


_MAYBE = "(returned in a branch)"
_PARSER_WORDS = ("ArgumentParser", "parse_args", "parse_known_args", "add_argument", "parse_args_into_dataclasses")


def mentions_parser(node: ast.AST) -> bool:
    """Whether a function names a parser or one of its methods."""
    return any(getattr(inner, "attr", getattr(inner, "id", "")) in _PARSER_WORDS for inner in ast.walk(node))
