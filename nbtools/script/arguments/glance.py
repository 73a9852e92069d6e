"""A glance at a program's file: literal `add_argument` calls, dataclass fields and constants, without running it."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nbtools.metrics.printed.templates import imported_files
from nbtools.script.arguments.arguments import Argument, ScriptArguments, argument_of, as_key, with_unique_names
from nbtools.script.arguments.config_file import keys_of_config
from nbtools.script.arguments.constants import configurator_line, constants_of
from nbtools.script.arguments.source_file import NAMED, Item, SourceFile, keywords_of
from nbtools.script.source import read_source

_PARSERS = re.compile(
    rb"\b(argparse|click|typer|tyro|fire|absl|hydra|jsonargparse|LightningCLI|HfArgumentParser|simple_parsing|tap|"
    rb"parse_args|sys\.argv)\b"
)
_DEEPEST = 4
_ACTIONS = ("store", "store_true", "store_false", "append", "count")


def glance(script: Path, module: str | None = None) -> ScriptArguments:
    """Return what a program's own file tells about its arguments.

    It is complete only for programs without a parser: constants that a configurator overrides, and OmegaConf's
    `from_cli`. `can_ask` tells whether the file, or one of its project that it imports, names a parser.

    Raises:
        ScriptError: the script is missing, is no Python, or is too large.
    """
    text, source = read_source(script), _Glance(script)
    if (end := configurator_line(source)) is not None:
        file = source.described("config_file", [], end, help="A file of such assignments", nargs="?")
        found = [argument_of(item) for item in (file, *constants_of(source, end))]
        return ScriptArguments(script, "constants", tuple(found), is_complete=True)
    if b".from_cli(" in text:
        return ScriptArguments(script, "config file", tuple(map(as_key, source.omegaconf())), is_complete=True)
    found = with_unique_names([argument_of(item) for item in (*source.calls(), *source.dataclasses())])
    commands = tuple(dict.fromkeys((name,) for name in source.commands.values()))
    parser = "HfArgumentParser" if b"HfArgumentParser" in text else "tyro" if b"tyro" in text else "argparse"
    can_ask = _mentions_parser(script, text, start_folder(script, module))
    return ScriptArguments(script, parser if found or can_ask else "", tuple(found), commands, can_ask=can_ask)


def start_folder(script: Path, module: str | None) -> Path:
    """Return the folder that is first in `sys.path`: that of the script, or the one that holds the module."""
    return script.absolute().parents[0 if module is None else module.count(".") + (script.name == "__main__.py")]


def _mentions_parser(script: Path, text: bytes, start: Path) -> bool:
    """Whether a program's file, or one of its project that an import statement names, mentions a parser."""
    if _PARSERS.search(text):
        return True
    return any(_PARSERS.search(path.read_bytes()) for path in imported_files(script, start))


class _Glance(SourceFile):
    """The declarations of one file, described as the answer of a program does."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.classes = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}
        self.commands: dict[str, str] = {}

    def calls(self) -> Iterator[Item]:
        """Yield the arguments of `add_argument` calls whose flags are literals."""
        groups: dict[str, str] = {}
        for node in self.nodes:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(func=ast.Attribute(attr=attr), args=[ast.Constant(value=str(title)), *_]),
                ) if attr in ("add_parser", "add_argument_group"):
                    (self.commands if attr == "add_parser" else groups)[name] = title
        for node in self.nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                names = [n.value for n in node.args if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                owner = ast.unparse(node.func)[: -len(".add_argument")]
                command = [self.commands[owner]] if owner in self.commands else []
                if names and len(names) == len(node.args):
                    yield self._argument(names, node) | {"command": command, "group": groups.get(owner, "")}

    def _argument(self, names: list[str], call: ast.Call) -> Item:
        given = keywords_of(call)
        literal = {key: self.default(node)["default"] for key, node in given.items()}
        flags = [name for name in names if name.startswith("-")]
        named = next((flag for flag in flags if flag.startswith("--")), names[0])
        kind, entries = ast.unparse(given["type"]) if "type" in given else "str", self.default(given.get("default"))
        action = literal.get("action") or ("optional_bool" if "action" in given else "store")
        example = type(entries["default"]).__name__ if "type" in given else "str"
        entries["types"] = [next((each for each in (kind, example) if each in NAMED), "str")]
        if action in ("store_true", "store_false", "optional_bool"):
            entries = {"default": action == "store_false"} if "default" not in given else entries
            entries["types"] = ["bool"]
        takes_rest = "nargs" in given and "REMAINDER" in ast.unparse(given["nargs"])
        nargs = "..." if takes_rest else literal.get("nargs") if action in ("store", "append") else None
        nargs = nargs if nargs in ("?", "*", "+", "...") or type(nargs) is int else None
        choices, text = literal.get("choices"), str(literal.get("help") or "")
        entries |= {"types": ["int"]} if action == "count" else {}
        entries |= {"negative_flags": [f"--no-{named.lstrip('-')}"]} if action == "optional_bool" else {}
        entries |= {"action": action if action in (*_ACTIONS, "optional_bool") else "store", "nargs": nargs}
        entries |= {"truth": ["True", "" if kind == "bool" else "False"], "help": text}
        entries |= {"const": literal.get("const", action != "store_false")}
        entries |= {"choices": choices if isinstance(choices, list) else None}
        entries |= {"help": text.replace("%(default)s", str(entries["default"]))}
        entries |= {"is_required": literal.get("required") is True or (not flags and nargs not in ("?", "*", "..."))}
        return self.described(literal.get("dest") or named.lstrip("-").replace("-", "_"), flags, call.lineno, **entries)

    def dataclasses(self) -> Iterator[Item]:
        """Yield the fields of the dataclasses that no other one holds."""
        own = {name: node for name, node in self.classes.items() if self._is_dataclass(name)}
        names = [n.id for node in own.values() for each in node.body for n in ast.walk(each) if isinstance(n, ast.Name)]
        for node in (node for name, node in own.items() if name not in names):
            yield from self.fields(node)

    def _is_dataclass(self, name: str) -> bool:
        return name in self.classes and any("dataclass" in ast.unparse(d) for d in self.classes[name].decorator_list)

    def fields(self, owner: ast.ClassDef, prefix: str = "", call: ast.AST | None = None) -> Iterator[Item]:
        """Yield the fields of a dataclass, with those of its dataclasses; `call` makes it with values of its own."""
        nodes = [node for node in owner.body if isinstance(node, ast.AnnAssign)]
        names = [ast.unparse(node.target) for node in nodes]
        given = dict(zip(names, getattr(call, "args", ()), strict=False)) | keywords_of(call)
        for base in (ast.unparse(base) for base in owner.bases):
            if self._is_dataclass(base) and base != owner.name and prefix.count(".") < _DEEPEST:
                yield from self.fields(self.classes[base], prefix)
        for name, node in zip(names, nodes, strict=True):
            value = given.get(name, node.value)
            is_field = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field")
            settings = keywords_of(value) if is_field else {}
            value = settings.get("default", settings.get("default_factory")) if settings else value
            value = value.body if isinstance(value, ast.Lambda) else value
            inner = [n.id for n in ast.walk(node.annotation) if isinstance(n, ast.Name) and self._is_dataclass(n.id)]
            if inner and prefix.count(".") < _DEEPEST:
                yield from self.fields(self.classes[inner[0]], f"{prefix}{name}.", value)
            else:
                yield self._field(f"{prefix}{name}", node, value, settings)

    def _field(self, name: str, node: ast.AnnAssign, value: ast.expr | None, settings: Mapping[Any, ast.expr]) -> Item:
        text, made = ast.unparse(node.annotation), "" if value is None else ast.unparse(value)
        is_map = re.match(r"(Optional\[)?([Dd]ict|Mapping)", text) is not None
        is_required = made.rpartition(".")[2] in ("", "MISSING")
        entries: Item = {"default": [] if made in ("list", "tuple") else None}
        is_known = made in ("", "list", "tuple") or is_required
        entries |= {"default_text": "{}"} if made == "dict" else {} if is_known else self.default(value)
        listed = [
            n.slice
            for n in ast.walk(node.annotation)
            if isinstance(n, ast.Subscript) and "Literal" in ast.unparse(n.value)
        ]
        values = self.default(listed[0])["default"] if listed else None
        choices = values if isinstance(values, list) else [values] if values else None
        kinds = [kind for kind in NAMED if re.search(rf"\b{kind}\b", text) and not is_map]
        helps = re.search(r"'help': '([^']*)'", ast.unparse(settings["metadata"])) if "metadata" in settings else None
        flags = list(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))
        is_list = not is_map and bool(re.search(r"\b(list|tuple|sequence)\[", text.lower()))
        entries |= {"choices": choices, "help": helps[1] if helps else ""}
        entries |= {"types": kinds or ([] if choices else ["str"]), "is_list": is_list, "is_required": is_required}
        entries |= {"is_optional": "None" in text or "Optional" in text, "group": name.rpartition(".")[0]}
        return self.described(name, flags, node.lineno, **entries)

    def omegaconf(self) -> Iterator[Argument]:
        """Yield the keys of the files and the dataclasses that are merged with OmegaConf's `from_cli`."""
        merged: list[Argument] = []
        for node in (node for node in self.nodes if isinstance(node, ast.Call)):
            match getattr(node.func, "attr", ""), node.args:
                case "load", [ast.Constant(value=str(name))]:
                    keys = keys_of_config(self.path.parent / name, name)
                    merged += keys.arguments if keys else ()
                case "load", [ast.Attribute(attr=name)]:
                    yield argument_of(self.described(name, [name], node.lineno, is_required=True))
                case "structured" | "create", [made]:
                    name = ast.unparse(made.func if isinstance(made, ast.Call) else made)
                    items = self.fields(self.classes[name], call=made) if name in self.classes else ()
                    merged += [argument_of(item) for item in items]
        yield from merged
