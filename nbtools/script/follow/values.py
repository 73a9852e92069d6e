"""Values of a script's expressions, derived from its source: a literal, a part of it, or unknown."""

import ast
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtools.script.follow.modules import SourceModule

Literal = None | bool | int | float | str | bytes | complex
LITERALS = (type(None), bool, int, float, str, bytes, complex)
MAYBE = "(returned in branches)"
"""Name in a scope for the values that some branches return."""


@dataclass(eq=False)
class Scope:
    """Names of a module, a class body or a call."""

    module: SourceModule
    names: dict[str, Any] = field(default_factory=dict)
    parent: "Scope | None" = None
    owner: "Class | None" = None
    """The class whose method this is, for `super()`."""
    receiver: Any = None
    shared: set[str] = field(default_factory=set)
    """Names of the module that a `global` statement lets a function change."""
    pending: dict[str, list[ast.stmt]] = field(default_factory=dict)
    """Statements of an installed module that bind names, executed when one is needed."""

    @property
    def is_class_body(self) -> bool:
        """Whether these are the names of a class."""
        return self.owner is not None and self is self.owner.body


@dataclass(frozen=True)
class Unknown:
    """A value that is known only at run time."""

    node: ast.AST | None = None
    scope: Scope | None = None

    @property
    def text(self) -> str:
        """Source text of the expression."""
        return ast.unparse(self.node) if self.node is not None else ""


@dataclass(frozen=True)
class External:
    """Something of a package that is not in the repository, or of Python itself: `argparse.ArgumentParser`, `int`."""

    path: str


@dataclass(frozen=True)
class Deferred:
    """A name that an import binds; its module is parsed when the name is needed."""

    path: Path
    name: str | None
    external: str


@dataclass(frozen=True)
class Module:
    """A module of the repository."""

    scope: Scope
    name: str


@dataclass(frozen=True)
class Function:
    """A function or a method of the source."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    owner: "Class | None" = None
    receiver: Any = None
    kind: str = ""
    """`property`, `staticmethod`, `classmethod` or nothing."""
    library: str = ""
    """The parsing library that a decorator belongs to."""


@dataclass(eq=False)
class Class:
    """A class of the source."""

    node: ast.ClassDef
    scope: Scope
    bases: tuple[Any, ...]
    body: Scope

    @property
    def ancestors(self) -> "list[Class]":
        """The class and its bases in the source, in the order in which names are looked up."""
        found = [self]
        for base in self.bases:
            if isinstance(base, Class):
                found += [cls for cls in base.ancestors if cls not in found]
        return found

    @property
    def missing_bases(self) -> list[External]:
        """Bases outside of the source, except `object` and the like."""
        bases = [base for cls in self.ancestors for base in cls.bases if isinstance(base, External)]
        return [base for base in bases if base.path.split(".")[0] not in sys.stdlib_module_names and "." in base.path]

    def derives_from(self, *names: str) -> bool:
        """Whether one of its bases outside of the repository has one of these last names."""
        return any(
            isinstance(base, External) and base.path.rpartition(".")[2] in names
            for cls in self.ancestors
            for base in cls.bases
        )

    @property
    def is_enum(self) -> bool:
        """Whether it is an enumeration."""
        return self.derives_from("Enum", "IntEnum", "StrEnum", "Flag")


@dataclass(eq=False)
class Instance:
    """An object of a class of the source."""

    cls: Class
    attributes: dict[str, Any] = field(default_factory=dict)


class Tree(dict[Any, Any]):
    """A config whose keys are attributes too, as a `CfgNode` of yacs."""

    def __init__(self, content: dict[Any, Any], place: str) -> None:
        super().__init__({key: Tree(value, place) if type(value) is dict else value for key, value in content.items()})
        self.places: dict[Any, str] = dict.fromkeys(self, place)
        """File and line of each key."""


@dataclass(frozen=True)
class EnumMember:
    """A member of an enumeration."""

    cls: Class
    name: str
    value: Any

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Method:
    """A method of a parser or of a literal, to be called."""

    receiver: Any
    name: str


@dataclass(frozen=True)
class File:
    """An opened file."""

    path: str


class FileText(str):
    """The text of an opened file, which a program reads; its path is the value."""


@dataclass
class Namespace:
    """The values that a parser returned: defaults, which the command line may change."""

    parser: Any


def is_literal(value: Any) -> bool:
    """Whether a value is known and made of literals alone."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_literal, value))
    if isinstance(value, dict):
        return all(is_literal(key) and is_literal(item) for key, item in value.items())
    return isinstance(value, LITERALS)


def deep_copied(value: Any) -> Any:
    """Return a deep copy of an object, a list or a dict; anything else itself."""
    match value:
        case Instance(cls, attributes):
            return Instance(cls, {name: deep_copied(item) for name, item in attributes.items()})
        case list():
            return [deep_copied(item) for item in value]
        case dict() if type(value) is dict:
            return {key: deep_copied(item) for key, item in value.items()}
    return value
