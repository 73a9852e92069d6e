"""A glance at a program's file: literal `add_argument` calls, dataclass fields and constants, without running it."""

import ast
import contextlib
import operator
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nbtools.errors import ScriptError
from nbtools.script.arguments.arguments import Argument, ScriptArguments, argument_of, as_key, with_unique_names
from nbtools.script.arguments.config_file import keys_of_config
from nbtools.script.source import parse_source, read_source

_PARSERS = re.compile(
    r"\b(argparse|click|typer|tyro|fire|absl|hydra|jsonargparse|LightningCLI|HfArgumentParser|simple_parsing|tap|"
    r"parse_args|sys\.argv)\b"
)
_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+)?import\s+(\w[\w.]*)", re.MULTILINE)
_MOST_FILES, _LONGEST, _DEEPEST = 60, 1000, 4
_OPERATORS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_OPERATORS |= {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
_NAMED = ("int", "float", "str", "bool")
_PURE = re.compile(
    r"(int|float|str|bool|list|tuple|dict|set|len|max|min|sum|sorted|range|round|abs|next|iter|Path|join|dirname|abspath|"
    r"get|keys|values|split|lower|upper|field|Option|Argument)"
)
"""Calls whose value is the same wherever the program runs."""
_ACTIONS = ("store", "store_true", "store_false", "append", "count")
Item = dict[str, Any]
"""An argument, described as the answer of a program does."""


def glance(script: Path, module: str | None = None) -> ScriptArguments:
    """Return what a program's own file tells about its arguments.

    It is complete only for programs without a parser: constants that a configurator overrides, and OmegaConf's
    `from_cli`. `can_ask` tells whether the file, or one of its project that it imports, names a parser.

    Raises:
        ScriptError: the script is missing, is no Python, or is too large.
    """
    text, source = read_source(script), _Source(script)
    if (end := source.configurator()) is not None:
        file = source.described("config_file", [], end, help="A file of such assignments", nargs="?")
        found = [argument_of(item) for item in (file, *source.constants(end))]
        return ScriptArguments(script, "constants", tuple(found), is_complete=True)
    if b".from_cli(" in text:
        return ScriptArguments(script, "config file", tuple(map(as_key, source.omegaconf())), is_complete=True)
    found = with_unique_names([argument_of(item) for item in (*source.calls(), *source.dataclasses())])
    commands = tuple(dict.fromkeys((name,) for name in source.commands.values()))
    parser = "HfArgumentParser" if b"HfArgumentParser" in text else "tyro" if b"tyro" in text else "argparse"
    can_ask = _mentions_parser(script, start_folder(script, module))
    return ScriptArguments(script, parser if found or can_ask else "", tuple(found), commands, can_ask=can_ask)


def start_folder(script: Path, module: str | None) -> Path:
    """Return the folder that is first in `sys.path`: that of the script, or the one that holds the module."""
    return script.absolute().parents[0 if module is None else module.count(".") + (script.name == "__main__.py")]


def computed_defaults(path: Path) -> dict[str, str]:
    """Return the texts of defaults that a file computes, by their flag, or by line and name of a parameter."""
    source, found = _Source(path), dict[str, str]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            is_absl = ast.unparse(node.func).rpartition(".")[2].startswith("DEFINE_")
            default = _given(node).get("default", node.args[1] if is_absl and len(node.args) > 1 else None)
            if text := source.computed(default):
                names = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
                found |= {f"--{name}" if is_absl else name: text for name in names}
        elif isinstance(node, ast.FunctionDef):
            own, lines = node.args, {node.lineno, *(each.lineno for each in node.decorator_list)}
            pairs = [*zip([*own.posonlyargs, *own.args][::-1], own.defaults[::-1], strict=False)]
            for argument, default in (*pairs, *zip(own.kwonlyargs, own.kw_defaults, strict=True)):
                if isinstance(default, ast.Call) and (inner := _given(default).get("default") or default.args[:1]):
                    default = inner[0] if isinstance(inner, list) else inner  # typer.Option(X)
                if text := source.computed(default):
                    found |= {f"{line} {argument.arg}": text for line in lines}
    return found


def _mentions_parser(script: Path, start: Path) -> bool:
    """Whether a program's file, or one of its project that an import statement names, mentions a parser."""
    waiting, seen = [script], {script}
    while waiting:
        content, file = "", waiting.pop()
        with contextlib.suppress(ScriptError):
            content = read_source(file).decode(errors="replace")
        if _PARSERS.search(content):
            return True
        for found in _IMPORT.finditer(content):
            for name in [found[1], f"{found[1]}.{found[2]}"] if found[1] else [found[2]]:
                for path in (base.joinpath(*name.strip(".").split(".")) for base in (start, *file.parents[:2])):
                    files = [path.with_suffix(".py"), path / "__init__.py", path / "__main__.py"]
                    new = [each for each in files if each not in seen and each.is_file() and len(seen) < _MOST_FILES]
                    seen.update(new)
                    waiting += new
    return False


def _given(call: ast.AST | None) -> dict[str | None, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords} if isinstance(call, ast.Call) else {}


class _Source:
    """The syntax tree of one file, and what its module assigns."""

    def __init__(self, path: Path) -> None:
        try:
            self.path, self.tree = path, parse_source(path, read_source(path))
            self.nodes = list(ast.walk(self.tree))
            self.assigned: dict[str, list[ast.expr]] = {}
            for node in self.nodes:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.assigned.setdefault(node.targets[0].id, []).append(node.value)
            self.bound: dict[str, list[ast.expr]] = {}
            self.lines, self.values = dict[str, int](), dict[str, Any]()
            for statement in self.tree.body:
                self._bind(statement, is_plain=True)
        except (RecursionError, MemoryError):
            raise ScriptError(f"{path}:1: nested too deeply; its arguments are not read") from None
        self.classes = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}
        self.commands: dict[str, str] = {}
        self.texts: dict[ast.AST | None, str] = {}

    def _bind(self, statement: ast.stmt, is_plain: bool) -> None:
        """Keep what a statement assigns to names: in a branch, beside what they had."""
        pairs: list[tuple[ast.expr, ast.expr]] = []
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=nodes)) if len(names) == len(nodes):
                pairs = list(zip(names, nodes, strict=True))
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                pairs = [(target, value)]
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                pairs = [(target, ast.BinOp(ast.Constant(self.values.get(name, ...)), op, value))]
            case ast.If() | ast.Try() | ast.With():
                for inner in (*statement.body, *getattr(statement, "orelse", ()), *getattr(statement, "finalbody", ())):
                    self._bind(inner, is_plain=False)
        for target, value in pairs:
            if isinstance(target, ast.Name):
                others = [] if is_plain else self.bound.get(target.id, [])
                self.bound[target.id], self.lines[target.id] = [*others, value], statement.lineno
                self.values.pop(target.id, None)
                with contextlib.suppress(ValueError, ArithmeticError, TypeError):
                    self.values |= {} if others else {target.id: self.fold(value)}

    def fold(self, node: ast.AST | None) -> Any:
        """Return the value of an expression of literals and constants; ValueError if it is none, or large."""
        match node:
            case ast.Constant(value=value) if isinstance(value, bool | int | float | str | None):
                return value
            case ast.Name(id=name) if name in self.values:
                return self.values[name]
            case ast.List(elts=nodes) | ast.Tuple(elts=nodes) | ast.Set(elts=nodes) if len(nodes) <= _LONGEST:
                found = [self.fold(each) for each in nodes]
                if len(repr(found)) <= _LONGEST:  # lists of lists of lists
                    return found
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.fold(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                first, second = self.fold(left), self.fold(right)
                if type(first) in (int, float) and type(second) in (int, float):
                    return _OPERATORS[type(op)](first, second)
                if isinstance(op, ast.Add) and len(first) + len(second) <= _LONGEST:
                    return first + second
        raise ValueError

    def default(self, node: ast.AST | None) -> Item:
        """Return the entries of a default: a literal, else its text."""
        with contextlib.suppress(ValueError, ArithmeticError, TypeError):
            return {"default": None if node is None else self.fold(node)}
        return {"default": None, "default_text": self.computed(node) or ast.unparse(node)[:200]}  # type: ignore[arg-type]

    def computed(self, node: ast.AST | None, depth: int = 0) -> str:
        """Return the text of an expression whose value may differ where the program runs; empty for others."""
        if node is None or node in self.texts:
            return self.texts.get(node, "")
        self.texts[node], inner = "", list(ast.walk(node))
        names = {each.id for each in inner if isinstance(each, ast.Name)} if depth < _DEEPEST else set()
        known = [self.assigned[name][0] for name in names if len(self.assigned.get(name, ())) == 1]
        texts = [self.computed(each, depth + 1) for each in known]
        calls = (ast.unparse(each.func).rpartition(".")[2] for each in inner if isinstance(each, ast.Call))
        text = "".join(texts) if isinstance(node, ast.Name) else ast.unparse(node)
        is_computed = any(texts) or "environ" in text or not all(map(_PURE.fullmatch, calls))
        self.texts[node] = text[:200] if is_computed else ""
        return self.texts[node]

    def described(self, name: str, flags: list[str], line: int, **settings: Any) -> Item:
        """Return an argument with the usual values for what is not given."""
        usual = dict[str, Any](action="store", types=["str"], default=None, is_required=False)
        return usual | settings | {"name": name, "flags": flags, "source": f"{self.path.name}:{line}"}

    # --- argparse and dataclasses ---

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
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument"):
                names = [n.value for n in node.args if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                owner = ast.unparse(node.func)[: -len(".add_argument")]
                command = [self.commands[owner]] if owner in self.commands else []
                if names and len(names) == len(node.args):
                    yield self._argument(names, node) | {"command": command, "group": groups.get(owner, "")}

    def _argument(self, names: list[str], call: ast.Call) -> Item:
        given = _given(call)
        literal = {key: self.default(node)["default"] for key, node in given.items()}
        flags = [name for name in names if name.startswith("-")]
        named = next((flag for flag in flags if flag.startswith("--")), names[0])
        kind, entries = ast.unparse(given["type"]) if "type" in given else "str", self.default(given.get("default"))
        action = literal.get("action") or ("optional_bool" if "action" in given else "store")
        example = type(entries["default"]).__name__ if "type" in given else "str"
        entries["types"] = [next((each for each in (kind, example) if each in _NAMED), "str")]
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
        given = dict(zip(names, getattr(call, "args", ()), strict=False)) | _given(call)
        for base in (ast.unparse(base) for base in owner.bases):
            if self._is_dataclass(base) and base != owner.name and prefix.count(".") < _DEEPEST:
                yield from self.fields(self.classes[base], prefix)
        for name, node in zip(names, nodes, strict=True):
            value = given.get(name, node.value)
            is_field = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field")
            settings = _given(value) if is_field else {}
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
        kinds = [kind for kind in _NAMED if re.search(rf"\b{kind}\b", text) and not is_map]
        helps = re.search(r"'help': '([^']*)'", ast.unparse(settings["metadata"])) if "metadata" in settings else None
        flags = list(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))
        is_list = not is_map and bool(re.search(r"\b(list|tuple|sequence)\[", text.lower()))
        entries |= {"choices": choices, "help": helps[1] if helps else ""}
        entries |= {"types": kinds or ([] if choices else ["str"]), "is_list": is_list, "is_required": is_required}
        entries |= {"is_optional": "None" in text or "Optional" in text, "group": name.rpartition(".")[0]}
        return self.described(name, flags, node.lineno, **entries)

    # --- programs without a parser ---

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

    def configurator(self) -> int | None:
        """Return the line that executes a file which reads `--name=value` into the constants; None without one."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "exec":
                names = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                for path in (self.path.parent / name for name in names if name.endswith(".py")):
                    with contextlib.suppress(ScriptError):
                        if b"sys.argv" in (text := read_source(path)) and b"globals()" in text:
                            return node.lineno
        return None

    def constants(self, end: int) -> Iterator[Item]:
        """Yield the constants that are assigned before a line."""
        lines = read_source(self.path).decode(errors="replace").splitlines()
        for name, nodes in self.bound.items():
            kinds = {self._kind(node) for node in nodes} - ({None} if len(nodes) > 1 else set())
            if self.lines[name] < end and not name.startswith("_") and len(kinds) == 1 and None not in kinds:
                text = " or ".join(dict.fromkeys(map(ast.unparse, nodes)))
                entries: Item = {"default": self.values[name]} if name in self.values else {"default_text": text}
                comment = lines[self.lines[name] - 1].partition("# ")[2]
                yield self.described(name, [f"--{name}"], self.lines[name], types=[*kinds], help=comment, **entries)

    def _kind(self, node: ast.AST | None, depth: int = 0) -> str | None:
        """Return the name of the type of an expression's value; None if it is not known, or not a constant's."""
        with contextlib.suppress(ValueError, ArithmeticError, TypeError):
            found = type(self.fold(node)).__name__
            return found if found in _NAMED else None
        match node:
            case ast.JoinedStr():
                return "str"
            case ast.Compare() | ast.UnaryOp(op=ast.Not()):
                return "bool"
            case ast.IfExp(body=first, orelse=second) | ast.BinOp(left=first, right=second):
                return self._kind(first, depth) or self._kind(second, depth)
            case ast.Name(id=name) if name in self.bound and depth < _DEEPEST:
                return self._kind(self.bound[name][-1], depth + 1)
            case ast.Call(func=ast.Name(id=name)) if name in _NAMED:
                return name
            case ast.Call(func=ast.Attribute(attr="get" | "getenv" | "join"), args=[*_, last]):
                return self._kind(last, depth)
        return None
