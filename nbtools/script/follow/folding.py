"""Operators and methods of literals: what simple expressions in a script evaluate to, within bounds."""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbtools.script.follow.values import (
    Class,
    EnumMember,
    External,
    Function,
    Instance,
    Module,
    Namespace,
    Unknown,
    is_literal,
)

_LONGEST = 10_000
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: lambda left, right: left is right,
    ast.IsNot: lambda left, right: left is not right,
}
_METHODS: dict[Any, str] = {
    str: "capitalize endswith format join lower lstrip partition removeprefix removesuffix replace rpartition rsplit "
    "rstrip split splitlines startswith strip title upper zfill",
    dict: "copy get items keys values",
    list: "copy count index",
    tuple: "count index",
    set: "copy union",
}
_CHANGING: dict[Any, str] = {list: "append extend insert remove", dict: "update pop setdefault", set: "add update"}
_WIDE = re.compile(r"\d{4}|\*")
"""Widths in a format that would make long texts."""
_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


def truth(value: Any) -> bool | None:
    """Return whether a value counts as true; None if that is not known."""
    if isinstance(value, Unknown | External | Namespace | Module):
        return None
    if isinstance(value, Function | Class | Instance | EnumMember):
        return True
    return bool(value) if isinstance(value, list | dict | tuple | set) or is_literal(value) else True


def same(first: Any, second: Any) -> bool:
    """Whether two literals are equal and of one type."""
    return type(first) is type(second) and bool(first == second)


def binary(op: ast.operator, left: Any, right: Any, unknown: Unknown) -> Any:
    """Return the result of a binary operator."""
    function = _BINARY.get(type(op))
    joins_lists = isinstance(left, list | tuple) and isinstance(right, list | tuple) and isinstance(op, ast.Add)
    if function is None or not (joins_lists or (is_literal(left) and is_literal(right))):
        return unknown
    is_number = _number(left, right)
    grows = _size(left) + _size(right) > _LONGEST or (isinstance(op, ast.Mult) and _product(left, right) > _LONGEST)
    explodes = is_number and isinstance(op, ast.Pow | ast.LShift) and (abs(right) > 64 or abs(left) > 1e9)
    is_wide = isinstance(left, str) and isinstance(op, ast.Mod) and _WIDE.search(left)
    if explodes or is_wide or (grows and not is_number):
        return unknown
    try:
        return function(left, right)
    except _ERRORS:
        return unknown


def _size(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


def _product(left: Any, right: Any) -> int:
    """Return the length of what multiplying a text or a list gives."""
    return _size(left) * right if isinstance(right, int) else _size(right) * left if isinstance(left, int) else 0


def _number(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


def unary(op: ast.unaryop, value: Any, unknown: Unknown) -> Any:
    """Return the result of a unary operator."""
    if isinstance(op, ast.Not):
        test = truth(value)
        return unknown if test is None else not test
    function = _UNARY.get(type(op))
    return function(value) if function is not None and isinstance(value, int | float) else unknown


def comparison(op: ast.cmpop, left: Any, right: Any, unknown: Unknown) -> Any:
    """Return the result of a comparison."""
    if isinstance(op, ast.Is | ast.IsNot) and right is None and not isinstance(left, Unknown | External):
        return (left is None) is isinstance(op, ast.Is)
    if not (is_literal(left) and is_literal(right)):
        return unknown
    try:
        return bool(_COMPARE[type(op)](left, right))
    except _ERRORS:
        return unknown


def subscript(value: Any, index: Any, unknown: Unknown) -> Any:
    """Return an element of a literal."""
    if not isinstance(value, str | list | tuple | dict) or not (isinstance(index, slice) or is_literal(index)):
        return unknown
    try:
        return value[index]
    except _ERRORS:
        return unknown


def method(value: Any, name: str, args: Sequence[Any], keywords: Mapping[str, Any], unknown: Unknown) -> Any:
    """Return the result of a method of a literal; methods that change a list or a dict do so."""
    kind = next((kind for kind in _METHODS if isinstance(value, kind)), None)
    changes = name in _CHANGING.get(kind, "").split()
    if name not in _METHODS.get(kind, "").split() and not changes:
        return unknown
    if kind is str and (
        not is_literal(list(args)) or not is_literal(dict(keywords)) or (name == "format" and _WIDE.search(value))
    ):
        return unknown
    if any(isinstance(argument, Unknown) for argument in args) and not (changes and name == "append"):
        return unknown
    sizes = [_size(value), *(item if isinstance(item, int) else _size(item) for item in args)]
    if max(sizes) > _LONGEST or (kind is str and sum(sizes) > _LONGEST):
        return unknown
    try:
        result = getattr(value, name)(*args, **keywords)
    except _ERRORS:
        return unknown
    return list(result) if name in ("keys", "values", "items") and kind is dict else result


def iterated(name: str, lists: Sequence[list[Any]], keywords: Mapping[str, Any], unknown: Unknown) -> Any:
    """Return the result of a built-in function of iterables."""
    if name in ("zip", "enumerate"):
        return list(zip(*lists, strict=False)) if name == "zip" else list(enumerate(lists[0]))
    items = list(lists[0]) if lists else []
    if name == "reversed":
        return items[::-1]
    if name == "tuple":
        return tuple(items)
    if name == "set":
        return list(dict.fromkeys(items)) if is_literal(items) else items
    if name == "sorted":
        if keywords or not is_literal(items):
            return unknown
        try:
            return sorted(items)
        except TypeError:
            return unknown
    return items


def function(path: str, args: Sequence[Any], unknown: Unknown) -> Any:
    """Return the result of a built-in function of literals."""
    functions: dict[str, Callable[..., Any]] = {
        "str": str,
        "int": int,
        "float": float,
        "bool": bool,
        "len": len,
        "abs": abs,
        "min": min,
        "max": max,
        "dict": dict,
        "round": round,
        "sum": sum,
        "repr": repr,
    }
    paths = ("pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath")
    try:
        if path in functions and all(isinstance(item, dict) or is_literal(item) for item in args):
            return functions[path](*args)
        if path in paths and len(args) == 1 and isinstance(args[0], str):
            return args[0]
        if path == "range" and all(isinstance(item, int) for item in args) and len(range(*args)) <= _LONGEST:
            return list(range(*args))
    except _ERRORS:
        pass
    return unknown
