"""A glance at a program's file: literal `add_argument` calls, dataclass fields and constants, without running it."""

import argparse
import ast
import contextlib
import operator
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from nbtools.errors import ScriptError
from nbtools.metrics.printed.templates import imported_files
from nbtools.parsing import literal_value
from nbtools.script.arguments.arguments import TYPES, Argument, ScriptArguments, argument_of, with_unique_names
from nbtools.script.arguments.config_file import keys_of_config
from nbtools.script.config_copy import TRUTH
from nbtools.script.intercept.argparse_ import describe_action, is_argument
from nbtools.script.source import keywords_of, parse_source, read_source, start_folder

_PARSERS = re.compile(
    rb"\b(argparse|click|typer|tyro|fire|absl|hydra|jsonargparse|LightningCLI|HfArgumentParser|simple_parsing|tap|"
    rb"parse_args|sys\.argv)\b"
)
_OPTIONS = ("action", "nargs", "const", "default", "type", "choices", "required", "dest", "help")
_NAMED = ("BooleanOptionalAction", "REMAINDER", "OPTIONAL", "ZERO_OR_MORE", "ONE_OR_MORE")
"""Names in argparse of values of these options."""
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_LARGEST, _DEEPEST = 2**63, 4
_Item = dict[str, Any]
"""An argument, described as the answer of a program does."""
_FACTORIES: dict[str, _Item] = {"list": {"default": []}, "tuple": {"default": []}, "dict": {"default_text": "{}"}}


def glance(script: Path, module: str | None = None) -> ScriptArguments:
    """Return what a program's own file tells about its arguments.

    It is complete only for programs without a parser: constants that a configurator overrides, and OmegaConf's
    `from_cli`. `can_ask` tells whether the file, or one of its project that it imports, names a parser.

    Raises:
        ScriptError: the script is missing, is no Python, or is too large.
    """
    text = read_source(script)
    try:
        source = _Glance(script, text)
        if (end := source.configurator_line()) is not None:
            return ScriptArguments(script, "constants", tuple(source.constants(end)), is_complete=True)
        if b".from_cli(" in text:
            return ScriptArguments(script, "config file", tuple(source.omegaconf()), is_complete=True)
        found = with_unique_names([argument_of(item) for item in (*source.add_argument_calls(), *source.dataclasses())])
    except (RecursionError, MemoryError):
        raise ScriptError(f"{script}:1: nested too deeply; its arguments are not read") from None
    parser = "HfArgumentParser" if b"HfArgumentParser" in text else "tyro" if b"tyro" in text else "argparse"
    files = (path.read_bytes() for path in imported_files(script, start_folder(script, module)))
    can_ask = any(_PARSERS.search(each) for each in (text, *files))
    return ScriptArguments(script, parser if found or can_ask else "", tuple(found), can_ask=can_ask)


class _Glance:
    """The declarations of one file, described as the answer of a program does."""

    def __init__(self, path: Path, text: bytes) -> None:
        self.path, tree = path, parse_source(path, text)
        self.nodes = list(ast.walk(tree))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.classes = {node.name: node for node in self.nodes if _is_dataclass(node)}
        self.values, self.lines, self.bound = dict[str, Any](), dict[str, int](), dict[str, list[ast.expr]]()
        """Values of the module's names, as `value` returns them, with their lines and all expressions."""
        self._bind(tree.body, is_sure=True)

    def _item(self, name: str, flags: list[str], line: int, **entries: Any) -> _Item:
        """Return an argument with the usual entries for those that are not given."""
        place = {"name": name, "flags": flags, "source": f"{self.path.name}:{line}"}
        return {"action": "store", "types": ["str"]} | entries | place

    # --- values ---

    def _bind(self, statements: Sequence[ast.stmt], *, is_sure: bool) -> None:
        """Keep what statements assign to names: in a branch, beside what they had."""
        for statement in statements:
            pairs: list[tuple[ast.expr, ast.expr]] = []
            match statement:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=nodes)):
                    pairs = list(zip(names, nodes, strict=False))
                case ast.Assign(targets=[target], value=node) | ast.AnnAssign(target=target, value=ast.expr() as node):
                    pairs = [(target, node)]
                case ast.AugAssign(target=target, op=op, value=value):
                    pairs = [(target, ast.BinOp(target, op, value))]
                case ast.If() | ast.Try() | ast.With():
                    for part in ("body", "orelse", "finalbody"):
                        self._bind(getattr(statement, part, ()), is_sure=False)
            for name, node in ((target.id, node) for target, node in pairs if isinstance(target, ast.Name)):
                value, others = self.value(node), [] if is_sure else self.bound.get(name, [])
                self.bound[name], self.lines[name] = [*others, node], statement.lineno
                self.values[name] = _type_of(self.values[name], value) if others else value

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression of literals and constants, else its type, else `...`."""
        with contextlib.suppress(ValueError, TypeError, SyntaxError):
            found = ast.literal_eval(node)
            return list(found) if isinstance(found, tuple | set) else found
        match node:
            case ast.Name(id=name):
                return self.values.get(name, ...)
            case ast.JoinedStr():
                return str
            case ast.Compare() | ast.UnaryOp(op=ast.Not()):
                return bool
            case ast.Call(func=ast.Name(id=name)):
                return TYPES.get(name, ...)
            case ast.Call(func=ast.Attribute(attr="get" | "getenv" | "join"), args=[*_, last]):
                return _type_of(self.value(last))
            case ast.IfExp(body=first, orelse=second):
                return _type_of(self.value(first), self.value(second))
            case ast.BinOp(left=left, op=op, right=right):
                one, two = self.value(left), self.value(right)
                if {type(one), type(two)} <= {int, float} and type(op) in _OPERATORS:
                    with contextlib.suppress(ArithmeticError):
                        if abs(number := _OPERATORS[type(op)](one, two)) < _LARGEST:  # squares of squares
                            return number
                return _type_of(one, two)
        return ...

    def default(self, node: ast.expr) -> _Item:
        """Return the entries of a default: a value, else its text."""
        return {"default": found} if _is_value(found := self.value(node)) else {"default_text": ast.unparse(node)[:200]}

    # --- constants and configs ---

    def configurator_line(self) -> int | None:
        """Return the line that executes a file which reads `--name=value` into the constants; None without one."""
        for call in (call for call in self.calls if getattr(call.func, "id", "") == "exec"):
            for name in re.findall(r"[\w/.-]+\.py", ast.unparse(call)):
                with contextlib.suppress(ScriptError):
                    if b"sys.argv" in (text := read_source(self.path.parent / name)) and b"globals()" in text:
                        return call.lineno
        return None

    def constants(self, end: int) -> Iterator[Argument]:
        """Yield the constants that are assigned before the line of a configurator, and its file."""
        yield argument_of(self._item("config_file", [], end, help="A file of such assignments", nargs="?"))
        lines = read_source(self.path).decode(errors="replace").splitlines()
        for name, value in self.values.items():
            kind, line = value if isinstance(value, type) else type(value), self.lines[name]
            if line < end and not name.startswith("_") and kind in TYPES.values():
                text = " or ".join(dict.fromkeys(map(ast.unparse, self.bound[name])))
                entries: _Item = {"default_text": text} if isinstance(value, type) else {"default": value}
                entries |= {"types": [kind.__name__], "help": lines[line - 1].partition("# ")[2]}
                yield argument_of(self._item(name, [f"--{name}"], line, **entries))

    def omegaconf(self) -> Iterator[Argument]:
        """Yield the keys of the files and the dataclasses that are merged with OmegaConf's `from_cli`."""
        for call in self.calls:
            match getattr(call.func, "attr", ""), call.args:
                case "load", [ast.Constant(value=str(name))]:
                    keys = keys_of_config(self.path.parent / name, name)
                    yield from keys.arguments if keys else ()
                case "load", [ast.Attribute(attr=name)]:
                    yield _as_key(self._item(name, [name], call.lineno, is_required=True))
                case "structured" | "create", [made]:
                    name = ast.unparse(made.func if isinstance(made, ast.Call) else made)
                    yield from map(_as_key, self._fields(self.classes.get(name), call=made))

    # --- arguments of parsers ---

    def add_argument_calls(self) -> Iterator[_Item]:
        """Yield the arguments of `add_argument` calls whose flags are literals, as argparse describes them."""
        parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
        for call in (call for call in self.calls if getattr(call.func, "attr", "") == "add_argument"):
            given = {key: node for key, node in keywords_of(call).items() if key in _OPTIONS}
            options = {key: value for key, node in given.items() if _is_value(value := self.value(node))}
            options = {key: value for key, value in options.items() if key != "nargs" or len(str(value)) < 4}
            named = {key: ast.unparse(node).rpartition(".")[2] for key, node in given.items()}
            options |= {key: getattr(argparse, name) for key, name in named.items() if name in _NAMED}
            options["help"] = re.sub(r"%(?!\(default\)s)", "%%", str(options.get("help") or ""))
            if "type" in given:
                options["type"] = TYPES.get(named["type"], type(options.get("default", "")))
            with contextlib.suppress(TypeError, ValueError, AttributeError):  # argparse would refuse it, too
                action = parser.add_argument(*map(self.value, call.args), **options)
                text = self.default(given["default"]) if "default" in given.keys() - options.keys() else {}
                place = {"source": f"{self.path.name}:{call.lineno}"}
                yield from [describe_action(action, parser) | text | place] if is_argument(action) else []

    def dataclasses(self) -> Iterator[_Item]:
        """Yield the fields of the dataclasses that no other one holds."""
        bodies = [each for node in self.classes.values() for each in node.body]
        held = {node.id for each in bodies for node in ast.walk(each) if isinstance(node, ast.Name)}
        for name in (name for name in self.classes if name not in held):
            yield from self._fields(self.classes[name])

    def _fields(self, owner: ast.ClassDef | None, prefix: str = "", call: ast.AST | None = None) -> Iterator[_Item]:
        """Yield the fields of a dataclass, with those of its dataclasses; `call` makes it with values of its own."""
        body = getattr(owner, "body", ())
        nodes = {ast.unparse(node.target): node for node in body if isinstance(node, ast.AnnAssign)}
        given = dict(zip(nodes, getattr(call, "args", ()), strict=False)) | keywords_of(call)
        for name, node in nodes.items():
            value = given.get(name, node.value)
            if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
                settings = keywords_of(value)
                value = settings.get("default", settings.get("default_factory"))
            value = value.body if isinstance(value, ast.Lambda) else value
            inner = [n.id for n in ast.walk(node.annotation) if isinstance(n, ast.Name) and n.id in self.classes]
            if inner and prefix.count(".") < _DEEPEST:
                yield from self._fields(self.classes[inner[0]], f"{prefix}{name}.", value)
            else:
                yield self._field(f"{prefix}{name}", node, value)

    def _field(self, name: str, node: ast.AnnAssign, value: ast.expr | None) -> _Item:
        text, made = ast.unparse(node.annotation), "" if value is None else ast.unparse(value)
        is_map = re.match(r"(Optional\[)?([Dd]ict|Mapping)", text) is not None
        is_list = not is_map and re.search(r"\b(list|tuple|sequence)\[", text.lower()) is not None
        is_required = made.rpartition(".")[2] in ("", "MISSING")
        listed = re.search(r"Literal\[([^][]*)\]", text)
        choices = literal_value(f"[{listed[1]}]") if listed else None
        types = [kind for kind in TYPES if re.search(rf"\b{kind}\b", text) and not is_map]
        entries = _FACTORIES.get(made) or ({} if value is None or is_required else self.default(value))
        entries = entries | {"is_optional": "None" in text or "Optional" in text, "group": name.rpartition(".")[0]}
        entries |= {"types": types or ([] if choices else ["str"]), "choices": choices, "is_list": is_list}
        flags = list(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))
        return self._item(name, flags, node.lineno, is_required=is_required, **entries)


def _as_key(item: _Item) -> Argument:
    """Return an argument that is written `a.b=value`, without dashes."""
    return argument_of(item | {"flags": [item["name"]], "action": "key_value", "truth": TRUTH})


def _is_dataclass(node: ast.AST) -> TypeGuard[ast.ClassDef]:
    return isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list)


def _is_value(value: Any) -> bool:
    return value is not ... and not isinstance(value, type)


def _type_of(*values: Any) -> Any:
    """Return the type that all known values have, `...` if there is none."""
    kinds = {value if isinstance(value, type) else type(value) for value in values if value is not ...}
    return kinds.pop() if len(kinds) == 1 else ...
