"""Operators and methods of literals: what simple expressions in a script evaluate to, within bounds."""

import ast
import builtins
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import PurePath
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
    ast.LShift: operator.lshift,
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
    str: "capitalize casefold count endswith find format isdigit join lower lstrip partition removeprefix removesuffix "
    "replace rpartition rsplit rstrip split splitlines startswith strip title upper zfill",
    dict: "copy get items keys values",
    list: "copy count index",
    tuple: "count index",
    set: "copy union",
}
_CHANGING: dict[Any, str] = {list: "append extend insert remove", dict: "update pop setdefault", set: "add update"}
PATH_PARTS = ("name", "parent", "stem", "suffix")
_PATH_METHODS = ("absolute", "as_posix", "expanduser", "joinpath", "resolve", "with_name", "with_stem", "with_suffix")
"""Methods that texts lack: a text that has one of them, or one of `PATH_PARTS`, is a path."""
CONSTANTS: dict[str, Any] = {
    "math.e": math.e, "math.inf": math.inf, "math.pi": math.pi, "math.tau": math.tau, "os.curdir": ".",
    "os.path.sep": "/", "os.sep": "/", "sys.maxsize": sys.maxsize,
}  # fmt: skip


def _absolute(path: str) -> str:
    """Return an absolute path; ValueError if it depends on the working or the home directory."""
    if not path.startswith("/"):
        raise ValueError
    return os.path.normpath(path)


def _round(number: Any, ndigits: int | None = None) -> Any:
    """Round a number; ValueError for digits that would take a power of ten of any size."""
    if ndigits is not None and abs(ndigits) > 64:
        raise ValueError
    return round(number, ndigits)


def _path(*parts: str) -> str:
    return str(PurePath(*parts))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (abs, all, any, bool, chr, float, hex, int, len, max, min, ord)},
    **{each.__name__: each for each in (repr, str, sum)},
    **{f"math.{each.__name__}": each for each in (math.ceil, math.exp, math.floor, math.gcd, math.log, math.log2)},
    **{f"math.{each.__name__}": each for each in (math.log10, math.prod, math.sqrt)},
    **{f"os.path.{name}": getattr(os.path, name) for name in ("basename", "dirname", "join", "normpath", "splitext")},
    **{f"pathlib.{name}": _path for name in ("Path", "PosixPath", "PurePath", "PurePosixPath")},
    "itertools.chain": lambda *parts: list(chain(*parts)),
    "os.fspath": str,
    "round": _round,
    "os.path.abspath": _absolute,
    "os.path.realpath": lambda path: os.path.realpath(_absolute(path)),
}
"""Functions whose result depends on their arguments alone (and on links, for `realpath`), cheap for short ones."""
_CONVERSIONS: dict[int, Callable[[Any], str]] = {97: ascii, 114: repr, 115: str}
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
    function = _BINARY.get(type(op))
    if isinstance(op, ast.Div) and isinstance(left, str) and isinstance(right, str):
        function = _path
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
    if isinstance(op, ast.Is | ast.IsNot) and right is None and not isinstance(left, Unknown | External):
        return (left is None) is isinstance(op, ast.Is)
    if isinstance(left, External) and isinstance(right, External) and hasattr(builtins, left.path):
        left, right = left.path, right.path  # types
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


def method(
    value: Any,
    name: str,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    unknown: Unknown,
    *,
    is_unsure: bool = False,
) -> Any:
    """Return the result of a method of a literal; methods that change a list or a dict do so, if they are executed."""
    kind = next((kind for kind in _METHODS if isinstance(value, kind)), None)
    if kind is str and name in _PATH_METHODS:
        return path_method(value, name, args, unknown)
    changes = name in _CHANGING.get(kind, "").split()
    if changes and is_unsure:
        return _spoiled(value, unknown)
    if name not in _METHODS.get(kind, "").split() and not changes:
        return _spoiled(value, unknown) if isinstance(value, list) and name in ("clear", "pop", "sort") else unknown
    if kind is str and (
        not is_literal(list(args)) or not is_literal(dict(keywords)) or (name == "format" and _WIDE.search(value))
    ):
        return unknown
    if name == "get" and args and args[0] not in value and any(isinstance(key, Unknown) for key in value):
        return unknown
    if any(isinstance(argument, Unknown | External) for argument in args) and not (changes and name == "append"):
        return _spoiled(value, unknown) if changes else unknown
    sizes = [_size(value), *(item if isinstance(item, int) else _size(item) for item in args)]
    if max(sizes) > _LONGEST or (kind is str and sum(sizes) > _LONGEST):
        return unknown
    try:
        result = getattr(value, name)(*args, **keywords)
    except _ERRORS:
        return unknown
    return list(result) if name in ("keys", "values", "items") and kind is dict else result


def formatted(value: Any, conversion: int, spec: Any) -> str | None:
    """Return a literal as an f-string shows it; None if that is not known."""
    if not is_literal(value) or not isinstance(spec, str) or _WIDE.search(spec):
        return None
    try:
        return format(_CONVERSIONS[conversion](value) if conversion in _CONVERSIONS else value, spec)
    except _ERRORS:
        return None


def _spoiled(value: Any, unknown: Unknown) -> Unknown:
    """Make the content of a list, a set or a dict unknown, after a change that is not known."""
    if isinstance(value, dict):
        value.update(dict.fromkeys((*value, Unknown(unknown.node)), unknown))
    elif isinstance(value, list):
        value.append(unknown)
    return unknown


def iterated(name: str, lists: Sequence[list[Any]], keywords: Mapping[str, Any], unknown: Unknown) -> Any:
    """Return the result of a built-in function of iterables."""
    if name == "zip":
        return list(zip(*lists, strict=False))
    items = list(lists[0]) if lists else []
    if name == "reversed":
        return items[::-1]
    if name == "tuple":
        return tuple(items)
    if name in ("set", "frozenset"):
        return list(dict.fromkeys(items)) if is_literal(items) else items
    if name == "sorted":
        if keywords or not is_literal(items):
            return unknown
        try:
            return sorted(items)
        except TypeError:
            return unknown
    return items


def path_method(value: str, name: str, args: Sequence[Any], unknown: Unknown) -> Any:
    """Return the result of a method of a path, or of an attribute that is a part of it."""
    try:
        if name in ("absolute", "expanduser", "resolve"):
            return os.path.realpath(_absolute(value)) if name == "resolve" else _absolute(value)
        found = getattr(PurePath(value), name)
        return str(found if name in PATH_PARTS else found(*args))
    except _ERRORS:
        return unknown


def _type(unknown: Unknown, value: Any, kinds: Any = None) -> Any:
    """Return the type of a literal, or whether it is of one of the built-in types; a list may stand for a set."""
    if not is_literal(value) or isinstance(value, list):
        return unknown
    if kinds is None:
        return External(type(value).__name__) if value is not None else unknown
    asked = kinds if isinstance(kinds, tuple) else (kinds,)
    found = [getattr(builtins, kind.path, None) for kind in asked if isinstance(kind, External)]
    known = tuple(kind for kind in found if isinstance(kind, type))
    return isinstance(value, known) if len(known) == len(asked) else unknown


def function(path: str, args: Sequence[Any], keywords: Mapping[str, Any], unknown: Unknown) -> Any:
    """Return the result of a function of literals."""
    given = [*args, *keywords.values()]
    owner, _, name = path.partition(".")
    try:
        if path in _FUNCTIONS and all(isinstance(item, dict) or is_literal(item) for item in given):
            return _FUNCTIONS[path](*args, **keywords)
        if path in ("isinstance", "type"):
            return _type(unknown, *args)
        if owner == "str" and args and isinstance(args[0], str):
            return method(args[0], name, args[1:], keywords, unknown)
        if path == "next" and args and isinstance(args[0], list):  # what `iter` and generators give
            return args[0].pop(0) if args[0] else args[1]
        if path == "range" and all(isinstance(item, int) for item in args) and len(range(*args)) <= _LONGEST:
            return list(range(*args))
    except (*_ERRORS, OSError):
        pass
    return unknown


_RESULTS = {
    name: kind
    for kind, names in {
        bool: ("bool", "is_available", "is_bf16_supported", "exists"),
        int: ("int", "len", "cpu_count", "device_count"),
        float: ("float", "time"),
        str: ("str", "join", "getcwd", "strftime", "isoformat", "format", "lower", "gettempdir"),
    }.items()
    for name in names
}
"""Types of what functions and methods return, by their last name."""


def is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def type_of(node: ast.AST | None, named: Callable[[str], type | None]) -> type | None:
    """Return the type of an expression whose value is unknown, by the types of its names; None if it is unknown too."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return type(value)
        case ast.Name(id=name):
            return named(name)
        case ast.JoinedStr():
            return str
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return bool
        case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, *_, second]):
            kinds = {type_of(part, named) for part in (first, second)}
            return kinds.pop() if len(kinds) == 1 else type_of(second, named) if isinstance(node, ast.BoolOp) else None
        case ast.BinOp(left=left, op=op, right=right):
            kinds = {type_of(left, named), type_of(right, named)}
            if str in kinds:
                return str
            return None if None in kinds else float if float in kinds or isinstance(op, ast.Div) else int
        case ast.Call(func=function, args=[_, _]) if ast.unparse(function) in ("os.getenv", "os.environ.get"):
            return str
        case ast.Subscript(value=owner) if ast.unparse(owner) == "os.environ":
            return str
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return bool if "bool" in name.lower() else _RESULTS.get(name)
    return None
