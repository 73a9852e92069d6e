"""`changed_config`: a copy of a program's config file with other values; the file is data, read within bounds."""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from nbtools.errors import ConfigError, ScriptError
from nbtools.project import user_cache
from nbtools.rundir.atomic import write_file
from nbtools.rundir.secret_values import masked
from nbtools.script.field import Field
from nbtools.script.source import read_source
from nbtools.script.values import from_text

LANGUAGE, TRUTH = "config file", ("true", "false")
"""The language of the texts in words such as `optim.lr=0.1`, and its texts of True and False."""
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_LONGEST_CONFIG = 100_000
_MOST_KEYS = 2000
_MOST_NODES = 20_000
"""Aliases of YAML, also those that merge, multiply the nodes of a short file."""
_DEEP_KEY = re.compile(r"(?:[\w\"'-]+[ \t]*\.[ \t]*){32}")
"""Each dot in a key of TOML costs as much as all before it."""


def load_config(path: Path) -> dict[str, Any] | None:
    """Return the content of a YAML, JSON or TOML file whose top is a mapping; None if it is none, or too large."""
    try:
        if path.suffix not in _SUFFIXES or len(text := read_source(path).decode()) > _LONGEST_CONFIG:
            return None
        found = _parsed(path.suffix, text)
        if not isinstance(found, dict) or next(islice(leaves(found), _MOST_KEYS, None), None) is not None:
            return None
    except (ScriptError, ValueError, yaml.YAMLError, RecursionError):
        return None
    return {str(key): value for key, value in found.items()}


def _parsed(suffix: str, text: str) -> Any:
    """Return the value of a text; ValueError if it is too deep or too large."""
    if suffix == ".toml":
        if _DEEP_KEY.search(text):
            raise ValueError("a key with many dots")
        return tomllib.loads(text)
    if suffix == ".json":
        return json.loads(text)
    loader = yaml.SafeLoader(text)  # parsed once: PyYAML needs a second for 150 KB
    tree = loader.get_single_node()
    if next(islice(_nodes(tree), _MOST_NODES, None), None) is not None:
        raise ValueError("many nodes")
    return None if tree is None else loader.construct_document(tree)


def _nodes(node: Any) -> Iterator[Any]:
    """Yield a node and all below it, those of an alias each time."""
    yield node
    if isinstance(node, yaml.CollectionNode):
        for each in node.value:
            for inner in each if isinstance(each, tuple) else (each,):
                yield from _nodes(inner)


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a config with their values; lists of plain values as tuples."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            if all(isinstance(item, bool | int | float | str) for item in value):
                yield f"{prefix}{key}", tuple(value)
        elif not isinstance(value, dict):
            yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str | None) else str(value)


def types_of(value: Any) -> tuple[Any, ...]:
    """Return the types that a setting may have whose default is this value."""
    if value is None:
        return (str, NoneType)
    if isinstance(value, tuple):
        kinds = {type(item) for item in value} or {str}
        kind: Any = float if kinds == {int, float} else kinds.pop() if len(kinds) == 1 else str
        return (tuple[kind, ...],)
    return (type(value),)


# --- the copy -------------------------------------------------------------------------------------


def changed_config(path: Path, words: Sequence[str]) -> str:
    """Return the text of a config with the values of words such as `optim.lr=0.1`; its comments are lost; ConfigError
    if there is no such config, or no such key in it."""
    if (config := load_config(path)) is None:
        raise ConfigError(f"config_file={path}: is no YAML, JSON or TOML file with keys; give one, or no config_values")
    known = dict(leaves(config))
    for word in words:
        name, _, text = word.partition("=")
        try:
            value = from_text(text, Field(name, types_of(known[name])), LANGUAGE, TRUTH)
        except (KeyError, ValueError):
            keys = ", ".join([*known][:20]) or "none"
            said = f"{masked([word])} is no key of {path}, or no value of it; keys: {keys}"
            raise ConfigError(f"config_values: {said}") from None
        _put(config, name, list(value) if isinstance(value, tuple) else value)
    if path.suffix == ".json":
        return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    told = ", ".join(dict.fromkeys(word.partition("=")[0] for word in words)) or "no value"
    head = f"# A copy of {path.name} with other values of {told}; comments of the file are left out.\n"
    if path.suffix == ".toml":
        return head + "".join(_toml_lines(config))
    return head + yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def cached_copy(path: Path, words: Sequence[str]) -> Path:
    """Write the copy of a config below the user's cache folder, for a program that is started by hand."""
    text = changed_config(path, words)
    # One file per text: the process that reads it is not followed, so nothing could remove it.
    digest = Path(hashlib.sha256(text.encode()).hexdigest())
    copy = user_cache("configs", digest, make=True).with_suffix("") / path.name
    copy.parent.mkdir(exist_ok=True)
    write_file(copy, text.encode(), mode=0o600)
    return copy


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
