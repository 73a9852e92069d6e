"""Calls that a script makes: their arguments, and the interface of what gives them a meaning."""

import ast
from dataclasses import dataclass
from typing import Any

from nbtools.script.follow.values import Class, Scope


class ParserReached(Exception):
    """The command line is parsed here: what follows does not change the arguments."""


class TooLong(Exception):
    """The script takes more steps than are followed."""


class Returned(Exception):
    """A function returns."""

    def __init__(self, value: Any) -> None:
        self.value = value


class LoopControl(Exception):
    """A `break` or a `continue`."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends


class Raised(Exception):
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


@dataclass(frozen=True)
class Super:
    """What `super()` returns."""

    cls: Class
    receiver: Any


NO_CALL = ast.Call(ast.Name("unknown"), [], [], lineno=1)
"""Stands for a call that is not in the source."""
