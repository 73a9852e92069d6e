"""Expressions of a script: what each stands for, as far as its source tells."""

import ast
import builtins
from typing import Any

from nbtools.script.follow import folding
from nbtools.script.follow.calls import NO_CALL, Call, Super
from nbtools.script.follow.names import Names
from nbtools.script.follow.values import (
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

MOST_ROUNDS = 500
"""Rounds of a loop over literals that are followed."""


class Expressions(Names):
    """Evaluates expressions; the second of the three parts of `Follower`."""

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind a value to a name, an attribute or an element."""
        raise NotImplementedError

    def called(self, node: ast.Call, scope: Scope) -> Any:
        """Return the value of a call."""
        raise NotImplementedError

    def call_function(self, function: Function, call: Call) -> Any:
        """Follow the statements of a function."""
        raise NotImplementedError

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Return what an expression stands for."""
        self.step()
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(name, scope, node)
            case ast.Attribute(value=owner, attr=name):
                return self.attribute(self.value(owner, scope), name, node, scope)
            case ast.Call():
                return self.called(node, scope)
            case ast.NamedExpr(target=target, value=value):
                result = self.value(value, scope)
                self.assign(target, result, scope)
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
            if (found := self.in_scope(current, name)) is not None:
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
                found = self.member(module_scope, name, f"{module_name}.{name}")
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
            case Super(cls, instance):
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
        """Return an attribute of a class in a tuple, bound to an object if it is a method; None if it has none."""
        for owner in cls.ancestors:
            found = self.in_scope(owner.body, name)
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
            if items is None or len(items) > MOST_ROUNDS:
                return False
            for item in items:
                self.assign(generator.target, item, inner)
                tests = [folding.truth(self.value(test, inner)) for test in generator.ifs]
                if None in tests or (all(tests) and not rounds(number + 1)):
                    return False
            return True

        try:
            is_known = rounds(0)
        except TypeError:  # a key that cannot be one
            is_known = False
        return Unknown(node, scope) if not is_known else pairs if isinstance(node, ast.DictComp) else found
