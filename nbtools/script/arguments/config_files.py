"""Settings that a script reads from files: YAML and JSON configs, and constants that a configurator overrides."""

import ast
import contextlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from nbtools.errors import ScriptError
from nbtools.script.arguments.arguments import Argument
from nbtools.script.arguments.declarations import made_field
from nbtools.script.follow.modules import SourceModule
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
    """Return the content of a YAML or JSON file whose top is a mapping; None if it is none, or too large for one."""
    try:
        text = read_source(path).decode()
        if len(text) > _LONGEST_CONFIG:
            return None
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
        found.append(Argument(field, flags=(name,), action="key_value", truth=("true", "false")))
    return found


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
    found: dict[str, Argument] = {}
    notes = []
    for statement in _assignments(module, end):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if not isinstance(target, ast.Name) or target.id.startswith("_") or target.id not in scope.names:
            continue
        value = scope.names[target.id]
        text = ""
        if isinstance(value, Unknown):
            kind = _type_of(value.node)
            text, value = value.text, None
            if kind is None:
                if not isinstance(statement.value, ast.ListComp | ast.DictComp):
                    notes.append(
                        f"{module.where(statement)}: the type of {target.id} is known only to the program: {text}"
                    )
                continue
        elif isinstance(value, bool | int | float | str):
            kind = type(value)
        else:
            continue
        field = made_field(
            target.id,
            types=(kind,),
            default=value,
            default_text=text,
            help=module.comment(statement),
            source=module.where(statement),
        )
        found[target.id] = Argument(field, flags=(f"--{target.id}",))
    file = made_field("config_file", types=(str, NoneType), help="A file of such assignments", source=where)
    return [Argument(file, nargs="?"), *found.values()], notes


def _assignments(module: SourceModule, end: int) -> Iterator[ast.Assign | ast.AnnAssign]:
    for statement in module.tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.lineno < end:
            yield statement


def _type_of(node: ast.AST | None) -> type | None:
    """Return the type of an expression whose value is unknown."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return type(value)
        case ast.JoinedStr():
            return str
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return bool
        case ast.IfExp(body=body, orelse=orelse):
            return _type_of(body) or _type_of(orelse)
        case ast.BoolOp(values=[*_, last]):
            return _type_of(last)
        case ast.BinOp(left=left, right=right):
            kinds = _type_of(left), _type_of(right)
            return str if str in kinds else float if float in kinds else kinds[0] or kinds[1]
        case ast.Call(func=ast.Name(id="int" | "float" | "str" | "bool" as name)):
            return {"int": int, "float": float, "str": str, "bool": bool}[name]
        case ast.Call(func=function) if ast.unparse(function) in ("os.path.join", "os.getcwd", "time.strftime"):
            return str
        case ast.Call(func=function) if ast.unparse(function) in ("time.time",):
            return float
    return None
