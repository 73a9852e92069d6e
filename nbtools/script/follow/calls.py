"""Calls that a script makes: their arguments, and the interface of classes that interpret them."""

import ast
from dataclasses import dataclass
from typing import Any, Protocol

from nbtools.script.follow.values import Class, Scope


class ParserReached(Exception):
    """Control flow of a parsed command line: later statements do not change the arguments."""


class TooLong(Exception):
    """The script takes more steps than are followed."""


class Returned(Exception):
    """Control flow of a `return`."""

    def __init__(self, value: Any) -> None:
        self.value = value


class LoopControl(Exception):
    """Control flow of a `break` or a `continue`."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends


class Raised(Exception):
    """The script raises an exception."""


class Calls(Protocol):
    """Effects of calls to code outside of the source."""

    def call_external(self, path: str, call: "Call") -> Any:
        """Return the value of a call of something outside of the source."""

    def call_method(self, receiver: Any, name: str, call: "Call") -> Any:
        """Return the value of a call of a parser's method."""

    def instance_of(self, cls: Class, call: "Call") -> Any:
        """Return an object of a class whose base is outside of the source; None if it is a plain one."""

    def library_of(self, decorator: Any) -> str:
        """Return the parsing library that a decorator belongs to; empty for none."""

    def attribute(self, receiver: Any, name: str) -> Any:
        """Return an attribute of a parser; None if it has none of this name."""


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
        """Whether all arguments of the call are listed: no `*` or `**` of an unknown value."""

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by its position or its name."""
        return self.args[position] if position < len(self.args) else self.keywords.get(name, default)

    @property
    def where(self) -> str:
        """The file and line of the call."""
        return self.scope.module.where(self.node)


@dataclass(frozen=True)
class Super:
    """The result of `super()`."""

    cls: Class
    receiver: Any


NO_CALL = ast.Call(ast.Name("unknown"), [], [], lineno=1)
"""Stands for a call that is not in the source."""
