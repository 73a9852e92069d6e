"""The values of a script's expressions and calls, by the names that its statements have bound so far."""

import ast
import builtins
from collections.abc import Sequence
from typing import Any

from nbtools.script.follow import folding
from nbtools.script.follow.calls import NO_CALL, Call, LoopControl, Raised, Returned, Super
from nbtools.script.follow.module_names import ModuleNames
from nbtools.script.follow.modules import SourceModule
from nbtools.script.follow.values import (
    MAYBE,
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
    Tree,
    Unknown,
    is_literal,
)

MOST_ROUNDS = 500
"""Rounds of a loop over literals that are followed."""
_DEEPEST_CALL = 24
_ITERATING = ("list", "tuple", "sorted", "set", "frozenset", "reversed", "enumerate", "zip", "map", "iter")


class Expressions(ModuleNames):
    """Evaluates expressions, assigns to their targets, and follows the functions that they call."""

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
                return self._called(node, scope)
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
                found, is_whole = self._elements(elements, scope)
                return Unknown(node, scope) if not is_whole else tuple(found) if isinstance(node, ast.Tuple) else found
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
                return folding.CONSTANTS.get(f"{path}.{name}", External(f"{path}.{name}"))
            case str() if name in folding.PATH_PARTS:
                return folding.path_method(receiver, name, (), unknown)
            case Module(module_scope, module_name):
                found = self._member(module_scope, name, f"{module_name}.{name}")
                return unknown if isinstance(found, Unknown) and found.node is None else found
            case Instance(cls, attributes):
                bases = [base for owner in cls.ancestors for base in owner.bases]
                is_whole = all(isinstance(base, Class) or base == External("object") for base in bases)
                if name == "__dict__" and is_whole and self.class_attribute(cls, "__init__", receiver):
                    return attributes
                if name in attributes:
                    return self._filled(name, attributes[name])
                found = self.class_attribute(cls, name, receiver)
                return unknown if found is None else found[0]
            case Class():
                if name in ("__name__", "__qualname__"):
                    return receiver.node.name
                if receiver.is_enum:
                    members = {member.name: member for member in self.members(receiver)}
                    if name == "__members__" or name in members:
                        return members.get(name, members)
                found = self.class_attribute(receiver, name, None)
                return unknown if found is None else found[0]
            case Tree() if name in receiver:
                return receiver[name]
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
                    if ast.unparse(statement.value).endswith("auto()"):
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

    def _elements(self, nodes: Sequence[ast.expr], scope: Scope) -> tuple[list[Any], bool]:
        """Return the values of expressions, and whether what each starred one stands for is known."""
        found: list[Any] = []
        is_whole = True
        for node in nodes:
            value = self.value(node, scope)
            items = self.items(value) if isinstance(node, ast.Starred) else [value]
            is_whole = is_whole and items is not None
            found += items or ()
        return found, is_whole

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
            value = self.value(part.value if isinstance(part, ast.FormattedValue) else part, scope)
            spec = getattr(part, "format_spec", None)
            text = folding.formatted(value, getattr(part, "conversion", -1), self.value(spec, scope) if spec else "")
            if text is None:
                return Unknown(node, scope)
            texts.append(text)
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

    def _called(self, node: ast.Call, scope: Scope) -> Any:
        """Return the value of a call."""
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return self._super(node, scope)
        function = self.value(node.func, scope)
        args, is_whole = self._elements(node.args, scope)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict):
                keywords.update({key: item for key, item in value.items() if isinstance(key, str)})
                is_whole = is_whole and len(value) == sum(isinstance(key, str) for key in value)
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
            case External("vars") if call.args and isinstance(call.args[0], Instance):
                return self.attribute(call.args[0], "__dict__", call.node, call.scope)
            case External("setattr") if len(call.args) == 3 and isinstance(call.args[0], Instance):
                self._put(call.args[0].attributes, call.args[1], call.args[2], call.scope, call.node)
                return None
            case External("setattr") if len(call.args) == 3 and hasattr(call.args[0], "attributes"):
                self._change(call.args[0].attributes, str(call.args[1]), call.args[2], call.scope)
                return None
            case External("getattr") if len(call.args) >= 2 and isinstance(call.args[1], str):
                return self.attribute(call.args[0], call.args[1], call.node, call.scope)
            case External(name) if name in _ITERATING:
                return self._iterated(name, call)
            case External("importlib.import_module" | "__import__"):
                name = call.argument(0, "name")
                path = self.modules.find(name, call.scope.module) if isinstance(name, str) else None
                self._imports_unknown = self._imports_unknown or not isinstance(name, str) or name.startswith(".")
                return Unknown(call.node, call.scope) if path is None else self.force(Deferred(path, None, str(name)))
            case External(path):
                return self.calls.call_external(path, call)
            case Method(Tree() as receiver, name) if name not in ("get", "items", "keys", "update", "values"):
                return self.calls.call_method(receiver, name, call)
            case Method(receiver, name) if isinstance(receiver, str | list | tuple | dict | set | int | float):
                unknown = Unknown(call.node, call.scope)
                is_unsure = bool(self.conditions or self.loops)
                return folding.method(receiver, name, call.args, call.keywords, unknown, is_unsure=is_unsure)
            case Method(receiver, name):
                return self.calls.call_method(receiver, name, call)
        return self.calls.call_external("", call)

    def _iterated(self, name: str, call: Call) -> Any:
        first = call.argument(1, "start", 0) if name == "enumerate" else 0
        lists = [self.items(argument) for argument in call.args[: 1 if name == "enumerate" else None]]
        if name == "map" and len(call.args) == 2 and lists[1] is not None:
            return [
                self.call(call.args[0], Call(call.node, call.scope, [item], {}, is_whole=True)) for item in lists[1]
            ]
        if name == "map" or any(items is None for items in lists) or not call.is_whole:
            return Unknown(call.node, call.scope)
        known = [items for items in lists if items is not None]
        if name == "enumerate":
            return list(enumerate(known[0], first)) if isinstance(first, int) else Unknown(call.node, call.scope)
        return folding.iterated(name, known, call.keywords, Unknown(call.node, call.scope))

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
            fields = (
                n.target for each in reversed(cls.ancestors) for n in each.node.body if isinstance(n, ast.AnnAssign)
            )
            names = dict.fromkeys(target.id for target in fields if isinstance(target, ast.Name))
            instance.attributes.update(zip(names, call.args, strict=False), **call.keywords)
        return instance

    def call_function(self, function: Function, call: Call) -> Any:
        """Follow the statements of a function."""
        node = function.node
        if function.library:
            self.calls.call_external(function.library, call)
        if len(self.stack) >= _DEEPEST_CALL or self.stack.count(node) > 1:
            return Unknown(call.node, call.scope)
        scope = Scope(function.scope.module, parent=function.scope, owner=function.owner, receiver=function.receiver)
        if function.scope.is_class_body:  # which is no scope for its methods
            scope.parent = function.scope.parent
        self._bind(node.args, function, call, scope)
        self.stack.append(node)
        self.entered.add(node)
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, scope)
            self.block(node.body, scope)
        except Returned as returned:
            return _result([*scope.names.get(MAYBE, ()), returned.value], call)
        except (LoopControl, Raised):
            return Unknown(call.node, call.scope)
        finally:
            self.stack.pop()
        return _result([*scope.names.get(MAYBE, ()), None], call)

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

    # --- assignment, and the source of installed packages ---------------------------------------------

    def _assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind a value to a name, an attribute or an element."""
        match target:
            case ast.Name(id=name) if name in scope.shared:
                self._change(self.scope_of(scope.module).names, name, value, scope)
            case ast.Name(id=name):
                scope.names[name] = value
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                items = self.items(value)
                known = items is not None and len(items) == len(elements)
                for number, element in enumerate(elements):
                    self._assign(element, items[number] if known and items else Unknown(element, scope), scope)
            case ast.Attribute(value=owner, attr=name):
                receiver = self.value(owner, scope)
                if isinstance(receiver, Class):
                    self._change(receiver.body.names, name, value, scope)
                elif isinstance(receiver, Instance | Tree):
                    values = receiver if isinstance(receiver, Tree) else receiver.attributes
                    self._put(values, name, value, scope, target)
                elif hasattr(receiver, "attributes"):
                    self._change(receiver.attributes, name, value, scope)
            case ast.Subscript(value=owner, slice=index):
                receiver, key = self.value(owner, scope), self.value(index, scope)
                if isinstance(receiver, dict):
                    self._put(receiver, key, value, scope, index)

    def _put(self, values: dict[Any, Any], key: Any, value: Any, scope: Scope, node: ast.AST) -> None:
        """Set a key of a dict, or an attribute of an object."""
        is_known = is_literal(key) and isinstance(key, int | str)
        if not is_known or (key not in values and (self.conditions or self.loops)):
            values[Unknown(node, scope)] = value  # a key that there may be
        if is_known:
            self._change(values, key, value, scope)
        if isinstance(values, Tree):
            values.places[key] = scope.module.where(node)

    def _change(self, values: dict[Any, Any], key: Any, value: Any, scope: Scope) -> None:
        """Set a value; where that may not be executed, one that differs from the earlier value becomes unknown."""
        old = values.get(key, value)
        is_unsure = bool(self.conditions or self.loops) and is_literal([old, value]) and not folding.same(old, value)
        values[key] = Unknown(ast.Name(str(key)), scope) if is_unsure else value

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


def _result(values: Sequence[Any], call: Call) -> Any:
    """Return what a function returns, of the values that its branches return, the last one first; different literals
    make it unknown."""
    known = [value for value in values if value is not None and not isinstance(value, Unknown)]
    if len(values) > 1 and all(map(is_literal, known)) and not all(folding.same(values[0], each) for each in values):
        return Unknown(call.node, call.scope)
    return values[-1] if values[-1] in known[-1:] or not known else known[0]
