"""The config that an argument of a script names: its keys as arguments, and a copy with other values."""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

import yaml

from nbtools.errors import ConfigError
from nbtools.project import user_cache
from nbtools.rundir.atomic import write_file
from nbtools.rundir.secret_values import masked
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.command_line import parse_words
from nbtools.script.arguments.config_files import config_arguments, load_config
from nbtools.script.follow.modules import Modules, SourceModule

_LOADS = re.compile(r"(?:\w+\.)*(?:(?:safe_|full_|unsafe_)?loads?|YAML)")
_LIBRARIES = ("yaml", "json", "omegaconf", "OmegaConf", "oyaml", "ruamel", "tomllib", "tomli", "toml", "tomlkit")
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_OPENS = ("open", "read_bytes", "read_text")
"""Methods of a path."""
_PARAMETERS = ("click", "typer", "fire")
"""Parsers that pass arguments as the parameters of a function."""


def config_names(modules: Modules, names: Collection[str], parser: str) -> tuple[str, ...]:
    """Return those of the arguments whose value is the path of a config that the script or a module of it loads."""
    module, found = modules.script, set[str]()
    wanted = {name.rpartition(".")[2]: name for name in names}
    looped = {  # for path in args.config
        node.target.id: name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name)
        for part in ast.walk(node.iter)
        if (name := _argument(part, ())) in wanted
    }
    parameters = {node.arg for node in ast.walk(module.tree) if isinstance(node, ast.arg) and parser in _PARAMETERS}
    for call in (node for node in ast.walk(module.tree) if isinstance(node, ast.Call)):
        opened = [call.func] if getattr(call.func, "attr", "") in _OPENS else []
        given = [part for each in (*opened, *call.args, *call.keywords) for part in ast.walk(each)]
        names_given = [part.id for part in given if isinstance(part, ast.Name) and part.id in looped]
        used = wanted.keys() & {name for part in given if (name := _argument(part, parameters))}
        used |= {looped[name] for name in names_given}
        if used - found and _reads(modules, module, call, given):
            found |= used
    return tuple(wanted[name] for name in wanted if name in found)


def _argument(node: ast.AST, parameters: Collection[str]) -> str:
    """Return the name of `args.name`, `args["name"]` or a parameter; empty for anything else."""
    match node:
        case ast.Name(id=name) if name in parameters:
            return name
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


def _reads(modules: Modules, module: SourceModule, call: ast.Call, given: Sequence[ast.AST]) -> bool:
    """Whether a call reads a config: it is a loader, `open` or `Path` beside one, or a function with one."""
    function = ast.unparse(call.func)
    if function in ("open", "io.open", "Path", "pathlib.Path") or getattr(call.func, "attr", "") in _OPENS:
        modes = [part.value for part in given if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        is_written = any(re.fullmatch(r"[rbt+]*[wax][bt+]*", mode) for mode in modes)
        return not is_written and _loads(module, module.tree)
    if _LOADS.fullmatch(function):
        return _loads(module, call)
    return any(_loads(owner, body) for owner, body in _bodies(modules, module, function))


def _loads(module: SourceModule, tree: ast.AST) -> bool:
    """Whether code calls a loader of a library that its module imports."""
    imported = {
        name.split(".")[0]
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (getattr(node, "module", None) or "", *(alias.name for alias in node.names))
    }
    calls = (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    return bool(imported.intersection(_LIBRARIES)) and any(_LOADS.fullmatch(call) for call in calls)


def _bodies(modules: Modules, module: SourceModule, function: str) -> Iterator[tuple[SourceModule, ast.AST]]:
    """Yield the definitions of a function, in its module or in one from which that imports the name."""
    last, owners = function.rpartition(".")[2], [module]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == last for alias in node.names):
            path = modules.find(node.module or "", module, node.level)
            owners += [owner] if path and path.suffix == ".py" and (owner := modules.parse(path)) else []
    for owner in owners:
        for node in ast.walk(owner.tree):
            if isinstance(node, ast.FunctionDef) and node.name == last:
                yield owner, node


def keys_of_config(path: Path, label: str) -> ScriptArguments | None:
    """Return the keys of a config as arguments `a.b=value`; None if it is no YAML, JSON or TOML file with keys."""
    if path.suffix not in _SUFFIXES or not path.is_file() or (config := load_config(path)) is None:
        return None
    arguments = config_arguments(config, label, config.lines)
    return ScriptArguments(path, "config file", tuple(arguments), is_complete=True)


def changed_config(path: Path, words: Sequence[str]) -> str:
    """Return the text of a config with the values of words such as `optim.lr=0.1`; its comments are lost; ConfigError
    if there is no such config, or no such key in it."""
    keys, config = keys_of_config(path, path.name), load_config(path) if path.is_file() else None
    if keys is None or config is None:
        raise ConfigError(f"config_file={path}: is no YAML, JSON or TOML file with keys; give one, or no config_values")
    line = parse_words(keys, words)
    if line.rest:
        known = ", ".join(argument.field.name for argument in keys.arguments[:20]) or "none"
        raise ConfigError(f"config_values: {masked(line.rest)} is no key of {path}, or no value of it; keys: {known}")
    for name, value in line.values.items():
        _put(config, name, list(value) if isinstance(value, tuple) else value)
    if path.suffix == ".json":
        return json.dumps(dict(config), indent=2, ensure_ascii=False) + "\n"
    told = ", ".join(line.values) or "no value"
    head = f"# A copy of {path.name} with other values of {told}; comments of the file are left out.\n"
    if path.suffix == ".toml":
        return head + "".join(_toml_lines(config))
    return head + yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def _toml_lines(content: Mapping[str, Any], *, has_tables: bool = True) -> Iterator[str]:
    tables = [key for key, value in content.items() if has_tables and isinstance(value, dict)]
    yield from (f"{_toml(key)} = {_toml(value)}\n" for key, value in content.items() if key not in tables)
    for key in tables:
        yield f"\n[{_toml(key)}]\n"
        yield from _toml_lines(content[key], has_tables=False)


def _toml(value: Any) -> str:
    match value:
        case bool() | str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{_toml(key)} = {_toml(item)}' for key, item in value.items())}}}"
        case date() | time():
            return value.isoformat()
    return repr(value)


def _put(content: dict[Any, Any], name: str, value: Any) -> None:
    """Replace the value of a dotted key that is there."""
    for key, inner in content.items():
        if str(key) == name:
            content[key] = value
            return
        if isinstance(inner, dict) and name.startswith(f"{key}."):
            _put(inner, name[len(str(key)) + 1 :], value)


def main() -> None:
    """Write the copy of a config, for a program that is started by hand, and print its path."""
    path = Path(sys.argv[1])
    try:
        text = changed_config(path, sys.argv[2:])
    except ConfigError as error:
        sys.exit(f"nbtools: {error}")
    # One file per text: the process that reads it is not followed, so nothing could remove it.
    digest = Path(hashlib.sha256(text.encode()).hexdigest())
    copy = user_cache("configs", digest, make=True).with_suffix("") / path.name
    copy.parent.mkdir(exist_ok=True)
    write_file(copy, text.encode(), mode=0o600)
    print(copy)


if __name__ == "__main__":
    main()
