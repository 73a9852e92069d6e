"""A glance at a program's file: literal declarations of arguments, without running it, until the program is asked."""

import argparse
import ast
import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nbtools.errors import ScriptError
from nbtools.metrics.printed.templates import imported_files
from nbtools.script.arguments.arguments import TYPES, ScriptArguments, argument_of, with_unique_names
from nbtools.script.intercept.argparse_ import describe_action, is_argument
from nbtools.script.source import keywords_of, parse_source, read_source, start_folder

_PARSERS = re.compile(
    rb"\b(?:(argparse|click|typer|tyro|fire|absl|hydra|jsonargparse|LightningCLI|HfArgumentParser|simple_parsing|tap|"
    rb"parse_args|sys\.argv|from_cli|merge_with_cli)\b|exec\(open\()"
)
_NAMED = {
    b"exec(open(": "constants",
    b"from_cli(": "config file",
    b"HfArgumentParser": "HfArgumentParser",
    b"tyro": "tyro",
}
"""Words of a source, and the parser that they tell."""
_OPTIONS = ("action", "nargs", "const", "default", "type", "choices", "required", "dest", "help")
_OF_ARGPARSE = ("BooleanOptionalAction", "REMAINDER", "OPTIONAL", "ZERO_OR_MORE", "ONE_OR_MORE")
"""Names in argparse of values of these options."""


def glance(script: Path, module: str | None = None) -> ScriptArguments:
    """Return what a program's own file tells about its arguments, which is never all.

    `can_ask` tells whether the file, or one of its project that it imports, names a parser.

    Raises:
        ScriptError: the script is missing, is no Python, or is too large.
    """
    text = read_source(script)
    parser = next((name for word, name in _NAMED.items() if word in text), "argparse")
    try:
        source = _Glance(script, text)
        items = list(source.add_argument_calls())
        parser = "argparse" if items else parser
        if not items and parser != "config file":
            items = list(source.constants() if parser == "constants" else source.dataclasses())
        found = with_unique_names([argument_of(item) for item in items])
    except (RecursionError, MemoryError):
        raise ScriptError(f"{script}:1: nested too deeply; its arguments are not read") from None
    files = (path.read_bytes() for path in imported_files(script, start_folder(script, module)))
    can_ask = any(_PARSERS.search(each) for each in (text, *files))
    return ScriptArguments(script, parser if found or can_ask else "", tuple(found), can_ask=can_ask)


class _Glance:
    """The declarations of one file, described as the answer of a program does."""

    def __init__(self, path: Path, text: bytes) -> None:
        self.path, tree = path, parse_source(path, text)
        self.nodes = list(ast.walk(tree))
        self.values, self.lines = dict[str, Any](), dict[str, int]()
        """Values of the module's constants, with their lines."""
        for node in tree.body:
            if isinstance(node, ast.Assign) and (value := self.value(node.value)) is not ...:
                name = ast.unparse(node.targets[0])
                self.values[name], self.lines[name] = value, node.lineno

    def value(self, node: ast.expr) -> Any:
        """Return the value of a literal or a constant; `...` of all else."""
        if isinstance(node, ast.Name):
            return self.values.get(node.id, ...)
        with contextlib.suppress(ValueError, TypeError, SyntaxError):
            found = ast.literal_eval(node)
            return list(found) if isinstance(found, tuple | set) else found
        return ...

    def _item(
        self, name: str, line: int, types: Sequence[str], default: ast.expr | None, **entries: Any
    ) -> dict[str, Any]:
        """Return an option with its default: a value, else its text."""
        value = ... if default is None else self.value(default)
        entries |= {"default": value} if value is not ... else {"default_text": default and ast.unparse(default)[:200]}
        flags = list(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))
        place = {"name": name, "flags": flags, "source": f"{self.path.name}:{line}"}
        return {"action": "store", "types": types or ["str"], **entries, **place}

    def constants(self) -> Iterator[dict[str, Any]]:
        """Yield the module's constants that another file may override."""
        for name, value in self.values.items():
            if type(value) in TYPES.values() and not name.startswith("_"):
                yield self._item(name, self.lines[name], [type(value).__name__], ast.Constant(value))

    def add_argument_calls(self) -> Iterator[dict[str, Any]]:
        """Yield the arguments of `add_argument` calls whose flags are literals, as argparse describes them."""
        parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
        calls = (node for node in self.nodes if isinstance(node, ast.Call))
        for call in (call for call in calls if getattr(call.func, "attr", "") == "add_argument"):
            given = {key: node for key, node in keywords_of(call).items() if key in _OPTIONS}
            options = {key: value for key, node in given.items() if (value := self.value(node)) is not ...}
            options = {key: value for key, value in options.items() if key != "nargs" or len(str(value)) < 4}
            named = {key: ast.unparse(node).rpartition(".")[2] for key, node in given.items()}
            options |= {key: getattr(argparse, name) for key, name in named.items() if name in _OF_ARGPARSE}
            options["help"] = re.sub(r"%(?!\(default\)s)", "%%", str(options.get("help") or ""))
            if "type" in given:
                options["type"] = TYPES.get(named["type"], type(options.get("default", "")))
            with contextlib.suppress(TypeError, ValueError, AttributeError):  # argparse would refuse it, too
                action = parser.add_argument(*map(self.value, call.args), **options)
                text = ast.unparse(given["default"])[:200] if "default" in given.keys() - options.keys() else ""
                place = {"source": f"{self.path.name}:{call.lineno}", **({"default_text": text} if text else {})}
                yield from [describe_action(action, parser) | place] if is_argument(action) else []

    def dataclasses(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of dataclasses, with the types that their annotations name."""
        for owner in (node for node in self.nodes if isinstance(node, ast.ClassDef)):
            is_data = any("dataclass" in ast.unparse(each) for each in owner.decorator_list)
            for node in (each for each in owner.body if is_data and isinstance(each, ast.AnnAssign)):
                default, text = node.value, ast.unparse(node.annotation)
                if isinstance(default, ast.Call) and ast.unparse(default.func).endswith("field"):
                    default = keywords_of(default).get("default", keywords_of(default).get("default_factory"))
                types = [kind for kind in TYPES if re.search(rf"\b{kind}\b", text)]
                is_list = re.search(r"\b(list|tuple|sequence)\[", text.lower()) is not None
                known = {"is_list": is_list, "is_optional": "None" in text or "Optional" in text}
                yield self._item(
                    ast.unparse(node.target), node.lineno, types, default, is_required=default is None, **known
                )
