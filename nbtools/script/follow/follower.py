"""Follows a script's statements, from the first one to its parser, on the syntax tree alone: nothing is executed."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nbtools.script.follow import folding
from nbtools.script.follow.calls import NO_CALL, Call, LoopControl, Raised, Returned
from nbtools.script.follow.expressions import MOST_ROUNDS, Expressions
from nbtools.script.follow.modules import MOST_MODULES, bindings
from nbtools.script.follow.values import MAYBE, Class, External, Function, Instance, Scope, Unknown, is_literal


class Follower(Expressions):
    """Follows the statements of a script, of the functions that it calls and of the modules that it imports."""

    def run_script(self) -> None:
        """Follow the script as Python would run it."""
        scope = Scope(self.modules.script, {"__name__": "__main__", "__file__": str(self.modules.script.path)})
        self.scopes[self.modules.script.path] = scope
        self._branch(self.modules.script.tree.body, scope)

    def run_rest(self) -> None:
        """Follow the modules that were imported and not needed yet, then the functions that nothing has called."""
        self.load(MOST_MODULES)
        for scope in list(self.scopes.values()):
            if not scope.module.is_foreign:
                for value in list(scope.names.values()):
                    if isinstance(value, Function) and value.node not in self.entered and mentions_parser(value.node):
                        self.call_function(value, Call(NO_CALL, scope, [], {}, is_whole=False))

    def block(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        """Follow statements in order."""
        for statement in statements:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
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
            case ast.While(body=body, test=test, orelse=orelse):
                self.value(test, scope)
                with self._unsure(self.loops, scope.module.where(node)):
                    self._alternatives([body, orelse], scope)
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
                raise LoopControl(ends=isinstance(node, ast.Break))
            case ast.Raise():
                raise Raised
            case ast.Delete(targets=targets):
                for target in targets:
                    self._delete(target, scope)
            case ast.Global(names=names):
                scope.shared.update(names)
            case ast.Match(cases=cases):
                with self._unsure(self.conditions, scope.module.where(node)):
                    self._alternatives([case.body for case in cases], scope)

    @contextmanager
    def _unsure(self, where: list[str], text: str) -> Iterator[None]:
        where.append(text)
        try:
            yield
        finally:
            where.pop()

    def _if(self, node: ast.If, scope: Scope) -> None:
        test = folding.truth(self.value(node.test, scope))
        if test is not None:
            self.block(node.body if test else node.orelse, scope)
            return
        with self._unsure(self.conditions, ast.unparse(node.test)):
            ends = self._alternatives([node.body, node.orelse], scope)
        # Not those without a value: by an exception, or by the end of a loop's round.
        returned = [end for end in ends if end and not (isinstance(end.value, Unknown) and end.value.node is None)]
        if all(ends):
            known = [end for end in returned if end.value is not None and not isinstance(end.value, Unknown)]
            chosen = (known or returned or ends)[0]
            scope.names.setdefault(MAYBE, []).extend(end.value for end in returned if end is not chosen)
            raise chosen
        scope.names.setdefault(MAYBE, []).extend(end.value for end in returned)

    def _alternatives(self, branches: Sequence[Iterable[ast.stmt]], scope: Scope) -> list[Any]:
        """Follow branches of which one or none is executed; return what they end with.

        A name is unknown afterwards if its literals, functions or classes before and after them differ.
        """
        states, ends = [_literals(scope)], []
        for branch in branches:
            ends.append(self._branch(branch, scope))
            states.append(_literals(scope))
        for name, value in states[-1].items():
            if not all(folding.same(value, state[name]) for state in states if name in state):
                scope.names[name] = Unknown(ast.Name(name), scope)
        return ends

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        items = self.items(self.value(node.iter, scope))
        if items is None or len(items) > MOST_ROUNDS:
            self._assign(node.target, Unknown(node.target, scope), scope)
            with self._unsure(self.loops, scope.module.where(node)):
                self._alternatives([node.body], scope)
        else:
            for item in items:
                self._assign(node.target, item, scope)
                try:
                    self.block(node.body, scope)
                except LoopControl as control:
                    if control.ends:
                        return
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

    def _delete(self, target: ast.expr, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope.names.pop(name, None)
            case ast.Subscript(value=owner) | ast.Attribute(value=owner):
                receiver = self.value(owner, scope)
                values = receiver if isinstance(receiver, dict) else getattr(receiver, "attributes", None)
                key = target.attr if isinstance(target, ast.Attribute) else self.value(target.slice, scope)
                if values is None:
                    return
                if self.conditions or self.loops or not isinstance(key, int | str):
                    values[Unknown(target)] = Unknown(target)  # a key that there may not be
                else:
                    values.pop(key, None)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Function:
        kind = library = ""
        decorators = [self.value(decorator, scope) for decorator in node.decorator_list]
        for value in decorators:
            name = value.path if isinstance(value, External) else ""
            kind = name if name in ("property", "staticmethod", "classmethod") else kind
            library = library or self.calls.library_of(value)
        function = Function(node, scope, kind=kind, library=library)
        self._decorate(function, decorators, scope)
        return function

    def _decorate(self, value: Any, decorators: Sequence[Any], scope: Scope) -> None:
        """Follow decorators, which may enter a class or a function into a registry."""
        for decorator in decorators:
            if isinstance(decorator, Function) and not scope.module.is_foreign:
                self.call_function(decorator, Call(NO_CALL, scope, [value], {}, is_whole=True))

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        decorators = [self.value(decorator, scope) for decorator in node.decorator_list]
        bases = tuple(self.value(base, scope) for base in node.bases)
        body = Scope(scope.module, parent=scope)
        scope.names[node.name] = cls = Class(node, scope, bases, body)
        if scope.module.is_foreign:
            body.pending = bindings(node.body)
        else:
            self._branch(node.body, body)
        body.owner = cls
        self._decorate(cls, decorators, scope)


_PARSER_WORDS = ("ArgumentParser", "parse_args", "parse_known_args", "add_argument", "parse_args_into_dataclasses")


def _literals(scope: Scope) -> dict[str, Any]:
    """Return the names of a scope with what can be compared: literals, imports, and nodes of functions and classes."""
    values = {n: value.cls if isinstance(value, Instance) else value for n, value in scope.names.items() if n != MAYBE}
    names = {name: getattr(value, "node", value) for name, value in values.items()}
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | External
    return {name: value for name, value in names.items() if is_literal(value) or isinstance(value, kinds)}


def mentions_parser(node: ast.AST) -> bool:
    """Whether a function names a parser or one of its methods."""
    return any(getattr(inner, "attr", getattr(inner, "id", "")) in _PARSER_WORDS for inner in ast.walk(node))
