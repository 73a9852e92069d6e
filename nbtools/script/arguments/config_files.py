"""Settings that a script reads from files: YAML, JSON and TOML configs, and constants that a configurator overrides."""

import ast
import contextlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from nbtools.errors import ScriptError
from nbtools.script.arguments.arguments import Argument, made_field
from nbtools.script.follow import folding
from nbtools.script.follow.values import Scope, Unknown
from nbtools.script.source import read_source

_LONGEST_CONFIG = 100_000
_MOST_KEYS = 2000
"""Aliases of YAML multiply the keys of a short file."""


class Config(dict[str, Any]):
    """The content of a config file."""

    path: Path
    lines: dict[str, int]


def load_config(path: Path) -> Config | None:
    """Return the content of a config file whose top is a mapping; None if it is none, or too large for one."""
    try:
        text = read_source(path).decode()
        if len(text) > _LONGEST_CONFIG:
            return None
        if path.suffix == ".toml":
            tree, found = None, tomllib.loads(text)
        else:
            tree, found = _read_json(text) if path.suffix == ".json" else _read_yaml(text)
        if not isinstance(found, dict) or next(islice(_leaves(found), _MOST_KEYS, None), None) is not None:
            return None
    except (ScriptError, ValueError, yaml.YAMLError, RecursionError):
        return None
    config = Config({str(key): value for key, value in found.items()})
    config.path, config.lines = path, dict(islice(_lines(tree), _MOST_KEYS))
    return config


def _read_yaml(text: str) -> tuple[Any, Any]:
    """Return the syntax tree of a text and its value, parsed once: PyYAML needs a second for 150 KB."""
    loader = yaml.SafeLoader(text)
    tree = loader.get_single_node()
    return tree, None if tree is None else loader.construct_document(tree)


def _read_json(text: str) -> tuple[Any, Any]:
    tree = None
    with contextlib.suppress(yaml.YAMLError):  # tabs: the lines of its keys are then not known
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    return tree, json.loads(text)


def _lines(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            yield name, key.start_mark.line + 1
            yield from _lines(value, f"{name}.")


def config_arguments(config: Mapping[str, Any], label: str, lines: Mapping[str, int]) -> list[Argument]:
    """Return an argument `a.b=value` for each key of a config."""
    found = []
    for name, value in _leaves(config):
        line = f":{lines[name]}" if name in lines else ""
        field = made_field(
            name, types=types_of(value), default=value, group=name.rpartition(".")[0], source=label + line
        )
        found.append(as_key(Argument(field)))
    return found


def as_key(argument: Argument) -> Argument:
    """Return an argument that is written `a.b=value`, without dashes."""
    key = (argument.field.name,)
    return replace(argument, flags=key, negative_flags=(), action="key_value", nargs=None, truth=("true", "false"))


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            if all(isinstance(item, bool | int | float | str) for item in value):
                yield f"{prefix}{key}", tuple(value)
        elif not isinstance(value, dict):
            yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str | None) else str(value)


def types_of(value: Any) -> tuple[Any, ...]:
    """Return the types that a setting may have whose default is this value."""
    if value is None:
        return (str, NoneType)
    if isinstance(value, tuple | list):
        kinds = {type(item) for item in value} or {str}
        kind: Any = float if kinds == {int, float} else kinds.pop() if len(kinds) == 1 else str
        return (tuple[kind, ...],)
    return (type(value),)


def overrides_constants(source: str) -> bool:
    """Whether a file that a script executes reads `--name=value` into the script's globals."""
    return "sys.argv" in source and "globals()" in source


def constant_arguments(scope: Scope, end: int, where: str) -> tuple[list[Argument], list[str]]:
    """Return arguments for the constants that a script assigns before a line, and for a file of such; and notes."""
    module = scope.module
    bound: dict[str, list[tuple[ast.stmt, ast.expr | None]]] = {}
    for statement in module.tree.body:
        if statement.lineno < end:
            for name, inner, node in _bound(statement):
                bound[name] = [] if inner is statement else bound.get(name, [])
                bound[name].append((inner, node))
    found: list[Argument] = []
    notes = []
    kinds_of = dict[str, type | None]()

    def named(name: str) -> type | None:
        if name not in kinds_of:
            kinds_of[name] = None
            known = scope.names.get(name)
            if isinstance(known, Unknown):
                kinds_of[name] = folding.type_of(known.node, named)
            elif isinstance(known, bool | int | float | str):
                kinds_of[name] = type(known)
        return kinds_of[name]

    for name, assigned in bound.items():
        value = scope.names.get(name)
        if name.startswith("_") or not isinstance(value, bool | int | float | str | Unknown):
            continue
        statement = assigned[-1][0]
        kind: type | None = type(value)
        text = ""
        if isinstance(value, Unknown):
            nodes = [node if node is not None else value.node for _, node in assigned]
            kinds = {folding.type_of(node, named) for node in nodes if not folding.is_none(node)}
            text = " or ".join(dict.fromkeys(ast.unparse(node) for node in nodes if node is not None))
            if len(kinds) != 1 or None in kinds:
                if not all(isinstance(node, ast.ListComp | ast.DictComp) for node in nodes):
                    notes.append(f"{module.where(statement)}: the type of {name} is known only to the program: {text}")
                continue
            kind = kinds.pop()
        told = {"help": module.comment(statement), "source": module.where(statement), "default_text": text}
        field = made_field(name, types=(kind,), default=None if text else value, **told)
        found.append(Argument(field, flags=(f"--{name}",)))
    file = made_field("config_file", types=(str, NoneType), help="A file of such assignments", source=where)
    return [Argument(file, nargs="?"), *found], notes


def _bound(statement: ast.stmt) -> Iterator[tuple[str, ast.stmt, ast.expr | None]]:
    """Yield the names that a statement of a module binds, each with the assignment and the expression, if it is one."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                elements = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                fits = len(values) == len(elements) and elements != [target]
                for number, element in enumerate(elements):
                    if isinstance(element, ast.Name):
                        yield element.id, statement, values[number] if fits else value if elements == [target] else None
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, statement, value
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
            yield name, statement, ast.BinOp(ast.Name(name), op, value)
        case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
            for part in ("body", "handlers", "orelse", "finalbody"):
                for inner in getattr(statement, part, ()):
                    for each in inner.body if isinstance(inner, ast.ExceptHandler) else [inner]:
                        yield from _bound(each)
